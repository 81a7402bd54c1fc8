// Edits: ops on the bytes of one image, one after the other while it lies in the cache, as
// `kernels.edits` says.
//
// An edit is its code (the number of the op), the number of its arguments, and the arguments, all
// in float64.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "clahe.hpp"

namespace core {

struct Size {
    int64_t height, width, channels;
    int64_t pixels() const { return height * width; }
    int64_t bytes() const { return height * width * channels; }
};

struct Edits {
    const double* numbers;
    int64_t count;
};

// Returns whether edits can be done to images of a size: there are such codes, and arguments that
// mean something.
bool are_edits(const Edits& edits, const Size& size);

// Does edits, and has the memory for it.
class Editor {
  public:
    // Writes the edited image to `out`, which is other memory.
    //
    // Assumes: the image has pixels, and `are_edits` said yes.
    void edit(const uint8_t* image, const Size& size, const Edits& edits, uint8_t* out);

  private:
    struct Edit;
    friend bool are_edits(const Edits&, const Size&);

    void apply(const Edit& edit);
    void move(const Edit& edit, const uint8_t* from, uint8_t* to);
    void mix(const Edit& edit, const uint8_t* from, uint8_t* to);
    void stretch(void (*table_of)(uint8_t low, uint8_t high, uint8_t* table));
    void equalize();
    int64_t sum(int64_t (*sum_of_rgb)(const uint8_t* image, int64_t pixels));

    const uint8_t* pixels();
    uint8_t* place(int64_t num_moves);
    void add_tables(const uint8_t* tables, int64_t count);

    Size size_{};
    const uint8_t* current_ = nullptr;  // the image, or its state after the edits so far
    uint8_t* out_ = nullptr;
    int64_t num_moves_ = 0;  // edits to come that cannot be done in place
    int64_t num_tables_ =
        0;  // by which `current_` is still to be looked up: none, one, or one of each channel
    std::vector<uint8_t> spare_, tables_, new_tables_, chain_;
    std::vector<int64_t> counts_;
    std::vector<float> sums_;
    TileEqualizer tiles_;
    std::unique_ptr<Editor> inner_;  // does the chains of a mix
};

}  // namespace core

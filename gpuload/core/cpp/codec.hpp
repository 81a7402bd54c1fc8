// The image codec: pixels of JPEG files, whole or a region, by nvImageCodec of the installed Python
// package. They are the same as those of `images/decode.py`, which decodes the files that are
// declined here, and raises the errors.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "jpeg.hpp"
#include "nvimgcodec.hpp"

namespace core {

struct Box {
    int64_t top, left, height, width;  // pixels
};

// A decoder and its memory. One thread uses it at a time: two threads in one decoder end the
// process.
class Decoder {
  public:
    Decoder(const nvimgcodec::Functions& functions, nvimgcodec::Instance instance);
    Decoder(const Decoder&) = delete;

    // Returns the pixels of a region of the upright image, RGB, rows side by side; they stay until
    // the next call. Returns nullptr if the file is declined: it is damaged, or of a kind that is
    // not decoded here.
    //
    // Assumes: `head` is that of the file, and the region lies in the image.
    const uint8_t* decode(const uint8_t* data, int64_t size, const JpegHead& head,
                          const Box& region, bool is_whole);

    void shrink() noexcept;  // gives back memory that a large image took

  private:
    bool decode_into(std::vector<uint8_t>& pixels, const uint8_t* data, int64_t size,
                     const JpegHead& head, const Box& region, bool is_whole);
    bool fits(nvimgcodec::ImageInfo& info, const JpegHead& head, const Box& region) const;

    const nvimgcodec::Functions& functions_;
    nvimgcodec::Instance instance_;
    nvimgcodec::DecoderRef decoder_ = nullptr;
    std::vector<uint8_t> pixels_, again_, endless_;
};

// The library, and decoders that are lent to threads.
//
// It belongs to the process that made it: a child of fork makes its own, and never touches that of
// its parent. Nothing is given back to the library: threads may still be in it when the process
// ends.
class Codec {
  public:
    // Opens the library. Throws std::runtime_error, which says why it cannot be used.
    Codec(const std::string& library, const std::string& extensions);

    std::string version() const;

    class Loan {  // of a decoder, to one thread
      public:
        explicit Loan(Codec& codec) : codec_(codec), decoder_(codec.take()) {}
        Loan(const Loan&) = delete;
        ~Loan() { codec_.give_back(std::move(decoder_)); }
        Decoder& decoder() { return *decoder_; }

      private:
        Codec& codec_;
        std::unique_ptr<Decoder> decoder_;
    };

  private:
    std::unique_ptr<Decoder> take();
    void give_back(std::unique_ptr<Decoder> decoder) noexcept;

    nvimgcodec::Functions functions_{};
    nvimgcodec::Instance instance_ = nullptr;
    uint32_t version_ = 0;
    std::mutex lock_;
    size_t num_decoders_ = 0;
    std::vector<std::unique_ptr<Decoder>> free_;
};

}  // namespace core

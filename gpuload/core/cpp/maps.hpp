// Maps: bytes at (file, offset, length) into places of one block of memory, from memory maps or by positioned reads,
// checked before and after.
//
// Maps    A file is mapped when less than 1 / MAP_PARTS of it is wanted and it has MAP_BYTES: a file that is read as a whole is
//         seldom read again, and one read is faster than map, page faults and unmap together. There are as many maps as
//         the guard has ranges. A map costs no memory of its own and keeps no file open.
// Checks  Numbers, offsets, lengths and places are checked before the first address is computed. Afterwards the size, time and
//         inode of each file that was read are compared with those at its opening, so that no bytes of a changed file leave
//         this module.
// Life    A `Maps` owns its maps. A reader refers to it, so none is reading when it goes. It takes no lock, so it may go in
//         any thread; a child of a fork may go on with its copy.
// Source  statx(2), mmap(2), madvise(2).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace core {

struct Extents {
    const int64_t *files, *offsets, *lengths;
    int64_t count;
};

class Maps {
  public:
    enum Result : int { COPIED, CHANGED, FAILED, OUTSIDE };
    enum State : int8_t { REFUSED = -1, UNTRIED, MAPPED };

    // `paths` are the paths of all files, each ended by a zero byte; `stamps` is [num_files, 3]: size in bytes, time of
    // modification in ns, inode. The system is told in pieces of `piece_bytes` what will be copied, before it is; 0: it
    // is not told.
    Maps(std::string paths, const int64_t* stamps, int64_t num_files, int64_t piece_bytes);
    ~Maps();
    Maps(const Maps&) = delete;

    // Copies the bytes of extent i to out[begins[i]:]. Returns COPIED, or what went wrong and with which extent (OUTSIDE)
    // or file; nothing was written for OUTSIDE.
    std::pair<int64_t, Result> copy(const Extents& extents, const int64_t* begins, uint8_t* out, int64_t out_bytes);

    // Maps the files of which these extents want little enough (see Maps). Errors are left to `copy`.
    void map(const Extents& extents);

    // Asks the system to have these bytes in memory soon, of files that are mapped.
    void advise(const Extents& extents, int64_t piece_bytes) const;

    int64_t num_files() const { return num_files_; }
    State state(int64_t file) const;  // of a file below num_files
    bool any_refused() const { return any_refused_.load(std::memory_order_relaxed); }

  private:
    struct File {
        std::atomic<uint8_t*> address{nullptr};  // written last: from then on copies read the map
        std::atomic<int> range{-1};              // of the guard; of two threads that map a file one writes it
        std::atomic<bool> refused{false};
        int64_t path = 0, size = 0, mtime_ns = 0, inode = 0;
    };

    File& at(int64_t file) const { return files_[size_t(file)]; }  // the number was checked
    bool is_outside(const Extents& extents, int64_t i) const;
    bool is_worth_mapping(const File& file, int64_t length) const;
    Result map(File& file);
    Result check(const File& file, int descriptor) const;
    void ask_for(const std::vector<const uint8_t*>& sources, const int64_t* lengths) const;
    std::pair<int64_t, Result> check_mapped(const Extents& extents, const std::vector<const uint8_t*>& sources) const;
    std::pair<int64_t, Result> read_unmapped(const Extents& extents, const std::vector<const uint8_t*>& sources,
                                             const int64_t* begins, uint8_t* out) const;

    std::string paths_;
    int64_t num_files_, piece_bytes_;
    std::unique_ptr<File[]> files_;
    std::atomic<bool> any_refused_{false};
};

// Copies row numbers[i] of `source`, [num_rows, size], to out[begins[i]:]. Returns -1, or the place of the first number or
// begin that lies outside; then nothing was copied.
int64_t gather_rows(const uint8_t* source, int64_t num_rows, int64_t size, const int64_t* numbers, const int64_t* begins,
                    int64_t count, uint8_t* out, int64_t out_bytes);

}  // namespace core

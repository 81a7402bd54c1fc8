// Maps: bytes at (file, offset, length) into places of one block of memory, from memory maps or by
// positioned reads, checked before and after.
//
// Maps    A file is mapped when less than 1 / MAP_PARTS of it is wanted and it has MAP_BYTES: a
//         file that is read as a whole is seldom read again, and one read is faster than map, page
//         faults and unmap together. A map costs no memory of its own and keeps no file open.
// Bound   There are at most `most_maps` maps, and no more than the guard has ranges for all `Maps`
//         of the process. Once that is too few, a file is mapped when WANTED calls want it within a
//         short time, and read with pread before: of files that are read in order, or in an order
//         that is random over all of them, no map is made in vain, and those that are there stay.
//         Room is made by a clock: its hand passes the maps, and undoes those that were not read
//         since it passed them last, which are the least recently used.
// Readers A map is taken from the table first, and undone when all calls have ended that may have
//         seen it there. Calls are counted on two sides, of which new ones join one; a map may go
//         when each side was seen empty since it was taken. The side that new calls join changes,
//         so that the other one runs empty. No call waits for another one.
// Checks  Numbers, offsets, lengths and places are checked before the first address is computed.
//         Afterwards the size, time and inode of each file that was read are compared with those at
//         its opening, so that no bytes of a changed file leave this module.
// Life    A `Maps` owns its maps. A reader refers to it, so none is reading when it goes. It waits
//         for no lock, so it may go in any thread; a child of a fork may go on with its copy. If a
//         thread of the parent was reading at the fork, the child undoes no maps, and reads with
//         pread where it has no room.
// Source  statx(2), mmap(2), madvise(2).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace core {

struct Extents {
    const int64_t *files, *offsets, *lengths;
    int64_t count;
};

// The paths of files, in memory that outlives their use: file i is folder_of[i], with its last
// slash, and then name i. Texts lie one behind the other, text i from bounds[i] to bounds[i + 1].
struct Paths {
    const uint8_t* folders;
    const int64_t* folder_bounds;
    const uint32_t* folder_of;
    const uint8_t* names;
    const int64_t* name_bounds;
};

class Maps {
  public:
    enum Result : int { COPIED, CHANGED, FAILED, OUTSIDE };
    enum State : int8_t { REFUSED = -1, UNTRIED, MAPPED };

    // `stamps` is [num_files, 3]: size in bytes, time of modification in ns, inode, or 0 where that
    // is not known; it outlives the maps, as the paths do. Before bytes are copied, the system is
    // asked to read them, in pieces of `piece_bytes`; 0: it is not asked. `most_maps` 0: most of
    // the guard's ranges, so that some are left for other `Maps`.
    Maps(const Paths& paths, const int64_t* stamps, int64_t num_files, int64_t piece_bytes,
         int64_t most_maps);
    ~Maps();
    Maps(const Maps&) = delete;

    // Copies the bytes of extent i to out[begins[i]:]. Returns COPIED, or else the number of the
    // extent (OUTSIDE) or of the file (CHANGED, FAILED), and that result; nothing was written for
    // OUTSIDE.
    std::pair<int64_t, Result> copy(const Extents& extents, const int64_t* begins, uint8_t* out,
                                    int64_t out_bytes);

    // Calls `use(i, bytes)` for each extent that has bytes, in any order. Returns the same as
    // `copy`: unless that is COPIED, all that was made of the bytes must be dropped.
    using Use = std::function<void(int64_t i, const uint8_t* bytes)>;
    std::pair<int64_t, Result> read(const Extents& extents, const Use& use);

    // Maps the files of which these extents want little enough (see Maps). Errors are left to
    // `copy`.
    void map(const Extents& extents);

    // Asks the system to have these bytes in memory soon, of files that are mapped.
    void advise(const Extents& extents, int64_t piece_bytes);

    int64_t num_files() const { return num_files_; }
    State state(int64_t file) const;  // of a file below num_files
    bool any_refused() const { return any_refused_.load(std::memory_order_relaxed); }

  private:
    // Of a file; or the number of its map, counted from 1.
    static constexpr int32_t NO_MAP = 0, NEVER = -1, BUSY = -2;

    struct Map {  // all but `owner` and `is_recent` is written before a file refers to it
        uint8_t* address = nullptr;
        int64_t size = 0;
        int range = -1;                      // of the guard
        std::atomic<int64_t> owner{-1};      // the file; -1: free, or waiting to be undone
        std::atomic<bool> is_recent{false};  // it was read since the clock's hand passed
    };

    // A file that was wanted and not mapped while room is scarce. Threads may mix two, which costs
    // a map.
    struct Miss {
        std::atomic<int64_t> file{-1}, time{0};       // counted in misses
        std::atomic<uint32_t> call{0}, num_calls{0};  // the last that wanted it, and how many did
    };

    struct Source {  // of an extent: where it lies in a map, and the guard's range of that
        const uint8_t* address = nullptr;
        int range = -1;
    };

    struct Kinds {  // of extents that have bytes: are there some in maps, and some that are not?
        bool any_mapped = false, any_unmapped = false;
    };

    // While it lives, no map is undone that a file referred to after its beginning.
    class Reading {
      public:
        explicit Reading(Maps& maps) : num_(maps.num_readers_[maps.side_.load() & 1].count) {
            num_.fetch_add(1);
        }
        Reading(const Reading&) = delete;
        ~Reading() { num_.fetch_sub(1); }

      private:
        std::atomic<int64_t>& num_;
    };

    struct alignas(64) Count {  // in a cache line of its own: every call writes to it
        std::atomic<int64_t> count{0};
    };

    int64_t size(int64_t file) const { return stamps_[3 * file]; }  // the number was checked
    const char* path(int64_t file) const;
    bool is_outside(const Extents& extents, int64_t i) const;
    bool is_worth_mapping(int64_t file, int64_t length) const;
    Map* map_of(int64_t file) const;
    std::pair<int64_t, Result> find(const Extents& extents, std::vector<Source>& sources,
                                    Kinds& kinds);
    std::pair<int64_t, Result> copy_extents(const Extents& extents, const int64_t* begins,
                                            uint8_t* out, int64_t out_bytes);
    std::pair<int64_t, Result> use_extents(const Extents& extents, const Use& use);
    Result map(int64_t file, uint32_t call);
    int32_t add(int64_t file, uint8_t* address, int range);
    bool has_room(int64_t file, uint32_t call);
    uint32_t next_call();
    void make_room();
    void take_from_table();
    void undo(Map& map);
    Result check(int64_t file, int descriptor) const;
    void ask_for(const std::vector<Source>& sources, const int64_t* lengths) const;
    std::pair<int64_t, Result> check_mapped(const Extents& extents,
                                            const std::vector<Source>& sources) const;
    std::pair<int64_t, Result> read_unmapped(const Extents& extents,
                                             const std::vector<Source>& sources,
                                             const int64_t* begins, uint8_t* out) const;

    const Paths paths_;
    const int64_t* const stamps_;
    const int64_t num_files_, piece_bytes_, most_maps_;
    std::unique_ptr<std::atomic<int32_t>[]> map_numbers_;  // of each file
    std::unique_ptr<Map[]> maps_;                          // most_maps_
    std::unique_ptr<Miss[]> misses_;                       // most_maps_
    std::atomic<int64_t> num_misses_{0};
    std::atomic<uint32_t> num_calls_{0};
    // Maps that are there or wait to be undone; maps of `maps_` that were ever used.
    std::atomic<int64_t> num_maps_{0}, num_new_{0};
    std::atomic<bool> any_refused_{false}, is_scarce_{false}, wants_room_{false};
    std::atomic<uint32_t> side_{0};
    Count num_readers_[2];
    std::atomic<bool> is_clearing_{false};  // a thread that sets it may use the members below
    // Numbers of maps: that were undone; that were taken from the table.
    std::vector<int32_t> free_, leaving_;
    bool was_empty_[2]{};  // each side, since then
    int64_t hand_ = 0;
};

struct RowTable {
    const uint8_t* bytes;
    int64_t num_rows, row_bytes;
};

// Copies row numbers[i] to out[begins[i]:]. Returns -1, or the place of the first number or begin
// that lies outside; then nothing was copied.
int64_t gather_rows(const RowTable& rows, const int64_t* numbers, const int64_t* begins,
                    int64_t count, uint8_t* out, int64_t out_bytes);

}  // namespace core

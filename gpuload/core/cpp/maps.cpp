// Maps: see maps.hpp.
//
// Assumes: arrays have the sizes that are said, and bounds of paths lie in them; the Python face
// checked both. Nothing is assumed of stamps, file numbers, offsets, lengths and places.
#include "maps.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "guard.hpp"

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace core {
namespace {

// Measured: rows of files of 24 KB are read 3 times as fast.
constexpr int64_t MAP_PARTS = 8, MAP_BYTES = 1 << 14;
constexpr int64_t LINE_BYTES = 64, PAGE_BYTES = 4096;
// Fetched in advance: cache lines of an extent that follows in order, pages of any other extent.
constexpr int64_t NEXT_LINES = 8, AHEAD_PAGES = 4;
// Of extents as small as a cache line, the one that comes so many places later is fetched.
constexpr int64_t AHEAD_ITEMS = 8;
constexpr int64_t AHEAD_LINES = 8;  // that are fetched of the next row of an array
// Neighbours are one copy up to here; longer ones are slower by a fifth.
constexpr int64_t JOINED_BYTES = 8192;
constexpr int64_t LARGEST_READ = 1 << 30;   // Linux reads at most 0x7ffff000 bytes a call
constexpr int64_t LONGEST_ASKED = 1 << 20;  // bytes of a run that is asked for before it is copied
constexpr int MAX_INSTALLS = 100;  // of the guard, against a program that replaces it all the time
constexpr int64_t LEAVING_PARTS = 16;  // of all maps one in so many is undone at a time
constexpr uint32_t WANTED = 16;  // calls; a map and its end cost about as much as reading ten times
constexpr int64_t SHORT_TIME = 64;  // misses between two of these calls, or a quarter of all maps

// Begins to bring an extent near: the first cache lines of its first pages, so that their addresses
// come, too.
void fetch(const uint8_t* source, int64_t size) {
    const uint8_t* const end = source + std::min(size, AHEAD_PAGES * PAGE_BYTES);
    for (const uint8_t* place = source; place < end;) {
        __builtin_prefetch(place);
        __builtin_prefetch(place + LINE_BYTES);
        place += PAGE_BYTES - int64_t(reinterpret_cast<uintptr_t>(place) % PAGE_BYTES);
    }
}

// Copies bytes; a file in Fortran order is read item by item, where a call of memcpy would be most
// of the time.
void copy_bytes(uint8_t* to, const uint8_t* source, int64_t size) {
    switch (size) {
        case 1: std::memcpy(to, source, 1); break;
        case 2: std::memcpy(to, source, 2); break;
        case 4: std::memcpy(to, source, 4); break;
        case 8: std::memcpy(to, source, 8); break;
        default: std::memcpy(to, source, size_t(size));
    }
}

// While one extent is copied, the beginning of the one after the next is fetched (measured for
// extents of 3 KB in random order: 0.75 of the time that it takes without); neighbours in the file
// that stay neighbours are one copy.
template <class Source>
void copy_mapped(const std::vector<Source>& sources, const int64_t* lengths, const int64_t* begins,
                 uint8_t* out) {
    const int64_t count = int64_t(sources.size());
    const auto address_of = [&](int64_t i) { return sources[size_t(i)].address; };
    for (int64_t i = 0, after; i < count; i = after) {
        const uint8_t* source = address_of(i);
        int64_t size = lengths[i];
        after = i + 1;
        if (source == nullptr) continue;
        while (after < count && address_of(after) == source + size &&
               begins[after] == begins[i] + size && size + lengths[after] <= JOINED_BYTES)
            size += lengths[after++];
        if (size <= LINE_BYTES) {
            const uint8_t* ahead = address_of(std::min(i + AHEAD_ITEMS, count - 1));
            if (ahead != nullptr) __builtin_prefetch(ahead);
        } else if (after < count && address_of(after) == source + size) {
            for (int64_t line = 0; line < NEXT_LINES; ++line)
                __builtin_prefetch(source + size + LINE_BYTES * line);
        } else if (after + 1 < count && address_of(after + 1) != nullptr) {
            fetch(address_of(after + 1), lengths[after + 1]);
        }
        copy_bytes(out + begins[i], source, size);
    }
}

}  // namespace

int64_t gather_rows(const RowTable& rows, const int64_t* numbers, const int64_t* begins,
                    int64_t count, uint8_t* out, int64_t out_bytes) {
    const uint8_t* const source = rows.bytes;
    const int64_t size = rows.row_bytes;
    for (int64_t i = 0; i < count; ++i) {
        const bool is_row = 0 <= numbers[i] && numbers[i] < rows.num_rows;
        const bool has_room = 0 <= begins[i] && begins[i] <= out_bytes - size;
        if (!is_row || !has_room) return i;
    }
    const int64_t num_lines = std::min(AHEAD_LINES, (size + LINE_BYTES - 1) / LINE_BYTES);
    for (int64_t i = 0; i < count; ++i) {
        if (i + 1 < count)
            for (int64_t line = 0; line < num_lines; ++line)
                __builtin_prefetch(source + numbers[i + 1] * size + LINE_BYTES * line);
        copy_bytes(out + begins[i], source + numbers[i] * size, size);
    }
    return -1;
}

Maps::Maps(const Paths& paths, const int64_t* stamps, int64_t num_files, int64_t piece_bytes,
           int64_t most_maps)
    : paths_(paths), stamps_(stamps), num_files_(num_files), piece_bytes_(piece_bytes),
      most_maps_(std::min(num_files, most_maps > 0
                                         ? most_maps
                                         : std::max<int64_t>(1, guard::num_ranges() / 16 * 15))),
      map_numbers_(new std::atomic<int32_t>[size_t(num_files)]()),
      maps_(new Map[size_t(most_maps_)]), misses_(new Miss[size_t(most_maps_)]) {
    free_.reserve(size_t(most_maps_));  // now: where they grow later, nothing may fail
    leaving_.reserve(size_t(most_maps_));
}

Maps::State Maps::state(int64_t file) const {
    const int32_t number = map_numbers_[size_t(file)].load(std::memory_order_relaxed);
    return number > 0 ? MAPPED : number == NEVER ? REFUSED : UNTRIED;
}

bool Maps::is_outside(const Extents& extents, int64_t i) const {
    const int64_t file = extents.files[i], offset = extents.offsets[i], length = extents.lengths[i];
    return file < 0 || file >= num_files_ || length < 0 || offset < 0 ||
           length > size(file) - offset;
}

bool Maps::is_worth_mapping(int64_t file, int64_t length) const {
    return size(file) >= MAP_BYTES && length > 0 && length <= size(file) / MAP_PARTS &&
           map_numbers_[size_t(file)].load(std::memory_order_relaxed) == NO_MAP;
}

// Returns the map of a file, which stays while the caller's `Reading` lives; null if it has none.
Maps::Map* Maps::map_of(int64_t file) const {
    // In the one order of all threads (see make_room) this comes behind the beginning of the
    // caller's `Reading`.
    const int32_t number = map_numbers_[size_t(file)].load(std::memory_order_seq_cst);
    if (number <= 0) return nullptr;
    Map& map = maps_[size_t(number) - 1];
    // While all maps have room no call asks which ones are used; and a flag that is set is not
    // written again and again, which would take its cache line from other cores.
    if (is_scarce_.load(std::memory_order_relaxed) &&
        !map.is_recent.load(std::memory_order_relaxed))
        map.is_recent.store(true, std::memory_order_relaxed);
    return &map;
}

const char* Maps::path(int64_t file) const {
    thread_local std::string text;
    const auto part = [](const uint8_t* texts, const int64_t* bounds, int64_t i) {
        return std::string_view(reinterpret_cast<const char*>(texts) + bounds[i],
                                size_t(bounds[i + 1] - bounds[i]));
    };
    text.assign(part(paths_.folders, paths_.folder_bounds, paths_.folder_of[file]));
    text.append(part(paths_.names, paths_.name_bounds, file));
    return text.c_str();
}

#if defined(__linux__)

Maps::~Maps() {
    for (int64_t i = 0; i < std::min(num_new_.load(), most_maps_); ++i)
        if (maps_[size_t(i)].address != nullptr) undo(maps_[size_t(i)]);
}

// Gives the addresses of a map back that no call reads any more.
void Maps::undo(Map& map) {
    guard::release(map.range);  // first: another map may get these addresses
    munmap(map.address, size_t(map.size));
    map.address = nullptr;
}

void Maps::map(const Extents& extents) {
    {
        const Reading reading(*this);
        const uint32_t call = next_call();
        for (int64_t i = 0; i < extents.count; ++i)
            if (!is_outside(extents, i) && is_worth_mapping(extents.files[i], extents.lengths[i]))
                map(extents.files[i], call);
    }
    if (wants_room_.load(std::memory_order_relaxed)) make_room();
}

std::pair<int64_t, Maps::Result> Maps::copy(const Extents& extents, const int64_t* begins,
                                            uint8_t* out, int64_t out_bytes) {
    std::pair<int64_t, Result> result;
    {
        const Reading reading(*this);
        result = copy_extents(extents, begins, out, out_bytes);
    }
    if (wants_room_.load(std::memory_order_relaxed)) make_room();
    return result;
}

std::pair<int64_t, Maps::Result> Maps::read(const Extents& extents, const Use& use) {
    std::pair<int64_t, Result> result;
    {
        const Reading reading(*this);
        result = use_extents(extents, use);
    }
    if (wants_room_.load(std::memory_order_relaxed)) make_room();
    return result;
}

// Finds out where extents lie in maps. Addresses are taken once for the whole call: another thread
// may map a file while this one reads, and each extent must then still be either read from its map
// or from its file. An extent without bytes touches no file.
std::pair<int64_t, Maps::Result> Maps::find(const Extents& extents, std::vector<Source>& sources,
                                            Kinds& kinds) {
    sources.assign(size_t(extents.count), Source{});
    const uint32_t call = next_call();
    for (int64_t i = 0; i < extents.count; ++i) {
        const int64_t file = extents.files[i];
        if (extents.lengths[i] == 0) continue;
        const Map* entry = map_of(file);
        if (entry == nullptr && is_worth_mapping(file, extents.lengths[i])) {
            const Result result = map(file, call);
            if (result != COPIED) return {file, result};
            entry = map_of(file);
        }
        if (entry != nullptr)
            sources[size_t(i)] = {entry->address + extents.offsets[i], entry->range};
        (entry != nullptr ? kinds.any_mapped : kinds.any_unmapped) = true;
    }
    if (!kinds.any_mapped) return {0, COPIED};
    bool guarded = guard::is_installed();
    for (int tries = 0; !guarded && tries < MAX_INSTALLS; ++tries) {
        guard::install();
        guarded = guard::is_installed();
    }
    if (!guarded) {
        std::fill(sources.begin(), sources.end(), Source{});
        kinds = {false, true};
    } else if (piece_bytes_ > 0) {
        ask_for(sources, extents.lengths);
    }
    return {0, COPIED};
}

std::pair<int64_t, Maps::Result> Maps::copy_extents(const Extents& extents, const int64_t* begins,
                                                    uint8_t* out, int64_t out_bytes) {
    for (int64_t i = 0; i < extents.count; ++i)
        if (is_outside(extents, i) || begins[i] < 0 || extents.lengths[i] > out_bytes - begins[i])
            return {i, OUTSIDE};
    std::vector<Source> sources;
    Kinds kinds;
    std::pair<int64_t, Result> result = find(extents, sources, kinds);
    if (result.second == COPIED && kinds.any_mapped) {
        copy_mapped(sources, extents.lengths, begins, out);
        result = check_mapped(extents, sources);
    }
    if (result.second == COPIED && kinds.any_unmapped)
        result = read_unmapped(extents, sources, begins, out);
    return result;
}

std::pair<int64_t, Maps::Result> Maps::use_extents(const Extents& extents, const Use& use) {
    for (int64_t i = 0; i < extents.count; ++i)
        if (is_outside(extents, i)) return {i, OUTSIDE};
    std::vector<Source> sources;
    Kinds kinds;
    std::pair<int64_t, Result> result = find(extents, sources, kinds);
    if (result.second == COPIED && kinds.any_mapped) {
        for (int64_t i = 0; i < extents.count; ++i) {
            if (sources[size_t(i)].address == nullptr) continue;
            const int64_t next = std::min(i + 1, extents.count - 1);
            if (sources[size_t(next)].address != nullptr)
                fetch(sources[size_t(next)].address, extents.lengths[next]);
            use(i, sources[size_t(i)].address);
        }
        result = check_mapped(extents, sources);
    }
    if (result.second != COPIED || !kinds.any_unmapped) return result;
    std::vector<int64_t> begins(size_t(extents.count), 0);
    int64_t num_bytes = 0;
    for (int64_t i = 0; i < extents.count; ++i) {
        begins[size_t(i)] = num_bytes;
        if (sources[size_t(i)].address == nullptr) num_bytes += extents.lengths[i];
    }
    const std::unique_ptr<uint8_t[]> memory(new uint8_t[size_t(num_bytes)]);
    result = read_unmapped(extents, sources, begins.data(), memory.get());
    for (int64_t i = 0; i < extents.count && result.second == COPIED; ++i)
        if (sources[size_t(i)].address == nullptr && extents.lengths[i] > 0)
            use(i, memory.get() + begins[size_t(i)]);
    return result;
}

// Asks for the pages of all extents, so that they come from the disk together; not for those of
// long runs.
//
// It also keeps the system from reading its window around each missing page (128 KiB to 8 MiB), a
// thousand times the bytes of a row of 3 KB, which ruins a cache that is smaller than the files.
// Long runs are left to the system.
void Maps::ask_for(const std::vector<Source>& sources, const int64_t* lengths) const {
    for (size_t i = 0, after; i < sources.size(); i = after) {
        const uint8_t* const start = sources[i].address;
        const uint8_t* end = start + (start != nullptr ? lengths[i] : 0);
        for (after = i + 1;
             after < sources.size() && start != nullptr && sources[after].address == end; ++after)
            end += lengths[after];
        if (start == nullptr || end - start > LONGEST_ASKED) continue;
        const auto page = uintptr_t(sysconf(_SC_PAGESIZE)),
                   begin = reinterpret_cast<uintptr_t>(start);
        const auto last = reinterpret_cast<uintptr_t>(end);
        for (uintptr_t place = begin - begin % page; place < last; place += uintptr_t(piece_bytes_))
            madvise(reinterpret_cast<void*>(place),
                    std::min<size_t>(last - place, size_t(piece_bytes_)), MADV_WILLNEED);
    }
}

void Maps::advise(const Extents& extents, int64_t piece_bytes) {
    const Reading reading(*this);
    const auto page = uintptr_t(sysconf(_SC_PAGESIZE)), piece = uintptr_t(piece_bytes);
    for (int64_t i = 0; i < extents.count; ++i) {
        if (is_outside(extents, i)) continue;
        const Map* const entry = map_of(extents.files[i]);
        if (entry == nullptr) continue;
        const uintptr_t begin =
            reinterpret_cast<uintptr_t>(entry->address) + uintptr_t(extents.offsets[i]);
        const uintptr_t end = begin + uintptr_t(extents.lengths[i]);
        // Pages that the system refuses to fetch are read by `copy`.
        for (uintptr_t place = begin - begin % page; place < end; place += piece)
            madvise(reinterpret_cast<void*>(place), std::min<size_t>(end - place, piece),
                    MADV_WILLNEED);
    }
}

// Maps a file, or notes that the system refuses. A file that has to wait for room is read for now,
// and so is one that another thread is mapping.
Maps::Result Maps::map(int64_t file, uint32_t call) {
    if (!has_room(file, call)) return COPIED;
    const char* const name = path(file);  // first: there may be no memory for it
    std::atomic<int32_t>& number = map_numbers_[size_t(file)];
    int32_t no_map = NO_MAP;
    if (!number.compare_exchange_strong(no_map, BUSY)) return COPIED;
    const int descriptor = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const Result result = descriptor < 0 ? FAILED : check(file, descriptor);
    void* memory = MAP_FAILED;
    if (result == COPIED)
        memory = mmap(nullptr, size_t(size(file)), PROT_READ, MAP_SHARED, descriptor, 0);
    if (descriptor >= 0) close(descriptor);
    if (memory == MAP_FAILED) {
        const bool is_refused = result == COPIED;
        number.store(is_refused ? NEVER : NO_MAP);
        if (is_refused) any_refused_.store(true, std::memory_order_relaxed);
        return result;
    }
    auto* const address = static_cast<uint8_t*>(memory);
    const int range = guard::protect(address, size(file));
    const int32_t place = range >= 0 ? add(file, address, range) : NO_MAP;
    if (place == NO_MAP) {
        if (range >= 0) guard::release(range);
        munmap(memory, size_t(size(file)));
        is_scarce_.store(true, std::memory_order_relaxed);
        wants_room_.store(true, std::memory_order_relaxed);
    }
    number.store(place);  // published last: a call that sees it may read the map
    return COPIED;
}

// Returns the number of a map that it sets to these values; NO_MAP if there is no room for one.
int32_t Maps::add(int64_t file, uint8_t* address, int range) {
    int32_t place = -1;
    if (num_new_.load() < most_maps_) {
        const int64_t next = num_new_.fetch_add(1);
        if (next < most_maps_) place = int32_t(next);
    }
    if (place < 0 && !is_clearing_.exchange(true)) {
        if (!free_.empty()) {
            place = free_.back();
            free_.pop_back();
        }
        is_clearing_.store(false);
    }
    if (place < 0) return NO_MAP;
    Map& map = maps_[size_t(place)];
    map.address = address;
    map.size = size(file);
    map.range = range;
    map.is_recent.store(true, std::memory_order_relaxed);
    map.owner.store(file, std::memory_order_release);
    num_maps_.fetch_add(1);
    return place + 1;
}

// Returns the number of a call, by which a file that one call wants for many extents counts once.
uint32_t Maps::next_call() {
    return is_scarce_.load(std::memory_order_relaxed)
               ? num_calls_.fetch_add(1, std::memory_order_relaxed) + 1
               : 0;
}

// Returns true if a file may be mapped now.
bool Maps::has_room(int64_t file, uint32_t call) {
    constexpr auto RELAXED = std::memory_order_relaxed;
    const bool is_full = num_maps_.load(RELAXED) >= most_maps_ || !guard::any_free();
    if (is_full) is_scarce_.store(true, RELAXED);
    if (!is_scarce_.load(RELAXED)) return true;
    // Of the last file with this remainder that was wanted.
    Miss& miss = misses_[size_t(file % most_maps_)];
    const int64_t time = num_misses_.load(RELAXED);
    if (miss.file.load(RELAXED) != file ||
        time - miss.time.load(RELAXED) > std::max(SHORT_TIME, most_maps_ / 4)) {
        miss.file.store(file, RELAXED);
        miss.num_calls.store(0, RELAXED);
    } else if (miss.call.load(RELAXED) == call) {
        return false;
    }
    miss.call.store(call, RELAXED);
    miss.time.store(num_misses_.fetch_add(1, RELAXED) + 1, RELAXED);
    const bool is_wanted = miss.num_calls.fetch_add(1, RELAXED) + 1 >= WANTED;
    if (is_wanted && is_full) wants_room_.store(true, RELAXED);
    return is_wanted && !is_full;
}

// Undoes maps that no call reads any more, and takes others from the table that are to go next. The
// caller reads none.
//
// Why no reader has an address that is undone: it counts itself, then asks for the number of a map;
// here the number is taken away, then the readers are counted, all in one order of all threads
// (memory_order_seq_cst). If the count of a side is 0, a reader that joins that side later does not
// see the number.
void Maps::make_room() {
    // Another thread does it; waiting for it would be a lock.
    if (is_clearing_.exchange(true)) return;
    if (leaving_.empty()) take_from_table();
    for (int i = 0; i < 2 && !(was_empty_[0] && was_empty_[1]); ++i) {
        for (int side = 0; side < 2; ++side)
            was_empty_[side] = was_empty_[side] || num_readers_[side].count.load() == 0;
        // New readers join the other side, so that this one runs empty.
        if (!was_empty_[side_.load() & 1]) side_.fetch_add(1);
    }
    if (was_empty_[0] && was_empty_[1]) {
        for (const int32_t place : leaving_) {
            undo(maps_[size_t(place)]);
            num_maps_.fetch_sub(1);
            free_.push_back(place);
        }
        leaving_.clear();
        wants_room_.store(false, std::memory_order_relaxed);
    }
    is_clearing_.store(false);
}

void Maps::take_from_table() {
    const int64_t num_places = std::min(num_new_.load(), most_maps_),
                  most = std::max<int64_t>(1, num_maps_.load() / LEAVING_PARTS);
    was_empty_[0] = was_empty_[1] = false;
    for (int64_t step = 0; step < 2 * num_places && int64_t(leaving_.size()) < most; ++step) {
        hand_ = (hand_ + 1) % num_places;
        Map& map = maps_[size_t(hand_)];
        const int64_t owner = map.owner.load(std::memory_order_acquire);
        if (owner < 0 || map.is_recent.exchange(false, std::memory_order_relaxed)) continue;
        int32_t number = int32_t(hand_) + 1;
        // A map that is not published yet stays.
        if (!map_numbers_[size_t(owner)].compare_exchange_strong(number, NO_MAP)) continue;
        map.owner.store(-1, std::memory_order_relaxed);
        leaving_.push_back(int32_t(hand_));
    }
}

// Compares a file's stamp with that of its opening: by a descriptor that is open, or by its path
// (AT_FDCWD).
Maps::Result Maps::check(int64_t file, int descriptor) const {
    struct statx now;
    const bool by_path = descriptor == AT_FDCWD;
    const unsigned wanted = STATX_INO | STATX_SIZE | STATX_MTIME;
    if (statx(descriptor, by_path ? path(file) : "", by_path ? 0 : AT_EMPTY_PATH, wanted, &now) !=
        0)
        return CHANGED;
    // The time wraps around where it does not fit.
    const auto mtime_ns =
        int64_t(uint64_t(now.stx_mtime.tv_sec) * 1'000'000'000 + now.stx_mtime.tv_nsec);
    const int64_t *const stamp = stamps_ + 3 * file, inode = stamp[2];
    const bool same = int64_t(now.stx_size) == stamp[0] && mtime_ns == stamp[1] &&
                      (inode == 0 || int64_t(now.stx_ino) == inode);
    return same ? COPIED : CHANGED;
}

// Checks each file of which a map was read: stamp first, then whether pages were lost. `checked`
// remembers one file a place; where two want the same place, a file may be checked again.
std::pair<int64_t, Maps::Result> Maps::check_mapped(const Extents& extents,
                                                    const std::vector<Source>& sources) const {
    int64_t num_places = 1;
    while (num_places < std::min(extents.count, num_files_)) num_places *= 2;
    std::vector<int64_t> checked(size_t(num_places), -1);
    for (int64_t i = 0; i < extents.count; ++i) {
        const int64_t number = extents.files[i];
        int64_t& place = checked[size_t(number & (num_places - 1))];
        if (sources[size_t(i)].address == nullptr || place == number) continue;
        place = number;
        const Result result = check(number, AT_FDCWD);
        if (result != COPIED) return {number, result};
        if (guard::broken(sources[size_t(i)].range)) return {number, FAILED};
    }
    return {0, COPIED};
}

namespace {

Maps::Result read_all(int descriptor, uint8_t* to, int64_t size, int64_t offset) {
    while (size > 0) {
        const int64_t num_read =
            pread(descriptor, to, size_t(std::min(size, LARGEST_READ)), offset);
        if (num_read == 0) return Maps::CHANGED;
        if (num_read < 0 && errno != EINTR) return Maps::FAILED;
        if (num_read < 0) continue;
        to += num_read;
        offset += num_read;
        size -= num_read;
    }
    return Maps::COPIED;
}

}  // namespace

// Reads the extents of files that are not mapped: each file opened once for its extents that follow
// one another, and neighbours that stay neighbours in one call.
std::pair<int64_t, Maps::Result> Maps::read_unmapped(const Extents& extents,
                                                     const std::vector<Source>& sources,
                                                     const int64_t* begins, uint8_t* out) const {
    for (int64_t i = 0, after; i < extents.count; i = after) {
        after = i + 1;
        if (sources[size_t(i)].address != nullptr || extents.lengths[i] == 0) continue;
        const int64_t number = extents.files[i];
        while (after < extents.count && extents.files[after] == number &&
               sources[size_t(after)].address == nullptr)
            ++after;
        const int descriptor = open(path(number), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (descriptor < 0) return {number, FAILED};
        Result result = COPIED;
        for (int64_t first = i, last; first < after && result == COPIED; first = last) {
            int64_t size = extents.lengths[first];
            for (last = first + 1; last < after &&
                                   extents.offsets[last] == extents.offsets[first] + size &&
                                   begins[last] == begins[first] + size;)
                size += extents.lengths[last++];
            result = read_all(descriptor, out + begins[first], size, extents.offsets[first]);
        }
        if (result == COPIED) result = check(number, descriptor);
        close(descriptor);
        if (result != COPIED) return {number, result};
    }
    return {0, COPIED};
}

#else  // `storage.maps.supported` says that files cannot be mapped here, and no `Maps` is made

Maps::~Maps() = default;
std::pair<int64_t, Maps::Result> Maps::copy(const Extents&, const int64_t*, uint8_t*, int64_t) {
    return {0, FAILED};
}
std::pair<int64_t, Maps::Result> Maps::read(const Extents&, const Use&) { return {0, FAILED}; }
void Maps::map(const Extents&) {}
void Maps::advise(const Extents&, int64_t) {}

#endif

}  // namespace core

// Maps: see maps.hpp.
//
// Assumes: arrays have the sizes that are said, and stamps are those of the files; the Python face checked the first, and
// `Files` made the second. Nothing is assumed of file numbers, offsets, lengths and places.
#include "maps.hpp"

#include <algorithm>
#include <cstring>

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

constexpr int64_t MAP_PARTS = 8, MAP_BYTES = 1 << 14;  // measured: rows of files of 24 KB are read 3 times as fast
constexpr int64_t LINE_BYTES = 64, PAGE_BYTES = 4096;
constexpr int64_t NEXT_LINES = 8, AHEAD_PAGES = 4;  // that are fetched of an extent that follows in order, of another
constexpr int64_t AHEAD_ITEMS = 8;                  // of extents of a cache line the one that is so many later is fetched
constexpr int64_t AHEAD_LINES = 8;                  // that are fetched of the next row of an array
constexpr int64_t JOINED_BYTES = 8192;              // neighbours are one copy up to here; longer ones are slower by a fifth
constexpr int64_t LARGEST_READ = 1 << 30;           // Linux reads at most 0x7ffff000 bytes a call
constexpr int64_t LONGEST_ASKED = 1 << 20;          // bytes of a run that is asked for before it is copied
constexpr int MAX_INSTALLS = 100;                   // of the guard, against a program that replaces it all the time

// Begins to bring an extent near: the first cache lines of its first pages, so that their addresses come, too.
void fetch(const uint8_t* source, int64_t size) {
    const uint8_t* const end = source + std::min(size, AHEAD_PAGES * PAGE_BYTES);
    for (const uint8_t* place = source; place < end;) {
        __builtin_prefetch(place);
        __builtin_prefetch(place + LINE_BYTES);
        place += PAGE_BYTES - int64_t(reinterpret_cast<uintptr_t>(place) % PAGE_BYTES);
    }
}

// Copies bytes; a file in Fortran order is read item by item, where a call of memcpy would be most of the time.
void copy_bytes(uint8_t* to, const uint8_t* source, int64_t size) {
    switch (size) {
        case 1: std::memcpy(to, source, 1); break;
        case 2: std::memcpy(to, source, 2); break;
        case 4: std::memcpy(to, source, 4); break;
        case 8: std::memcpy(to, source, 8); break;
        default: std::memcpy(to, source, size_t(size));
    }
}

// While one extent is copied, the beginning of the one after the next is fetched (measured for extents of 3 KB in random
// order: 0.75 of the time that it takes without); neighbours in the file that stay neighbours are one copy.
void copy_mapped(const std::vector<const uint8_t*>& sources, const int64_t* lengths, const int64_t* begins, uint8_t* out) {
    const int64_t count = int64_t(sources.size());
    for (int64_t i = 0, after; i < count; i = after) {
        const uint8_t* source = sources[size_t(i)];
        int64_t size = lengths[i];
        after = i + 1;
        if (source == nullptr) continue;
        while (after < count && sources[size_t(after)] == source + size && begins[after] == begins[i] + size &&
               size + lengths[after] <= JOINED_BYTES)
            size += lengths[after++];
        if (size <= LINE_BYTES) {
            const uint8_t* ahead = sources[size_t(std::min(i + AHEAD_ITEMS, count - 1))];
            if (ahead != nullptr) __builtin_prefetch(ahead);
        } else if (after < count && sources[size_t(after)] == source + size) {
            for (int64_t line = 0; line < NEXT_LINES; ++line) __builtin_prefetch(source + size + LINE_BYTES * line);
        } else if (after + 1 < count && sources[size_t(after + 1)] != nullptr) {
            fetch(sources[size_t(after + 1)], lengths[after + 1]);
        }
        copy_bytes(out + begins[i], source, size);
    }
}

}  // namespace

int64_t gather_rows(const uint8_t* source, int64_t num_rows, int64_t size, const int64_t* numbers, const int64_t* begins,
                    int64_t count, uint8_t* out, int64_t out_bytes) {
    for (int64_t i = 0; i < count; ++i)
        if (numbers[i] < 0 || numbers[i] >= num_rows || begins[i] < 0 || begins[i] > out_bytes - size) return i;
    const int64_t num_lines = std::min(AHEAD_LINES, (size + LINE_BYTES - 1) / LINE_BYTES);
    for (int64_t i = 0; i < count; ++i) {
        if (i + 1 < count)
            for (int64_t line = 0; line < num_lines; ++line)
                __builtin_prefetch(source + numbers[i + 1] * size + LINE_BYTES * line);
        copy_bytes(out + begins[i], source + numbers[i] * size, size);
    }
    return -1;
}

Maps::Maps(std::string paths, const int64_t* stamps, int64_t num_files, int64_t piece_bytes)
    : paths_(std::move(paths)), num_files_(num_files), piece_bytes_(piece_bytes), files_(new File[size_t(num_files)]) {
    size_t path = 0;
    for (int64_t i = 0; i < num_files; ++i) {
        File& file = at(i);
        file.path = int64_t(path);
        file.size = stamps[3 * i];
        file.mtime_ns = stamps[3 * i + 1];
        file.inode = stamps[3 * i + 2];
        path = paths_.find('\0', path) + 1;  // the Python face counted them
    }
}

Maps::State Maps::state(int64_t file) const {
    if (at(file).address.load(std::memory_order_acquire) != nullptr) return MAPPED;
    return at(file).refused.load(std::memory_order_relaxed) ? REFUSED : UNTRIED;
}

bool Maps::is_outside(const Extents& extents, int64_t i) const {
    const int64_t file = extents.files[i], offset = extents.offsets[i], length = extents.lengths[i];
    return file < 0 || file >= num_files_ || length < 0 || offset < 0 || length > at(file).size - offset;
}

bool Maps::is_worth_mapping(const File& file, int64_t length) const {
    return file.size >= MAP_BYTES && length > 0 && length <= file.size / MAP_PARTS &&
           file.address.load(std::memory_order_acquire) == nullptr && !file.refused.load(std::memory_order_relaxed);
}

void Maps::map(const Extents& extents) {
    for (int64_t i = 0; i < extents.count; ++i)
        if (!is_outside(extents, i) && is_worth_mapping(at(extents.files[i]), extents.lengths[i]))
            map(at(extents.files[i]));
}

#if defined(__linux__)

Maps::~Maps() {
    for (File* file = files_.get(); file < files_.get() + num_files_; ++file) {
        uint8_t* address = file->address.load(std::memory_order_acquire);
        if (address == nullptr) continue;
        guard::release(file->range.load(std::memory_order_relaxed));  // first: another map may get these addresses
        munmap(address, size_t(file->size));
    }
}

std::pair<int64_t, Maps::Result> Maps::copy(const Extents& extents, const int64_t* begins, uint8_t* out, int64_t out_bytes) {
    // Addresses are taken once for the whole call: another thread may map a file while this one copies, and each extent
    // must then still be either copied or read. An extent without bytes touches no file.
    std::vector<const uint8_t*> sources(size_t(extents.count), nullptr);
    for (int64_t i = 0; i < extents.count; ++i)
        if (is_outside(extents, i) || begins[i] < 0 || extents.lengths[i] > out_bytes - begins[i]) return {i, OUTSIDE};
    bool any_mapped = false, any_unmapped = false;
    for (int64_t i = 0; i < extents.count; ++i) {
        File& file = at(extents.files[i]);
        if (extents.lengths[i] == 0) continue;
        if (is_worth_mapping(file, extents.lengths[i])) {
            const Result result = map(file);
            if (result != COPIED) return {extents.files[i], result};
        }
        const uint8_t* address = file.address.load(std::memory_order_acquire);
        if (address != nullptr) sources[size_t(i)] = address + extents.offsets[i];
        (address != nullptr ? any_mapped : any_unmapped) = true;
    }
    if (any_mapped) {
        bool guarded = guard::is_installed();
        for (int tries = 0; !guarded && tries < MAX_INSTALLS; ++tries) {
            guard::install();
            guarded = guard::is_installed();
        }
        if (!guarded) {
            std::fill(sources.begin(), sources.end(), nullptr);
            any_mapped = false;
            any_unmapped = true;
        }
    }
    std::pair<int64_t, Result> result{0, COPIED};
    if (any_mapped) {
        if (piece_bytes_ > 0) ask_for(sources, extents.lengths);
        copy_mapped(sources, extents.lengths, begins, out);
        result = check_mapped(extents, sources);
    }
    if (result.second == COPIED && any_unmapped) result = read_unmapped(extents, sources, begins, out);
    return result;
}

// Asks for the pages of all extents, so that they come from the disk together; not for those of long runs.
//
// It also keeps the system from reading its window around each missing page (128 KiB to 8 MiB), a thousand times the bytes
// of a row of 3 KB, which ruins a cache that is smaller than the files. Long runs are left to the system.
void Maps::ask_for(const std::vector<const uint8_t*>& sources, const int64_t* lengths) const {
    for (size_t i = 0, after; i < sources.size(); i = after) {
        const uint8_t* end = sources[i] + (sources[i] != nullptr ? lengths[i] : 0);
        for (after = i + 1; after < sources.size() && sources[i] != nullptr && sources[after] == end; ++after)
            end += lengths[after];
        if (sources[i] == nullptr || end - sources[i] > LONGEST_ASKED) continue;
        const auto page = uintptr_t(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(sources[i]);
        const auto last = reinterpret_cast<uintptr_t>(end);
        for (uintptr_t place = begin - begin % page; place < last; place += uintptr_t(piece_bytes_))
            madvise(reinterpret_cast<void*>(place), std::min<size_t>(last - place, size_t(piece_bytes_)), MADV_WILLNEED);
    }
}

void Maps::advise(const Extents& extents, int64_t piece_bytes) const {
    const auto page = uintptr_t(sysconf(_SC_PAGESIZE)), piece = uintptr_t(piece_bytes);
    for (int64_t i = 0; i < extents.count; ++i) {
        if (is_outside(extents, i)) continue;
        uint8_t* address = at(extents.files[i]).address.load(std::memory_order_acquire);
        if (address == nullptr) continue;
        const uintptr_t begin = reinterpret_cast<uintptr_t>(address) + uintptr_t(extents.offsets[i]);
        const uintptr_t end = begin + uintptr_t(extents.lengths[i]);
        for (uintptr_t place = begin - begin % page; place < end; place += piece)  // after a refusal `copy` reads them
            madvise(reinterpret_cast<void*>(place), std::min<size_t>(end - place, piece), MADV_WILLNEED);
    }
}

// Maps a file, or notes that it cannot be mapped. Two threads may do so at the same time: the map of one of them stays,
// that of the other is undone unused.
Maps::Result Maps::map(File& file) {
    const int descriptor = open(paths_.c_str() + file.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return FAILED;
    const Result result = check(file, descriptor);
    void* memory = result == COPIED ? mmap(nullptr, size_t(file.size), PROT_READ, MAP_SHARED, descriptor, 0) : MAP_FAILED;
    close(descriptor);
    if (result != COPIED) return result;
    auto* const address = static_cast<uint8_t*>(memory);
    const int range = memory == MAP_FAILED ? -1 : guard::protect(address, file.size);
    // The thread that sets the range owns the file's map. The address is published behind the range, so that a thread
    // that sees the address can ask the guard whether pages of it were lost.
    int unset = -1;
    if (range >= 0 && file.range.compare_exchange_strong(unset, range)) {
        file.address.store(address, std::memory_order_release);
        return COPIED;
    }
    if (memory != MAP_FAILED) munmap(memory, size_t(file.size));
    if (range >= 0) {
        guard::release(range);
    } else if (file.range.load() < 0) {
        file.refused.store(true, std::memory_order_relaxed);
        any_refused_.store(true, std::memory_order_relaxed);
    }
    return COPIED;
}

// Compares a file's stamp with that of its opening: by a descriptor that is open, or by its path (AT_FDCWD).
Maps::Result Maps::check(const File& file, int descriptor) const {
    struct statx now;
    const bool by_path = descriptor == AT_FDCWD;
    const char* path = by_path ? paths_.c_str() + file.path : "";
    const unsigned wanted = STATX_INO | STATX_SIZE | STATX_MTIME;
    if (statx(descriptor, path, by_path ? 0 : AT_EMPTY_PATH, wanted, &now) != 0) return CHANGED;
    const auto mtime_ns = int64_t(uint64_t(now.stx_mtime.tv_sec) * 1'000'000'000 + now.stx_mtime.tv_nsec);  // wraps around
    const bool same = int64_t(now.stx_size) == file.size && mtime_ns == file.mtime_ns && int64_t(now.stx_ino) == file.inode;
    return same ? COPIED : CHANGED;
}

// Checks each file whose map was read: stamp first, then whether pages were lost. `checked` remembers one file a place;
// where two want the same place, a file may be checked again.
std::pair<int64_t, Maps::Result> Maps::check_mapped(const Extents& extents,
                                                    const std::vector<const uint8_t*>& sources) const {
    int64_t num_places = 1;
    while (num_places < std::min(extents.count, num_files_)) num_places *= 2;
    std::vector<int64_t> checked(size_t(num_places), -1);
    for (int64_t i = 0; i < extents.count; ++i) {
        const int64_t number = extents.files[i];
        int64_t& place = checked[size_t(number & (num_places - 1))];
        if (sources[size_t(i)] == nullptr || place == number) continue;
        place = number;
        const File& file = at(number);
        const Result result = check(file, AT_FDCWD);
        if (result != COPIED) return {number, result};
        if (guard::broken(file.range.load(std::memory_order_relaxed))) return {number, FAILED};
    }
    return {0, COPIED};
}

namespace {

Maps::Result read_all(int descriptor, uint8_t* to, int64_t size, int64_t offset) {
    while (size > 0) {
        const int64_t num_read = pread(descriptor, to, size_t(std::min(size, LARGEST_READ)), offset);
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

// Reads the extents of files that are not mapped: each file opened once for its extents that follow one another, and
// neighbours that stay neighbours in one call.
std::pair<int64_t, Maps::Result> Maps::read_unmapped(const Extents& extents, const std::vector<const uint8_t*>& sources,
                                                     const int64_t* begins, uint8_t* out) const {
    for (int64_t i = 0, after; i < extents.count; i = after) {
        after = i + 1;
        if (sources[size_t(i)] != nullptr || extents.lengths[i] == 0) continue;
        const int64_t number = extents.files[i];
        while (after < extents.count && extents.files[after] == number && sources[size_t(after)] == nullptr) ++after;
        const int descriptor = open(paths_.c_str() + at(number).path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (descriptor < 0) return {number, FAILED};
        Result result = COPIED;
        for (int64_t first = i, last; first < after && result == COPIED; first = last) {
            int64_t size = extents.lengths[first];
            for (last = first + 1; last < after && extents.offsets[last] == extents.offsets[first] + size &&
                                   begins[last] == begins[first] + size;)
                size += extents.lengths[last++];
            result = read_all(descriptor, out + begins[first], size, extents.offsets[first]);
        }
        if (result == COPIED) result = check(at(number), descriptor);
        close(descriptor);
        if (result != COPIED) return {number, result};
    }
    return {0, COPIED};
}

#else  // `storage.maps.supported` says that files cannot be mapped here, and no `Maps` is made

Maps::~Maps() = default;
std::pair<int64_t, Maps::Result> Maps::copy(const Extents&, const int64_t*, uint8_t*, int64_t) { return {0, FAILED}; }
void Maps::advise(const Extents&, int64_t) const {}
Maps::Result Maps::map(File&) { return FAILED; }

#endif

}  // namespace core

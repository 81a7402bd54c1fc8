// Guard: see guard.hpp.
//
// Assumes: ranges are registered and released by `maps.cpp` alone, each once.
#include "guard.hpp"

#if defined(__linux__)
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace core::guard {
namespace {

// A range that is free has the start 0, one that is being taken TAKEN. The handler looks at the end
// first: it is written last when a range is registered and taken away first when it is released, so
// that a range with an end has its start.
constexpr uintptr_t FREE = 0, TAKEN = 1;

struct Range {
    std::atomic<uintptr_t> start, end;
    std::atomic<bool> broken;
};

static_assert(std::atomic<uintptr_t>::is_always_lock_free, "a signal handler takes no lock");

// The action of a signal. Threads write and read it at the same time, word by word: a handler of
// signals takes no lock.
class Action {
  public:
    void store(const struct sigaction& action) {
        uint64_t words[NUM_WORDS] = {};
        std::memcpy(words, &action, sizeof action);
        for (size_t i = 0; i < NUM_WORDS; ++i) words_[i].store(words[i], std::memory_order_relaxed);
    }

    struct sigaction load() const {
        uint64_t words[NUM_WORDS];
        for (size_t i = 0; i < NUM_WORDS; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
        struct sigaction action;
        std::memcpy(&action, words, sizeof action);
        return action;
    }

  private:
    static constexpr size_t NUM_WORDS = (sizeof(struct sigaction) + 7) / 8;
    std::atomic<uint64_t> words_[NUM_WORDS];
};

Range ranges[MAX_RANGES];
std::atomic<int> next{0};         // where the search for a free range begins
std::atomic<int> range_count{0};  // 0: not counted yet
std::atomic<int> num_taken{0};
std::atomic<uintptr_t> page_size{4096};
Action old_action;  // of the handler before ours; written before `passed_on`
std::atomic<bool> passed_on{false};

// A quarter of the maps that the system allows a process; the rest is for others.
int count_ranges() {
    int most = MAX_RANGES;
    if (FILE* file = std::fopen("/proc/sys/vm/max_map_count", "re")) {
        if (std::fscanf(file, "%d", &most) != 1) most = MAX_RANGES;
        std::fclose(file);
    }
    return std::clamp(most / 4, 1, MAX_RANGES);
}

// Integers only: no allocation, no lock.
void on_bus_error(int number, siginfo_t* information, void*) {
    const int error = errno;
    const bool is_fault = information->si_code > 0;  // sent by kill or raise otherwise
    if (is_fault) {
        const auto address = reinterpret_cast<uintptr_t>(information->si_addr);
        const int count = range_count.load(std::memory_order_acquire);
        for (Range* range = ranges; range < ranges + count; ++range) {
            const uintptr_t end = range->end.load(std::memory_order_acquire);
            const uintptr_t start = range->start.load(std::memory_order_acquire);
            if (start <= TAKEN || address < start || address >= end) continue;
            // Another thread may have released the range and taken it again between the two: the
            // start of the one and the end of the other would be no range. With the same end before
            // and after, both are of one range, which is mapped while this address is: so the
            // address lies in it only if it is the one that is read.
            if (range->end.load(std::memory_order_acquire) != end) continue;
            range->broken.store(true, std::memory_order_release);
            const uintptr_t page = address - address % page_size.load(std::memory_order_relaxed);
            void* place = reinterpret_cast<void*>(page);
            const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
            const bool has_zeros = mmap(place, end - page, PROT_READ, flags, -1, 0) == place;
            errno = error;
            if (has_zeros) return;
            break;
        }
    }
    struct sigaction action = {};  // the system's own
    if (!passed_on.exchange(true)) action = old_action.load();
    sigaction(number, &action, nullptr);
    if (!is_fault) raise(number);
    errno = error;
}

struct sigaction guard_action() {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&action.sa_mask);
    return action;
}

}  // namespace

// Counts once, without the lock of a static variable: see "Locks" in guard.hpp. The first count
// stays.
int num_ranges() {
    int count = range_count.load(std::memory_order_acquire);
    if (count > 0) return count;
    const int counted = count_ranges();
    return range_count.compare_exchange_strong(count, counted) ? counted : count;
}

bool any_free() { return num_taken.load(std::memory_order_relaxed) < num_ranges(); }

bool supported() {
    struct statx status;
    return statx(AT_FDCWD, "/", 0, STATX_SIZE, &status) == 0;  // a sandbox may refuse the call
}

void install() {
    page_size.store(uintptr_t(sysconf(_SC_PAGESIZE)), std::memory_order_relaxed);
    struct sigaction now;
    if (sigaction(SIGBUS, nullptr, &now) != 0)
        throw std::system_error(errno, std::generic_category(), "sigaction");
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error) return;
    old_action.store(now);
    passed_on.store(false);
    const struct sigaction action = guard_action();
    sigaction(SIGBUS, &action, nullptr);
}

bool is_installed() {
    struct sigaction now;
    if (sigaction(SIGBUS, nullptr, &now) != 0) return false;
    sigset_t bus;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    const bool is_ours = (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error;
    return pthread_sigmask(SIG_UNBLOCK, &bus, nullptr) == 0 && is_ours;
}

int protect(const uint8_t* address, int64_t num_bytes) {
    if (!any_free()) return -1;  // without a look at each range
    const int count = num_ranges();
    const auto start = reinterpret_cast<uintptr_t>(address),
               page = uintptr_t(sysconf(_SC_PAGESIZE));
    for (int step = 0, begin = next.load(std::memory_order_relaxed); step < count; ++step) {
        const int number = (begin + step) % count;
        Range& range = ranges[number];
        uintptr_t free = FREE;
        if (!range.start.compare_exchange_strong(free, TAKEN)) continue;
        range.broken.store(false);
        range.start.store(start, std::memory_order_release);
        range.end.store(start + (uintptr_t(num_bytes) + page - 1) / page * page,
                        std::memory_order_release);
        next.store((number + 1) % count, std::memory_order_relaxed);
        num_taken.fetch_add(1, std::memory_order_relaxed);
        return number;
    }
    return -1;
}

void release(int range) {
    ranges[range].end.store(0);
    ranges[range].start.store(FREE);
    num_taken.fetch_sub(1, std::memory_order_relaxed);
}

bool broken(int range) { return ranges[range].broken.load(std::memory_order_acquire); }

int num_free() {
    return int(std::count_if(ranges, ranges + num_ranges(),
                             [](const Range& range) { return range.start.load() == FREE; }));
}

}  // namespace core::guard

#else

namespace core::guard {
bool supported() { return false; }
void install() {}
bool is_installed() { return false; }
int protect(const uint8_t*, int64_t) { return -1; }
void release(int) {}
bool broken(int) { return true; }
int num_ranges() { return 0; }
bool any_free() { return false; }
int num_free() { return 0; }
}  // namespace core::guard

#endif

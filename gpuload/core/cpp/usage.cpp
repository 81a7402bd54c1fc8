// Usage: see usage.hpp.
#include "usage.hpp"

#include <time.h>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#endif

namespace core {
namespace {

int64_t cpu_ns() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
    timespec time{};
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0) return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
#endif
    return -1;
}

#if defined(__linux__)

// The file with the statistics of one thread. In a child of a fork the open file is that of the parent's thread.
class SchedStat {
  public:
    SchedStat() = default;
    SchedStat(const SchedStat&) = delete;
    ~SchedStat() { forget(); }

    // Returns the time in the queue of ready threads, ns; -1 where it is unknown.
    int64_t queue_ns() {
        if (const pid_t process = getpid(); process != process_) {
            forget();
            process_ = process;
            file_ = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
        }
        if (file_ < 0) return -1;
        char text[96];
        const ssize_t size = pread(file_, text, sizeof text, 0);
        if (size <= 0) return -1;
        // Time on a core, time in the queue, and how often the thread got a core: 0 where the kernel does not count.
        int64_t numbers[3];
        const char *place = text, *const end = text + size;
        for (int64_t& number : numbers) {
            while (place != end && *place == ' ') ++place;
            const auto [next, error] = std::from_chars(place, end, number);
            if (error != std::errc()) return -1;
            place = next;
        }
        return numbers[2] > 0 ? numbers[1] : -1;
    }

  private:
    void forget() {
        if (file_ >= 0 && process_ == getpid()) close(file_);
        file_ = -1;
    }

    int file_ = -1;
    pid_t process_ = -1;
};

#endif

}  // namespace

Usage thread_usage() {
    Usage usage;
    usage.cpu_ns = cpu_ns();
#if defined(__linux__)
    thread_local SchedStat stat;
    usage.queue_ns = stat.queue_ns();
    if (rusage numbers{}; getrusage(RUSAGE_THREAD, &numbers) == 0) usage.num_waits = numbers.ru_nvcsw;
#endif
    return usage;
}

}  // namespace core

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
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0)
        return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
#endif
    return -1;
}

#if defined(__linux__)

// Returns the time of the calling thread in the queue of ready threads, ns; -1 where it is unknown.
int64_t queue_ns() {
    const int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    char text[96];
    const ssize_t size = read(file, text, sizeof text);
    close(file);
    if (size <= 0) return -1;
    // Time on a core, time in the queue, and how often the thread got a core: 0 where the kernel
    // does not count.
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

#endif

}  // namespace

Usage thread_usage() {
    Usage usage;
    usage.cpu_ns = cpu_ns();
#if defined(__linux__)
    usage.queue_ns = queue_ns();
    if (rusage numbers{}; getrusage(RUSAGE_THREAD, &numbers) == 0)
        usage.num_waits = numbers.ru_nvcsw;
#endif
    return usage;
}

}  // namespace core

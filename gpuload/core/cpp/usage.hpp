// Usage: how long the calling thread ran, and how long it waited for a core, as the system counts
// it.
//
// Gap     The time in which a thread did not run. It waited for something (storage, a lock, an
//         answer), or it was ready and others had the core. Linux counts the time in the queue of
//         ready threads, and how often a thread gave its core away by itself: a thread that never
//         did has not waited, even if time went elsewhere (a hypervisor).
// Limits  The time in the queue is in /proc/thread-self/schedstat, which kernels without
//         SCHED_INFO, containers of gVisor and other systems do not have: there the cause of a gap
//         is unknown.
// Cost    Some microseconds, most of them for opening that file, which no thread keeps: a
//         descriptor for each would be left in the threads of the user.
// Source  The kernel's Documentation/scheduler/sched-stats (/proc/<pid>/schedstat), getrusage(2),
//         clock_gettime(2).
#pragma once

#include <cstdint>

namespace core {

struct Usage {  // -1 where the system does not say it
    int64_t cpu_ns = -1, queue_ns = -1, num_waits = -1;
};

Usage thread_usage();

struct Gap {  // ns; the last where the cause is unknown
    int64_t blocked = 0, starved = 0, off_core = 0;
};

// Divides the gap in `time_ns` between two usages of one thread; `stats.stages.divide_gap` is the
// same in Python.
inline Gap gap_of(int64_t time_ns, const Usage& before, const Usage& after) {
    const int64_t gap_ns = time_ns - (after.cpu_ns - before.cpu_ns);
    if (gap_ns <= 0 || before.cpu_ns < 0) return {};
    if (before.num_waits >= 0 && after.num_waits == before.num_waits) return {0, gap_ns, 0};
    if (before.queue_ns < 0 || after.queue_ns < 0) return {0, 0, gap_ns};
    const int64_t queue_ns = after.queue_ns - before.queue_ns;
    return queue_ns < gap_ns ? Gap{gap_ns - queue_ns, queue_ns, 0} : Gap{0, gap_ns, 0};
}

}  // namespace core

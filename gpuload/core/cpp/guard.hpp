// Guard: to read a memory map of a file that was cut short is an error, never the end of the
// process.
//
// Where a mapped file has lost its pages, or its disk fails, the system sends SIGBUS to the thread
// that reads them. For addresses inside a registered range the handler here marks the range as
// broken, puts pages of zeros in place of the rest of the range and returns, so that the copy goes
// on; the code that copied calls `broken` before the bytes are used. Any other SIGBUS goes where it
// went before: the former handler is installed again and the fault happens again.
//
// Limits  Linux with statx.
// Locks   none. A range may be released at any line of any thread, and a lock that a thread holds
//         while another one forks stays locked in the child for ever. Threads that install the
//         handler at the same time write the same bytes.
// Source  sigaction(2), mmap(2), pthread_sigmask(3).
#pragma once

#include <cstdint>

namespace core::guard {

constexpr int MAX_RANGES = 16384;

bool supported();  // files can be mapped here

// Makes SIGBUS come here; the handler that stands there is kept for the faults that are not ours.
void install();

// Returns whether SIGBUS still comes here. It is let through in this thread, too: blocked, it ends
// the process.
bool is_installed();

// Registers mapped memory. Returns the number of its range, -1 if all are taken.
int protect(const uint8_t* address, int64_t num_bytes);

// Forgets a range. Called when no thread reads it any more, before the memory is unmapped.
void release(int range);

bool broken(int range);  // pages of it were lost
int num_ranges();        // that can be registered
bool any_free();
int num_free();

}  // namespace core::guard

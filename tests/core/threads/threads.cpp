// Threads that use the core at the same time, for ThreadSanitizer. Each scenario is what Python's threads do with the lock
// of the interpreter free; whatever a scenario expects is checked, too. Prints "N scenarios" at its end.
//
//     threads FOLDER ROUNDS
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../../../gpuload/core/cpp/copies.hpp"
#include "../../../gpuload/core/cpp/crc32c.hpp"
#include "../../../gpuload/core/cpp/guard.hpp"
#include "../../../gpuload/core/cpp/maps.hpp"
#include "../../../gpuload/core/cpp/queue.hpp"

// The guard puts other pages in place of lost ones while threads read them: the system does so at once for a page, and
// nobody uses bytes of a range that is broken. ThreadSanitizer would take it for writing these bytes, so it does not see it:
// the linker takes this function for mmap (--wrap=mmap).
extern "C" void* __real_mmap(void* address, size_t size, int protection, int flags, int file, off_t offset);
extern "C" void* __wrap_mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) {
    if (flags & MAP_FIXED) return reinterpret_cast<void*>(syscall(SYS_mmap, address, size, protection, flags, file, offset));
    return __real_mmap(address, size, protection, flags, file, offset);
}

namespace {

constexpr int64_t FILE_BYTES = 1 << 17, PAGE = 4096;
constexpr int NUM_THREADS = 4;

std::string folder;
int num_rounds = 0;

void ensure(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "ERROR: this does not hold: %s\n", what);
    std::abort();
}

void at_once(const std::vector<std::function<void()>>& works) {
    std::atomic<size_t> num_waiting{0};
    std::vector<std::thread> threads;
    for (const auto& work : works)
        threads.emplace_back([&] {
            ++num_waiting;
            while (num_waiting < works.size()) std::this_thread::yield();
            work();
        });
    for (std::thread& thread : threads) thread.join();
}

uint8_t content(int64_t file, int64_t offset) { return uint8_t(offset * 7 + offset / 256 + file); }

struct Files {
    std::string names;
    std::vector<int64_t> bounds{0}, stamps;
    std::vector<uint32_t> folder_of;

    explicit Files(int64_t count) {
        for (int64_t file = 0; file < count; ++file) {
            const std::string path = path_of(file);
            std::vector<uint8_t> bytes(FILE_BYTES);
            for (int64_t i = 0; i < FILE_BYTES; ++i) bytes[size_t(i)] = content(file, i);
            std::FILE* to = std::fopen(path.c_str(), "wb");
            ensure(to != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), to) == bytes.size(), "a file can be written");
            std::fclose(to);
            struct stat status;
            ensure(stat(path.c_str(), &status) == 0, "a file has a stamp");
            names += path;
            bounds.push_back(int64_t(names.size()));
            folder_of.push_back(0);
            stamps.insert(stamps.end(), {status.st_size, status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec,
                                         int64_t(status.st_ino)});
        }
    }

    core::Paths paths() const {
        static constexpr int64_t NO_FOLDER[] = {0, 0};
        return {nullptr, NO_FOLDER, folder_of.data(), reinterpret_cast<const uint8_t*>(names.data()), bounds.data()};
    }

    static std::string path_of(int64_t file) { return folder + "/" + std::to_string(file); }
};

core::Maps::Result copy(core::Maps& maps, int64_t file, int64_t offset) {
    const int64_t length = 3000, begin = 0;
    std::vector<uint8_t> out(static_cast<size_t>(length));
    const auto [number, result] = maps.copy({&file, &offset, &length, 1}, &begin, out.data(), length);
    for (int64_t i = 0; i < length && result == core::Maps::COPIED; ++i)
        ensure(out[size_t(i)] == content(file, offset + i), "bytes are those of the file");
    return result;
}

void map_the_same_files() {
    const Files files(8);
    for (int round = 0; round < num_rounds; ++round) {
        const int before = core::guard::num_free();
        {
            core::Maps maps(files.paths(), files.stamps.data(), 8, round % 2 ? PAGE : 0, 0);
            at_once(std::vector<std::function<void()>>(NUM_THREADS, [&] {
                for (int64_t file = 0; file < 8; ++file) {
                    ensure(copy(maps, file, 5000 * file) == core::Maps::COPIED, "bytes are copied");
                    maps.state(file);
                    maps.any_refused();
                }
            }));
            ensure(core::guard::num_free() == before - 8, "of two maps of a file one stays");
        }
        ensure(core::guard::num_free() == before, "ranges are given back");
    }
}

// There are more files than maps: threads read maps that others take from the table and undo.
void make_room() {
    constexpr int64_t NUM_FILES = 12;
    const Files files(NUM_FILES);
    for (int round = 0; round < num_rounds; ++round) {
        const int before = core::guard::num_free();
        {
            core::Maps maps(files.paths(), files.stamps.data(), NUM_FILES, 0, 2 + round % 3);
            std::vector<std::function<void()>> works;
            for (int64_t thread = 0; thread < NUM_THREADS; ++thread)
                works.push_back([&maps, thread] {
                    for (int64_t i = 0; i < 600; ++i)  // each file often, one behind the other, so that it gets a map
                        ensure(copy(maps, (i / 40 + thread) % NUM_FILES, 97 * i) == core::Maps::COPIED, "bytes are copied");
                });
            at_once(works);
            ensure(before - core::guard::num_free() <= 2 + round % 3, "there are no more maps than are allowed");
            ensure(!maps.any_refused(), "no file is refused for want of room");
        }
        ensure(core::guard::num_free() == before, "ranges are given back");
    }
}

// Maps come and go, with their ranges, while others copy, and a program replaces the handler.
void make_and_drop() {
    const Files files(4);
    core::Maps shared(files.paths(), files.stamps.data(), 4, 0, 0);
    std::atomic<bool> has_ended{false};
    const auto copies = [&] {
        for (int i = 0; i < 20 * num_rounds; ++i) ensure(copy(shared, i % 4, 31 * i % 90000) == core::Maps::COPIED, "bytes are copied");
    };
    const auto drops = [&] {
        for (int i = 0; i < 20 * num_rounds; ++i) {
            core::Maps maps(files.paths(), files.stamps.data(), 4, 0, 0);
            ensure(copy(maps, i % 4, 100) == core::Maps::COPIED, "bytes are copied");
        }
    };
    std::thread replaces([&] {
        struct sigaction action = {};
        action.sa_handler = SIG_DFL;
        while (!has_ended) {
            sigaction(SIGBUS, &action, nullptr);
            std::this_thread::yield();
        }
    });
    at_once({copies, copies, drops, drops});
    has_ended = true;
    replaces.join();
}

// Files are cut while threads copy from their maps: the handler runs in all of them, and others go on.
void cut_while_others_copy() {
    for (int round = 0; round < num_rounds; ++round) {
        const Files files(3);
        core::Maps maps(files.paths(), files.stamps.data(), 3, 0, 0);
        for (int64_t file = 0; file < 3; ++file) copy(maps, file, 0);
        const auto copies = [&] {
            for (int i = 0; i < 40; ++i) {
                const auto result = copy(maps, i % 3, 2999 * i % 100000);
                ensure(i % 3 == 0 || result == core::Maps::COPIED, "bytes of a whole file are copied");
            }
        };
        const auto cuts = [&] { ensure(truncate(Files::path_of(0).c_str(), 4000) == 0, "a file can be cut"); };
        at_once({copies, copies, copies, cuts});
        ensure(copy(maps, 0, 50000) != core::Maps::COPIED, "bytes of a file that was cut are refused");
    }
}

// Ranges below and above a page are taken and released all the time, while the page faults: what lies between it and the
// ranges belongs to others.
void fault_between_other_ranges() {
    constexpr int64_t NUM_PAGES = 8;
    void* const memory = mmap(nullptr, size_t(3 * NUM_PAGES * PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ensure(memory != MAP_FAILED, "there is memory");
    uint8_t *const below = static_cast<uint8_t*>(memory), *const middle = below + NUM_PAGES * PAGE;
    uint8_t *const above = middle + NUM_PAGES * PAGE, *const others = middle + PAGE;
    const std::string path = folder + "/short";
    std::fclose(std::fopen(path.c_str(), "wb"));
    const int file = open(path.c_str(), O_RDONLY);
    core::guard::install();
    std::atomic<bool> has_ended{false};
    std::thread turns([&] {
        while (!has_ended) {
            core::guard::release(core::guard::protect(above, PAGE));
            core::guard::release(core::guard::protect(below, PAGE));
        }
    });
    for (int i = 0; i < 100 * num_rounds; ++i) {
        ensure(mmap(middle, size_t(PAGE), PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == middle, "a file can be mapped");
        const int range = core::guard::protect(middle, PAGE);
        std::memset(others, 7, 100);
        ensure(*const_cast<volatile uint8_t*>(middle) == 0, "lost pages are zeros");
        ensure(core::guard::broken(range), "a range that lost pages is broken");
        ensure(others[0] == 7 && others[99] == 7, "memory of others is left alone");
        core::guard::release(range);
    }
    has_ended = true;
    turns.join();
    close(file);
    munmap(memory, size_t(3 * NUM_PAGES * PAGE));
}

// Some threads serve a queue and come back when they are called. Others submit steps, wait for them or leave in between,
// and one of the files is cut meanwhile.
void steps_of_a_queue() {
    constexpr int64_t SIZE = 1000, IN_FILE = FILE_BYTES / SIZE, NUM_STEPS = 6, STEP_ROWS = 20, PIECE_ROWS = 7;
    for (int round = 0; round < num_rounds; ++round) {
        const Files files(3);
        core::Maps maps(files.paths(), files.stamps.data(), 3, 0, 0);
        const int64_t starts[] = {0, IN_FILE, 2 * IN_FILE, 3 * IN_FILE}, numbers_of_files[] = {0, 1, 2}, offsets[] = {0, 5, 9};
        core::Plan plan;
        const float zero = 0, one = 1;
        const std::vector<int32_t> still(size_t(2 * NUM_STEPS * STEP_ROWS));
        const core::WalkMaker<uint8_t, uint8_t> maker({1, false, false, 0, &zero, &one, 1, SIZE}, 1, SIZE, still, still);
        const core::Maker* const used = round % 4 < 2 ? nullptr : &maker;
        core::Rows rows{{&maps, starts, numbers_of_files, offsets, 3, SIZE}, {}, {}, {{0, SIZE, 0, used}}};
        for (int64_t row = 0; row < NUM_STEPS * STEP_ROWS; ++row) rows.numbers.push_back(row * 37 % (3 * IN_FILE));
        for (int64_t step = 1; step <= NUM_STEPS; ++step) plan.ends.push_back(step * STEP_ROWS);
        plan.rows.push_back(rows);
        core::Queue queue;
        std::atomic<int> num_left{2};
        const auto serves = [&] {
            for (int64_t until = 0, before = 0; (until = queue.serve()) >= 0; before = until)
                ensure(until >= before, "what is allowed grows");
        };
        const auto takes = [&] {
            for (int64_t group = 0; group < 30; ++group) {
                const int64_t first = group % (NUM_STEPS - 1);
                std::vector<uint8_t> out(size_t(2 * STEP_ROWS * SIZE));
                core::Copies copies(plan, first, 2, PIECE_ROWS, {{out.data(), int64_t(out.size())}});
                queue.submit(copies);
                queue.call(group, 1);
                for (int64_t step = 0; step < (group % 7 == 0 ? 1 : 2); ++step) {
                    core::Work::State state = core::Work::NOT_DONE;
                    while (state == core::Work::NOT_DONE) state = queue.wait(copies, step, std::chrono::milliseconds(1));
                    ensure(state == copies.state(step), "a step stays done");
                    ensure(state != core::Work::DONE || copies.num_done() > 0, "a step that is done is counted");
                    for (int64_t row = 0; row < STEP_ROWS && state == core::Work::DONE; ++row) {
                        const int64_t number = rows.numbers[size_t((first + step) * STEP_ROWS + row)], file = number / IN_FILE;
                        const int64_t offset = offsets[file] + number % IN_FILE * SIZE;
                        const uint8_t* const record = out.data() + (step * STEP_ROWS + row) * SIZE;
                        ensure(record[0] == content(file, offset) && record[SIZE - 1] == content(file, offset + SIZE - 1),
                               "a row has its record");
                    }
                }
                queue.withdraw(copies);
            }
            if (--num_left == 0) queue.end();
        };
        const auto cuts = [&] {
            if (round % 2) ensure(truncate(Files::path_of(0).c_str(), 4000) == 0, "a file can be cut");
        };
        at_once({serves, serves, takes, takes, cuts});
    }
}

void checksums() {
    const std::vector<uint8_t> data(10000, 1);
    at_once(std::vector<std::function<void()>>(NUM_THREADS, [&] {
        ensure(core::crc32c(data.data(), data.size()) == core::crc32c_by_tables(data.data(), data.size()), "both forms agree");
    }));
}

}  // namespace

int main(int count, char** arguments) {
    ensure(count == 3, "arguments are FOLDER and ROUNDS");
    folder = arguments[1];
    num_rounds = std::atoi(arguments[2]);
    const std::function<void()> scenarios[] = {checksums, map_the_same_files, make_room, make_and_drop, cut_while_others_copy,
                                               fault_between_other_ranges, steps_of_a_queue};
    for (const auto& scenario : scenarios) scenario();
    std::printf("%zu scenarios\n", std::size(scenarios));
}

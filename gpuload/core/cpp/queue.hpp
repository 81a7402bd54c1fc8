// Queue: work on steps, cut into pieces, that threads do without the interpreter's lock.
//
// Threads   Python starts them. They call `serve`, which does pieces and returns when there is a
//           call: then the next work has to be prepared in Python. A thread that waits for a step
//           does pieces of its work, too.
// Order     Work is done in the order in which it was submitted, its pieces in theirs. A step is
//           done when all of its pieces are; a step of which one piece failed is to be done again
//           by Python, which finds the reason.
// Life      Work is withdrawn before its memory goes: then all pieces that were begun have ended,
//           and no other begins. In a child of a fork there are no threads, and the mutex may be
//           locked for ever: no function waits there.
// Times     Each piece notes when it was done and by which thread. Of one piece in SAMPLE_EVERY_NS
//           of a thread `usage.hpp` says how long it waited for storage, or for a core.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace core {

class Queue;

struct Times {  // of pieces, ns
    std::atomic<int64_t> all{0};
    // Of the sample: all, and the gaps in it.
    std::atomic<int64_t> sampled{0}, blocked{0}, starved{0}, off_core{0};
};

// When a piece was done, on the clock of Python's time.perf_counter, and by which thread.
struct Span {
    int64_t begin_ns = 0, end_ns = 0, thread = 0;
};

// A number of steps, one after the other, each cut into pieces.
class Work {
  public:
    enum State : int { NOT_DONE, DONE, FAILED };

    virtual ~Work() = default;
    Work(const Work&) = delete;

    State state(int64_t step) const;
    int64_t num_steps() const { return num_steps_; }
    // Steps that are done; a failed step is not.
    int64_t num_done() const { return num_done_.load(std::memory_order_acquire); }
    const Times& times() const { return times_; }  // of all threads
    // The time in `Queue::wait`.
    int64_t wait_ns() const { return wait_ns_.load(std::memory_order_relaxed); }

    // The spans of the pieces of steps that are done, and the step of each.
    std::vector<std::pair<int64_t, Span>> spans() const;

  protected:
    // `pieces_of` holds the number of pieces of each step, at least one.
    explicit Work(const std::vector<int64_t>& pieces_of);

  private:
    friend class Queue;

    struct Step {
        std::atomic<int64_t> num_left{0};
        std::atomic<bool> failed{false};
    };

    // Does a piece, counted from the first of the first step. Returns false if it could not be
    // done.
    virtual bool run(int64_t piece) = 0;

    int64_t num_steps_;
    std::unique_ptr<Step[]> steps_;
    std::vector<int64_t> step_of_;  // of each piece
    // Of each piece; written by the thread that does it, before the step is done.
    std::vector<Span> spans_;
    std::atomic<int64_t> num_done_{0}, wait_ns_{0};
    Times times_;
    int64_t next_ = 0, num_running_ = 0;  // the queue's lock is held to read and write these
};

class Queue {
  public:
    // Does pieces until there is a call. Returns the number that the last call allows, or -1 once
    // the queue has ended.
    int64_t serve();

    // Calls some threads out of `serve`; `until` is the largest number that any call has allowed.
    void call(int64_t until, int64_t num_threads);

    // Says that a thread which came back from `serve` by a call does not go there again.
    void leave();

    // Lets all threads come back. Does nothing in a child of a fork.
    void end();

    // Returns the time that threads waited in `serve` since the last call, ns.
    int64_t take_idle_ns() { return idle_ns_.exchange(0, std::memory_order_relaxed); }

    void submit(Work& work);
    void withdraw(Work& work);  // does nothing in a child of a fork

    // Waits until a step is done, doing pieces of its work, then of other work. Returns NOT_DONE
    // when `most` has passed.
    //
    // While a thread is called, it holds the interpreter's lock most of the time, which the caller
    // needs next: until the thread is back, or nothing is left to do, the caller goes on with
    // pieces.
    Work::State wait(Work& work, int64_t step, std::chrono::milliseconds most);

    bool is_forked() const;

  private:
    using Guard = std::unique_lock<std::mutex>;

    void run_piece(Work& work, Guard& guard);
    Work::State wait_until(Work& work, int64_t step, std::chrono::steady_clock::time_point limit);

    std::mutex lock_;
    std::condition_variable news_, done_;  // wakes `serve`; wakes `wait` and `withdraw`
    std::deque<Work*> works_;              // of which pieces are left
    int64_t allowed_ = 0, num_calls_ = 0, num_idle_ = 0;
    int64_t num_called_ = 0;  // threads that came back from `serve` and are not there again
    bool ended_ = false;
    std::atomic<int64_t> idle_ns_{0};
    const int process_ = current_process();

    static int current_process();
};

}  // namespace core

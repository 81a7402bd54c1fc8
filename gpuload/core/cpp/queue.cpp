// Queue: see queue.hpp.
//
// Assumes: a work lives until it was withdrawn. Its `run` takes no lock and does not call the
// queue.
#include "queue.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include "usage.hpp"

namespace core {
namespace {

constexpr int64_t SAMPLE_EVERY_NS = 10'000'000;

int64_t now_ns() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#if defined(__linux__)

int64_t thread_number() {
    thread_local const auto number = int64_t(syscall(SYS_gettid));
    return number;
}

#else

int64_t thread_number() { return 0; }

#endif

// Asks how long the calling thread ran, and again when it is destroyed. A thread does so once in
// SAMPLE_EVERY_NS.
class Sample {
  public:
    Sample(Times& times, int64_t begin_ns)
        : times_(times), begin_ns_(begin_ns), before_(thread_usage()) {}
    Sample(const Sample&) = delete;
    ~Sample() {
        const Usage after = thread_usage();
        if (before_.cpu_ns < 0 || after.cpu_ns < 0) return;
        const int64_t time_ns = now_ns() - begin_ns_;
        const Gap gap = gap_of(time_ns, before_, after);
        times_.sampled.fetch_add(time_ns, std::memory_order_relaxed);
        times_.blocked.fetch_add(gap.blocked, std::memory_order_relaxed);
        times_.starved.fetch_add(gap.starved, std::memory_order_relaxed);
        times_.off_core.fetch_add(gap.off_core, std::memory_order_relaxed);
    }

    static bool is_due(int64_t begin_ns) {
        thread_local int64_t next_ns = 0;
        if (begin_ns < next_ns) return false;
        next_ns = begin_ns + SAMPLE_EVERY_NS;
        return true;
    }

  private:
    Times& times_;
    int64_t begin_ns_;
    Usage before_;
};

}  // namespace

Work::Work(const std::vector<int64_t>& pieces_of)
    : num_steps_(int64_t(pieces_of.size())), steps_(new Step[pieces_of.size()]) {
    for (int64_t step = 0; step < num_steps_; ++step) {
        steps_[size_t(step)].num_left.store(pieces_of[size_t(step)], std::memory_order_relaxed);
        step_of_.insert(step_of_.end(), size_t(pieces_of[size_t(step)]), step);
    }
    spans_.resize(step_of_.size());
}

std::vector<std::pair<int64_t, Span>> Work::spans() const {
    std::vector<std::pair<int64_t, Span>> spans;
    for (size_t piece = 0; piece < spans_.size(); ++piece)
        if (state(step_of_[piece]) != NOT_DONE) spans.emplace_back(step_of_[piece], spans_[piece]);
    return spans;
}

Work::State Work::state(int64_t number) const {
    const Step& step = steps_[size_t(number)];
    // Acquire: the thread that sees the last piece done also sees the bytes that all pieces copied,
    // and `failed`.
    if (step.num_left.load(std::memory_order_acquire) != 0) return NOT_DONE;
    return step.failed.load(std::memory_order_relaxed) ? FAILED : DONE;
}

int Queue::current_process() { return int(getpid()); }

bool Queue::is_forked() const { return current_process() != process_; }

// Takes the next piece of a work that has one, and does it without the lock.
void Queue::run_piece(Work& work, Guard& guard) {
    const int64_t piece = work.next_++;
    if (work.next_ == int64_t(work.step_of_.size())) std::erase(works_, &work);
    ++work.num_running_;
    guard.unlock();
    const int64_t begin_ns = now_ns();
    bool is_done = false;
    try {
        std::optional<Sample> sample;
        if (Sample::is_due(begin_ns)) sample.emplace(work.times_, begin_ns);
        is_done = work.run(piece);
    } catch (...) {  // no memory: Python does the step again, and raises the error
    }
    const int64_t end_ns = now_ns();
    work.times_.all.fetch_add(end_ns - begin_ns, std::memory_order_relaxed);
    work.spans_[size_t(piece)] = {begin_ns, end_ns, thread_number()};
    Work::Step& step = work.steps_[size_t(work.step_of_[size_t(piece)])];
    if (!is_done) step.failed.store(true, std::memory_order_relaxed);
    // This publishes the bytes and `failed`.
    const bool is_last = step.num_left.fetch_sub(1, std::memory_order_acq_rel) == 1;
    if (is_last && !step.failed.load(std::memory_order_relaxed))
        work.num_done_.fetch_add(1, std::memory_order_release);
    guard.lock();
    --work.num_running_;
    // The work may be gone as soon as the lock is free: the thread that withdraws it waits for the
    // lock.
    if (is_last || work.num_running_ == 0) done_.notify_all();
}

int64_t Queue::serve() {
    Guard guard(lock_);
    // A thread that comes for the first time is counted as one that is back.
    if (num_called_ > 0) --num_called_;
    for (;;) {
        if (ended_) return -1;
        if (num_calls_ > 0) {
            --num_calls_;
            ++num_called_;
            return allowed_;
        }
        if (!works_.empty()) {
            run_piece(*works_.front(), guard);
            continue;
        }
        ++num_idle_;
        const int64_t begin_ns = now_ns();
        news_.wait(guard);
        idle_ns_.fetch_add(now_ns() - begin_ns, std::memory_order_relaxed);
        --num_idle_;
    }
}

void Queue::call(int64_t until, int64_t num_threads) {
    Guard guard(lock_);
    allowed_ = std::max(allowed_, until);
    num_calls_ = std::max(num_calls_, num_threads);
    // A thread that does a piece sees the call when it comes for the next one; only idle ones have
    // to be woken.
    for (int64_t i = 0; i < std::min(num_threads, num_idle_); ++i) news_.notify_one();
}

void Queue::leave() {
    Guard guard(lock_);
    if (num_called_ > 0) --num_called_;
}

void Queue::end() {
    if (is_forked()) return;
    Guard guard(lock_);
    ended_ = true;
    news_.notify_all();
}

void Queue::submit(Work& work) {
    Guard guard(lock_);
    if (work.step_of_.empty()) return;
    works_.push_back(&work);
    if (num_idle_ > 0) news_.notify_all();
}

void Queue::withdraw(Work& work) {
    if (is_forked()) return;
    Guard guard(lock_);
    std::erase(works_, &work);
    done_.wait(guard, [&] { return work.num_running_ == 0; });
}

Work::State Queue::wait(Work& work, int64_t step, std::chrono::milliseconds most) {
    const auto begin = std::chrono::steady_clock::now();
    const Work::State state = wait_until(work, step, begin + most);
    work.wait_ns_.fetch_add(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count(),
        std::memory_order_relaxed);
    return state;
}

Work::State Queue::wait_until(Work& work, int64_t step,
                              std::chrono::steady_clock::time_point limit) {
    Guard guard(lock_);
    for (;;) {
        const Work::State state = work.state(step);
        const bool is_done = state != Work::NOT_DONE && (num_called_ == 0 || works_.empty());
        if (is_done || std::chrono::steady_clock::now() >= limit) return state;
        if (work.next_ < int64_t(work.step_of_.size())) {
            run_piece(work, guard);
        } else if (!works_.empty()) {
            run_piece(*works_.front(), guard);
        } else {
            done_.wait_until(guard, limit);
        }
    }
}

}  // namespace core

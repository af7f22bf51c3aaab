// A few threads that share one forward in fixed parts, so that which thread computes what never changes a result.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

// Tests define this to widen the window between two steps of a worker; elsewhere it is nothing.
#ifndef SKIT_POOL_PAUSE
#define SKIT_POOL_PAUSE()
#endif

namespace skit {

struct Range {
  int first, end;
};

// One thread's view of the team while it works.
class Worker {
 public:
  Worker(int index, int count, std::atomic<int>& arrived) : index_(index), count_(count), arrived_(arrived) {}

  int index() const { return index_; }

  // Returns this thread's share of `items`, in multiples of `unit`.
  Range share(int items, int unit = 1) const { return share_of(index_, items, unit); }

  // Calls `visit` with ranges that together are all `items`: the pieces of this thread's own share, in its caches since
  // the last time, then what is left of the others' shares, whose threads may have to wait for a processor. `taken`
  // counts the pieces of each share that somebody has begun, for every call that a thread makes.
  template <class Visit>
  void divide(std::atomic<int>* taken, int items, int unit, Visit&& visit) {
    taken += size_t(calls_++) * size_t(count_);
    for (int i = 0; i < count_; i++) {
      const int owner = (index_ + i) % count_;
      const Range all = share_of(owner, items, unit);
      const int pieces = count_ == 1 ? 1 : kPieces,
                size = (all.end - all.first + pieces * unit - 1) / (pieces * unit) * unit;
      for (int at;
           size > 0 && (at = all.first + size * taken[owner].fetch_add(1, std::memory_order_relaxed)) < all.end;)
        visit(Range{at, std::min(at + size, all.end)});
    }
  }

  // Waits until every thread of the team has arrived. A step between two barriers takes microseconds, so nobody sleeps.
  void barrier() {
    if (count_ == 1) return;
    goal_ += count_;
    arrived_.fetch_add(1, std::memory_order_acq_rel);
    for (int spins = 0; arrived_.load(std::memory_order_acquire) < goal_; spins++)
      if (spins > kSpins) std::this_thread::yield();
  }

 private:
  Range share_of(int index, int items, int unit) const {
    const int units = (items + unit - 1) / unit;
    const int first = units * index / count_ * unit, end = units * (index + 1) / count_ * unit;
    return {first, std::min(end, items)};
  }

  static constexpr int kSpins = 20000;  // after that, another process may need this core
  static constexpr int kPieces = 8;     // of a thread's share
  int index_, count_, goal_ = 0, calls_ = 0;
  std::atomic<int>& arrived_;
};

class Pool {
 public:
  using Work = std::function<void(Worker&)>;

  ~Pool() {
    stop_ = true;
    announce(0);
    for (auto& thread : threads_) thread.join();
  }

  // Runs `work` on `count` threads, of which the caller is one.
  void run(int count, const Work& work) {
    arrived_ = 0;
    if (count > 1) {
      while (int(threads_.size()) < count - 1) start(int(threads_.size()) + 1);
      work_ = &work;
      busy_ = count - 1;
      announce(count);
    }
    Worker self(0, count, arrived_);
    work(self);
    for (int spins = 0; busy_.load(std::memory_order_acquire) > 0; spins++)
      if (spins > kSpins) std::this_thread::yield();
  }

 private:
  static constexpr int kSpins = 20000;

  // The number of the round and its number of threads are one word. A worker that is not needed in a round may wake
  // late; were the count a variable of its own, it could read the next round's count under this round's number, do that
  // round's work, and then do it once more when it saw the next number.
  void announce(int count) {
    const uint64_t round = (round_.load(std::memory_order_relaxed) >> 32) + 1;
    round_.store(round << 32 | uint32_t(count), std::memory_order_release);
    round_.notify_all();
  }

  void start(int index) {
    threads_.emplace_back([this, index, seen = round_.load()]() mutable {
      for (;;) {
        for (int spins = 0; round_.load(std::memory_order_acquire) == seen && spins < kSpins; spins++) {
        }
        round_.wait(seen);
        seen = round_.load(std::memory_order_acquire);
        SKIT_POOL_PAUSE();
        if (stop_) return;
        const int count = int(seen & UINT32_MAX);
        if (index >= count) continue;
        Worker worker(index, count, arrived_);
        (*work_)(worker);
        busy_.fetch_sub(1, std::memory_order_release);
      }
    });
  }

  std::vector<std::thread> threads_;
  std::atomic<uint64_t> round_{0};  // the round's number above, its number of threads below
  std::atomic<int> arrived_{0}, busy_{0};
  std::atomic<bool> stop_{false};
  const Work* work_ = nullptr;
};

}  // namespace skit

// A few threads that share out one forward by fixed parts, so that who computes what never changes a result.
#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace skit {

struct Range {
  int first, end;
};

// One thread's view of the team while it works.
class Worker {
 public:
  Worker(int index, int count, std::atomic<int>& arrived) : index_(index), count_(count), arrived_(arrived) {}

  int index() const { return index_; }

  // This thread's share of `items`, in multiples of `unit`.
  Range share(int items, int unit = 1) const {
    const int units = (items + unit - 1) / unit;
    const int first = units * index_ / count_ * unit, end = units * (index_ + 1) / count_ * unit;
    return {first, std::min(end, items)};
  }

  // Waits until all have come here: a step lasts some microseconds, so nobody sleeps.
  void meet() {
    if (count_ == 1) return;
    goal_ += count_;
    arrived_.fetch_add(1, std::memory_order_acq_rel);
    for (int turns = 0; arrived_.load(std::memory_order_acquire) < goal_; turns++)
      if (turns > kPatience) std::this_thread::yield();
  }

 private:
  static constexpr int kPatience = 20000;  // then others may need this core
  int index_, count_, goal_ = 0;
  std::atomic<int>& arrived_;
};

class Pool {
 public:
  using Work = std::function<void(Worker&)>;

  ~Pool() {
    stop_ = true;
    round_.fetch_add(1);
    round_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  // Runs `work` on `count` threads, this one among them.
  void run(int count, const Work& work) {
    arrived_ = 0;
    if (count > 1) {
      while (int(threads_.size()) < count - 1) start(int(threads_.size()) + 1);
      work_ = &work;
      count_ = count;
      busy_ = count - 1;
      round_.fetch_add(1, std::memory_order_release);
      round_.notify_all();
    }
    Worker self(0, count, arrived_);
    work(self);
    for (int turns = 0; busy_.load(std::memory_order_acquire) > 0; turns++)
      if (turns > kWaiting) std::this_thread::yield();
  }

 private:
  static constexpr int kWaiting = 20000;

  void start(int index) {
    threads_.emplace_back([this, index, seen = round_.load()]() mutable {
      for (;;) {
        for (int turns = 0; round_.load(std::memory_order_acquire) == seen && turns < kWaiting; turns++) {
        }
        round_.wait(seen);
        seen = round_.load(std::memory_order_acquire);
        if (stop_) return;
        if (index >= count_) continue;
        Worker worker(index, count_, arrived_);
        (*work_)(worker);
        busy_.fetch_sub(1, std::memory_order_release);
      }
    });
  }

  std::vector<std::thread> threads_;
  std::atomic<int> round_{0}, arrived_{0}, busy_{0}, count_{0};
  std::atomic<bool> stop_{false};
  const Work* work_ = nullptr;
};

}  // namespace skit

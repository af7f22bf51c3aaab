// Zeroed memory, in large pages where the system has them and most of the last one is used: weights and KV are read
// from end to end at every step.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace skit {

template <class T>
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t count) {
    constexpr size_t large = size_t(1) << 21, small = size_t(1) << 12;
    const size_t used = count * sizeof(T), rounded = (used + large - 1) / large * large;
    const size_t page = rounded - used <= used / 4 ? large : small;
    const size_t bytes = (used + page - 1) / page * page;
    data_ = static_cast<T*>(std::aligned_alloc(page, bytes));
    if (!data_) throw std::bad_alloc();
#if defined(__linux__)
    madvise(data_, bytes, MADV_HUGEPAGE);
#endif
    std::memset(data_, 0, bytes);
  }
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~Memory() { std::free(data_); }

  explicit operator bool() const { return data_ != nullptr; }
  T& operator[](size_t place) { return data_[place]; }
  const T& operator[](size_t place) const { return data_[place]; }

 private:
  T* data_ = nullptr;
};

}  // namespace skit

// Working memory that a thread keeps between calls.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ramet {

// Grows and is never cleared; what `take` returns holds until the next `reset`.
class Memory {
  public:
    ~Memory() { std::free(base_); }

    // Room for `bytes` in all, with `n` pieces to be taken.
    void reset(size_t bytes, int n) {
        used_ = 0;
        size_t needed = bytes + 64 * (size_t)n;
        if (needed <= size_) return;
        std::free(base_);
        const size_t page = needed < 2 * kHuge ? 4096 : kHuge;
        size_ = (needed + needed / 4 + page - 1) / page * page;
        base_ = static_cast<char*>(std::aligned_alloc(page, size_));
        if (base_ == nullptr) {
            size_ = 0;
            throw std::bad_alloc();
        }
#if defined(__linux__)
        if (page == kHuge) madvise(base_, size_, MADV_HUGEPAGE);  // where it fails, pages are small
#endif
    }

    template <class T>
    T* take(size_t n) {
        T* piece = reinterpret_cast<T*>(base_ + used_);
        used_ += (n * sizeof(T) + 63) / 64 * 64;
        return piece;
    }

  private:
    static constexpr size_t kHuge = 1 << 21;
    char* base_ = nullptr;
    size_t size_ = 0, used_ = 0;
};

}  // namespace ramet

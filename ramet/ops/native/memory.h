// Working memory that a thread keeps between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ramet {

// Asks for large pages where [from, from + bytes), not touched yet, holds whole ones: weights of tens of gigabytes on
// small ones cost a walk through the page table for every few lines.
inline void use_large_pages([[maybe_unused]] void* from, [[maybe_unused]] size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t kPage = 2 << 20;
    const uintptr_t first = (reinterpret_cast<uintptr_t>(from) + kPage - 1) / kPage * kPage;
    const uintptr_t last = (reinterpret_cast<uintptr_t>(from) + bytes) / kPage * kPage;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

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
        if (page == kHuge) use_large_pages(base_, size_);
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

// The matrix units of AMX: eight tiles of up to 16 rows of 64 bytes, and a product of two added to a third.
//
// Compiled for a processor that has them they are used where the kernel permits it; with RAMET_EMULATE_AMX the few
// operations on tiles are plain C++, so that the code that uses them is tested on any machine with AVX512-BF16.
#pragma once

#include "simd.h"

#if defined(RAMET_BF16_DOT) && defined(__linux__) && \
    (defined(RAMET_EMULATE_AMX) || (defined(__AMX_TILE__) && defined(__AMX_BF16__)))
#define RAMET_AMX 1
#if !defined(RAMET_EMULATE_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace ramet {
namespace amx {

#if defined(RAMET_AMX)
constexpr int kTileRows = 16, kTileBytes = 64;
constexpr int kTileSteps = kTileBytes / 4;  // pairs of bfloat16 in a row
constexpr int kTiles = 8;

// As the instruction that loads it wants it.
struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

#if defined(RAMET_EMULATE_AMX)
struct Tile {
    alignas(64) unsigned char bytes[kTileRows][kTileBytes];
};
struct State {
    Shapes shapes;
    Tile tiles[kTiles];
};
inline thread_local State state;

inline bool permitted() { return true; }
inline void configure(const Shapes& shapes) {
    state.shapes = shapes;
    std::memset(state.tiles, 0, sizeof state.tiles);
}
inline void release() { state.shapes.palette = 0; }

template <int T>
void zero() {
    std::memset(&state.tiles[T], 0, sizeof(Tile));
}

template <int T>
void load(const void* from, ptrdiff_t stride) {
    zero<T>();
    for (int r = 0; r < state.shapes.rows[T]; ++r)
        std::memcpy(state.tiles[T].bytes[r], static_cast<const char*>(from) + r * stride, state.shapes.row_bytes[T]);
}

template <int T>
void store(void* to, ptrdiff_t stride) {
    for (int r = 0; r < state.shapes.rows[T]; ++r)
        std::memcpy(static_cast<char*>(to) + r * stride, state.tiles[T].bytes[r], state.shapes.row_bytes[T]);
}

// The even terms of the sum and the odd ones apart, then both together, then onto what was there.
template <int C, int A, int B>
void dot() {
    for (int r = 0; r < state.shapes.rows[C]; ++r) {
        float even[kTileSteps] = {}, odd[kTileSteps] = {}, sums[kTileSteps];
        for (int k = 0; k < kTileSteps; ++k) {
            bf16 a[2], b[2 * kTileSteps];
            std::memcpy(a, state.tiles[A].bytes[r] + 4 * k, 4);
            std::memcpy(b, state.tiles[B].bytes[k], kTileBytes);
            for (int n = 0; n < kTileSteps; ++n) {
                even[n] = __builtin_fmaf(widen(a[0]), widen(b[2 * n]), even[n]);
                odd[n] = __builtin_fmaf(widen(a[1]), widen(b[2 * n + 1]), odd[n]);
            }
        }
        std::memcpy(sums, state.tiles[C].bytes[r], kTileBytes);
        for (int n = 0; n < kTileSteps; ++n) sums[n] += even[n] + odd[n];
        std::memcpy(state.tiles[C].bytes[r], sums, kTileBytes);
    }
}
#else
// Written here, because the compilers' own forms do not all say that they read memory.
inline bool permitted() {
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
    return granted;
}
INLINE void configure(const Shapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
INLINE void release() { asm volatile("tilerelease"); }

template <int T>
INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
}

template <int T>
INLINE void load(const void* from, ptrdiff_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}

template <int T>
INLINE void store(void* to, ptrdiff_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}

template <int C, int A, int B>
INLINE void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
#endif

// Asked for once a process, when the library is loaded.
inline const bool available = permitted();

// The shapes that this thread has loaded: rows of the upper tiles * 32 + of the lower ones; 0 for none yet, and kNobody
// where no Units live: what was loaded then may be another library's by now.
constexpr int kNobody = -1;
inline thread_local int current = kNobody;

// Tiles 0 and 1 take the sums of the upper rows, 2 and 3 of the lower; 4 and 5 these rows, 6 and 7 the columns.
inline void shape(int upper, int lower) {
    const int wanted = upper * 32 + lower;
    if (current == wanted) return;
    Shapes shapes;
    const int rows[kTiles] = {upper, upper, lower, lower, upper, lower, kTileRows, kTileRows};
    for (int i = 0; i < kTiles; ++i) shapes.rows[i] = (uint8_t)rows[i], shapes.row_bytes[i] = kTileBytes;
    configure(shapes);
    current = wanted;
}
#else
constexpr bool available = false;
#endif

}  // namespace amx

// While it lives, its thread may use the units; then they are given back, and a switch of threads need not save them.
class Units {
  public:
    Units(const Units&) = delete;
#if defined(RAMET_AMX)
    Units() : inner_(amx::current != amx::kNobody) {
        if (!inner_) amx::current = 0;
    }
    ~Units() {
        if (inner_) return;
        if (amx::current != 0) amx::release();
        amx::current = amx::kNobody;
    }

  private:
    const bool inner_;  // within the life of another
#else
    Units() {}
#endif
};

}  // namespace ramet

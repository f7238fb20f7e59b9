// Reading the vocabulary; the contract is ops/head/reference.py.
//
// The weight is read once: packed a block at a time and multiplied with all rows at once; or, by the matrix units, as it
// lies, and the rows are packed. Of the logits only a running maximum and sum are kept. Chunks of the vocabulary are fixed
// and joined in their order, and a row's arithmetic is the same whatever rows accompany it, so its bits depend neither on
// those nor on the number of threads.
#include <cmath>

#include "memory.h"
#include "panel.h"

namespace ramet {
namespace {

constexpr int kBlock = kLanes * kColumns > 64 ? kLanes * kColumns : 64;  // entries packed at a time
constexpr int kChunk = 16 * kBlock;                                      // entries summed before they are joined
constexpr int kAhead = kLanes;  // entries between fetching, into the second cache, and packing
constexpr float kLowest = -1e30f;

struct Total {
    float top, sum;  // the maximum in powers of 2, and the sum of 2^(logit - top)
};

// softcap * tanh(logits / softcap); as they are where softcap is 0. tanh is summed from its small end where it is small,
// so that its relative error stays that of float32.
INLINE Vec capped(Vec logits, float softcap) {
    if (softcap == 0.0f) return logits;
    Vec x = logits * (1.0f / softcap), size = max(x, -x), square = x * x;
    Vec series = splat(-17.0f / 315.0f) * square + 2.0f / 15.0f;
    series = x - x * square * (1.0f / 3.0f - series * square);
    Vec e = exp2(size * -2.88539008f);  // e^(-2 |x|)
    Vec t = 1.0f - 2.0f * e / (1.0f + e);
    t = x < 0.0f ? -t : t;
    return softcap * (size < 0.15f ? series : t);
}

INLINE void add(const float* logits, int n, float softcap, float* top, float* sums) {
    const Vec hidden = splat(-__builtin_inff());
    float scaled[kBlock];
    Vec best = splat(kLowest);
    for (int j = 0; j < kBlock; j += kLanes) {
        IVec inside = lane_numbers() + j < n;
        Vec x = inside ? capped(load(logits + j), softcap) * 1.44269504f : hidden;
        store(scaled + j, x);
        best = max(x, best);
    }
    Vec total = load(sums);
    if (any_above(best, *top)) {
        float risen = largest(best);
        total *= exp2(splat(*top - risen));
        *top = risen;
    }
    for (int j = 0; j < kBlock; j += kLanes) total += exp2(load(scaled + j) - *top);
    store(sums, total);
}

// Entries [begin, end) of the vocabulary for all rows; totals [n_rows].
template <class E, class S>
void sum_chunk(const typename E::Type* hidden, int row, int n_rows, int width, const S* weight, int row_width, int begin,
               int end, float softcap, Total* totals, Memory& memory) {
    using Type = typename E::Type;
    const int step = rows_at_once<E>();
    memory.reset((size_t)kBlock * width * sizeof(Type) + step * kBlock * 4 + (size_t)n_rows * (kLanes + 1) * 4, 4);
    Type* packed = memory.take<Type>((size_t)kBlock * width);
    float* logits = memory.take<float>(step * kBlock);
    float* sums = memory.take<float>((size_t)n_rows * kLanes);
    float* tops = memory.take<float>(n_rows);
    std::fill(sums, sums + (size_t)n_rows * kLanes, 0.0f);
    std::fill(tops, tops + n_rows, kLowest);
    for (int v = begin; v < end; v += kBlock) {
        int n = std::min(kBlock, end - v);
        for (int j = 0; j < kBlock; j += kLanes) {
            const S* rows[kLanes];
            int n_own = std::clamp(n - j, 0, kLanes);
            for (int i = 0; i < n_own; ++i) rows[i] = weight + (int64_t)(v + j + i) * row_width;
            pack_columns<E, S>(rows, n_own, row_width, packed + (ptrdiff_t)j * width, kAhead * (ptrdiff_t)row_width);
        }
        for (int r = 0; r < n_rows; r += step) {
            int n_own = std::min(step, n_rows - r);
            multiply<E>(hidden + (ptrdiff_t)r * row, row, n_own, packed, width, kBlock / kLanes, logits, kBlock);
            for (int i = 0; i < n_own; ++i) add(logits + i * kBlock, n, softcap, tops + r + i, sums + (r + i) * kLanes);
        }
    }
    for (int r = 0; r < n_rows; ++r) totals[r] = {tops[r], sum(load(sums + r * kLanes))};
}

#if defined(RAMET_AMX)
// logits [n][row] of a lane each: the maxima and the sums of n entries for kLanes rows.
INLINE void add_lanes(float* logits, int row, int n, float softcap, float* tops, float* sums) {
    const Vec top = load(tops);
    Vec best = top;
    for (int i = 0; i < n; ++i) {
        Vec x = capped(load(logits + i * row), softcap) * 1.44269504f;
        store(logits + i * row, x);
        best = max(x, best);
    }
    Vec total = load(sums) * exp2(top - best);
    for (int i = 0; i < n; ++i) total += exp2(load(logits + i * row) - best);
    store(tops, best);
    store(sums, total);
}

// As sum_chunk; `hidden` are n_vectors vectors of packed rows.
void multiply_chunk(const bf16* hidden, int n_rows, int width, const bf16* weight, int begin, int end, float softcap,
                    Total* totals, Memory& memory) {
    const int n_vectors = divide_up(n_rows, kLanes), wide = n_vectors * kLanes;
    memory.reset((size_t)(kBlock + 2) * wide * 4, 3);
    float* logits = memory.take<float>((size_t)kBlock * wide);
    float* sums = memory.take<float>(wide);
    float* tops = memory.take<float>(wide);
    std::fill(sums, sums + wide, 0.0f);
    std::fill(tops, tops + wide, kLowest);
    for (int v = begin; v < end; v += kBlock) {
        const int n = std::min(kBlock, end - v);
        Ahead ahead(weight + (int64_t)(v + n) * width, v + n < end ? (size_t)n * width * sizeof(bf16) : 0,
                    n_fetches(n, width, n_vectors));
        product<Bf16>(weight + (int64_t)v * width, width, n, hidden, (ptrdiff_t)kLanes * width, 2 * kLanes,
                      width / 2, logits, wide, false, n_vectors, 2, &ahead);
        for (int j = 0; j < wide; j += kLanes) add_lanes(logits + j, wide, n, softcap, tops + j, sums + j);
    }
    for (int r = 0; r < n_rows; ++r) totals[r] = {tops[r], sums[r]};
}
#endif

template <class E, class S>
void logsumexp(const S* hidden, const S* weight, int n_rows, int row_width, int n_entries, float softcap, float* out,
               int n_threads) {
    using Type = typename E::Type;
    const int width = round_up(row_width, E::kPair), row = padded<Type>(width);
    const int n_chunks = divide_up(n_entries, kChunk);
    const bool by_units = amx::available && std::is_same<S, bf16>::value && width == row_width;
    static thread_local Memory shared;
    const size_t n_room = by_units ? (size_t)round_up(n_rows, kLanes) * width : (size_t)n_rows * row;
    shared.reset(n_room * sizeof(Type) + (size_t)n_chunks * n_rows * sizeof(Total), 2);
    Type* rows = shared.take<Type>(n_room);
    Total* totals = shared.take<Total>((size_t)n_chunks * n_rows);
    if (by_units) {
        for (int r = 0; r < n_rows; r += kLanes)
            pack_vectors<E, S>(hidden + (ptrdiff_t)r * row_width, 1, std::min(kLanes, n_rows - r), row_width,
                               rows + (ptrdiff_t)r * width);
    } else {
        for (int r = 0; r < n_rows; ++r)
            for (int c = 0; c < width; ++c)
                rows[(ptrdiff_t)r * row + c] = c < row_width ? E::from(hidden[(ptrdiff_t)r * row_width + c]) : Type{};
    }
#pragma omp parallel num_threads(n_threads)
    {
        static thread_local Memory own;
        const Units units;
#pragma omp for schedule(dynamic, 1)
        for (int c = 0; c < n_chunks; ++c) {
            const int begin = c * kChunk, end = std::min(n_entries, begin + kChunk);
            Total* to = totals + (ptrdiff_t)c * n_rows;
#if defined(RAMET_AMX)
            if constexpr (std::is_same<S, bf16>::value)
                if (by_units) {
                    multiply_chunk(rows, n_rows, width, weight, begin, end, softcap, to, own);
                    continue;
                }
#endif
            sum_chunk<E, S>(rows, row, n_rows, width, weight, row_width, begin, end, softcap, to, own);
        }
    }
    for (int r = 0; r < n_rows; ++r) {
        float top = kLowest;
        double sum = 0;
        for (int c = 0; c < n_chunks; ++c) top = std::max(top, totals[(ptrdiff_t)c * n_rows + r].top);
        for (int c = 0; c < n_chunks; ++c) {
            const Total& total = totals[(ptrdiff_t)c * n_rows + r];
            sum += total.sum * std::exp2(total.top - top);
        }
        out[r] = (float)((top + std::log2(sum)) * 0.69314718055994531);
    }
}

template <class S>
void columns(const S* hidden, const S* weight, int width, const int32_t* rows, const int32_t* entries, int n,
             float softcap, float* out, int n_threads) {
    if ((int64_t)n * width < 1 << 17) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int i = 0; i < n; ++i) {
        const S *a = hidden + (int64_t)rows[i] * width, *b = weight + (int64_t)entries[i] * width;
        Vec sums{};
        int c = 0;
        for (; c + kLanes <= width; c += kLanes) sums += load(a + c) * load(b + c);
        if (c < width) sums += load_first(a + c, width - c) * load_first(b + c, width - c);
        out[i] = capped(splat(sum(sums)), softcap)[0];
    }
}

}  // namespace
}  // namespace ramet

using namespace ramet;

extern "C" {

void ramet_logsumexp(const void* hidden, const void* weight, int32_t n_rows, int32_t width, int32_t n_entries,
                     float softcap, float* out, int32_t is_bf16, int32_t n_threads) {
    if (is_bf16)
        logsumexp<Bf16, bf16>((const bf16*)hidden, (const bf16*)weight, n_rows, width, n_entries, softcap, out, n_threads);
    else
        logsumexp<F32, float>((const float*)hidden, (const float*)weight, n_rows, width, n_entries, softcap, out, n_threads);
}

void ramet_columns(const void* hidden, const void* weight, int32_t width, const int32_t* rows, const int32_t* entries,
                   int32_t n, float softcap, float* out, int32_t is_bf16, int32_t n_threads) {
    if (is_bf16) columns((const bf16*)hidden, (const bf16*)weight, width, rows, entries, n, softcap, out, n_threads);
    else columns((const float*)hidden, (const float*)weight, width, rows, entries, n, softcap, out, n_threads);
}
}

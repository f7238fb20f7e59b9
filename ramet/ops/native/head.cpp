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
constexpr float kLowest = -1e30f, kHidden = -3e38f;                      // below every logit, and below that
constexpr float kLog2 = 1.44269504f;

struct Total {
    float top, sum;  // the maximum in powers of 2, and the sum of 2^(logit - top)
};

struct Seen {
    float top, sum, tilt;  // as in Total, and the sum of 2^(logit - top) * (logit - top)
    int32_t id;            // of the maximum
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

// The logits of a block in powers of 2, hidden behind n and at place `excluded`; the maxima of what is not.
INLINE Vec scale_logits(const float* logits, int n, int excluded, float softcap, float* scaled) {
    Vec best = splat(kLowest);
    for (int j = 0; j < kBlock; j += kLanes) {
        const IVec place = lane_numbers() + j, inside = (place < n) & (place != excluded);
        const Vec x = inside ? capped(load(logits + j), softcap) * kLog2 : splat(kHidden);
        store(scaled + j, x);
        best = max(x, best);
    }
    return best;
}

// The sum of a row's `lanes` sums.
INLINE float joined(const float* sums, int r, int lanes) {
    return lanes == 1 ? sums[r] : sum(load(sums + (ptrdiff_t)r * kLanes));
}

// What is multiplied: packed rows, `row` elements apart or, by_units, in vectors; and the weight as it lies.
template <class E, class S>
struct Operands {
    const typename E::Type* rows;
    int row, n_rows, width;
    const S* weight;
    int row_width, n_entries;
    bool by_units;

    int wide() const { return round_up(n_rows, kLanes); }
    int n_chunks() const { return divide_up(n_entries, kChunk); }
    int n_blocks() const { return divide_up(n_entries, kBlock); }
};

// The running maxima and sums of a chunk, from which its Totals are made: `lanes` sums of each row.
class Sums {
  public:
    struct Given {
        float softcap;
        Total* totals;  // [chunks][n_rows]
    };

    static size_t room(int wide, int lanes) { return (size_t)wide * (lanes + 1) * sizeof(float); }

    Sums(const Given& given, int wide, int lanes, Memory& memory) : given_(given), lanes_(lanes) {
        sums_ = memory.take<float>((size_t)wide * lanes);
        tops_ = memory.take<float>(wide);
        std::fill(sums_, sums_ + (size_t)wide * lanes, 0.0f);
        std::fill(tops_, tops_ + wide, kLowest);
    }

    // A block of n entries for row r.
    INLINE void add(const float* logits, int n, int, int r) {
        const Vec hidden = splat(-__builtin_inff());
        float scaled[kBlock];
        Vec best = splat(kLowest);
        for (int j = 0; j < kBlock; j += kLanes) {
            IVec inside = lane_numbers() + j < n;
            Vec x = inside ? capped(load(logits + j), given_.softcap) * kLog2 : hidden;
            store(scaled + j, x);
            best = max(x, best);
        }
        float &top = tops_[r], *sums = sums_ + (ptrdiff_t)r * kLanes;
        Vec total = load(sums);
        if (any_above(best, top)) {
            float risen = largest(best);
            total *= exp2(splat(top - risen));
            top = risen;
        }
        for (int j = 0; j < kBlock; j += kLanes) total += exp2(load(scaled + j) - top);
        store(sums, total);
    }

    // logits [n][row] of a lane each: a block of n entries for kLanes rows from r on.
    INLINE void add_lanes(float* logits, int row, int n, int, int r) {
        const Vec top = load(tops_ + r);
        Vec best = top;
        for (int i = 0; i < n; ++i) {
            Vec x = capped(load(logits + i * row), given_.softcap) * kLog2;
            store(logits + i * row, x);
            best = max(x, best);
        }
        Vec total = load(sums_ + r) * exp2(top - best);
        for (int i = 0; i < n; ++i) total += exp2(load(logits + i * row) - best);
        store(tops_ + r, best);
        store(sums_ + r, total);
    }

    void finish(int chunk, int n_rows) {
        Total* to = given_.totals + (ptrdiff_t)chunk * n_rows;
        for (int r = 0; r < n_rows; ++r) to[r] = {tops_[r], joined(sums_, r, lanes_)};
    }

  private:
    const Given given_;
    const int lanes_;
    float *sums_, *tops_;
};

// As Sums, with what a draw needs besides.
class Draws {
  public:
    struct Given {
        float softcap;
        int excluded;
        const float* scales;  // [wide] one over the temperature, 0 where the likeliest is wanted
        bool warm;            // whether any is not
        Seen* seen;           // [chunks][n_rows]
        float *tops, *sums;   // [blocks][wide] of the rows with a scale: a logit, and the sum of 2^((logits - it) * scale)
        const int32_t* places;  // [wide] of each row's logits among those that are kept, -1 for none
        int n_entries;
        float* kept;  // [places][n_entries], null where no row has any
    };

    static size_t room(int wide, int lanes) { return (size_t)wide * (2 * lanes + 2) * sizeof(float); }

    Draws(const Given& given, int wide, int lanes, Memory& memory) : given_(given), wide_(wide), lanes_(lanes) {
        sums_ = memory.take<float>((size_t)wide * lanes);
        tilts_ = memory.take<float>((size_t)wide * lanes);
        tops_ = memory.take<float>(wide);
        ids_ = memory.take<int32_t>(wide);
        std::fill(sums_, sums_ + (size_t)wide * lanes, 0.0f);
        std::fill(tilts_, tilts_ + (size_t)wide * lanes, 0.0f);
        std::fill(tops_, tops_ + wide, kLowest);
        std::fill(ids_, ids_ + wide, -1);
    }

    INLINE void add(const float* logits, int n, int first, int r) {
        float scaled[kBlock];
        if (given_.kept && given_.places[r] >= 0) keep(logits, n, first, r);
        const Vec best = scale_logits(logits, n, given_.excluded - first, given_.softcap, scaled);
        float &top = tops_[r], *sums = sums_ + (ptrdiff_t)r * kLanes, *tilts = tilts_ + (ptrdiff_t)r * kLanes;
        Vec total = load(sums), tilt = load(tilts), own{};
        if (any_above(best, top)) {
            const float risen = largest(best);
            const Vec by = splat(top - risen), factor = exp2(by);
            tilt = (tilt + by * total) * factor;
            total *= factor;
            top = risen;
            ids_[r] = first + (int)(std::find(scaled, scaled + kBlock - 1, risen) - scaled);
        }
        for (int j = 0; j < kBlock; j += kLanes) {
            const Vec x = load(scaled + j) - top, e = exp2(x);
            own += e;
            tilt = fma(e, x, tilt);
        }
        store(sums, total + own);
        store(tilts, tilt);
        if (given_.warm && given_.scales[r] > 0.0f) add_warm(scaled, best, top, own, first / kBlock, r);
    }

    INLINE void add_lanes(float* logits, int row, int n, int first, int r) {
        if (given_.kept) keep_lanes(logits, row, n, first, r);
        const Vec top = load(tops_ + r);
        Vec best = top;
        IVec ids;
        std::memcpy(&ids, ids_ + r, sizeof ids);
        for (int i = 0; i < n; ++i) {
            Vec x = capped(load(logits + i * row), given_.softcap) * kLog2;
            if (first + i == given_.excluded) x = splat(kHidden);
            store(logits + i * row, x);
            const IVec above = x > best;
            ids = above ? IVec{} + (first + i) : ids;
            best = above ? x : best;
        }
        const Vec by = top - best, factor = exp2(by);
        Vec total = load(sums_ + r), tilt = (load(tilts_ + r) + by * total) * factor, own{};
        for (int i = 0; i < n; ++i) {
            const Vec x = load(logits + i * row) - best, e = exp2(x);
            own += e;
            tilt = fma(e, x, tilt);
        }
        std::memcpy(ids_ + r, &ids, sizeof ids);
        store(tops_ + r, best);
        store(sums_ + r, total * factor + own);
        store(tilts_ + r, tilt);
        if (given_.warm) add_warm_lanes(logits, row, n, best, own, first / kBlock, r);
    }

    void finish(int chunk, int n_rows) {
        Seen* to = given_.seen + (ptrdiff_t)chunk * n_rows;
        for (int r = 0; r < n_rows; ++r)
            to[r] = {tops_[r], joined(sums_, r, lanes_), joined(tilts_, r, lanes_), ids_[r]};
    }

  private:
    INLINE void keep(const float* logits, int n, int first, int r) {
        float made[kBlock];
        for (int j = 0; j < kBlock; j += kLanes) store(made + j, capped(load(logits + j), given_.softcap));
        std::memcpy(place(r) + first, made, n * sizeof(float));
    }

    INLINE void keep_lanes(const float* logits, int row, int n, int first, int r) {
        float made[kBlock * kLanes];
        for (int i = 0; i < n; ++i) store(made + i * kLanes, capped(load(logits + i * row), given_.softcap));
        for (int lane = 0; lane < kLanes; ++lane) {
            if (given_.places[r + lane] < 0) continue;
            float* to = place(r + lane) + first;
            for (int i = 0; i < n; ++i) to[i] = made[i * kLanes + lane];
        }
    }

    float* place(int r) const { return given_.kept + (ptrdiff_t)given_.places[r] * given_.n_entries; }

    // At temperature 1 a block's sum, below the top so far, is there already.
    INLINE void add_warm(const float* scaled, Vec best, float top, Vec own, int block, int r) {
        const float scale = given_.scales[r];
        if (scale != 1.0f) {
            top = largest(best);
            own = Vec{};
            for (int j = 0; j < kBlock; j += kLanes) own += exp2((load(scaled + j) - top) * scale);
        }
        given_.tops[(ptrdiff_t)block * wide_ + r] = top;
        given_.sums[(ptrdiff_t)block * wide_ + r] = sum(own);
    }

    INLINE void add_warm_lanes(const float* scaled, int row, int n, Vec top, Vec own, int block, int r) {
        const Vec scale = load(given_.scales + r);
        const IVec tempered = (scale > 0.0f) & (scale != 1.0f);
        if (any_above(tempered ? splat(1.0f) : Vec{}, 0.0f)) {
            Vec best = splat(kLowest), total{};
            for (int i = 0; i < n; ++i) best = max(load(scaled + i * row), best);
            for (int i = 0; i < n; ++i) total += exp2((load(scaled + i * row) - best) * scale);
            top = tempered ? best : top;
            own = tempered ? total : own;
        }
        store(given_.tops + (ptrdiff_t)block * wide_ + r, top);
        store(given_.sums + (ptrdiff_t)block * wide_ + r, own);
    }

    const Given given_;
    const int wide_, lanes_;
    float *sums_, *tilts_, *tops_;
    int32_t* ids_;
};

// Entries [begin, end) of the vocabulary for all rows.
template <class State, class E, class S>
void walk_chunk(const Operands<E, S>& of, const typename State::Given& given, int begin, int end, Memory& memory) {
    using Type = typename E::Type;
    const int step = rows_at_once<E>(), wide = of.wide();
    memory.reset((size_t)kBlock * of.width * sizeof(Type) + step * kBlock * 4 + State::room(wide, kLanes), 6);
    Type* packed = memory.take<Type>((size_t)kBlock * of.width);
    float* logits = memory.take<float>(step * kBlock);
    State state(given, wide, kLanes, memory);
    for (int v = begin; v < end; v += kBlock) {
        int n = std::min(kBlock, end - v);
        for (int j = 0; j < kBlock; j += kLanes) {
            const S* rows[kLanes];
            int n_own = std::clamp(n - j, 0, kLanes);
            for (int i = 0; i < n_own; ++i) rows[i] = of.weight + (int64_t)(v + j + i) * of.row_width;
            pack_columns<E, S>(rows, n_own, of.row_width, packed + (ptrdiff_t)j * of.width,
                               kAhead * (ptrdiff_t)of.row_width);
        }
        for (int r = 0; r < of.n_rows; r += step) {
            int n_own = std::min(step, of.n_rows - r);
            multiply<E>(of.rows + (ptrdiff_t)r * of.row, of.row, n_own, packed, of.width, kBlock / kLanes, logits, kBlock);
            for (int i = 0; i < n_own; ++i) state.add(logits + i * kBlock, n, v, r + i);
        }
    }
    state.finish(begin / kChunk, of.n_rows);
}

#if defined(RAMET_AMX)
// As walk_chunk, by_units.
template <class State>
void multiply_chunk(const Operands<Bf16, bf16>& of, const typename State::Given& given, int begin, int end, Memory& memory) {
    const int wide = of.wide(), n_vectors = wide / kLanes, width = of.width;
    memory.reset((size_t)kBlock * wide * 4 + State::room(wide, 1), 5);
    float* logits = memory.take<float>((size_t)kBlock * wide);
    State state(given, wide, 1, memory);
    for (int v = begin; v < end; v += kBlock) {
        const int n = std::min(kBlock, end - v);
        Ahead ahead(of.weight + (int64_t)(v + n) * width, v + n < end ? (size_t)n * width * sizeof(bf16) : 0,
                    n_fetches(n, width, n_vectors));
        product<Bf16>(of.weight + (int64_t)v * width, width, n, of.rows, (ptrdiff_t)kLanes * width, 2 * kLanes, width / 2,
                      logits, wide, false, n_vectors, 2, &ahead);
        for (int j = 0; j < wide; j += kLanes) state.add_lanes(logits + j, wide, n, v, j);
    }
    state.finish(begin / kChunk, of.n_rows);
}
#endif

template <class State, class E, class S>
void walk(const Operands<E, S>& of, const typename State::Given& given, int n_threads) {
#pragma omp parallel num_threads(n_threads)
    {
        static thread_local Memory own;
        const Units units;
#pragma omp for schedule(dynamic, 1)
        for (int c = 0; c < of.n_chunks(); ++c) {
            const int begin = c * kChunk, end = std::min(of.n_entries, begin + kChunk);
#if defined(RAMET_AMX)
            if constexpr (std::is_same<S, bf16>::value)
                if (of.by_units) {
                    multiply_chunk<State>(of, given, begin, end, own);
                    continue;
                }
#endif
            walk_chunk<State>(of, given, begin, end, own);
        }
    }
}

// `units`: whether the matrix units may take vectors of rows, where there are any. `memory` has room for `further` bytes
// besides.
template <class E, class S>
Operands<E, S> packed(const S* hidden, const S* weight, int n_rows, int row_width, int n_entries, bool units,
                      size_t further, Memory& memory) {
    using Type = typename E::Type;
    const int width = round_up(row_width, E::kPair), row = padded<Type>(width);
    const bool by_units = units && amx::available && std::is_same<S, bf16>::value && width == row_width;
    const size_t n_room = by_units ? (size_t)round_up(n_rows, kLanes) * width : (size_t)n_rows * row;
    memory.reset(n_room * sizeof(Type) + further, 8);
    Type* rows = memory.take<Type>(n_room);
    if (by_units) {
        for (int r = 0; r < n_rows; r += kLanes)
            pack_vectors<E, S>(hidden + (ptrdiff_t)r * row_width, 1, std::min(kLanes, n_rows - r), row_width,
                               rows + (ptrdiff_t)r * width);
    } else {
        for (int r = 0; r < n_rows; ++r)
            for (int c = 0; c < width; ++c)
                rows[(ptrdiff_t)r * row + c] = c < row_width ? E::from(hidden[(ptrdiff_t)r * row_width + c]) : Type{};
    }
    return {rows, row, n_rows, width, weight, row_width, n_entries, by_units};
}

template <class E, class S>
void logsumexp(const S* hidden, const S* weight, int n_rows, int row_width, int n_entries, float softcap, float* out,
               int n_threads) {
    static thread_local Memory shared;
    const int n_chunks = divide_up(n_entries, kChunk);
    const size_t n_totals = (size_t)n_chunks * n_rows;
    const auto of = packed<E, S>(hidden, weight, n_rows, row_width, n_entries, true, n_totals * sizeof(Total), shared);
    Total* totals = shared.take<Total>(n_totals);
    walk<Sums>(of, Sums::Given{softcap, totals}, n_threads);
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
INLINE float dot(const S* a, const S* b, int width) {
    Vec sums{};
    int c = 0;
    for (; c + kLanes <= width; c += kLanes) sums += load(a + c) * load(b + c);
    if (c < width) sums += load_first(a + c, width - c) * load_first(b + c, width - c);
    return sum(sums);
}

// What a row's chunks have in common, in powers of 2: its largest logit and whose it is, the sum of 2^(logit - top), and
// of that times (logit - top).
struct Whole {
    float top = kLowest;
    int id = -1;
    double sum = 0, tilt = 0;

    Whole(const Seen* seen, int n_chunks, int n_rows) {
        for (int c = 0; c < n_chunks; ++c) {
            const Seen& own = seen[(ptrdiff_t)c * n_rows];
            if (own.top > top) top = own.top, id = own.id;
        }
        for (int c = 0; c < n_chunks; ++c) {
            const Seen& own = seen[(ptrdiff_t)c * n_rows];
            const double by = (double)own.top - top, factor = std::exp2(by);
            sum += own.sum * factor;
            tilt += factor > 0 ? (own.tilt + own.sum * by) * factor : 0.0;
        }
    }
};

struct Drawn {
    int id;
    float logit;  // in powers of 2
};

// The first of n entries from `first` on whose cumulative weight exceeds `rest`, or the last that has any.
template <class S>
Drawn draw_within(const S* row, const S* weight, int width, int first, int n, int excluded, float softcap, float top,
                  float scale, double rest) {
    float logits[kBlock] = {}, scaled[kBlock], weights[kBlock];
    for (int i = 0; i < n; ++i) logits[i] = dot(row, weight + (int64_t)(first + i) * width, width);
    scale_logits(logits, n, excluded - first, softcap, scaled);
    for (int j = 0; j < kBlock; j += kLanes) store(weights + j, exp2((load(scaled + j) - top) * scale));
    Drawn found{-1, 0.0f};
    double passed = 0;
    for (int i = 0; i < n && passed <= rest; ++i)
        if (weights[i] > 0.0f) found = {first + i, scaled[i]}, passed += weights[i];
    return found;
}

// By the sums of blocks [n_blocks][wide] from a row's own on. id -1 where there is nothing to draw: a row with NaN.
template <class S>
Drawn draw(const S* row, const S* weight, int width, int n_entries, int excluded, float softcap, const float* tops,
           const float* sums, int wide, float top, float scale, float uniform) {
    const int n_blocks = divide_up(n_entries, kBlock);
    const auto share = [&](int b) {
        const ptrdiff_t at = (ptrdiff_t)b * wide;
        return sums[at] * (double)std::exp2((tops[at] - top) * scale);
    };
    double total = 0, before = 0, passed = 0;
    for (int b = 0; b < n_blocks; ++b) total += share(b);
    int found = -1;
    for (int b = 0; b < n_blocks && passed <= uniform * total; ++b) {
        const double own = share(b);
        if (own > 0) found = b, before = passed, passed += own;
    }
    if (found < 0) return {-1, 0.0f};
    const int first = found * kBlock;
    const float own_top = tops[(ptrdiff_t)found * wide];
    const double rest = (uniform * total - before) / std::exp2((own_top - top) * scale);
    return draw_within(row, weight, width, first, std::min(kBlock, n_entries - first), excluded, softcap, own_top, scale,
                       rest);
}

template <class E, class S>
void sample(const S* hidden, const S* weight, int n_rows, int width, int n_entries, float softcap, int excluded,
            const float* scales, const float* uniforms, const int32_t* places, float* kept, int64_t* tokens,
            float* logprobs, float* entropy, int n_threads) {
    static thread_local Memory shared;
    const int n_chunks = divide_up(n_entries, kChunk), n_blocks = divide_up(n_entries, kBlock);
    const bool warm = std::any_of(scales, scales + n_rows, [](float scale) { return scale > 0; });
    const size_t wide = round_up(n_rows, kLanes), n_seen = (size_t)n_chunks * n_rows, n_sums = warm ? n_blocks * wide : 0;
    const auto of = packed<E, S>(hidden, weight, n_rows, width, n_entries, true,
                                 n_seen * sizeof(Seen) + (2 * n_sums + 2 * wide) * sizeof(float), shared);
    Seen* seen = shared.take<Seen>(n_seen);
    float *tops = shared.take<float>(n_sums), *sums = shared.take<float>(n_sums), *wide_scales = shared.take<float>(wide);
    std::fill(std::copy(scales, scales + n_rows, wide_scales), wide_scales + wide, 0.0f);
    int32_t* wide_places = shared.take<int32_t>(wide);
    std::fill(std::copy(places, places + n_rows, wide_places), wide_places + wide, -1);
    const Draws::Given given{softcap, excluded, wide_scales, warm, seen, tops, sums, wide_places, n_entries, kept};
    walk<Draws>(of, given, n_threads);
#pragma omp parallel for num_threads(n_threads) schedule(dynamic, 4) if (n_threads > 1 && warm)
    for (int r = 0; r < n_rows; ++r) {
        const Whole whole(seen + r, n_chunks, n_rows);
        Drawn found{whole.id, whole.top};
        if (scales[r] > 0) {
            const Drawn drawn = draw(hidden + (ptrdiff_t)r * width, weight, width, n_entries, excluded, softcap, tops + r,
                                     sums + r, (int)wide, whole.top, scales[r], uniforms[r]);
            if (drawn.id >= 0) found = drawn;
        }
        const double log_sum = std::log2(whole.sum);
        tokens[r] = found.id >= 0 ? found.id : excluded == 0;
        logprobs[r] = (float)((found.logit - whole.top - log_sum) * 0.69314718055994531);
        entropy[r] = (float)((log_sum - whole.tilt / whole.sum) * 0.69314718055994531);
    }
}

template <class S>
void columns(const S* hidden, const S* weight, int width, const int32_t* rows, const int32_t* entries, int n,
             float softcap, float* out, int n_threads) {
    if ((int64_t)n * width < 1 << 17) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int i = 0; i < n; ++i) {
        const float logit = dot(hidden + (int64_t)rows[i] * width, weight + (int64_t)entries[i] * width, width);
        out[i] = capped(splat(logit), softcap)[0];
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

void ramet_sample(const void* hidden, const void* weight, int32_t n_rows, int32_t width, int32_t n_entries, float softcap,
                  int32_t excluded, const float* scales, const float* uniforms, const int32_t* places, float* kept,
                  int64_t* tokens, float* logprobs, float* entropy, int32_t is_bf16, int32_t n_threads) {
    if (is_bf16)
        sample<Bf16, bf16>((const bf16*)hidden, (const bf16*)weight, n_rows, width, n_entries, softcap, excluded, scales,
                           uniforms, places, kept, tokens, logprobs, entropy, n_threads);
    else
        sample<F32, float>((const float*)hidden, (const float*)weight, n_rows, width, n_entries, softcap, excluded, scales,
                           uniforms, places, kept, tokens, logprobs, entropy, n_threads);
}

void ramet_columns(const void* hidden, const void* weight, int32_t width, const int32_t* rows, const int32_t* entries,
                   int32_t n, float softcap, float* out, int32_t is_bf16, int32_t n_threads) {
    if (is_bf16) columns((const bf16*)hidden, (const bf16*)weight, width, rows, entries, n, softcap, out, n_threads);
    else columns((const float*)hidden, (const float*)weight, width, rows, entries, n, softcap, out, n_threads);
}
}

// All experts of a layer in one call; the contract is ops/experts/reference.py.
//
// Pairs of a row and one of its experts are sorted by expert, so that an expert's weights are read once. First come the
// activations of every pair, a task a range of one expert's columns; then the outputs, a task a range of the columns of
// all rows, which walks the experts in their order. tile() sums an element in the order of its terms alone, and a row's
// experts are added in theirs: a row's bits depend neither on the rows that share the call nor on the threads.
#include "activation.h"
#include "memory.h"
#include "tile.h"

namespace ramet {
namespace {

constexpr int kBlock = 32 * kRows;          // rows of x gathered at a time
constexpr int kGroups = 8, kVectors = 8;    // of columns, in a task of the first and of the second product
constexpr int kPanel = 4;                   // vectors multiplied at a time: pairs of gates and ups in the first product
constexpr int kSteps = 512;                 // of a sum, taken for all rows of a block: what they read stays in the second cache
constexpr int64_t kWorthThreads = 1 << 18;  // products

// A layer's sizes: n_experts of gate and up [size, width] and down [width, size].
struct Sizes {
    int n_experts, size, width;

    template <class E>
    int64_t gate_up() const {
        return 2 * (int64_t)round_up(size, kLanes) * round_up(width, E::kPair);
    }
    template <class E>
    int64_t down() const {
        return (int64_t)round_up(width, kLanes) * round_up(size, E::kPair);
    }
};

// The pairs of a call, sorted by expert, within it by row: the rows and weights of expert e are [offsets[e], offsets[e + 1]).
struct Pairs {
    int *offsets, *rows;
    float* weights;

    static size_t bytes(int n_pairs, int n_experts) { return ((size_t)n_experts + 2 * (size_t)n_pairs + 2) * 4; }

    Pairs(const int64_t* chosen, const float* given, int n_rows, int n_chosen, int n_experts, Memory& memory)
        : offsets(memory.take<int>(n_experts + 2)),
          rows(memory.take<int>((size_t)n_rows * n_chosen)),
          weights(memory.take<float>((size_t)n_rows * n_chosen)) {
        std::fill(offsets, offsets + n_experts + 2, 0);
        int* next = offsets + 1;  // where the next pair of an expert goes; at last, where the expert ends
        const int n_pairs = n_rows * n_chosen;
        for (int i = 0; i < n_pairs; ++i) ++next[chosen[i] + 1];
        for (int e = 0; e < n_experts; ++e) next[e + 1] += next[e];
        for (int i = 0; i < n_pairs; ++i) {
            int at = next[chosen[i]]++;
            rows[at] = i / n_chosen;
            weights[at] = given[i];
        }
    }
};

template <class E, class S>
void gather(const S* x, const int* rows, int n_rows, int width, int room, typename E::Type* out) {
    for (int r = 0; r < n_rows; ++r) {
        const S* from = x + (int64_t)rows[r] * width;
        auto* to = out + (ptrdiff_t)r * room;
        if constexpr (std::is_same<S, typename E::Type>::value) std::memcpy(to, from, width * sizeof(S));
        else
            for (int c = 0; c < width; ++c) to[c] = E::from(from[c]);
        for (int c = width; c < room; ++c) to[c] = typename E::Type{};
    }
}

// sums [n_rows][n_vectors * kLanes] = rows of `a` times vectors of packed columns, as tile.h's product() for any number of rows.
template <class E>
void multiply(const typename E::Type* a, int a_row, int n_rows, const typename E::Type* b, int room, int n_vectors,
              float* sums, int out_row) {
    const int n_steps = room / E::kPair;
    for (int k = 0; k < n_steps; k += kSteps)
        for (int r = 0; r < n_rows; r += kRows)
            product<E>(a + (ptrdiff_t)r * a_row + k * E::kPair, a_row, std::min(kRows, n_rows - r),
                       b + (ptrdiff_t)k * kLanes * E::kPair, (ptrdiff_t)kLanes * room, kLanes * E::kPair,
                       std::min(kSteps, n_steps - k), sums + (ptrdiff_t)r * out_row, out_row, k > 0, n_vectors);
}

// Groups [begin, end) of an expert's activations; a group is a vector of gates and one of ups. hidden [pairs][out_row].
template <class E, class S>
void activate(const S* x, const Pairs& pairs, int expert, const typename E::Type* gate_up, Sizes sizes, int begin, int end,
              bool is_gelu, typename E::Type* hidden, int out_row, Memory& memory) {
    using Type = typename E::Type;
    const int room = round_up(sizes.width, E::kPair);
    constexpr int kWide = kPanel * kLanes;
    memory.reset((size_t)(kBlock + kRows) * (room * sizeof(Type) + kWide * 4), 2);
    Type* block = memory.take<Type>((size_t)(kBlock + kRows) * room);
    float* sums = memory.take<float>((size_t)(kBlock + kRows) * kWide);
    const int last = pairs.offsets[expert + 1];
    for (int first = pairs.offsets[expert]; first < last; first += kBlock) {
        const int n_block = std::min(kBlock, last - first);
        gather<E, S>(x, pairs.rows + first, n_block, sizes.width, room, block);
        for (int g = begin; g < end; g += kPanel / 2) {
            const int n_groups = std::min(kPanel / 2, end - g);
            multiply<E>(block, room, n_block, gate_up + (ptrdiff_t)2 * g * kLanes * room, room, 2 * n_groups, sums, kWide);
            for (int r = 0; r < n_block; ++r)
                for (int j = 0; j < n_groups; ++j) {
                    const float* gate = sums + r * kWide + 2 * j * kLanes;
                    Vec a = load(gate);
                    a = is_gelu ? gelu_tanh(a) : silu(a);
                    store(hidden + (ptrdiff_t)(first + r) * out_row + (g + j) * kLanes, a * load(gate + kLanes));
                }
        }
    }
}

// Vectors [begin, end) of every row's output columns.
template <class E, class S>
void combine(const typename E::Type* hidden, int hidden_row, const Pairs& pairs, const typename E::Type* down, Sizes sizes,
             int begin, int end, int n_rows, S* out, Memory& memory) {
    const int wide = kVectors * kLanes, room = round_up(sizes.size, E::kPair);
    memory.reset(((size_t)n_rows + kRows) * wide * 4, 2);
    float* totals = memory.take<float>((size_t)n_rows * wide);
    float* sums = memory.take<float>(kRows * wide);
    std::fill(totals, totals + (size_t)n_rows * wide, 0.0f);
    for (int e = 0; e < sizes.n_experts; ++e) {
        const auto* weight = down + e * sizes.down<E>() + (ptrdiff_t)begin * kLanes * room;
        for (int p = pairs.offsets[e]; p < pairs.offsets[e + 1]; p += kRows) {
            const int n = std::min(kRows, pairs.offsets[e + 1] - p);
            product<E>(hidden + (ptrdiff_t)p * hidden_row, hidden_row, n, weight, (ptrdiff_t)kLanes * room,
                       kLanes * E::kPair, room / E::kPair, sums, wide, false, end - begin);
            for (int i = 0; i < n; ++i) {
                float* to = totals + (ptrdiff_t)pairs.rows[p + i] * wide;
                for (int j = 0; j < (end - begin) * kLanes; j += kLanes)
                    store(to + j, load(to + j) + pairs.weights[p + i] * load(sums + i * wide + j));
            }
        }
    }
    for (int r = 0; r < n_rows; ++r)
        for (int j = begin; j < end; ++j) {
            Vec total = load(totals + (ptrdiff_t)r * wide + (j - begin) * kLanes);
            S* to = out + (int64_t)r * sizes.width + j * kLanes;
            const int n = std::min(kLanes, sizes.width - j * kLanes);
            if (n == kLanes) store(to, total);
            else store_first(to, total, n);
        }
}

template <class E, class S>
void experts(const S* x, const int64_t* chosen, const float* weights, const typename E::Type* gate_up,
             const typename E::Type* down, Sizes sizes, int n_rows, int n_chosen, bool is_gelu, S* out, int n_threads) {
    using Type = typename E::Type;
    const int n_pairs = n_rows * n_chosen, hidden_row = round_up(sizes.size, kLanes);
    const int n_groups = hidden_row / kLanes, n_vectors = divide_up(sizes.width, kLanes);
    const int n_first = divide_up(n_groups, kGroups), n_second = divide_up(n_vectors, kVectors);
    if ((int64_t)n_pairs * sizes.size * sizes.width < kWorthThreads) n_threads = 1;
    static thread_local Memory shared;
    const size_t n_hidden = ((size_t)n_pairs + kRows) * hidden_row;
    shared.reset(n_hidden * sizeof(Type) + Pairs::bytes(n_pairs, sizes.n_experts), 4);
    const Pairs pairs(chosen, weights, n_rows, n_chosen, sizes.n_experts, shared);
    Type* hidden = shared.take<Type>(n_hidden);
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        static thread_local Memory own;
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < sizes.n_experts * n_first; ++task) {
            const int e = task / n_first, begin = task % n_first * kGroups;
            if (pairs.offsets[e] < pairs.offsets[e + 1])
                activate<E, S>(x, pairs, e, gate_up + e * sizes.gate_up<E>(), sizes, begin,
                               std::min(n_groups, begin + kGroups), is_gelu, hidden, hidden_row, own);
        }
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < n_second; ++task)
            combine<E, S>(hidden, hidden_row, pairs, down, sizes, task * kVectors, std::min(n_vectors, (task + 1) * kVectors),
                          n_rows, out, own);
    }
}

// weight [n_parts * n_rows, width] as vectors of kLanes rows, those of the parts in turn; the last of a part are padded.
template <class E, class S>
void pack(const S* weight, int n_parts, int n_rows, int width, typename E::Type* out) {
    for (int r = 0; r < n_rows; r += kLanes)
        for (int part = 0; part < n_parts; ++part) {
            const S* rows[kLanes];
            const int n = std::min(kLanes, n_rows - r);
            for (int i = 0; i < n; ++i) rows[i] = weight + ((int64_t)part * n_rows + r + i) * width;
            pack_columns<E, S>(rows, n, width, out);
            out += (ptrdiff_t)kLanes * round_up(width, E::kPair);
        }
}

template <class E, class S>
void pack_all(const S* gate_up, const S* down, Sizes sizes, typename E::Type* gate_up_out, typename E::Type* down_out,
              int n_threads) {
    const int64_t area = (int64_t)sizes.size * sizes.width;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int e = 0; e < sizes.n_experts; ++e) {
        pack<E, S>(gate_up + 2 * e * area, 2, sizes.size, sizes.width, gate_up_out + e * sizes.gate_up<E>());
        pack<E, S>(down + e * area, 1, sizes.width, sizes.size, down_out + e * sizes.down<E>());
    }
}

}  // namespace
}  // namespace ramet

using namespace ramet;

extern "C" {

// Bytes that the packed gate_up and down of all experts take.
void ramet_experts_sizes(int32_t n_experts, int32_t size, int32_t width, int32_t is_bf16, int64_t* bytes) {
    const Sizes sizes{n_experts, size, width};
    bytes[0] = n_experts * (is_bf16 ? sizes.gate_up<Bf16>() * sizeof(Bf16::Type) : sizes.gate_up<F32>() * sizeof(float));
    bytes[1] = n_experts * (is_bf16 ? sizes.down<Bf16>() * sizeof(Bf16::Type) : sizes.down<F32>() * sizeof(float));
}

void ramet_experts_pack(const void* gate_up, const void* down, int32_t n_experts, int32_t size, int32_t width,
                        void* gate_up_out, void* down_out, int32_t is_bf16, int32_t n_threads) {
    const Sizes sizes{n_experts, size, width};
    if (is_bf16)
        pack_all<Bf16, bf16>((const bf16*)gate_up, (const bf16*)down, sizes, (Bf16::Type*)gate_up_out,
                             (Bf16::Type*)down_out, n_threads);
    else
        pack_all<F32, float>((const float*)gate_up, (const float*)down, sizes, (float*)gate_up_out, (float*)down_out,
                             n_threads);
}

void ramet_experts(const void* x, const int64_t* chosen, const float* weights, const void* gate_up, const void* down,
                   int32_t n_experts, int32_t size, int32_t width, int32_t n_rows, int32_t n_chosen, int32_t is_gelu,
                   void* out, int32_t is_bf16, int32_t n_threads) {
    const Sizes sizes{n_experts, size, width};
    if (is_bf16)
        experts<Bf16, bf16>((const bf16*)x, chosen, weights, (const Bf16::Type*)gate_up, (const Bf16::Type*)down, sizes,
                            n_rows, n_chosen, is_gelu, (bf16*)out, n_threads);
    else
        experts<F32, float>((const float*)x, chosen, weights, (const float*)gate_up, (const float*)down, sizes, n_rows,
                            n_chosen, is_gelu, (float*)out, n_threads);
}
}

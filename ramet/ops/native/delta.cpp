// The gated delta rule over a stream of trees; the contract is ops/gated_delta/reference.py.
//
// A piece is walked in chunks that begin at its own start. Within a chunk, with G the sums of log decays, S the state
// before it, and rows i, j of the chunk (the UT transform: Yang et al. 2024, "Parallelizing Linear Transformers with the
// Delta Rule"; decays as in "Gated Delta Networks"):
//   A[i][j] = beta_i exp(G_i - G_j) k_i.k_j for j < i        P[i][j] = exp(G_i - G_j) q_i.k_j for j <= i
//   T = (I + A)^-1                                           Z = P T diag(beta)
//   out = (diag(exp G) Q - Z diag(exp G) K) S + Z V
//   U = T diag(beta) (V - diag(exp G) K S)                   S' = exp(G_n) S + sum over j of exp(G_n - G_j) k_j u_j^T
// Written like this, a chunk whose final state nobody needs costs one product with the state instead of two, and the
// rows that it returns have the same bits either way. Keys and queries enter products as they are; what normalises them
// is in the factors. Decays, T and the state are float32; so is everything for float32 tensors.
//
// Levels by depth in the tree; a level's pieces and key heads are independent tasks, each with an arithmetic of its own.
#include <cmath>
#include <vector>

#include "activation.h"
#include "memory.h"
#include "rms.h"
#include "tile.h"

namespace ramet {
namespace {

constexpr float kEpsilon = 1e-6f;  // of the normalisation, as in transformers
constexpr float kLog2e = 1.44269504f;

struct Call {
    const void *q, *k, *v, *gate;
    void* out;
    const float *a, *b, *rate, *dt_bias, *weight;
    float* states;
    const int32_t *starts, *lengths, *parents, *from, *to;
    int64_t q_stride, k_stride, v_stride, gate_stride, a_stride, b_stride, slot_stride;  // elements between rows, and between slots
    int32_t n_pieces, n_key_heads, n_heads, key_dim, value_dim, chunk, is_bf16, n_threads;
    float eps;
};

struct Plan {
    std::vector<std::vector<int>> levels;  // pieces by depth, the longest first
    std::vector<int> kept;                 // [n_pieces] where in the scratch a piece's final state is; -1: no children
    int n_kept = 0;
};

Plan make_plan(const Call& call) {
    Plan plan;
    std::vector<int> depths(call.n_pieces, 0);
    plan.kept.assign(call.n_pieces, -1);
    for (int piece = 0; piece < call.n_pieces; ++piece) {
        int parent = call.parents[piece];
        if (parent >= 0) depths[piece] = depths[parent] + 1;
        if (parent >= 0 && plan.kept[parent] < 0) plan.kept[parent] = plan.n_kept++;
        if (depths[piece] == (int)plan.levels.size()) plan.levels.emplace_back();
        plan.levels[depths[piece]].push_back(piece);
    }
    for (auto& level : plan.levels)
        std::stable_sort(level.begin(), level.end(), [&](int a, int b) { return call.lengths[a] > call.lengths[b]; });
    return plan;
}

// Final states of pieces with children: [n_kept][n_heads][key_dim][value_dim], and as operands of products.
template <class E>
struct Scratch {
    float* states;
    typename E::Type* packed;  // F32: the states themselves
};

// Of one value head: [chunk] each. Behind the chunk's last row they are finite: what they multiply is 0.
struct Gates {
    float *beta, *high, *low;  // log2 of the decay from the chunk's start is high + low
    float *decay, *rest;       // from the chunk's start, and to its end
    float total;               // from start to end
};

template <class E>
struct Work {
    using Type = typename E::Type;
    Type *q, *k;                      // [room][key_dim]
    Type *k_columns;                  // [chunk / kLanes][key_dim / kPair][kLanes][kPair]
    Type *k_rows, *v_rows, *u_rows;   // [chunk / kPair][key_dim or value_dim][kPair]
    float *q_factors, *k_factors;     // [chunk]
    float *qk, *kk;                   // [room][chunk] products of the rows
    float *scores, *lower, *inverse;  // [room][chunk] P, -A, T
    float* right;                     // [room][value_dim] what T is applied to
    float *z, *mixed, *sums;          // [kRows][chunk, key_dim, value_dim]
    Type *z_keys, *z_values, *mixed_packed;
    float* states;                    // [group][key_dim][value_dim]
    Type* packed;
    Gates gates;

    Work(Memory& memory, const Call& call) {
        const size_t C = call.chunk, room = round_up(call.chunk, kRows), Dk = call.key_dim, Dv = call.value_dim;
        const size_t state = (size_t)(call.n_heads / call.n_key_heads) * Dk * Dv;
        const size_t types = 2 * room * Dk + C * (2 * Dk + 2 * Dv) + kRows * (2 * C + Dk) + state;
        const size_t floats = 5 * room * C + room * Dv + 7 * C + kRows * (C + Dk + Dv) + state;
        memory.reset(types * sizeof(Type) + floats * 4, 32);
        q = memory.take<Type>(room * Dk), k = memory.take<Type>(room * Dk);
        k_columns = memory.take<Type>(C * Dk), k_rows = memory.take<Type>(C * Dk);
        v_rows = memory.take<Type>(C * Dv), u_rows = memory.take<Type>(C * Dv);
        z_keys = memory.take<Type>(kRows * C), z_values = memory.take<Type>(kRows * C);
        mixed_packed = memory.take<Type>(kRows * Dk), packed = memory.take<Type>(state);
        for (float** matrix : {&qk, &kk, &scores, &lower, &inverse}) *matrix = memory.take<float>(room * C);
        for (float** factors : {&q_factors, &k_factors, &gates.beta, &gates.high, &gates.low, &gates.decay, &gates.rest})
            *factors = memory.take<float>(C);
        right = memory.take<float>(room * Dv);
        z = memory.take<float>(kRows * C), mixed = memory.take<float>(kRows * Dk), sums = memory.take<float>(kRows * Dv);
        states = memory.take<float>(state);
    }
};

// A head's state before a chunk: null is zeros.
template <class E>
struct State {
    const float* values = nullptr;
    const typename E::Type* packed = nullptr;
};

// Two rows of float32 (the second null: zeros) as one row of pairs, or one row as it is.
template <class E>
INLINE void pack_floats(const float* first, const float* second, int width, typename E::Type* out) {
    if constexpr (E::kPair == 1) {
        std::memcpy(out, first, width * sizeof(float));
    } else {
        for (int c = 0; c < width; c += kLanes) {
            bf16 low[kLanes], high[kLanes];
            store(low, load(first + c));
            store(high, second ? load(second + c) : Vec{});
            UVec word = (UVec)load(high) | (UVec)load(low) >> 16;
            std::memcpy(out + 2 * c, &word, sizeof word);
        }
    }
}

template <class E>
void pack_state(const Call& call, const float* state, typename E::Type* out) {
    const int Dv = call.value_dim;
    for (int d = 0; d < call.key_dim; d += E::kPair)
        pack_floats<E>(state + d * Dv, state + (d + 1) * Dv, Dv, out + d * Dv);
}

// Copies n rows; factors[i] becomes `scale` over the row's length, 0 behind the last.
template <class E, class S>
void take_rows(const S* from, int64_t stride, int n, int width, float scale, int chunk, typename E::Type* to,
               float* factors) {
    for (int i = 0; i < n; ++i, from += stride, to += width) {
        Vec squares = Vec{};
        for (int d = 0; d < width; d += kLanes) {
            Vec x = load(from + d);
            squares += x * x;
            store(to + d, x);
        }
        factors[i] = sum(squares);
    }
    for (int i = 0; i < n; ++i) factors[i] = scale / std::sqrt(factors[i] + kEpsilon);
    std::fill(factors + n, factors + chunk, 0.0f);
}

template <class E, class S>
void take_pairs(const S* from, int64_t stride, int n, int width, typename E::Type* out) {
    for (int i = 0; i < n; i += E::kPair, out += width * E::kPair) {
        const S* rows[2] = {from + i * stride, from + (i + 1) * stride};
        pack_rows<E, S>(rows, n - i, width, out);
    }
}

// The rows of a chunk and what does not depend on the value head.
template <class E, class S>
void begin_chunk(const Call& call, int row, int n, int head, Work<E>& work) {
    using Type = typename E::Type;
    const int C = call.chunk, Dk = call.key_dim;
    take_rows<E, S>(static_cast<const S*>(call.q) + row * call.q_stride + (ptrdiff_t)head * Dk, call.q_stride, n, Dk,
                    1.0f / std::sqrt((float)Dk), C, work.q, work.q_factors);
    take_rows<E, S>(static_cast<const S*>(call.k) + row * call.k_stride + (ptrdiff_t)head * Dk, call.k_stride, n, Dk, 1.0f,
                    C, work.k, work.k_factors);
    take_pairs<E, Type>(work.k, Dk, n, Dk, work.k_rows);
    for (int j = 0; j < n; j += kLanes) {
        const Type* rows[kLanes];
        for (int i = 0; i < kLanes; ++i) rows[i] = work.k + (j + i) * Dk;
        pack_columns<E, Type>(rows, std::min(kLanes, n - j), Dk, work.k_columns + j * Dk);
    }
    for (int i = 0; i < n; i += kRows) {
        int n_rows = std::min(kRows, n - i), n_vectors = divide_up(i + n_rows, kLanes);
        product<E>(work.q + i * Dk, Dk, n_rows, work.k_columns, (ptrdiff_t)kLanes * Dk, kLanes * E::kPair, Dk / E::kPair,
                   work.qk + i * C, C, false, n_vectors);
        product<E>(work.k + i * Dk, Dk, n_rows, work.k_columns, (ptrdiff_t)kLanes * Dk, kLanes * E::kPair, Dk / E::kPair,
                   work.kk + i * C, C, false, n_vectors);
    }
}

// log(1 + e^x). With s = y / (2 + y), log(1 + y) is 2 atanh(s), and s is at most 1/3.
INLINE Vec softplus(Vec x) {
    Vec y = exp2((x < 0.0f ? x : -x) * kLog2e), s = y / (y + 2.0f), t = s * s;
    Vec series = splat(1.0f / 15);
    for (float n : {13.0f, 11.0f, 9.0f, 7.0f, 5.0f, 3.0f, 1.0f}) series = series * t + 1.0f / n;
    return (x > 0.0f ? x : Vec{}) + 2.0f * s * series;
}

INLINE Vec sigmoid(Vec x) {
    Vec y = exp2((x < 0.0f ? x : -x) * kLog2e);
    return (x < 0.0f ? y : splat(1.0f)) / (1.0f + y);
}

void open_gates(const Call& call, int row, int n, int head, Gates& gates) {
    const int C = round_up(n, kLanes);
    for (int i = 0; i < n; ++i) {
        gates.high[i] = call.a[(row + i) * call.a_stride + head] + call.dt_bias[head];
        gates.beta[i] = call.b[(row + i) * call.b_stride + head];
    }
    std::fill(gates.high + n, gates.high + C, 0.0f);
    std::fill(gates.beta + n, gates.beta + C, 0.0f);
    for (int i = 0; i < C; i += kLanes) {
        store(gates.high + i, softplus(load(gates.high + i)) * (call.rate[head] * kLog2e));
        store(gates.beta + i, sigmoid(load(gates.beta + i)));
    }
    double total = 0.0;  // its float32 would lose the small decays behind a large one
    for (int i = 0; i < C; ++i) {
        if (i < n) total += std::max((double)gates.high[i], -1e6);  // 0 as a factor; infinities have no difference
        gates.high[i] = (float)total;
        gates.low[i] = (float)(total - gates.high[i]);
    }
    for (int i = 0; i < C; i += kLanes) {
        Vec high = load(gates.high + i), low = load(gates.low + i);
        store(gates.decay + i, exp2(high + low));
        store(gates.rest + i, exp2((gates.high[n - 1] - high) + (gates.low[n - 1] - low)));
    }
    gates.total = gates.decay[n - 1];
}

// P and -A, zeros above their diagonals as far as strips of kRows reach.
template <class E>
void weigh(const Call& call, int n, Work<E>& work) {
    const int C = call.chunk;
    const Gates& gates = work.gates;
    for (int i = 0; i < n; ++i) {
        int end = std::min(n, i / kRows * kRows + kRows);
        float of_q = work.q_factors[i], of_k = -gates.beta[i] * work.k_factors[i];
        for (int j = 0; j < end; j += kLanes) {
            IVec at = lane_numbers() + j;
            Vec t = (gates.high[i] - load(gates.high + j)) + (gates.low[i] - load(gates.low + j));
            Vec weight = exp2(t > 0.0f ? Vec{} : t) * load(work.k_factors + j);
            store(work.scores + i * C + j, at <= i ? weight * load(work.qk + i * C + j) * of_q : Vec{});
            store(work.lower + i * C + j, at < i ? weight * load(work.kk + i * C + j) * of_k : Vec{});
        }
    }
}

// T, by forward substitution in strips of kRows.
void invert(int n, int C, const float* lower, float* inverse) {
    std::memset(inverse, 0, (size_t)n * C * sizeof(float));
    for (int i = 0; i < n; i += kRows) {
        int n_rows = std::min(kRows, n - i), n_vectors = divide_up(i + n_rows, kLanes);
        float* own = inverse + i * C;
        for (int r = 0; r < n_rows; ++r) own[r * C + i + r] = 1.0f;
        product<F32>(lower + i * C, C, n_rows, inverse, kLanes, C, i, own, C, true, n_vectors);
        for (int r = 1; r < n_rows; ++r)
            for (int s = 0; s < r; ++s) {
                float factor = lower[(i + r) * C + i + s];
                for (int j = 0; j < n_vectors * kLanes; j += kLanes)
                    store(own + r * C + j, load(own + r * C + j) + factor * load(own + s * C + j));
            }
    }
}

// Rows [i, end) of Z, as factors of V and, scaled, of K.
template <class E>
void mix(const Call& call, int i, int end, Work<E>& work) {
    const int C = call.chunk, n_vectors = divide_up(end, kLanes);
    product<F32>(work.scores + i * C, C, end - i, work.inverse, kLanes, C, end, work.z, C, false, n_vectors);
    for (int j = 0; j < n_vectors * kLanes; j += kLanes) {
        Vec beta = load(work.gates.beta + j), of_k = -(load(work.gates.decay + j) * load(work.k_factors + j));
        for (int r = 0; r < end - i; ++r) {
            Vec z = load(work.z + r * C + j) * beta;
            store(work.z_values + r * C + j, z);
            store(work.z_keys + r * C + j, z * of_k);
        }
    }
}

// A row in place: its norm, times silu of the gate.
template <class S>
INLINE void finish_row(const Call& call, S* row, const S* gate) {
    const float factor = inverse_rms(row, call.value_dim, call.eps);
    for (int d = 0; d < call.value_dim; d += kLanes) {
        store(row + d, load(row + d) * factor);  // rounded before the weight, as the contract has it
        store(row + d, load(row + d) * load(call.weight + d) * silu(load(gate + d)));
    }
}

template <class E, class S>
void write_rows(const Call& call, int row, int n, int head, Work<E>& work, const State<E>& state) {
    const int C = call.chunk, Dk = call.key_dim, Dv = call.value_dim;
    S* out = static_cast<S*>(call.out) + ((ptrdiff_t)row * call.n_heads + head) * Dv;
    const S* gate = static_cast<const S*>(call.gate) + row * call.gate_stride + (ptrdiff_t)head * Dv;
    for (int i = 0; i < n; i += kRows) {
        int n_rows = std::min(kRows, n - i), n_steps = divide_up(i + n_rows, E::kPair);
        mix<E>(call, i, i + n_rows, work);
        if (state.packed) {
            for (int r = 0; r < n_rows; ++r) {
                float factor = work.gates.decay[i + r] * work.q_factors[i + r];
                for (int d = 0; d < Dk; d += kLanes) store(work.mixed + r * Dk + d, load(work.q + (i + r) * Dk + d) * factor);
            }
            product<E>(work.z_keys, C, n_rows, work.k_rows, kLanes * E::kPair, (ptrdiff_t)Dk * E::kPair, n_steps,
                       work.mixed, Dk, true, Dk / kLanes);
            for (int d = 0; d < n_rows * Dk; d += kLanes) store(work.mixed_packed + d, load(work.mixed + d));
            product<E>(work.mixed_packed, Dk, n_rows, state.packed, kLanes * E::kPair, (ptrdiff_t)Dv * E::kPair,
                       Dk / E::kPair, work.sums, Dv, false, Dv / kLanes);
        }
        product<E>(work.z_values, C, n_rows, work.v_rows, kLanes * E::kPair, (ptrdiff_t)Dv * E::kPair, n_steps, work.sums,
                   Dv, state.packed != nullptr, Dv / kLanes);
        for (int r = 0; r < n_rows; ++r) {
            S* to = out + (ptrdiff_t)(i + r) * call.n_heads * Dv;
            for (int d = 0; d < Dv; d += kLanes) store(to + d, load(work.sums + r * Dv + d));
            finish_row(call, to, gate + (i + r) * call.gate_stride);
        }
    }
}

// U, each row times what brings it to the chunk's end.
template <class E, class S>
void solve(const Call& call, int row, int n, int head, Work<E>& work, const State<E>& state) {
    const int C = call.chunk, Dk = call.key_dim, Dv = call.value_dim;
    const S* v = static_cast<const S*>(call.v) + row * call.v_stride + (ptrdiff_t)head * Dv;
    for (int i = 0; i < n; i += kRows) {
        int n_rows = std::min(kRows, n - i);
        if (state.packed)
            product<E>(work.k + i * Dk, Dk, n_rows, state.packed, kLanes * E::kPair, (ptrdiff_t)Dv * E::kPair, Dk / E::kPair,
                       work.right + i * Dv, Dv, false, Dv / kLanes);
        for (int r = i; r < i + n_rows; ++r) {
            float factor = work.gates.decay[r] * work.k_factors[r];
            for (int d = 0; d < Dv; d += kLanes) {
                Vec known = state.packed ? load(work.right + r * Dv + d) * factor : Vec{};
                store(work.right + r * Dv + d, (load(v + r * call.v_stride + d) - known) * work.gates.beta[r]);
            }
        }
    }
    for (int i = 0; i < n; i += kRows) {
        int n_rows = std::min(kRows, n - i);
        product<F32>(work.inverse + i * C, C, n_rows, work.right, kLanes, Dv, i + n_rows, work.sums, Dv, false, Dv / kLanes);
        for (int r = 0; r < n_rows; ++r) {
            float factor = work.gates.rest[i + r] * work.k_factors[i + r];
            for (int d = 0; d < Dv; d += kLanes) store(work.sums + r * Dv + d, load(work.sums + r * Dv + d) * factor);
        }
        for (int r = 0; r < n_rows; r += E::kPair)
            pack_floats<E>(work.sums + r * Dv, r + 1 < n_rows ? work.sums + (r + 1) * Dv : nullptr, Dv,
                           work.u_rows + (i + r) * Dv);
    }
}

template <class E>
void update(const Call& call, int n, const Work<E>& work, const State<E>& state, float* to) {
    const int Dk = call.key_dim, Dv = call.value_dim;
    for (int d = 0; d < Dk; d += kRows) {
        int n_rows = std::min(kRows, Dk - d);
        float* own = to + d * Dv;
        for (int j = 0; j < n_rows * Dv; j += kLanes)
            store(own + j, state.values ? load(state.values + d * Dv + j) * work.gates.total : Vec{});
        product<E>(work.k_rows + d * E::kPair, E::kPair, n_rows, work.u_rows, kLanes * E::kPair, (ptrdiff_t)Dv * E::kPair,
                   divide_up(n, E::kPair), own, Dv, true, Dv / kLanes, (ptrdiff_t)Dk * E::kPair);
    }
}

// An operand of products with the values of a state.
template <class E>
const typename E::Type* as_operand(const Call& call, const float* values, typename E::Type* room) {
    if constexpr (E::kPair == 1) return values;
    else return pack_state<E>(call, values, room), room;
}

template <class E>
State<E> initial(const Call& call, const Plan& plan, const Scratch<E>& scratch, int piece, int head,
                 typename E::Type* room) {
    const ptrdiff_t size = (ptrdiff_t)call.key_dim * call.value_dim;
    if (call.from[piece] >= 0) {
        const float* values = call.states + call.from[piece] * call.slot_stride + head * size;
        return {values, as_operand<E>(call, values, room)};
    }
    if (call.parents[piece] < 0) return {};
    ptrdiff_t at = ((ptrdiff_t)plan.kept[call.parents[piece]] * call.n_heads + head) * size;
    return {scratch.states + at, scratch.packed + at};
}

template <class E>
void keep(const Call& call, const Plan& plan, const Scratch<E>& scratch, int piece, int head, const float* values) {
    const ptrdiff_t size = (ptrdiff_t)call.key_dim * call.value_dim;
    if (call.to[piece] >= 0)
        std::memcpy(call.states + call.to[piece] * call.slot_stride + head * size, values, size * sizeof(float));
    if (plan.kept[piece] < 0) return;
    ptrdiff_t at = ((ptrdiff_t)plan.kept[piece] * call.n_heads + head) * size;
    std::memcpy(scratch.states + at, values, size * sizeof(float));
    as_operand<E>(call, scratch.states + at, scratch.packed + at);
}

template <class E, class S>
void walk(const Call& call, const Plan& plan, const Scratch<E>& scratch, int piece, int key_head, Work<E>& work) {
    constexpr int kMaxGroup = 16;
    const int group = call.n_heads / call.n_key_heads, Dv = call.value_dim, length = call.lengths[piece];
    const ptrdiff_t size = (ptrdiff_t)call.key_dim * Dv;
    const bool kept = call.to[piece] >= 0 || plan.kept[piece] >= 0;
    State<E> states[kMaxGroup];
    for (int g = 0; g < group; ++g)
        states[g] = initial<E>(call, plan, scratch, piece, key_head * group + g, work.packed + g * size);
    for (int i = 0; i < length; i += call.chunk) {
        const int row = call.starts[piece] + i, n = std::min(call.chunk, length - i);
        const bool last = i + n == length;
        begin_chunk<E, S>(call, row, n, key_head, work);
        for (int g = 0; g < group; ++g) {
            const int head = key_head * group + g;
            take_pairs<E, S>(static_cast<const S*>(call.v) + row * call.v_stride + (ptrdiff_t)head * Dv, call.v_stride, n, Dv,
                             work.v_rows);
            open_gates(call, row, n, head, work.gates);
            weigh<E>(call, n, work);
            invert(n, call.chunk, work.lower, work.inverse);
            write_rows<E, S>(call, row, n, head, work, states[g]);
            if (last && !kept) continue;
            float* to = work.states + g * size;
            solve<E, S>(call, row, n, head, work, states[g]);
            update<E>(call, n, work, states[g], to);
            states[g] = {to, last ? nullptr : as_operand<E>(call, to, work.packed + g * size)};
        }
    }
    if (!kept) return;
    for (int g = 0; g < group; ++g) keep<E>(call, plan, scratch, piece, key_head * group + g, states[g].values);
}

template <class E, class S>
void run(const Call& call) {
    const Plan plan = make_plan(call);
    static thread_local Memory shared;
    const size_t n = (size_t)plan.n_kept * call.n_heads * call.key_dim * call.value_dim;
    shared.reset(n * (4 + sizeof(typename E::Type)), 2);
    Scratch<E> scratch;
    scratch.states = shared.take<float>(n);
    if constexpr (E::kPair == 1) scratch.packed = scratch.states;
    else scratch.packed = shared.take<typename E::Type>(n);
#pragma omp parallel num_threads(call.n_threads)
    {
        static thread_local Memory own;
        Work<E> work(own, call);
        for (const auto& level : plan.levels) {
            const int n_tasks = (int)level.size() * call.n_key_heads;
#pragma omp for schedule(dynamic, 1)
            for (int i = 0; i < n_tasks; ++i)
                walk<E, S>(call, plan, scratch, level[i / call.n_key_heads], i % call.n_key_heads, work);
        }
    }
}

}  // namespace
}  // namespace ramet

// key_dim and value_dim are multiples of 16, and so is `chunk`; at most 16 value heads share a key head.
extern "C" void ramet_gated_delta(const ramet::Call* call) {
    if (call->is_bf16) ramet::run<ramet::Bf16, ramet::bf16>(*call);
    else ramet::run<ramet::F32, float>(*call);
}

// Normalisation, rotary embedding and gating, each in one pass; the contract is ops/norm/reference.py.
#include "activation.h"
#include "rms.h"

namespace ramet {
namespace {

constexpr int64_t kWorthThreads = 1 << 15;  // elements: fewer take less time than waking a thread

// Vectors that lie apart: number i is head i % n_heads of row i / n_heads.
template <class S>
struct Heads {
    const S* first;
    int64_t stride, head_stride;
    int n_heads;

    INLINE const S* operator[](int i) const { return first + i / n_heads * stride + i % n_heads * head_stride; }
};

template <class S, class O>
void rms_norm(Heads<S> x, const float* weight, float eps, O* out, int n, int width, int n_threads) {
    if ((int64_t)n * width < kWorthThreads) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int row = 0; row < n; ++row) {
        const S* from = x[row];
        O* to = out + (int64_t)row * width;
        float factor = inverse_rms(from, width, eps);
        if (weight) each(width, [&](int i, int k) { put(to + i, get(from + i, k) * factor * get(weight + i, k), k); });
        else each(width, [&](int i, int k) { put(to + i, get(from + i, k) * factor, k); });
    }
}

// Two norms with a weight, and one that the router sees, whose weight is `factor` times its own.
template <class S>
void expert_norms(const float* x, int64_t stride, const float* dense, const float* experts, const S* router,
                  float factor, float eps, S* out, int n, int width, int n_threads) {
    if ((int64_t)n * width < kWorthThreads) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int row = 0; row < n; ++row) {
        const float* from = x + row * stride;
        S *first = out + (int64_t)row * width, *second = first + (int64_t)n * width, *third = second + (int64_t)n * width;
        float inverse = inverse_rms(from, width, eps);
        each(width, [&](int i, int k) {
            Vec unit = get(from + i, k) * inverse;
            put(first + i, unit * get(dense + i, k), k);
            put(second + i, unit * get(experts + i, k), k);
            put(third + i, unit * (get(router + i, k) * factor), k);
        });
    }
}

// What a layer's half adds to the residual stream, which is float32.
template <class S>
struct Joined {
    const float* x;
    const S* parts[2];  // the second may be null
    int64_t x_stride, strides[2];
    const float *weights[2], *post;  // `post` only with two parts
    const float* scale;              // by kind, or null
    const int32_t* kinds;            // of each row, or null where there is one kind
    float eps;
    float* out;
    int n, width;
};

// One row: norms, their sum and its norm, the residual, the scale. The sum waits in `out`.
template <class S>
INLINE void join(const Joined<S>& call, int row) {
    const int width = call.width;
    const float* x = call.x + row * call.x_stride;
    const S* first = call.parts[0] + row * call.strides[0];
    float* out = call.out + (int64_t)row * width;
    const float scale = call.scale ? call.scale[call.kinds ? call.kinds[row] : 0] : 1.0f;
    auto leave = [&](int i, int n, Vec y) { put(out + i, (get(x + i, n) + y) * scale, n); };
    float inverse = inverse_rms(first, width, call.eps);
    if (!call.parts[1])
        return each(width, [&](int i, int n) { leave(i, n, get(first + i, n) * inverse * get(call.weights[0] + i, n)); });
    const S* second = call.parts[1] + row * call.strides[1];
    float other = inverse_rms(second, width, call.eps);
    each(width, [&](int i, int n) {
        Vec a = get(first + i, n) * inverse * get(call.weights[0] + i, n);
        put(out + i, a + get(second + i, n) * other * get(call.weights[1] + i, n), n);
    });
    inverse = inverse_rms(out, width, call.eps);
    each(width, [&](int i, int n) { leave(i, n, get(out + i, n) * inverse * get(call.post + i, n)); });
}

template <class S>
void join_all(const Joined<S>& call, int n_threads) {
    if ((int64_t)call.n * call.width < kWorthThreads) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int row = 0; row < call.n; ++row) join(call, row);
}

// One head in place: x1 cos - x2 sin, x2 cos + x1 sin for the first 2 * half numbers; the norm for all.
template <class S>
INLINE void turn(S* x, const float* cos, const float* sin, const float* weight, float eps, int head_dim, int half) {
    float factor = weight ? inverse_rms(x, head_dim, eps) : 1.0f;
    each(half, [&](int i, int n) {
        Vec a = get(x + i, n), b = get(x + half + i, n), c = get(cos + i, n), s = get(sin + i, n);
        if (weight) {
            a = a * factor * get(weight + i, n);
            b = b * factor * get(weight + half + i, n);
        }
        put(x + i, a * c - b * s, n);
        put(x + half + i, b * c + a * s, n);
    });
    if (!weight) return;
    S* rest = x + 2 * half;
    weight += 2 * half;
    each(head_dim - 2 * half, [&](int i, int n) { put(rest + i, get(rest + i, n) * factor * get(weight + i, n), n); });
}

template <class S>
void rotate(S* qkv, int64_t stride, const float* rotation, int n_heads, int n_kv_heads, int head_dim, int half,
            const float* q_norm, const float* k_norm, float eps, int n_rows, int n_threads) {
    if ((int64_t)n_rows * (n_heads + n_kv_heads) * head_dim < kWorthThreads) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int row = 0; row < n_rows; ++row) {
        const float* cos = rotation + (int64_t)row * 2 * half;
        for (int head = 0; head < n_heads + n_kv_heads; ++head)
            turn(qkv + row * stride + (int64_t)head * head_dim, cos, cos + half, head < n_heads ? q_norm : k_norm, eps,
                 head_dim, half);
    }
}

template <class S, class F>
INLINE void gated_by(F activation, const S* gate_up, int64_t stride, S* out, int n_rows, int width, int n_threads) {
    if ((int64_t)n_rows * width < kWorthThreads / 4) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int row = 0; row < n_rows; ++row) {
        const S *gate = gate_up + row * stride, *up = gate + width;
        S* to = out + (int64_t)row * width;
        each(width, [&](int i, int n) { put(to + i, activation(get(gate + i, n)) * get(up + i, n), n); });
    }
}

template <class S>
void gated(const S* gate_up, int64_t stride, S* out, int n_rows, int width, bool is_gelu, int n_threads) {
    if (is_gelu) gated_by([](Vec x) { return gelu_tanh(x); }, gate_up, stride, out, n_rows, width, n_threads);
    else gated_by([](Vec x) { return silu(x); }, gate_up, stride, out, n_rows, width, n_threads);
}

template <class S>
void sigmoid_mul(const S* x, int64_t x_stride, const S* gate, int64_t gate_stride, S* out, int n_rows, int width,
                 int n_threads) {
    if ((int64_t)n_rows * width < kWorthThreads / 4) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int row = 0; row < n_rows; ++row) {
        const S *from = x + row * x_stride, *by = gate + row * gate_stride;
        S* to = out + (int64_t)row * width;
        each(width, [&](int i, int n) { put(to + i, get(from + i, n) * sigmoid(get(by + i, n)), n); });
    }
}

}  // namespace
}  // namespace ramet

using ramet::bf16;

extern "C" {

void ramet_rms_norm(const void* x, int64_t stride, int64_t head_stride, int32_t n_heads, const float* weight, float eps,
                    void* out, int32_t n, int32_t width, int32_t leaves_bf16, int32_t is_bf16, int32_t n_threads) {
    auto run = [&](auto heads) {
        if (leaves_bf16) ramet::rms_norm(heads, weight, eps, (bf16*)out, n, width, n_threads);
        else ramet::rms_norm(heads, weight, eps, (float*)out, n, width, n_threads);
    };
    if (is_bf16) run(ramet::Heads<bf16>{(const bf16*)x, stride, head_stride, n_heads});
    else run(ramet::Heads<float>{(const float*)x, stride, head_stride, n_heads});
}

void ramet_expert_norms(const float* x, int64_t stride, const float* dense, const float* experts, const void* router,
                        float factor, float eps, void* out, int32_t n, int32_t width, int32_t is_bf16,
                        int32_t n_threads) {
    auto run = [&](auto* to) {
        using S = std::remove_pointer_t<decltype(to)>;
        ramet::expert_norms(x, stride, dense, experts, (const S*)router, factor, eps, to, n, width, n_threads);
    };
    if (is_bf16) run((bf16*)out);
    else run((float*)out);
}

void ramet_join(const float* x, int64_t x_stride, const void* first, int64_t first_stride, const float* first_weight,
                const void* second, int64_t second_stride, const float* second_weight, const float* post,
                const float* scale, const int32_t* kinds, float eps, float* out, int32_t n, int32_t width,
                int32_t is_bf16, int32_t n_threads) {
    auto run = [&](auto* first, auto* second) {
        const ramet::Joined<std::remove_const_t<std::remove_pointer_t<decltype(first)>>> call{
            x, {first, second}, x_stride, {first_stride, second_stride}, {first_weight, second_weight}, post, scale,
            kinds, eps, out, n, width};
        ramet::join_all(call, n_threads);
    };
    if (is_bf16) run((const bf16*)first, (const bf16*)second);
    else run((const float*)first, (const float*)second);
}

void ramet_rotate(void* qkv, int64_t stride, const float* rotation, int32_t n_heads, int32_t n_kv_heads,
                  int32_t head_dim, int32_t half, const float* q_norm, const float* k_norm, float eps, int32_t n_rows,
                  int32_t is_bf16, int32_t n_threads) {
    auto run = [&](auto* x) {
        ramet::rotate(x, stride, rotation, n_heads, n_kv_heads, head_dim, half, q_norm, k_norm, eps, n_rows, n_threads);
    };
    if (is_bf16) run((bf16*)qkv);
    else run((float*)qkv);
}

void ramet_gated(const void* gate_up, int64_t stride, void* out, int32_t n_rows, int32_t width, int32_t is_gelu,
                 int32_t is_bf16, int32_t n_threads) {
    if (is_bf16) ramet::gated((const bf16*)gate_up, stride, (bf16*)out, n_rows, width, is_gelu, n_threads);
    else ramet::gated((const float*)gate_up, stride, (float*)out, n_rows, width, is_gelu, n_threads);
}

void ramet_sigmoid_mul(const void* x, int64_t stride, const void* gate, int64_t gate_stride, void* out, int32_t n_rows,
                       int32_t width, int32_t is_bf16, int32_t n_threads) {
    auto run = [&](auto* to) {
        using S = std::remove_pointer_t<decltype(to)>;
        ramet::sigmoid_mul((const S*)x, stride, (const S*)gate, gate_stride, to, n_rows, width, n_threads);
    };
    if (is_bf16) run((bf16*)out);
    else run((float*)out);
}
}

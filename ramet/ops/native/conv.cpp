// The causal convolution over a stream of trees; the contract is ops/conv/reference.py.
#include <vector>

#include "activation.h"

namespace ramet {
namespace {

constexpr int kTileRows = 64, kTileChannels = 512;  // some rows of a tile and its weights stay in the first cache
constexpr int kTogether = 4;                        // rows, which share what they load

struct Call {
    const void* x;
    const float* weight;  // [width][n_channels], the oldest row's first
    void *out, *window;
    const int32_t *starts, *lengths, *parents, *from, *to;
    int64_t x_stride, slot_stride;
    int32_t n_pieces, width, n_channels, is_bf16, n_threads;
};

struct Tile {
    int piece, first, count;
};

// Row i of a piece, or before it (i >= 1 - width): its parent's last rows, and so on up to what a slot holds, or zeros.
template <class S>
const S* input(const Call& call, const S* zeros, int piece, int i) {
    for (; i < 0 && call.from[piece] < 0; i += call.lengths[piece]) {
        piece = call.parents[piece];
        if (piece < 0) return zeros;
    }
    if (i >= 0) return static_cast<const S*>(call.x) + (call.starts[piece] + i) * call.x_stride;
    const S* window = static_cast<const S*>(call.window) + call.from[piece] * call.slot_stride;
    return window + (ptrdiff_t)(call.width - 1 + i) * call.n_channels;
}

// kCount rows, of which the last ends with x[kWidth + kCount - 2]: what they share is loaded once.
template <class S, int kWidth, int kCount>
INLINE void convolve(const Call& call, const S* const* x, S* out, int begin, int end) {
    for (int c = begin; c < end; c += kLanes) {
        Vec inputs[kWidth + kCount - 1], totals[kCount] = {};
#pragma GCC unroll 8
        for (int j = 0; j < kWidth + kCount - 1; ++j) inputs[j] = load(x[j] + c);
#pragma GCC unroll 8
        for (int j = 0; j < kWidth; ++j) {
            Vec weight = load(call.weight + (ptrdiff_t)j * call.n_channels + c);
#pragma GCC unroll 8
            for (int r = 0; r < kCount; ++r) totals[r] += inputs[j + r] * weight;
        }
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) store(out + (ptrdiff_t)r * call.n_channels + c, silu(totals[r]));
    }
}

template <class S, int kWidth>
void convolve(const Call& call, const S* zeros, const Tile& tile, int begin, int end) {
    const S* x[kTileRows + kWidth - 1];
    for (int j = 0; j < tile.count + kWidth - 1; ++j) x[j] = input(call, zeros, tile.piece, tile.first + j + 1 - kWidth);
    S* out = static_cast<S*>(call.out) + (ptrdiff_t)(call.starts[tile.piece] + tile.first) * call.n_channels;
    int i = 0;
    for (; i + kTogether <= tile.count; i += kTogether)
        convolve<S, kWidth, kTogether>(call, x + i, out + (ptrdiff_t)i * call.n_channels, begin, end);
    for (; i < tile.count; ++i) convolve<S, kWidth, 1>(call, x + i, out + (ptrdiff_t)i * call.n_channels, begin, end);
}

template <class S>
void keep_windows(const Call& call, const S* zeros) {
    for (int piece = 0; piece < call.n_pieces; ++piece) {
        if (call.to[piece] < 0) continue;
        S* to = static_cast<S*>(call.window) + call.to[piece] * call.slot_stride;
        for (int j = 1 - call.width; j < 0; ++j, to += call.n_channels)
            std::memcpy(to, input(call, zeros, piece, call.lengths[piece] + j), call.n_channels * sizeof(S));
    }
}

template <class S>
void run(const Call& call) {
    std::vector<Tile> tiles;
    for (int piece = 0; piece < call.n_pieces; ++piece)
        for (int i = 0; i < call.lengths[piece]; i += kTileRows)
            tiles.push_back({piece, i, std::min(kTileRows, call.lengths[piece] - i)});
    const std::vector<S> zeros(call.n_channels);
    const int n_blocks = divide_up(call.n_channels, kTileChannels), n = (int)tiles.size() * n_blocks;
#pragma omp parallel for num_threads(call.n_threads) schedule(dynamic, 1) if (n > 1)
    for (int i = 0; i < n; ++i) {
        const Tile& tile = tiles[i / n_blocks];
        int begin = i % n_blocks * kTileChannels, end = std::min(begin + kTileChannels, call.n_channels);
        if (call.width == 2) convolve<S, 2>(call, zeros.data(), tile, begin, end);
        else if (call.width == 3) convolve<S, 3>(call, zeros.data(), tile, begin, end);
        else convolve<S, 4>(call, zeros.data(), tile, begin, end);
    }
    keep_windows<S>(call, zeros.data());
}

}  // namespace
}  // namespace ramet

// `width` is 2, 3 or 4, n_channels a multiple of 16.
extern "C" void ramet_causal_conv(const ramet::Call* call) {
    if (call->is_bf16) ramet::run<ramet::bf16>(*call);
    else ramet::run<float>(*call);
}

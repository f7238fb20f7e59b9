// Attention over a stream of trees; the contract is ops/attention/reference.py.
//
// Keys and values are packed once a call. The rows of one segment that are queries, times the query heads that share a
// key head, are cut into tiles; a tile walks its ranges of keys (context, ancestors, own) block by block with a running
// maximum and sum (online softmax, Milakov & Gimelshein 2018; tiles as in FlashAttention, Dao et al. 2022). Blocks
// start at the start of a range, and a row's arithmetic is the same whatever shares its tile, so its bits depend on
// its own ranges alone.
#include <numeric>
#include <vector>

#include "memory.h"
#include "tile.h"

namespace ramet {
namespace {

constexpr int kBlock = 128;      // keys between two looks at the running maximum
constexpr int kTile = 96;        // rows times heads
constexpr int kFew = 48;         // a segment with at most so many is cut along its keys,
constexpr int kPartBlocks = 16;  // every so many blocks
constexpr int kChunk = 128;      // keys packed at a time
constexpr float kSlack = 6.0f;   // how far, as a power of 2, weights may exceed 1 before everything is scaled again
constexpr float kLowest = -1e30f;
constexpr int kMaxPath = 6;

struct Call {
    const void *q, *k, *v;
    void* out;
    const void *page_keys, *page_values;
    const int32_t *positions, *starts, *lengths, *parents, *blocks, *contexts, *origins;
    const int32_t *context_pages, *context_offsets, *context_lengths;
    const int32_t *rows, *bounds;
    int64_t q_stride, k_stride, v_stride;  // elements between rows; heads of a row are contiguous
    int32_t n_segments, n_contexts, n_heads, n_kv_heads, head_dim, page_size, window, is_bf16, n_threads;
    float scale;
};

// A run of keys: a segment's rows or a context's.
struct Range {
    int length, origin;
    ptrdiff_t at;     // where it lies in the packed keys
    int first, last;  // the keys that some query may see
};

struct Tile {
    int segment, first, count;  // flat (row, head) numbers within the segment's queries
    int head, part, n_parts;
    int64_t cost;
    ptrdiff_t partial;  // where its partial sums go, if n_parts > 1
};

struct Chunk {
    int range, begin, end;
};

struct Plan {
    std::vector<Range> ranges;
    std::vector<Tile> tiles;
    std::vector<Chunk> chunks;
    ptrdiff_t n_keys = 0, n_partials = 0;
};

int path_of(const Call& call, int segment, int* path) {
    int reversed[kMaxPath], n = 0;
    for (int s = segment; s >= 0; s = call.parents[s]) reversed[n++] = s;
    int size = 0;
    if (call.contexts[segment] >= 0) path[size++] = call.n_segments + call.contexts[segment];
    while (n > 0) path[size++] = reversed[--n];
    return size;
}

// The keys [first, last) of a range that the query at `position` sees.
INLINE void visible(const Call& call, const Range& range, int block, bool own, int position, int* first, int* last) {
    *first = call.window > 0 ? std::max(0, position - call.window + 1 - range.origin) : 0;
    *last = own ? std::min(range.length, (position / block + 1) * block - range.origin) : range.length;
}

void add_tiles(const Call& call, int segment, Plan& plan) {
    int group = call.n_heads / call.n_kv_heads, begin = call.bounds[segment];
    int count = (call.bounds[segment + 1] - begin) * group;
    int path[kMaxPath], n = path_of(call, segment, path), n_blocks = 0;
    for (int i = 0; i < n; ++i) n_blocks += divide_up(plan.ranges[path[i]].length, kBlock);
    int n_parts = count <= kFew ? divide_up(n_blocks, kPartBlocks) : 1;
    for (int at = 0; at < count; at += kTile) {
        Tile tile{segment, at, std::min(kTile, count - at), 0, 0, n_parts, 0, 0};
        int from = call.positions[call.rows[begin + at / group]];
        int to = call.positions[call.rows[begin + (at + tile.count - 1) / group]];
        for (int i = 0; i < n; ++i) {
            Range& range = plan.ranges[path[i]];
            int first, last, unused;
            visible(call, range, call.blocks[segment], i == n - 1, from, &first, &unused);
            visible(call, range, call.blocks[segment], i == n - 1, to, &unused, &last);
            if (first >= last) continue;
            range.first = std::min(range.first, first);
            range.last = std::max(range.last, last);
            tile.cost += (int64_t)(last - first) * tile.count;
        }
        plan.tiles.push_back(tile);
    }
}

// Largest first; among equals, those of one key head together.
void order_tiles(const Call& call, Plan& plan, int head_dim) {
    std::vector<Tile> one;
    one.swap(plan.tiles);
    for (int head = 0; head < call.n_kv_heads; ++head)
        for (Tile tile : one) {
            tile.head = head;
            tile.partial = plan.n_partials;
            for (tile.part = 0; tile.part < tile.n_parts; ++tile.part) plan.tiles.push_back(tile);
            if (tile.n_parts > 1) plan.n_partials += (ptrdiff_t)tile.n_parts * tile.count * (head_dim + 2);
        }
    std::stable_sort(plan.tiles.begin(), plan.tiles.end(), [](const Tile& a, const Tile& b) { return a.cost > b.cost; });
}

Plan make_plan(const Call& call) {
    Plan plan;
    for (int s = 0; s < call.n_segments; ++s)
        plan.ranges.push_back({call.lengths[s], call.origins[s], 0, call.lengths[s], 0});
    for (int c = 0; c < call.n_contexts; ++c)
        plan.ranges.push_back({call.context_lengths[c], 0, 0, call.context_lengths[c], 0});
    for (int s = 0; s < call.n_segments; ++s)
        if (call.bounds[s + 1] > call.bounds[s]) add_tiles(call, s, plan);
    order_tiles(call, plan, call.head_dim);
    for (size_t i = 0; i < plan.ranges.size(); ++i) {
        Range& range = plan.ranges[i];
        range.at = plan.n_keys;
        if (range.first >= range.last) continue;
        plan.n_keys += round_up(range.length, kBlock);
        for (int j = range.first / kBlock * kBlock; j < range.last; j += kChunk)
            plan.chunks.push_back({(int)i, j, std::min(j + kChunk, range.length)});
    }
    return plan;
}

template <class S>
const S* row_of(const Call& call, int range, int j, const void* stream, int64_t stride, const void* pages) {
    if (range < call.n_segments) return static_cast<const S*>(stream) + (call.starts[range] + j) * stride;
    const int32_t* own = call.context_pages + call.context_offsets[range - call.n_segments];
    int64_t slot = (int64_t)own[j / call.page_size] * call.page_size + j % call.page_size;
    return static_cast<const S*>(pages) + slot * call.n_kv_heads * call.head_dim;
}

template <class E, class S>
void pack_chunk(const Call& call, const Plan& plan, const Chunk& chunk, typename E::Type* keys,
                typename E::Type* values) {
    const int D = call.head_dim;
    for (int j = chunk.begin; j < chunk.end; j += kLanes) {
        const S *k[kLanes], *v[kLanes], *part[kLanes];
        int n = std::min(kLanes, chunk.end - j);
        for (int i = 0; i < n; ++i) {
            k[i] = row_of<S>(call, chunk.range, j + i, call.k, call.k_stride, call.page_keys);
            v[i] = row_of<S>(call, chunk.range, j + i, call.v, call.v_stride, call.page_values);
        }
        for (int head = 0; head < call.n_kv_heads; ++head) {
            ptrdiff_t at = (head * plan.n_keys + plan.ranges[chunk.range].at + j) * D;
            for (int i = 0; i < n; ++i) part[i] = k[i] + head * D;
            pack_columns<E, S>(part, n, D, keys + at);
            for (int i = 0; i < n; ++i) part[i] = v[i] + head * D;
            for (int i = 0; i < kLanes; i += E::kPair) {
                if (i < n) pack_rows<E, S>(part + i, n - i, D, values + at + i * D);
                else std::memset(values + at + i * D, 0, E::kPair * D * sizeof(typename E::Type));
            }
        }
    }
}

// A thread's tile: kTile rows, rounded up to whole strips of kRows.
template <class E>
struct State {
    static constexpr int kRoom = (kTile + kRows - 1) / kRows * kRows;
    typename E::Type *q, *weights;  // [kRoom][D], [kRows][kBlock]
    float *scores, *out;            // [kRows][kBlock], [kRoom][D]
    float* sums;                    // [kRoom][kLanes]
    float top[kRoom];               // the running maximum times the scale, in powers of 2
    int position[kRoom], first[kRoom], last[kRoom];

    State(Memory& memory, int head_dim) {
        constexpr size_t kSize = sizeof(typename E::Type);
        memory.reset(kRoom * head_dim * (kSize + 4) + kRows * kBlock * (kSize + 4) + kRoom * kLanes * 4, 5);
        q = memory.take<typename E::Type>(kRoom * head_dim);
        weights = memory.take<typename E::Type>(kRows * kBlock);
        scores = memory.take<float>(kRows * kBlock);
        out = memory.take<float>(kRoom * head_dim);
        sums = memory.take<float>(kRoom * kLanes);
        std::memset(weights, 0, kRows * kBlock * kSize);
    }
};

template <class E, class S>
void begin_tile(const Call& call, const Tile& tile, State<E>& state) {
    const int D = call.head_dim, group = call.n_heads / call.n_kv_heads, begin = call.bounds[tile.segment];
    for (int i = 0; i < tile.count; ++i) {
        int row = begin + (tile.first + i) / group, head = tile.head * group + (tile.first + i) % group;
        const S* from = static_cast<const S*>(call.q) + row * call.q_stride + (ptrdiff_t)head * D;
        for (int d = 0; d < D; ++d) state.q[i * D + d] = E::from(from[d]);
        state.position[i] = call.positions[call.rows[row]];
        state.top[i] = kLowest;
    }
    int room = round_up(tile.count, kRows);
    std::memset(state.q + tile.count * D, 0, (room - tile.count) * D * sizeof(typename E::Type));
    std::memset(state.out, 0, (size_t)room * D * 4);
    std::memset(state.sums, 0, (size_t)room * kLanes * 4);
}

// Scores of one row to weights, of which those outside [first, last) are 0; `out` and `sums` are scaled when a score
// rises far above the running maximum.
template <class E>
INLINE void weigh(float* scores, typename E::Type* weights, int n_vectors, int first, int last, float scale, float* top,
                  float* sums, float* out, int head_dim) {
    const Vec hidden = splat(-__builtin_inff());
    if (first > 0 || last < n_vectors * kLanes)
        for (int j = 0; j < n_vectors; ++j) {
            IVec at = lane_numbers() + j * kLanes;
            store(scores + j * kLanes, (at >= first) & (at < last) ? load(scores + j * kLanes) : hidden);
        }
    Vec best = load(scores);
    for (int j = 1; j < n_vectors; ++j) best = max(load(scores + j * kLanes), best);
    Vec total = load(sums);
    if (any_above(best * scale, *top + kSlack)) {
        float risen = largest(best) * scale;
        float factor = exp2(splat(*top - risen))[0];
        for (int d = 0; d < head_dim; d += kLanes) store(out + d, load(out + d) * factor);
        total *= factor;
        *top = risen;
    }
    for (int j = 0; j < n_vectors; ++j) {
        Vec weight = exp2(load(scores + j * kLanes) * scale - *top);
        total += weight;
        store(weights + j * kLanes, weight);
    }
    store(sums, total);
}

template <class E>
void add_block(const Call& call, State<E>& state, int row, int n_rows, int at, int n_keys, const typename E::Type* keys,
               const typename E::Type* values) {
    const int D = call.head_dim, n_vectors = divide_up(n_keys, kLanes);
    const float scale = call.scale * 1.44269504f;  // weights are powers of 2
    product<E>(state.q + row * D, D, n_rows, keys + (ptrdiff_t)at * D, (ptrdiff_t)kLanes * D, kLanes * E::kPair,
               D / E::kPair, state.scores, kBlock, false, n_vectors);
    for (int r = 0; r < n_rows; ++r) {
        int i = row + r;
        weigh<E>(state.scores + r * kBlock, state.weights + r * kBlock, n_vectors, state.first[i] - at,
                 state.last[i] - at, scale, state.top + i, state.sums + i * kLanes, state.out + i * D, D);
    }
    product<E>(state.weights, kBlock, n_rows, values + (ptrdiff_t)at * D, kLanes * E::kPair, (ptrdiff_t)D * E::kPair,
               n_vectors * kLanes / E::kPair, state.out + row * D, D, true, D / kLanes);
}

// Blocks [from, to) of one range, counted from its start.
template <class E>
void add_range(const Call& call, const Tile& tile, State<E>& state, const Range& range, int from, int to,
               const typename E::Type* keys, const typename E::Type* values) {
    for (int j = from * kBlock; j < std::min(to * kBlock, range.length); j += kBlock)
        for (int row = 0; row < tile.count; row += kRows) {
            int n_rows = std::min(kRows, tile.count - row);
            int first = *std::min_element(state.first + row, state.first + row + n_rows);
            int last = *std::max_element(state.last + row, state.last + row + n_rows);
            if (first >= last || last <= j || first >= j + kBlock) continue;
            add_block<E>(call, state, row, n_rows, j, std::min(last - j, kBlock), keys, values);
        }
}

template <class E, class S>
void attend(const Call& call, const Plan& plan, const Tile& tile, State<E>& state, const typename E::Type* keys,
            const typename E::Type* values) {
    begin_tile<E, S>(call, tile, state);
    const int D = call.head_dim;
    int path[kMaxPath], n = path_of(call, tile.segment, path), before = 0;
    for (int p = 0; p < n; ++p) {
        const Range& range = plan.ranges[path[p]];
        int n_blocks = divide_up(range.length, kBlock), from = 0, to = n_blocks;
        if (tile.n_parts > 1) {
            from = std::clamp(tile.part * kPartBlocks - before, 0, n_blocks);
            to = std::clamp((tile.part + 1) * kPartBlocks - before, 0, n_blocks);
        }
        before += n_blocks;
        for (int i = 0; i < tile.count; ++i)
            visible(call, range, call.blocks[tile.segment], p == n - 1, state.position[i], state.first + i, state.last + i);
        ptrdiff_t at = (tile.head * plan.n_keys + range.at) * D;
        add_range<E>(call, tile, state, range, from, to, keys + at, values + at);
    }
}

template <class S>
INLINE void write_row(const Call& call, const Tile& tile, int i, const float* sums, float total) {
    const int D = call.head_dim, group = call.n_heads / call.n_kv_heads;
    int row = call.bounds[tile.segment] + (tile.first + i) / group;
    int head = tile.head * group + (tile.first + i) % group;
    S* to = static_cast<S*>(call.out) + ((ptrdiff_t)row * call.n_heads + head) * D;
    float factor = 1.0f / total;
    for (int d = 0; d < D; d += kLanes) store(to + d, load(sums + d) * factor);
}

// A row's partial sums: D weighted values, the sum of weights, the maximum.
template <class E>
void keep_partial(const Tile& tile, const State<E>& state, int D, float* partials) {
    float* to = partials + tile.partial + (ptrdiff_t)tile.part * tile.count * (D + 2);
    for (int i = 0; i < tile.count; ++i, to += D + 2) {
        std::memcpy(to, state.out + i * D, D * 4);
        to[D] = sum(load(state.sums + i * kLanes));
        to[D + 1] = state.top[i];
    }
}

template <class S>
void join_partials(const Call& call, const Tile& tile, const float* partials) {
    const int D = call.head_dim;
    const ptrdiff_t part = (ptrdiff_t)tile.count * (D + 2);
    for (int i = 0; i < tile.count; ++i) {
        const float* from = partials + tile.partial + (ptrdiff_t)i * (D + 2);
        float top = from[D + 1], total = 0.0f, sums[256] = {};
        for (int p = 1; p < tile.n_parts; ++p) top = std::max(top, from[p * part + D + 1]);
        for (int p = 0; p < tile.n_parts; ++p) {
            const float* own = from + p * part;
            float factor = exp2(splat(own[D + 1] - top))[0];
            for (int d = 0; d < D; ++d) sums[d] += own[d] * factor;
            total += own[D] * factor;
        }
        write_row<S>(call, tile, i, sums, total);
    }
}

template <class E, class S>
void run(const Call& call) {
    const Plan plan = make_plan(call);
    const int D = call.head_dim, n_tiles = (int)plan.tiles.size(), n_chunks = (int)plan.chunks.size();
    static thread_local Memory shared;
    const size_t n_packed = (size_t)plan.n_keys * call.n_kv_heads * D;
    shared.reset(2 * n_packed * sizeof(typename E::Type) + plan.n_partials * 4, 3);
    auto* keys = shared.take<typename E::Type>(n_packed);
    auto* values = shared.take<typename E::Type>(n_packed);
    auto* partials = shared.take<float>(plan.n_partials);
#pragma omp parallel num_threads(call.n_threads)
    {
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < n_chunks; ++i) pack_chunk<E, S>(call, plan, plan.chunks[i], keys, values);
        static thread_local Memory own;
        State<E> state(own, D);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < n_tiles; ++i) {
            const Tile& tile = plan.tiles[i];
            attend<E, S>(call, plan, tile, state, keys, values);
            if (tile.n_parts > 1) {
                keep_partial<E>(tile, state, D, partials);
                continue;
            }
            for (int r = 0; r < tile.count; ++r)
                write_row<S>(call, tile, r, state.out + r * D, sum(load(state.sums + r * kLanes)));
        }
    }
    if (plan.n_partials > 0)
        for (const Tile& tile : plan.tiles)
            if (tile.n_parts > 1 && tile.part == 0) join_partials<S>(call, tile, partials);
}

}  // namespace
}  // namespace ramet

extern "C" void ramet_attention(const ramet::Call* call) {
    if (call->is_bf16) ramet::run<ramet::Bf16, ramet::bf16>(*call);
    else ramet::run<ramet::F32, float>(*call);
}

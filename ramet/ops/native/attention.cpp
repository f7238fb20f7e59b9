// Attention over a stream of trees; the contract is ops/attention/reference.py.
//
// Keys and values are packed once a call. The rows of one segment that are queries, times the query heads that share a
// key head, are cut into tiles; a tile walks its runs of keys (of the context, of the ancestors, its own) block by block
// with a running maximum and sum (online softmax, Milakov & Gimelshein 2018; tiles as in FlashAttention, Dao et al.
// 2022). A run begins where a segment of the request begins, wherever its rows lie now: a segment computed in pieces is
// one run, its earlier rows from pages. Blocks are counted off from the start of a run, parts of some blocks from the
// start of the path, and parts are joined in their order. A row's arithmetic is the same whatever shares its tile, so
// its bits depend on its own path alone: not on other rows or units, nor on what was computed earlier.
#include <atomic>
#include <vector>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "memory.h"
#include "tile.h"

namespace ramet {
namespace {

constexpr int kBlock = 128;      // keys between two looks at the running maximum
constexpr int kTile = 192;       // rows times heads of a tile, at most;
constexpr int kTileSize = 192 * 256;  // times a head's size: what a thread's second cache has room for beside keys
constexpr int kTasks = 8;        // tiles that each thread gets where there are rows enough
constexpr int kPartBlocks = 16;  // blocks summed before they are joined to those before
constexpr int kFew = 48;         // rows times heads of a segment; with at most so many each part is a task
constexpr int kChunk = 64;       // keys packed at a time, a part of kBlock
constexpr int kPad = 2 * kLanes;  // zeros follow a run's keys up to a multiple of this, a part of kChunk
constexpr float kSlack = 6.0f;   // how far, as a power of 2, weights may exceed 1 before everything is scaled again
constexpr float kLowest = -1e30f;

struct Call {
    const void *q, *k, *v;
    void* out;
    const void *page_keys, *page_values;
    const int32_t *positions, *starts, *lengths, *parents, *blocks, *contexts, *origins, *anchors;
    const int32_t *context_pages, *context_offsets, *context_lengths, *context_forks, *context_fork_offsets;
    const int32_t *rows, *bounds;
    int64_t q_stride, k_stride, v_stride;  // elements between rows; heads of a row are contiguous
    int32_t n_segments, n_contexts, n_heads, n_kv_heads, head_dim, page_size, window, is_bf16, n_threads;
    float scale;
};

// A run of keys: rows of a context from one fork to the next, a segment's rows, or the one continued by the other.
struct Run {
    int length, anchor;         // rows; position of the first
    int context, held;          // the first `held` rows lie in this context's pages,
    int segment;                // the others are this segment's
    ptrdiff_t at = 0;           // where it lies in the packed keys
    int first = 0, last = 0;    // the keys that some query may see
};

struct Tile {
    int segment, first, count;     // flat (row, head) numbers within the segment's queries
    int part, last_part;           // the parts of the path that it walks
    int head = 0;
    int64_t cost = 0;
    ptrdiff_t partial = -1;        // where its sums go, if other tasks have the same rows' other parts
};

struct Chunk {
    int run, begin, end;
};

// Partial sums of `count` rows by several tasks: `n_parts` of them, one behind another.
struct Join {
    Tile tile;
    int n_parts;
};

struct Plan {
    std::vector<Run> runs;  // the segments', then the contexts'
    std::vector<Tile> tiles;    // each head's one behind another, equally many
    std::vector<Join> joins;
    std::vector<Chunk> chunks;  // of each head
    ptrdiff_t n_keys = 0, n_partials = 0;
    int tile = kTile;
};

// Rows times heads that are multiplied at once, and in what steps their keys are.
template <class E>
INLINE int strip() {
#if defined(RAMET_AMX)
    if (E::kPair == 2 && amx::available) return 2 * amx::kTileRows;
#endif
    return kRows;
}
template <class E>
INLINE int key_step() {
    return strip<E>() == kRows ? kLanes : kPad;
}

// A row's sums: D weighted values, the sum of weights, the maximum.
INLINE int sums_size(int head_dim) { return head_dim + kLanes; }

// The runs that a segment's rows see, its own the last.
void find_path(const Call& call, int segment, std::vector<int>& path) {
    path.clear();
    int root = segment, context = call.contexts[segment];
    for (int s = segment; s >= 0; s = call.parents[s]) path.push_back(root = s);
    if (context >= 0) {
        int begin = call.context_fork_offsets[context], end = call.context_fork_offsets[context + 1];
        if (call.anchors[root] < call.origins[root]) --end;  // the root's run holds the last
        while (end > begin) path.push_back(call.n_segments + --end);
    }
    std::reverse(path.begin(), path.end());
}

// The keys [first, last) of a run that the query at `position` of a segment sees.
INLINE void visible(const Call& call, const Run& run, int segment, bool own, int position, int* first, int* last) {
    int block = call.blocks[segment], begin = std::max(position / block * block, call.anchors[segment]);
    *first = call.window > 0 ? std::max(0, begin - call.window + 1 - run.anchor) : 0;
    *last = own ? std::min(run.length, (position / block + 1) * block - run.anchor) : run.length;
}

// The keys of a run that some row of a tile sees; positions ascend.
void visible_of_tile(const Call& call, const Run& run, const Tile& tile, bool own, int* first, int* last) {
    int group = call.n_heads / call.n_kv_heads, unused;
    const int* rows = call.rows + call.bounds[tile.segment];
    visible(call, run, tile.segment, own, call.positions[rows[tile.first / group]], first, &unused);
    visible(call, run, tile.segment, own, call.positions[rows[(tile.first + tile.count - 1) / group]], &unused, last);
}

// What a tile sees of its path: which parts, how much; widens what is packed.
void measure(const Call& call, const std::vector<int>& path, Plan& plan, Tile& tile) {
    int before = 0;
    for (size_t i = 0; i < path.size(); ++i) {
        Run& run = plan.runs[path[i]];
        int first, last;
        visible_of_tile(call, run, tile, i + 1 == path.size(), &first, &last);
        if (first < last) {
            if (tile.cost == 0) tile.part = (before + first / kBlock) / kPartBlocks;
            tile.last_part = (before + (last - 1) / kBlock) / kPartBlocks + 1;
            tile.cost += (int64_t)(last - first) * tile.count;
            bool seen = run.first < run.last;
            run.first = seen ? std::min(run.first, first) : first;
            run.last = seen ? std::max(run.last, last) : last;
        }
        before += divide_up(run.length, kBlock);
    }
}

void add_tiles(const Call& call, int segment, const std::vector<int>& path, Plan& plan) {
    int group = call.n_heads / call.n_kv_heads;
    int count = (call.bounds[segment + 1] - call.bounds[segment]) * group;
    for (int at = 0; at < count; at += plan.tile) {
        Tile tile{segment, at, std::min(plan.tile, count - at), 0, 1};
        measure(call, path, plan, tile);
        plan.tiles.push_back(tile);
    }
}

// How many rows times heads a tile has: what the cache holds, but not so many that threads are left without a task.
int tile_size(const Call& call, int strip) {
    int64_t fair = (int64_t)call.bounds[call.n_segments] * call.n_heads / ((int64_t)call.n_threads * kTasks);
    int most = std::min(kTile, kTileSize / call.head_dim);
    return std::max(1, (int)std::min<int64_t>(most, fair) / strip) * strip;
}

// The tile of one key head as tasks: one, or one a part.
void add_tasks(const Call& call, Tile tile, bool few, Plan& plan) {
    int n_parts = tile.last_part - tile.part;
    if (!few || n_parts == 1) return plan.tiles.push_back(tile);
    tile.cost /= n_parts;
    tile.partial = plan.n_partials;
    plan.joins.push_back({tile, n_parts});
    for (int p = 0; p < n_parts; ++p) {
        tile.last_part = tile.part + 1;
        tile.partial = plan.n_partials;
        plan.tiles.push_back(tile);
        plan.n_partials += (ptrdiff_t)tile.count * sums_size(call.head_dim);
        ++tile.part;
    }
}

// Head by head, of each the largest first.
void order_tiles(const Call& call, Plan& plan) {
    std::vector<Tile> one;
    one.swap(plan.tiles);
    int group = call.n_heads / call.n_kv_heads;
    for (int head = 0; head < call.n_kv_heads; ++head)
        for (Tile tile : one) {
            int n_rows = call.bounds[tile.segment + 1] - call.bounds[tile.segment];
            tile.head = head;
            add_tasks(call, tile, n_rows * group <= kFew, plan);
        }
    std::stable_sort(plan.tiles.begin(), plan.tiles.end(), [](const Tile& a, const Tile& b) {
        return a.head != b.head ? a.head < b.head : a.cost > b.cost;
    });
}

void add_runs(const Call& call, Plan& plan) {
    for (int s = 0; s < call.n_segments; ++s) {
        int held = call.origins[s] - call.anchors[s];
        plan.runs.push_back({held + call.lengths[s], call.anchors[s], call.contexts[s], held, s});
    }
    for (int c = 0; c < call.n_contexts; ++c)
        for (int f = call.context_fork_offsets[c]; f < call.context_fork_offsets[c + 1]; ++f) {
            int begin = call.context_forks[f];
            int end = f + 1 < call.context_fork_offsets[c + 1] ? call.context_forks[f + 1] : call.context_lengths[c];
            plan.runs.push_back({end - begin, begin, c, end - begin, -1});
        }
}

Plan make_plan(const Call& call, int strip) {
    Plan plan;
    plan.tile = tile_size(call, strip);
    add_runs(call, plan);
    std::vector<int> path;
    for (int s = 0; s < call.n_segments; ++s) {
        if (call.bounds[s + 1] == call.bounds[s]) continue;
        find_path(call, s, path);
        add_tiles(call, s, path, plan);
    }
    order_tiles(call, plan);
    for (size_t i = 0; i < plan.runs.size(); ++i) {
        Run& run = plan.runs[i];
        run.at = plan.n_keys;
        if (run.first >= run.last) continue;
        plan.n_keys += round_up(run.length, kPad);
        for (int j = run.first / kBlock * kBlock; j < run.last; j += kChunk)
            plan.chunks.push_back({(int)i, j, std::min(j + kChunk, round_up(run.length, kPad))});
    }
    return plan;
}

template <class S>
const S* row_of(const Call& call, const Run& run, int j, const void* stream, int64_t stride, const void* pages) {
    if (j >= run.held) return static_cast<const S*>(stream) + (call.starts[run.segment] + j - run.held) * stride;
    const int32_t* own = call.context_pages + call.context_offsets[run.context];
    int row = run.anchor + j;
    int64_t slot = (int64_t)own[row / call.page_size] * call.page_size + row % call.page_size;
    return static_cast<const S*>(pages) + slot * call.n_kv_heads * call.head_dim;
}

// Elements from one kLanes columns of a block's values to the next: they lie as [D / kLanes][keys][kLanes] in pairs of
// keys, so that what a product sums lies side by side.
INLINE ptrdiff_t value_group(const Run& run, int block) {
    return (ptrdiff_t)std::min(kBlock, round_up(run.length, kPad) - block) * kLanes;
}

// n <= kLanes keys' values, zeros behind them; line by line, because rows tend to lie in one set of the first cache.
template <class E, class S>
void pack_values(const S* const* rows, int n, int D, typename E::Type* out, ptrdiff_t group) {
    constexpr int kLine = 64 / sizeof(S);
    for (int line = 0; line < D; line += kLine)
        for (int i = 0; i < kLanes; i += E::kPair)
            for (int c = line; c < std::min(line + kLine, D); c += kLanes) {
                auto* to = out + c / kLanes * group + i * kLanes;
                const S* pair[2] = {i < n ? rows[i] + c : nullptr, i + 1 < n ? rows[i + 1] + c : nullptr};
                if (i < n) pack_rows<E, S>(pair, n - i, kLanes, to);
                else std::memset(to, 0, kLanes * E::kPair * sizeof *to);
            }
}

template <class E, class S>
void pack_chunk(const Call& call, const Plan& plan, const Chunk& chunk, int head, typename E::Type* keys,
                typename E::Type* values) {
    const int D = call.head_dim, block = chunk.begin / kBlock * kBlock;
    const Run& run = plan.runs[chunk.run];
    const ptrdiff_t at = (head * plan.n_keys + run.at) * D;
    for (int j = chunk.begin; j < chunk.end; j += kLanes) {
        const S *k[kLanes], *v[kLanes];
        const int n = std::clamp(run.length - j, 0, kLanes);
        for (int i = 0; i < n; ++i) {
            k[i] = row_of<S>(call, run, j + i, call.k, call.k_stride, call.page_keys) + head * D;
            v[i] = row_of<S>(call, run, j + i, call.v, call.v_stride, call.page_values) + head * D;
        }
        pack_columns<E, S>(k, n, D, keys + at + (ptrdiff_t)j * D);
        pack_values<E, S>(v, n, D, values + at + (ptrdiff_t)block * D + (j - block) * kLanes, value_group(run, block));
    }
}

// A thread's tile, of at most `room` rows, a multiple of the strip and of kRows.
template <class E>
struct State {
    typename E::Type *q, *weights;  // [room][D], [strip][kBlock]
    float *scores, *out;            // [strip][kBlock], [room][D]
    float *sums, *joined;           // [room][kLanes], [room][sums_size]
    float* top;                     // [room]: the running maximum times the scale, in powers of 2
    int *position, *first, *last;   // [room]

    State(Memory& memory, int room, int head_dim) {
        constexpr size_t kSize = sizeof(typename E::Type);
        const int n_weights = round_up(strip<E>(), kRows) * kBlock;
        memory.reset(room * head_dim * (kSize + 4) + n_weights * (kSize + 4) + room * kLanes * 4 +
                         room * sums_size(head_dim) * 4 + room * 16, 10);
        q = memory.take<typename E::Type>(room * head_dim);
        weights = memory.take<typename E::Type>(n_weights);
        scores = memory.take<float>(n_weights);
        out = memory.take<float>(room * head_dim);
        sums = memory.take<float>(room * kLanes);
        joined = memory.take<float>(room * sums_size(head_dim));
        top = memory.take<float>(room);
        position = memory.take<int>(room), first = memory.take<int>(room), last = memory.take<int>(room);
        std::memset(weights, 0, n_weights * kSize);
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
    }
    int room = round_up(tile.count, kRows);
    std::memset(state.q + tile.count * D, 0, (room - tile.count) * D * sizeof(typename E::Type));
}

template <class E>
void begin_part(const Tile& tile, int head_dim, State<E>& state) {
    int room = round_up(tile.count, kRows);
    std::fill(state.top, state.top + tile.count, kLowest);
    std::memset(state.out, 0, (size_t)room * head_dim * 4);
    std::memset(state.sums, 0, (size_t)room * kLanes * 4);
}

// Scores of one row to weights, of which those outside [first, last) are 0; `out` and `sums` are scaled when a score
// rises far above the running maximum.
template <class E>
INLINE void weigh(float* scores, typename E::Type* weights, int n_vectors, int first, int last, float scale, float* top,
                  float* sums, float* out, int head_dim) {
    const Vec hidden = splat(-__builtin_inff());
    for (int j = 0; j < n_vectors; ++j) {
        if (first <= j * kLanes && last >= (j + 1) * kLanes) continue;
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
    const Vec factor = splat(scale), below = splat(-*top);
    for (int j = 0; j < n_vectors; ++j) {
        Vec weight = exp2(fma(load(scores + j * kLanes), factor, below));
        total += weight;
        store(weights + j * kLanes, weight);
    }
    store(sums, total);
}

// Keys [at, at + n_keys) of a run, which are of one block.
template <class E>
void add_block(const Call& call, const Run& run, State<E>& state, int row, int n_rows, int at, int n_keys,
               const typename E::Type* keys, const typename E::Type* values) {
    const int D = call.head_dim, n_vectors = n_keys / kLanes, block = at / kBlock * kBlock;
    const float scale = call.scale * 1.44269504f;  // weights are powers of 2
    product<E>(state.q + row * D, D, n_rows, keys + (ptrdiff_t)at * D, (ptrdiff_t)kLanes * D, kLanes * E::kPair,
               D / E::kPair, state.scores, kBlock, false, n_vectors);
    for (int r = 0; r < n_rows; ++r) {
        int i = row + r;
        weigh<E>(state.scores + r * kBlock, state.weights + r * kBlock, n_vectors, state.first[i] - at,
                 state.last[i] - at, scale, state.top + i, state.sums + i * kLanes, state.out + i * D, D);
    }
    product<E>(state.weights, kBlock, n_rows, values + (ptrdiff_t)block * D + (at - block) * kLanes,
               value_group(run, block), kLanes * E::kPair, n_keys / E::kPair, state.out + row * D, D, true, D / kLanes);
}

// Blocks [from, to) of one run, counted from its start.
template <class E>
void add_run(const Call& call, const Tile& tile, State<E>& state, const Run& run, int from, int to,
             const typename E::Type* keys, const typename E::Type* values) {
    const int step = strip<E>();
    for (int j = from * kBlock; j < std::min(to * kBlock, run.length); j += kBlock)
        for (int row = 0; row < tile.count; row += step) {
            int n_rows = std::min(step, tile.count - row);
            int first = *std::min_element(state.first + row, state.first + row + n_rows);
            int last = *std::max_element(state.last + row, state.last + row + n_rows);
            if (first >= last || last <= j || first >= j + kBlock) continue;
            int at = std::max(j, first / key_step<E>() * key_step<E>());
            int end = std::min(j + kBlock, round_up(last, key_step<E>()));
            add_block<E>(call, run, state, row, n_rows, at, end - at, keys, values);
        }
}

// Part `part` of the path.
template <class E>
void add_part(const Call& call, const Plan& plan, const Tile& tile, const std::vector<int>& path, int part,
              State<E>& state, const typename E::Type* keys, const typename E::Type* values) {
    begin_part(tile, call.head_dim, state);
    int before = 0;  // blocks of the runs above
    for (size_t p = 0; p < path.size() && before < (part + 1) * kPartBlocks; ++p) {
        const Run& run = plan.runs[path[p]];
        int n_blocks = divide_up(run.length, kBlock), from = std::max(part * kPartBlocks - before, 0);
        int to = std::min((part + 1) * kPartBlocks - before, n_blocks);
        before += n_blocks;
        if (from >= to) continue;
        for (int i = 0; i < tile.count; ++i)
            visible(call, run, tile.segment, p + 1 == path.size(), state.position[i], state.first + i, state.last + i);
        ptrdiff_t at = (tile.head * plan.n_keys + run.at) * call.head_dim;
        add_run<E>(call, tile, state, run, from, to, keys + at, values + at);
    }
}

// The sums of one part joined to those of the parts before it, or copied where there are none. Not inlined, so that it
// is the same code, down to how products and sums are fused, for parts that one task walks and for those of several.
__attribute__((noinline)) void join(float* sums, const float* out, float total, float top, bool is_first, int D) {
    float highest = is_first ? top : std::max(sums[D + 1], top);
    float factor = is_first ? 0.0f : exp2(splat(sums[D + 1] - highest))[0], own = exp2(splat(top - highest))[0];
    if (is_first) std::memcpy(sums, out, D * 4);
    else
        for (int d = 0; d < D; d += kLanes) store(sums + d, load(sums + d) * factor + load(out + d) * own);
    sums[D] = is_first ? total : sums[D] * factor + total * own;
    sums[D + 1] = highest;
}

template <class S>
void write_rows(const Call& call, const Tile& tile, const float* sums) {
    const int D = call.head_dim, group = call.n_heads / call.n_kv_heads;
    for (int i = 0; i < tile.count; ++i, sums += sums_size(D)) {
        int row = call.bounds[tile.segment] + (tile.first + i) / group;
        int head = tile.head * group + (tile.first + i) % group;
        S* to = static_cast<S*>(call.out) + ((ptrdiff_t)row * call.n_heads + head) * D;
        float factor = 1.0f / sums[D];
        for (int d = 0; d < D; d += kLanes) store(to + d, load(sums + d) * factor);
    }
}

template <class E, class S>
void attend(const Call& call, const Plan& plan, const Tile& tile, State<E>& state, std::vector<int>& path,
            const typename E::Type* keys, const typename E::Type* values, float* partials) {
    const int D = call.head_dim;
    float* sums = tile.partial < 0 ? state.joined : partials + tile.partial;
    find_path(call, tile.segment, path);
    begin_tile<E, S>(call, tile, state);
    for (int part = tile.part; part < tile.last_part; ++part) {
        add_part(call, plan, tile, path, part, state, keys, values);
        for (int i = 0; i < tile.count; ++i)
            join(sums + i * sums_size(D), state.out + i * D, sum(load(state.sums + i * kLanes)), state.top[i],
                 part == tile.part, D);
    }
    if (tile.partial < 0) write_rows<S>(call, tile, sums);
}

template <class S>
void join_tasks(const Call& call, const Join& tasks, float* partials) {
    const int D = call.head_dim, size = sums_size(D), n_rows = tasks.tile.count;
    float* sums = partials + tasks.tile.partial;
    for (int i = n_rows; i < tasks.n_parts * n_rows; ++i) {
        const float* own = sums + (ptrdiff_t)i * size;
        join(sums + i % n_rows * size, own, own[D], own[D + 1], false, D);
    }
    write_rows<S>(call, tasks.tile, sums);
}

// Tasks 0 to `n` - 1 of each head, handed out one by one. A thread begins with the head that was its own in the calls
// before, whose keys its caches hold, and goes on to others when that has none left.
class Shares {
  public:
    Shares(int n_heads, int n, int n_threads) : next_(n_heads), n_(n), n_threads_(n_threads) {}

    template <class F>
    void each(F f) {
        const int n_heads = (int)next_.size(), own = (int)((int64_t)thread() * n_heads / n_threads_);
        for (int k = 0; k < n_heads; ++k) {
            const int head = (own + k) % n_heads;
            for (int i; (i = next_[head].fetch_add(1, std::memory_order_relaxed)) < n_;) f(head, i);
        }
    }

  private:
    static int thread() {
#if defined(_OPENMP)
        return omp_get_thread_num();
#else
        return 0;
#endif
    }
    std::vector<std::atomic<int>> next_;
    int n_, n_threads_;
};

template <class E, class S>
void run(const Call& call) {
    const Plan plan = make_plan(call, strip<E>());
    const int D = call.head_dim, n_tiles = (int)plan.tiles.size() / call.n_kv_heads;
    Shares chunks(call.n_kv_heads, (int)plan.chunks.size(), call.n_threads);
    Shares tiles(call.n_kv_heads, n_tiles, call.n_threads);
    static thread_local Memory shared;
    const size_t n_packed = (size_t)plan.n_keys * call.n_kv_heads * D;
    shared.reset(2 * n_packed * sizeof(typename E::Type) + plan.n_partials * 4, 3);
    auto* keys = shared.take<typename E::Type>(n_packed);
    auto* values = shared.take<typename E::Type>(n_packed);
    auto* partials = shared.take<float>(plan.n_partials);
#pragma omp parallel num_threads(call.n_threads)
    {
        chunks.each([&](int head, int i) { pack_chunk<E, S>(call, plan, plan.chunks[i], head, keys, values); });
#pragma omp barrier
        static thread_local Memory own;
        State<E> state(own, round_up(plan.tile, kRows), D);
        std::vector<int> path;
        const Units units;
        tiles.each([&](int head, int i) {
            attend<E, S>(call, plan, plan.tiles[head * n_tiles + i], state, path, keys, values, partials);
        });
    }
    for (const Join& tasks : plan.joins) join_tasks<S>(call, tasks, partials);
}

}  // namespace
}  // namespace ramet

extern "C" void ramet_attention(const ramet::Call* call) {
    if (call->is_bf16) ramet::run<ramet::Bf16, ramet::bf16>(*call);
    else ramet::run<ramet::F32, float>(*call);
}

// Which tiles of queries walk which blocks of keys: see ops/attention/lists.py.
#include <iterator>

#include "paths.h"

namespace ramet::planning {
namespace {

constexpr double kTolerance = 1.25;  // how much longer than its share a tile may be before it is parted at spans
constexpr int kBeginning = 2, kJoining = 1;  // what a piece costs besides its blocks, and what joining costs, in blocks
constexpr int kMostTurns = 3;  // of the machine; with more, what its last leaves idle does not matter
constexpr int kWideLoad = 12;  // blocks for each program: with fewer there are too few wide tiles to go round

struct AttentionTask {
    int32_t kind, n_heads, n_kv_heads, narrow, wide, narrow_programs, wide_programs, processors;
    int32_t max_pieces, max_slots, keys, span, min_blocks, window, read, invariant;

    int32_t group() const { return n_heads / n_kv_heads; }
    bool has_wide(int32_t n_queries) const {
        return wide && 2 * (int64_t)n_queries * n_heads >= (int64_t)wide * processors;
    }
};

struct Tile {
    int32_t segment, query, n_queries, n_above, wide, begin, end;
    int32_t n_blocks() const { return end - begin; }
};

struct Item {
    int32_t query, n_queries, segment, n_blocks, run, key, step, slot, n_above;
};

struct Join {
    int32_t query, n_queries, slot, n_pieces;
};

class AttentionPlan {
  public:
    AttentionPlan(const Round& round, const Paths& paths, const AttentionTask& task)
        : round_(round), paths_(paths), task_(task), n_queries_(round.size(task.read ? kReadRows : kEveryRows)) {
        has_wide_ = task.has_wide(n_queries_);
        cut();
        if (has_wide_ && wide_load() < (int64_t)kWideLoad * task.wide_programs) {
            has_wide_ = false;
            cut();
        }
        part();
    }

    void write(Lists& lists) {
        if (const size_t n = paths_.runs.size()) std::memcpy(lists.extend(n * 5), paths_.runs.data(), n * sizeof(Run));
        lists.end();
        const int32_t n_segments = round_.size(kStarts);
        paths_.write_segments(round_, lists.extend((size_t)n_segments * kSegmentSize));
        lists.end();
        write_counted(lists, joins_, longest_first((int32_t)joins_.size(), [this](int32_t i) {
                          return joins_[i].n_pieces * joins_[i].n_queries;
                      }));
        const Ints order = longest_first((int32_t)items_.size(), [this](int32_t i) { return items_[i].n_blocks; });
        if (!has_wide_) {
            write_counted(lists, items_, order);
            if (task_.wide) lists.skip();
            return;
        }
        for (int32_t wide : {0, 1}) {
            Ints own;
            std::copy_if(order.begin(), order.end(), std::back_inserter(own), [&](int32_t i) { return wide_[i] == wide; });
            write_counted(lists, items_, own);
        }
    }

  private:
    // A segment's wide tiles come before its narrow one, which it has where its last rows fit one.
    void cut() {
        const int32_t narrow = task_.narrow / task_.group(), wide = task_.wide / task_.group();
        const int32_t* bounds = round_[task_.read ? kReadBounds : kEveryBounds];
        const int32_t n_segments = round_.size(kStarts);
        const Ints from_above = n_from_above(bounds, n_segments);
        auto slice = [&](int32_t segment, int32_t begin, int32_t end, int32_t size, int32_t is_wide) {
            for (; begin < end; begin += size) {
                const int32_t n = std::min(size, end - begin), above = std::max(bounds[segment] - begin, 0);
                const bool lifted = above >= n;  // a root's queries alone
                tiles_.push_back({segment - lifted, begin, n, lifted ? 0 : above, is_wide, 0, 0});
            }
        };
        tiles_.clear();
        auto n_wide = [&](int32_t n) { return has_wide_ ? std::min(n, (n + wide - narrow - 1) / wide * wide) : 0; };
        auto begin = [&](int32_t s) { return bounds[s] - from_above[s]; };
        auto end = [&](int32_t s) { return bounds[s + 1] - from_above[s + 1]; };
        for (int32_t s = 0; has_wide_ && s < n_segments; ++s)
            slice(s, begin(s), begin(s) + n_wide(end(s) - begin(s)), wide, 1);
        for (int32_t s = 0; s < n_segments; ++s) slice(s, begin(s) + n_wide(end(s) - begin(s)), end(s), narrow, 0);
        for (Tile& tile : tiles_) place(tile);
    }

    // How many queries of its parent's each segment's tiles begin with; behind the last, 0.
    Ints n_from_above(const int32_t* bounds, int32_t n_segments) const {
        const int32_t *parents = round_[kParents], *blocks = round_[kBlocks];
        const int32_t most = std::max(task_.narrow, task_.wide) / task_.group();
        Ints found(n_segments + 1);
        for (int32_t s = 1; task_.window == 0 && s < n_segments; ++s) {
            if (parents[s] != s - 1 || parents[s - 1] >= 0) continue;
            if (blocks[s] != kWholeBlock || blocks[s - 1] != kWholeBlock) continue;
            if (bounds[s + 1] > bounds[s] && bounds[s + 1] - bounds[s - 1] <= most) found[s] = bounds[s] - bounds[s - 1];
        }
        return found;
    }

    int64_t wide_load() const {
        int64_t load = 0;
        for (const Tile& tile : tiles_) load += tile.wide ? tile.n_blocks() : 0;
        return load * task_.n_kv_heads;
    }

    // From the first block that a tile's window reaches to the last that its last row sees.
    void place(Tile& tile) const {
        const int32_t *rows = round_[task_.read ? kReadRows : kEveryRows] + tile.query, *positions = round_[kPositions];
        const int64_t last = positions[rows[tile.n_queries - 1]], block = round_[kBlocks][tile.segment];
        const Run& own = paths_.own(tile.segment);
        const int64_t seen = std::min<int64_t>(last / block * block + block - own.position, own.n_keys);
        tile.end = paths_.own_place(tile.segment) + divide_up(seen, task_.keys);
        const int32_t own_block = (int32_t)(positions[rows[0]] / block * block);
        const int32_t lowest = std::max(own_block, round_[kAnchors][tile.segment]) - (task_.window - 1);
        if (task_.window > 0 && lowest > 0) tile.begin = paths_.place(tile.segment, lowest, false);
    }

    // The tiles, some of them in several pieces.
    void part() {
        const Ints counts = piece_counts();
        int32_t n_slots = 0;
        items_.reserve(tiles_.size() + task_.max_pieces);
        for (size_t i = 0; i < tiles_.size(); ++i) {
            const Tile& tile = tiles_[i];
            const int32_t n = counts.empty() ? 1 : counts[i], size = tile.n_queries * task_.n_heads;
            if (n > 1) joins_.push_back({tile.query, tile.n_queries, n_slots, n});
            for (int32_t part = 0, begin = tile.begin; part < n; ++part) {
                const int32_t end = part_end(tile, part, n);
                add(tile, begin, end, n > 1 ? n_slots + part * size : -1);
                begin = end;
            }
            if (n > 1) n_slots += n * size;
        }
    }

    void add(const Tile& tile, int32_t begin, int32_t end, int32_t slot) {
        const Paths::Block block = paths_.find(tile.segment, begin);
        items_.push_back(
            {tile.query, tile.n_queries, tile.segment, end - begin, block.run, block.key, block.step, slot, tile.n_above}
        );
        wide_.push_back(tile.wide);
    }

    int32_t part_end(const Tile& tile, int32_t part, int32_t n) const {
        if (part + 1 == n) return tile.end;
        if (!task_.invariant) return tile.begin + (int32_t)((int64_t)tile.n_blocks() * (part + 1) / n);
        return paths_.place(tile.segment, (span_of(tile, tile.begin) + part + 1) * task_.span, true);
    }

    // In which of its path's spans a block begins.
    int32_t span_of(const Tile& tile, int32_t place) const {
        const Paths::Block block = paths_.find(tile.segment, place);
        return (paths_.runs[block.run].position + block.key) / task_.span;
    }

    // How many pieces each tile becomes; nothing where each is one.
    Ints piece_counts() const {
        int64_t limits[2] = {limit(0, task_.narrow_programs), limit(1, task_.wide_programs)};
        for (Ints counts(tiles_.size());; limits[0] *= 2, limits[1] *= 2) {
            bool any = false;
            int64_t n_rows = 0, n_pieces = 0;
            for (size_t i = 0; i < tiles_.size(); ++i) {
                const Tile& tile = tiles_[i];
                const bool parted = tile.n_blocks() > limits[tile.wide];
                counts[i] = 1;
                any |= parted;
                if (!parted) continue;
                counts[i] = task_.invariant ? span_of(tile, tile.end - 1) - span_of(tile, tile.begin) + 1
                                            : divide_up(tile.n_blocks(), limits[tile.wide]);
                if (counts[i] > 1) n_rows += (int64_t)counts[i] * tile.n_queries, n_pieces += counts[i];
            }
            if (!any) return {};
            if (n_rows * task_.n_heads <= task_.max_slots && n_pieces <= task_.max_pieces)
                return n_pieces ? counts : Ints();
        }
    }

    // How many blocks a piece of a width may have: _share and _best_limit.
    int64_t limit(int32_t wide, int64_t n_programs) const {
        Ints n_blocks;
        for (const Tile& tile : tiles_)
            if (tile.wide == wide) n_blocks.push_back(tile.n_blocks());
        const int64_t least_blocks = task_.min_blocks, n = (int64_t)n_blocks.size() * task_.n_kv_heads;
        const int64_t load = std::accumulate(n_blocks.begin(), n_blocks.end(), (int64_t)0) * task_.n_kv_heads;
        auto share = [&](int64_t turns) { return std::max<int64_t>(divide_up(load, turns * n_programs), least_blocks); };
        if (task_.invariant) return (int64_t)((n_programs ? share(1) : least_blocks) * kTolerance);
        if (n_blocks.empty()) return least_blocks;
        const int64_t longest = *std::max_element(n_blocks.begin(), n_blocks.end());
        int64_t turns = divide_up(n, n_programs), best = longest;
        int64_t least = std::max<int64_t>(longest, divide_up(load * turns, n)) + turns * kBeginning;
        for (; turns <= kMostTurns; ++turns) {
            const int64_t most = turns * n_programs / task_.n_kv_heads;
            int64_t found = share(turns);
            auto n_pieces = [&] {
                int64_t sum = 0;
                for (int32_t x : n_blocks) sum += divide_up(x, found);
                return sum;
            };
            while (found < longest && n_pieces() > most) found += std::max<int64_t>(1, found / 8);
            const int64_t cost = turns * (found + kBeginning) + kJoining;
            if (found < longest && cost < least) best = found, least = cost;
        }
        return best;
    }

    // A row that begins with the number of rows that follow, then these, in an order.
    template <class Row>
    static void write_counted(Lists& lists, const std::vector<Row>& rows, const Ints& order) {
        constexpr size_t size = sizeof(Row) / sizeof(int32_t);
        int32_t* to = lists.extend((order.size() + 1) * size);
        std::fill_n(to, size, 0);
        to[0] = (int32_t)order.size();
        for (int32_t i : order) std::memcpy(to += size, &rows[i], sizeof(Row));
        lists.end();
    }

    const Round& round_;
    const Paths& paths_;
    const AttentionTask& task_;
    int32_t n_queries_;
    bool has_wide_ = false;
    std::vector<Tile> tiles_;
    std::vector<Item> items_;
    std::vector<Join> joins_;
    Ints wide_;  // of each item
};

}  // namespace

void plan_attention(const Round& round, const int32_t* task, SharedPaths& paths, Lists& lists) {
    const auto own = read_task<AttentionTask>(task);
    std::optional<Paths>& found = paths[own.invariant];
    if (!found) found.emplace(round, own.invariant, own.keys);
    AttentionPlan(round, *found, own).write(lists);
}

}  // namespace ramet::planning

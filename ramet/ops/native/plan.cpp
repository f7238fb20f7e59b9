// Work lists: the compiled twins of `plan` in ops/{attention,gated_delta,conv}/plan.py and ops/head/triton.py, which
// have the contracts and give the same. All lists of a round are made in one call.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <vector>

#include "round.h"

namespace ramet {
namespace {

using Ints = std::vector<int32_t>;

struct Round {
    const int32_t* data;
    const Span* spans;

    const int32_t* operator[](Field field) const { return data + spans[field].begin; }
    int32_t size(Field field) const { return spans[field].size(); }
};

// The lists made so far, one behind another, and where each ends; -1 for one that there is not.
struct Lists {
    Ints data, ends;

    // Room for n more places, which stay where they are until the next.
    int32_t* extend(size_t n) {
        data.resize(data.size() + n);
        return data.data() + data.size() - n;
    }
    void end() { ends.push_back((int32_t)data.size()); }
    void skip() { ends.push_back(-1); }
};

int32_t divide_up(int64_t a, int64_t b) { return (int32_t)((a + b - 1) / b); }

// The order in which `length` falls, by counting; equals stay in theirs.
template <class F>
Ints longest_first(int32_t n, F length) {
    int32_t most = 0;
    for (int32_t i = 0; i < n; ++i) most = std::max(most, length(i));
    Ints at(most + 2), order(n);
    for (int32_t i = 0; i < n; ++i) ++at[most - length(i) + 1];
    std::partial_sum(at.begin(), at.end(), at.begin());
    for (int32_t i = 0; i < n; ++i) order[at[most - length(i)]++] = i;
    return order;
}

// ---- attention

constexpr int kMaxChain = 5;  // MAX_ANCESTORS + 1
constexpr int kSegmentSize = 3 + kMaxChain;  // len(SEGMENT)
constexpr double kTolerance = 1.25;
constexpr int kBeginning = 2, kJoining = 1, kMostTurns = 3, kWideLoad = 12;

struct AttentionTask {
    int32_t kind, n_heads, n_kv_heads, narrow, wide, narrow_programs, wide_programs, processors;
    int32_t max_pieces, max_slots, keys, span, min_blocks, window, read, invariant;

    int32_t group() const { return n_heads / n_kv_heads; }
    bool has_wide(int32_t n_queries) const {
        return wide && 2 * (int64_t)n_queries * n_heads >= (int64_t)wide * processors;
    }
};

struct Run {
    int32_t position, n_keys, n_paged, pages, row;
};

// See _Paths: the same names. A chain has `levels` columns, of which the last is the segment itself.
class Paths {
  public:
    Paths(const Round& round, bool invariant, int32_t keys) : keys_(keys), n_segments_(round.size(kStarts)) {
        add_context_runs(round, invariant);
        n_shared = (int32_t)runs.size();
        add_own_runs(round, invariant);
        find_chains(round[kParents]);
        follow(round);
    }

    struct Block {
        int32_t run, key, step;
    };

    // The block at a place of a segment's path.
    Block find(int32_t segment, int32_t place) const {
        if (place < above[segment]) {
            const int32_t begun = shared_before_[first[segment]] + place;
            const auto next = std::upper_bound(shared_before_.begin() + 1, shared_before_.end(), begun);
            const auto run = (int32_t)(next - shared_before_.begin()) - 1;
            return {run, (begun - shared_before_[run]) * keys_, steps_[segment]};
        }
        const int32_t wanted = place - above[segment];
        int32_t level = levels_ - 1;
        while (before(segment, level) > wanted) --level;
        return {n_shared + chain(segment, level), (wanted - before(segment, level)) * keys_, level + 1};
    }

    // The place of the block that holds a position; with `up`, of the first block that begins at or after it.
    int32_t place(int32_t segment, int32_t position, bool up) const {
        if (position < own(chain(segment, steps_[segment])).position) {
            int32_t run = bounds_[context_[segment] + 1] - 1;
            while (run > first[segment] && runs[run].position > position) --run;
            return shared_before_[run] - shared_before_[first[segment]] + block(runs[run], position, up);
        }
        int32_t level = levels_ - 1;
        while (chain(segment, level) >= 0 && own(chain(segment, level)).position > position) --level;
        return above[segment] + before(segment, level) + block(own(chain(segment, level)), position, up);
    }

    const Run& own(int32_t segment) const { return runs[n_shared + segment]; }
    int32_t own_place(int32_t segment) const { return above[segment] + before(segment, levels_ - 1); }

    // Rows of SEGMENT.
    void write_segments(const Round& round, int32_t* to) const {
        for (int32_t s = 0; s < n_segments_; ++s, to += kSegmentSize) {
            std::fill_n(to, kSegmentSize, 0);
            to[0] = round[kBlocks][s], to[1] = round[kAnchors][s], to[2] = end_[s];
            for (int32_t level = 0; level < levels_; ++level) to[3 + level] = n_shared + chain(s, level);
        }
    }

    int32_t n_shared = 0;
    std::vector<Run> runs;
    Ints first, above;

  private:
    void add_context_runs(const Round& round, bool invariant) {
        const int32_t n = round.size(kContextLengths);
        bounds_.push_back(0);
        for (int32_t x = 0; x < n; ++x) {
            const int32_t length = round[kContextLengths][x], pages = round[kContextOffsets][x];
            const int32_t *fork = round[kContextForks] + round[kContextForkOffsets][x],
                          *behind = round[kContextForks] + round[kContextForkOffsets][x + 1];
            if (!invariant) runs.push_back({0, length, length, pages, 0});
            else
                for (; fork < behind; ++fork) {
                    const int32_t n_keys = (fork + 1 < behind ? fork[1] : length) - fork[0];
                    runs.push_back({fork[0], n_keys, n_keys, pages, 0});
                }
            bounds_.push_back((int32_t)runs.size());
        }
        shared_before_.assign(1, 0);
        for (const Run& run : runs) shared_before_.push_back(shared_before_.back() + divide_up(run.n_keys, keys_));
    }

    // A root that continues its context's last run holds that one's keys too.
    void add_own_runs(const Round& round, bool invariant) {
        ends_.assign(bounds_.begin() + 1, bounds_.end());
        for (int32_t s = 0; s < n_segments_; ++s) {
            const int32_t begin = round[invariant ? kAnchors : kOrigins][s], n_paged = round[kOrigins][s] - begin;
            Run run = {begin, n_paged + round[kLengths][s], n_paged, 0, round[kStarts][s]};
            if (round_continues_ |= n_paged > 0; n_paged > 0) --ends_[round[kContexts][s]];
            runs.push_back(run);
        }
        if (round_continues_)  // as the tables of plan.py, of all segments then; -1 takes the last place
            for (int32_t s = 0, last = round.size(kContextOffsets) - 1; s < n_segments_; ++s) {
                const int32_t x = round[kContexts][s];
                runs[n_shared + s].pages = round[kContextOffsets][x < 0 ? last : x];
            }
    }

    void find_chains(const int32_t* parents) {
        Ints depths(n_segments_);
        for (int32_t s = 0; s < n_segments_; ++s) {
            depths[s] = parents[s] < 0 ? 0 : depths[parents[s]] + 1;
            levels_ = std::max(levels_, depths[s] + 1);
        }
        chains_.resize((size_t)n_segments_ * kMaxChain);
        steps_.resize(n_segments_);
        for (int32_t s = 0; s < n_segments_; ++s) {
            steps_[s] = levels_ - 1 - depths[s];
            Step* at = chains_.data() + (size_t)s * kMaxChain;
            for (int32_t level = levels_ - 1, above = s; level >= 0; --level) {
                at[level] = {above, 0};
                if (above >= 0) above = parents[above];
            }
            for (int32_t level = steps_[s] + 1; level < levels_; ++level)
                at[level].before = at[level - 1].before + divide_up(own(at[level - 1].segment).n_keys, keys_);
        }
    }

    // Contexts in front of the paths.
    void follow(const Round& round) {
        context_.assign(round[kContexts], round[kContexts] + n_segments_);
        first.resize(n_segments_), end_.resize(n_segments_), above.resize(n_segments_);
        if (n_shared == 0) return;
        for (int32_t s = 0; s < n_segments_; ++s) {
            if (const int32_t x = context_[s]; x >= 0) first[s] = bounds_[x], end_[s] = ends_[x];
            above[s] = shared_before_[end_[s]] - shared_before_[first[s]];
        }
    }

    int32_t block(const Run& run, int32_t position, bool up) const {
        const int32_t key = position - run.position;
        return std::min(up ? divide_up(key, keys_) : key / keys_, divide_up(run.n_keys, keys_));
    }

    struct Step {
        int32_t segment, before;  // before: how many blocks of the chain come before it
    };

    int32_t chain(int32_t segment, int32_t level) const { return chains_[(size_t)segment * kMaxChain + level].segment; }
    int32_t before(int32_t segment, int32_t level) const { return chains_[(size_t)segment * kMaxChain + level].before; }

    int32_t keys_, n_segments_, levels_ = 0;
    bool round_continues_ = false;
    std::vector<Step> chains_;
    Ints bounds_, ends_, shared_before_, steps_, context_, end_;
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

// ---- the gated delta rule

struct DeltaTask {
    int32_t kind, chunk, block, carries;
};

constexpr int kDeltaBlocks = 4, kDeltaTile = kDeltaBlocks + 3, kDeltaItem = 8;  // int32 places

// rows: at which the blocks of its first tile begin; first: the number of its first chunk among those that are walked.
struct DeltaItem {
    int32_t rows[kDeltaBlocks], word, n_chunks, begin, end, wait, flag, first;
};

class DeltaPlan {
  public:
    DeltaPlan(const Round& round, const DeltaTask& task)
        : task_(task), n_(round.size(kPieceStarts)), starts_(round[kPieceStarts]), lengths_(round[kPieceLengths]),
          parents_(round[kPieceParents]) {
        set_states(round[kPieceFrom], round[kPieceTo]);
        set_items();
    }

    void write(Lists& lists) {
        const Ints order = longest_first_by_depth();
        int32_t n_tiles = 0, n_walked = 0, n_chunks = 0;
        for (int32_t i : order) {
            DeltaItem& item = items_[i];
            n_tiles += item.n_chunks;
            if (item.n_chunks == 1 && item.end == -1) continue;
            item.first = n_chunks;
            n_chunks += item.n_chunks, ++n_walked;
        }
        int32_t* to = lists.extend(1 + (size_t)n_tiles * kDeltaTile);
        *to++ = n_tiles;
        for (int32_t i : order) to = write_tiles(items_[i], to);
        lists.end();
        to = lists.extend(2 + (size_t)n_walked * kDeltaItem);
        *to++ = n_walked, *to++ = n_flags_;
        for (int32_t i : order)
            if (items_[i].first >= 0) to = write_item(items_[i], to);
        lists.end();
        for (int32_t n : {n_own_, n_chunks}) {
            std::fill_n(lists.extend(n), n, 0);
            lists.end();
        }
    }

  private:
    // begin, end, wait and flag of every piece.
    void set_states(const int32_t* from, const int32_t* to) {
        begin_.assign(from, from + n_), end_.assign(to, to + n_), wait_.assign(n_, -1), flag_.assign(n_, -1);
        depth_.assign(n_, 0);
        for (int32_t i = 0; i < n_; ++i)
            if (parents_[i] >= 0) depth_[i] = depth_[parents_[i]] + 1;
        auto follows = [&](int32_t i) { return parents_[i] >= 0 && from[i] < 0; };
        for (int32_t i = 0; i < n_; ++i)
            if (follows(i)) flag_[parents_[i]] = 0;
        for (int32_t i = 0; i < n_; ++i) {
            if (flag_[i] < 0) continue;
            flag_[i] = n_flags_++;
            if (end_[i] < 0) end_[i] = -2 - n_own_++;
        }
        for (int32_t i = 0; i < n_; ++i)
            if (follows(i)) begin_[i] = end_[parents_[i]], wait_[i] = flag_[parents_[i]];
    }

    // log2 of the blocks at which a piece lies in its tile.
    int32_t span(int32_t i) const {
        return end_[i] != -1 || lengths_[i] > 2 * task_.block ? 2 : lengths_[i] > task_.block;
    }

    // Pieces with a tile of their own come first; then those that share one, as they begin from one state.
    void set_items() {
        Ints order(n_);
        std::iota(order.begin(), order.end(), 0);
        const auto shared = std::stable_partition(order.begin(), order.end(), [this](int32_t i) { return span(i) == 2; });
        std::stable_sort(shared, order.end(), [this](int32_t a, int32_t b) {
            return begin_[a] != begin_[b] ? begin_[a] < begin_[b] : span(a) < span(b);
        });
        int32_t before = -1, place = 0;
        for (int32_t i : order) {
            const int32_t kind = span(i);
            const bool more = before >= 0 && kind < 2 && span(before) == kind && begin_[before] == begin_[i];
            place = more ? (place + (1 << kind)) % kDeltaBlocks : 0;
            if (place == 0) open(i, kind);
            add(items_.back(), i, kind, place);
            before = i;
        }
    }

    void open(int32_t i, int32_t kind) {
        const int32_t whole = kind == 2 ? lengths_[i] << 3 : 0, carries = end_[i] != -1 ? task_.carries : 0;
        const int32_t n_chunks = divide_up(lengths_[i], task_.chunk);
        items_.push_back({{}, kind + carries + whole, n_chunks, begin_[i], end_[i], wait_[i], flag_[i], -1});
        depths_.push_back(depth_[i]);
    }

    void add(DeltaItem& item, int32_t i, int32_t kind, int32_t place) const {
        for (int32_t b = 0; b < 1 << kind; ++b) {
            item.rows[place + b] = starts_[i] + task_.block * b;
            const int32_t left = std::max(0, std::min(lengths_[i] - task_.block * b, task_.block));
            if (kind < 2) item.word += left << (3 + 5 * (place + b));
        }
    }

    Ints longest_first_by_depth() const {
        Ints order(items_.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [this](int32_t a, int32_t b) {
            if (depths_[a] != depths_[b]) return depths_[a] < depths_[b];
            return items_[a].n_chunks > items_[b].n_chunks;
        });
        return order;
    }

    int32_t* write_tiles(const DeltaItem& item, int32_t* to) const {
        for (int32_t chunk = 0; chunk < item.n_chunks; ++chunk) {
            for (int32_t row : item.rows) *to++ = row + task_.chunk * chunk;
            *to++ = (item.word - (task_.chunk * chunk << 3)) | (chunk + 1 < item.n_chunks ? task_.carries : 0);
            *to++ = item.first < 0 ? -1 : item.first + chunk;
            *to++ = item.begin;
        }
        return to;
    }

    static int32_t* write_item(const DeltaItem& item, int32_t* to) {
        for (int32_t x : {item.rows[0], item.word, item.n_chunks, item.begin, item.end, item.wait, item.flag, item.first})
            *to++ = x;
        return to;
    }

    const DeltaTask& task_;
    int32_t n_, n_flags_ = 0, n_own_ = 0;
    const int32_t *starts_, *lengths_, *parents_;
    Ints begin_, end_, wait_, flag_, depth_;  // of each piece
    Ints depths_;                             // of each item
    std::vector<DeltaItem> items_;
};

// ---- the causal convolution

struct ConvTask {
    int32_t kind, width;
};

// Where the input `left` places before a piece is: its parent's last rows, and so on up to what a slot holds, or zeros.
int32_t source_above(const Round& round, int32_t piece, int32_t left, int32_t n) {
    for (;;) {
        if (round[kPieceFrom][piece] >= 0) return -2 - (round[kPieceFrom][piece] * n + n - left);
        piece = round[kPieceParents][piece];
        if (piece < 0) return -1;
        const int32_t length = round[kPieceLengths][piece];
        if (left <= length) return round[kPieceStarts][piece] + length - left;
        left -= length;
    }
}

// The inputs before each row as though all were of one piece. With the number known the compiler unrolls.
template <int32_t kInputs>
void write_before(int32_t* before, int32_t n_rows, int32_t n = kInputs) {
    if (kInputs) n = kInputs;
    for (int32_t row = 0; row < n_rows; ++row, before += n)
        for (int32_t j = 0; j < n; ++j) before[j] = row - 1 - j;
}

void plan_conv(const Round& round, const ConvTask& task, Lists& lists) {
    const int32_t n = task.width - 1, n_rows = round.size(kTokens), n_pieces = round.size(kPieceStarts);
    const int32_t *starts = round[kPieceStarts], *lengths = round[kPieceLengths], *slots = round[kPieceTo];
    const size_t begun = lists.data.size();
    int32_t* before = lists.extend((size_t)n_rows * n);
    if (n == 3) write_before<3>(before, n_rows);
    else write_before<0>(before, n_rows, n);
    for (int32_t piece = 0; piece < n_pieces; ++piece)
        for (int32_t left = 1; left <= n; ++left) {
            const int32_t source = source_above(round, piece, left, n);
            for (int32_t place = 0; place < lengths[piece] && place + left <= n; ++place)
                before[(starts[piece] + place) * n + place + left - 1] = source;
        }
    lists.end();
    const int32_t n_kept = n_pieces - (int32_t)std::count_if(slots, slots + n_pieces, [](int32_t x) { return x < 0; });
    int32_t* after = lists.extend(1 + (size_t)n_kept * task.width);
    before = lists.data.data() + begun;
    *after++ = n_kept;
    for (int32_t piece = 0; piece < n_pieces; ++piece) {
        if (slots[piece] < 0) continue;
        const int32_t last = starts[piece] + lengths[piece] - 1;
        *after++ = slots[piece];
        for (int32_t j = n - 2; j >= 0; --j) *after++ = before[last * n + j];
        if (n) *after++ = last;
    }
    lists.end();
}

// ---- the head

void plan_head(const Round& round, Lists& lists) {
    const int32_t n_reads = round.size(kReadIndex), n_rows = round.size(kNormalize);
    const int32_t *reads = round[kReadIndex], *offsets = round[kOffsets], *normalize = round[kNormalize];
    int32_t* to = lists.extend(round.size(kColumns));
    for (int32_t r = 0; r < n_reads; ++r) to = std::fill_n(to, offsets[r + 1] - offsets[r], reads[r]);
    lists.end();
    Ints slots(n_rows, -1);
    for (int32_t row = 0, n = 0; row < n_rows; ++row) {
        if (!normalize[row]) continue;
        slots[row] = n++;
        *lists.extend(1) = row;
    }
    lists.end();
    to = lists.extend(n_reads);
    for (int32_t r = 0; r < n_reads; ++r) to[r] = slots[reads[r]];
    lists.end();
}

enum Kind { kAttention, kDelta, kConv, kHead };
constexpr int kTaskSize = sizeof(AttentionTask) / sizeof(int32_t);

template <class Task>
Task read_task(const int32_t* from) {
    static_assert(sizeof(Task) <= sizeof(AttentionTask));
    Task task;
    std::memcpy(&task, from, sizeof(Task));
    return task;
}

void plan(const Round& round, const int32_t* task, std::optional<Paths> (&paths)[2], Lists& lists) {
    if (*task == kAttention) {
        const auto own = read_task<AttentionTask>(task);
        std::optional<Paths>& found = paths[own.invariant];
        if (!found) found.emplace(round, own.invariant, own.keys);
        AttentionPlan(round, *found, own).write(lists);
    } else if (*task == kDelta) {
        const auto own = read_task<DeltaTask>(task);
        DeltaPlan(round, own).write(lists);
    } else if (*task == kConv) {
        plan_conv(round, read_task<ConvTask>(task), lists);
    } else {
        plan_head(round, lists);
    }
}

thread_local Lists made;

}  // namespace
}  // namespace ramet

// Makes the lists of n_tasks tasks, each kTaskSize int32 from `tasks`, and keeps them until the thread's next call.
// Writes where each list ends, and returns how long they are together.
extern "C" int32_t ramet_plan(
    const int32_t* data, const ramet::Span* spans, const int32_t* tasks, int32_t n_tasks, int32_t* ends
) {
    using namespace ramet;
    made.data.clear(), made.ends.clear();
    std::optional<Paths> paths[2];
    for (int32_t i = 0; i < n_tasks; ++i) plan({data, spans}, tasks + (size_t)i * kTaskSize, paths, made);
    std::copy(made.ends.begin(), made.ends.end(), ends);
    return (int32_t)made.data.size();
}

// Where they lie.
extern "C" const int32_t* ramet_made() { return ramet::made.data.data(); }

// Copies the lists that were made last.
extern "C" void ramet_planned(int32_t* to) { std::copy(ramet::made.data.begin(), ramet::made.data.end(), to); }

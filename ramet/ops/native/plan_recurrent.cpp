// The lists of the gated delta rule and of the causal convolution: see
// ops/gated_delta/lists.py and ops/conv/lists.py.
#include "lists.h"

namespace ramet::planning {
namespace {

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

}  // namespace

void plan_delta(const Round& round, const int32_t* task, Lists& lists) {
    const auto own = read_task<DeltaTask>(task);
    DeltaPlan(round, own).write(lists);
}

void plan_conv(const Round& round, const int32_t* from, Lists& lists) {
    const auto task = read_task<ConvTask>(from);
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

}  // namespace ramet::planning

// Units laid end to end: the compiled twin of `pack` in ramet/round.py, which has the contract and gives the same.
#include <algorithm>
#include <numeric>
#include <vector>

#include "round.h"

namespace ramet {
namespace {

// A unit's row of `Units.counts`.
struct Sizes {
    int32_t n_rows, n_segments, n_reads, n_columns, n_pages, n_forks, n_slots, n_leaves, n_context, continues, state;
};

// A place in each of the arrays of `Units` behind its counts.
struct Arrays {
    const int32_t *tokens, *positions, *lengths, *parents, *blocks, *read_segments, *read_rows, *normalize, *widths,
        *columns, *pages, *forks, *slots, *leaves;

    // Their beginnings: they lie one behind another, each as long as all units have it.
    Arrays(const int32_t* at, const Sizes& all) {
        auto take = [&at](int32_t size) { return (at += size) - size; };
        tokens = take(all.n_rows), positions = take(all.n_rows);
        lengths = take(all.n_segments), parents = take(all.n_segments), blocks = take(all.n_segments);
        read_segments = take(all.n_reads), read_rows = take(all.n_reads), normalize = take(all.n_reads);
        widths = take(all.n_reads), columns = take(all.n_columns);
        pages = take(all.n_pages), forks = take(all.n_forks);
        slots = take(all.n_slots), leaves = take(2 * all.n_leaves);
    }

    // Behind what a unit has of them.
    void pass(const Sizes& n) {
        tokens += n.n_rows, positions += n.n_rows;
        lengths += n.n_segments, parents += n.n_segments, blocks += n.n_segments;
        read_segments += n.n_reads, read_rows += n.n_reads, normalize += n.n_reads, widths += n.n_reads;
        columns += n.n_columns, pages += n.n_pages, forks += n.n_forks;
        slots += n.n_slots, leaves += 2 * n.n_leaves;
    }
};

// A unit: how much it has, and where.
struct Unit : Arrays {
    Sizes n;

    Unit(const Sizes& sizes, const Arrays& at) : Arrays(at), n(sizes) {}

    bool has_context() const { return n.n_context > 0; }
};

// What all units have; of what is of a unit alone nothing.
Sizes sum(const Sizes* sizes, int32_t n_units) {
    Sizes all{};
    for (int32_t i = 0; i < n_units; ++i) {
        const Sizes& n = sizes[i];
        all.n_rows += n.n_rows, all.n_segments += n.n_segments, all.n_reads += n.n_reads;
        all.n_columns += n.n_columns, all.n_pages += n.n_pages, all.n_forks += n.n_forks;
        all.n_slots += n.n_slots, all.n_leaves += n.n_leaves;
    }
    return all;
}

// Writes the fields one behind another: an array is whole before the next one begins.
class Buffer {
  public:
    Buffer(int32_t* data, Span* spans) : data_(data), spans_(spans) {}

    // Room for the next field. What lies between two fields is 0.
    int32_t* begin(int32_t size) {
        Span& span = spans_[n_++] = {at_, at_ + size};
        at_ = aligned(span.end);
        std::fill(data_ + span.end, data_ + at_, 0);
        return data_ + span.begin;
    }

    const int32_t* operator[](Field field) const { return data_ + spans_[field].begin; }
    int32_t size(Field field) const { return spans_[field].size(); }
    int32_t* behind() { return data_ + at_; }

  private:
    int32_t* data_;
    Span* spans_;
    int32_t n_ = 0, at_ = 0;
};

template <class F>
int32_t total(const std::vector<Unit>& units, F size) {
    return std::accumulate(units.begin(), units.end(), 0, [&](int32_t sum, const Unit& u) { return sum + size(u); });
}

// The units' values of one array, one behind another.
template <class F>
void join(Buffer& buffer, const std::vector<Unit>& units, const int32_t* Arrays::*array, F size) {
    int32_t* to = buffer.begin(total(units, size));
    for (const Unit& u : units) to = std::copy_n(u.*array, size(u), to);
}

// 0, and how much there is up to each unit with a context.
template <class F>
void context_offsets(Buffer& buffer, const std::vector<Unit>& units, int32_t n_contexts, F size) {
    int32_t *to = buffer.begin(n_contexts + 1), sum = 0;
    *to++ = 0;
    for (const Unit& u : units)
        if (u.has_context()) *to++ = sum += size(u);
}

void write_segments(Buffer& buffer, const std::vector<Unit>& units) {
    const int32_t n_rows = total(units, [](const Unit& u) { return u.n.n_rows; });
    const int32_t n = total(units, [](const Unit& u) { return u.n.n_segments; });
    join(buffer, units, &Unit::tokens, [](const Unit& u) { return u.n.n_rows; });
    int32_t *positions = buffer.begin(n_rows), *whole = buffer.begin(n_rows);
    int32_t *starts = buffer.begin(n), *lengths = buffer.begin(n);
    int32_t *parents = buffer.begin(n), *blocks = buffer.begin(n), *contexts = buffer.begin(n);
    int32_t *origins = buffer.begin(n), *anchors = buffer.begin(n);
    int32_t row = 0, first = 0, context = 0;
    for (const Unit& u : units) {
        const int32_t* given = u.positions;
        for (int32_t i = 0; i < u.n.n_segments; ++i) {
            const int32_t s = first + i, above = u.parents[i];
            starts[s] = row, lengths[s] = u.lengths[i], blocks[s] = u.blocks[i];
            parents[s] = above < 0 ? -1 : first + above;
            contexts[s] = u.has_context() ? context : -1;
            anchors[s] = origins[s] = above < 0 ? u.n.n_context : origins[parents[s]] + lengths[parents[s]];
            std::fill_n(whole + row, lengths[s], blocks[s] == kWholeBlock);
            for (int32_t j = 0; j < lengths[s]; ++j, ++row, ++given)
                positions[row] = *given < 0 ? origins[s] + j : *given;
        }
        if (u.n.continues) anchors[first] = u.forks[u.n.n_forks - 1];
        first += u.n.n_segments, context += u.has_context();
    }
}

void write_contexts(Buffer& buffer, const std::vector<Unit>& units) {
    auto pages = [](const Unit& u) { return u.has_context() ? u.n.n_pages : 0; };
    auto forks = [](const Unit& u) { return u.has_context() ? u.n.n_forks : 0; };
    const int32_t n = total(units, [](const Unit& u) { return (int32_t)u.has_context(); });
    join(buffer, units, &Unit::pages, pages);
    context_offsets(buffer, units, n, pages);
    int32_t* lengths = buffer.begin(n);
    for (const Unit& u : units)
        if (u.has_context()) *lengths++ = u.n.n_context;
    join(buffer, units, &Unit::forks, forks);
    context_offsets(buffer, units, n, forks);
}

struct Piece {
    int32_t start, length, parent, from, to;
};

// The segments, cut behind the rows whose states are kept.
void write_pieces(Buffer& buffer, const std::vector<Unit>& units) {
    const int32_t *starts = buffer[kStarts], *lengths = buffer[kLengths], *parents = buffer[kParents];
    std::vector<int32_t> last(buffer.size(kStarts));  // piece of each segment
    std::vector<Piece> pieces;
    pieces.reserve(last.size());
    int32_t s = 0, row0 = 0;
    for (const Unit& u : units) {
        const int32_t *leaf = u.leaves, *no_leaf = u.leaves + 2 * u.n.n_leaves;
        for (const int32_t end = s + u.n.n_segments; s < end; ++s) {
            int32_t at = starts[s], above = parents[s] < 0 ? -1 : last[parents[s]];
            int32_t from = parents[s] < 0 ? u.n.state : -1;
            for (const int32_t behind = at + lengths[s]; at < behind;) {
                const bool kept = leaf < no_leaf && row0 + leaf[0] < behind;
                const int32_t next = kept ? row0 + leaf[0] + 1 : behind;
                pieces.push_back({at, next - at, above, from, kept ? leaf[1] : -1});
                if (kept) leaf += 2;
                at = next, from = -1, above = last[s] = (int32_t)pieces.size() - 1;
            }
        }
        row0 += u.n.n_rows;
    }
    for (int32_t Piece::*value : {&Piece::start, &Piece::length, &Piece::parent, &Piece::from, &Piece::to}) {
        int32_t* to = buffer.begin((int32_t)pieces.size());
        for (const Piece& piece : pieces) *to++ = piece.*value;
    }
}

void write_kept(Buffer& buffer, const std::vector<Unit>& units) {
    auto slots = [](const Unit& u) { return u.n.n_slots; };
    int32_t *rows = buffer.begin(total(units, slots)), row0 = 0;
    for (const Unit& u : units) {
        std::iota(rows, rows + u.n.n_slots, row0);
        rows += u.n.n_slots, row0 += u.n.n_rows;
    }
    join(buffer, units, &Unit::slots, slots);
}

void write_bounds(Buffer& buffer) {
    const int32_t n_rows = buffer.size(kTokens), n_segments = buffer.size(kStarts);
    int32_t* rows = buffer.begin(n_rows);
    std::iota(rows, rows + n_rows, 0);
    *std::copy_n(buffer[kStarts], n_segments, buffer.begin(n_segments + 1)) = n_rows;
}

// A row that is read several times is one query, which is normalised if one of its reads asks for it.
void write_reads(Buffer& buffer, const std::vector<Unit>& units) {
    std::vector<int32_t> row_of, asked;
    int32_t segment0 = 0;
    for (const Unit& u : units) {
        for (int32_t i = 0; i < u.n.n_reads; ++i)
            row_of.push_back(buffer[kStarts][segment0 + u.read_segments[i]] + u.read_rows[i]);
        asked.insert(asked.end(), u.normalize, u.normalize + u.n.n_reads);
        segment0 += u.n.n_segments;
    }
    std::vector<int32_t> rows = row_of;
    if (!std::is_sorted(rows.begin(), rows.end())) std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    std::copy(rows.begin(), rows.end(), buffer.begin((int32_t)rows.size()));
    const int32_t *starts = buffer[kEveryBounds], n_segments = buffer.size(kStarts);
    int32_t* bounds = buffer.begin(n_segments + 1);
    for (int32_t s = 0, at = 0; s <= n_segments; bounds[s++] = at)
        while (at < (int32_t)rows.size() && rows[at] < starts[s]) ++at;
    int32_t* index = buffer.begin((int32_t)row_of.size());
    for (int32_t row : row_of) *index++ = (int32_t)(std::lower_bound(rows.begin(), rows.end(), row) - rows.begin());
    join(buffer, units, &Unit::columns, [](const Unit& u) { return u.n.n_columns; });
    int32_t *offsets = buffer.begin((int32_t)row_of.size() + 1), before = 0;
    for (const Unit& u : units)
        for (int32_t i = 0; i < u.n.n_reads; before += u.widths[i++]) *offsets++ = before;
    *offsets = before;
    int32_t* normalize = buffer.begin((int32_t)rows.size());
    std::fill_n(normalize, rows.size(), 0);
    for (size_t i = 0; i < asked.size(); ++i)
        if (asked[i]) normalize[buffer[kReadIndex][i]] = 1;
}

}  // namespace
}  // namespace ramet

// given: the arrays of `Units`, one behind another. Writes the round's buffer to `data`, behind its end how many reads
// there are before each unit and in all, and to `spans` where each field lies.
extern "C" void ramet_pack(const int32_t* given, int32_t n_units, int32_t* data, ramet::Span* spans) {
    using namespace ramet;
    const auto* sizes = reinterpret_cast<const Sizes*>(given);
    std::vector<Unit> units;
    units.reserve(n_units);
    Arrays at(given + n_units * (sizeof(Sizes) / sizeof(int32_t)), sum(sizes, n_units));
    for (int32_t i = 0; i < n_units; at.pass(sizes[i++])) units.emplace_back(sizes[i], at);
    Buffer buffer(data, spans);
    write_segments(buffer, units);
    write_contexts(buffer, units);
    write_pieces(buffer, units);
    write_kept(buffer, units);
    write_bounds(buffer);
    write_reads(buffer, units);
    int32_t *unit_reads = buffer.behind(), n_reads = 0;
    *unit_reads = 0;
    for (const Unit& u : units) *++unit_reads = n_reads += u.n.n_reads;
}

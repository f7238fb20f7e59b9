// A round into the buffer of a recorded pass: see ramet/engine/staging.py; tests/oracles/staging.py has the same in
// Python.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "round.h"

extern "C" int32_t ramet_plan(
    const int32_t* data, const ramet::Span* spans, const int32_t* tasks, int32_t n_tasks, int32_t* ends
);
extern "C" const int32_t* ramet_made();

namespace ramet {
namespace {

constexpr Field kByRows[] = {kTokens, kPositions, kWhole, kKeptRows, kKeptSlots};
constexpr Field kBehind[] = {kContextPages, kReadIndex, kColumns, kOffsets, kNormalize};
constexpr int32_t kNothing = -1;  // in a slot that is kept: none

// What was said once of all rounds. A layout has n_rooms + 2 numbers: rows, reads, and the room of each list of the
// recorded ops (-1: it has none). Behind these n_rooms lists come those of the head; `lists` says which of the n_made
// lists of the tasks each is (-1: none), and by_row whether it has an entry for every row.
struct Staging {
    const int32_t *tasks, *layouts, *lists, *by_row;
    int64_t n_tasks, n_layouts, n_rooms, n_lists, n_made;

    const int32_t* layout(int64_t i) const { return layouts + i * (n_rooms + 2); }
};

struct Array {
    const int32_t* data;
    int32_t size;
};

class Round {
  public:
    Round(const Staging& of, const int32_t* data, const Span* spans)
        : of_(of), data_(data), spans_(spans), made_(of.n_made, {nullptr, 0}) {
        std::vector<int32_t> ends(of.n_made);
        ramet_plan(data, spans, of.tasks, (int32_t)of.n_tasks, ends.data());
        int32_t begin = 0;
        for (int64_t i = 0; i < of.n_made; ++i)
            if (ends[i] >= 0) made_[i] = {ramet_made() + begin, ends[i] - begin}, begin = ends[i];
    }

    Array operator[](Field field) const { return {data_ + spans_[field].begin, spans_[field].size()}; }
    Array list(int64_t i) const { return of_.lists[i] < 0 ? Array{nullptr, 0} : made_[of_.lists[i]]; }

    // The first layout that holds it; -1: none does.
    int32_t fitting() const {
        for (int64_t i = 0; i < of_.n_layouts; ++i) {
            const int32_t* layout = of_.layout(i);
            bool holds = layout[0] >= (*this)[kTokens].size && layout[1] >= (*this)[kReadRows].size;
            for (int64_t j = 0; j < of_.n_rooms && holds; ++j) holds = std::max(layout[j + 2], 0) >= list(j).size;
            if (holds) return (int32_t)i;
        }
        return -1;
    }

  private:
    const Staging& of_;
    const int32_t* data_;
    const Span* spans_;
    std::vector<Array> made_;
};

// Writes arrays one behind another, each where one may begin.
class Buffer {
  public:
    Buffer(int32_t* data, int64_t size) : data_(data), size_(size) {}

    // With room for so many, filled up with `padding`.
    void padded(Array array, int32_t room, int32_t padding) {
        int32_t* end = std::copy_n(array.data, array.size, data_ + at_);
        std::fill(end, data_ + at_ + room, padding);
        at_ = aligned(at_ + room);
    }

    // Of which nothing is read behind its end; the first place says that there are none.
    void listed(Array array, int32_t room) {
        std::copy_n(array.data, array.size, data_ + at_);
        if (!array.size && room) data_[at_] = 0;
        at_ = aligned(at_ + room);
    }

    // As long as it is. False where the buffer ends before it does.
    bool loose(Array array, Span& span) {
        span = {at_, at_ + array.size};
        if (span.end > size_) return false;
        std::copy_n(array.data, array.size, data_ + at_);
        at_ = aligned(span.end);
        return true;
    }

    int32_t used() const { return at_; }

  private:
    int32_t* data_;
    int64_t size_;
    int32_t at_ = 0;
};

}  // namespace
}  // namespace ramet

// Makes the lists of a round and writes all of its arrays into `to`, of `size` int32. Returns in which layout, -1 where
// none holds it. found: how much is used, and where the arrays of no fixed place lie.
extern "C" int32_t ramet_stage(
    const ramet::Staging* of, const int32_t* data, const ramet::Span* spans, int32_t* to, int32_t size, int32_t* found
) {
    using namespace ramet;
    const Round round(*of, data, spans);
    const int32_t which = round.fitting();
    if (which < 0) return -1;
    const int32_t* layout = of->layout(which);
    Buffer buffer(to, size);
    for (Field field : kByRows) buffer.padded(round[field], layout[0], field == kKeptSlots ? kNothing : 0);
    buffer.padded(round[kReadRows], layout[1], 0);
    for (int64_t i = 0; i < of->n_rooms; ++i) {
        const int32_t room = layout[i + 2];
        if (room < 0) continue;
        if (of->by_row[i]) buffer.padded(round.list(i), room, 0);
        else buffer.listed(round.list(i), room);
    }
    Span* span = (Span*)(found + 1);
    for (Field field : kBehind)
        if (!buffer.loose(round[field], *span++)) return -1;
    for (int64_t i = of->n_rooms; i < of->n_lists; ++i)
        if (!buffer.loose(round.list(i), *span++)) return -1;
    found[0] = buffer.used();
    return which;
}

// A step of live replies as units: the compiled twin of `plain_lay` in ramet/engine/laying.py, which has the contract.
#include <algorithm>
#include <cstdint>

#include "round.h"

namespace ramet {
namespace {

// Paths by their places, as in ramet/cache/tables.py: rows and pages of each, and the pages' numbers [P, width].
struct Tables {
    const int32_t *n_rows, *n_pages, *pages;
    int64_t width, page_size;

    int32_t pages_of(int32_t rows) const { return (int32_t)((rows + page_size - 1) / page_size); }
    const int32_t* of(int32_t place) const { return pages + place * width; }
    int32_t slot(const int32_t* own, int32_t row) const {
        return (int32_t)(own[row / page_size] * page_size + row % page_size);
    }
};

// The arrays of `Chunks` that say where rows are, and [N] the slots of the states that each begins from and leaves; null
// where there are none.
struct Step {
    const int32_t *places, *n_rows, *n_kept, *n_segments, *n_reads, *lengths, *reads, *begun, *states;
};

// Places in the arrays of `Units`.
struct Units {
    int32_t *counts, *parents, *blocks, *read_segments, *read_rows, *slots, *leaves, *pages;
};

}  // namespace
}  // namespace ramet

extern "C" {

// Writes n units, and how many slots and pages they have in all. 0 where a path has no page for a row that is to be kept:
// nothing that was written is to be used.
int32_t ramet_lay(
    const ramet::Tables* tables, const ramet::Step* step, int32_t n, const ramet::Units* to, int32_t* sums
) {
    ramet::Units at = *to;
    const int32_t *length = step->lengths, *read = step->reads;
    const bool leaves = step->states;
    int32_t begin = 0;
    for (int32_t i = 0; i < n; ++i) {
        const int32_t place = step->places[i], context = tables->n_rows[place], n_pages = tables->pages_of(context);
        const int32_t n_rows = step->n_rows[i], n_kept = step->n_kept[i], n_reads = step->n_reads[i];
        const int32_t* own = tables->of(place);
        if (tables->pages_of(context + n_kept) > tables->n_pages[place]) return 0;
        const int32_t begun = leaves ? step->begun[i] : -1;
        const int32_t counts[11] = {
            n_rows, step->n_segments[i], n_reads, 0, n_pages, 1, n_kept, leaves, context, 0, begun,
        };
        at.counts = std::copy_n(counts, 11, at.counts);
        at.pages = std::copy_n(own, n_pages, at.pages);
        for (int32_t row = context; row < context + n_kept; ++row) *at.slots++ = tables->slot(own, row);
        if (leaves) *at.leaves++ = n_rows - 1, *at.leaves++ = step->states[i];
        const int32_t* behind = read + n_reads;
        for (int32_t s = 0; s < step->n_segments[i]; begin += *length++, ++s) {
            *at.parents++ = s - 1, *at.blocks++ = ramet::kWholeBlock;
            for (; read != behind && *read < begin + *length; ++read)
                *at.read_segments++ = s, *at.read_rows++ = *read - begin;
        }
    }
    sums[0] = (int32_t)(at.slots - to->slots), sums[1] = (int32_t)(at.pages - to->pages);
    return 1;
}

}  // extern "C"

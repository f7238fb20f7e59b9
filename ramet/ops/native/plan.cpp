// Work lists: all lists of a round are made in one call. See lists.h.
#include "lists.h"
#include "paths.h"

namespace ramet::planning {
namespace {

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

void plan(const Round& round, const int32_t* task, SharedPaths& paths, Lists& lists) {
    switch (*task) {
        case kAttention: return plan_attention(round, task, paths, lists);
        case kDelta: return plan_delta(round, task, lists);
        case kConv: return plan_conv(round, task, lists);
        default: return plan_head(round, lists);
    }
}

thread_local Lists made;

}  // namespace
}  // namespace ramet::planning

// Makes the lists of n_tasks tasks, each kTaskSize int32 from `tasks`, and keeps them until the thread's next call.
// Writes where each list ends, and returns how long they are together.
extern "C" int32_t ramet_plan(
    const int32_t* data, const ramet::Span* spans, const int32_t* tasks, int32_t n_tasks, int32_t* ends
) {
    using namespace ramet::planning;
    made.data.clear(), made.ends.clear();
    SharedPaths paths;
    for (int32_t i = 0; i < n_tasks; ++i) plan({data, spans}, tasks + (size_t)i * kTaskSize, paths, made);
    std::copy(made.ends.begin(), made.ends.end(), ends);
    return (int32_t)made.data.size();
}

// Where they lie.
extern "C" const int32_t* ramet_made() { return ramet::planning::made.data.data(); }

// Copies the lists that were made last.
extern "C" void ramet_planned(int32_t* to) {
    std::copy(ramet::planning::made.data.begin(), ramet::planning::made.data.end(), to);
}

// What makes work lists: the arrays of a round, and the lists made of them. The contracts are in
// ops/{attention,gated_delta,conv}/lists.py and ops/head/triton.py; tests/oracles has the same in NumPy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "round.h"

namespace ramet::planning {

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

inline int32_t divide_up(int64_t a, int64_t b) { return (int32_t)((a + b - 1) / b); }

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

// What the lists of one op are made by: int32 numbers, the first of which says of which op.
enum Kind { kAttention, kDelta, kConv, kHead };
constexpr int kTaskSize = 16;  // of each, most of which need fewer

template <class Task>
Task read_task(const int32_t* from) {
    static_assert(sizeof(Task) <= kTaskSize * sizeof(int32_t));
    Task task;
    std::memcpy(&task, from, sizeof(Task));
    return task;
}

class Paths;
using SharedPaths = std::optional<Paths>[2];  // of one round: with runs of contexts, and of their forks

void plan_attention(const Round& round, const int32_t* task, SharedPaths& paths, Lists& lists);
void plan_delta(const Round& round, const int32_t* task, Lists& lists);
void plan_conv(const Round& round, const int32_t* task, Lists& lists);

}  // namespace ramet::planning

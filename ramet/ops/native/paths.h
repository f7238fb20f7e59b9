// The runs of every segment's path: `Paths` of tests/oracles/attention_paths.py.
#pragma once

#include "lists.h"

namespace ramet::planning {

constexpr int kMaxChain = 5;  // MAX_ANCESTORS + 1
constexpr int kSegmentSize = 3 + kMaxChain;  // len(SEGMENT)

struct Run {
    int32_t position, n_keys, n_paged, pages, row;
};

// See Paths there: the same names. A chain has `levels` columns, of which the last is the segment itself.
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
        if (round_continues_)  // as the tables of attention_paths.py, of all segments then; -1 takes the last place
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

}  // namespace ramet::planning

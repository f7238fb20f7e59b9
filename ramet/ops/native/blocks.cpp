// Replies in blocks of masks, a step of all of them: the compiled twin of `uncached`, `on_top`, `chunks` and `take` of
// LiveBlocks in ramet/denoise/live_blocks.py, which has the contract and whose arrays these are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace ramet {
namespace {

enum Kind { kPending, kMasked };
enum Finish : int8_t { kGoesOn, kStop, kLength };

// The arrays of LiveBlocks, of what its replies ask for, and what holds for all of them, in the order in which
// ramet/engine/compiled_blocks.py gives them. A row is a reply's, by its place.
struct Blocks {
    uint8_t* live;
    int32_t* tokens;
    float* logprobs;
    int32_t *start, *until, *n_open, *steps, *streaks;
    const int32_t* group;
    int32_t *emitted, *end;
    const int32_t* n_prompt;
    const float* temperatures;
    const uint64_t* keys;
    const float* top_p;
    const int32_t *top_k, *end_ids;
    const float* thresholds;
    int64_t n_end_ids, size, mask, whole, ahead;
};

// Words of Philox, four at a time, as ramet/denoise/philox.py has them.
class Philox {
  public:
    Philox(const uint64_t* key, int32_t canvas, int32_t step) : key_(key), canvas_(canvas), step_(step) {}

    // The uniform number of a row.
    float operator()(int32_t row) {
        if (row / 4 != at_) fill(at_ = row / 4);
        return (float)(words_[row % 4] >> 40) * 0x1p-24f;
    }

  private:
    using Wide = unsigned __int128;

    void fill(int32_t at) {
        uint64_t a = (uint64_t)at + 1, b = kUniforms, c = (uint64_t)(int64_t)step_, d = (uint64_t)(int64_t)canvas_;
        uint64_t low = key_[0], high = key_[1];
        for (int round = 0; round < 10; ++round) {
            const Wide p = (Wide)a * 0xD2E7470EE14C6C93, q = (Wide)c * 0xCA5A826395121157;
            a = (uint64_t)(q >> 64) ^ b ^ low, c = (uint64_t)(p >> 64) ^ d ^ high;
            b = (uint64_t)q, d = (uint64_t)p;
            low += 0x9E3779B97F4A7C15, high += 0xBB67AE8584CAA73B;
        }
        words_[0] = a, words_[1] = b, words_[2] = c, words_[3] = d;
    }

    static constexpr uint64_t kUniforms = 1;
    const uint64_t* key_;
    int32_t canvas_, step_, at_ = -1;
    uint64_t words_[4];
};

// One of the replies.
class Reply {
  public:
    Reply(const Blocks& of, int32_t place) : of_(of), at_(place), size_((int32_t)of.size) {}

    int32_t size() const { return size_; }
    int32_t start() const { return of_.start[at_]; }
    int32_t emitted() const { return of_.emitted[at_]; }
    int32_t end() const { return of_.end[at_]; }
    // Where in its live blocks nothing is run any more, behind a token that ends it.
    int32_t behind_end() const { return std::min(of_.until[at_] - start(), 2 * size_); }
    int32_t n_open() const { return of_.n_open[at_]; }
    float threshold() const { return of_.thresholds[of_.group[at_]]; }
    int32_t& token(int32_t offset) const { return of_.tokens[(int64_t)at_ * 2 * size_ + offset]; }
    float& logprob(int32_t offset) const { return of_.logprobs[(int64_t)at_ * 2 * size_ + offset]; }
    int32_t& step(int32_t block) const { return of_.steps[2 * (int64_t)at_ + block]; }

    // Of the rows of a live block those that are pending, or masked.
    uint8_t* rows(int32_t block, Kind kind) const { return of_.live + (((int64_t)at_ * 2 + block) * 2 + kind) * size_; }
    uint8_t& row(int32_t offset, Kind kind) const { return rows(offset / size_, kind)[offset % size_]; }

    int32_t count(int32_t block, Kind kind) const { return count(block, kind, size_); }
    int32_t count(int32_t block, Kind kind, int32_t until) const {
        const uint8_t* rows = this->rows(block, kind);
        int32_t n = 0;
        for (int32_t i = 0; i < until; ++i) n += rows[i];
        return n;
    }
    // Of both blocks, before a place in them.
    int32_t count(int32_t until) const {
        int32_t n = 0;
        for (int32_t block : {0, 1})
            for (Kind kind : {kPending, kMasked}) n += count(block, kind, std::min(until - block * size_, size_));
        return n;
    }
    bool is_decided() const { return !count(0, kMasked); }

    // Rows of the block to be opened beside the first one, where another is wanted.
    int32_t n_next(bool wanted) const {
        return wanted && n_open() == 1 && end() > start() + size_ ? size_ : 0;
    }

    // Pending rows of the end of the prompt.
    int32_t n_on_top() const {
        const int32_t n = std::min(of_.n_prompt[at_] - start(), size_);
        int32_t found = 0;
        for (int32_t i = 0; i < n; ++i) found += rows(0, kPending)[i];
        return found;
    }

    // The first or second live block, all masked.
    void open(int32_t block) const {
        std::fill_n(rows(block, kPending), size_, 0), std::fill_n(rows(block, kMasked), size_, 1);
        std::fill_n(&token(block * size_), size_, (int32_t)of_.mask);
        step(block) = 0, of_.n_open[at_] = block + 1;
    }

    bool is_end(int32_t token) const {
        const int32_t* ids = of_.end_ids + at_ * of_.n_end_ids;
        return std::find(ids, ids + of_.n_end_ids, token) != ids + of_.n_end_ids;
    }

    // What was drawn for a masked row. False where that cannot be.
    bool accept(int32_t offset, int32_t drawn, float logprob) const {
        if (drawn == of_.mask || !row(offset, kMasked)) return false;
        row(offset, kMasked) = 0, row(offset, kPending) = 1;
        token(offset) = drawn, this->logprob(offset) = logprob;
        return true;
    }

    // The reply ends behind a token.
    void end_behind(int32_t offset) const {
        for (int32_t* each : {of_.end, of_.until}) each[at_] = std::min(each[at_], start() + offset + 1);
    }

    // Where in its live blocks the first row is that is not known.
    int32_t gap() const {
        for (int32_t block = 0; block < 2; ++block) {
            const uint8_t *rows = this->rows(block, kMasked), *found = std::find(rows, rows + size_, 1);
            if (found != rows + size_) return block * size_ + (int32_t)(found - rows);
        }
        return n_open() * size_;
    }

    // Leave a block that is known and cached behind.
    void close() const {
        if (count(0, kPending)) return;
        of_.start[at_] += size_;
        if (n_open() == 1) return open(0);
        std::copy_n(&token(size_), size_, &token(0));
        std::copy_n(&logprob(size_), size_, &logprob(0));
        for (Kind kind : {kPending, kMasked}) {
            std::copy_n(rows(1, kind), size_, rows(0, kind));
            std::fill_n(rows(1, kind), size_, 0);
        }
        step(0) = step(1), of_.n_open[at_] = 1;
    }

    // Tell up to there, or the end; how the reply goes on.
    Finish tell(int32_t until) const {
        of_.emitted[at_] = until;
        if (until != end()) return kGoesOn;
        return is_end(token(std::max(until - 1, start()) - start())) ? kStop : kLength;
    }

    // Rows that had passed in a row before a step whose first one is at an offset; then those of this step too.
    int32_t streak(int32_t offset, int32_t n_rows, bool passed) const {
        int32_t *own = of_.streaks + 2 * (int64_t)at_, begin = start() + offset / size_ * size_;
        const int32_t had = own[1] == begin ? own[0] : 0;
        own[0] = passed ? had + n_rows : 0, own[1] = begin;
        return had;
    }

  private:
    const Blocks& of_;
    int32_t at_, size_;
};

// The rows of a step, as they are laid down: an array each for what is of a reply, a segment, a row, or a read.
class Chunks {
  public:
    // Room for n replies with so many rows each, behind three numbers: segments, rows and reads in all.
    Chunks(int32_t* data, int32_t n, int32_t most) : n_(data) {
        auto take = [at = data + 3](int32_t size) mutable { return (at += size) - size; };
        n_rows = take(n), n_kept = take(n), n_segments = take(n), n_reads = take(n), lengths = take(2 * n);
        tokens = take(n * most), positions = take(n * most), reads = take(n * most);
        temperatures = (float*)take(n * most), uniforms = (float*)take(n * most);
        top_p = (float*)take(n * most), top_k = take(n * most);
    }

    void clear() { n_[0] = n_[1] = n_[2] = 0; }
    int32_t segment() { return n_[0]++; }
    int32_t row() { return n_[1]++; }
    int32_t read() { return n_[2]++; }

    int32_t *n_rows, *n_kept, *n_segments, *n_reads, *lengths, *tokens, *positions, *reads, *top_k;
    float *temperatures, *uniforms, *top_p;

  private:
    int32_t* n_;
};

// A chunk of one reply.
class Chunk {
  public:
    Chunk(const Blocks& of, int32_t place, int32_t i, Chunks& to)
        : of_(of), reply_(of, place), at_(place), i_(i), to_(to) {}

    // A block, kept where all of it is known.
    void block() {
        const int32_t n = reply_.size();
        Philox noise = this->noise(0);
        for (int32_t i = 0; i < n; ++i) add(i, reply_.rows(0, kMasked)[i], noise);
        finish(n, 0, n_reads_ ? 0 : n);
    }

    // The pending rows and then the leftmost masked ones, by block; all where whole blocks are run.
    void rows(int32_t size) {
        const bool decided = reply_.is_decided(), ahead = of_.ahead && size == reply_.size();
        const bool whole = size > reply_.size();
        if (reply_.n_next(decided || ahead) > 0) reply_.open(1);
        const bool both = !of_.ahead || decided || ahead;
        until_ = whole ? 2 * reply_.size() : reply_.behind_end();
        left_ = whole ? 2 * reply_.size() : size + reply_.n_on_top();
        int32_t n[2] = {0, 0}, n_pending[2] = {0, 0};
        for (int32_t block = 0; block < 1 + both; ++block) {
            Philox noise = this->noise(block);
            n_pending[block] = add(block, kPending, noise);
            n[block] = n_pending[block] + add(block, kMasked, noise);
        }
        finish(n[0], n[1], (decided || !whole ? n_pending[0] : 0) + (decided && !whole ? n_pending[1] : 0));
    }

  private:
    Philox noise(int32_t block) const {
        return Philox(of_.keys + 2 * (int64_t)at_, reply_.start() / reply_.size() + block, reply_.step(block));
    }

    int32_t add(int32_t block, Kind kind, Philox& noise) {
        const uint8_t* rows = reply_.rows(block, kind);
        const int32_t most = std::min(reply_.size(), until_ - block * reply_.size());
        int32_t n = 0;
        for (int32_t i = 0; i < most && left_; ++i)
            if (rows[i]) add(block * reply_.size() + i, kind == kMasked, noise), ++n, --left_;
        return n;
    }

    void add(int32_t offset, bool masked, Philox& noise) {
        const int32_t row = to_.row();
        to_.tokens[row] = reply_.token(offset), to_.positions[row] = reply_.start() + offset;
        if (!masked) return;
        const int32_t read = to_.read();
        ++n_reads_;
        to_.reads[read] = row;
        const float temperature = to_.temperatures[read] = of_.temperatures[at_];
        to_.uniforms[read] = temperature > 0 ? noise(offset % reply_.size()) : 0;
        to_.top_p[read] = of_.top_p[at_], to_.top_k[read] = of_.top_k[at_];
    }

    void finish(int32_t n_first, int32_t n_second, int32_t n_kept) {
        to_.n_rows[i_] = n_first + n_second, to_.n_kept[i_] = n_kept, to_.n_reads[i_] = n_reads_;
        to_.n_segments[i_] = (n_first > 0) + (n_second > 0);
        for (int32_t n : {n_first, n_second})
            if (n) to_.lengths[to_.segment()] = n;
    }

    const Blocks& of_;
    Reply reply_;
    int32_t at_, i_;
    Chunks& to_;
    int32_t until_ = 0, left_ = 0, n_reads_ = 0;
};

// What a step drew: for each of the rows that are read.
struct Drawn {
    const int32_t* tokens;
    const float *confidence, *logprobs;
    uint8_t *passed, *accepted;

    // Which of n rows pass by the threshold alone; where none does the surest is accepted, of equal ones the leftmost.
    void settle(float threshold, int32_t n) const {
        bool some = false;
        for (int32_t i = 0; i < n; ++i) some |= accepted[i] = passed[i] = confidence[i] > threshold;
        if (some || !n) return;
        int32_t best = 0;
        for (int32_t i = 1; i < n; ++i) {
            const bool first = std::isnan(confidence[best]) && !std::isnan(confidence[i]);
            if (confidence[i] > confidence[best] || first) best = i;
        }
        accepted[best] = 1;
    }

    void pass(int32_t n) { tokens += n, confidence += n, logprobs += n, passed += n, accepted += n; }
};

// What a step made known: places in the arrays of `Taken`. sizes and streaks are of each reply, also where no row
// tells how fast it comes.
struct Taken {
    int32_t *n_emitted, *sizes, *streaks, *tokens;
    float* logprobs;
    int8_t* finish;
    uint8_t* passed;

    // Of n replies, which tell so many tokens each at most.
    Taken(int32_t* data, int32_t n, int32_t most) {
        auto take = [&data](int32_t size) { return (data += size) - size; };
        n_emitted = take(n), sizes = take(n), streaks = take(n), tokens = take(n * most), logprobs = (float*)take(n * most);
        finish = (int8_t*)data, passed = (uint8_t*)data + n;
    }

    // Of a reply's rows that were read those that tell how fast it comes: not those behind its end, nor those ahead.
    void show(const Reply& reply, const std::vector<int32_t>& offsets, const uint8_t* passed_of, bool ahead) {
        const int32_t behind = reply.end() - reply.start();
        const int32_t lowest = offsets.empty() ? 0 : *std::min_element(offsets.begin(), offsets.end());
        int32_t size = 0, first = 0;
        bool all = true;
        for (size_t i = 0; i < offsets.size(); ++i) {
            const bool is_ahead = ahead && offsets[i] / reply.size() != lowest / reply.size();
            if (offsets[i] >= behind || is_ahead) continue;
            if (!size++) first = offsets[i];
            all &= *passed++ = passed_of[i];
        }
        *sizes++ = size, *streaks++ = size ? reply.streak(first, size, all) : 0;
    }

    // What is known without a gap; a block that is known and cached is left behind. How many tokens that tells.
    int32_t tell(const Reply& reply) {
        const int32_t gap = reply.gap(), emitted = reply.emitted(), until = std::min(reply.start() + gap, reply.end());
        for (int32_t at = emitted - reply.start(); at < until - reply.start(); ++at)
            *tokens++ = reply.token(at), *logprobs++ = reply.logprob(at);
        *n_emitted++ = until - emitted;
        const Finish how = reply.tell(until);
        *finish++ = how;
        if (gap >= reply.size() && how == kGoesOn) reply.close();
        return until - emitted;
    }
};

// A reply's part of a step.
class Outcome {
  public:
    // positions: of its rows, the first of which is row `first` of the step.
    Outcome(const Reply& reply, const int32_t* positions, const int32_t* reads, int32_t first, int32_t n_reads)
        : reply_(reply), positions_(positions), reads_(n_reads) {
        for (int32_t i = 0; i < n_reads; ++i) reads_[i] = offset(reads[i] - first);
    }

    const std::vector<int32_t>& reads() const { return reads_; }

    // What was pending and ran is cached: the first n rows. False where one was not pending.
    bool keep(int32_t n) const {
        bool all = true;
        for (int32_t i = 0; i < n; ++i) {
            uint8_t& row = reply_.row(offset(i), kPending);
            all &= row, row = 0;
        }
        return all;
    }

    // False where a row was not masked, or the mask was drawn.
    bool accept(const Drawn& drawn) const {
        bool all = true;
        for (size_t i = 0; i < reads_.size(); ++i)
            if (drawn.accepted[i]) all &= reply_.accept(reads_[i], drawn.tokens[i], drawn.logprobs[i]);
        for (size_t i = 0; i < reads_.size(); ++i)
            if (drawn.accepted[i] && reply_.is_end(drawn.tokens[i])) reply_.end_behind(reads_[i]);
        return all;
    }

    // Its blocks took part in a step.
    void count(int32_t n_segments) const {
        ++reply_.step(offset(0) / reply_.size());
        if (n_segments == 2) ++reply_.step(1);
    }

  private:
    // Where in its live blocks a row is.
    int32_t offset(int32_t row) const { return positions_[row] - reply_.start(); }

    const Reply& reply_;
    const int32_t* positions_;
    std::vector<int32_t> reads_;
};

}  // namespace
}  // namespace ramet

extern "C" {

// Three times n numbers: rows that the largest chunks of n replies have, those of them that come on top of a chunk's
// size, and rows of steps of whole blocks.
void ramet_blocks_uncached(const ramet::Blocks* of, const int32_t* places, int32_t n, int32_t* found) {
    for (int32_t i = 0; i < n; ++i) {
        const ramet::Reply reply(*of, places[i]);
        int32_t &uncached = found[i], &on_top = found[n + i], &whole = found[2 * n + i];
        on_top = of->whole ? 0 : reply.n_on_top();
        const int32_t all = reply.count(reply.behind_end()) + reply.n_next(of->ahead || reply.is_decided());
        uncached = of->whole ? reply.size() : std::min(all, reply.size() + on_top);
        whole = of->whole ? reply.size() : reply.count(2 * reply.size()) + reply.n_next(reply.is_decided());
    }
}

// Writes the arrays of `Chunks`, see there.
void ramet_blocks_chunks(
    const ramet::Blocks* of, const int32_t* places, const int32_t* sizes, int32_t n, int32_t* data
) {
    ramet::Chunks made(data, n, 2 * (int32_t)of->size);
    made.clear();
    for (int32_t i = 0; i < n; ++i) {
        ramet::Chunk chunk(*of, places[i], i, made);
        of->whole ? chunk.block() : chunk.rows(sizes[i]);
    }
}

// `data` is what ramet_blocks_chunks wrote, of n_reads rows that are read. passed, accepted: which of them pass and are
// accepted; null where that goes by the thresholds. Writes the arrays of `Taken`, as they stand there. Returns how many
// tokens are emitted; -1 where the mask was drawn, or a row was not what it ran as.
int32_t ramet_blocks_take(
    const ramet::Blocks* of, const int32_t* places, int32_t n, int32_t* data, int32_t n_reads_all,
    const int32_t* tokens, const float* confidence, const float* logprobs, uint8_t* passed, uint8_t* accepted,
    int32_t* out
) {
    const bool settled = passed;
    std::vector<uint8_t> own(settled ? 0 : 2 * n_reads_all);
    ramet::Drawn drawn{tokens, confidence, logprobs, passed, accepted};
    if (!settled) drawn.passed = own.data(), drawn.accepted = own.data() + n_reads_all;
    const ramet::Chunks chunks(data, n, 2 * (int32_t)of->size);
    ramet::Taken taken(out, n, 2 * (int32_t)of->size);
    int32_t n_emitted = 0, row = 0, read = 0;
    bool right = true;
    for (int32_t i = 0; i < n; ++i) {
        const ramet::Reply reply(*of, places[i]);
        const int32_t n_reads = chunks.n_reads[i];
        const ramet::Outcome own(reply, chunks.positions + row, chunks.reads + read, row, n_reads);
        if (!settled) drawn.settle(reply.threshold(), n_reads);
        right &= own.keep(chunks.n_kept[i]) && own.accept(drawn);
        own.count(chunks.n_segments[i]);
        taken.show(reply, own.reads(), drawn.passed, of->ahead);
        n_emitted += taken.tell(reply);
        drawn.pass(n_reads), row += chunks.n_rows[i], read += n_reads;
    }
    return right ? n_emitted : -1;
}

}  // extern "C"

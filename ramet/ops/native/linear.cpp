// Products with a layer's weight in bfloat16, packed once; the contract is ops/linear/reference.py.
//
// A task is a few columns of the weight for a chunk of rows, which stay in a near cache while the weight streams past
// them. An element is summed in the order of its terms alone: a row's bits depend neither on the rows that share the
// call nor on the threads.
#include <atomic>

#include "memory.h"
#include "panel.h"
#include "rms.h"

namespace ramet {
namespace {

using E = Bf16;
using Type = E::Type;

constexpr int kChunk = 256;                 // rows of a task, at most
constexpr int kTasks = 4;                   // a thread, at least
constexpr int64_t kAhead = 256 << 10;       // bytes fetched ahead, at most: they share a cache with the rows
constexpr int64_t kWorthThreads = 1 << 18;  // products

// Rows [row, last_row) and vectors of columns.
struct Task {
    int row, last_row, vector, last_vector;
};

// The tasks of a call: for each chunk of rows, each panel of columns.
class Work {
  public:
    Work(int n_rows, int n_vectors, int n_threads) : n_rows_(n_rows), n_vectors_(n_vectors) {
        const int step = rows_at_once<E>(), n_steps = divide_up(n_rows, step);
        const int n_chunks = std::max(divide_up(n_rows, kChunk), std::min(n_steps, kTasks * n_threads / n_panels()));
        chunk_ = divide_up(n_steps, n_chunks) * step;
    }

    int size() const { return divide_up(n_rows_, chunk_) * n_panels(); }
    int n_panels() const { return divide_up(n_vectors_, vectors_at_once<E>()); }
    int chunk() const { return chunk_; }
    Task operator[](int i) const {
        const int row = i / n_panels() * chunk_, vector = i % n_panels() * vectors_at_once<E>();
        return {row, std::min(n_rows_, row + chunk_), vector, std::min(n_vectors_, vector + vectors_at_once<E>())};
    }

  private:
    int n_rows_, n_vectors_, chunk_;
};

// A call's arguments: weight [n, k] packed, bias [n] and residual [n_rows, n] or null; rows of x and of residual lie
// apart. What is added to a residual stream is float32 like that, and anything else bfloat16.
struct Call {
    int n_rows, n, k;
    const bf16* x;
    int64_t x_row;
    const Type* weight;
    const bf16* bias;
    const float* residual;
    int64_t residual_row;
    void* out;

    int room() const { return round_up(k, E::kPair); }
    int n_vectors() const { return divide_up(n, kLanes); }
    // Whether rows are multiplied as they lie: complete, and for tiles not all in one set of a cache.
    bool is_plain() const {
        if (!std::is_same<bf16, Type>::value || k != room()) return false;
        return !by_units<E>() || (x_row * sizeof(bf16) % 64 == 0 && x_row * sizeof(bf16) % 4096 != 0);
    }
    int a_row() const { return is_plain() ? (int)x_row : padded<Type>(room()); }
    ptrdiff_t vector() const { return (ptrdiff_t)kLanes * room(); }
};

// out = the rounded sums [rows of the task][columns of the task], with what is added to them.
void finish(const Call& call, const Task& task, const float* sums) {
    const int wide = (task.last_vector - task.vector) * kLanes;
    for (int r = task.row; r < task.last_row; ++r)
        for (int j = task.vector; j < task.last_vector; ++j) {
            const int c = j * kLanes, n = std::min(kLanes, call.n - c);
            Vec total = load(sums + (ptrdiff_t)(r - task.row) * wide + (j - task.vector) * kLanes);
            if (call.bias) total += get(call.bias + c, n);
            const int64_t at = (int64_t)r * call.n + c;
            if (call.residual) put((float*)call.out + at, total + get(call.residual + r * call.residual_row + c, n), n);
            else put((bf16*)call.out + at, total, n);
        }
}

// Meanwhile the weight of `next` is fetched.
void compute(const Call& call, const Type* a, const Task& task, const Task& next, float* sums) {
    const int n_vectors = task.last_vector - task.vector, n_rows = task.last_row - task.row;
    const int64_t n_bytes = (next.last_vector - next.vector) * call.vector() * sizeof(Type);
    Ahead ahead(call.weight + next.vector * call.vector(), std::min(n_bytes, kAhead),
                n_fetches(n_rows, call.room(), n_vectors));
    multiply<E>(a + (ptrdiff_t)task.row * call.a_row(), call.a_row(), n_rows, call.weight + task.vector * call.vector(),
                call.room(), n_vectors, sums, n_vectors * kLanes, &ahead);
    finish(call, task, sums);
}

void linear(const Call& call, int n_threads) {
    if (call.n_rows == 0) return;
    if ((int64_t)call.n_rows * call.n * call.k < kWorthThreads) n_threads = 1;
    const Work work(call.n_rows, call.n_vectors(), n_threads);
    static thread_local Memory shared;
    const size_t n_copied = call.is_plain() ? 0 : (size_t)call.n_rows * call.a_row();
    shared.reset(n_copied * sizeof(Type), 1);
    Type* copied = shared.take<Type>(n_copied);
    const Type* a = call.is_plain() ? reinterpret_cast<const Type*>(call.x) : copied;
    std::atomic<int> taken{0};
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        static thread_local Memory own;
        const Units units;
        if (!call.is_plain()) {
#pragma omp for schedule(static)
            for (int r = 0; r < call.n_rows; ++r)
                copy_row<E>(call.x + r * call.x_row, call.k, call.room(), copied + (ptrdiff_t)r * call.a_row());
        }
        const size_t n_sums = (size_t)work.chunk() * vectors_at_once<E>() * kLanes;
        own.reset(n_sums * 4, 1);
        float* sums = own.take<float>(n_sums);
        for (int i = taken++; i < work.size();) {
            const int next = taken++;
            compute(call, a, work[i], work[std::min(next, work.size() - 1)], sums);
            i = next;
        }
    }
}

void pack(const bf16* weight, int n, int k, Type* out, int n_threads) {
    const int room = round_up(k, E::kPair);
    use_large_pages(out, (size_t)round_up(n, kLanes) * room * sizeof(Type));
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int v = 0; v < divide_up(n, kLanes); ++v)
        pack_vectors<E>(weight + (int64_t)v * kLanes * k, 1, std::min(kLanes, n - v * kLanes), k,
                        out + (ptrdiff_t)v * kLanes * room);
}

}  // namespace
}  // namespace ramet

using namespace ramet;

extern "C" {

// Bytes that a packed weight [n, k] takes.
void ramet_linear_size(int32_t n, int32_t k, int64_t* bytes) {
    *bytes = (int64_t)round_up(n, kLanes) * round_up(k, E::kPair) * (int64_t)sizeof(Type);
}

void ramet_linear_pack(const void* weight, int32_t n, int32_t k, void* out, int32_t n_threads) {
    pack((const bf16*)weight, n, k, (Type*)out, n_threads);
}

void ramet_linear(const void* x, int64_t x_row, int32_t n_rows, const void* weight, int32_t n, int32_t k,
                  const void* bias, const float* residual, int64_t residual_row, void* out, int32_t n_threads) {
    linear({n_rows, n, k, (const bf16*)x, x_row, (const Type*)weight, (const bf16*)bias, residual, residual_row, out},
           n_threads);
}
}

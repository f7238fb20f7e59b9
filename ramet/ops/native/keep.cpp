// Rows of keys and values into their slots of the pages; the contract is ops/attention/reference.py.
#include <cstdint>
#include <cstring>

namespace {
constexpr int64_t kWorthThreads = 1 << 16;  // bytes: fewer take less time than waking a thread
}

// Returns how many rows or slots there are not: nothing is written of those.
extern "C" int32_t ramet_keep(const char* k, int64_t k_stride, const char* v, int64_t v_stride, int32_t n_rows,
                              char* page_keys, char* page_values, int64_t n_slots, const int32_t* rows,
                              const int32_t* slots, int32_t n, int64_t n_bytes, int32_t n_threads) {
    int32_t n_bad = 0;
    if (n * n_bytes < kWorthThreads) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1) reduction(+ : n_bad)
    for (int i = 0; i < n; ++i) {
        if (rows[i] < 0 || rows[i] >= n_rows || slots[i] < 0 || slots[i] >= n_slots) {
            ++n_bad;
            continue;
        }
        std::memcpy(page_keys + slots[i] * n_bytes, k + rows[i] * k_stride, n_bytes);
        std::memcpy(page_values + slots[i] * n_bytes, v + rows[i] * v_stride, n_bytes);
    }
    return n_bad;
}

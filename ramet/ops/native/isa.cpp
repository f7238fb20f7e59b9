// What the library was compiled for.
#include "amx.h"

extern "C" const char* ramet_isa() {
    if (ramet::amx::available) return "amx-bf16";
#if defined(RAMET_BF16_DOT)
    return "avx512-bf16";
#elif defined(RAMET_AVX512)
    return "avx512";
#elif defined(RAMET_AVX2)
    return "avx2";
#elif defined(__aarch64__)
    return "neon";
#else
    return "portable";
#endif
}

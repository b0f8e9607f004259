// Which level runs: the best this CPU has, or the one GKMEANS_SIMD names.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.hpp"

namespace gkmeans {

const char* const kLevels[4] = {"baseline", "avx2", "avx512", "avx512vbmi"};

const Kernels* find(const char* name) {
    if (!std::strcmp(name, "baseline")) return &kernels_baseline();
#ifdef GKMEANS_X86
    if (!std::strcmp(name, "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &kernels_avx2();
    const bool wide = !std::strcmp(name, "avx512"), vbmi = !std::strcmp(name, "avx512vbmi");
    if ((wide || vbmi) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        if (wide) return &kernels_avx512();
        if (__builtin_cpu_supports("avx512vbmi")) return &kernels_avx512vbmi();
    }
#endif
    return nullptr;
}

static const Kernels* choose() {
    if (const char* wanted = std::getenv("GKMEANS_SIMD"); wanted && *wanted) {
        if (const Kernels* k = find(wanted)) return k;
        throw std::runtime_error(
            "GKMEANS_SIMD=" + std::string(wanted) +
            " is not a level of this CPU and build; use baseline, avx2 (which needs FMA, too), avx512 or "
            "avx512vbmi, or unset it");
    }
    for (int l = 3; l > 0; --l) {
        if (const Kernels* k = find(kLevels[l])) return k;
    }
    return &kernels_baseline();
}

const Kernels& active() {
    static const Kernels* const chosen = choose();
    return *chosen;
}

}  // namespace gkmeans

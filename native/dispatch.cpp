// Which level runs: the best this CPU has, or the one GKMEANS_SIMD names; and what makes products.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "coarse.hpp"
#include "kernels.hpp"
#include "matrix.hpp"
#include "near.hpp"
#include "swift.hpp"

#ifdef GKMEANS_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

static const Kernels* best() {
    for (int l = 3; l > 0; --l) {
        if (const Kernels* k = find(kLevels[l])) return k;
    }
    return &kernels_baseline();
}

static const Kernels* choose() {
    if (const char* wanted = std::getenv("GKMEANS_SIMD"); wanted && *wanted) {
        if (const Kernels* k = find(wanted)) return k;
        throw std::runtime_error(
            "GKMEANS_SIMD=" + std::string(wanted) +
            " is not a level of this CPU and build; use baseline, avx2 (which needs FMA, too), avx512 or "
            "avx512vbmi, or unset it");
    }
    return best();
}

const Kernels& active() {
    static const Kernels* const chosen = choose();
    return *chosen;
}

static bool ask_for_matrix_unit() {
#ifdef GKMEANS_AMX
    constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && !syscall(SYS_arch_prctl, kRequest, kTileData);
#else
    return false;
#endif
}

static bool choose_matrix_unit() {
    const char* set = std::getenv("GKMEANS_PRODUCTS");
    const std::string products = set ? set : "";
    if (products == "blas" || products == "fused") return false;
    const bool has = ask_for_matrix_unit();
    if (products.empty() || (products == "amx" && has)) return has;
    throw std::runtime_error("GKMEANS_PRODUCTS=" + products +
                             (products == "amx"
                                  ? ", but this CPU, system or build has no matrix unit; use fused or blas"
                                  : " is unknown; use amx, fused or blas") +
                             ", or unset it for the unit where there is one");
}

bool has_matrix_unit() {
    static const bool has = choose_matrix_unit();
    return has;
}

bool has_coarse_products() {
#ifdef GKMEANS_X86
    static const bool has = [] {
        has_matrix_unit();  // refuses a value that is not known
        const char* set = std::getenv("GKMEANS_PRODUCTS");
        return !(set && *set) && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl");
    }();
    return has;
#else
    return false;
#endif
}

const Kernels* fused_products() {
    static const Kernels* const chosen = [] {
        has_matrix_unit();  // refuses a value that is not known
        const char* set = std::getenv("GKMEANS_PRODUCTS");
        const std::string products = set ? set : "";
        const Kernels* k = best() == &kernels_baseline() ? nullptr : best();
        if (products == "fused" && !k)
            throw std::runtime_error(
                "GKMEANS_PRODUCTS=fused, but this CPU or build has no AVX2 with FMA; use blas, on all "
                "machines that should have equal bits");
        return products == "blas" ? nullptr : k;
    }();
    return chosen;
}

#ifndef GKMEANS_X86  // never called
void coarse_pack(int, int, const float*, std::uint8_t*) {}
void coarse_multiply(const Sizes&, const float*, const std::uint8_t*, float*, void*) {}
void rounded_lengths(int, int, const float*, float*, void*) {}
std::size_t near_workspace(int, int) { return 0; }
void nearest_centres(const Near&, int, const float*, const float*, int, float*, std::int64_t*, void*) {}
void swift_pack(int, int, int, int, const float*, int, float, Short*) {}
std::size_t swift_workspace(int, int, int) { return 0; }
void swift_assign(const Steps&, int, int, const float*, const std::uint8_t*, Code*, bool, int, std::uint64_t,
                  void*, const volatile int*) {}
#endif
#ifndef GKMEANS_AMX  // never called
void pack(int, int, const float*, std::uint16_t*) {}
void multiply(const Sizes&, const float*, const std::uint16_t*, float*, void*) {}
#endif

}  // namespace gkmeans

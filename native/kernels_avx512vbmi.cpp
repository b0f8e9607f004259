// What AVX-512 VBMI adds to AVX-512: lookups in tables of 256 bytes, and with them the whole of scan.inl.
#define GKMEANS_LEVEL avx512vbmi
#include "kernels.hpp"
//
#include "simd.inl"
//
#include "simd_bytes.inl"
//
#include "scan.inl"

namespace gkmeans {

static Kernels with_vbmi() {
    Kernels table = kernels_avx512();
    table.name = "avx512vbmi";
    table.products = avx512vbmi::products;
    table.candidates = avx512vbmi::candidates;
    table.arrange = avx512vbmi::arrange;
    table.extremes = avx512vbmi::extremes;
    table.round_down = avx512vbmi::round_down;
    table.not_above = avx512vbmi::not_above;
    table.pack_bits = avx512vbmi::pack_bits;
    table.halving = avx512vbmi::kHalving;
    return table;
}

const Kernels& kernels_avx512vbmi() {
    static const Kernels table = with_vbmi();
    return table;
}

}  // namespace gkmeans

#define GKMEANS_LEVEL avx512
#include "kernels.inl"

namespace gkmeans {

const Kernels& kernels_avx512() {
    using namespace avx512;
    static constexpr Kernels table{"avx512",    nearest,   greedy,    from_residuals, order1,  order2,
                                   order_n,     rounds,    pursue,    decode,         errors,  add_rows,
                                   count_pairs, minima,    products,  candidates,     arrange, extremes,
                                   round_down,  not_above, pack_bits, kHalving};
    return table;
}

}  // namespace gkmeans

#define GKMEANS_LEVEL avx2
#include "kernels.inl"

namespace gkmeans {

const Kernels& kernels_avx2() {
    using namespace avx2;
    static constexpr Kernels table{"avx2",      nearest,   greedy,    from_residuals, order1,  order2,
                                   order_n,     rounds,    pursue,    decode,         errors,  add_rows,
                                   count_pairs, minima,    products,  candidates,     arrange, extremes,
                                   round_down,  not_above, pack_bits, kHalving};
    return table;
}

}  // namespace gkmeans

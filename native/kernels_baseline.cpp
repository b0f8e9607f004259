#define GKMEANS_LEVEL baseline
#include "kernels.inl"

namespace gkmeans {

const Kernels& kernels_baseline() {
    using namespace baseline;
    static constexpr Kernels table{"baseline",  nearest,   greedy,    from_residuals, order1,  order2,
                                   order_n,     rounds,    pursue,    decode,         errors,  add_rows,
                                   count_pairs, minima,    products,  candidates,     arrange, extremes,
                                   round_down,  not_above, pack_bits, kHalving};
    return table;
}

}  // namespace gkmeans

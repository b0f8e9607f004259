// The nearest of some thousand centres, exactly: products in bytes (coarse.hpp) bound the scores, and only
// what may be among the best is scored in floats, as probe.cpp scores all.
#pragma once
#include "coarse.hpp"

namespace gkmeans {

// Lengths of n rows A (n, P), and of what rounding to levels takes from them: out (2, n), each a little more
// than it is. `work` holds coarse_workspace(P) bytes, 64-aligned.
void rounded_lengths(int n, int P, const float* A, float* out, void* work);

struct Near {
    int P, W;                    // W a multiple of 32
    const float* rows;           // (W, P) centres
    const float* norms;          // (W) at most the squared length, or +inf where there is no centre
    const std::uint8_t* packed;  // the centres in levels, 64-aligned
    const float* lengths;        // (2, W) by rounded_lengths
};

std::size_t near_workspace(int P, int W);

// The m centres with the least bias + <q, centre> + norm for each of n rows, best first, ties by place;
// `scores` (n, m) come as +inf, `places` (n, m) as -1. `work` holds near_workspace(P, W) bytes, 64-aligned.
void nearest_centres(const Near&, int n, const float* Q, const float* bias, int m, float* scores,
                     std::int64_t* places, void* work);

}  // namespace gkmeans

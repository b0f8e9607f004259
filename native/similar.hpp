// An order of codewords that puts similar ones together.
#pragma once

namespace gkmeans {

// D (K, P): halved again and again along the direction of most variance, found by a few power iterations,
// until `width` or fewer are left. The same for every level.
void similar_order(int K, int P, const float* D, int width, int* order);

}  // namespace gkmeans

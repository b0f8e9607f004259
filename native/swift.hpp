// Order-1 group assignment in 16-bit steps, for choices that noise may sway a little (coarse.hpp).
//
// Costs are whole numbers of steps, 32 to a register: half the memory and twice the lanes of floats. A row's
// costs stay in L1 while its codes are chosen, and what a change of one code does to all of them lies
// together in T. All of it is integers after one rounding, the same wherever it is made.
//
// No sum leaves 16 bits: the entries of T that meet in one sum are at most kMostTogether together, and a
// codeword alone costs from 0, for the least of its dictionary, to kMostAlone, more than that counting as
// that. This is never the least cost: T would have to raise one codeword and lower another by all it can. (It
// may be where a codeword is left out, choose_other in swift.cpp; then one of the K is taken all the same.)
#pragma once
#include "coarse.hpp"
#include "kernels.hpp"

namespace gkmeans {

using Short = std::int16_t;
constexpr int kShorts = 32;      // of a register; K is filled up to a multiple of it
constexpr int kSwiftRows = 120;  // at a time: twenty times six, as products are made
constexpr int kMostTogether = 10922, kMostAlone = 2 * kMostTogether;

// The dictionaries in steps.
struct Steps {
    int C, K, Ks;
    const Short* T;  // (C, K, C, Ks)  T[b][j][c][k] = <d^b_j, d^c_k>, nothing where b = c
    const float* N;  // (C, Ks)        half the squared norms; +inf past K
    float each;      // steps of a unit

    // What codeword j of b adds to the cost of every other codeword.
    const Short* row(int b, int j) const {
        return T + (static_cast<std::size_t>(b) * K + j) * static_cast<std::size_t>(C) * Ks;
    }
};

// T (C, K, Kp) of dictionary c in floats, T[b][j][k] = <d^b_j, d^c_k>, as its part of `out` (C, K, C, Ks).
void swift_pack(int C, int K, int Kp, int Ks, const float* T, int c, float each, Short* out);

std::size_t swift_workspace(int C, int Ks, int P);

// Codes (n, C) of the rows X (n, P), whose products with the codewords, filled up to Ks, are made by `packed`
// (coarse.hpp): from a greedy start, or, where `start` is false, from the codes given. Then `rounds` that
// perturb the codes, of which the best are kept. They draw the dictionaries whose codes they choose anew;
// `in_turn` the first 2 C rounds go through all dictionaries instead. `work` holds swift_workspace(…) bytes,
// 64-aligned; when `stop` is not 0 the function returns early.
void swift_assign(const Steps&, int n, int P, const float* X, const std::uint8_t* packed, Code* codes,
                  bool start, int rounds, bool in_turn, std::uint64_t seed, void* work,
                  const volatile int* stop);

}  // namespace gkmeans

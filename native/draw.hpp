// The random numbers of perturbed codes: made of the row's own codes, the round and a seed, so that a row's
// result does not depend on the rows around it.
#pragma once
#include <cstdint>

#include "kernels.hpp"

namespace gkmeans {

// splitmix64 (Steele, Lea and Flood 2014).
static inline std::uint64_t mixed(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// A number below `end`, which is at most 65536.
static inline int drawn(std::uint64_t* state, int end) {
    *state = mixed(*state);
    return static_cast<int>((*state >> 32) * static_cast<std::uint64_t>(end) >> 32);
}

// Sets half of C codes, each dictionary at most once, to any of K codewords.
static inline void perturb(int C, int K, std::uint64_t seed, Code* code) {
    std::uint64_t state = seed;
    for (int c = 0; c < C; ++c) state = mixed(state ^ code[c]);
    int missing = C / 2;
    for (int c = 0; missing > 0; ++c) {
        if (drawn(&state, C - c) >= missing) continue;
        code[c] = static_cast<Code>(drawn(&state, K));
        --missing;
    }
}

}  // namespace gkmeans

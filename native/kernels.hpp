// The kernels: plain loops over raw pointers, single-threaded, one block of rows a call.
//
// Letters are the paper's. A block has n rows; a row has C codes below K; K is padded to Kp, a multiple of 16,
// and the half norms of the padding are +inf, so that a padded codeword never wins.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gkmeans {

using Code = std::uint16_t;
constexpr int kPad = 16;  // floats; one 512-bit register, the widest level's step
constexpr int kMaxOrder = 64;  // dictionaries assigned jointly; far beyond what can be searched

// The dictionaries as the assignment sees them (Eq. 8).
struct Tables {
    int C, K, Kp;
    const float* T;       // (C, C, K, Kp)  T[c][b][j][k] = <d^c_k, d^b_j>: a row for each codeword j of b
    const float* N;       // (C, Kp)        half the squared norms
    const float* rowmin;  // (C, C, Kp)     the least entry of each row of T

    const float* row(int c, int b, int j) const {
        return T + ((static_cast<std::size_t>(c) * C + b) * K + j) * Kp;
    }
    const float* row_minima(int c, int b) const { return rowmin + (static_cast<std::size_t>(c) * C + b) * Kp; }
};

// What one instruction set offers. `stop` is read now and then; when it is not 0 the kernel returns early.
// V (n, C, Kp) comes in as the products <x, d^c_k> and is used up. `work` holds workspace(…) bytes, 64-aligned.
struct Kernels {
    const char* name;

    // Dictionaries in order, each on the residual of those before (Sec. 2.3.2).
    void (*greedy)(const Tables&, int n, const float* V, Code* codes, void* work);
    // Order-1 group assignment, sweeps until no code changes (Eq. 6).
    void (*order1)(const Tables&, int n, const float* V, Code* codes, void* work);
    // Order-2 group assignment over consecutive pairs with exact row pruning (Eq. 12).
    void (*order2)(const Tables&, int n, float* V, Code* codes, void* work, const volatile int* stop);
    // Order-m group assignment over m consecutive dictionaries by branch and bound.
    void (*order_n)(const Tables&, int m, int n, float* V, Code* codes, void* work, const volatile int* stop);

    // out (n, P) = sum over c of D[c, codes[i, c]], with D (C, K, P).
    void (*decode)(int n, int C, int K, int P, const float* D, const Code* codes, float* out);
    // out (n) = squared distance of row i of X (n, P) to its decoding.
    void (*errors)(int n, int C, int K, int P, const float* X, const float* D, const Code* codes, float* out);
    // W (C, K, P) += X[i] at each of row i's codes.
    void (*add_rows)(int n, int C, int K, int P, const float* X, const Code* codes,
                     double* W);
    // Z (K, K)[codes[i, b], codes[i, c]] += 1.
    void (*count_pairs)(int n, int C, int K, int b, int c, const Code* codes, std::int32_t* Z);
};

// Bytes that greedy, order1 and order2 (m <= 2) or order_n need.
inline std::size_t workspace(int C, int Kp, int n, int m) {
    const std::size_t vectors = m <= 2 ? 3 : static_cast<std::size_t>(m) * (2 * m + 2);
    return vectors * Kp * sizeof(float) + static_cast<std::size_t>(n) * 2 * sizeof(int) + 64 * (C + 1);
}

const Kernels& kernels_baseline();
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();

// dispatch.cpp
const Kernels& active();            // the chosen level; GKMEANS_SIMD at the first call, else the best one
const Kernels* find(const char*);   // by name; null where this CPU or build lacks it
extern const char* const kLevels[3];

}  // namespace gkmeans

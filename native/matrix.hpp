// Products of float32 matrices by the CPU's matrix unit (AMX), where it has one and the system lets us use
// it.
//
// The unit multiplies bfloat16, 8 significant bits, and sums in float32. Every number is cut into two of
// these, x = high + low with an error below 2^-16 |x|, and all products but low * low are summed. The error
// is about 2^-18 / sqrt(P) of the lengths, 10 to 50 times that of a float32 sum; squares come out up to 2^-18
// too small. Products are exact where one factor has 8 significant bits and the other 16, if their sum is.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gkmeans {

constexpr int kStep = 32;                          // numbers of a row that one instruction takes in
constexpr int kWide = 32;                          // rows and columns worked on together: two tiles each
constexpr std::size_t kPanel = 2 * kWide * kStep;  // halves of kWide rows and kStep numbers, high and low

constexpr int kRows = 256;  // of A at a time

static inline int steps(int P) { return (P + kStep - 1) / kStep; }
static inline int panels(int m) { return (m + kWide - 1) / kWide; }

static inline std::size_t packed_size(int m, int P) {
    return static_cast<std::size_t>(panels(m)) * steps(P) * kPanel;
}
static inline std::size_t multiply_workspace(int P) { return packed_size(kRows, P) * sizeof(std::uint16_t); }

// dispatch.cpp: asks the system for the unit at the first call; false where GKMEANS_PRODUCTS=blas.
bool has_matrix_unit();

// B (m, P) as the unit reads it: out (panels(m), steps(P), kPanel).
void pack(int m, int P, const float* B, std::uint16_t* out);

struct Sizes {
    int G, n, m, P;
    std::size_t apart;  // floats from one matrix of `out` to the next
};

// out[g] (n, m) = A (n, P) times B[g]^T for each of G matrices of m rows, packed one after the other. `work`
// holds multiply_workspace(P) bytes, 64-aligned.
void multiply(const Sizes&, const float* A, const std::uint16_t* B, float* out, void* work);

}  // namespace gkmeans

// Products of float32 matrices by the CPU's matrix unit (AMX), where it has one and the system lets us use
// it.
//
// The unit multiplies bfloat16, 8 significant bits, and sums in float32. Every number is cut into two of
// these, x = high + low with an error below 2^-16 |x|, and all products but low * low are summed: the error
// is about 2^-22 |a| |b| in all, a few times that of float32, and the speed three to four times that of a
// BLAS. Products of whole numbers up to 256 are exact.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gkmeans {

constexpr int kStep = 32;                          // numbers of a row that one instruction takes in
constexpr int kWide = 32;                          // rows and columns worked on together: two tiles each
constexpr std::size_t kPanel = 2 * kWide * kStep;  // halves of kWide rows and kStep numbers, high and low

constexpr int kRows = 256;  // of A at a time

inline int steps(int P) { return (P + kStep - 1) / kStep; }
inline int panels(int m) { return (m + kWide - 1) / kWide; }

inline std::size_t packed_size(int m, int P) {
    return static_cast<std::size_t>(panels(m)) * steps(P) * kPanel;
}
inline std::size_t multiply_workspace(int P) { return packed_size(kRows, P) * sizeof(std::uint16_t); }

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

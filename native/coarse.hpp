// Products of float32 matrices in bytes: for choices that noise may sway a little, four times as fast as
// floats.
//
// Every row is rounded to 255 levels of its own, and so is every row of the other matrix; the sums are of
// integers, exact, and so the same wherever they are made. A product is off by about 0.013 of the lengths
// over sqrt(P), a hundredth of what two unrelated rows give. Made by AVX-512 VNNI, where the CPU has it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "matrix.hpp"

namespace gkmeans {

constexpr int kQuad = 4;               // numbers of a row that one lane takes in
constexpr int kColumns = 64;           // rows of B that lie together: a panel
constexpr int kCoarseRows = 128;       // of A at a time
constexpr int kMostNumbers = 1 << 16;  // of a row: their sum fits 32 bits

// Bytes filled up to whole lines of the cache.
static inline std::size_t lines(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

static inline int quads(int P) { return (P + kQuad - 1) / kQuad; }
static inline int coarse_panels(int m) { return (m + kColumns - 1) / kColumns; }
// Bytes of a panel: its levels, then for each row its sum of levels, 128 times, and the size of a level.
static inline std::size_t coarse_panel(int P) {
    return static_cast<std::size_t>(quads(P)) * kQuad * kColumns +
           kColumns * (sizeof(std::int32_t) + sizeof(float));
}
static inline std::size_t coarse_size(int m, int P) { return coarse_panels(m) * coarse_panel(P); }
static inline std::size_t coarse_workspace(int P) {
    return static_cast<std::size_t>(kCoarseRows) * (quads(P) * kQuad + sizeof(float)) + 64;
}

// dispatch.cpp: false where GKMEANS_PRODUCTS names something else.
bool has_coarse_products();

// B (m, P) in levels: out (coarse_size(m, P)), 64-aligned.
void coarse_pack(int m, int P, const float* B, std::uint8_t* out);

// At most kCoarseRows rows of P numbers in levels, each filled up to a multiple of four.
struct Rounded {
    int n, P;
    float* levels;       // (n)  the size of a level
    std::uint8_t* rows;  // (n, wide)

    std::size_t wide() const { return static_cast<std::size_t>(quads(P)) * kQuad; }
};

// n rows in `work`, which holds coarse_workspace(P) bytes, 64-aligned.
static inline Rounded rounded_in(void* work, int n, int P) {
    float* levels = static_cast<float*>(work);
    return {n, P, levels, reinterpret_cast<std::uint8_t*>(levels + kCoarseRows)};
}

// Rounds the rows of A (n, P).
void coarse_round(const float* A, const Rounded& to);

// out (n, m) = A times B^T for one matrix of m rows, a multiple of 16.
void coarse_times(const Rounded& A, int m, const std::uint8_t* B, float* out);

// out[g] (n, m) = A (n, P) times B[g]^T for each of G matrices of m rows, a multiple of 16, packed one after
// the other. `work` holds coarse_workspace(P) bytes, 64-aligned.
void coarse_multiply(const Sizes&, const float* A, const std::uint8_t* B, float* out, void* work);

}  // namespace gkmeans

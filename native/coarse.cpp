// Products in bytes by AVX-512 VNNI; coarse.hpp says what they are.
//
// A panel of 64 rows of B lies four numbers a lane, sixteen lanes a register. Six rows of A are taken
// through a panel together: 24 registers of sums, for each four numbers four loads and six broadcasts.
#include "coarse.hpp"

#include <immintrin.h>

namespace gkmeans {

constexpr int kTogether = 6, kRegisters = kColumns / 16;

// The size of a level of P numbers: the largest of them is 127 levels.
static float level_of(int P, const float* x) {
    __m512 most = _mm512_setzero_ps();
    for (int p = 0; p < P; p += 16) {
        const __mmask16 some = P - p < 16 ? static_cast<__mmask16>((1u << (P - p)) - 1) : 0xffff;
        most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_maskz_loadu_ps(some, x + p)));
    }
    const float level = _mm512_reduce_max_ps(most) / 127;
    return level > 1e-37f ? level : 0;  // its inverse must be a number
}

// Levels of P numbers as bytes, 128 standing for none, or signed where `middle` is 0; returns their sum.
static int round_row(int P, const float* x, float level, int middle, std::uint8_t* out) {
    const __m512 steps = _mm512_set1_ps(level > 0 ? 1 / level : 0);
    const __m512i most = _mm512_set1_epi32(127), least = _mm512_set1_epi32(-127);
    __m512i sum = _mm512_setzero_si512();
    for (int p = 0; p < P; p += 16) {
        const __mmask16 some = P - p < 16 ? static_cast<__mmask16>((1u << (P - p)) - 1) : 0xffff;
        __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(some, x + p), steps));
        q = _mm512_max_epi32(_mm512_min_epi32(q, most), least);
        sum = _mm512_add_epi32(sum, q);
        _mm512_mask_cvtepi32_storeu_epi8(out + p, some, _mm512_add_epi32(q, _mm512_set1_epi32(middle)));
    }
    return _mm512_reduce_add_epi32(sum);
}

void coarse_pack(int m, int P, const float* B, std::uint8_t* out) {
    const int Q = quads(P);
    for (int first = 0; first < m; first += kColumns, out += coarse_panel(P)) {
        __builtin_memset(out, 0, coarse_panel(P));
        std::int32_t* offset =
            reinterpret_cast<std::int32_t*>(out + static_cast<std::size_t>(Q) * kQuad * kColumns);
        float* levels = reinterpret_cast<float*>(offset + kColumns);
        for (int k = 0; k < kColumns && first + k < m; ++k) {
            const float* row = B + static_cast<std::size_t>(first + k) * P;
            levels[k] = level_of(P, row);
            for (int p = 0; p < P; p += kQuad) {
                const int some = P - p < kQuad ? P - p : kQuad;
                std::uint8_t four[kQuad] = {};
                offset[k] += 128 * round_row(some, row + p, levels[k], 0, four);
                __builtin_memcpy(out + (static_cast<std::size_t>(p / kQuad) * kColumns + k) * kQuad, four,
                                 kQuad);
            }
        }
    }
}

// Rows 0 ... kRows - 1 of `A` (levels, `wide` bytes each) times one panel; columns 0 ... m - 1 of `out`,
// whose rows are `step` floats apart.
template <int kRows>
static void tile(int Q, std::size_t wide, const std::uint8_t* A, const float* levels,
                 const std::uint8_t* panel, int m, float* out, std::size_t step) {
    __m512i sums[kRows][kRegisters];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int c = 0; c < kRegisters; ++c) sums[r][c] = _mm512_setzero_si512();
    }
    for (int q = 0; q < Q; ++q) {
        __m512i b[kRegisters];
#pragma GCC unroll 8
        for (int c = 0; c < kRegisters; ++c) b[c] = _mm512_load_si512(panel + (q * kRegisters + c) * 64);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            std::int32_t four;
            __builtin_memcpy(&four, A + r * wide + q * kQuad, kQuad);
            const __m512i a = _mm512_set1_epi32(four);
#pragma GCC unroll 8
            for (int c = 0; c < kRegisters; ++c) sums[r][c] = _mm512_dpbusd_epi32(sums[r][c], a, b[c]);
        }
    }
    const std::uint8_t* offset = panel + static_cast<std::size_t>(Q) * kQuad * kColumns;
    const float* sizes = reinterpret_cast<const float*>(offset + kColumns * sizeof(std::int32_t));
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; ++c) {
        if (16 * c >= m) continue;  // every index a constant: the sums stay in registers
        const __m512i less = _mm512_load_si512(offset + 64 * c);
        const __m512 size = _mm512_load_ps(sizes + 16 * c);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const __m512 whole = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[r][c], less));
            _mm512_storeu_ps(out + r * step + 16 * c,
                             _mm512_mul_ps(whole, _mm512_mul_ps(_mm512_set1_ps(levels[r]), size)));
        }
    }
}

void coarse_round(const float* A, const Rounded& to) {
    const std::size_t wide = to.wide();
    for (int r = 0; r < to.n; ++r) {
        const float* x = A + static_cast<std::size_t>(r) * to.P;
        std::uint8_t* row = to.rows + r * wide;
        to.levels[r] = level_of(to.P, x);
        __builtin_memset(row + wide - kQuad, 128, kQuad);
        round_row(to.P, x, to.levels[r], 128, row);
    }
}

void coarse_times(const Rounded& A, int m, const std::uint8_t* B, float* out) {
    const int Q = quads(A.P), panels = coarse_panels(m);
    const std::size_t wide = A.wide();
    for (int p = 0; p < panels; ++p, B += coarse_panel(A.P)) {
        float* part = out + p * kColumns;
        int r = 0;
        for (; r + kTogether <= A.n; r += kTogether) {
            tile<kTogether>(Q, wide, A.rows + r * wide, A.levels + r, B, m - p * kColumns,
                            part + static_cast<std::size_t>(r) * m, m);
        }
        for (; r < A.n; ++r) {
            tile<1>(Q, wide, A.rows + r * wide, A.levels + r, B, m - p * kColumns,
                    part + static_cast<std::size_t>(r) * m, m);
        }
    }
}

void coarse_multiply(const Sizes& s, const float* A, const std::uint8_t* B, float* out, void* work) {
    for (int first = 0; first < s.n; first += kCoarseRows) {
        const int some = s.n - first < kCoarseRows ? s.n - first : kCoarseRows;
        const Rounded rows = rounded_in(work, some, s.P);
        coarse_round(A + static_cast<std::size_t>(first) * s.P, rows);
        for (int g = 0; g < s.G; ++g) {
            coarse_times(rows, s.m, B + g * coarse_size(s.m, s.P),
                         out + g * s.apart + static_cast<std::size_t>(first) * s.m);
        }
    }
}

}  // namespace gkmeans

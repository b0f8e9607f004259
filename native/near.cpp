// Bounds by Cauchy and Schwarz; near.hpp says what for.
//
// With x = x' + dx and c = c' + dc, primes in levels, <x, c> - <x', c'> = <dx, c> + <x', dc>, which is at
// most |dx| |c| + |x'| |dc|. With 128 columns that is some twenty times what rounding really does, and still
// leaves two candidates for each of the nearest centres of image descriptors.
//
// No standard-library templates here, as in kernels.inl.
#include "near.hpp"

#include <immintrin.h>

#include "heap.hpp"
#include "search.hpp"

namespace gkmeans {

constexpr int kNearRows = 48;  // at a time: eight times six, as products are made
constexpr int kScored = 8;     // centres whose sums are made side by side
constexpr float kMore = 1.001f;
static_assert(kNearRows <= kCoarseRows);

struct Lengths {
    float whole, rounded, left;
};

static Lengths lengths_of(int P, const float* x, float level, const std::uint8_t* levels) {
    __m512 whole = _mm512_setzero_ps(), rounded = whole, left = whole;
    const __m512 size = _mm512_set1_ps(level);
    for (int p = 0; p < P; p += 16) {
        const __mmask16 some = P - p < 16 ? static_cast<__mmask16>((1u << (P - p)) - 1) : 0xffff;
        const __m512i steps = _mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(some, levels + p)),
                                               _mm512_set1_epi32(128));
        const __m512 value = _mm512_maskz_loadu_ps(some, x + p);
        const __m512 in_levels = _mm512_maskz_mul_ps(some, _mm512_cvtepi32_ps(steps), size);
        const __m512 rest = _mm512_sub_ps(value, in_levels);
        whole = _mm512_fmadd_ps(value, value, whole);
        rounded = _mm512_fmadd_ps(in_levels, in_levels, rounded);
        left = _mm512_fmadd_ps(rest, rest, left);
    }
    // squares that are too small for floats are no more than this together
    const float lost = __builtin_sqrtf(static_cast<float>(P)) * 0x1p-70f;
    const auto length = [lost](__m512 squares) {
        return kMore * __builtin_sqrtf(_mm512_reduce_add_ps(squares)) + lost;
    };
    return {length(whole), length(rounded), length(left)};
}

void rounded_lengths(int n, int P, const float* A, float* out, void* work) {
    for (int first = 0; first < n; first += kCoarseRows) {
        const int some = n - first < kCoarseRows ? n - first : kCoarseRows;
        const Rounded rounded = rounded_in(work, some, P);
        const float* rows = A + static_cast<std::size_t>(first) * P;
        coarse_round(rows, rounded);
        for (int i = 0; i < some; ++i) {
            const Lengths own = lengths_of(P, rows + static_cast<std::size_t>(i) * P, rounded.levels[i],
                                           rounded.rows + i * rounded.wide());
            out[first + i] = own.whole;
            out[n + first + i] = own.left;
        }
    }
}

std::size_t near_workspace(int P, int W) {
    return lines(coarse_workspace(P)) + (kNearRows + 1) * lines(W * sizeof(float)) +
           lines((W + 16) * sizeof(std::int32_t));
}

namespace {

// One row on its way.
struct Probe {
    const Near& near;
    const float* x;  // (P)
    float bias;
    float *high, *low;     // (W) bounds of the scores, the low ones in the place of the products
    std::int32_t* chosen;  // (W + 16) centres that may be among the best

    // Bounds from products in levels. Float sums may err by a part of all sizes, norms being at most the
    // squared lengths, and by what floats are too coarse for near zero.
    void bound(const Lengths& own) {
        const __m512 left = _mm512_set1_ps(own.left), rounded = _mm512_set1_ps(own.rounded),
                     whole = _mm512_set1_ps(own.whole), b = _mm512_set1_ps(bias),
                     size = _mm512_set1_ps(__builtin_fabsf(bias)),
                     part = _mm512_set1_ps(static_cast<float>(near.P + 8) * 0x1p-22f),
                     least = _mm512_set1_ps(static_cast<float>(near.P) * 0x1p-120f);
        for (int k = 0; k < near.W; k += 16) {
            const __m512 length = _mm512_loadu_ps(near.lengths + k);
            const __m512 loss = _mm512_loadu_ps(near.lengths + near.W + k);
            const __m512 score =
                _mm512_add_ps(_mm512_add_ps(b, _mm512_loadu_ps(low + k)), _mm512_loadu_ps(near.norms + k));
            __m512 sizes = _mm512_fmadd_ps(length, _mm512_add_ps(whole, length), size);
            __m512 off = _mm512_fmadd_ps(sizes, part, least);
            off = _mm512_fmadd_ps(left, length, _mm512_fmadd_ps(rounded, loss, off));
            _mm512_storeu_ps(high + k, _mm512_add_ps(score, off));
            _mm512_storeu_ps(low + k, _mm512_sub_ps(score, off));
        }
    }

    // The m-th smallest of the high bounds; `scores` and `places` (m) are +inf and -1 before and after.
    float limit(int m, float* scores, std::int64_t* places) const {
        Heap heap{m, scores, places};
        for (int k = 0; k < near.W; k += 16) {
            const __m512 bounds = _mm512_loadu_ps(high + k);
            unsigned mask = _mm512_cmp_ps_mask(bounds, _mm512_set1_ps(heap.worst()), _CMP_LT_OQ);
            for (; mask; mask &= mask - 1) {
                const int i = k + __builtin_ctz(mask);
                heap.take(high[i], i);
            }
        }
        const float out = heap.worst();
        for (int i = 0; i < m; ++i) scores[i] = kNone, places[i] = -1;
        return out;
    }

    // What is not above the limit, also where sums overflow to no number.
    int choose(float limit) const {
        const __m512 most = _mm512_set1_ps(limit);
        __m512i place = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        int count = 0;
        for (int k = 0; k < near.W; k += 16) {
            const __mmask16 mask = _mm512_cmp_ps_mask(_mm512_loadu_ps(low + k), most, _CMP_NGT_UQ);
            if (mask) _mm512_storeu_si512(chosen + count, _mm512_maskz_compress_epi32(mask, place));
            count += __builtin_popcount(mask);
            place = _mm512_add_epi32(place, _mm512_set1_epi32(16));
        }
        return count;
    }

    // Products of the row with some centres; the sum over p is taken in order, as everywhere.
    void products(int count, const std::int32_t* some, float* out) const {
        const float* c[kScored];
        for (int j = 0; j < kScored; ++j)
            c[j] = near.rows + static_cast<std::size_t>(some[j < count ? j : 0]) * near.P;
        float sums[kScored] = {};
        for (int p = 0; p < near.P; ++p) {
#pragma GCC unroll 8
            for (int j = 0; j < kScored; ++j) sums[j] = __builtin_fmaf(x[p], c[j][p], sums[j]);
        }
        for (int j = 0; j < kScored; ++j) out[j] = sums[j];
    }

    void score(int count, int m, float* scores, std::int64_t* places) const {
        Heap heap{m, scores, places};
        for (int first = 0; first < count; first += kScored) {
            const int some = count - first < kScored ? count - first : kScored;
            float sums[kScored];
            products(some, chosen + first, sums);
            for (int j = 0; j < some; ++j) {
                const int l = chosen[first + j];
                const float s = bias + sums[j] + near.norms[l];
                if (s < kNone) heap.take(s, l);
            }
        }
    }
};

}  // namespace

void nearest_centres(const Near& near, int n, const float* Q, const float* bias, int m, float* scores,
                     std::int64_t* places, void* work) {
    const std::size_t wide = lines(near.W * sizeof(float)) / sizeof(float);
    float* products = reinterpret_cast<float*>(static_cast<char*>(work) + lines(coarse_workspace(near.P)));
    float* high = products + kNearRows * wide;
    auto* chosen = reinterpret_cast<std::int32_t*>(high + wide);
    for (int first = 0; first < n; first += kNearRows) {
        const int some = n - first < kNearRows ? n - first : kNearRows;
        const float* rows = Q + static_cast<std::size_t>(first) * near.P;
        const Rounded rounded = rounded_in(work, some, near.P);
        coarse_round(rows, rounded);
        coarse_times(rounded, near.W, near.packed, products);
        for (int i = 0; i < some; ++i) {
            const std::size_t at = static_cast<std::size_t>(first + i) * m;
            const float* x = rows + static_cast<std::size_t>(i) * near.P;
            Probe probe{near,  x, bias[first + i], high, products + static_cast<std::size_t>(i) * near.W,
                        chosen};
            probe.bound(lengths_of(near.P, x, rounded.levels[i], rounded.rows + i * rounded.wide()));
            const float limit = probe.limit(m, scores + at, places + at);
            probe.score(probe.choose(limit), m, scores + at, places + at);
        }
    }
    sort(n, m, scores, places);
}

}  // namespace gkmeans

// Multiple candidate matching pursuit without pruning: the peer of benchmarks/pursuit.py. AVX-512.
//
// The same additions as the kernel, scores kept up along the path, so a node costs one row of T for each open
// dictionary. The L least scores are found without a branch that depends on data: the L-th least of 16 lane
// minima is a limit that at least L and not many more scores meet; these are ranked by counting.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kMaxC = 8, kMaxL = 16, kLanes = 16;

inline int count(__mmask16 mask) { return __builtin_popcount(mask); }

template <int Kp>
struct Tree {
    int C, K, L;
    const float* T;  // (C, C, K, Kp)
    alignas(64) float v[kMaxC][kMaxC][Kp];
    int path[kMaxC], found[kMaxC];
    float best;

    const float* row(int c, int b, int j) const {
        return T + ((static_cast<std::size_t>(c) * C + b) * K + j) * Kp;
    }

    // The L codewords of least score, in order, ties by lower index.
    void select(const float* scores, int* out) const {
        __m512 m = _mm512_load_ps(scores);
        for (int k = kLanes; k < Kp; k += kLanes) m = _mm512_min_ps(m, _mm512_load_ps(scores + k));
        alignas(64) float minima[kLanes];
        _mm512_store_ps(minima, m);
        float limit = __builtin_inff();
        for (int x = 0; x < kLanes; ++x) {
            const bool enough = count(_mm512_cmp_ps_mask(m, _mm512_set1_ps(minima[x]), _CMP_LE_OQ)) >= L;
            const float value = enough ? minima[x] : __builtin_inff();
            limit = value < limit ? value : limit;
        }
        alignas(64) float values[Kp + kLanes];
        alignas(64) int indices[Kp + kLanes];
        const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        int found_so_far = 0;
        for (int k = 0; k < Kp; k += kLanes) {
            const __m512 x = _mm512_load_ps(scores + k);
            const __mmask16 near = _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_LE_OQ);
            _mm512_storeu_ps(values + found_so_far, _mm512_maskz_compress_ps(near, x));
            _mm512_storeu_si512(indices + found_so_far,
                                _mm512_maskz_compress_epi32(near, _mm512_add_epi32(lanes, _mm512_set1_epi32(k))));
            found_so_far += count(near);
        }
        _mm512_storeu_ps(values + found_so_far, _mm512_set1_ps(__builtin_inff()));
        int ranked[Kp + kLanes];
        for (int x = 0; x < found_so_far; ++x) {
            const __m512 value = _mm512_set1_ps(values[x]);
            int rank = 0;
            for (int k = 0; k < found_so_far; k += kLanes) {
                const __m512 others = _mm512_load_ps(values + k);
                rank += count(_mm512_cmp_ps_mask(others, value, _CMP_LT_OQ));
                const int before = x - k < 0 ? 0 : x - k > kLanes ? kLanes : x - k;
                rank += count(_mm512_cmp_ps_mask(others, value, _CMP_EQ_OQ) & ((1u << before) - 1));
            }
            ranked[rank] = indices[x];
        }
        std::memcpy(out, ranked, L * sizeof(int));
    }

    void leaf(int j, float cost) {
        const float *d = v[C - 2][C - 1], *r = row(C - 1, C - 2, j);
        __m512 m0 = _mm512_set1_ps(__builtin_inff()), m1 = m0;
        for (int k = 0; k < Kp; k += 2 * kLanes) {
            m0 = _mm512_min_ps(m0, _mm512_add_ps(_mm512_load_ps(d + k), _mm512_loadu_ps(r + k)));
            if (k + kLanes < Kp) {
                m1 = _mm512_min_ps(m1, _mm512_add_ps(_mm512_load_ps(d + k + kLanes), _mm512_loadu_ps(r + k + kLanes)));
            }
        }
        const float score = _mm512_reduce_min_ps(_mm512_min_ps(m0, m1));
        if (!(cost + score < best)) return;
        best = cost + score;
        path[C - 2] = j;
        path[C - 1] = 0;
        while (d[path[C - 1]] + r[path[C - 1]] != score) ++path[C - 1];
        std::memcpy(found, path, C * sizeof(int));
    }

    void descend(int c, float cost) {
        int candidates[kMaxL];
        select(v[c][c], candidates);
        for (int x = 0; x < L; ++x) {
            const int j = candidates[x];
            const float with_j = cost + v[c][c][j];
            if (c == C - 2) {
                leaf(j, with_j);
                continue;
            }
            path[c] = j;
            for (int b = c + 1; b < C; ++b) {
                const float* r = row(b, c, j);
                for (int k = 0; k < Kp; k += kLanes) {
                    _mm512_store_ps(v[c + 1][b] + k,
                                    _mm512_add_ps(_mm512_load_ps(v[c][b] + k), _mm512_loadu_ps(r + k)));
                }
            }
            descend(c + 1, with_j);
        }
    }
};

}  // namespace

// V (n, C, 256) the products of the rows with the codewords; N (C, 256), T (C, C, 256, 256) as gkmeans has
// them. C from 2 to 8, L at most 16.
extern "C" void exhaustive(int n, int C, int L, const float* V, const float* T, const float* N, std::uint16_t* codes) {
    Tree<256> tree;
    tree.C = C, tree.K = 256, tree.L = L, tree.T = T;
    for (int i = 0; i < n; ++i) {
        const float* x = V + static_cast<std::size_t>(i) * C * 256;
        for (int c = 0; c < C; ++c) {
            for (int k = 0; k < 256; ++k) tree.v[0][c][k] = N[c * 256 + k] - x[c * 256 + k];
        }
        tree.best = __builtin_inff();
        tree.descend(0, 0);
        for (int c = 0; c < C; ++c) codes[static_cast<std::size_t>(i) * C + c] = static_cast<std::uint16_t>(tree.found[c]);
    }
}

// Decoding, errors, the two sums of the update (Sec. 2.2): W, rows by codeword, and Z, co-occurrence counts;
// and the minima of T.

namespace gkmeans {
namespace GKMEANS_LEVEL {

// The sum is made before it is taken away, so that it has the same bits either way.
static void decode(int n, int C, int K, int P, const float* D, const Code* codes, bool less, float* out) {
    constexpr int L = 64;
    for (int i = 0; i < n; ++i) {
        const Code* code = codes + static_cast<std::size_t>(i) * C;
        float* x = out + static_cast<std::size_t>(i) * P;
        for (int p = 0; p < P; p += L) {
            const int some = P - p < L ? P - p : L;
            float sum[L] = {};
            for (int c = 0; c < C; ++c) {
                const float* d = D + (static_cast<std::size_t>(c) * K + code[c]) * P + p;
                for (int q = 0; q < some; ++q) sum[q] += d[q];
            }
            for (int q = 0; q < some; ++q) x[p + q] = less ? x[p + q] - sum[q] : sum[q];
        }
    }
}

// Sixteen running sums at every level, so that every level adds in the same order.
static void errors(int n, int C, int K, int P, const float* X, const float* D, const Code* codes,
                   float* out) {
    constexpr int L = 16;
    for (int i = 0; i < n; ++i) {
        const Code* code = codes + static_cast<std::size_t>(i) * C;
        const float* x = X + static_cast<std::size_t>(i) * P;
        float sums[L] = {};
        int p = 0;
        for (; p + L <= P; p += L) {
            float r[L];
            for (int q = 0; q < L; ++q) r[q] = x[p + q];
            for (int c = 0; c < C; ++c) {
                const float* d = D + (static_cast<std::size_t>(c) * K + code[c]) * P + p;
                for (int q = 0; q < L; ++q) r[q] -= d[q];
            }
            for (int q = 0; q < L; ++q) sums[q] += r[q] * r[q];
        }
        for (; p < P; ++p) {
            float r = x[p];
            for (int c = 0; c < C; ++c) r -= D[(static_cast<std::size_t>(c) * K + code[c]) * P + p];
            sums[p % L] += r * r;
        }
        float total = 0;
        for (int q = 0; q < L; ++q) total += sums[q];
        out[i] = total;
    }
}

// Around 1.5 * 2^52 steps of the grid, neighbouring doubles are one step apart: adding and taking away
// rounds.
static inline double on_grid(double x, double step) {
    const double shift = 0x1.8p52 * step;
    return (x + shift) - shift;
}

static void add_rows(int n, int C, int K, int P, const float* X, const Code* codes, const double* grid,
                     double* W) {
    constexpr int L = 16;
    for (int i = 0; i < n; ++i) {
        const Code* code = codes + static_cast<std::size_t>(i) * C;
        const float* x = X + static_cast<std::size_t>(i) * P;
        int p = 0;
        for (; p + L <= P; p += L) {
            double y[L];
            for (int q = 0; q < L; ++q) y[q] = on_grid(static_cast<double>(x[p + q]), grid[p + q]);
            for (int c = 0; c < C; ++c) {
                double* w = W + (static_cast<std::size_t>(c) * K + code[c]) * P + p;
                for (int q = 0; q < L; ++q) w[q] += y[q];
            }
        }
        for (; p < P; ++p) {
            const double y = on_grid(static_cast<double>(x[p]), grid[p]);
            for (int c = 0; c < C; ++c) W[(static_cast<std::size_t>(c) * K + code[c]) * P + p] += y;
        }
    }
}

static void count_pairs(int n, int C, int K, int b, int c, const Code* codes, std::int32_t* Z) {
    for (int i = 0; i < n; ++i) {
        const Code* code = codes + static_cast<std::size_t>(i) * C;
        Z[static_cast<std::size_t>(code[b]) * K + code[c]] += 1;
    }
}

static void minima(int n, int K, int Kp, int width, const float* T, float* groups, float* rows) {
    for (int i = 0; i < n; ++i, T += Kp, groups += kGroups) {
        if (K == 256 && width == 16) {
            rows[i] = least_of_sixteens([T](int k) { return load(T + k); }, groups);
            continue;
        }
        float low = __builtin_inff();
        for (int g = 0, k = 0; g < kGroups; ++g) {
            const int end = (g + 1) * width < K ? (g + 1) * width : K;
            Vec m = splat(__builtin_inff());
            for (; k + kLanes <= end; k += kLanes) m = least(m, load(T + k));
            float x = least_lane(m);
            for (; k < end; ++k) x = T[k] < x ? T[k] : x;
            groups[g] = x;
            low = x < low ? x : low;
        }
        rows[i] = low;
    }
}

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans

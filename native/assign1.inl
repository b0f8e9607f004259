// Greedy start and order-1 group assignment (O1GA), Sec. 2.1.1 and 2.3.2, Eq. 6.
//
// The block's rows are visited dictionary by dictionary, not row by row: the rows of T that one dictionary needs
// are (C - 1) K Kp floats, which stay in L2 for the whole block where all of T (C times as much) would not.

namespace gkmeans {
namespace GKMEANS_LEVEL {

// out[k] = (N - V + sum of the rows)[k] for U registers from k; returns their least.
template <int U>
static inline Vec cost_chunk(const float* N, const float* V, const float* const* rows, int m, float* out) {
    Vec a[U];
    for (int u = 0; u < U; ++u) a[u] = load(N + u * kLanes) - load(V + u * kLanes);
    for (int r = 0; r < m; ++r) {
        for (int u = 0; u < U; ++u) a[u] = a[u] + load(rows[r] + u * kLanes);
    }
    for (int u = 0; u < U; ++u) store(out + u * kLanes, a[u]);
    Vec least_a = a[0];
    for (int u = 1; u < U; ++u) least_a = least(least_a, a[u]);
    return least_a;
}

// The cost of each codeword of one dictionary given the others' rows of T; returns the least cost.
// `rows` is moved along; out may be V itself.
static inline float costs(int Kp, const float* N, const float* V, const float** rows, int m, float* out) {
    constexpr int U = 8;
    Vec best = splat(__builtin_inff());
    int k = 0;
    for (; k + U * kLanes <= Kp; k += U * kLanes) {
        best = least(best, cost_chunk<U>(N + k, V + k, rows, m, out + k));
        for (int r = 0; r < m; ++r) rows[r] += U * kLanes;
    }
    for (; k < Kp; k += kLanes) {
        best = least(best, cost_chunk<1>(N + k, V + k, rows, m, out + k));
        for (int r = 0; r < m; ++r) rows[r] += kLanes;
    }
    return least_lane(best);
}

// Rows of T of dictionaries [0, last) other than c; returns how many.
static inline int gather_rows(const Tables& t, int c, int last, const Code* code, const float** rows) {
    int m = 0;
    for (int b = 0; b < last; ++b) {
        if (b != c) rows[m++] = t.row(c, b, code[b]);
    }
    return m;
}

struct Scratch {
    const float** rows;  // (C)
    float* vectors;      // the rest, 64-aligned, then…
    int* active;         // (n)
    int* clean;          // (n)
};

static inline Scratch carve(const Tables& t, int n, int vectors, void* work) {
    Scratch s;
    char* p = static_cast<char*>(work);
    s.vectors = reinterpret_cast<float*>(p);
    p += static_cast<std::size_t>(vectors) * t.Kp * sizeof(float);
    s.rows = reinterpret_cast<const float**>(p);
    p += 64 * static_cast<std::size_t>(t.C);
    s.active = reinterpret_cast<int*>(p);
    s.clean = s.active + n;
    return s;
}

static inline std::size_t at(const Tables& t, int i, int c) {
    return (static_cast<std::size_t>(i) * t.C + c) * t.Kp;
}

static void greedy(const Tables& t, int n, const float* V, Code* codes, void* work) {
    const Scratch s = carve(t, n, 3, work);
    for (int c = 0; c < t.C; ++c) {
        for (int i = 0; i < n; ++i) {
            Code* code = codes + static_cast<std::size_t>(i) * t.C;
            const int m = gather_rows(t, c, c, code, s.rows);
            const float best = costs(t.Kp, t.N + c * t.Kp, V + at(t, i, c), s.rows, m, s.vectors);
            code[c] = static_cast<Code>(index_of(s.vectors, t.Kp, best));
        }
    }
}

// A row is done when each dictionary in turn kept its code: `clean` counts the visits since the last change.
// Sweeps are bounded because rounding could let two codes of equal cost alternate.
constexpr int kMaxSweeps = 100;

static void order1(const Tables& t, int n, const float* V, Code* codes, void* work) {
    const Scratch s = carve(t, n, 3, work);
    for (int i = 0; i < n; ++i) s.active[i] = i, s.clean[i] = 0;
    int left = n;
    for (int visit = 0; left > 0 && visit < kMaxSweeps * t.C; ++visit) {
        const int c = visit % t.C;
        int kept = 0;
        for (int a = 0; a < left; ++a) {
            const int i = s.active[a];
            Code* code = codes + static_cast<std::size_t>(i) * t.C;
            const int m = gather_rows(t, c, t.C, code, s.rows);
            const float best = costs(t.Kp, t.N + c * t.Kp, V + at(t, i, c), s.rows, m, s.vectors);
            if (best < s.vectors[code[c]]) {
                code[c] = static_cast<Code>(index_of(s.vectors, t.Kp, best));
                s.clean[i] = 0;
            }
            if (++s.clean[i] < t.C) s.active[kept++] = i;
        }
        left = kept;
    }
}

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans

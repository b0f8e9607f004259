// Order-2 group assignment (O2GA) over consecutive pairs, Sec. 2.1.2, Eq. 12.
//
// V (n, C, Kp) is turned into the cost of every codeword given the row's other codes and kept so: a visit of the
// pair (b, c) then needs two rows of T and the pair's own table, and only a change of code touches the rest.
//
// The pair's cost is a[j] + (d[k] + T[j, k]). A row j is skipped when a[j] + (min d + rowmin T[j]) is not below the
// best so far. Rounding is monotonic and both sums are bracketed alike, so this loses nothing, to the last bit.

namespace gkmeans {
namespace GKMEANS_LEVEL {

static inline void costs_of_all(const Tables& t, int n, float* V, const Code* codes, const float** rows) {
    for (int c = 0; c < t.C; ++c) {
        for (int i = 0; i < n; ++i) {
            const int m = gather_rows(t, c, t.C, codes + static_cast<std::size_t>(i) * t.C, rows);
            costs(t.Kp, t.N + c * t.Kp, V + at(t, i, c), rows, m, V + at(t, i, c));
        }
    }
}

// Code b of one row goes from j to k: the costs of every other dictionary's codewords follow.
static inline void replace(const Tables& t, int b, int j, int k, float* V) {
    for (int c = 0; c < t.C; ++c) {
        if (c == b) continue;
        float* v = V + static_cast<std::size_t>(c) * t.Kp;
        const float* old_row = t.row(c, b, j);
        const float* new_row = t.row(c, b, k);
        for (int q = 0; q < t.Kp; q += kLanes) {
            store(v + q, load(v + q) + (load(new_row + q) - load(old_row + q)));
        }
    }
}

// out = v - row; returns the least.
static inline float subtract(int Kp, const float* v, const float* row, float* out) {
    Vec m = splat(__builtin_inff());
    for (int k = 0; k < Kp; k += kLanes) {
        const Vec x = load(v + k) - load(row + k);
        store(out + k, x);
        m = least(m, x);
    }
    return least_lane(m);
}

// least over k of d[k] + row[k].
static inline float least_sum(int Kp, const float* d, const float* row) {
    constexpr int U = 4;
    Vec m[U];
    int k = 0;
    if (Kp >= U * kLanes) {
        for (int u = 0; u < U; ++u) m[u] = load(d + u * kLanes) + load(row + u * kLanes);
        for (k = U * kLanes; k + U * kLanes <= Kp; k += U * kLanes) {
            for (int u = 0; u < U; ++u) m[u] = least(m[u], load(d + k + u * kLanes) + load(row + k + u * kLanes));
        }
    } else {
        for (int u = 0; u < U; ++u) m[u] = splat(__builtin_inff());
    }
    for (; k < Kp; k += kLanes) m[0] = least(m[0], load(d + k) + load(row + k));
    return least_lane(least(least(m[0], m[1]), least(m[2], m[3])));
}

// The best pair for costs a (of b's codewords) and d (of c's); *j, *k come in as the present pair and stay on ties.
static inline bool best_pair(const Tables& t, int b, int c, const float* a, const float* d, float least_d, int* j,
                             int* k) {
    const float* T = t.row(c, b, 0);
    const float* rowmin = t.row_minima(c, b);
    float best = a[*j] + (d[*k] + T[static_cast<std::size_t>(*j) * t.Kp + *k]);
    int best_row = -1;
    const Vec dmin = splat(least_d);
    Vec limit = splat(best);
    for (int r0 = 0; r0 < t.K; r0 += kLanes) {
        // rows past K have a = +inf and are never below the limit
        unsigned rows = lanes_below(load(a + r0) + (dmin + load(rowmin + r0)), limit);
        while (rows) {
            const int r = r0 + __builtin_ctz(rows);
            rows &= rows - 1;
            if (!(a[r] + (least_d + rowmin[r]) < best)) continue;
            const float cost = a[r] + least_sum(t.Kp, d, T + static_cast<std::size_t>(r) * t.Kp);
            if (cost < best) {
                best = cost;
                best_row = r;
                limit = splat(best);
            }
        }
    }
    if (best_row < 0) return false;
    const float* row = T + static_cast<std::size_t>(best_row) * t.Kp;
    const float sum = least_sum(t.Kp, d, row);
    const Vec target = splat(sum);
    int q = 0;
    unsigned mask = 0;
    while (!(mask = lanes_equal(load(d + q) + load(row + q), target))) q += kLanes;
    *j = best_row;
    *k = q + __builtin_ctz(mask);
    return true;
}

static void order2(const Tables& t, int n, float* V, Code* codes, void* work, const volatile int* stop) {
    const Scratch s = carve(t, n, 3, work);
    float* a = s.vectors;
    float* d = s.vectors + t.Kp;
    costs_of_all(t, n, V, codes, s.rows);
    for (int i = 0; i < n; ++i) s.active[i] = i, s.clean[i] = 0;
    const int pairs = t.C == 2 ? 1 : t.C;
    int left = n;
    for (int visit = 0; left > 0 && visit < kMaxSweeps * pairs && !*stop; ++visit) {
        const int b = visit % pairs, c = (b + 1) % t.C;
        int kept = 0;
        for (int x = 0; x < left; ++x) {
            const int i = s.active[x];
            Code* code = codes + static_cast<std::size_t>(i) * t.C;
            float* Vi = V + at(t, i, 0);
            subtract(t.Kp, Vi + static_cast<std::size_t>(b) * t.Kp, t.row(b, c, code[c]), a);
            const float least_d =
                subtract(t.Kp, Vi + static_cast<std::size_t>(c) * t.Kp, t.row(c, b, code[b]), d);
            int j = code[b], k = code[c];
            if (best_pair(t, b, c, a, d, least_d, &j, &k)) {
                if (j != code[b]) replace(t, b, code[b], j, Vi);
                if (k != code[c]) replace(t, c, code[c], k, Vi);
                code[b] = static_cast<Code>(j);
                code[c] = static_cast<Code>(k);
                s.clean[i] = 0;
            }
            if (++s.clean[i] < pairs) s.active[kept++] = i;
        }
        left = kept;
    }
}

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans

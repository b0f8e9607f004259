// Order-2 group assignment (O2GA) over consecutive pairs, Sec. 2.1.2, Eq. 12.
//
// The pair's cost is a[j] + (d[k] + T[j, k]). Two exact bounds spare most of the K^2 sums: row j is skipped
// when
//     a[j] + (min d + min T[j]) >= best,
// and within a row, the columns of group g (there are kGroups) when
//     a[j] + (min d[g] + min T[j, g]) >= best.
// Rounding is monotonic and the sums are bracketed alike, so this loses nothing, to the last bit.

namespace gkmeans {
namespace GKMEANS_LEVEL {

// out = v - row.
static inline void subtract(int Kp, const float* v, const float* row, float* out) {
    for (int k = 0; k < Kp; k += kLanes) store(out + k, load(v + k) - load(row + k));
}

// d = v - row; out[g] = the least of group g of d, +inf for groups past the end; returns the least of all.
template <bool kFull>
static inline float subtract_groups(const Tables& t, const float* v, const float* row, float* d, float* out) {
    if (kFull) {
        const auto store_difference = [&](int k) {
            const Vec x = load(v + k) - load(row + k);
            store(d + k, x);
            return x;
        };
        least_of_sixteens(store_difference, out);
        return least_of(out, kGroups);
    }
    subtract(t.Kp, v, row, d);
    for (int g = 0; g < kGroups; ++g) out[g] = __builtin_inff();
    for (int g = 0; g * t.width < t.Kp; ++g) {
        const int end = (g + 1) * t.width < t.Kp ? (g + 1) * t.width : t.Kp;
        out[g] = least_of(d + g * t.width, end - g * t.width);
    }
    return least_of(out, kGroups);
}

// Rows that are looked at between two looks at the limit.
constexpr int kRowsAtOnce = 32;

// The rows j of a pair that may beat the limit, and their costs a[j].
struct Candidates {
    int* rows;  // (Kp) and room for a register more
    float* a;   // likewise
    int count;
};

// Lists, as x * kGroups + group, the groups of candidates [first, first + some) whose bound is below the
// limit.
static inline int open_groups(const Candidates& list, int first, int some, const float* d_minima,
                              const float* groupmin, Vec limit, int* items) {
    int found = 0;
    for (int x = first; x < first + some; ++x) {
        const Vec ax = splat(list.a[x]);
        const float* T_minima = groupmin + static_cast<std::size_t>(list.rows[x]) * kGroups;
        for (int g = 0; g < kGroups; g += kLanes) {
            const unsigned open = lanes_below(ax + (load(d_minima + g) + load(T_minima + g)), limit);
            found += list_lanes(open, x * kGroups + g, items + found);
        }
    }
    return found;
}

// Lane-wise least cost over one group of one candidate's row. kFull: 16 groups of 16 columns, as with K =
// 256.
template <bool kFull>
static inline Vec least_costs(const Tables& t, const Candidates& list, int item, const float* d,
                              const float* T) {
    const int width = kFull ? 16 : t.width, Kp = kFull ? 256 : t.Kp;
    const int x = static_cast<unsigned>(item) / kGroups,
              start = static_cast<unsigned>(item) % kGroups * width;
    const int end = kFull || start + width < Kp ? start + width : Kp;
    const float* row = T + static_cast<std::size_t>(list.rows[x]) * Kp;
    Vec m = load(d + start) + load(row + start);
    for (int k = start + kLanes; k < end; k += kLanes) m = least(m, load(d + k) + load(row + k));
    return splat(list.a[x]) + m;
}

// First k with a + (d[k] + row[k]) == x.
static inline int index_of_sum(int Kp, float a, const float* d, const float* row, float x) {
    const Vec va = splat(a), vx = splat(x);
    for (int k = 0; k < Kp; k += kLanes) {
        if (const unsigned mask = lanes_equal(va + (load(d + k) + load(row + k)), vx))
            return k + __builtin_ctz(mask);
    }
    return 0;
}

// The best pair (j, k) for row i's dictionaries b and c, whose codes are *j and *k and stay on ties; d holds
// Kp floats. The costs are a[j] of b's codewords and d[k] of c's, each without the other's part. Candidates
// are listed first and worked on after, so that few branches depend on data. kFull: 16 groups of 16 columns,
// as with K = 256.
template <bool kFull>
static inline bool best_pair(const Tables& t, int b, int c, const float* Vb, const float* Vc, float* d,
                             Candidates list, int* j, int* k) {
    alignas(64) float d_minima[kGroups];
    int items[kRowsAtOnce * kGroups + kGroups];
    const float* own = t.row(b, c, *k);
    const Vec least_d = splat(subtract_groups<kFull>(t, Vc, t.row(c, b, *j), d, d_minima));
    const float* T = t.row(c, b, 0);
    const float* rowmin = t.row_minima(c, b);
    float best = (Vb[*j] - own[*j]) + (d[*k] + T[static_cast<std::size_t>(*j) * t.Kp + *k]);
    Vec limit = splat(best);
    int winner = -1;
    list.count = 0;
    const int Kp = kFull ? 256 : t.Kp;
#pragma GCC unroll 4
    for (int r = 0; r < Kp; r += kLanes) {  // rows past K cost +inf and are never below the limit
        const Vec a = load(Vb + r) - load(own + r);
        const unsigned open = lanes_below(a + (least_d + load(rowmin + r)), limit);
        list_values(open, a, list.a + list.count);
        list.count += list_lanes(open, r, list.rows + list.count);
    }
    for (int x = 0; x < list.count; x += kRowsAtOnce) {
        const int some = list.count - x < kRowsAtOnce ? list.count - x : kRowsAtOnce;
        const int found = open_groups(list, x, some, d_minima, t.group_minima(c, b), limit, items);
        for (int y = 0; y < found; ++y) {
            const Vec cost = least_costs<kFull>(t, list, items[y], d, T);
            if (lanes_below(cost, limit)) {
                best = least_lane(cost);
                winner = items[y] / kGroups;
                limit = splat(best);
            }
        }
    }
    if (winner < 0) return false;
    *j = list.rows[winner];
    *k = index_of_sum(t.Kp, list.a[winner], d, T + static_cast<std::size_t>(*j) * t.Kp, best);
    return true;
}

// Asks for what a visit of the pair (b, c) will read of row i.
template <int kLocality>
static inline void ask(const Tables& t, int i, int b, int c, float* V, const Code* code) {
    if (kLocality == kNear) {  // V is in L2 as it is
        prefetch<kLocality>(at(t, V, i, b), t.Kp);
        prefetch<kLocality>(at(t, V, i, c), t.Kp);
    }
    prefetch<kLocality>(t.row(b, c, code[c]), t.Kp);
    prefetch<kLocality>(t.row(c, b, code[b]), t.Kp);
}

static void order2(const Tables& t, int n, float* V, Code* codes, void* work, const volatile int* stop) {
    const Scratch s = carve(t, n, work);
    float* d = s.vectors;
    const Candidates list{reinterpret_cast<int*>(d + t.Kp), d + 2 * t.Kp + kPad, 0};
    const int pairs = t.C == 2 ? 1 : t.C;
    const bool full = t.Kp == 256;
    int left = n;
    for (int visit = 0; left > 0 && visit < kMaxSweeps * pairs && !*stop; ++visit) {
        const int b = visit % pairs, c = (b + 1) % t.C;
        int kept = 0;
        for (int x = 0; x < left; ++x) {
            const int i = s.active[x];
            if (x + kAhead < left) {
                const int next = s.active[x + kAhead];
                const Code* its = code_of(t, codes, next);
                ask<kFar>(t, next, b, c, V, its);
                prefetch_stale(t, s, next, b, its);
                prefetch_stale(t, s, next, c, its);
            }
            if (x + 1 < left) ask<kNear>(t, s.active[x + 1], b, c, V, code_of(t, codes, s.active[x + 1]));
            Code* code = code_of(t, codes, i);
            refresh(t, s, i, b, code, at(t, V, i, b));
            refresh(t, s, i, c, code, at(t, V, i, c));
            int j = code[b], k = code[c];
            const float *Vb = at(t, V, i, b), *Vc = at(t, V, i, c);
            if (full ? best_pair<true>(t, b, c, Vb, Vc, d, list, &j, &k)
                     : best_pair<false>(t, b, c, Vb, Vc, d, list, &j, &k)) {
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

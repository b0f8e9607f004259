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

// out[g] = the least of group g of at(k), which gives the register from k on; +inf for groups past the end.
// Returns the least of all.
template <bool kFull, typename At>
static inline float least_of_groups(const Tables& t, const At& at, float* out) {
    if (kFull) return least_of_sixteens(at, out);
    for (int g = 0; g < kGroups; ++g) {
        Vec m = splat(__builtin_inff());
        const int end = (g + 1) * t.width < t.Kp ? (g + 1) * t.width : t.Kp;
        for (int k = g * t.width; k < end; k += kLanes) m = least(m, at(k));
        out[g] = least_lane(m);
    }
    return least_of(out, kGroups);
}

// A pair (b, c) and the rows that are worked on together. Each step runs over all of them before the next, so
// that few branches depend on one row's data and the loads of several rows are under way at once.
constexpr int kTogether = 8;
constexpr int kItems = 256;  // groups listed before they are tried

struct Pair {
    const Tables& t;
    int b, c;
    // Costs of row r's codewords: a = Vb - Tb of b's without c's part, d = Vc - Tc of c's without b's part.
    const float *Vb[kTogether], *Tb[kTogether], *Vc[kTogether], *Tc[kTogether];
    alignas(64) float minima[kTogether][kGroups];  // the least of each group of d
    float least[kTogether];                        // of d
    float best[kTogether];                         // the least cost of a pair so far
    int winner[kTogether];                         // its candidate, or -1 while the present codes are best
    // Candidates: row r and codeword j of b as r << 16 | j, and a[j], j's cost without c's part.
    int* row_and_code;       // (kTogether Kp) and room for a register more
    float* a;                // likewise
    int end[kTogether + 1];  // candidates of row r are end[r] ... end[r + 1] - 1
};

// Points row r at its costs, bounds d and takes the cost of its present codes j and k.
template <bool kFull>
static inline void prepare(Pair& p, int r, const float* Vb, const float* Vc, int j, int k) {
    const float *Tb = p.t.row(p.b, p.c, k), *Tc = p.t.row(p.c, p.b, j);
    p.Vb[r] = Vb, p.Tb[r] = Tb, p.Vc[r] = Vc, p.Tc[r] = Tc;
    p.least[r] = least_of_groups<kFull>(p.t, [&](int k) { return load(Vc + k) - load(Tc + k); }, p.minima[r]);
    p.best[r] = (Vb[j] - Tb[j]) + ((Vc[k] - Tc[k]) + Tc[k]);
    p.winner[r] = -1;
}

// Lists the codewords of b that may beat row r's best; those past K cost +inf and never do.
template <bool kFull>
static inline void list_candidates(Pair& p, int r) {
    const float *Vb = p.Vb[r], *Tb = p.Tb[r];
    const float* rowmin = p.t.row_minima(p.c, p.b);
    const Vec limit = splat(p.best[r]), least_d = splat(p.least[r]);
    const int Kp = kFull ? 256 : p.t.Kp;
    int count = p.end[r];
    Lanes each = lanes_from(r << 16);
#pragma GCC unroll 4
    for (int j = 0; j < Kp; j += kLanes, each = next_lanes(each)) {
        const Vec a = load(Vb + j) - load(Tb + j);
        const unsigned open = lanes_below(a + (least_d + load(rowmin + j)), limit);
        list_values(open, a, p.a + count);
        count += list_lanes(open, each, p.row_and_code + count);
    }
    p.end[r + 1] = count;
}

// Lists, as x * kGroups + group, the groups of candidates x, x + 1, ... of row r whose bound is below the
// row's best, until `items` is full; returns the first candidate not looked at.
static inline int open_groups(const Pair& p, int r, int x, int* items, int* found) {
    const Vec limit = splat(p.best[r]);
    const float* groupmin = p.t.group_minima(p.c, p.b);
    int count = *found;
    Lanes each = lanes_from(x * kGroups);
    for (; x < p.end[r + 1] && count < kItems; ++x) {
        const Vec a = splat(p.a[x]);
        const float* T_minima = groupmin + static_cast<std::size_t>(p.row_and_code[x] & 0xffff) * kGroups;
        for (int g = 0; g < kGroups; g += kLanes, each = next_lanes(each)) {
            const unsigned open = lanes_below(a + (load(p.minima[r] + g) + load(T_minima + g)), limit);
            count += list_lanes(open, each, items + count);
        }
    }
    *found = count;
    return x;
}

// Lane-wise least cost over one group of one candidate. kFull: 16 groups of 16 columns, as with K = 256.
template <bool kFull>
static inline Vec least_costs(const Pair& p, int item, const float* T) {
    const int width = kFull ? 16 : p.t.width, Kp = kFull ? 256 : p.t.Kp;
    const int x = item / kGroups, start = item % kGroups * width;
    const int end = kFull || start + width < Kp ? start + width : Kp;
    const float* row = T + static_cast<std::size_t>(p.row_and_code[x] & 0xffff) * Kp;
    const int r = p.row_and_code[x] >> 16;
    const float *Vc = p.Vc[r], *Tc = p.Tc[r];
    Vec m = (load(Vc + start) - load(Tc + start)) + load(row + start);
    for (int k = start + kLanes; k < end; k += kLanes) {
        m = least(m, (load(Vc + k) - load(Tc + k)) + load(row + k));
    }
    return splat(p.a[x]) + m;
}

// Tries the groups listed.
template <bool kFull>
static inline void try_groups(Pair& p, const int* items, int found) {
    const float* T = p.t.row(p.c, p.b, 0);
    for (int y = 0; y < found; ++y) {
        const Vec cost = least_costs<kFull>(p, items[y], T);
        const int x = items[y] / kGroups, r = p.row_and_code[x] >> 16;
        if (lanes_below(cost, splat(p.best[r]))) {
            p.best[r] = least_lane(cost);
            p.winner[r] = x;
        }
    }
}

// Tries every candidate, some groups at a time, because each success closes groups not yet listed.
template <bool kFull>
static inline void try_candidates(Pair& p, int some) {
    int items[kItems + 2 * kGroups], found = 0;
    for (int r = 0; r < some; ++r) {
        for (int x = p.end[r]; x < p.end[r + 1];) {
            x = open_groups(p, r, x, items, &found);
            if (found >= kItems) try_groups<kFull>(p, items, found), found = 0;
        }
    }
    try_groups<kFull>(p, items, found);
}

// The codeword k of c that, with row r's winner, has the least cost; the first one.
static inline int partner(const Pair& p, int r) {
    const float *Vc = p.Vc[r], *Tc = p.Tc[r];
    const float* row = p.t.row(p.c, p.b, p.row_and_code[p.winner[r]] & 0xffff);
    const Vec a = splat(p.a[p.winner[r]]), best = splat(p.best[r]);
    for (int k = 0; k < p.t.Kp; k += kLanes) {
        const Vec cost = a + ((load(Vc + k) - load(Tc + k)) + load(row + k));
        if (const unsigned mask = lanes_equal(cost, best)) return k + __builtin_ctz(mask);
    }
    return 0;
}

// The best pair for each of `some` rows, whose present codes stay on ties; true in changed[r] where they did
// not.
template <bool kFull>
static inline void best_pairs(Pair& p, int some, const int* rows, Costs V, Code* codes, bool* changed) {
    const Tables& t = p.t;
    for (int r = 0; r < some; ++r) {
        const Code* code = code_of(t, codes, rows[r]);
        prepare<kFull>(p, r, V.at(rows[r], p.b, t.Kp), V.at(rows[r], p.c, t.Kp), code[p.b], code[p.c]);
    }
    p.end[0] = 0;
    for (int r = 0; r < some; ++r) list_candidates<kFull>(p, r);
    try_candidates<kFull>(p, some);
    for (int r = 0; r < some; ++r) {
        changed[r] = p.winner[r] >= 0;
        if (!changed[r]) continue;
        Code* code = code_of(t, codes, rows[r]);
        const int k = partner(p, r);
        code[p.b] = static_cast<Code>(p.row_and_code[p.winner[r]] & 0xffff);
        code[p.c] = static_cast<Code>(k);
    }
}

static void order2(const Tables& t, int n, Costs V, Code* codes, void* work, const volatile int* stop) {
    const Scratch s = carve(t, n, work);
    Pair p{t};
    p.row_and_code = reinterpret_cast<int*>(s.vectors);
    p.a = s.vectors + static_cast<std::size_t>(kTogether) * t.Kp + kPad;
    const int pairs = t.C == 2 ? 1 : t.C;
    int left = n;
    for (int visit = 0; left > 0 && visit < kMaxSweeps * pairs && !*stop; ++visit) {
        p.b = visit % pairs, p.c = (p.b + 1) % t.C;
        int kept = 0;
        for (int x = 0; x < left && !*stop; x += kTogether) {
            const int some = left - x < kTogether ? left - x : kTogether;
            int rows[kTogether];
            bool changed[kTogether];
            for (int r = 0; r < some; ++r) {
                const int i = rows[r] = s.active[x + r];
                const Code* code = code_of(t, codes, i);
                refresh(t, s, i, p.b, code, V.at(i, p.b, t.Kp));
                refresh(t, s, i, p.c, code, V.at(i, p.c, t.Kp));
            }
            if (t.Kp == 256) {
                best_pairs<true>(p, some, rows, V, codes, changed);
            } else {
                best_pairs<false>(p, some, rows, V, codes, changed);
            }
            for (int r = 0; r < some; ++r) {
                if (changed[r]) s.clean[rows[r]] = 0;
                if (++s.clean[rows[r]] < pairs) s.active[kept++] = rows[r];
            }
        }
        left = kept;
    }
}

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans

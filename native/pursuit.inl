// Multiple candidate matching pursuit (MCMP): depth first over the dictionaries in order, at each depth the L
// codewords of least score on the residual so far, at the last depth the best one.
//
// Once the first c dictionaries have chosen, the scores of dictionary b's codewords are
//     v[c][b] = ((N - <x, d>) + T[b, 0, k_0]) + … + T[b, c - 1, k_{c-1}],
// and a leaf costs the sum of the scores along its path, added in order. Nearly all of the tree lies in the
// last two depths. There, with a and d the scores of the last two dictionaries and p the cost of the path so
// far, the leaves under codeword j are skipped when
//     (p + a[j]) + (min d + min T[j]) >= best,
// and those of a group g of columns when
//     (p + a[j]) + (min d[g] + min T[j, g]) >= best,
// as in assign2.inl: rounding is monotonic and the sums are bracketed as a leaf's, so that nothing is lost.
// Only what is left is asked whether it is among the L. Nodes with the same parent are worked on together,
// step by step, so that few branches depend on data. Where pursuit_bounds.inl applies, its bounds in shorts
// take the place of these, and the scores of the last two dictionaries are made for what they leave.

namespace gkmeans {
namespace GKMEANS_LEVEL {

struct Tree {
    const Tables& t;
    int L;
    Costs root;       // v[0], of the row
    float* scores;    // (C, C, Kp)  v[c][b] of the path, from c = 1 to C - 3; those of c = 0 are scratch
    int* candidates;  // (C, Kp + kPad)  of each depth
    float* values;    // (Kp + kPad)  scratch of the choice of candidates
    int* indices;     // (Kp + kPad)
    float *a, *d;     // (kSiblings, Kp)  scores of the last two dictionaries
    float* d_minima;  // (kSiblings, kGroups)
    int* rows;  // (kSiblings Kp + kPad)  rows of T that may lead to a better leaf: sibling * 2^16 + codeword
    const float** adds;  // (C)
    Code* choice;        // (C)  the path
    Code* found;         // (C)  the best leaf
    float best;
    int winner;  // the sibling that the best leaf is under, or -1
    const volatile int* stop;
    Bounds bounds;

    float* scores_at(int c, int b) const {
        return c ? scores + (static_cast<std::size_t>(c) * t.C + b) * t.Kp : root.V + b * root.step;
    }
    float* a_of(int x) const { return a + static_cast<std::size_t>(x) * t.Kp; }
    float* d_of(int x) const { return d + static_cast<std::size_t>(x) * t.Kp; }
    float* minima_of(int x) const { return d_minima + x * kGroups; }
};

// Nodes at depth C - 2 with the same parent.
struct Siblings {
    int count;
    int chosen[kSiblings];   // by dictionary C - 3
    float costs[kSiblings];  // of the paths
};

static Tree plant(const Tables& t, int L, void* work, const volatile int* stop) {
    const std::size_t C = t.C, Kp = t.Kp;
    float* p = static_cast<float*>(work);
    const auto take = [&p](std::size_t floats) {
        float* start = p;
        p += floats;
        return start;
    };
    float* scores = take(C * C * Kp);
    int* candidates = reinterpret_cast<int*>(take(C * (Kp + kPad)));
    float* values = take(Kp + kPad);
    int* indices = reinterpret_cast<int*>(take(Kp + kPad));
    float* a = take(kSiblings * Kp);
    float* d = take(kSiblings * Kp);
    float* minima = take(kSiblings * kGroups);
    int* rows = reinterpret_cast<int*>(take(kSiblings * Kp + kPad));
    const float** adds = reinterpret_cast<const float**>(p);
    Code* choice = reinterpret_cast<Code*>(adds + C);
    Tree s{t,      L < t.K ? L : t.K, Costs{}, scores, candidates, values, indices, a, d, minima, rows, adds,
           choice, nullptr,           0,       -1,     stop,       {}};
    if (has_bounds(t.C, t.Kp)) {
        p = reinterpret_cast<float*>(reinterpret_cast<char*>(adds) +
                                     (C * (sizeof(float*) + sizeof(Code)) + 63) / 64 * 64);
        plant_bounds(t, s.bounds, reinterpret_cast<Short*>(p));
    }
    return s;
}

static inline int count_below(const float* values, int Kp, float x) {
    int count = 0;
    for (int k = 0; k < Kp; k += kLanes) count += __builtin_popcount(lanes_below(load(values + k), splat(x)));
    return count;
}

// A number that at least L of the scores do not exceed, and few more do.
static inline float limit_of(const Tree& s, const float* v) {
    if (s.L > kPad) {  // halve the range
        float low = least_of(v, s.t.Kp), high = low;
        for (int k = 0; k < s.t.K; ++k) high = v[k] > high ? v[k] : high;
        for (int step = 0; step < 12; ++step) {
            const float middle = low / 2 + high / 2;
            if (count_below(v, s.t.Kp, middle) < s.L) {
                low = middle;
            } else {
                high = middle;
            }
        }
        return high;
    }
    alignas(64) float minima[kPad];
    for (int g = 0; g < kPad; g += kLanes) {
        Vec m = load(v + g);
        for (int k = g + kPad; k < s.t.Kp; k += kPad) m = least(m, load(v + k));
        store(minima + g, m);
    }
    return least_but(minima, s.L - 1);
}

// How many of the first `count` values come before values[x]: the lesser ones, and equal ones of lower index.
// The values go on with +inf for a register more.
static inline int rank_of(const float* values, int count, int x) {
    const Vec value = splat(values[x]);
    int before = 0;
    for (int k = 0; k < count; k += kLanes) {
        const Vec others = load(values + k);
        const int lower = x - k < 0 ? 0 : x - k < kLanes ? x - k : kLanes;
        before += __builtin_popcount(lanes_below(others, value) |
                                     (lanes_equal(others, value) & ((1u << lower) - 1)));
    }
    return before;
}

// Lists the L codewords of least score, in order, ties by lower index; +inf is left out. Returns how many.
static inline int choose(const Tree& s, const float* v, int* out) {
    const Vec limit = splat(limit_of(s, v)), inf = splat(__builtin_inff());
    int count = 0;
    for (int k = 0; k < s.t.Kp; k += kLanes) {
        const Vec x = load(v + k);
        const unsigned near = lanes_below(x, inf) & ~lanes_below(limit, x);
        list_values(near, x, s.values + count);
        count += list_lanes(near, lanes_from(k), s.indices + count);
    }
    for (int k = 0; k < kPad; k += kLanes) store(s.values + count + k, inf);
    for (int x = 0; x < count; ++x) out[rank_of(s.values, count, x)] = s.indices[x];
    return count < s.L ? count : s.L;
}

// Costs below this are at most the best.
static inline float limit_of_costs(const Tree& s) { return __builtin_nextafterf(s.best, __builtin_inff()); }

// Lists the rows of T, codewords of dictionary C - 2, whose leaves may be better than the best one; at(k)
// gives the register of a from k on. Returns how many there are now.
template <bool kFull, typename At>
static inline int open_rows(const Tree& s, int x, float cost, const At& at, int count) {
    const int c = s.t.C - 2, Kp = kFull ? 256 : s.t.Kp;
    const float* rowmin = s.t.row_minima(c + 1, c);
    const Vec limit = splat(limit_of_costs(s)), vcost = splat(cost),
              least_d = splat(least_of(s.minima_of(x), kGroups));
    int* rows = s.rows + count;
#pragma GCC unroll 4
    for (int k = 0; k < Kp; k += kLanes) {
        const Vec bound = (vcost + at(k)) + (least_d + load(rowmin + k));
        rows += list_lanes(lanes_below(bound, limit), lanes_from(x << 16 | k), rows);
    }
    return static_cast<int>(rows - s.rows);
}

// First k with d[k] + row[k] == x.
static inline int index_of_sum(int Kp, const float* d, const float* row, float x) {
    for (int k = 0; k < Kp; k += kLanes) {
        if (const unsigned mask = lanes_equal(load(d + k) + load(row + k), splat(x)))
            return k + __builtin_ctz(mask);
    }
    return 0;
}

constexpr int kRowsAtOnce = 32;  // rows whose groups are listed before they are tried

// The best leaf of row j under node x becomes the best of all if it costs less, or as much and comes first by
// score under the same node, and if j is among the L.
static void try_row(Tree& s, const Siblings& nodes, int x, int j) {
    const int c = s.t.C - 2;
    const float *a = s.a_of(x), *d = s.d_of(x), *row = s.t.row(c + 1, c, j);
    Vec m = splat(__builtin_inff());
    for (int k = 0; k < s.t.Kp; k += kLanes) m = least(m, load(d + k) + load(row + k));
    const float score = least_lane(m), cost = (nodes.costs[x] + a[j]) + score;
    const bool first =
        s.winner == x && (a[j] < a[s.choice[c]] || (a[j] == a[s.choice[c]] && j < s.choice[c]));
    if (!(cost < s.best || (cost == s.best && first)) || rank_of(a, s.t.Kp, j) >= s.L) return;
    s.best = cost;
    s.winner = x;
    if (c > 0) s.choice[c - 1] = static_cast<Code>(nodes.chosen[x]);
    s.choice[c] = static_cast<Code>(j);
    s.choice[c + 1] = static_cast<Code>(index_of_sum(s.t.Kp, d, row, score));
    __builtin_memcpy(s.found, s.choice, s.t.C * sizeof(Code));
}

// The groups of columns of the rows listed, with a, d and the minima of d of their nodes in place.
template <bool kFull>
static inline void try_rows(Tree& s, const Siblings& nodes, int count) {
    const Tables& t = s.t;
    const int c = t.C - 2, Kp = kFull ? 256 : t.Kp, width = kFull ? 16 : t.width;
    const float *T = t.row(c + 1, c, 0), *groupmin = t.group_minima(c + 1, c);
    const float *all_a = s.a, *all_d = s.d, *all_minima = s.d_minima;
    const int* rows = s.rows;
    Vec limit = splat(limit_of_costs(s));
    int items[kRowsAtOnce * kGroups + kGroups];
    for (int first = 0; first < count; first += kRowsAtOnce) {
        const int end = count - first < kRowsAtOnce ? count : first + kRowsAtOnce;
        int found = 0;
        for (int r = first; r < end; ++r) {
            const int x = rows[r] >> 16, j = rows[r] & 0xffff;
            const Vec cost = splat(nodes.costs[x] + all_a[static_cast<std::size_t>(x) * Kp + j]);
            const float* minima = all_minima + x * kGroups;
            const float* T_minima = groupmin + static_cast<std::size_t>(j) * kGroups;
            for (int g = 0; g < kGroups; g += kLanes) {
                const unsigned open = lanes_below(cost + (load(minima + g) + load(T_minima + g)), limit);
                found += list_lanes(open, lanes_from(r * kGroups + g), items + found);
            }
        }
        for (int y = 0; y < found; ++y) {
            const int x = rows[items[y] / kGroups] >> 16, j = rows[items[y] / kGroups] & 0xffff;
            const int start = items[y] % kGroups * width, stop = start + width < Kp ? start + width : Kp;
            const float *d = all_d + static_cast<std::size_t>(x) * Kp,
                        *row = T + static_cast<std::size_t>(j) * Kp;
            Vec m = load(d + start) + load(row + start);
            for (int k = start + kLanes; k < stop; k += kLanes) m = least(m, load(d + k) + load(row + k));
            const Vec cost = splat(nodes.costs[x] + all_a[static_cast<std::size_t>(x) * Kp + j]);
            if (lanes_below(cost + m, limit)) {
                try_row(s, nodes, x, j);
                limit = splat(limit_of_costs(s));
            }
        }
    }
}

// The scores of dictionary b at depth C - 2 of the path.
static inline void fill_scores(const Tree& s, int b, float* out) {
    __builtin_memcpy(out, s.scores_at(0, b), s.t.Kp * sizeof(float));
    add_chosen(s.t, b, 0, s.t.C - 2, s.choice, s.adds, out);
}

// The children of the node at depth C - 3, some of its candidates at a time.
template <bool kFull>
static void try_children(Tree& s, float cost, const int* candidates, int count) {
    const int c = s.t.C - 3;
    const float *v = s.scores_at(c, c), *va = s.scores_at(c, c + 1), *vd = s.scores_at(c, c + 2);
    for (int first = 0; first < count && !*s.stop; first += kSiblings) {
        Siblings nodes;
        int open = 0;
        nodes.count = count - first < kSiblings ? count - first : kSiblings;
        for (int x = 0; x < nodes.count; ++x) {
            const int j = candidates[first + x];
            nodes.chosen[x] = j;
            nodes.costs[x] = cost + v[j];
            const float *row_a = s.t.row(c + 1, c, j), *row_d = s.t.row(c + 2, c, j);
            float *a = s.a_of(x), *d = s.d_of(x);
            const auto sum_d = [&](int k) {
                const Vec y = load(vd + k) + load(row_d + k);
                store(d + k, y);
                return y;
            };
            const auto sum_a = [&](int k) {
                const Vec y = load(va + k) + load(row_a + k);
                store(a + k, y);
                return y;
            };
            least_of_groups<kFull>(s.t, sum_d, s.minima_of(x));
            open = open_rows<kFull>(s, x, nodes.costs[x], sum_a, open);
        }
        s.winner = -1;
        try_rows<kFull>(s, nodes, open);
    }
}

// The same by bounds in shorts; only nodes with rows left get scores in floats.
static void try_children_by_bounds(Tree& s, float cost, const int* candidates, int count) {
    const Tables& t = s.t;
    const int c = t.C - 3;
    const float* v = s.scores_at(c, c);
    join_rows(s.bounds, c);
    for (int first = 0; first < count && !*s.stop; first += kSiblings) {
        Siblings nodes;
        nodes.count = count - first < kSiblings ? count - first : kSiblings;
        for (int x = 0; x < nodes.count; ++x) {
            nodes.chosen[x] = candidates[first + x];
            nodes.costs[x] = cost + v[nodes.chosen[x]];
        }
        limit_paths(t, s.bounds, s.best, nodes.count, nodes.costs);
        int* end = s.rows;
        for (int x = 0; x < nodes.count; ++x) end = list_rows(t, s.bounds, x, nodes.chosen[x], end);
        int open = static_cast<int>(end - s.rows);
        open = keep_rows(s.bounds, s.rows, open);
        s.winner = -1;
        for (int r = 0, filled = -1; r < open; ++r) {
            const int x = s.rows[r] >> 16, j = s.rows[r] & 0xffff;
            if (j >= t.K) continue;
            if (x != filled) {
                s.choice[c] = static_cast<Code>(nodes.chosen[x]);
                fill_scores(s, c + 1, s.a_of(x));
                fill_scores(s, c + 2, s.d_of(x));
                filled = x;
            }
            try_row(s, nodes, x, j);
        }
    }
}

// The node at depth c of a path that costs `cost`, with the scores of all open dictionaries in place.
template <bool kFull>
static void visit(Tree& s, int c, float cost) {
    const int C = s.t.C;
    const float* v = s.scores_at(c, c);
    int* candidates = s.candidates + static_cast<std::size_t>(c) * (s.t.Kp + kPad);
    const int count = choose(s, v, candidates);
    if (c == C - 3) {
        if (kFull && s.bounds.on) {
            try_children_by_bounds(s, cost, candidates, count);
        } else {
            try_children<kFull>(s, cost, candidates, count);
        }
        return;
    }
    const int in_floats = kFull && s.bounds.on ? C - 2 : C;
    for (int x = 0; x < count && !*s.stop; ++x) {
        const int j = candidates[x];
        s.choice[c] = static_cast<Code>(j);
        if (kFull && s.bounds.on) extend_bounds(s.bounds, c, j);
        for (int b = c + 1; b < in_floats; ++b) {
            const float *from = s.scores_at(c, b), *row = s.t.row(b, c, j);
            float* to = s.scores_at(c + 1, b);
            for (int k = 0; k < s.t.Kp; k += kLanes) store(to + k, load(from + k) + load(row + k));
        }
        visit<kFull>(s, c + 1, cost + v[j]);
    }
}

// The first leaf of the tree: the best codeword at each depth.
static void greedy_leaf(Tree& s) {
    const Tables& t = s.t;
    s.best = 0;
    for (int c = 0; c < t.C; ++c) {
        __builtin_memcpy(s.scores, s.scores_at(0, c), t.Kp * sizeof(float));
        add_chosen(t, c, 0, c, s.found, s.adds, s.scores);
        const float score = least_of(s.scores, t.Kp);
        const int k = index_of(s.scores, t.Kp, score);
        s.found[c] = static_cast<Code>(k < t.K ? k : 0);
        s.best += score;
    }
}

// The cost of the codes given, added up as the tree does.
static void given_leaf(Tree& s) {
    s.best = 0;
    for (int c = 0; c < s.t.C; ++c) {
        float score = s.scores_at(0, c)[s.found[c]];
        for (int b = 0; b < c; ++b) score += s.t.row(c, b, s.found[b])[s.found[c]];
        s.best += score;
    }
}

template <bool kFull>
static void pursue_row(Tree& s, bool start) {
    const Tables& t = s.t;
    for (int c = 0; c < t.C; ++c) {
        float* v = s.scores_at(0, c);
        const float* N = t.half_norms(c);
        for (int k = 0; k < t.Kp; k += kLanes) store(v + k, load(N + k) - load(v + k));
    }
    if (start) {
        greedy_leaf(s);
    } else {
        given_leaf(s);
    }
    if (t.C == 1) {
        const float score = least_of(s.root.V, t.Kp);
        if (score < s.best) s.found[0] = static_cast<Code>(index_of(s.root.V, t.Kp, score));
    } else if (t.C == 2) {
        const Siblings nodes{1, {0}, {0}};
        s.a = s.scores_at(0, 0), s.d = s.scores_at(0, 1);
        least_of_groups<kFull>(t, [&](int k) { return load(s.d + k); }, s.d_minima);
        s.winner = -1;
        try_rows<kFull>(s, nodes, open_rows<kFull>(s, 0, 0, [&](int k) { return load(s.a + k); }, 0));
    } else {
        if (kFull && s.bounds.on) start_bounds(s.bounds, s.scores_at(0, t.C - 2), s.scores_at(0, t.C - 1));
        visit<kFull>(s, 0, 0);
    }
}

static void pursue(const Tables& t, int L, int n, Costs V, Code* codes, bool start, void* work,
                   const volatile int* stop) {
    Tree s = plant(t, L, work, stop);
    for (int i = 0; i < n && !*stop; ++i) {
        s.root = {V.at(i, 0, t.Kp), V.step};
        s.found = code_of(t, codes, i);
        if (t.Kp == 256) {
            pursue_row<true>(s, start);
        } else {
            pursue_row<false>(s, start);
        }
    }
}

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans

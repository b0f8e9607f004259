// Order-m group assignment (OmGA) over m consecutive dictionaries by branch and bound, Sec. 2.1.2, last
// paragraph.
//
// Depth first over the group's dictionaries. A[l][j] holds the costs of dictionary j's codewords once the
// first l are chosen. What the rest can add is at least the sum over j >= l of
//     min_k ( A[l][j][k] + what j's products with others of the rest add at least ),
// each product counted once: l's with all after it at l, those of i < j at j. These second parts do not
// depend on the point (`products`). With m = C the answer is the global optimum.

namespace gkmeans {
namespace GKMEANS_LEVEL {

struct Group {
    const Tables& t;
    int m;
    int first;        // the group is first, first + 1, … modulo C
    float* A;         // (m, m, Kp)
    float* products;  // (m, m, Kp)  [l][l][k] = sum over j > l of min_q T[l, k; j, q],
                      //             [l][j][k] = sum over i, l < i < j, of min_q T[j, k; i, q]
    float* bounds;    // (m, m)      the least of A[l][j] + products[l][j]
    float best;
    bool improved;
    int* choice;  // (m)
    int* found;   // (m)
    const volatile int* stop;

    int dictionary(int j) const { return (first + j) % t.C; }
    float* costs_at(int l, int j) const { return A + (static_cast<std::size_t>(l) * m + j) * t.Kp; }
    float* products_at(int l, int j) const { return products + (static_cast<std::size_t>(l) * m + j) * t.Kp; }
};

static inline void add_minima(const Tables& t, int b, int c, float* out) {
    const float* minima = t.row_minima(c, b);
    for (int k = 0; k < t.Kp; ++k) out[k] += minima[k];
}

static void prepare(Group& g) {
    const std::size_t Kp = g.t.Kp;
    for (std::size_t q = 0; q < Kp * g.m * g.m; ++q) g.products[q] = 0;
    for (int l = 0; l < g.m; ++l) {
        for (int j = l + 1; j < g.m; ++j) {
            add_minima(g.t, g.dictionary(l), g.dictionary(j), g.products_at(l, l));
            for (int i = l + 1; i < j; ++i)
                add_minima(g.t, g.dictionary(j), g.dictionary(i), g.products_at(l, j));
        }
    }
}

// A[l + 1][j] = A[l][j] + row; returns the least of A[l + 1][j] + products[l + 1][j].
static inline float extend(const Group& g, int l, int j, int k) {
    const float* from = g.costs_at(l, j);
    const float* row = g.t.row(g.dictionary(j), g.dictionary(l), k);
    const float* products = g.products_at(l + 1, j);
    float* to = g.costs_at(l + 1, j);
    Vec m = splat(__builtin_inff());
    for (int q = 0; q < g.t.Kp; q += kLanes) {
        const Vec x = load(from + q) + load(row + q);
        store(to + q, x);
        m = least(m, x + load(products + q));
    }
    return least_lane(m);
}

// Dictionaries before l are chosen at a cost of `partial`; A[l] and bounds[l] are in place.
static void descend(Group& g, int l, float partial) {
    const int Kp = g.t.Kp, last = g.m - 1;
    const float* own = g.costs_at(l, l);
    const float* bounds = g.bounds + l * g.m;
    if (l == last) {
        const float cost = partial + bounds[l];
        if (cost < g.best) {
            g.best = cost;
            g.improved = true;
            g.choice[l] = index_of(own, Kp, bounds[l]);
            for (int j = 0; j < g.m; ++j) g.found[j] = g.choice[j];
        }
        return;
    }
    float rest = 0;
    for (int j = l + 1; j < g.m; ++j) rest += bounds[j];
    float* next = g.bounds + (l + 1) * g.m;
    const float* outer = g.products_at(l, l);
    for (int k = 0; k < g.t.K && !*g.stop; ++k) {
        const float with_k = partial + own[k];
        if (!(with_k + (rest + outer[k]) < g.best)) continue;
        float bound = with_k;
        for (int j = l + 1; j < g.m; ++j) bound += next[j] = extend(g, l, j, k);
        if (!(bound < g.best)) continue;
        g.choice[l] = k;
        descend(g, l + 1, with_k);
    }
}

static inline float least_sum(int Kp, const float* a, const float* b) {
    Vec m = splat(__builtin_inff());
    for (int k = 0; k < Kp; k += kLanes) m = least(m, load(a + k) + load(b + k));
    return least_lane(m);
}

// out = v - row.
static inline void subtract(int Kp, const float* v, const float* row, float* out) {
    for (int k = 0; k < Kp; k += kLanes) store(out + k, load(v + k) - load(row + k));
}

// Re-chooses the group's codes of one row of V. True when a code changed.
static bool assign_group(Group& g, const Scratch& s, int row, Costs V, Code* code) {
    const Tables& t = g.t;
    g.best = 0;
    for (int j = 0; j < g.m; ++j) {
        const int c = g.dictionary(j);
        float* a = g.costs_at(0, j);
        refresh(t, s, row, c, code, V.at(row, c, t.Kp));
        for (int k = 0; k < t.Kp; ++k) a[k] = V.at(row, c, t.Kp)[k];
        for (int i = 0; i < g.m; ++i) {
            if (i != j) subtract(t.Kp, a, t.row(c, g.dictionary(i), code[g.dictionary(i)]), a);
        }
        float cost =
            a[code[c]];  // added up as descend does, so that the present codes do not beat themselves
        for (int i = 0; i < j; ++i) cost += t.row(c, g.dictionary(i), code[g.dictionary(i)])[code[c]];
        g.best += cost;
        g.bounds[j] = least_sum(t.Kp, a, g.products_at(0, j));
    }
    g.improved = false;
    descend(g, 0, 0);
    if (!g.improved) return false;
    for (int j = 0; j < g.m; ++j) code[g.dictionary(j)] = static_cast<Code>(g.found[j]);
    return true;
}

static void order_n(const Tables& t, int m, int n, Costs V, Code* codes, void* work,
                    const volatile int* stop) {
    order2(t, n, V, codes, work, stop);
    const Scratch s = carve(t, n, work);
    const std::size_t square = static_cast<std::size_t>(m) * m * t.Kp;
    float* vectors = reinterpret_cast<float*>(static_cast<char*>(work) + workspace(t.C, t.Kp, n, 2));
    int choice[kMaxOrder], found[kMaxOrder];
    float bounds[kMaxOrder * kMaxOrder];
    Group g{t, m, 0, vectors, vectors + square, bounds, 0, false, choice, found, stop};
    const int groups = m == t.C ? 1 : t.C;
    int left = n;
    for (int visit = 0; left > 0 && visit < kMaxSweeps * groups && !*stop; ++visit) {
        g.first = visit % groups;
        prepare(g);
        int kept = 0;
        for (int x = 0; x < left && !*stop; ++x) {
            const int i = s.active[x];
            if (assign_group(g, s, i, V, code_of(t, codes, i))) s.clean[i] = 0;
            if (++s.clean[i] < groups) s.active[kept++] = i;
        }
        left = kept;
    }
}

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans

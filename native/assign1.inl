// Costs, greedy start and order-1 group assignment (O1GA), Sec. 2.1.1 and 2.3.2, Eq. 6.
//
// V (C, n, Kp) holds, for every row and every dictionary, the cost of each codeword given the row's other
// codes, as these were when the dictionary was last visited (`seen`). A visit first makes up for the codes
// that have changed since, two rows of T each, and compares the least cost with that of the present code.
// Rows are visited dictionary by dictionary, so that the part of T one dictionary needs stays in L2, and V is
// read in a stream.

namespace gkmeans {
namespace GKMEANS_LEVEL {

struct Scratch {
    float* vectors;        // (kVectors, Kp)
    const float** now;     // (C)
    const float** before;  // (C)
    int* active;           // (n)  rows not yet done
    int* clean;            // (n)  visits since the row's last change
    float* least;          // (n, C)  the least of V[c, i]
    Code* seen;            // (n, C, C)  the codes that V[c, i] stands for
};

static inline Scratch carve(const Tables& t, int n, void* work) {
    Scratch s;
    char* p = static_cast<char*>(work);
    s.vectors = reinterpret_cast<float*>(p);
    p += static_cast<std::size_t>(kVectors) * t.Kp * sizeof(float);
    s.now = reinterpret_cast<const float**>(p);
    s.before = s.now + t.C;
    p += 2 * sizeof(float*) * static_cast<std::size_t>(t.C);
    s.active = reinterpret_cast<int*>(p);
    s.clean = s.active + n;
    s.least = reinterpret_cast<float*>(s.clean + n);
    s.seen = reinterpret_cast<Code*>(s.least + static_cast<std::size_t>(n) * t.C);
    for (int i = 0; i < n; ++i) s.active[i] = i, s.clean[i] = 0;
    return s;
}

// Rows of T are chosen by the codes, where the hardware does not look ahead: they are asked for kAhead rows
// before their turn, into L2. Asking past the end of an array does no harm.
constexpr int kAhead = 6;

static inline void prefetch(const float* p, int Kp) {
    for (int k = 0; k < Kp; k += 64) {
        __builtin_prefetch(p + k, 0, 2);
        __builtin_prefetch(p + k + 16, 0, 2);
        __builtin_prefetch(p + k + 32, 0, 2);
        __builtin_prefetch(p + k + 48, 0, 2);
    }
}

static inline Code* code_of(const Tables& t, Code* codes, int i) {
    return codes + static_cast<std::size_t>(i) * t.C;
}

static inline Code* seen_by(const Tables& t, const Scratch& s, int i, int c) {
    return s.seen + (static_cast<std::size_t>(i) * t.C + c) * t.C;
}

static inline float& least_known(const Tables& t, const Scratch& s, int i, int c) {
    return s.least[static_cast<std::size_t>(i) * t.C + c];
}

// V stands for these codes.
static inline void mark_seen(const Tables& t, int n, const Code* codes, const Scratch& s) {
    for (int i = 0; i < n; ++i) {
        for (int c = 0; c < t.C; ++c) {
            __builtin_memcpy(seen_by(t, s, i, c), codes + static_cast<std::size_t>(i) * t.C,
                             t.C * sizeof(Code));
        }
    }
}

// V holds <y, d> for the residual y = x - sum of the chosen codewords:
// the cost of d is 1/2 |y + d_now - d|^2 = 1/2 |d|^2 - <y, d> - <d_now, d> + const.
static void from_residuals(const Tables& t, int n, Costs V, Code* codes, void* work) {
    const Scratch s = carve(t, n, work);
    for (int c = 0; c < t.C; ++c) {
        const float* N = t.half_norms(c);
        for (int i = 0; i < n; ++i) {
            float* v = V.at(i, c, t.Kp);
            const float* own = t.row(c, c, code_of(t, codes, i)[c]);
            Vec m = splat(__builtin_inff());
            for (int k = 0; k < t.Kp; k += kLanes) {
                const Vec a = load(N + k) - load(v + k) - load(own + k);
                store(v + k, a);
                m = least(m, a);
            }
            least_known(t, s, i, c) = least_lane(m);
        }
    }
    mark_seen(t, n, codes, s);
}

// One dictionary alone: V (n, Kp) holds <x, d>, N (Kp) half the squared norms; the codeword of least cost.
static void nearest(int n, int Kp, const float* V, const float* N, Code* codes) {
    for (int i = 0; i < n; ++i) {
        const float* v = V + static_cast<std::size_t>(i) * Kp;
        Vec m = load(N) - load(v);
        for (int k = kLanes; k < Kp; k += kLanes) m = least(m, load(N + k) - load(v + k));
        const Vec best = splat(least_lane(m));
        codes[i] = 0;
        for (int k = 0; k < Kp; k += kLanes) {
            if (const unsigned mask = lanes_equal(load(N + k) - load(v + k), best)) {
                codes[i] = static_cast<Code>(k + __builtin_ctz(mask));
                break;
            }
        }
    }
}

// v += the rows of T that dictionaries [first, last) have chosen.
static inline void add_chosen(const Tables& t, int c, int first, int last, const Code* code,
                              const float** rows, float* v) {
    constexpr int U = kLanes >= 8 ? 8 : 4;
    for (int b = first; b < last; ++b) rows[b] = t.row(c, b, code[b]);
    int k = 0;
    for (; k + U * kLanes <= t.Kp; k += U * kLanes) {
        Vec a[U];
        for (int u = 0; u < U; ++u) a[u] = load(v + k + u * kLanes);
        for (int b = first; b < last; ++b) {
            for (int u = 0; u < U; ++u) a[u] = a[u] + load(rows[b] + k + u * kLanes);
        }
        for (int u = 0; u < U; ++u) store(v + k + u * kLanes, a[u]);
    }
    for (; k < t.Kp; k += kLanes) {
        Vec a = load(v + k);
        for (int b = first; b < last; ++b) a = a + load(rows[b] + k);
        store(v + k, a);
    }
}

// V holds <x, d>; dictionaries in order, each on the residual of those before. V becomes the costs.
static void greedy(const Tables& t, int n, Costs V, Code* codes, void* work) {
    const Scratch s = carve(t, n, work);
    for (int c = 0; c < t.C; ++c) {
        const float* N = t.half_norms(c);
        for (int i = 0; i < n; ++i) {
            float* v = V.at(i, c, t.Kp);
            Code* code = code_of(t, codes, i);
            for (int k = 0; k < t.Kp; k += kLanes) store(v + k, load(N + k) - load(v + k));
            add_chosen(t, c, 0, c, code, s.now, v);
            code[c] = static_cast<Code>(index_of(v, t.Kp, least_of(v, t.Kp)));
        }
    }
    for (int c = 0; c < t.C; ++c) {
        for (int i = 0; i < n; ++i) {
            add_chosen(t, c, c + 1, t.C, code_of(t, codes, i), s.now, V.at(i, c, t.Kp));
            least_known(t, s, i, c) = least_of(V.at(i, c, t.Kp), t.Kp);
        }
    }
    mark_seen(t, n, codes, s);
}

static inline bool same(const Code* a, const Code* b, int C) {
    int c = 0;
    for (; c + 4 <= C; c += 4) {
        std::uint64_t x, y;
        __builtin_memcpy(&x, a + c, 8);
        __builtin_memcpy(&y, b + c, 8);
        if (x != y) return false;
    }
    for (; c < C; ++c) {
        if (a[c] != b[c]) return false;
    }
    return true;
}

// Rows of T, new and old, of the codes that changed since V[c, i] was last brought up to date; returns how
// many.
static inline int stale(const Tables& t, const Scratch& s, int i, int c, const Code* code) {
    const Code* seen = seen_by(t, s, i, c);
    if (same(seen, code, t.C)) return 0;
    int m = 0;
    for (int b = 0; b < t.C; ++b) {
        s.now[m] = t.row(c, b, code[b]);
        s.before[m] = t.row(c, b, seen[b]);
        m += b != c && seen[b] != code[b];
    }
    return m;
}

// Asks for what refresh will read.
static inline void prefetch_stale(const Tables& t, const Scratch& s, int i, int c, const Code* code) {
    const int m = stale(t, s, i, c, code);
    for (int r = 0; r < m; ++r) {
        prefetch(s.now[r], t.Kp);
        prefetch(s.before[r], t.Kp);
    }
}

// Brings V[c, i] up to date.
static inline void refresh(const Tables& t, const Scratch& s, int i, int c, const Code* code, float* v) {
    const int m = stale(t, s, i, c, code);
    if (m == 0) return;
    __builtin_memcpy(seen_by(t, s, i, c), code, t.C * sizeof(Code));
    Vec low = splat(__builtin_inff());
    for (int k = 0; k < t.Kp; k += kLanes) {
        Vec a = load(v + k);
        for (int r = 0; r < m; ++r) a = a + (load(s.now[r] + k) - load(s.before[r] + k));
        store(v + k, a);
        low = least(low, a);
    }
    least_known(t, s, i, c) = least_lane(low);
}

// A row is done when each dictionary in turn kept its code: `clean` counts the visits since the last change.
// Sweeps are bounded because rounding could let two codes of equal cost alternate.
constexpr int kMaxSweeps = 100;

static void order1(const Tables& t, int n, Costs V, Code* codes, void* work) {
    const Scratch s = carve(t, n, work);
    int left = n;
    for (int visit = 0; left > 0 && visit < kMaxSweeps * t.C; ++visit) {
        const int c = visit % t.C;
        int kept = 0;
        for (int a = 0; a < left; ++a) {
            const int i = s.active[a];
            if (a + kAhead < left) {
                const int next = s.active[a + kAhead];
                prefetch_stale(t, s, next, c, code_of(t, codes, next));
            }
            Code* code = code_of(t, codes, i);
            float* v = V.at(i, c, t.Kp);
            refresh(t, s, i, c, code, v);
            const float best = least_known(t, s, i, c);
            if (best < v[code[c]]) {
                code[c] = static_cast<Code>(index_of(v, t.Kp, best));
                seen_by(t, s, i, c)[c] = code[c];
                s.clean[i] = 0;
            }
            if (++s.clean[i] < t.C) s.active[kept++] = i;
        }
        left = kept;
    }
}

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans

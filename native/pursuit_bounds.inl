// Lower bounds of the leaves of the pursuit's tree in shorts, for Kp = 256 and three dictionaries or more.
//
// Call the last two dictionaries p and q. Below a path of cost f that has chosen k_c of every dictionary c
// before them, leaf (j, k) costs f plus 2C - 1 terms:
//     v[p][j] + sum_c T[p, c, k_c, j]   and   v[q][k] + sum_c T[q, c, k_c, k] + T[q, p, j, k].
// Each term is held as the whole steps that it lies above the least of its kind, at most 32767. None is
// negative, and sums stop at 32767, so that a sum of them is never more than the leaf's own steps above the
// sum of the least terms: a leaf whose steps exceed those of the best one is not better.
//
// Rounding. Let Y be the sum of the 2C - 1 terms above their least, G the sum of the least ones' sizes and
// |f|. The tree's cost differs from f + the terms by at most g (G + Y), with g = (C + 1) 2^-24 to first
// order. A leaf that costs no more than `best` thus has Y (1 - g) <= best - f - (sum of the least) + g G. A
// term's steps are those of (term - least) * per: two roundings, less than 2^-8 of a step below 32768.
// limit_paths takes 2 g, and 1 + C / 16 steps for the rest.

namespace gkmeans {
namespace GKMEANS_LEVEL {

constexpr int kWords = 256;           // columns of a row
constexpr int kEighths = kWords / 8;  // groups of eight columns
constexpr int kFullShort = 32767;     // no bound
constexpr int kCells = kWords * kWords;

struct Bounds {
    bool on;
    Short* to_p;                 // (C - 2, 256, 256)  steps of T[p, c]
    Short* to_q;                 // (C - 2, 256, 256)  of T[q, c], with columns as place_of has them
    Short* last;                 // (256, 256)  of T[q, p] above the least of its row, likewise
    Short* groups;               // (256, 32)  the least of each eight columns of each row of `last`
    Short* rows;                 // (256)  steps of the least of each row of T[q, p]
    Short *p, *q;                // (C - 2, 256)  steps of the scores of p and q at each depth of the path
    Short* with_rows;            // (256)  p + rows at depth C - 3
    Short* a;                    // (kSiblings, 256)  the same at depth C - 2
    Short* d;                    // (kSiblings, 256)  steps of the scores of q at depth C - 2
    Short* minima;               // (kSiblings, 32)  the least of each eight columns of d
    Short limits[kSiblings];     // the most steps of a leaf of each node that may be better
    float per;                   // 1 / step
    double least, size;          // the sum of the least entries of the tables, and of their sizes
    double row_least, row_size;  // with those of the row's scores
};

// The place of column k: eight columns in a row lie at the same lane of eight registers.
static inline int place_of(int k) { return k % 8 * kEighths + k / 8; }

static inline Short steps_of(float value, float least, float per) {
    const float y = (value - least) * per;
    return static_cast<Short>(static_cast<int>(y < kFullShort ? y : kFullShort));
}

// The steps of 256 values, in order or as place_of has them.
static inline void to_shorts(const float* v, float least, float per, Short* out) {
    for (int k = 0; k < kWords; ++k) out[k] = steps_of(v[k], least, per);
}
static inline void to_places(const float* v, float least, float per, Short* out) {
    Short steps[kWords];
    to_shorts(v, least, per, steps);
    for (int k = 0; k < kWords; ++k) out[place_of(k)] = steps[k];
}

struct Extent {
    float low, high;
};

static Extent extent_of(const float* v, std::size_t count) {
    Vec low = load(v), high = splat(0) - low;
    for (std::size_t k = kLanes; k < count; k += kLanes) {
        low = least(low, load(v + k));
        high = least(high, splat(0) - load(v + k));
    }
    return {least_lane(low), -least_lane(high)};
}

static inline void sum_shorts(const Short* a, const Short* b, Short* out) {
    for (int k = 0; k < kWords; k += kShorts) {
        store_shorts(out + k, add_shorts(load_shorts(a + k), load_shorts(b + k)));
    }
}

// out[g] = the least of group g of at(k), which gives the register of places from k on. Returns the least.
template <typename At>
static inline int least_of_eighths(const At& at, Short* out) {
    Shorts low = splat_short(kFullShort);
    for (int g = 0; g < kEighths; g += kShorts) {
        Shorts m = at(g);
#pragma GCC unroll 8
        for (int k = kEighths; k < kWords; k += kEighths) m = least_shorts(m, at(k + g));
        store_shorts(out + g, m);
        low = least_shorts(low, m);
    }
    return least_short(low);
}

// Sets the tables up, unless their numbers are all equal, or so small or large that steps may leave float32.
static void fill_bounds(const Tables& t, Bounds& s) {
    const int p = t.C - 2, q = t.C - 1;
    const std::size_t count = static_cast<std::size_t>(t.K) * kWords;
    double range = 0;
    s.least = s.size = 0;
    const auto measure = [&](int c, int b) {
        const Extent e = extent_of(t.row(c, b, 0), count);
        range += static_cast<double>(e.high) - e.low;
        s.least += e.low;
        s.size += e.low < 0 ? -e.low : e.low;
    };
    for (int c = 0; c < p; ++c) measure(p, c), measure(q, c);
    measure(q, p);
    s.on = range > 1e-20 && range < 1e20;
    if (!s.on) return;
    s.per = static_cast<float>(kFullShort / 2 / range);
    for (int c = 0; c < p; ++c) {
        const float low_p = extent_of(t.row(p, c, 0), count).low,
                    low_q = extent_of(t.row(q, c, 0), count).low;
        for (int j = 0; j < t.K; ++j) {
            to_shorts(t.row(p, c, j), low_p, s.per,
                      s.to_p + static_cast<std::size_t>(c) * kCells + j * kWords);
            to_places(t.row(q, c, j), low_q, s.per,
                      s.to_q + static_cast<std::size_t>(c) * kCells + j * kWords);
        }
    }
    const float low = extent_of(t.row(q, p, 0), count).low;
    for (int j = 0; j < kWords; ++j) {
        Short* row = s.last + j * kWords;
        for (int k = 0; k < kWords; ++k) row[k] = kFullShort;
        if (j < t.K) to_places(t.row(q, p, j), low, s.per, row);
        Short* groups = s.groups + j * kEighths;
        const int least = least_of_eighths([&](int k) { return load_shorts(row + k); }, groups);
        s.rows[j] = static_cast<Short>(least);
        for (int k = 0; k < kWords; ++k) row[k] = static_cast<Short>(row[k] - least);
        for (int g = 0; g < kEighths; ++g) groups[g] = static_cast<Short>(groups[g] - least);
    }
}

// Carves the arrays out of `work` and sets the tables up.
static void plant_bounds(const Tables& t, Bounds& s, Short* work) {
    const auto take = [&work](std::size_t shorts) {
        Short* start = work;
        work += shorts;
        return start;
    };
    const std::size_t depths = t.C - 2;
    s.to_p = take(depths * kCells);
    s.to_q = take(depths * kCells);
    s.last = take(kCells);
    s.groups = take(kWords * kEighths);
    s.rows = take(kWords);
    s.p = take(depths * kWords);
    s.q = take(depths * kWords);
    s.with_rows = take(kWords);
    s.a = take(kSiblings * kWords);
    s.d = take(kSiblings * kWords);
    s.minima = take(kSiblings * kEighths);
    fill_bounds(t, s);
}

// The scores of p and q at the root.
static inline void start_bounds(Bounds& s, const float* vp, const float* vq) {
    const float low_p = least_of(vp, kWords), low_q = least_of(vq, kWords);
    to_shorts(vp, low_p, s.per, s.p);
    to_places(vq, low_q, s.per, s.q);
    s.row_least = s.least + low_p + low_q;
    s.row_size = s.size + (low_p < 0 ? -low_p : low_p) + (low_q < 0 ? -low_q : low_q);
}

// Codeword j of dictionary c joins the path.
static inline void extend_bounds(const Bounds& s, int c, int j) {
    const std::size_t row = static_cast<std::size_t>(c) * kCells + j * kWords, depth = c * kWords;
    sum_shorts(s.p + depth, s.to_p + row, s.p + depth + kWords);
    sum_shorts(s.q + depth, s.to_q + row, s.q + depth + kWords);
}

// Gets the node at depth C - 3 ready.
static inline void join_rows(const Bounds& s, int c) { sum_shorts(s.p + c * kWords, s.rows, s.with_rows); }

// limits[x] = the steps that a leaf below a path of cost costs[x] may have if it costs at most `best`; 32767
// allows all.
static inline void limit_paths(const Tables& t, Bounds& s, float best, int count, const float* costs) {
    const double per = s.per, more = (t.C + 1) * 0x1p-23;
    const double top = (best - s.row_least + more * s.row_size) * per + (1 + t.C / 16.0);
    for (int x = 0; x < count; ++x) {
        const double cost = costs[x], size = cost < 0 ? -cost : cost;
        const double steps = top - (cost - more * size) * per;
        const double some = steps < kFullShort ? steps : kFullShort;
        s.limits[x] = static_cast<Short>(some > -1 ? some : -1);
    }
}

// Lists the rows of node x, which chose j of dictionary C - 3, that may have a better leaf.
static inline int* list_rows(const Tables& t, const Bounds& s, int x, int j, int* end) {
    const int c = t.C - 3;
    const std::size_t row = static_cast<std::size_t>(c) * kCells + j * kWords;
    const Short *q = s.q + c * kWords, *to_p = s.to_p + row, *to_q = s.to_q + row;
    const Short* with_rows = s.with_rows;
    Short *a = s.a + x * kWords, *d = s.d + x * kWords;
    const int low = least_of_eighths(
        [&](int k) {
            const Shorts sum = add_shorts(load_shorts(q + k), load_shorts(to_q + k));
            store_shorts(d + k, sum);
            return sum;
        },
        s.minima + x * kEighths);
    const int most = s.limits[x];
    const Shorts limit = splat_short(most < kFullShort ? most - low : kFullShort);
#pragma GCC unroll 8
    for (int k = 0; k < kWords; k += kShorts) {
        const Shorts sum = add_shorts(load_shorts(with_rows + k), load_shorts(to_p + k));
        store_shorts(a + k, sum);
        const unsigned mask = shorts_up_to(sum, limit);
        for (int h = 0; h < kShorts; h += kLanes) {
            end += list_lanes(mask >> h & ((1u << kLanes) - 1), lanes_from((x << 16) + k + h), end);
        }
    }
    return end;
}

// Of the rows listed, keeps those with a leaf, first by groups and then one by one, that may be better.
static inline int keep_rows(const Bounds& s, int* list, int count) {
    const Short *all_a = s.a, *all_d = s.d, *minima = s.minima;
    const Short *limits = s.limits, *groups = s.groups, *last = s.last;
    int kept = 0;
    for (int r = 0; r < count; ++r) {
        const unsigned item = list[r], x = item >> 16, j = item & 0xffff;
        const Shorts a = splat_short(all_a[x * kWords + j]), limit = splat_short(limits[x]);
        const Short *d = minima + x * kEighths, *row = groups + j * kEighths;
        unsigned open = 0;
        for (int k = 0; k < kEighths; k += kShorts) {
            open |= shorts_up_to(add_shorts(add_shorts(load_shorts(d + k), load_shorts(row + k)), a), limit);
        }
        list[kept] = item;
        kept += open != 0;
    }
    count = kept, kept = 0;
    for (int r = 0; r < count; ++r) {
        const unsigned item = list[r], x = item >> 16, j = item & 0xffff;
        const Shorts a = splat_short(all_a[x * kWords + j]), limit = splat_short(limits[x]);
        const Short *d = all_d + x * kWords, *row = last + j * kWords;
        Shorts m = add_shorts(load_shorts(d), load_shorts(row));
#pragma GCC unroll 8
        for (int k = kShorts; k < kWords; k += kShorts) {
            m = least_shorts(m, add_shorts(load_shorts(d + k), load_shorts(row + k)));
        }
        list[kept] = item;
        kept += shorts_up_to(add_shorts(m, a), limit) != 0;
    }
    return kept;
}

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans

// Lookup tables of queries and the lower bounds of the scan (Appendix).
//
// A block holds 64 rows, a line of 64 bytes for each dictionary (two dictionaries a line where codes are
// nibbles, two lines a dictionary where they are shorts) and one for the norm. The byte tables are rounded
// down, so the sum of a row's entries bounds its distance from below.

namespace gkmeans {
namespace GKMEANS_LEVEL {

constexpr int kHeld = kTile / kLanes;               // registers of a tile
constexpr int kAside = kHeld >= 8 ? 1 : 8 / kHeld;  // rows, or tiles, that are summed side by side

// Products of R rows with S tiles, the first `width` columns of them.
template <int R, int S>
static inline void some_products(int P, int W, int width, const float* Q, const float* D, float* out) {
    Vec sum[R][S * kHeld];
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < S * kHeld; ++j) sum[r][j] = splat(0.0f);
    }
    for (int p = 0; p < P; ++p) {
        for (int j = 0; j < S * kHeld; ++j) {
            const Vec d =
                load(D + (static_cast<std::size_t>(j / kHeld) * P + p) * kTile + j % kHeld * kLanes);
            for (int r = 0; r < R; ++r)
                sum[r][j] = sum[r][j] + splat(Q[static_cast<std::size_t>(r) * P + p]) * d;
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < width / kLanes; ++j)
            store(out + static_cast<std::size_t>(r) * W + j * kLanes, sum[r][j]);
    }
}

// The sum over p is taken in order for every column, so a query's tables do not depend on its company.
static void products(int n, int P, int W, const float* Q, const float* D, float* out) {
    const int whole = n - n % kAside;
    const auto at = [&](int i, int k) { return out + static_cast<std::size_t>(i) * W + k; };
    for (int k = 0; k < W; k += kTile) {
        const float* tile = D + static_cast<std::size_t>(k) * P;
        const int width = W - k < kTile ? W - k : kTile;
        for (int i = 0; i < whole; i += kAside)
            some_products<kAside, 1>(P, W, width, Q + static_cast<std::size_t>(i) * P, tile, at(i, k));
    }
    for (int i = whole; i < n; ++i) {
        const float* q = Q + static_cast<std::size_t>(i) * P;
        int k = 0;
        for (; k + kAside * kTile <= W; k += kAside * kTile) {
            const float* tiles = D + static_cast<std::size_t>(k) * P;
            some_products<1, kAside>(P, W, kAside * kTile, q, tiles, at(i, k));
        }
        for (; k < W; k += kTile) {
            const float* tile = D + static_cast<std::size_t>(k) * P;
            some_products<1, 1>(P, W, W - k < kTile ? W - k : kTile, q, tile, at(i, k));
        }
    }
}

#ifdef GKMEANS_BYTES
// Sums of bytes, one for each row of a register. The wide ones gather pairs of neighbours as shorts in `all`
// and the second of each pair in `odd`: the first is what remains.
template <bool narrow>
struct Sums {
    Bytes all = no_bytes(), odd = no_bytes();
    void add(Bytes v) {
        all = narrow ? add_bytes(all, v) : add_pairs(all, v);
        if (!narrow) odd = add_pairs(odd, odd_bytes(v));
    }
    std::uint64_t within(int limit) const {
        return narrow ? bytes_up_to(all, limit) : up_to(even_sums(all, odd), odd, limit);
    }
};

constexpr int kHalves = kBlock / kBytes;         // registers of a line
constexpr int kAbreast = 4 / kHalves / kHalves;  // blocks that share the loads of a table
constexpr std::size_t kFetched = 8192;           // bytes that are fetched before they are needed

// Words of R blocks: a bit for each row whose bound is at most limit.
template <bool nibbles, bool narrow, int R>
static inline void bounded(const Lines& lines, const std::uint8_t* blocks, const std::uint8_t* tables,
                           int limit, std::uint64_t* out) {
    constexpr int kSums = R * kHalves;
    const std::size_t size = lines.bytes();
    Sums<narrow> sums[kSums];
    const auto at = [&](int r) { return blocks + r / kHalves * size + r % kHalves * kBytes; };
    for (int c = 0; nibbles && c < lines.C; c += 2, blocks += kBlock, tables += 32) {
        const Table16 low(tables), high(tables + 16);
        for (int r = 0; r < kSums; ++r) {
            const Bytes codes = load_bytes(at(r));
            sums[r].add(low(low_nibbles(codes)));
            sums[r].add(high(high_nibbles(codes)));
            __builtin_prefetch(at(r) + kFetched);
        }
    }
    for (int c = nibbles ? lines.C : 0; c < lines.C + lines.norm; ++c, blocks += kBlock, tables += 256) {
        const Table256 table(tables);
        for (int r = 0; r < kSums; ++r) {
            sums[r].add(table(load_bytes(at(r))));
            __builtin_prefetch(at(r) + kFetched);
        }
    }
    for (int r = 0; r < R; ++r) out[r] = 0;
    for (int r = 0; r < kSums; ++r) {
        out[r / kHalves] |= sums[r].within(limit) << (r % kHalves * kBytes);
    }
}

template <bool nibbles, bool narrow>
static void bound_blocks(const Lines& lines, int n, const std::uint8_t* blocks, const std::uint8_t* tables,
                         int limit, std::uint64_t* words) {
    const std::size_t size = lines.bytes();
    std::uint64_t word[kAbreast];
    int b = 0;
    for (; b + kAbreast <= n; b += kAbreast) {
        std::uint64_t any = 0;
        for (int r = 0; r < kAbreast; ++r) any |= words[b + r];
        if (!any) continue;
        bounded<nibbles, narrow, kAbreast>(lines, blocks + b * size, tables, limit, word);
        for (int r = 0; r < kAbreast; ++r) words[b + r] &= word[r];
    }
    for (; b < n; ++b) {
        if (!words[b]) continue;
        bounded<nibbles, narrow, 1>(lines, blocks + b * size, tables, limit, word);
        words[b] &= word[0];
    }
}

static void candidates(const Lines& lines, int n, const std::uint8_t* blocks, const std::uint8_t* tables,
                       bool narrow, int limit, std::uint64_t* words) {
    const auto bound = lines.bits == 4 ? (narrow ? bound_blocks<true, true> : bound_blocks<true, false>)
                                       : (narrow ? bound_blocks<false, true> : bound_blocks<false, false>);
    bound(lines, n, blocks, tables, limit, words);
}
#else
// Plain registers look nothing up: the float scan is as fast.
constexpr auto candidates = nullptr;
#endif

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans

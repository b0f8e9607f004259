// Lookup tables of queries, the lower bounds of the scan (Appendix), and what they are made of: tables in
// bytes, and a bit for each row that a mask keeps.
//
// A block holds 64 rows, a line of 64 bytes for each dictionary (two dictionaries a line where codes are
// nibbles, two lines a dictionary where they are shorts) and one for the norm. The byte tables are rounded
// down, so the sum of a row's entries bounds its distance from below.

namespace gkmeans {
namespace GKMEANS_LEVEL {

constexpr int kHeld = kTile / kLanes;                // registers of a tile
constexpr int kColumnsHeld = kHeld < 2 ? kHeld : 2;  // of these, those that are summed at once for many rows,
constexpr int kRowsAside = kLanes == 16 ? 8 : kLanes == 8 ? 6 : 4;  // and the rows
constexpr int kTilesAside = kHeld >= 8 ? 1 : 8 / kHeld;  // tiles that are summed at once for one row

// Products of R rows with J registers of each of S tiles, the first `width` columns of them.
template <int R, int S, int J>
static inline void some_products(int P, int W, int width, const float* Q, const float* D, float* out) {
    Vec sum[R][S * J];
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < S * J; ++j) sum[r][j] = splat(0.0f);
    }
    for (int p = 0; p < P; ++p) {
        Vec d[S * J];
        for (int j = 0; j < S * J; ++j)
            d[j] = load(D + (static_cast<std::size_t>(j / J) * P + p) * kTile + j % J * kLanes);
        for (int r = 0; r < R; ++r) {
            const Vec q = splat(Q[static_cast<std::size_t>(r) * P + p]);
            for (int j = 0; j < S * J; ++j) sum[r][j] = fused(q, d[j], sum[r][j]);
        }
    }
    for (int r = 0; r < R; ++r) {
        float* to = out + static_cast<std::size_t>(r) * W;
        const int whole = width / kLanes;
        for (int j = 0; j < S * J; ++j) {
            if (j < whole) store(to + j * kLanes, sum[r][j]);
            if (j == whole && width % kLanes) {
                float rest[kLanes];
                store(rest, sum[r][j]);
                for (int k = 0; k < width % kLanes; ++k) to[j * kLanes + k] = rest[k];
            }
        }
    }
}

static inline int least_int(int a, int b) { return a < b ? a : b; }

// The sum over p is taken in order for every column, so a row's products do not depend on its company.
static void products(int n, int P, int W, const float* Q, const float* D, float* out) {
    const int whole = n - n % kRowsAside;
    const auto at = [&](int i, int k) { return out + static_cast<std::size_t>(i) * W + k; };
    constexpr int kColumns = kColumnsHeld * kLanes;
    for (int k = 0; k < W; k += kColumns) {
        const float* columns = D + static_cast<std::size_t>(k - k % kTile) * P + k % kTile;
        const int width = least_int(W - k, kColumns);
        for (int i = 0; i < whole; i += kRowsAside)
            some_products<kRowsAside, 1, kColumnsHeld>(P, W, width, Q + static_cast<std::size_t>(i) * P,
                                                       columns, at(i, k));
    }
    for (int i = whole; i < n; ++i) {
        const float* q = Q + static_cast<std::size_t>(i) * P;
        int k = 0;
        for (; k + kTilesAside * kTile <= W; k += kTilesAside * kTile) {
            const float* tiles = D + static_cast<std::size_t>(k) * P;
            some_products<1, kTilesAside, kHeld>(P, W, kTilesAside * kTile, q, tiles, at(i, k));
        }
        for (; k < W; k += kTile) {
            const float* tile = D + static_cast<std::size_t>(k) * P;
            some_products<1, 1, kHeld>(P, W, least_int(W - k, kTile), q, tile, at(i, k));
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

constexpr int kHalves = kBlock / kBytes;               // registers of a line
constexpr int kShared = kAbreast / kHalves / kHalves;  // blocks that share the loads of a table
static_assert(kShared >= 1 && kAbreast % kShared == 0);
// Bytes that are fetched before they are needed, into L2: four streams of lines would push each other out of
// L1.
constexpr std::size_t kFetched = 8192;

// Words of R blocks, `apart` bytes from each other: a bit for each row whose bound is at most limit.
template <bool nibbles, bool narrow, bool halved, int R>
static inline void bounded(const Lines& lines, const std::uint8_t* blocks, std::size_t apart,
                           const std::uint8_t* tables, int limit, std::uint64_t* out) {
    constexpr int kSums = R * kHalves;
    Sums<narrow> sums[kSums];
    const auto at = [&](int r) { return blocks + r / kHalves * apart + r % kHalves * kBytes; };
    for (int c = 0; nibbles && c < lines.C; c += 2, blocks += kBlock, tables += 32) {
        const Table16 low(tables), high(tables + 16);
        for (int r = 0; r < kSums; ++r) {
            const Bytes codes = load_bytes(at(r));
            sums[r].add(low(low_nibbles(codes)));
            sums[r].add(high(high_nibbles(codes)));
            __builtin_prefetch(at(r) + kFetched, 0, 2);
        }
    }
    for (int c = 0; !nibbles && c < lines.C; ++c, blocks += kBlock, tables += 256) {
        const TableOf<halved> table(tables);
        for (int r = 0; r < kSums; ++r) {
            sums[r].add(table(load_bytes(at(r))));
            __builtin_prefetch(at(r) + kFetched, 0, 2);
        }
    }
    if (lines.norm) {
        const TableOf<halved> table(tables);
        for (int r = 0; r < kSums; ++r) {
            const Bytes codes = load_bytes(at(r));
            sums[r].add(table(halved ? half_bytes(codes) : codes));
            __builtin_prefetch(at(r) + kFetched, 0, 2);
        }
    }
    for (int r = 0; r < R; ++r) out[r] = 0;
    for (int r = 0; r < kSums; ++r) {
        out[r / kHalves] |= sums[r].within(limit) << (r % kHalves * kBytes);
    }
}

template <bool nibbles, bool narrow, bool halved>
static bool bound_blocks(const Lines& lines, int n, const std::uint8_t* blocks, std::size_t apart,
                         std::size_t next, const std::uint8_t* tables, int limit, std::uint64_t* words) {
    std::uint64_t word[kShared], some = 0;
    for (int b = 0; b < n; b += kAbreast, blocks += next, words += kAbreast) {
        const int count = n - b < kAbreast ? n - b : kAbreast;
        int r = 0;
        for (; r + kShared <= count; r += kShared) {
            int filled = 0;
            for (int j = 0; j < kShared; ++j) filled += words[r + j] != 0;
            if (2 * filled < kShared) break;  // those few one by one
            bounded<nibbles, narrow, halved, kShared>(lines, blocks + r * apart, apart, tables, limit, word);
            for (int j = 0; j < kShared; ++j) some |= words[r + j] &= word[j];
        }
        for (; r < count; ++r) {
            if (!words[r]) continue;
            bounded<nibbles, narrow, halved, 1>(lines, blocks + r * apart, apart, tables, limit, word);
            some |= words[r] &= word[0];
        }
    }
    return some != 0;
}

static bool candidates(const Lines& lines, int n, const std::uint8_t* blocks, std::size_t apart,
                       std::size_t next, const std::uint8_t* tables, Bound bound, std::uint64_t* words) {
    const auto way =
        lines.bits == 4 ? (bound.narrow ? bound_blocks<true, true, false> : bound_blocks<true, false, false>)
        : bound.halved
            ? (bound.narrow ? bound_blocks<false, true, kHalving> : bound_blocks<false, false, kHalving>)
        : bound.narrow ? bound_blocks<false, true, false>
                       : bound_blocks<false, false, false>;
    return way(lines, n, blocks, apart, next, tables, bound.limit, words);
}

static void arrange(bool norm, bool halved, std::uint8_t* table) {
    std::uint8_t from[256];
    for (int k = 0; halved && k < 128; ++k) {
        const std::uint8_t a = table[norm ? 2 * k : k], b = table[norm ? 2 * k + 1 : k + 128];
        from[k] = a < b ? a : b;
    }
    for (int k = 0; !halved && k < 256; ++k) from[k] = table[k];
    for (int k = 0, half = halved ? 64 : 128; k < half; ++k) {
        table[kPaired ? 2 * k : k] = from[k];
        table[kPaired ? 2 * k + 1 : k + half] = from[k + half];
    }
}

static inline std::uint64_t word_of(const std::uint8_t* bytes) {
    std::uint64_t word = 0;
    for (int h = 0; h < kHalves; ++h) word |= not_zero(load_bytes(bytes + h * kBytes)) << h * kBytes;
    return word;
}
#else
// Plain registers look nothing up: the float scan is as fast.
constexpr auto candidates = nullptr;
constexpr auto arrange = nullptr;
constexpr bool kHalving = false;

static inline std::uint64_t word_of(const std::uint8_t* bytes) {
    constexpr std::uint64_t kLow = 0x7f7f7f7f7f7f7f7f;
    std::uint64_t word = 0;
    for (int g = 0; g < kBlock / 8; ++g) {
        std::uint64_t eight;
        __builtin_memcpy(&eight, bytes + 8 * g, 8);
        const std::uint64_t ones = (((eight & kLow) + kLow) | eight) >> 7 & 0x0101010101010101;
        word |= (ones * 0x0102040810204080 >> 56) << 8 * g;  // byte j to bit 56 + j
    }
    return word;
}
#endif

// The greatest value is the one whose negative is least. NaN is passed over, or is the answer.
static void extremes(int n, const float* values, float* lowest, float* highest) {
    const Vec zero = splat(0.0f);
    Vec low = splat(__builtin_inff()), high = low;
    for (int k = 0; k < n; k += kLanes) {
        const Vec v = load(values + k);
        low = least(v, low);
        high = least(zero - v, high);
    }
    *lowest = least_lane(low);
    *highest = -least_lane(high);
}

// What the float product is above the true one, over all tables, is far below the step that limits allow.
static void round_down(int n, const float* values, float first, float steps, std::uint8_t* out) {
    for (int k = 0; k < n; ++k) {
        float level = (values[k] - first) * steps;
        level = level < 255.0f ? level : 255.0f;
        out[k] = static_cast<std::uint8_t>(static_cast<int>(level));
    }
}

static void not_above(int n, const float* values, float limit, std::uint16_t* words) {
    for (int k = 0; k < n; k += kPad) {
        unsigned above = 0;
        for (int j = 0; j < kPad; j += kLanes) above |= lanes_below(splat(limit), load(values + k + j)) << j;
        words[k / kPad] = static_cast<std::uint16_t>(~above);
    }
}

static std::int64_t pack_bits(std::int64_t n, const std::uint8_t* bytes, std::uint64_t* words) {
    std::int64_t count = 0;
    for (std::int64_t b = 0; b < n; ++b) {
        words[b] = word_of(bytes + b * kBlock);
        count += __builtin_popcountll(words[b]);
    }
    return count;
}

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans

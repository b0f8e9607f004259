// Lookup tables of queries and the lower bounds of the scan (Appendix).
//
// A block holds 64 rows, a line of 64 bytes for each dictionary (two dictionaries a line where codes are
// nibbles, two lines a dictionary where they are shorts) and one for the norm. The byte tables are rounded
// down, so the sum of a row's entries bounds its distance from below.

namespace gkmeans {
namespace GKMEANS_LEVEL {

// The sum over p is taken in order for every column, so a query's tables do not depend on its company.
static void products(int n, int P, int W, const float* Q, const float* Dt, float* out) {
    constexpr int kTile = 2 * kPad, kHeld = kTile / kLanes;
    for (int k = 0; k < W; k += kTile) {
        const int held = (W - k < kTile ? W - k : kTile) / kLanes;
        for (int i = 0; i < n; ++i) {
            const float* q = Q + static_cast<std::size_t>(i) * P;
            const float* d = Dt + k;
            float* to = out + static_cast<std::size_t>(i) * W + k;
            Vec sum[kHeld];
            for (int j = 0; j < kHeld; ++j) sum[j] = splat(0.0f);
            if (held == kHeld) {
                for (int p = 0; p < P; ++p, d += W) {
                    for (int j = 0; j < kHeld; ++j) sum[j] = sum[j] + splat(q[p]) * load(d + j * kLanes);
                }
            } else {
                for (int p = 0; p < P; ++p, d += W) {
                    for (int j = 0; j < held; ++j) sum[j] = sum[j] + splat(q[p]) * load(d + j * kLanes);
                }
            }
            for (int j = 0; j < held; ++j) store(to + j * kLanes, sum[j]);
        }
    }
}

#ifdef GKMEANS_BYTES
// `all` gathers pairs of neighbours as shorts, `odd` the second of each pair: the first is what remains.
static inline void count(Bytes v, Bytes& all, Bytes& odd) {
    all = add_pairs(all, v);
    odd = add_pairs(odd, odd_bytes(v));
}

constexpr int kHalves = kBlock / kBytes;         // registers of a line
constexpr int kAbreast = 4 / kHalves / kHalves;  // blocks that share the loads of a table
constexpr std::size_t kFetched = 8192;           // bytes that are fetched before they are needed

// Words of R blocks: a bit for each row whose bound is at most limit.
template <bool nibbles, int R>
static inline void bounded(const Lines& lines, const std::uint8_t* blocks, const std::uint8_t* tables,
                           int limit, std::uint64_t* out) {
    constexpr int kSums = R * kHalves;
    const std::size_t size = lines.bytes();
    Bytes all[kSums], odd[kSums];
    for (int r = 0; r < kSums; ++r) all[r] = odd[r] = no_bytes();
    const auto at = [&](int r) { return blocks + r / kHalves * size + r % kHalves * kBytes; };
    for (int c = 0; nibbles && c < lines.C; c += 2, blocks += kBlock, tables += 32) {
        const Table16 low(tables), high(tables + 16);
        for (int r = 0; r < kSums; ++r) {
            const Bytes codes = load_bytes(at(r));
            count(low(low_nibbles(codes)), all[r], odd[r]);
            count(high(high_nibbles(codes)), all[r], odd[r]);
            __builtin_prefetch(at(r) + kFetched);
        }
    }
    for (int c = nibbles ? lines.C : 0; c < lines.C + lines.norm; ++c, blocks += kBlock, tables += 256) {
        const Table256 table(tables);
        for (int r = 0; r < kSums; ++r) {
            count(table(load_bytes(at(r))), all[r], odd[r]);
            __builtin_prefetch(at(r) + kFetched);
        }
    }
    for (int r = 0; r < R; ++r) out[r] = 0;
    for (int r = 0; r < kSums; ++r) {
        out[r / kHalves] |= up_to(even_sums(all[r], odd[r]), odd[r], limit) << (r % kHalves * kBytes);
    }
}

template <bool nibbles>
static void bound_blocks(const Lines& lines, int n, const std::uint8_t* blocks, const std::uint8_t* tables,
                         int limit, std::uint64_t* words) {
    const std::size_t size = lines.bytes();
    std::uint64_t word[kAbreast];
    int b = 0;
    for (; b + kAbreast <= n; b += kAbreast) {
        std::uint64_t any = 0;
        for (int r = 0; r < kAbreast; ++r) any |= words[b + r];
        if (!any) continue;
        bounded<nibbles, kAbreast>(lines, blocks + b * size, tables, limit, word);
        for (int r = 0; r < kAbreast; ++r) words[b + r] &= word[r];
    }
    for (; b < n; ++b) {
        if (!words[b]) continue;
        bounded<nibbles, 1>(lines, blocks + b * size, tables, limit, word);
        words[b] &= word[0];
    }
}

static void candidates(const Lines& lines, int n, const std::uint8_t* blocks, const std::uint8_t* tables,
                       int limit, std::uint64_t* words) {
    (lines.bits == 4 ? bound_blocks<true> : bound_blocks<false>)(lines, n, blocks, tables, limit, words);
}
#else
// Plain registers look nothing up: the float scan is as fast.
constexpr auto candidates = nullptr;
#endif

}  // namespace GKMEANS_LEVEL
}  // namespace gkmeans

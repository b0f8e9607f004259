// What comes before the scan: the tables of queries, and the rows that a filter keeps.
#include <cmath>
#include <cstring>
#include <vector>

#include "search.hpp"

namespace gkmeans {

constexpr std::size_t kFetched = 1 << 20;  // bytes of codewords that are fetched at once

bool all_below(std::size_t n, const float* values, float limit) {
    bool below = true;
    for (std::size_t i = 0; i < n; ++i) below &= std::fabs(values[i]) < limit;  // NaN is not
    return below;
}

void prepare(const Asked& asked, int n, const float* Q, float* rows, float* bias) {
    const int P = asked.P;
    for (int i = 0; i < n; ++i) {
        const float* q = Q + static_cast<std::size_t>(i) * P;
        float* x = rows + static_cast<std::size_t>(i) * P;
        double sum = 0;
        for (int p = 0; p < P; ++p) {
            x[p] = asked.l2 ? q[p] - asked.shift[p] : q[p];
            if (asked.scale != 1) x[p] *= asked.scale;
            if (asked.l2) {
                sum += static_cast<double>(x[p]) * x[p];
                x[p] *= -2;
            } else {
                sum -= static_cast<double>(x[p]) * (static_cast<double>(asked.shift[p]) * asked.scale);
                x[p] = -x[p];
            }
        }
        bias[i] = static_cast<float>(sum);
    }
}

void tables(const Kernels& kernels, const Asked& asked, int n, int W, const float* Q, const float* D,
            float* out, float* bias) {
    const int P = asked.P;
    std::vector<float> rows(static_cast<std::size_t>(n) * P);
    prepare(asked, n, Q, rows.data(), bias);
    // The last scan has driven the codewords out of the near caches, and one query reads them once.
    const auto* bytes = reinterpret_cast<const char*>(D);
    const std::size_t size = static_cast<std::size_t>(W) * P * sizeof(float);
    for (std::size_t b = 0; b < size && b < kFetched; b += 64) __builtin_prefetch(bytes + b, 0, 2);
    kernels.products(n, P, W, rows.data(), D, out);
}

constexpr int kPiece = 8;     // blocks of a mask that are read at once,
constexpr int kForward = 32;  // and how many before that they are fetched
constexpr int kRest = kAbreast * kPiece;

// Hands on all blocks of 64 rows of a mask, `piece(first, count)`, at most kRest at once, until that is
// false: from the four quarters in turn, since memory is read faster in several streams than in one.
template <typename Piece>
static bool in_streams(std::int64_t blocks, const std::uint8_t* mask, Piece piece) {
    const std::int64_t quarter = blocks / kRest * kPiece;
    for (std::int64_t b = 0; b < quarter; b += kPiece) {
        for (int j = 0; j < kAbreast; ++j) {
            const std::int64_t first = b + j * quarter;
            for (int i = 0; i < kPiece && first + i + kForward < blocks; ++i)
                __builtin_prefetch(mask + (first + i + kForward) * kBlock);
            if (!piece(first, kPiece)) return false;
        }
    }
    return piece(kAbreast * quarter, blocks - kAbreast * quarter);
}

// The word of the rows that do not fill a block.
static std::int64_t pack_last(const Kernels& kernels, std::int64_t n, const std::uint8_t* mask,
                              std::uint64_t* word) {
    std::uint8_t last[kBlock] = {};
    std::memcpy(last, mask + n / kBlock * kBlock, static_cast<std::size_t>(n % kBlock));
    return kernels.pack_bits(1, last, word);
}

std::int64_t pack_mask(const Kernels& kernels, std::int64_t n, const std::uint8_t* mask,
                       std::uint64_t* words) {
    std::int64_t count = 0;
    in_streams(n / kBlock, mask, [&](std::int64_t first, std::int64_t some) {
        count += kernels.pack_bits(some, mask + first * kBlock, words + first);
        return true;
    });
    return n % kBlock ? count + pack_last(kernels, n, mask, words + n / kBlock) : count;
}

bool same_mask(const Kernels& kernels, std::int64_t n, const std::uint8_t* mask, const std::uint64_t* words) {
    std::uint64_t packed[kRest];
    if (n % kBlock) {
        pack_last(kernels, n, mask, packed);
        if (packed[0] != words[n / kBlock]) return false;
    }
    return in_streams(n / kBlock, mask, [&](std::int64_t first, std::int64_t some) {
        kernels.pack_bits(some, mask + first * kBlock, packed);
        return !std::memcmp(packed, words + first, static_cast<std::size_t>(some) * sizeof *packed);
    });
}

std::int64_t mark_ids(std::int64_t m, const std::int64_t* ids, std::int64_t first, std::int64_t n,
                      const std::uint64_t* keep, std::uint64_t* words) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < m; ++i) {
        const std::uint64_t row = static_cast<std::uint64_t>(ids[i]) - static_cast<std::uint64_t>(first);
        if (row >= static_cast<std::uint64_t>(n)) continue;
        const std::uint64_t bit = keep[row / kBlock] & std::uint64_t{1} << row % kBlock;
        count += bit && !(words[row / kBlock] & bit);
        words[row / kBlock] |= bit;
    }
    return count;
}

}  // namespace gkmeans

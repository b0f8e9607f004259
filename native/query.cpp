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

std::int64_t pack_mask(const Kernels& kernels, std::int64_t n, const std::uint8_t* mask,
                       std::uint64_t* words) {
    std::int64_t count = kernels.pack_bits(n / kBlock, mask, words);
    if (n % kBlock) {
        std::uint8_t last[kBlock] = {};
        std::memcpy(last, mask + n / kBlock * kBlock, static_cast<std::size_t>(n % kBlock));
        count += kernels.pack_bits(1, last, words + n / kBlock);
    }
    return count;
}

bool same_mask(const Kernels& kernels, std::int64_t n, const std::uint8_t* mask, const std::uint64_t* words) {
    constexpr std::int64_t kSome = 512 * kBlock;
    std::uint64_t packed[kSome / kBlock];
    for (std::int64_t first = 0; first < n; first += kSome) {
        const std::int64_t rows = n - first < kSome ? n - first : kSome;
        pack_mask(kernels, rows, mask + first, packed);
        const std::size_t bytes =
            static_cast<std::size_t>((rows + kBlock - 1) / kBlock) * sizeof(std::uint64_t);
        if (std::memcmp(packed, words + first / kBlock, bytes)) return false;
    }
    return true;
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

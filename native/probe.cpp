// The coarse step of an inverted file: the lists whose centres are nearest, in one level or in two.
#include <algorithm>
#include <vector>

#include "search.hpp"

namespace gkmeans {

// Scores of n rows with the centres of some tiles, (n, tiles * kTile); +inf in the padding.
static void centre_scores(const Kernels& kernels, int P, int tiles, int n, const float* Q, const float* bias,
                          const float* D, const float* norms, std::vector<float>& out) {
    const int W = tiles * kTile;
    out.resize(static_cast<std::size_t>(n) * W);
    kernels.products(n, P, W, Q, D, out.data());
    for (int i = 0; i < n; ++i) {
        float* row = out.data() + static_cast<std::size_t>(i) * W;
        for (int l = 0; l < W; ++l) row[l] = bias[i] + row[l] + norms[l];
    }
}

struct Prober {
    const Kernels& kernels;
    const Centres& centres;
    std::vector<float> scores, tops;
    std::vector<int> order;

    // Group g for n rows, whose heaps of m lie one after the other.
    void visit(int g, int n, const float* Q, const float* bias, int m, float* best, std::int64_t* lists) {
        const std::int64_t first = centres.starts[g];
        const int tiles = static_cast<int>(centres.starts[g + 1] - first);
        const int W = tiles * kTile;
        centre_scores(kernels, centres.P, tiles, n, Q, bias, centres.tiles + first * centres.P * kTile,
                      centres.norms + first * kTile, scores);
        for (int i = 0; i < n; ++i) {
            const std::size_t at = static_cast<std::size_t>(i) * m;
            take_values(kernels, W, scores.data() + static_cast<std::size_t>(i) * W, centres.firsts[g], m,
                        best + at, lists + at);
        }
    }

    // The groups nearest to one row, until they hold `wanted` lists.
    void choose(const float* q, const float* bias, std::int64_t wanted, int m, float* best,
                std::int64_t* lists) {
        const int tiles = (centres.groups + kTile - 1) / kTile;
        centre_scores(kernels, centres.P, tiles, 1, q, bias, centres.top_tiles, centres.top_norms, tops);
        order.resize(centres.groups);
        for (int g = 0; g < centres.groups; ++g) order[g] = g;
        const auto later = [&](int a, int b) { return tops[a] > tops[b] || (tops[a] == tops[b] && a > b); };
        std::make_heap(order.begin(), order.end(), later);
        for (auto end = order.end(); wanted > 0 && end != order.begin(); --end) {
            std::pop_heap(order.begin(), end, later);
            const int g = end[-1];
            visit(g, 1, q, bias, m, best, lists);
            wanted -= centres.firsts[g + 1] - centres.firsts[g];
        }
    }
};

void probe(const Kernels& kernels, const Centres& centres, int n, const float* Q, const float* bias,
           std::int64_t wanted, int m, float* scores, std::int64_t* lists) {
    Prober prober{kernels, centres, {}, {}, {}};
    if (centres.groups == 1) {
        prober.visit(0, n, Q, bias, m, scores, lists);
    } else {
        for (int i = 0; i < n; ++i) {
            const std::size_t at = static_cast<std::size_t>(i) * m;
            prober.choose(Q + static_cast<std::size_t>(i) * centres.P, bias + i, wanted, m, scores + at,
                          lists + at);
        }
    }
    sort(n, m, scores, lists);
}

}  // namespace gkmeans

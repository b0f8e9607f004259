// Multiple candidate matching pursuit as one would write it: the second peer of benchmarks/pursuit.py.
//
// Scores are kept up along the path by one row of T for each open dictionary; std::partial_sort finds the L least.
// The compiler vectorises the sums and the least of a leaf's scores.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace {

constexpr int K = 256;

struct Tree {
    int C, L;
    const float* T;                         // (C, C, K, K)
    std::vector<std::vector<float>> scores;  // of each depth: (C, K)
    std::vector<std::vector<int>> orders;    // of each depth: K codewords, the best ones first
    std::vector<int> path, found;
    float best;

    void descend(int c, float cost) {
        const float* v = scores[c].data() + c * K;
        if (c == C - 1) {
            float least = v[0];
            for (int k = 1; k < K; ++k) least = v[k] < least ? v[k] : least;
            if (!(cost + least < best)) return;
            best = cost + least;
            path[c] = static_cast<int>(std::find(v, v + K, least) - v);
            found = path;
            return;
        }
        std::vector<int>& order = orders[c];
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(order.begin(), order.begin() + L, order.end(),
                          [v](int i, int j) { return v[i] < v[j] || (v[i] == v[j] && i < j); });
        for (int x = 0; x < L; ++x) {
            const int j = path[c] = order[x];
            for (int b = c + 1; b < C; ++b) {
                const float* from = scores[c].data() + b * K;
                const float* row = T + ((static_cast<std::size_t>(b) * C + c) * K + j) * K;
                float* to = scores[c + 1].data() + b * K;
                for (int k = 0; k < K; ++k) to[k] = from[k] + row[k];
            }
            descend(c + 1, cost + v[j]);
        }
    }
};

}  // namespace

// As in exhaustive_tree.cpp.
extern "C" void plain(int n, int C, int L, const float* V, const float* T, const float* N, std::uint16_t* codes) {
    Tree tree{C, L, T, {}, {}, std::vector<int>(C), std::vector<int>(C), 0};
    tree.scores.assign(C, std::vector<float>(C * K));
    tree.orders.assign(C, std::vector<int>(K));
    for (int i = 0; i < n; ++i) {
        for (int k = 0; k < C * K; ++k) tree.scores[0][k] = N[k] - V[static_cast<std::size_t>(i) * C * K + k];
        tree.best = std::numeric_limits<float>::max();
        tree.descend(0, 0);
        std::copy(tree.found.begin(), tree.found.end(), codes + static_cast<std::size_t>(i) * C);
    }
}

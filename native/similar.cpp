#include "similar.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace gkmeans {

namespace {

constexpr int kPowerIterations = 3;

float dot(int P, const float* x, const float* y) {
    constexpr int L = 16;
    float sums[L] = {};
    int p = 0;
    for (; p + L <= P; p += L) {
        for (int q = 0; q < L; ++q) sums[q] += x[p + q] * y[p + q];
    }
    for (; p < P; ++p) sums[p % L] += x[p] * y[p];
    return std::accumulate(sums, sums + L, 0.0f);
}

// Rows `some` of D, less their mean.
std::vector<float> centred(int P, const float* D, const std::vector<int>& some) {
    std::vector<float> mean(P), Y(some.size() * P);
    for (const int k : some) {
        for (int p = 0; p < P; ++p) mean[p] += D[static_cast<std::size_t>(k) * P + p];
    }
    for (float& x : mean) x /= static_cast<float>(some.size());
    for (std::size_t i = 0; i < some.size(); ++i) {
        const float* d = D + static_cast<std::size_t>(some[i]) * P;
        for (int p = 0; p < P; ++p) Y[i * P + p] = d[p] - mean[p];
    }
    return Y;
}

// Where the rows of Y (n, P) lie along their direction of most variance.
std::vector<float> places(int n, int P, const std::vector<float>& Y) {
    std::vector<float> along(n), direction(P);
    for (int i = 0; i < n; ++i)
        along[i] = dot(P, &Y[static_cast<std::size_t>(i) * P], &Y[static_cast<std::size_t>(i) * P]);
    const std::size_t longest = std::max_element(along.begin(), along.end()) - along.begin();
    std::copy_n(&Y[longest * P], P, direction.begin());
    for (int turn = 0; turn <= kPowerIterations; ++turn) {
        for (int i = 0; i < n; ++i) along[i] = dot(P, &Y[static_cast<std::size_t>(i) * P], direction.data());
        if (turn == kPowerIterations) break;
        std::fill(direction.begin(), direction.end(), 0.0f);
        for (int i = 0; i < n; ++i) {
            for (int p = 0; p < P; ++p) direction[p] += along[i] * Y[static_cast<std::size_t>(i) * P + p];
        }
        float largest = 1e-30f;
        for (const float x : direction) largest = std::max(largest, std::fabs(x));
        for (float& x : direction) x /= largest;
    }
    return along;
}

}  // namespace

void similar_order(int K, int P, const float* D, int width, int* order) {
    std::vector<std::vector<int>> todo(1, std::vector<int>(K));
    std::iota(todo[0].begin(), todo[0].end(), 0);
    while (!todo.empty()) {
        const std::vector<int> some = std::move(todo.back());
        todo.pop_back();
        const int n = static_cast<int>(some.size());
        if (n <= width) {
            order = std::copy(some.begin(), some.end(), order);
            continue;
        }
        const std::vector<float> along = places(n, P, centred(P, D, some));
        std::vector<int> rank(n), sorted(n);
        std::iota(rank.begin(), rank.end(), 0);
        std::stable_sort(rank.begin(), rank.end(), [&](int i, int j) { return along[i] < along[j]; });
        for (int i = 0; i < n; ++i) sorted[i] = some[rank[i]];
        const int half = width * ((n + width - 1) / width / 2);
        todo.emplace_back(sorted.begin() + half, sorted.end());
        todo.emplace_back(sorted.begin(), sorted.begin() + half);
    }
}

}  // namespace gkmeans

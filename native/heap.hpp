// The best k by score, ties by id.
//
// Every file has its own copy: the linker could take the one made for a wide level.
#pragma once
#include <cstdint>

namespace gkmeans {
namespace {

constexpr float kNone = __builtin_huge_valf();  // the score where there is nothing
constexpr int kFew = 24;                        // of a heap that is kept in order

// A heap of k with the worst on top: the greatest score, of equal ones the greatest id.
struct Heap {
    int k;
    float* scores;
    std::int64_t* ids;

    float worst() const { return scores[0]; }

    static bool before(float s, std::int64_t i, float t, std::int64_t j) {
        return s < t || (s == t && i < j);
    }

    void take(float s, std::int64_t id) {
        if (before(s, id, scores[0], ids[0])) put(s, id);
    }

    // In place of the worst.
    void put(float s, std::int64_t id) { k <= kFew ? insert(s, id) : sift(s, id); }

    // A few are kept in order, which is a heap too: one branch that nothing foretells instead of two a level.
    void insert(float s, std::int64_t id) {
        int hole = 0;
        for (; hole + 1 < k && before(s, id, scores[hole + 1], ids[hole + 1]); ++hole) {
            scores[hole] = scores[hole + 1];
            ids[hole] = ids[hole + 1];
        }
        scores[hole] = s;
        ids[hole] = id;
    }

    void sift(float s, std::int64_t id) {
        int hole = 0;
        for (int child = 1; child < k; child = 2 * hole + 1) {
            if (child + 1 < k && before(scores[child], ids[child], scores[child + 1], ids[child + 1]))
                ++child;
            if (!before(s, id, scores[child], ids[child])) break;
            scores[hole] = scores[child];
            ids[hole] = ids[child];
            hole = child;
        }
        scores[hole] = s;
        ids[hole] = id;
    }
};

}  // namespace
}  // namespace gkmeans

// Heaps as a whole: as lists, and from values that lie in a row.
#include "heap.hpp"

#include <algorithm>

#include "search.hpp"

namespace gkmeans {

constexpr int kSome = 64;  // values that are held to one limit

void sort(int n, int k, float* scores, std::int64_t* ids) {
    for (int i = 0; i < n; ++i, scores += k, ids += k) {
        if (k <= kFew) {
            std::reverse(scores, scores + k);
            std::reverse(ids, ids + k);
            continue;
        }
        for (int left = k - 1; left > 0; --left) {  // the worst of those left goes to their end
            const float s = scores[left];
            const std::int64_t id = ids[left];
            scores[left] = scores[0];
            ids[left] = ids[0];
            Heap{left, scores, ids}.sift(s, id);
        }
    }
}

void take_values(const Kernels& kernels, int n, const float* values, std::int64_t first, int k, float* scores,
                 std::int64_t* ids) {
    Heap heap{k, scores, ids};
    std::uint16_t words[kSome / kPad];
    for (int some = 0; some < n; some += kSome) {  // those before give the limit
        const int count = n - some < kSome ? n - some : kSome;
        kernels.not_above(count, values + some, heap.worst(), words);
        for (int g = 0; g < count; g += kPad) {
            for (unsigned word = words[g / kPad]; word; word &= word - 1) {
                const int i = some + g + __builtin_ctz(word);
                if (values[i] < kNone) heap.take(values[i], first + i);
            }
        }
    }
}

}  // namespace gkmeans

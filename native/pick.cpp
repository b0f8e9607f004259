// The few rows that a filter keeps, one by one, from codes that lie row by row: a row is in one line of the
// cache or two, where in blocks it is in as many as it has codes.
//
// What takes the time is to wait for these lines. Rows are copied side by side first, in a loop so short that
// the CPU has as many loads under way as it can (prefetches take twice as long), and scored there.
#include <cstring>
#include <vector>

#include "heap.hpp"
#include "score.hpp"

namespace gkmeans {

constexpr int kPicked = 512;  // rows that are copied at once
constexpr int kWord = sizeof(std::uint64_t);
static_assert(kPicked % kTogether == 0);

// The numbers of the rows of a word, and how many; `rows` has room for two more. Most words have no more
// than two, which are found without a branch that nothing would foretell.
static int numbers(std::uint64_t word, std::int64_t first, std::int64_t* rows) {
    constexpr std::uint64_t kLast = std::uint64_t{1} << (kBlock - 1);
    int count = 0;
    for (int i = 0; i < 2; ++i, word &= word - 1) {
        rows[count] = first + __builtin_ctzll(word | kLast);
        count += word != 0;
    }
    for (; word; word &= word - 1) rows[count++] = first + __builtin_ctzll(word);
    return count;
}

struct Picked {
    const Shelf& shelf;
    std::int64_t bytes, end;  // of a row, and of all
    int words;                // that hold a row
    std::vector<std::uint64_t> copies;

    explicit Picked(const Shelf& shelf)
        : shelf(shelf),
          bytes(shelf.lines.count()),
          end(shelf.blocks * kBlock * bytes),
          words(static_cast<int>((bytes + kWord - 1) / kWord)),
          copies(static_cast<std::size_t>(kPicked) * words) {}

    // W is the number of words where it is known when this is compiled, or 0.
    template <int W>
    void copy(int n, const std::int64_t* rows) {
        const int count = W ? W : words;
        std::uint64_t* to = copies.data();
        for (int i = 0; i < n; ++i, to += count) {
            const std::int64_t at = rows[i] * bytes;
            if (at + count * kWord > end) {  // the last rows of all
                std::memcpy(to, shelf.codes + at, static_cast<std::size_t>(bytes));
                continue;
            }
            for (int w = 0; w < count; ++w) std::memcpy(to + w, shelf.codes + at + w * kWord, kWord);
        }
    }

    void copy(int n, const std::int64_t* rows) {
        switch (words) {
            case 1:
                return copy<1>(n, rows);
            case 2:
                return copy<2>(n, rows);
            case 3:
                return copy<3>(n, rows);
            default:
                return copy<0>(n, rows);
        }
    }

    // The n rows from the one copied as number `first`; n is known when this is compiled, but for the last.
    inline void take(const Question& question, int first, int n, const std::int64_t* rows, Heap& best) const {
        const std::uint8_t* lines[kTogether];
        float scores[kTogether];
        for (int i = 0; i < n; ++i)
            lines[i] = reinterpret_cast<const std::uint8_t*>(copies.data() + (first + i) * words);
        rows += first;
        score<1>(
            shelf, question, n, [rows](int i) { return rows[i]; }, [&lines](int i) { return lines[i]; },
            scores);
        for (int i = 0; i < n; ++i) {
            if (scores[i] <= best.worst())
                best.take(scores[i], shelf.ids ? shelf.ids[rows[i]] : shelf.first + rows[i]);
        }
    }

    void take_all(const Question& question, int n, const std::int64_t* rows, Heap& best) const {
        const int whole = n - n % kTogether;
        for (int i = 0; i < whole; i += kTogether) take(question, i, kTogether, rows, best);
        take(question, whole, n - whole, rows, best);
    }
};

void pick(const Shelf& shelf, int n, const Question* questions, int k, float* scores, std::int64_t* ids) {
    std::int64_t rows[kPicked + kBlock + 2];
    Picked picked(shelf);
    int count = 0;
    for (std::int64_t b = 0; b < shelf.blocks; ++b) {
        count += numbers(shelf.keep[b], b * kBlock, rows + count);
        while (count >= kPicked || (count && b + 1 == shelf.blocks)) {
            const int some = count < kPicked ? count : kPicked;
            picked.copy(some, rows);
            for (int q = 0; q < n; ++q) {
                const std::size_t at = static_cast<std::size_t>(q) * k;
                Heap best{k, scores + at, ids + at};
                picked.take_all(questions[q], some, rows, best);
            }
            count -= some;
            std::memmove(rows, rows + some, static_cast<std::size_t>(count) * sizeof *rows);
        }
    }
}

}  // namespace gkmeans

// The scan of blocks of codes for queries, and what it keeps: the part of it that is the same at every level.
#pragma once
#include "kernels.hpp"

namespace gkmeans {

// The rows that are searched.
struct Shelf {
    Lines lines;
    int Kp;                     // entries of a table: 16, 256, or K padded where codes are shorts
    std::int64_t blocks;        // of 64 rows
    const std::uint8_t* codes;  // (blocks, lines.count(), 64)
    const std::uint64_t* keep;  // (blocks) a bit for each row
    const std::int64_t* ids;    // (rows) or null: first + row
    std::int64_t first;
    const float* levels;  // (256) what the norm's byte stands for, or null
    const float* norms;   // (rows) or null: the levels stand for themselves
};

// What is asked: score = max(floor, bias + sum of the tables' entries + norm).
struct Question {
    const float* tables;  // (C, Kp)
    float bias, floor;
};

// The k best (score, id) of each of n questions, kept as heaps with the worst on top; +inf and -1 at first.
void search(const Kernels&, const Shelf&, int n, const Question* questions, int k, float* scores,
            std::int64_t* ids);

// Heaps of k as lists, best first.
void sort(int n, int k, float* scores, std::int64_t* ids);

// Rows with a score of at most `limit`, of which the first `room` are written, in no order; returns how many
// there are.
std::int64_t within(const Kernels&, const Shelf&, const Question&, float limit, std::int64_t room,
                    float* scores, std::int64_t* ids);

// Copies the rows kept, packed, into blocks `to`, and their numbers into `rows`.
void gather(const Shelf&, std::uint8_t* to, std::int64_t* rows);

// Whether all values are smaller than limit, whatever their sign; NaN is not.
bool all_below(std::size_t n, const float* values, float limit);

// The frame of the fit: squared distances are of (q - shift) * scale, inner products of q and decodings.
struct Asked {
    int P;
    const float* shift;  // (P)
    float scale;
    bool l2;
};

// Tables (n, W) of queries Q (n, P) with codewords D (tiles, P, kTile), and what is added to every score (n).
void tables(const Kernels&, const Asked&, int n, int W, const float* Q, const float* D, float* out,
            float* bias);

// A bit for each of n bytes that are 0 or 1, 64 a word; returns how many are 1.
std::int64_t pack_mask(std::int64_t n, const std::uint8_t* mask, std::uint64_t* words);

// Sets the bits of the rows, of n with ids first, first + 1, …, that m ids name and `keep` has; returns how
// many it set.
std::int64_t mark_ids(std::int64_t m, const std::int64_t* ids, std::int64_t first, std::int64_t n,
                      const std::uint64_t* keep, std::uint64_t* words);

}  // namespace gkmeans

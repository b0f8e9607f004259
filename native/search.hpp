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

}  // namespace gkmeans

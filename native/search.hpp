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
    float most;  // the size of the largest bias, where it changes from list to list
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

// Rows of a list are offsets[list] to offsets[list + 1]. Each of n questions asks m lists, with a bias for
// each.
struct Visits {
    const std::int64_t* offsets;
    int m;
    const std::int64_t* lists;  // (n, m)
    const float* biases;        // (n, m)
};

// As search, of the lists asked alone; the questions' own biases are not used.
void search_lists(const Kernels&, const Shelf&, const Visits&, int n, const Question* questions, int k,
                  float* scores, std::int64_t* ids);

// As within, of the lists that one question asks.
std::int64_t within_lists(const Kernels&, const Shelf&, const Visits&, const Question&, float limit,
                          std::int64_t room, float* scores, std::int64_t* ids);

// A heap of k takes n values, a multiple of kPad, whose ids are first, first + 1, …; those of +inf are none.
void take_values(const Kernels&, int n, const float* values, std::int64_t first, int k, float* scores,
                 std::int64_t* ids);

// Centres in groups, each group in tiles of its own; where there are several, each group has a centre, too.
struct Centres {
    int P, groups;
    const float* tiles;          // (tiles, P, kTile)
    const float* norms;          // (tiles * kTile) +inf past the end of a group
    const std::int64_t* starts;  // (groups + 1) the first tile of each group
    const std::int64_t* firsts;  // (groups + 1) the first list of each group
    const float* top_tiles;      // (.., P, kTile) centres of the groups
    const float* top_norms;      // (.. * kTile)
};

// The m lists with the least bias + <q, centre> + norm for each of n rows, best first, among the groups that
// are nearest by their own centres and hold `wanted` lists.
void probe(const Kernels&, const Centres&, int n, const float* Q, const float* bias, std::int64_t wanted,
           int m, float* scores, std::int64_t* lists);

// Copies the rows kept, `count` of them, packed, into blocks `to`, and their numbers into `rows`.
void gather(const Shelf&, std::int64_t count, std::uint8_t* to, std::int64_t* rows);

// Whether all values are smaller than limit, whatever their sign; NaN is not.
bool all_below(std::size_t n, const float* values, float limit);

// The frame of the fit: squared distances are of (q - shift) * scale, inner products of q and decodings.
struct Asked {
    int P;
    const float* shift;  // (P)
    float scale;
    bool l2;
};

// Rows (n, P) whose products with codewords are the tables of queries Q (n, P), and what is added to every
// score (n).
void prepare(const Asked&, int n, const float* Q, float* rows, float* bias);

// Tables (n, W) of queries Q (n, P) with codewords D (tiles, P, kTile), and what is added to every score (n).
void tables(const Kernels&, const Asked&, int n, int W, const float* Q, const float* D, float* out,
            float* bias);

// A bit for each of n bytes that is not 0, 64 a word; returns how many there are.
std::int64_t pack_mask(const Kernels&, std::int64_t n, const std::uint8_t* mask, std::uint64_t* words);
// Whether pack_mask would give these words.
bool same_mask(const Kernels&, std::int64_t n, const std::uint8_t* mask, const std::uint64_t* words);

// Sets the bits of the rows, of n with ids first, first + 1, …, that m ids name and `keep` has; returns how
// many it set.
std::int64_t mark_ids(std::int64_t m, const std::int64_t* ids, std::int64_t first, std::int64_t n,
                      const std::uint64_t* keep, std::uint64_t* words);

}  // namespace gkmeans

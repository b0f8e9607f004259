// The kernels: plain loops over raw pointers, single-threaded, one block of rows a call.
//
// Letters are the paper's. A block has n rows; a row has C codes below K; K is padded to Kp, a multiple of
// 16, and the half norms of the padding are +inf, so that a padded codeword never wins.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gkmeans {

using Code = std::uint16_t;
constexpr int kPad = 16;       // floats; one 512-bit register, the widest level's step
constexpr int kAbreast = 4;    // blocks that are scanned side by side
constexpr int kGroups = 16;    // groups of columns that a row of T is bounded by
constexpr int kVectors = 18;   // of Kp floats that order 2 works in
constexpr int kSiblings = 16;  // nodes of the pursuit's tree worked on together
constexpr int kMaxOrder = 64;  // dictionaries assigned jointly; far beyond what can be searched

// Columns of a group, a multiple of kPad: at most kGroups groups cover Kp.
inline int group_width(int Kp) { return kPad * ((Kp / kPad + kGroups - 1) / kGroups); }

// The dictionaries as the assignment sees them (Eq. 8).
struct Tables {
    int C, K, Kp;
    int width;       // group_width(Kp)
    const float* T;  // (C, C, K, Kp)       T[c][b][j][k] = <d^c_k, d^b_j>: a row for each codeword j of b
    const float* N;  // (C, Kp)             half the squared norms
    const float* rowmin;  // (C, C, Kp)          the least entry of each row of T
    const float*
        groupmin;  // (C, C, K, kGroups)  the least of each group of columns of each row; +inf past the end

    const float* half_norms(int c) const { return N + static_cast<std::size_t>(c) * Kp; }
    const float* group_minima(int c, int b) const {
        return groupmin + (static_cast<std::size_t>(c) * C + b) * K * kGroups;
    }

    const float* row(int c, int b, int j) const {
        return T + ((static_cast<std::size_t>(c) * C + b) * K + j) * Kp;
    }
    const float* row_minima(int c, int b) const {
        return rowmin + (static_cast<std::size_t>(c) * C + b) * Kp;
    }
};

// A work array of n rows, dictionary by dictionary, so that what one dictionary needs of many rows is read in
// one stream: products at first, then the cost of every codeword given the row's other codes.
struct Costs {
    float* V;          // (C, n, Kp), of a block that may have more rows
    std::size_t step;  // floats from one dictionary's part to the next one's

    float* at(int i, int c, int Kp) const { return V + c * step + static_cast<std::size_t>(i) * Kp; }
};

constexpr int kTile = 32;   // codewords that lie together, number by number, for products
constexpr int kBlock = 64;  // rows of a block of codes, as the scan reads them

// What a block of codes holds: lines of 64 bytes, one byte a row.
struct Lines {
    int C, bits;  // 4: two dictionaries a line, 8: one, 16: two lines a dictionary, low bytes first
    bool norm;    // one more line, the last

    int count() const { return (bits == 4 ? (C + 1) / 2 : bits == 8 ? C : 2 * C) + norm; }
    std::size_t bytes() const { return static_cast<std::size_t>(count()) * kBlock; }
};

// What the sums of rows are held to. Where `narrow`, they stop at 255, and limit is below that; else at
// 65535.
struct Bound {
    int limit;
    bool narrow;
    bool halved;  // all tables are of 256 bytes, and codes are looked up by seven of their bits
};

// What one instruction set offers. `stop` is read now and then; when it is not 0 the kernel returns early.
// `work` holds workspace(…) bytes, 64-aligned.
struct Kernels {
    const char* name;

    // One dictionary, V (n, Kp) its products <x, d>, N (Kp): the nearest codeword.
    void (*nearest)(int n, int Kp, const float* V, const float* N, Code* codes);
    // From products <x, d>: codes by dictionaries in order, each on the residual of those before
    // (Sec. 2.3.2).
    void (*greedy)(const Tables&, int n, Costs V, Code* codes, void* work);
    // From products <x - decoding, d>: the costs that belong to the codes given.
    void (*from_residuals)(const Tables&, int n, Costs V, Code* codes, void* work);
    // Order-1 group assignment, sweeps until no code changes (Eq. 6).
    void (*order1)(const Tables&, int n, Costs V, Code* codes, void* work);
    // Order-2 group assignment over consecutive pairs with exact pruning (Eq. 12).
    void (*order2)(const Tables&, int n, Costs V, Code* codes, void* work, const volatile int* stop);
    // Order-m group assignment over m consecutive dictionaries by branch and bound.
    void (*order_n)(const Tables&, int m, int n, Costs V, Code* codes, void* work, const volatile int* stop);
    // `count` rounds that perturb the codes and assign them anew, of which the best are kept; V holds the
    // costs of the codes given, as the assignments leave them, and `kept` kept_bytes(…).
    void (*rounds)(const Tables&, int order, int count, std::uint64_t seed, int n, Costs V, Code* codes,
                   void* work, void* kept, const volatile int* stop);
    // Multiple candidate matching pursuit with L candidates at each depth, with exact pruning; V holds <x,
    // d>. Where `start` is false, the codes given stay unless a leaf is better.
    void (*pursue)(const Tables&, int L, int n, Costs V, Code* codes, bool start, void* work,
                   const volatile int* stop);

    // out (n, P) = sum over c of D[c, codes[i, c]], with D (C, K, P), or `less`: out less that.
    void (*decode)(int n, int C, int K, int P, const float* D, const Code* codes, bool less, float* out);
    // out (n) = squared distance of row i of X (n, P) to its decoding.
    void (*errors)(int n, int C, int K, int P, const float* X, const float* D, const Code* codes, float* out);
    // W (C, K, P) += X[i], rounded to multiples of grid (P), at each of row i's codes.
    void (*add_rows)(int n, int C, int K, int P, const float* X, const Code* codes, const double* grid,
                     double* W);
    // Z (K, K)[codes[i, b], codes[i, c]] += 1.
    void (*count_pairs)(int n, int C, int K, int b, int c, const Code* codes, std::int32_t* Z);
    // The least of each group of `width` of the first K columns of T (n, Kp) in groups (n, kGroups), +inf
    // past the last, and of all of them in rows (n).
    void (*minima)(int n, int K, int Kp, int width, const float* T, float* groups, float* rows);

    // out (n, W) = Q (n, P) times D (tiles, P, kTile), W at most tiles * kTile: the lookup tables of queries,
    // and what assignments start from. A row's products do not depend on the rows beside it.
    void (*products)(int n, int P, int W, const float* Q, const float* D, float* out);
    // Clears, in the words of n blocks, the bits of rows whose sum over `tables` is above limit, and tells
    // whether any is left; null where the level has no such kernel. Block kAbreast * i + j lies `next` * i +
    // `apart` * j bytes from the first. Tables of 16 bytes, or of 256 as `arrange` leaves them, the norm's of
    // 256 last.
    bool (*candidates)(const Lines&, int n, const std::uint8_t* blocks, std::size_t apart, std::size_t next,
                       const std::uint8_t* tables, Bound, std::uint64_t* words);
    // Brings a table of 256 bytes into the order that `candidates` looks up in; null where there is no such
    // kernel. Where `halved`, two entries become the lesser of them: k and k + 128, or neighbours for a norm,
    // whose levels go up.
    void (*arrange)(bool norm, bool halved, std::uint8_t* table);
    // The least and the greatest of n values, a multiple of kPad.
    void (*extremes)(int n, const float* values, float* lowest, float* highest);
    // out (n) = (values - first) * steps, rounded down to a byte.
    void (*round_down)(int n, const float* values, float first, float steps, std::uint8_t* out);
    // A bit for each of n values, a multiple of kPad, that is not above limit; kPad a word.
    void (*not_above)(int n, const float* values, float limit, std::uint16_t* words);
    // A bit for each of the bytes (n, 64) that is not 0; returns how many there are.
    std::int64_t (*pack_bits)(std::int64_t n, const std::uint8_t* bytes, std::uint64_t* words);

    // Whether `candidates` takes halved tables, and gains more by them than the rows they leave cost.
    bool halving;
};

// Bytes of `work` for an assignment of order m, a multiple of 64: what orders 1 and 2 use, then what higher
// ones add.
inline std::size_t workspace(int C, int Kp, int n, int m) {
    const std::size_t shared =
        (kVectors * Kp * sizeof(float) + 2 * C * sizeof(float*) +
         static_cast<std::size_t>(n) * (2 * sizeof(int) + C * sizeof(float) + C * C * sizeof(Code)) + 63) /
        64 * 64;
    return m <= 2 ? shared : shared + 2 * static_cast<std::size_t>(m) * m * Kp * sizeof(float);
}

// Bytes that the rounds keep the best codes of n rows and their costs in.
inline std::size_t kept_bytes(int C, int n) {
    return static_cast<std::size_t>(n) * (sizeof(double) + C * sizeof(Code));
}

// Whether a pursuit bounds its leaves in shorts as well.
inline bool has_bounds(int C, int Kp) { return C > 2 && Kp == 256; }

// Bytes of `work` for a pursuit: what pursuit.inl carves, each part a multiple of 64.
inline std::size_t pursuit_workspace(int C, int Kp) {
    const std::size_t c = C, Kpp = Kp + kPad;
    const std::size_t floats = c * c * Kp + (c + 2) * Kpp + 3 * kSiblings * Kp + kSiblings * kGroups + kPad;
    const std::size_t path = (c * (sizeof(float*) + sizeof(Code)) + 63) / 64 * 64;
    const std::size_t shorts =
        has_bounds(C, Kp) ? (2 * c - 3) * 65536 + 2 * (c + kSiblings) * 256 + (256 + kSiblings) * 32 : 0;
    return floats * sizeof(float) + path + shorts * sizeof(std::int16_t);
}

const Kernels& kernels_baseline();
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
const Kernels& kernels_avx512vbmi();

// dispatch.cpp
const Kernels& active();           // the chosen level; GKMEANS_SIMD at the first call, else the best one
const Kernels* find(const char*);  // by name; null where this CPU or build lacks it
extern const char* const kLevels[4];
// The best level of this CPU where it multiplies and adds at once, whatever GKMEANS_SIMD says; null where it
// does not, or where GKMEANS_PRODUCTS=blas.
const Kernels* fused_products();

}  // namespace gkmeans

// The kernels as Python functions. Shapes and codes are checked here, before any pointer is handed on.
#include "bindings.hpp"

#include <nanobind/stl/vector.h>

#include <cmath>
#include <vector>

using namespace gkmeans;

static const char* const kCodeRule = "a code is not below the number of codewords";

template <typename Array>
static void check_codes(const Array& codes, int K) {
    const Code* p = codes.data();
    for (std::size_t i = 0; i < codes.size(); ++i) require(p[i] < K, kCodeRule);
}

static Tables checked_tables(const In<float, 4>& T, const In<float, 2>& N, const In<float, 3>& rowmin,
                             const In<float, 4>& groupmin, const Out<Code, 2>& codes) {
    const int C = dimension(T.shape(0)), K = dimension(T.shape(2)), Kp = dimension(T.shape(3));
    require(C >= 1 && K >= 1 && K <= 65536 && Kp >= K && Kp % kPad == 0, "T must have shape (C, C, K, Kp)");
    require(T.shape(1) == T.shape(0), "T must have shape (C, C, K, Kp)");
    require(N.shape(0) == T.shape(0) && N.shape(1) == T.shape(3), "N must have shape (C, Kp)");
    require(rowmin.shape(0) == T.shape(0) && rowmin.shape(1) == T.shape(0) && rowmin.shape(2) == T.shape(3),
            "rowmin must have shape (C, C, Kp)");
    require(groupmin.shape(0) == T.shape(0) && groupmin.shape(1) == T.shape(0) &&
                groupmin.shape(2) == T.shape(2) && groupmin.shape(3) == kGroups,
            "groupmin must have shape (C, C, K, 16)");
    require(codes.shape(1) == T.shape(0), "codes must have shape (n, C)");
    for (int c = 0; c < C; ++c) {  // a codeword of the padding that could win would be read past the end of T
        for (int k = K; k < Kp; ++k) require(N(c, k) == HUGE_VALF, "N must be +inf from column K on");
    }
    const int width = group_width(Kp);
    return {C, K, Kp, width, T.data(), N.data(), rowmin.data(), groupmin.data()};
}

// Rows worked on together, dictionary by dictionary: they share the part of T that one or two dictionaries
// need, which stays in L2, while the costs come in a stream.
constexpr int kBatch = 1024;
constexpr std::size_t kSeenCodes = 1 << 22;  // of n C^2 that a batch may keep

static void assign(Out<float, 3> V, In<float, 4> T, In<float, 2> N, In<float, 3> rowmin,
                   In<float, 4> groupmin, Out<Code, 2> codes, int order, bool start, In<int, 1> stop,
                   const Level& level, int batch, int rounds, std::uint64_t seed) {
    const Tables tables = checked_tables(T, N, rowmin, groupmin, codes);
    const int n = dimension(codes.shape(0)), C = tables.C, K = tables.K, Kp = tables.Kp;
    require(V.shape(0) == T.shape(0) && V.shape(2) == T.shape(3), "V must have shape (C, n, Kp)");
    require(V.shape(1) == codes.shape(0), "codes must have shape (n, C)");
    require(order >= 0 && order <= C && order <= kMaxOrder, "order must be from 0 to C, and at most 64");
    require(stop.shape(0) == 1, "stop must have shape (1,)");
    require(rounds >= 0, "rounds must be at least 0");
    require(rounds == 0 || order > 0, "rounds need an order of at least 1");
    require(batch >= 0, "batch must be at least 1, or 0 for the default");
    if (batch == 0) batch = kBatch;
    if (batch > n) batch = n > 0 ? n : 1;
    if (!start) check_codes(codes, K);
    while (batch > 1 && static_cast<std::size_t>(batch) * C * C > kSeenCodes) batch /= 2;
    const Kernels& kernels = at_level(level);
    auto work = allocate(workspace(C, Kp, batch, order));
    auto kept = allocate(kept_bytes(C, rounds > 0 ? batch : 1));
    nb::gil_scoped_release release;
    for (int first = 0; first < n && !*const_cast<const volatile int*>(stop.data()); first += batch) {
        const int m = n - first < batch ? n - first : batch;
        const std::size_t step = static_cast<std::size_t>(n) * Kp;
        const Costs v{V.data() + static_cast<std::size_t>(first) * Kp, step};
        Code* code = codes.data() + static_cast<std::size_t>(first) * C;
        if (start) {
            kernels.greedy(tables, m, v, code, work.get());
        } else {
            kernels.from_residuals(tables, m, v, code, work.get());
        }
        if (order > 0) kernels.order1(tables, m, v, code, work.get());
        if (order == 2) kernels.order2(tables, m, v, code, work.get(), stop.data());
        if (order > 2) kernels.order_n(tables, order, m, v, code, work.get(), stop.data());
        if (rounds > 0) {
            kernels.rounds(tables, order, rounds, seed, m, v, code, work.get(), kept.get(), stop.data());
        }
    }
}

static void pursue(Out<float, 3> V, In<float, 4> T, In<float, 2> N, In<float, 3> rowmin,
                   In<float, 4> groupmin, Out<Code, 2> codes, int n_candidates, bool start, In<int, 1> stop,
                   const Level& level) {
    const Tables tables = checked_tables(T, N, rowmin, groupmin, codes);
    require(V.shape(0) == T.shape(0) && V.shape(2) == T.shape(3), "V must have shape (C, n, Kp)");
    require(V.shape(1) == codes.shape(0), "codes must have shape (n, C)");
    require(n_candidates >= 1, "n_candidates must be at least 1");
    require(stop.shape(0) == 1, "stop must have shape (1,)");
    if (!start) check_codes(codes, tables.K);
    const Kernels& kernels = at_level(level);
    auto work = allocate(pursuit_workspace(tables.C, tables.Kp));
    nb::gil_scoped_release release;
    const Costs v{V.data(), V.shape(1) * V.shape(2)};
    kernels.pursue(tables, n_candidates, dimension(V.shape(1)), v, codes.data(), start, work.get(),
                   stop.data());
}

static void nearest(In<float, 2> V, In<float, 1> N, Out<Code, 1> codes, const Level& level) {
    const int n = dimension(V.shape(0)), Kp = dimension(V.shape(1));
    require(Kp >= kPad && Kp % kPad == 0 && Kp <= 65536, "V must have shape (n, Kp)");
    require(N.shape(0) == V.shape(1), "N must have shape (Kp,)");
    require(codes.shape(0) == V.shape(0), "codes must have shape (n,)");
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    kernels.nearest(n, Kp, V.data(), N.data(), codes.data());
}

static void decode(In<float, 3> D, In<Code, 2> codes, Out<float, 2> out, const Level& level, bool less) {
    const int n = dimension(codes.shape(0)), C = dimension(D.shape(0)), K = dimension(D.shape(1)),
              P = dimension(D.shape(2));
    require(codes.shape(1) == D.shape(0), "codes must have shape (n, C)");
    require(out.shape(0) == codes.shape(0) && out.shape(1) == D.shape(2), "out must have shape (n, P)");
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    check_codes(codes, K);
    kernels.decode(n, C, K, P, D.data(), codes.data(), less, out.data());
}

static void errors(In<float, 2> X, In<float, 3> D, In<Code, 2> codes, Out<float, 1> out, const Level& level) {
    const int n = dimension(codes.shape(0)), C = dimension(D.shape(0)), K = dimension(D.shape(1)),
              P = dimension(D.shape(2));
    require(codes.shape(1) == D.shape(0), "codes must have shape (n, C)");
    require(X.shape(0) == codes.shape(0) && X.shape(1) == D.shape(2), "X must have shape (n, P)");
    require(out.shape(0) == codes.shape(0), "out must have shape (n,)");
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    check_codes(codes, K);
    kernels.errors(n, C, K, P, X.data(), D.data(), codes.data(), out.data());
}

static void add_rows(In<float, 2> X, In<Code, 2> codes, In<double, 1> grid, Out<double, 3> W,
                     const Level& level) {
    const int n = dimension(codes.shape(0)), C = dimension(W.shape(0)), K = dimension(W.shape(1)),
              P = dimension(W.shape(2));
    require(codes.shape(1) == W.shape(0), "codes must have shape (n, C)");
    require(X.shape(0) == codes.shape(0) && X.shape(1) == W.shape(2), "X must have shape (n, P)");
    require(grid.shape(0) == W.shape(2), "grid must have shape (P)");
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    check_codes(codes, K);
    kernels.add_rows(n, C, K, P, X.data(), codes.data(), grid.data(), W.data());
}

static void count_pairs(In<Code, 2> codes, In<std::int32_t, 2> pairs,
                        const std::vector<Out<std::int32_t, 2>>& Z, const Level& level) {
    const int n = dimension(codes.shape(0)), C = dimension(codes.shape(1));
    require(pairs.shape(0) == Z.size() && pairs.shape(1) == 2,
            "pairs must have shape (m, 2), for m blocks Z");
    if (Z.empty()) return;
    const int K = dimension(Z[0].shape(0));
    for (std::size_t x = 0; x < Z.size(); ++x) {
        const int b = pairs(x, 0), c = pairs(x, 1);
        require(Z[x].shape(0) == Z[0].shape(0) && Z[x].shape(1) == Z[0].shape(0), "Z must have shape (K, K)");
        require(0 <= b && b < C && 0 <= c && c < C, "pairs must be of dictionaries, from 0 to C - 1");
    }
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    check_codes(codes, K);
    for (std::size_t x = 0; x < Z.size(); ++x)
        kernels.count_pairs(n, C, K, pairs(x, 0), pairs(x, 1), codes.data(), Z[x].data());
}

static void products(In<float, 2> Q, In<float, 3> D, Out<float, 2> out, const Level& level) {
    const int n = dimension(Q.shape(0)), P = dimension(Q.shape(1)), W = dimension(out.shape(1));
    require(D.shape(1) == Q.shape(1) && D.shape(2) == kTile, "D must have shape (tiles, P, 32)");
    require(out.shape(0) == Q.shape(0) && out.shape(1) <= D.shape(0) * kTile,
            "out must have shape (n, W), W at most 32 times the tiles");
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    kernels.products(n, P, W, Q.data(), D.data(), out.data());
}

static void query_tables(In<float, 2> Q, In<float, 1> shift, float scale, bool l2, In<float, 3> D,
                         Out<float, 2> out, Out<float, 1> bias, const Level& level) {
    const int n = dimension(Q.shape(0)), P = dimension(Q.shape(1)), W = dimension(out.shape(1));
    require(D.shape(1) == Q.shape(1) && D.shape(2) == kTile && shift.shape(0) == Q.shape(1),
            "D must have shape (tiles, P, 32), and shift (P,)");
    require(out.shape(0) == Q.shape(0) && out.shape(1) <= D.shape(0) * kTile,
            "out must have shape (n, W), W at most 32 times the tiles");
    require(bias.shape(0) == Q.shape(0), "bias must have shape (n,)");
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    tables(kernels, {P, shift.data(), scale, l2}, n, W, Q.data(), D.data(), out.data(), bias.data());
}

static void prepared_queries(In<float, 2> Q, In<float, 1> shift, float scale, bool l2, Out<float, 2> rows,
                             Out<float, 1> bias) {
    const int n = dimension(Q.shape(0)), P = dimension(Q.shape(1));
    require(shift.shape(0) == Q.shape(1), "shift must have shape (P,)");
    require(rows.shape(0) == Q.shape(0) && rows.shape(1) == Q.shape(1) && bias.shape(0) == Q.shape(0),
            "rows must have shape (n, P), and bias (n,)");
    nb::gil_scoped_release release;
    prepare({P, shift.data(), scale, l2}, n, Q.data(), rows.data(), bias.data());
}

static bool values_below(In<float, 2> values, float limit) {
    return all_below(values.size(), values.data(), limit);
}

template <typename Words>
static void check_words(std::size_t rows, const Words& words) {
    require(words.shape(0) == (rows + kBlock - 1) / kBlock, "words must have shape (ceil(rows / 64),)");
}

static std::int64_t words_of_mask(In<bool, 1> mask, Out<std::uint64_t, 1> words, const Level& level) {
    check_words(mask.shape(0), words);
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    return pack_mask(kernels, static_cast<std::int64_t>(mask.shape(0)),
                     reinterpret_cast<const std::uint8_t*>(mask.data()), words.data());
}

static bool mask_has_words(In<bool, 1> mask, In<std::uint64_t, 1> words, const Level& level) {
    check_words(mask.shape(0), words);
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    return same_mask(kernels, static_cast<std::int64_t>(mask.shape(0)),
                     reinterpret_cast<const std::uint8_t*>(mask.data()), words.data());
}

static std::int64_t words_of_ids(In<std::int64_t, 1> ids, std::int64_t first, std::int64_t n,
                                 In<std::uint64_t, 1> keep, Out<std::uint64_t, 1> words) {
    require(n >= 0, "n must not be negative");
    check_words(static_cast<std::size_t>(n), words);
    require(keep.shape(0) == words.shape(0), "keep must have shape (ceil(n / 64),)");
    nb::gil_scoped_release release;
    return mark_ids(static_cast<std::int64_t>(ids.shape(0)), ids.data(), first, n, keep.data(), words.data());
}

static Shelf checked_shelf(const In<std::uint8_t, 3>& blocks, const In<std::uint64_t, 1>& keep, int C,
                           int bits, bool norm) {
    require(bits == 4 || bits == 8 || bits == 16, "bits must be 4, 8 or 16");
    require(C >= 1 && C < (1 << 20), "C must be from 1 to 2^20 - 1");
    const Lines lines{C, bits, norm};
    require(blocks.shape(1) == static_cast<std::size_t>(lines.count()) && blocks.shape(2) == kBlock,
            "blocks must have shape (blocks, lines, 64)");
    require(keep.shape(0) == blocks.shape(0), "keep must have shape (blocks,)");
    Shelf shelf{};
    shelf.lines = lines;
    shelf.blocks = static_cast<std::int64_t>(blocks.shape(0));
    shelf.codes = blocks.data();
    shelf.keep = keep.data();
    return shelf;
}

Shelf gkmeans::searched_shelf(const In<std::uint8_t, 3>& blocks, const In<std::uint64_t, 1>& keep,
                              const In<std::int64_t, 1>& ids, std::int64_t first, int bits,
                              const In<float, 1>& levels, const In<float, 1>& norms, int C, int Kp) {
    const bool norm = levels.shape(0) > 0;
    Shelf shelf = checked_shelf(blocks, keep, C, bits, norm);
    require(bits == 16 ? Kp >= 1 && Kp <= 65536 : Kp == 1 << bits, "tables must have 2^bits entries");
    require(!norm || levels.shape(0) == 256, "levels must have shape (256,) or (0,)");
    const std::size_t B = blocks.shape(0), named = ids.shape(0), normed = norms.shape(0);
    require(!normed || norm, "norms need levels that bound them");
    for (const std::size_t n : {named, normed}) {
        if (n == 0 || B == 0) continue;
        require(n <= B * kBlock && n > (B - 1) * kBlock, "ids and norms must have an entry for each row");
        const std::size_t tail = n % kBlock;
        require(!tail || !(keep(B - 1) >> tail), "keep must not have rows past the end of ids and norms");
    }
    shelf.Kp = Kp;
    shelf.ids = named ? ids.data() : nullptr;
    shelf.first = first;
    shelf.levels = norm ? levels.data() : nullptr;
    shelf.norms = normed ? norms.data() : nullptr;
    return shelf;
}

static void search_blocks(In<std::uint8_t, 3> blocks, In<std::uint64_t, 1> keep, In<std::int64_t, 1> ids,
                          std::int64_t first, int bits, In<float, 1> levels, In<float, 1> norms,
                          In<float, 3> tables, In<float, 1> bias, float floor, Out<float, 2> scores,
                          Out<std::int64_t, 2> found, const Level& level) {
    const int n = dimension(tables.shape(0)), C = dimension(tables.shape(1)), Kp = dimension(tables.shape(2));
    const Shelf shelf = searched_shelf(blocks, keep, ids, first, bits, levels, norms, C, Kp);
    const int k = dimension(scores.shape(1));
    require(bias.shape(0) == tables.shape(0), "bias must have shape (n,)");
    require(k >= 1 && scores.shape(0) == tables.shape(0) && found.shape(0) == tables.shape(0) &&
                found.shape(1) == scores.shape(1),
            "scores and found must have shape (n, k)");
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    std::vector<Question> questions;
    for (int i = 0; i < n; ++i) {
        const float own = bias.data()[i];
        questions.push_back(
            {tables.data() + static_cast<std::size_t>(i) * C * Kp, own, floor, std::fabs(own)});
    }
    search(kernels, shelf, n, questions.data(), k, scores.data(), found.data());
}

static void sort_heaps(Out<float, 2> scores, Out<std::int64_t, 2> found) {
    const int n = dimension(scores.shape(0)), k = dimension(scores.shape(1));
    require(found.shape(0) == scores.shape(0) && found.shape(1) == scores.shape(1),
            "scores and found must have shape (n, k)");
    nb::gil_scoped_release release;
    sort(n, k, scores.data(), found.data());
}

static std::int64_t within_blocks(In<std::uint8_t, 3> blocks, In<std::uint64_t, 1> keep,
                                  In<std::int64_t, 1> ids, std::int64_t first, int bits, In<float, 1> levels,
                                  In<float, 1> norms, In<float, 2> tables, float bias, float floor,
                                  float limit, Out<float, 1> scores, Out<std::int64_t, 1> found,
                                  const Level& level) {
    const int C = dimension(tables.shape(0)), Kp = dimension(tables.shape(1));
    const Shelf shelf = searched_shelf(blocks, keep, ids, first, bits, levels, norms, C, Kp);
    require(scores.shape(0) == found.shape(0), "scores and found must have the same shape");
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    return within(kernels, shelf, {tables.data(), bias, floor, std::fabs(bias)}, limit,
                  static_cast<std::int64_t>(scores.shape(0)), scores.data(), found.data());
}

static void gather_rows(In<std::uint8_t, 3> blocks, In<std::uint64_t, 1> keep, Out<std::uint8_t, 3> out,
                        Out<std::int64_t, 1> rows) {
    const int L = dimension(blocks.shape(1));
    const Shelf shelf = checked_shelf(blocks, keep, L, 8, false);
    std::size_t kept = 0;
    for (std::size_t b = 0; b < keep.shape(0); ++b) kept += __builtin_popcountll(keep(b));
    require(rows.shape(0) == kept, "rows must have an entry for each bit of keep");
    require(out.shape(0) == (kept + kBlock - 1) / kBlock && out.shape(1) == blocks.shape(1) &&
                out.shape(2) == kBlock,
            "out must have shape (ceil(rows / 64), lines, 64)");
    nb::gil_scoped_release release;
    gather(shelf, static_cast<std::int64_t>(kept), out.data(), rows.data());
}

NB_MODULE(_core, m) {
    m.doc() = "Native kernels over one block of rows. Codes are uint16 here whatever the user sees.";
    const auto level = nb::arg("level") = nb::none();
    const auto array = [](const char* name) {
        return nb::arg(name).noconvert();
    };  // a converted copy would be lost
    m.def("assign", &assign, array("V"), array("T"), array("N"), array("rowmin"), array("groupmin"),
          array("codes"), nb::arg("order"), nb::arg("start"), array("stop"), level, nb::arg("batch") = 0,
          nb::arg("rounds") = 0, nb::arg("seed") = 0);
    m.def("pursue", &pursue, array("V"), array("T"), array("N"), array("rowmin"), array("groupmin"),
          array("codes"), nb::arg("n_candidates"), nb::arg("start"), array("stop"), level);
    m.def("nearest", &nearest, array("V"), array("N"), array("codes"), level);
    m.def("decode", &decode, array("D"), array("codes"), array("out"), level, nb::arg("less") = false);
    m.def("errors", &errors, array("X"), array("D"), array("codes"), array("out"), level);
    m.def("add_rows", &add_rows, array("X"), array("codes"), array("grid"), array("W"), level);
    m.def("count_pairs", &count_pairs, array("codes"), array("pairs"), array("Z"), level);
    m.def("products", &products, array("Q"), array("D"), array("out"), level);
    m.def("tables", &query_tables, array("Q"), array("shift"), nb::arg("scale"), nb::arg("l2"), array("D"),
          array("out"), array("bias"), level);
    m.def("prepared", &prepared_queries, array("Q"), array("shift"), nb::arg("scale"), nb::arg("l2"),
          array("rows"), array("bias"));
    m.def("all_below", &values_below, array("values"), nb::arg("limit"));
    m.def("pack_mask", &words_of_mask, array("mask"), array("words"), level);
    m.def("same_mask", &mask_has_words, array("mask"), array("words"), level);
    m.def("mark_ids", &words_of_ids, array("ids"), nb::arg("first"), nb::arg("n"), array("keep"),
          array("words"));
    m.def("search", &search_blocks, array("blocks"), array("keep"), array("ids"), nb::arg("first"),
          nb::arg("bits"), array("levels"), array("norms"), array("tables"), array("bias"), nb::arg("floor"),
          array("scores"), array("found"), level);
    m.def("sort_heaps", &sort_heaps, array("scores"), array("found"));
    m.def("within", &within_blocks, array("blocks"), array("keep"), array("ids"), nb::arg("first"),
          nb::arg("bits"), array("levels"), array("norms"), array("tables"), nb::arg("bias"),
          nb::arg("floor"), nb::arg("limit"), array("scores"), array("found"), level);
    m.def("gather", &gather_rows, array("blocks"), array("keep"), array("out"), array("rows"));
    bind_lists(m);
    bind_products(m);
    m.def("simd_level", [] { return std::string(active().name); });
    m.def("simd_levels", [] {
        std::vector<std::string> names;
        for (const char* name : kLevels) {
            if (find(name)) names.emplace_back(name);
        }
        return names;
    });
}

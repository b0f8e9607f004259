// The kernels of inverted files as Python functions, checked as those of bindings.cpp are.
#include <vector>

#include "bindings.hpp"
#include "near.hpp"

using namespace gkmeans;

using Longs = In<std::int64_t, 1>;

static void check_lists(const Longs& offsets, const In<std::int64_t, 2>& lists, const In<float, 2>& biases,
                        const In<std::uint8_t, 3>& blocks, const Longs& ids, const In<float, 1>& norms) {
    const auto count = static_cast<std::int64_t>(offsets.shape(0)) - 1;
    require(count >= 1, "offsets must have an entry for each list and one more");
    require(biases.shape(0) == lists.shape(0) && biases.shape(1) == lists.shape(1),
            "lists and biases must have the same shape");
    dimension(lists.shape(1));
    auto rows = static_cast<std::int64_t>(blocks.shape(0)) * kBlock;
    for (const std::size_t n : {ids.shape(0), norms.shape(0)}) {
        if (n) rows = static_cast<std::int64_t>(n);
    }
    for (std::size_t i = 0; i < lists.size(); ++i) {
        const std::int64_t list = lists.data()[i];
        require(list >= 0 && list < count, "a list is not one of offsets");
        const std::int64_t begin = offsets(list), end = offsets(list + 1);
        require(begin >= 0 && begin <= end && end <= rows, "offsets must rise from 0 to the number of rows");
    }
}

static void search_lists_of(In<std::uint8_t, 3> blocks, In<std::uint64_t, 1> keep, Longs ids,
                            std::int64_t first, int bits, In<float, 1> levels, In<float, 1> norms,
                            Longs offsets, In<float, 3> tables, In<std::int64_t, 2> lists,
                            In<float, 2> biases, float floor, Out<float, 2> scores,
                            Out<std::int64_t, 2> found, const Level& level) {
    const int n = dimension(tables.shape(0)), C = dimension(tables.shape(1)), Kp = dimension(tables.shape(2));
    const Shelf shelf = searched_shelf(blocks, keep, ids, first, bits, levels, norms, C, Kp);
    const int k = dimension(scores.shape(1));
    require(lists.shape(0) == tables.shape(0), "lists must have shape (n, m)");
    require(k >= 1 && scores.shape(0) == tables.shape(0) && found.shape(0) == tables.shape(0) &&
                found.shape(1) == scores.shape(1),
            "scores and found must have shape (n, k)");
    const Kernels& kernels = at_level(level);
    check_lists(offsets, lists, biases, blocks, ids, norms);
    nb::gil_scoped_release release;
    std::vector<Question> questions;
    for (int i = 0; i < n; ++i) {
        questions.push_back({tables.data() + static_cast<std::size_t>(i) * C * Kp, 0, floor, 0});
    }
    const Visits visits{offsets.data(), static_cast<int>(lists.shape(1)), lists.data(), biases.data()};
    search_lists(kernels, shelf, visits, n, questions.data(), k, scores.data(), found.data());
}

static std::int64_t within_lists_of(In<std::uint8_t, 3> blocks, In<std::uint64_t, 1> keep, Longs ids,
                                    std::int64_t first, int bits, In<float, 1> levels, In<float, 1> norms,
                                    Longs offsets, In<float, 2> tables, In<std::int64_t, 2> lists,
                                    In<float, 2> biases, float floor, float limit, Out<float, 1> scores,
                                    Out<std::int64_t, 1> found, const Level& level) {
    const int C = dimension(tables.shape(0)), Kp = dimension(tables.shape(1));
    const Shelf shelf = searched_shelf(blocks, keep, ids, first, bits, levels, norms, C, Kp);
    require(lists.shape(0) == 1, "lists must have shape (1, m)");
    require(scores.shape(0) == found.shape(0), "scores and found must have the same shape");
    const Kernels& kernels = at_level(level);
    check_lists(offsets, lists, biases, blocks, ids, norms);
    nb::gil_scoped_release release;
    const Visits visits{offsets.data(), static_cast<int>(lists.shape(1)), lists.data(), biases.data()};
    return within_lists(kernels, shelf, visits, {tables.data(), 0, floor, 0}, limit,
                        static_cast<std::int64_t>(scores.shape(0)), scores.data(), found.data());
}

// Edges of groups: from 0, rising, and to `end`.
static void check_edges(const Longs& edges, std::size_t end, const char* rule) {
    require(
        edges.shape(0) >= 2 && edges(0) == 0 && edges(edges.shape(0) - 1) == static_cast<std::int64_t>(end),
        rule);
    for (std::size_t g = 1; g < edges.shape(0); ++g) require(edges(g - 1) <= edges(g), rule);
}

static void probe_lists(In<float, 2> Q, In<float, 1> bias, In<float, 3> tiles, In<float, 1> norms,
                        Longs starts, Longs firsts, In<float, 3> top_tiles, In<float, 1> top_norms,
                        std::int64_t wanted, Out<float, 2> scores, Out<std::int64_t, 2> lists,
                        const Level& level) {
    const int n = dimension(Q.shape(0)), P = dimension(Q.shape(1)), m = dimension(scores.shape(1));
    require(bias.shape(0) == Q.shape(0), "bias must have shape (n,)");
    require(tiles.shape(1) == Q.shape(1) && tiles.shape(2) == kTile, "tiles must have shape (tiles, P, 32)");
    require(norms.shape(0) == tiles.shape(0) * kTile,
            "norms must have an entry for each column of the tiles");
    dimension(norms.shape(0));
    const int groups = dimension(starts.shape(0)) - 1;
    check_edges(starts, tiles.shape(0), "starts must rise from 0 to the number of tiles");
    require(firsts.shape(0) == starts.shape(0), "firsts and starts must have the same shape");
    check_edges(firsts, static_cast<std::size_t>(firsts(groups)), "firsts must rise from 0");
    const std::size_t tops = groups > 1 ? (groups + kTile - 1) / kTile : 0;
    require(top_tiles.shape(0) >= tops && top_tiles.shape(1) == Q.shape(1) && top_tiles.shape(2) == kTile &&
                top_norms.shape(0) == top_tiles.shape(0) * kTile,
            "top_tiles must have shape (tiles, P, 32), with a column for each group and entry of top_norms");
    require(m >= 1 && scores.shape(0) == Q.shape(0) && lists.shape(0) == Q.shape(0) &&
                lists.shape(1) == scores.shape(1),
            "scores and lists must have shape (n, m)");
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    const Centres centres{P,
                          groups,
                          tiles.data(),
                          norms.data(),
                          starts.data(),
                          firsts.data(),
                          top_tiles.data(),
                          top_norms.data()};
    probe(kernels, centres, n, Q.data(), bias.data(), wanted, m, scores.data(), lists.data());
}

static void lengths_when_rounded(In<float, 2> A, Out<float, 2> out) {
    require(has_coarse_products(), kNoBytes);
    const int n = dimension(A.shape(0)), P = dimension(A.shape(1));
    require(1 <= P && P <= kMostNumbers, "P must be from 1 to 65536");
    require(out.shape(0) == 2 && out.shape(1) == A.shape(0), "out must have shape (2, n)");
    auto work = allocate(coarse_workspace(P));
    nb::gil_scoped_release release;
    rounded_lengths(n, P, A.data(), out.data(), work.get());
}

static void nearest_of(In<float, 2> Q, In<float, 1> bias, In<float, 2> rows, In<float, 1> norms,
                       In<std::uint8_t, 1> packed, In<float, 2> lengths, Out<float, 2> scores,
                       Out<std::int64_t, 2> places) {
    require(has_coarse_products(), kNoBytes);
    const int n = dimension(Q.shape(0)), P = dimension(Q.shape(1)), W = dimension(rows.shape(0)),
              m = dimension(scores.shape(1));
    require(1 <= P && P <= kMostNumbers, "P must be from 1 to 65536");
    require(bias.shape(0) == Q.shape(0), "bias must have shape (n,)");
    require(W >= kTile && W % kTile == 0 && rows.shape(1) == Q.shape(1),
            "rows must have shape (W, P), W a multiple of 32");
    require(norms.shape(0) == rows.shape(0) && lengths.shape(0) == 2 && lengths.shape(1) == rows.shape(0),
            "norms must have shape (W,), and lengths (2, W)");
    require(packed.shape(0) == coarse_size(W, P), "packed must have coarse_size(W, P) entries");
    require(reinterpret_cast<std::uintptr_t>(packed.data()) % 64 == 0,
            "packed must lie at a multiple of 64 bytes");
    require(m >= 1 && scores.shape(0) == Q.shape(0) && places.shape(0) == Q.shape(0) &&
                places.shape(1) == scores.shape(1),
            "scores and places must have shape (n, m)");
    auto work = allocate(near_workspace(P, W));
    nb::gil_scoped_release release;
    nearest_centres({P, W, rows.data(), norms.data(), packed.data(), lengths.data()}, n, Q.data(),
                    bias.data(), m, scores.data(), places.data(), work.get());
}

void gkmeans::bind_lists(nb::module_& m) {
    const auto level = nb::arg("level") = nb::none();
    const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
    m.def("probe", &probe_lists, array("Q"), array("bias"), array("tiles"), array("norms"), array("starts"),
          array("firsts"), array("top_tiles"), array("top_norms"), nb::arg("wanted"), array("scores"),
          array("lists"), level);
    m.def("rounded_lengths", &lengths_when_rounded, array("A"), array("out"));
    m.def("nearest_centres", &nearest_of, array("Q"), array("bias"), array("rows"), array("norms"),
          array("packed"), array("lengths"), array("scores"), array("places"));
    m.def("search_lists", &search_lists_of, array("blocks"), array("keep"), array("ids"), nb::arg("first"),
          nb::arg("bits"), array("levels"), array("norms"), array("offsets"), array("tables"), array("lists"),
          array("biases"), nb::arg("floor"), array("scores"), array("found"), level);
    m.def("within_lists", &within_lists_of, array("blocks"), array("keep"), array("ids"), nb::arg("first"),
          nb::arg("bits"), array("levels"), array("norms"), array("offsets"), array("tables"), array("lists"),
          array("biases"), nb::arg("floor"), nb::arg("limit"), array("scores"), array("found"), level);
}

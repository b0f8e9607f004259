// Products by the matrix unit and in bytes, the assignment that takes these, the minima of T and the order of
// its codewords as Python functions.
#include "bindings.hpp"
#include "coarse.hpp"
#include "matrix.hpp"
#include "similar.hpp"
#include "swift.hpp"

using namespace gkmeans;

static const char* const kNoUnit = "this CPU or build has no matrix unit; see matrix_unit()";

static void minima_of(In<float, 3> T, int K, Out<float, 3> groups, Out<float, 2> rows, const Level& level) {
    const int B = dimension(T.shape(0)), n = dimension(T.shape(1)), Kp = dimension(T.shape(2));
    require(K >= 1 && K <= Kp && Kp % kPad == 0 && Kp <= 65536, "T must have shape (B, n, Kp), K at most Kp");
    require(groups.shape(0) == T.shape(0) && groups.shape(1) == T.shape(1) && groups.shape(2) == kGroups,
            "groups must have shape (B, n, 16)");
    require(rows.shape(0) == T.shape(0) && rows.shape(1) >= T.shape(1),
            "rows must have shape (B, n or more)");
    const int width = group_width(Kp);
    const Kernels& kernels = at_level(level);
    nb::gil_scoped_release release;
    for (std::size_t b = 0; b < static_cast<std::size_t>(B); ++b) {
        kernels.minima(n, K, Kp, width, T.data() + b * n * Kp, groups.data() + b * n * kGroups,
                       rows.data() + b * rows.shape(1));
    }
}

static void order_of(In<float, 2> D, int width, Out<int, 1> order) {
    const int K = dimension(D.shape(0)), P = dimension(D.shape(1));
    require(order.shape(0) == D.shape(0), "order must have shape (K,)");
    require(width >= 1, "width must be at least 1");
    nb::gil_scoped_release release;
    similar_order(K, P, D.data(), width, order.data());
}

static void pack_rows(In<float, 2> B, Out<std::uint16_t, 1> out) {
    require(has_matrix_unit(), kNoUnit);
    const int m = dimension(B.shape(0)), P = dimension(B.shape(1));
    require(out.shape(0) == packed_size(m, P), "out must have packed_size(m, P) entries");
    nb::gil_scoped_release release;
    pack(m, P, B.data(), out.data());
}

static void multiply_rows(In<float, 2> A, In<std::uint16_t, 2> B, Out<float, 3> out, std::int64_t first) {
    require(has_matrix_unit(), kNoUnit);
    const int G = dimension(out.shape(0)), N = dimension(out.shape(1)), m = dimension(out.shape(2));
    const int n = dimension(A.shape(0)), P = dimension(A.shape(1));
    require(B.shape(0) == out.shape(0) && B.shape(1) == packed_size(m, P),
            "B must have shape (G, packed_size(m, P)), and out (G, N, m)");
    require(0 <= first && first <= N - n, "out has no n rows from first on");
    auto work = allocate(multiply_workspace(P));
    nb::gil_scoped_release release;
    multiply({G, n, m, P, static_cast<std::size_t>(N) * m}, A.data(), B.data(),
             out.data() + static_cast<std::size_t>(first) * m, work.get());
}

static void multiply_tiles(In<float, 2> A, In<float, 4> D, Out<float, 3> out, std::int64_t first) {
    const Kernels* kernels = fused_products();
    require(kernels, "this CPU or build has no fused products; see fused_products()");
    const int G = dimension(out.shape(0)), N = dimension(out.shape(1)), m = dimension(out.shape(2));
    const int n = dimension(A.shape(0)), P = dimension(A.shape(1));
    require(D.shape(0) == out.shape(0) && D.shape(1) == static_cast<std::size_t>((m + kTile - 1) / kTile) &&
                D.shape(2) == A.shape(1) && D.shape(3) == kTile,
            "D must have shape (G, tiles of m, P, 32), and out (G, N, m)");
    require(0 <= first && first <= N - n, "out has no n rows from first on");
    nb::gil_scoped_release release;
    for (std::size_t g = 0; g < static_cast<std::size_t>(G); ++g) {
        kernels->products(n, P, m, A.data(), D.data() + g * D.shape(1) * P * kTile,
                          out.data() + (g * N + static_cast<std::size_t>(first)) * m);
    }
}

static void coarse_pack_rows(In<float, 2> B, Out<std::uint8_t, 1> out) {
    require(has_coarse_products(), kNoBytes);
    const int m = dimension(B.shape(0)), P = dimension(B.shape(1));
    require(1 <= P && P <= kMostNumbers, "P must be from 1 to 65536");
    require(out.shape(0) == coarse_size(m, P), "out must have coarse_size(m, P) entries");
    require(reinterpret_cast<std::uintptr_t>(out.data()) % 64 == 0, "out must lie at a multiple of 64 bytes");
    nb::gil_scoped_release release;
    coarse_pack(m, P, B.data(), out.data());
}

static void coarse_multiply_rows(In<float, 2> A, In<std::uint8_t, 2> B, Out<float, 3> out,
                                 std::int64_t first) {
    require(has_coarse_products(), kNoBytes);
    const int G = dimension(out.shape(0)), N = dimension(out.shape(1)), m = dimension(out.shape(2));
    const int n = dimension(A.shape(0)), P = dimension(A.shape(1));
    require(1 <= P && P <= kMostNumbers && m % kPad == 0, "P must be from 1 to 65536, m a multiple of 16");
    require(B.shape(0) == out.shape(0) && B.shape(1) == coarse_size(m, P),
            "B must have shape (G, coarse_size(m, P)), and out (G, N, m)");
    require(reinterpret_cast<std::uintptr_t>(B.data()) % 64 == 0, "B must lie at a multiple of 64 bytes");
    require(0 <= first && first <= N - n, "out has no n rows from first on");
    auto work = allocate(coarse_workspace(P));
    nb::gil_scoped_release release;
    coarse_multiply({G, n, m, P, static_cast<std::size_t>(N) * m}, A.data(), B.data(),
                    out.data() + static_cast<std::size_t>(first) * m, work.get());
}

static void swift_pack_table(In<float, 3> T, int c, float each, Out<Short, 4> out) {
    require(has_coarse_products(), kNoBytes);
    const int C = dimension(T.shape(0)), K = dimension(T.shape(1)), Kp = dimension(T.shape(2)),
              Ks = dimension(out.shape(3));
    require(0 <= c && c < C, "c must be a dictionary, from 0 to C - 1");
    require(K <= Kp && Kp % kPad == 0 && Kp <= Ks && Ks <= 65536,
            "T must have shape (C, K, Kp), Kp at most Ks");
    require(out.shape(0) == T.shape(0) && out.shape(1) == T.shape(1) && out.shape(2) == T.shape(0),
            "out must have shape (C, K, C, Ks)");
    nb::gil_scoped_release release;
    swift_pack(C, K, Kp, Ks, T.data(), c, each, out.data());
}

static void assign_swiftly(In<float, 2> X, In<std::uint8_t, 2> packed, In<Short, 4> T, In<float, 2> N,
                           float each, Out<Code, 2> codes, bool start, In<int, 1> stop, int rounds,
                           std::uint64_t seed, bool in_turn) {
    require(has_coarse_products(), kNoBytes);
    const int n = dimension(X.shape(0)), P = dimension(X.shape(1)), C = dimension(T.shape(0)),
              K = dimension(T.shape(1)), Ks = dimension(T.shape(3));
    require(1 <= P && P <= kMostNumbers, "P must be from 1 to 65536");
    require(C >= 1 && T.shape(2) == T.shape(0) && K >= 1 && K <= Ks && Ks % kShorts == 0 && Ks <= 65536,
            "T must have shape (C, K, C, Ks), Ks a multiple of 32");
    require(N.shape(0) == T.shape(0) && N.shape(1) == T.shape(3), "N must have shape (C, Ks)");
    require(packed.shape(0) == T.shape(0) && packed.shape(1) == coarse_size(Ks, P),
            "packed must have shape (C, coarse_size(Ks, P))");
    require(reinterpret_cast<std::uintptr_t>(packed.data()) % 64 == 0,
            "packed must lie at a multiple of 64 bytes");
    require(codes.shape(0) == X.shape(0) && codes.shape(1) == T.shape(0), "codes must have shape (n, C)");
    require(stop.shape(0) == 1, "stop must have shape (1,)");
    require(rounds >= 0, "rounds must be at least 0");
    if (!start) {
        for (std::size_t i = 0; i < codes.size(); ++i)
            require(codes.data()[i] < K, "a code is not below the number of codewords");
    }
    auto work = allocate(swift_workspace(C, Ks, P));
    nb::gil_scoped_release release;
    swift_assign({C, K, Ks, T.data(), N.data(), each}, n, P, X.data(), packed.data(), codes.data(), start,
                 rounds, in_turn, seed, work.get(), stop.data());
}

void gkmeans::bind_products(nb::module_& m) {
    const auto level = nb::arg("level") = nb::none();
    const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
    m.def("minima", &minima_of, array("T"), nb::arg("K"), array("groups"), array("rows"), level);
    m.def("similar_order", &order_of, array("D"), nb::arg("width"), array("order"));
    m.def("matrix_unit", &has_matrix_unit);
    m.def("packed_size", &packed_size, nb::arg("m"), nb::arg("P"));
    m.def("pack", &pack_rows, array("B"), array("out"));
    m.def("multiply", &multiply_rows, array("A"), array("B"), array("out"), nb::arg("first"));
    m.def("fused_products", [] { return fused_products() != nullptr; });
    m.def("multiply_tiles", &multiply_tiles, array("A"), array("D"), array("out"), nb::arg("first"));
    m.def("coarse_products", &has_coarse_products);
    m.def("coarse_size", &coarse_size, nb::arg("m"), nb::arg("P"));
    m.def("coarse_pack", &coarse_pack_rows, array("B"), array("out"));
    m.def("most_together", [] { return kMostTogether; });
    m.def("swift_pack", &swift_pack_table, array("T"), nb::arg("c"), nb::arg("each"), array("out"));
    m.def("swift_assign", &assign_swiftly, array("X"), array("packed"), array("T"), array("N"),
          nb::arg("each"), array("codes"), nb::arg("start"), array("stop"), nb::arg("rounds") = 0,
          nb::arg("seed") = 0, nb::arg("in_turn") = false);
    m.def("coarse_multiply", &coarse_multiply_rows, array("A"), array("B"), array("out"), nb::arg("first"));
}

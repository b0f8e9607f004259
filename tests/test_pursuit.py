"""MCMP against the whole tree in NumPy, at every SIMD level, for odd shapes. Whole numbers make all sums exact."""

import threading
import time

import numpy as np
import pytest

import reference
from conftest import LEVELS, whole
from gkmeans import _core
from gkmeans._parallel import Workers
from gkmeans.dictionaries import Tables
from gkmeans.pursuit import check_cost, in_words, pursue_block, row_seconds, tree_size

pytestmark = pytest.mark.native
STOP = np.zeros(1, np.int32)
# (C, K, P, n, n_candidates): each value of the lists at least once
SHAPES = [
    (1, 2, 1, 0, 1),
    (1, 257, 7, 65, 10),
    (1, 1, 7, 3, 1),
    (2, 1, 7, 3, 5),
    (2, 2, 1, 1, 2),
    (2, 3, 7, 63, 3),
    (2, 16, 64, 64, 10),
    (2, 255, 7, 65, 10),
    (2, 256, 64, 64, 300),
    (2, 257, 7, 63, 17),
    (2, 600, 7, 9, 40),
    (3, 2, 7, 64, 2),
    (3, 16, 7, 65, 16),
    (3, 255, 7, 9, 10),
    (3, 256, 64, 8, 20),
    (3, 257, 1, 9, 2),
    (4, 3, 7, 65, 10),
    (4, 16, 64, 9, 4),
    (4, 256, 7, 3, 10),
    (5, 2, 7, 63, 10),
    (5, 3, 1, 1, 1),
    (5, 16, 7, 0, 10),
    (5, 257, 64, 2, 3),
]


def run(X, D, n_candidates, codes, workers, level):
    """Codes by the kernel of one level, as pursue_block does with the level chosen at import."""
    tables = Tables.of(D, workers)
    C, Kp, _ = tables.products.D.shape
    if C == 1:  # Tables has no T here; the kernel must do without it too
        tables = Tables(*(getattr(tables, name) for name in ("D", "products", "N", "order", "place")), *no_products(D))
    start = codes is None
    places = np.zeros((len(X), C), np.uint16) if start else tables.inside(codes)
    V = tables.products.into(X, np.empty((C, len(X), Kp), np.float32))
    _core.pursue(V, tables.T, tables.N, tables.rowmin, tables.groupmin, places, n_candidates, start, STOP, level)
    return tables.outside(places)


def no_products(D):
    K, Kp = D.shape[1], -(-D.shape[1] // 16) * 16
    return [np.zeros(shape, np.float32) for shape in ((1, 1, K, Kp), (1, 1, Kp), (1, 1, K, 16))]


def errors(X, D, codes):
    return ((X - reference.decode(D.astype(float), codes)) ** 2).sum(axis=1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_leaf_is_that_of_the_whole_tree(shape, rng, workers, level):
    # real numbers, so that no two scores tie and the order of the codewords does not matter
    C, K, P, n, n_candidates = shape
    D = rng.standard_normal((C, K, P)).astype(np.float32)
    X = (2 * rng.standard_normal((n, P))).astype(np.float32)
    expected, costs = reference.mcmp(X, D, n_candidates)
    codes = run(X, D, n_candidates, None, workers, level)
    assert codes.shape == (n, C)
    found = (errors(X, D, codes) - (X.astype(float) ** 2).sum(axis=1)) / 2
    scale = 1e-5 * (1 + (X.astype(float) ** 2).sum(axis=1) + (D.astype(float) ** 2).sum(axis=2).max())
    assert (np.abs(found - costs) <= scale).all()
    assert P == 1 or (codes == expected).all()  # on a line, sums of codewords lie closer than rounding


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[0] > 1 and s[1] < 300], ids=str)
def test_ties_go_to_the_first_leaf(shape, rng, workers, level):
    # whole numbers: sums are exact and ties abound; the oracle sees the codewords in the order of the tables
    C, K, _, n, n_candidates = shape
    D, X = whole(rng, C, K, 3, low=-3, high=4), whole(rng, n, 3, low=-6, high=7)
    tables = Tables.of(D, workers)
    expected, _ = reference.mcmp(X, tables.products.D[:, :K], n_candidates)
    codes = run(X, D, n_candidates, None, workers, level)
    assert (tables.inside(codes) == expected).all()


def whole_tree(V, tables, n_candidates):
    """Codes by the whole tree, in float32 with the kernel's additions: equal to the last bit."""
    T, N, C = tables.T, tables.N, tables.T.shape[0]
    codes = np.zeros((len(V), C), np.uint16)

    def visit(path, scores, cost):
        c = len(path)
        order = np.argsort(scores[c], kind="stable")
        for k in order[: min(n_candidates, T.shape[2])] if c < C - 1 else order[:1]:
            total = np.float32(cost + scores[c][k])
            if c == C - 1:
                if total < best[0]:
                    best[:] = [total, (*path, k)]
            else:
                visit((*path, k), [scores[b] + T[b, c, k] if b > c else None for b in range(C)], total)

    for i, v in enumerate(N - V):
        best = [np.float32(np.inf), (0,) * C]
        visit((), list(v), np.float32(0))
        codes[i] = best[1]
    return codes


def hard_dictionaries(kind, C, K, rng):
    """Dictionaries and rows whose terms differ by far in size, or not at all."""
    D, X = rng.standard_normal((C, K, 6)), 2 * rng.standard_normal((5, 6))
    if kind in ("growing", "shrinking"):
        D *= 10.0 ** (np.arange(C) * (2 if kind == "growing" else -2))[:, None, None]
    if kind in ("first constant", "last constant", "constant"):
        D[{"first constant": 0, "last constant": -1, "constant": slice(None)}[kind]] = 1.5
    if kind == "one far codeword":
        D[:, 3] *= 1e4
    if kind == "far rows":
        X *= 1e5
    if kind == "offsets":  # sums of large terms that nearly cancel
        D[0] += 300
        D[1] -= 300
    if kind == "ties":
        D, X = rng.integers(-1, 2, D.shape), rng.integers(-3, 4, X.shape)
    scale = {"huge": 1e11, "large": 1e8, "small": 1e-8, "tiny": 1e-14}.get(kind, 1.0)
    return (scale * D).astype(np.float32), (scale * X).astype(np.float32)


KINDS = ["plain", "growing", "shrinking", "first constant", "last constant", "constant", "one far codeword", "far rows"]
KINDS += ["offsets", "ties", "huge", "large", "small", "tiny"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("C", "K"), [(3, 256), (3, 243), (4, 256)])
def test_bounds_in_shorts_lose_no_leaf(kind, C, K, rng, workers, level):
    D, X = hard_dictionaries(kind, C, K, rng)
    tables = Tables.of(D, workers)
    V = tables.products.into(X, np.empty((C, len(X), 256), np.float32))
    expected = whole_tree(V.transpose(1, 0, 2), tables, 5)
    arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)
    for start in (True, False):  # a poor start leaves much to find
        codes = np.zeros((len(X), C), np.uint16)
        _core.pursue(V.copy(), *arrays, codes, 5, start, STOP, level)
        assert (codes == expected)[codes.any(axis=1) | start].all()


def test_a_case_worked_by_hand(workers, level):
    # x = 7. Greedy takes 6 of {0, 6, 5}, then the residual 1 has 0 of {0, 2, -9} at an error of 1; 5 + 2 is exact.
    D = np.array([[[0], [6], [5]], [[0], [2], [-9]]], np.float32)
    X = np.array([[7]], np.float32)
    assert (run(X, D, 1, None, workers, level) == [[1, 0]]).all()
    assert (run(X, D, 2, None, workers, level) == [[2, 1]]).all()


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65])
@pytest.mark.parametrize(("C", "K"), [(1, 40), (2, 256), (3, 100), (4, 37)])
def test_levels_give_equal_codes(C, K, n, rng, workers):
    D, X = rng.standard_normal((C, K, 9)).astype(np.float32), rng.standard_normal((n, 9)).astype(np.float32)
    codes = [run(X, D, 6, None, workers, level) for level in LEVELS]
    assert all((other == codes[0]).all() for other in codes)


@pytest.mark.parametrize("C", [1, 2, 3, 5])
def test_one_candidate_is_the_greedy_start(C, rng, workers, level):
    D, X = rng.standard_normal((C, 40, 7)).astype(np.float32), rng.standard_normal((65, 7)).astype(np.float32)
    assert (run(X, D, 1, None, workers, level) == reference.greedy(X, D)).all()


@pytest.mark.parametrize(("C", "K"), [(2, 9), (3, 5), (4, 3), (5, 2)])
def test_all_candidates_give_the_global_optimum(C, K, rng, workers, level):
    D, X = rng.standard_normal((C, K, 6)).astype(np.float32), rng.standard_normal((30, 6)).astype(np.float32)
    codes = run(X, D, K, None, workers, level)
    grid = np.stack(np.meshgrid(*[np.arange(K)] * C, indexing="ij"), axis=-1).reshape(-1, C)
    decoded = reference.decode(D, grid)
    expected = ((X[:, None] - decoded) ** 2).sum(axis=2).min(axis=1)
    np.testing.assert_allclose(errors(X, D, codes), expected, rtol=1e-5)


@pytest.mark.parametrize("C", [1, 2, 3, 4])
def test_given_codes_never_get_worse_and_stay_on_ties(C, rng, workers, level):
    D, X = whole(rng, C, 20, 5), whole(rng, 100, 5, low=-20, high=21)
    given = rng.integers(0, 20, (100, C)).astype(np.uint16)
    codes = run(X, D, 3, given, workers, level)
    before, after = errors(X, D, given), errors(X, D, codes)
    tree = errors(X, D, run(X, D, 3, None, workers, level))
    assert (after == np.minimum(before, tree)).all()
    assert (codes == given)[before <= tree].all()
    assert (run(X, D, 3, codes, workers, level) == codes).all()


def test_pursue_block_gives_the_codes_of_the_kernel(rng, workers):
    for C in (1, 3):
        D, X = rng.standard_normal((C, 40, 7)).astype(np.float32), rng.standard_normal((65, 7)).astype(np.float32)
        tables = Tables.of(D, workers)
        codes = pursue_block(X, tables, 10, None, workers)
        assert codes.dtype == np.uint16
        assert (codes == run(X, D, 10, None, workers, None)).all()
        assert (pursue_block(X, tables, 10, codes, workers) == codes).all()


def test_no_table_raises_with_the_way_out(rng, workers):
    D = rng.standard_normal((2, 20, 3)).astype(np.float32)
    tables = Tables.of(D, workers)
    bare = Tables(tables.D, tables.products, tables.N, tables.order, tables.place)
    with pytest.raises(ValueError, match=r"2 dictionaries of 20 codewords.*use fewer"):
        pursue_block(D[0], bare, 10, None, workers)


def test_one_row_that_takes_minutes_stops_at_once(rng, workers):
    # eight dictionaries of near-equal codewords: nothing to prune, 10^15 leaves
    D = (1 + 1e-3 * rng.standard_normal((8, 256, 4))).astype(np.float32)
    tables, X = Tables.of(D, workers), np.ones((1, 4), np.float32)
    with Workers(1) as pool:
        timer = threading.Timer(0.3, lambda: pool.stop.__setitem__(0, 1))
        timer.start()
        start = time.perf_counter()
        pursue_block(X, tables, 200, None, pool)
        assert time.perf_counter() - start < 5
        timer.join()


def test_the_kernel_refuses_what_does_not_fit(rng, workers):
    D = whole(rng, 2, 3, 4)
    tables = Tables.of(D, workers)
    arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)
    V, good, bad = np.zeros((2, 5, 16), np.float32), np.zeros((5, 2), np.uint16), np.full((5, 2), 3, np.uint16)
    for n_candidates in (0, -1):
        with pytest.raises(ValueError, match="n_candidates must be at least 1"):
            _core.pursue(V, *arrays, good, n_candidates, True, STOP)
    with pytest.raises(ValueError, match="a code is not below"):
        _core.pursue(V, *arrays, bad, 1, False, STOP)
    with pytest.raises(ValueError, match="V must have shape"):
        _core.pursue(V[:, :, :8].copy(), *arrays, good, 1, True, STOP)
    with pytest.raises(ValueError, match="codes must have shape"):
        _core.pursue(V, *arrays, good[:4], 1, True, STOP)
    with pytest.raises(ValueError, match="stop must have shape"):
        _core.pursue(V, *arrays, good, 1, True, np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="simd_levels"):
        _core.pursue(V, *arrays, good, 1, True, STOP, "mmx")
    for place, shape in ((0, (2, 2, 3, 8)), (1, (2, 8)), (2, (2, 2, 8)), (3, (2, 2, 3, 8))):
        wrong = [*arrays]
        wrong[place] = np.zeros(shape, np.float32)
        with pytest.raises(ValueError, match="must have shape"):
            _core.pursue(V, *wrong, good, 1, True, STOP)
    with pytest.raises(ValueError, match=r"N must be \+inf from column K on"):
        _core.pursue(V, tables.T, np.zeros_like(tables.N), *arrays[2:], good, 1, True, STOP)
    with pytest.raises(TypeError):
        _core.pursue(V.astype(float), *arrays, good, 1, True, STOP)


def test_the_size_of_the_tree_counts_every_score():
    assert tree_size(10, 1, 256) == 256
    assert tree_size(10, 4, 256) == 256 * 1111
    assert tree_size(10, 3, 2) == 2 * (1 + 2 + 4)
    assert tree_size(1, 5, 256) == tree_size(10, 1280, 1) == 256 * 5


def test_a_run_of_days_raises_with_the_estimate():
    check_cost((10_000, 128), 10, 4, 10, 2, 256, 2, 1.0)
    check_cost((10**9, 128), 100, 1, 10, 8, 256, 2, None)
    with pytest.raises(ValueError, match=r"about [\d,]+ days, more than max_hours=6.*max_hours=None"):
        check_cost((60_000, 128), 100, 1, 10, 8, 256, 2, 6)
    with pytest.raises(ValueError, match=r"1 pass over 60,000 rows .* more than a million years"):
        check_cost((60_000, 128), 1, 1, 10, 1000, 256, 2, 6)
    with pytest.raises(ValueError, match="would take about 2 days"):  # most of it products
        check_cost((10**8, 784), 100, 4, 10, 2, 256, 2, 24)


@pytest.mark.parametrize(
    ("P", "M", "C", "measured"),
    [(128, 4, 2, 8.1), (128, 1, 2, 4.0), (784, 4, 2, 30.4), (128, 1, 4, 18.2), (128, 1, 8, 187_000)],
)
def test_the_estimate_is_near_what_was_measured(P, M, C, measured, monkeypatch):
    # µs a row on one core with AVX-512, K = 256, 10 candidates
    monkeypatch.setattr("gkmeans.pursuit._core.simd_level", lambda: "avx512")
    assert 0.5 < 1e6 * row_seconds(P, M, 10, C, 256) / measured < 2


def test_hours_in_words():
    assert in_words(0.001) == "about 1 minutes"
    assert in_words(1.5) == "about 90 minutes"
    assert in_words(5.2) == "about 5 hours"
    assert in_words(12 * 24) == "about 12 days"
    assert in_words(3 * 8766) == "about 3 years"
    assert in_words(1e12) == "more than a million years"

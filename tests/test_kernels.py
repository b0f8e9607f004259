"""Every kernel against the NumPy oracle, at every SIMD level, for odd shapes. Whole numbers make all sums exact."""

import threading
import time

import numpy as np
import pytest

import reference
from conftest import LEVELS, whole
from gkmeans import _core
from gkmeans.assignment import assign_block
from gkmeans.dictionaries import Tables

pytestmark = pytest.mark.native
STOP = np.zeros(1, np.int32)
# (C, K, P, n): each K, each C and each n of the list at least once, P = 1, 7 and 784
SHAPES = [
    (1, 2, 1, 0),
    (1, 257, 7, 65),
    (2, 2, 1, 1),
    (2, 3, 7, 63),
    (2, 1000, 7, 64),
    (3, 16, 784, 65),
    (3, 255, 7, 64),
    (4, 256, 7, 65),
    (5, 257, 1, 63),
    (6, 3, 784, 64),
    (7, 16, 7, 1),
    (8, 2, 7, 65),
    (9, 17, 7, 63),
    (10, 3, 1, 64),
    (11, 2, 784, 65),
    (12, 33, 7, 64),
    (13, 16, 7, 0),
    (14, 2, 7, 64),
    (15, 3, 7, 65),
    (16, 16, 7, 63),
    (17, 16, 7, 65),
]


# (C, K, n) for rounds of perturbed codes
PERTURBED = [
    (1, 2, 65),
    (1, 257, 64),
    (2, 2, 64),
    (2, 3, 63),
    (2, 257, 65),
    (3, 16, 64),
    (3, 255, 1),
    (8, 2, 65),
    (8, 16, 0),
    (8, 256, 65),
    (17, 3, 64),
    (17, 16, 63),
]


def products(Y, tables):
    """(C, n, Kp) of the rows with the codewords of each dictionary."""
    return np.matmul(Y, tables.products.D.transpose(0, 2, 1))


def run(X, D, order, codes, workers, level, **options):
    """Codes by the kernel of one level, as assign_block does with the level chosen at import."""
    tables = Tables.of(D, workers)
    start = codes is None
    places = np.zeros((len(X), len(D)), np.uint16) if start else tables.inside(codes)
    Y = X if start else (X - reference.decode(D, codes)).astype(np.float32)
    V = products(Y, tables)
    if len(D) == 1:
        _core.nearest(V[0], tables.N[0], places[:, 0], level)
        return places
    arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)
    _core.assign(V, *arrays, places, order, start, STOP, level, **options)
    return tables.outside(places)


def errors(X, D, codes):
    return ((X - reference.decode(D.astype(float), codes)) ** 2).sum(axis=1)


def is_optimal(X, D, codes, group):
    """No other choice of the group's codes is better for any row, by brute force."""
    here = errors(X, D, codes)
    C, K, _ = D.shape
    grids = np.meshgrid(*[np.arange(K)] * len(group), indexing="ij")
    choices = np.stack([grid.ravel() for grid in grids], axis=1)
    for i, x in enumerate(X):
        rest = x - sum(D[c, codes[i, c]] for c in range(C) if c not in group)
        sums = sum(D[c, choices[:, m]] for m, c in enumerate(group))
        if ((rest - sums) ** 2).sum(axis=1).min() < here[i]:
            return False
    return True


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_order_1_ends_where_no_single_code_can_be_improved(shape, rng, workers, level):
    C, K, P, n = shape
    D, X = whole(rng, C, K, P), whole(rng, n, P, low=-30, high=31)
    codes = run(X, D, 1, None, workers, level)
    assert codes.shape == (n, C)
    assert all(is_optimal(X, D, codes, (c,)) for c in range(C))


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[0] > 1 and s[1] < 1000], ids=str)
def test_order_2_ends_where_no_pair_can_be_improved(shape, rng, workers, level):
    C, K, P, n = shape
    n = min(n, 9) if K > 100 else n
    D, X = whole(rng, C, K, P), whole(rng, n, P, low=-30, high=31)
    codes = run(X, D, 2, None, workers, level)
    assert all(is_optimal(X, D, codes, group) for group in reference.groups(C, 2))


@pytest.mark.parametrize(("C", "K", "order"), [(3, 5, 3), (4, 4, 3), (4, 3, 4), (5, 3, 4), (6, 2, 6), (3, 17, 3)])
def test_order_n_ends_where_no_group_can_be_improved(C, K, order, rng, workers, level):
    D, X = whole(rng, C, K, 6), whole(rng, 20, 6, low=-30, high=31)
    codes = run(X, D, order, None, workers, level)
    assert all(is_optimal(X, D, codes, group) for group in reference.groups(C, order))


@pytest.mark.parametrize(("C", "K", "order"), [(2, 3, 1), (3, 5, 2), (4, 6, 1), (4, 6, 2), (5, 3, 3), (7, 2, 2)])
def test_rounds_agree_with_the_oracle(C, K, order, rng, workers, level):
    # draws name codewords by their places inside the tables, so the oracle gets them in that order
    D = whole(rng, C, K, 5, low=-900, high=901)
    tables = Tables.of(D, workers)
    X, codes = whole(rng, 12, 5, low=-2000, high=2001), rng.integers(0, K, (12, C)).astype(np.uint16)
    for count in (1, 3):
        expected = reference.rounds(X, tables.products.D[:, :K], order, tables.inside(codes), count, 11)
        found = run(X, D, order, codes, workers, level, rounds=count, seed=11)
        assert (tables.inside(found) == expected).all()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_sweeps_agree_with_the_oracle(order, rng, workers, level):
    # real numbers, so that no two costs tie; from random codes the way through the local minima must be the same
    D, X = rng.standard_normal((3, 6, 5)).astype(np.float32), rng.standard_normal((40, 5)).astype(np.float32)
    start = rng.integers(0, 6, (40, 3))
    tables_free = reference.assign(X, D, 1, start)
    expected = tables_free if order == 1 else reference.assign(X, D, 2, tables_free)
    expected = expected if order < 3 else reference.assign(X, D, 3, expected)
    assert (run(X, D, order, start, workers, level) == expected).all()


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 300])
def test_levels_give_equal_codes(order, n, rng, workers):
    D, X = rng.standard_normal((5, 37, 9)).astype(np.float32), rng.standard_normal((n, 9)).astype(np.float32)
    codes = [run(X, D, order, None, workers, level) for level in LEVELS]
    assert all((other == codes[0]).all() for other in codes)


@pytest.mark.parametrize("C", [1, 2, 5])
def test_greedy_start_agrees_with_the_oracle(C, rng, workers, level):
    D, X = rng.standard_normal((C, 40, 7)).astype(np.float32), rng.standard_normal((65, 7)).astype(np.float32)
    assert (run(X, D, 0, None, workers, level) == reference.greedy(X, D)).all()


def test_a_group_of_more_dictionaries_than_codewords_stays_inside_its_workspace(rng, workers, level):
    D, X = whole(rng, 18, 2, 4), whole(rng, 300, 4, low=-30, high=31)
    codes = run(X, D, 18, None, workers, level)
    pairs = run(X, D, 2, None, workers, level)
    assert (errors(X, D, codes) <= errors(X, D, pairs)).all()


def test_codes_at_rest_do_not_move(rng, workers, level):
    # on real numbers every sum rounds; codes that no group can improve must not be taken for better than themselves
    D, X = rng.standard_normal((4, 16, 6)).astype(np.float32), rng.standard_normal((200, 6)).astype(np.float32)
    codes = run(X, D, 3, None, workers, level)
    assert (run(X, D, 3, codes, workers, level) == codes).all()


@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
def test_batches_do_not_change_the_codes(batch, rng, workers):
    D, X = rng.standard_normal((4, 20, 6)).astype(np.float32), rng.standard_normal((100, 6)).astype(np.float32)
    tables = Tables.of(D, workers)
    V = products(X, tables)
    codes = np.zeros((100, 4), np.uint16)
    _core.assign(V, tables.T, tables.N, tables.rowmin, tables.groupmin, codes, 2, True, STOP, None, batch)
    assert (tables.outside(codes) == assign_block(X, tables, 2, None, workers)).all()


# ---- rounds of perturbed codes


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("shape", PERTURBED, ids=str)
def test_rounds_never_raise_the_error_of_a_row(shape, order, rng, workers, level):
    C, K, n = shape
    D, X = whole(rng, C, K, 7), whole(rng, n, 7, low=-30, high=31)
    given = rng.integers(0, K, (n, C)).astype(np.uint16)
    for start in (None, given):
        found = [run(X, D, min(order, C), start, workers, level, rounds=rounds, seed=3) for rounds in (0, 1, 4)]
        none, one, four = (errors(X, D, codes) for codes in found)
        assert (one <= none).all()
        assert (four <= one).all()
        assert all((codes < K).all() for codes in found)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_rounds_find_better_codes(order, rng, workers, level):
    D, X = rng.standard_normal((6, 16, 8)).astype(np.float32), rng.standard_normal((200, 8)).astype(np.float32)
    few, many = (errors(X, D, run(X, D, order, None, workers, level, rounds=rounds)).sum() for rounds in (0, 8))
    assert many < 0.97 * few


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("shape", PERTURBED, ids=str)
def test_levels_give_equal_codes_after_rounds(shape, order, rng, workers):
    C, K, n = shape
    if order == 3 and K > 100:
        K = 20
    D, X = rng.standard_normal((C, K, 9)).astype(np.float32), rng.standard_normal((n, 9)).astype(np.float32)
    codes = [run(X, D, min(order, C), None, workers, level, rounds=3, seed=11) for level in LEVELS]
    assert all((other == codes[0]).all() for other in codes)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_codes_after_rounds_depend_on_the_row_alone(order, rng, workers, level):
    n, C, K = 130, 5, 20
    tables = Tables.of(rng.standard_normal((C, K, 6)).astype(np.float32), workers)
    X = rng.standard_normal((n, 6)).astype(np.float32)
    X[100:] = X[:30]  # equal rows too
    V = products(X, tables)
    V[:, 100:] = V[:, :30]
    arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)

    def codes_of(rows, batch):
        codes = np.zeros((len(rows), C), np.uint16)
        _core.assign(V[:, rows].copy(order="C"), *arrays, codes, order, True, STOP, level, batch, rounds=5, seed=2)
        return codes

    together = codes_of(np.arange(n), 0)
    assert (together[100:] == together[:30]).all()
    other = rng.permutation(n)
    assert (codes_of(other, 0) == together[other]).all()
    assert (codes_of(other[:77], 13) == together[other[:77]]).all()
    assert (np.concatenate([codes_of(np.array([i]), 1) for i in range(40)]) == together[:40]).all()


def test_a_round_leaves_a_minimum_of_order_2_for_the_global_optimum(workers, level):
    # x = (1, 1, 1) is the sum of the second codewords, and from the first ones (all 0, error 3) one or two second ones
    # alone are worse (12 and 11). A round draws one of the three codes: a second codeword of dictionary 1 or 2 (12)
    # makes dictionary 0 follow (11), then the last (0); of dictionary 0 it is undone.
    D = np.zeros((3, 2, 3), np.float32)
    D[0, 1], D[1, 1], D[2, 1] = (3, -1, -1), (-1, 3, -1), (-1, -1, 3)
    X, start = np.ones((1, 3), np.float32), np.zeros((1, 3), np.uint16)
    best = run(X, D, 3, start, workers, level).tolist()
    assert best == [[1, 1, 1]]
    for order in (1, 2):
        assert run(X, D, order, start, workers, level).tolist() == [[0, 0, 0]]
        once = [run(X, D, order, start, workers, level, rounds=1, seed=seed).tolist() for seed in range(60)]
        assert all(codes in ([[0, 0, 0]], best) for codes in once)
        assert 8 < once.count(best) < 32  # 1/3 of the draws: 2 of 3 dictionaries, 1 of 2 codewords
        assert run(X, D, order, start, workers, level, rounds=64).tolist() == best


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_no_rounds_leave_the_codes_to_the_sweeps(order, rng, workers, level):
    D, X = rng.standard_normal((4, 16, 6)).astype(np.float32), rng.standard_normal((70, 6)).astype(np.float32)
    plain = run(X, D, order, None, workers, level)
    assert (run(X, D, order, None, workers, level, rounds=0, seed=9) == plain).all()


def test_one_dictionary_has_its_nearest_codeword_after_rounds_too(rng, level):
    # nothing is drawn: half of one code is none
    K, Kp = 5, 16
    D, X = whole(rng, K, 4), whole(rng, 33, 4)
    N = np.full((1, Kp), np.inf, np.float32)
    N[0, :K] = (D**2).sum(axis=1) / 2
    V = np.zeros((1, 33, Kp), np.float32)
    V[0, :, :K] = X @ D.T
    nothing = (np.zeros((1, 1, K, Kp), np.float32), N, np.zeros((1, 1, Kp), np.float32))
    codes = np.zeros((33, 1), np.uint16)
    _core.assign(V, *nothing, np.zeros((1, 1, K, 16), np.float32), codes, 1, True, STOP, level, rounds=3)
    assert (errors(X, D[None], codes) == ((X[:, None] - D) ** 2).sum(axis=2).min(axis=1)).all()


@pytest.mark.parametrize("order", [1, 2, 4])
def test_a_stop_amid_rounds_leaves_codes_that_are_no_worse(order, rng, workers, level):
    D, X = whole(rng, 6, 32, 8), whole(rng, 200, 8, low=-30, high=31)
    tables = Tables.of(D, workers)
    given = rng.integers(0, 32, (200, 6)).astype(np.uint16)
    V = products((X - reference.decode(D, given)).astype(np.float32), tables)
    places, stop = tables.inside(given), np.zeros(1, np.int32)
    timer = threading.Timer(0.05, stop.__setitem__, (0, 1))
    timer.start()
    begun = time.perf_counter()
    arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)
    _core.assign(V, *arrays, places, order, False, stop, level, rounds=2**31 - 1)
    timer.join()
    assert time.perf_counter() - begun < 5
    assert (places < 32).all()
    before, after = errors(X, D, given), errors(X, D, tables.outside(places))
    assert (after <= before).all()
    assert after.sum() < before.sum()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decode_errors_and_sums_agree_with_the_oracle(shape, rng, level):
    C, K, P, n = shape
    D, X = whole(rng, C, K, P), whole(rng, n, P)
    codes = rng.integers(0, K, (n, C)).astype(np.uint16)
    out = np.empty((n, P), np.float32)
    _core.decode(D, codes, out, level)
    assert (out == reference.decode(D, codes)).all()
    error = np.empty(n, np.float32)
    _core.errors(X, D, codes, error, level)
    assert (error == ((X - out) ** 2).sum(axis=1)).all()
    Z, W = reference.statistics(X, codes, K) if K < 100 else (None, None)
    if Z is not None:
        sums = np.zeros((C, K, P))
        _core.add_rows(X, codes, np.full(P, 0.25), sums, level)
        assert (sums == W).all()
        pairs = np.array([(b, c) for b in range(C) for c in range(C)], np.int32)
        counts = list(np.zeros((len(pairs), K, K), np.int32))
        _core.count_pairs(codes, pairs, counts, level)
        for (b, c), block in zip(pairs, counts, strict=True):
            assert (block == Z[b, :, c, :]).all()


@pytest.mark.parametrize("P", [1, 63, 64, 65, 129])
def test_a_decoding_is_taken_away_as_a_sum(P, rng, level):
    D, X = rng.standard_normal((5, 9, P)).astype(np.float32), rng.standard_normal((40, P)).astype(np.float32)
    D[:, 0], X[:2] = -0.0, -0.0
    codes = rng.integers(0, 9, (40, 5)).astype(np.uint16)
    codes[:4] = 0
    expected = X - reference.decode(D, codes)
    _core.decode(D, codes, X, level, less=True)
    assert X.tobytes() == expected.tobytes()


@pytest.mark.parametrize("P", [1, 5, 16, 37])
def test_rows_are_added_on_their_grid(P, rng, level):
    X = (rng.standard_normal((200, P)) * 10.0 ** rng.integers(-3, 4, P)).astype(np.float32)
    codes = rng.integers(0, 3, (200, 2)).astype(np.uint16)
    grid = np.ldexp(1.0, rng.integers(-12, 1, P))
    sums = np.zeros((2, 3, P))
    _core.add_rows(X, codes, grid, sums, level)
    _, W = reference.statistics(np.round(X.astype(float) / grid) * grid, codes, 3)
    assert (sums == W).all()


def test_stop_ends_the_search_early(rng, workers):
    D, X = rng.standard_normal((8, 64, 8)).astype(np.float32), rng.standard_normal((64, 8)).astype(np.float32)
    tables = Tables.of(D, workers)
    V = products(X, tables)
    codes = np.zeros((64, 8), np.uint16)
    stop = np.ones(1, np.int32)
    _core.assign(V, tables.T, tables.N, tables.rowmin, tables.groupmin, codes, 8, False, stop)
    assert (codes == 0).all()


def test_bindings_refuse_what_does_not_fit(rng, workers):
    D, X = whole(rng, 2, 3, 4), whole(rng, 5, 4)
    bad = np.array([[0, 3]] * 5, np.uint16)
    good = np.zeros((5, 2), np.uint16)
    with pytest.raises(ValueError, match="a code is not below"):
        _core.decode(D, bad, np.empty((5, 4), np.float32))
    with pytest.raises(ValueError, match="out must have shape"):
        _core.decode(D, good, np.empty((4, 4), np.float32))
    with pytest.raises(ValueError, match="X must have shape"):
        _core.errors(X[:4], D, good, np.empty(5, np.float32))
    pairs, blocks = np.array([[0, 1], [0, 2]], np.int32), list(np.zeros((2, 3, 3), np.int32))
    with pytest.raises(ValueError, match="dictionaries, from 0 to C"):
        _core.count_pairs(good, pairs, blocks)
    with pytest.raises(ValueError, match="for m blocks Z"):
        _core.count_pairs(good, pairs[:1], blocks)
    with pytest.raises(ValueError, match="Z must have shape"):
        _core.count_pairs(good, pairs % 2, [blocks[0], np.zeros((3, 4), np.int32)])
    with pytest.raises(ValueError, match="a code is not below"):
        _core.count_pairs(bad, pairs[:1], blocks[:1])
    with pytest.raises(TypeError):  # a copy would be counted in
        _core.count_pairs(good, pairs[:1], [np.zeros((6, 6), np.int32)[::2, ::2]])
    assert not any(block.any() for block in blocks)
    with pytest.raises(ValueError, match="simd_levels"):
        _core.decode(D, good, np.empty((5, 4), np.float32), "mmx")
    tables = Tables.of(D, workers)
    V = np.zeros((2, 5, 16), np.float32)
    arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)
    for order in (-1, 3):
        with pytest.raises(ValueError, match="order must be"):
            _core.assign(V, *arrays, good, order, True, STOP)
    with pytest.raises(ValueError, match="a code is not below"):
        _core.assign(V, *arrays, bad, 1, False, STOP)
    with pytest.raises(ValueError, match="V must have shape"):
        _core.assign(V[:, :, :8].copy(), *arrays, good, 1, True, STOP)
    with pytest.raises(ValueError, match="V must have shape"):
        _core.assign(np.zeros((5, 2, 16), np.float32), *arrays, good, 1, True, STOP)
    with pytest.raises(ValueError, match="codes must have shape"):
        _core.assign(V[:, :4].copy(), *arrays, good, 1, True, STOP)
    with pytest.raises(ValueError, match="batch"):
        _core.assign(V, *arrays, good, 1, True, STOP, None, -1)
    with pytest.raises(ValueError, match="rounds must be at least 0"):
        _core.assign(V, *arrays, good, 1, True, STOP, rounds=-1)
    with pytest.raises(ValueError, match="rounds need an order"):
        _core.assign(V, *arrays, good, 0, True, STOP, rounds=1)
    with pytest.raises(TypeError):
        _core.decode(D.astype(float), good, np.empty((5, 4), np.float32))

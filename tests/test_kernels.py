"""Every kernel against the NumPy oracle, at every SIMD level, for odd shapes. Whole numbers make all sums exact."""

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


def run(X, D, order, codes, workers, level):
    """Codes by the kernel of one level, as assign_block does with the level chosen at import."""
    tables = Tables.of(D, workers)
    C, Kp, P = tables.padded.shape
    start = codes is None
    places = np.zeros((len(X), C), np.uint16) if start else tables.inside(codes)
    Y = X if start else (X - reference.decode(D, codes)).astype(np.float32)
    V = np.ascontiguousarray((Y @ tables.padded.reshape(C * Kp, P).T).reshape(len(X), C, Kp))
    if C == 1:
        _core.nearest(V[:, 0], tables.N[0], places[:, 0], level)
        return places
    _core.assign(V, tables.T, tables.N, tables.rowmin, tables.groupmin, places, order, start, STOP, level)
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
    V = (X @ tables.padded.reshape(-1, 6).T).reshape(100, 4, 32)
    codes = np.zeros((100, 4), np.uint16)
    _core.assign(V, tables.T, tables.N, tables.rowmin, tables.groupmin, codes, 2, True, STOP, None, batch)
    assert (tables.outside(codes) == assign_block(X, tables, 2, None, workers)).all()


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
        _core.add_rows(X, codes, sums, level)
        assert (sums == W).all()
        for b in range(C):
            for c in range(C):
                counts = np.zeros((K, K), np.int32)
                _core.count_pairs(codes, b, c, counts, level)
                assert (counts == Z[b, :, c, :]).all()


def test_stop_ends_the_search_early(rng, workers):
    D, X = rng.standard_normal((8, 64, 8)).astype(np.float32), rng.standard_normal((64, 8)).astype(np.float32)
    tables = Tables.of(D, workers)
    V = (X @ tables.padded.reshape(-1, 8).T).reshape(64, 8, 64)
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
    with pytest.raises(ValueError, match="dictionaries, from 0 to C"):
        _core.count_pairs(good, 0, 2, np.zeros((3, 3), np.int32))
    with pytest.raises(ValueError, match="simd_levels"):
        _core.decode(D, good, np.empty((5, 4), np.float32), "mmx")
    tables = Tables.of(D, workers)
    V = np.zeros((5, 2, 16), np.float32)
    arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)
    for order in (-1, 3):
        with pytest.raises(ValueError, match="order must be"):
            _core.assign(V, *arrays, good, order, True, STOP)
    with pytest.raises(ValueError, match="a code is not below"):
        _core.assign(V, *arrays, bad, 1, False, STOP)
    with pytest.raises(ValueError, match="V must have shape"):
        _core.assign(V[:, :, :8].copy(), *arrays, good, 1, True, STOP)
    with pytest.raises(ValueError, match="batch"):
        _core.assign(V, *arrays, good, 1, True, STOP, None, -1)
    with pytest.raises(TypeError):
        _core.decode(D.astype(float), good, np.empty((5, 4), np.float32))

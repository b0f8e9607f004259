"""Group assignment in 16-bit steps against a NumPy twin, bit for bit, and what it may and may not sway."""

import math

import numpy as np
import pytest

import gkmeans as gk
import reference
from conftest import correlated
from gkmeans import _core, dictionaries, steps
from gkmeans._parallel import Workers
from gkmeans.assignment import GroupAssignment, SwiftAssignment
from gkmeans.dictionaries import Tables
from gkmeans.steps import MOST, Steps, fine_enough
from test_products import coarse_twin

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not _core.coarse_products(), reason="this CPU makes no products in bytes"),
]
FINE = 64.0
# (C, K, P, n): less and more than a register of codewords, than the rows of a turn, and none
SHAPES = [
    (2, 2, 1, 5),
    (2, 3, 7, 0),
    (3, 16, 7, 1),
    (4, 255, 16, 63),
    (4, 256, 64, 64),
    (5, 257, 20, 65),
    (8, 33, 784, 121),
    (17, 16, 32, 241),
]


def swift(rounds=0, seed=0, in_turn=False):
    return SwiftAssignment(rounds, GroupAssignment(1), seed, in_turn=in_turn)


def alone(X, tables):
    """The cost of each codeword alone (n, C, Ks), in whole steps above the least of its dictionary."""
    C, K, P = tables.D.shape
    Ks = tables.steps.N.shape[1]
    padded = np.zeros((C, Ks, P), np.float32)
    padded[:, :K] = tables.D
    products = coarse_twin(X, padded).transpose(1, 0, 2)
    cost = tables.steps.N - products * np.float32(tables.steps.each)
    return np.rint(np.minimum(cost - cost.min(axis=2, keepdims=True), np.float32(2 * MOST))).astype(int)


def costs(S, T, code, left_out=()):
    """The cost of each codeword (C, Ks) beside the codes of a row but those left out."""
    return S + sum(T[b, code[b]] for b in range(len(S)) if b not in left_out)


def refined(S, T, code, last, clean):
    """Sweeps from the dictionary after ``last`` on, whose own code is the best there is where ``clean``."""
    visit = 0
    while clean < len(S) and visit < 100 * len(S):
        visit, clean = visit + 1, clean + 1
        c = (last + visit) % len(S)
        v = costs(S, T, code)[c]
        if v.min() < v[code[c]]:
            code[c], clean = v.argmin(), 1
    return code


def total(S, T, code):
    return (costs(S, T, code) + S)[range(len(S)), code].sum()


def drawn(code, count, seed):
    """A random order of the dictionaries, and the state of the draws."""
    state, order = seed, list(range(len(code)))
    for k in code:
        state = reference.mixed(state ^ int(k))
    for x in range(count):
        state, y = reference.drawn(state, len(code) - x)
        order[x], order[x + y] = order[x + y], order[x]
    return order, state


def turn(C, r):
    """The dictionaries in the order of round r of 2 C: neighbours, downwards and then upwards."""
    stride = max(1, C // 2 - 1)
    while math.gcd(stride, C) > 1:
        stride += 1
    first = C // 2 + r % C * stride
    return [(first + (-x if r < C else x)) % C for x in range(C)]


def chosen_anew(S, T, code, K, seed, r, in_turn):
    C = len(S)
    count = max(min(C // 2, 16), min(C, 3))
    in_turn = in_turn and r < 2 * C
    order, state = drawn(code, 0 if in_turn else count, seed)
    if in_turn:
        order = turn(C, r)
    code = code.copy()
    if in_turn and r < min(C, 8):
        v = costs(S, T, code, order[:count])[order[0]]
        v[code[order[0]]] = 32767
        code[order[0]] = min(v.argmin(), K - 1)
    else:
        _, code[order[0]] = reference.drawn(state, K)
    for x in range(1, count):
        code[order[x]] = costs(S, T, code, order[x:count])[order[x]].argmin()
    return refined(S, T, code, order[count - 1], count > 1)


def twin(S, T, K, given=None, rounds=0, seed=0, in_turn=False):
    """Codes of one row."""
    code = np.zeros(len(S), int)
    for c in range(len(S)):
        code[c] = costs(S, T, code, range(c, len(S)))[c].argmin() if given is None else given[c]
    best = refined(S, T, code, len(S) - 1, given is None)
    for r in range(rounds):
        seeded = reference.mixed((seed + r) % 2**64)
        new = chosen_anew(S, T, best, K, seeded, r, in_turn)
        if total(S, T, new) < total(S, T, best):
            best = new
    return best


def made(rng, C, K, P, n, workers):
    X, D = correlated(rng, n, P), rng.standard_normal((C, K, P)).astype(np.float32)
    tables = Tables.in_steps(D, workers, FINE)
    assert tables is not None
    return X, tables


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_codes_are_those_of_the_twin(shape, rounds, rng, workers):
    X, tables = made(rng, *shape, workers)
    found = swift(rounds, 3).codes(X, tables, None, workers)
    T, S = tables.steps.T.astype(int), alone(X, tables)
    expected = [twin(row, T, shape[1], None, rounds, 3) for row in S]
    np.testing.assert_array_equal(found, np.reshape(expected, found.shape))


@pytest.mark.parametrize("shape", [(6, 16, 7, 20), (2, 1, 1, 1), *SHAPES], ids=str)
@pytest.mark.parametrize("rounds", [1, 3, 20])
def test_codes_by_rounds_in_turn_are_those_of_the_twin(shape, rounds, rng, workers):
    C, K, P, n = shape
    X, tables = made(rng, C, K, P, min(n, 70), workers)
    found = swift(rounds, 3, in_turn=True).codes(X, tables, None, workers)
    T, S = tables.steps.T.astype(int), alone(X, tables)
    expected = [twin(row, T, K, None, rounds, 3, in_turn=True) for row in S]
    np.testing.assert_array_equal(found, np.reshape(expected, found.shape))


@pytest.mark.parametrize("C", [2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 17])
def test_rounds_in_turn_start_at_every_dictionary_once_in_each_direction(C):
    for first in (0, C):
        assert sorted(turn(C, r)[0] for r in range(first, first + C)) == list(range(C))
    assert turn(8, 0) == [4, 3, 2, 1, 0, 7, 6, 5]
    assert turn(8, 1)[:4] == [7, 6, 5, 4]
    assert turn(8, 9)[:4] == [7, 0, 1, 2]


def test_few_rounds_in_turn_lower_the_distortion_more_than_drawn_ones(workers):
    sample = gk.datasets.load_sample()
    est = gk.GroupKMeans(4, 64, init="random", max_iter=8, random_state=0).fit(sample.learn[:8000])
    X, tables = sample.base[:3000].astype(np.float32), Tables.in_steps(est.dictionaries_, workers, FINE)
    for rounds in (2, 4):
        drawn_ones, in_turn = (
            reference.distortion(X, est.dictionaries_, swift(rounds, 0, way).codes(X, tables, None, workers))
            for way in (False, True)
        )
        assert in_turn < drawn_ones


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_codes_given_are_where_it_starts(shape, rng, workers):
    X, tables = made(rng, *shape, workers)
    given = rng.integers(0, shape[1], (shape[3], shape[0])).astype(np.uint8 if shape[1] <= 256 else np.uint16)
    before = given.copy()
    found = swift(2).codes(X, tables, given, workers)
    T, S = tables.steps.T.astype(int), alone(X, tables)
    expected = [twin(row, T, shape[1], code, 2) for row, code in zip(S, given, strict=True)]
    np.testing.assert_array_equal(found, np.reshape(expected, found.shape))
    np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize(("C", "K"), [(2, 3), (4, 16), (3, 256), (5, 257), (17, 7)])
def test_steps_are_the_table_rounded(C, K, rng, workers):
    D = rng.standard_normal((C, K, 12)).astype(np.float32)
    D[:, :, 0] *= 2
    exact, found = Tables.of(D, workers, 1), Tables.in_steps(D, workers, FINE).steps
    T = np.rint(exact.T * np.float32(found.each)).astype(int)
    T[range(C), range(C)] = 0
    np.testing.assert_array_equal(found.T[..., :K], T[..., :K].transpose(1, 2, 0, 3))
    assert not found.T[..., K:].any()
    np.testing.assert_array_equal(found.N[:, :K], exact.N[:, :K] * np.float32(found.each))
    assert np.isinf(found.N[:, K:]).all()
    assert found.T.shape[3] % steps.SHORTS == 0


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("kind", ["alike", "opposed", "one long", "far rows", "apart"])
def test_no_sum_leaves_16_bits(kind, in_turn, rng, workers):
    D = rng.standard_normal((6, 32, 8)).astype(np.float32)
    X = correlated(rng, 50, 8)
    if kind == "alike":
        D[:] = D[0, 0]
    elif kind == "opposed":
        D[::2], D[1::2] = np.abs(D[0, 0]), -np.abs(D[0, 0])
    elif kind == "one long":
        D[0, 0] *= 3
    elif kind == "apart":  # codewords cost far more alone than they meet each other
        for c in range(6):
            D[c, :, np.arange(8) != c] *= 0.02
    else:
        X *= 1000
    tables = Tables.in_steps(D, workers, FINE)
    T, S = tables.steps.T.astype(int), alone(X, tables)
    together = np.maximum(T.max(axis=1), 0).sum(axis=0), np.minimum(T.min(axis=1), 0).sum(axis=0)  # (C, Ks) each
    assert max(together[0].max(), -together[1].min()) <= MOST
    assert 0 <= S.min() <= S.max() <= 2 * MOST
    assert 3 * MOST <= 32767
    found = swift(4, in_turn=in_turn).codes(X, tables, None, workers)
    np.testing.assert_array_equal(found, [twin(row, T, 32, None, 4, in_turn=in_turn) for row in S])
    chosen = np.take_along_axis(S, found[:, :, None].astype(int), axis=2)
    assert chosen.max() < 2 * MOST  # what costs too much to be told apart is never chosen


def test_a_row_alone_has_the_codes_it_has_among_others(rng, workers):
    X, tables = made(rng, 4, 40, 16, 300, workers)
    together = swift(3, 5).codes(X, tables, None, workers)
    for i in (0, 1, 119, 120, 299):
        np.testing.assert_array_equal(swift(3, 5).codes(X[i : i + 1], tables, None, workers)[0], together[i])


def test_more_rounds_lower_the_distortion_and_seeds_differ(rng, workers):
    X, tables = made(rng, 8, 64, 32, 400, workers)
    by_rounds = [swift(r).codes(X, tables, None, workers) for r in (0, 2, 8, 32)]
    error = [((X - reference.decode(tables.D, codes)) ** 2).sum() for codes in by_rounds]
    assert (np.diff(error) < 0).all()
    assert (swift(8, 1).codes(X, tables, None, workers) != by_rounds[2]).any()


@pytest.mark.parametrize("shared", [0.0, 0.02, 0.5])
def test_rounds_help_however_little_the_dictionaries_meet(shared, rng, workers):
    X = correlated(rng, 400, 24)
    D = shared * rng.standard_normal((3, 32, 24)).astype(np.float32)
    for c in range(3):
        D[c, :, 8 * c : 8 * c + 8] += X[rng.permutation(400)[:32], 8 * c : 8 * c + 8]
    tables = Tables.in_steps(D, workers, FINE)
    error = [((X - reference.decode(D, swift(r).codes(X, tables, None, workers))) ** 2).sum() for r in (0, 8, 64)]
    assert error[2] <= 1.002 * error[1] <= 1.004 * error[0]
    assert shared < 0.1 or error[2] < 0.999 * error[0]


def test_codes_cost_hardly_more_than_by_exact_order_1(rng, workers):
    X = correlated(rng, 2000, 64)
    D = np.stack([X[rng.permutation(2000)[:64]] for _ in range(4)]) / 2
    tables, exact = Tables.in_steps(D, workers, FINE), GroupAssignment(1)
    ends = [
        swift().codes(X, tables, None, workers),
        exact.codes(X, exact.tables(D, workers), None, workers),
    ]
    error = [((X - reference.decode(D, codes)) ** 2).sum() for codes in ends]
    assert error[0] == pytest.approx(error[1], rel=5e-3)


@pytest.mark.parametrize("kind", ["one dictionary", "uneven", "too coarse", "too large", "no codewords"])
def test_other_dictionaries_are_left_to_floats(kind, rng, workers, monkeypatch):
    D = rng.standard_normal((1 if kind == "one dictionary" else 3, 16, 400)).astype(np.float32)
    if kind == "uneven":
        D[:, :, 0] = 1e4
    elif kind == "too coarse":
        D[0, 0], D[1, 0] = 300 * D[0, 0], 300 * D[0, 0]
    elif kind == "too large":
        monkeypatch.setattr(dictionaries, "TABLE_BYTES", 0)
    elif kind == "no codewords":
        D[:] = 0
    assert Tables.in_steps(D, workers, FINE) is None
    way = SwiftAssignment(3, GroupAssignment(1, rounds=2, seed=4), 9)
    tables, X = way.tables(D, workers), correlated(rng, 30, 400)
    np.testing.assert_array_equal(way.codes(X, tables, None, workers), way.otherwise.codes(X, tables, None, workers))


def test_dictionaries_that_do_not_meet_have_steps(workers):
    found = Steps.of(np.zeros((2, 2, 3, 16), np.float32), np.full((2, 16), 100, np.float32), workers, FINE)
    assert found is not None
    assert not found.T.any()
    assert found.each == steps.FINEST / 100


@pytest.mark.parametrize("size", [1e-36, 3e38])
def test_steps_that_are_no_numbers_are_refused(size, workers):
    T, N = np.zeros((2, 2, 3, 16), np.float32), np.full((2, 16), size, np.float32)
    N[0, 0] *= 1.1  # infinite, or far too small to be told in steps
    assert Steps.of(T, N, workers, FINE) is None


def test_steps_are_as_fine_as_asked_for(workers, rng):
    D = rng.standard_normal((4, 16, 8)).astype(np.float32)
    exact = Tables.of(D, workers, 1)
    found = Steps.of(exact.T, exact.N, workers, FINE)
    steps_of_one = found.each * float(np.median(exact.N[:, :16]))
    assert Steps.of(exact.T, exact.N, workers, 0.99 * steps_of_one) is not None
    assert Steps.of(exact.T, exact.N, workers, 1.01 * steps_of_one) is None
    assert fine_enough(0.5) == 64
    assert fine_enough(0.01) == pytest.approx(495)
    assert fine_enough(0) == np.inf


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_rows_that_are_no_numbers_get_codes_all_the_same(value, in_turn, rng, workers):
    _, tables = made(rng, 3, 20, 8, 1, workers)
    X = np.full((3, 8), value, np.float32)
    assert (swift(9, in_turn=in_turn).codes(X, tables, None, workers) < 20).all()


def test_it_stops_when_told(rng):
    with Workers(1) as workers:
        X, tables = made(rng, 4, 16, 8, 50, workers)
        given = rng.integers(0, 16, (50, 4)).astype(np.uint16)
        workers.stop[0] = 1
        np.testing.assert_array_equal(swift(9).codes(X, tables, given, workers), given)


def test_shapes_that_do_not_fit_are_refused(rng, workers):
    X, tables = made(rng, 3, 16, 8, 5, workers)
    s, packed, stop = tables.steps, tables.products.coarse, np.zeros(1, np.int32)
    codes = np.zeros((5, 3), np.uint16)
    good = {"X": X, "packed": packed, "T": s.T, "N": s.N, "each": s.each, "codes": codes, "start": True, "stop": stop}
    _core.swift_assign(**good)
    for bad in (
        {"X": X[:4].copy()},
        {"X": correlated(rng, 5, 9)},
        {"packed": packed[:2]},
        {"T": s.T[:2]},
        {"T": np.ascontiguousarray(s.T[..., :16])},
        {"T": np.ascontiguousarray(s.T[:, :, :2])},
        {"N": s.N[:, :16].copy()},
        {"codes": codes[:, :2].copy()},
        {"stop": np.zeros(2, np.int32)},
        {"rounds": -1},
        {"codes": np.full((5, 3), 16, np.uint16), "start": False},
    ):
        with pytest.raises(ValueError, match=r"must|not below"):
            _core.swift_assign(**(good | bad))
    T, out = np.zeros((3, 16, 16), np.float32), np.zeros((3, 16, 3, 32), np.int16)
    for call in (
        lambda: _core.swift_pack(T, 3, 1.0, out),
        lambda: _core.swift_pack(T, -1, 1.0, out),
        lambda: _core.swift_pack(T, 0, 1.0, out[:2]),
        lambda: _core.swift_pack(T, 0, 1.0, np.zeros((3, 16, 3, 15), np.int16)),
        lambda: _core.swift_pack(T[:, :, :15].copy(), 0, 1.0, out),
    ):
        with pytest.raises(ValueError, match="must"):
            call()

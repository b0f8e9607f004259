"""Sums and deals that are the same in whatever parts they are made, by hand and for random parts."""

import math
import threading
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

import gkmeans as gk
from conftest import correlated, same_bits
from gkmeans._frame import Frame
from gkmeans._parallel import Workers, block_rows
from gkmeans._rows import Part, Residual, Rows
from gkmeans._sums import dealt, exact, grid_for, rounded
from gkmeans.update import Statistics


def test_the_grid_leaves_room_for_n_of_the_largest():
    # 8 entries of 1 reach a little more than 8 = 2³, so steps are 2⁴⁻⁵²; a column of zeros has any grid
    assert grid_for(np.array([1.0, 0.5, 0.0]), 8).tolist() == [2.0**-48, 2.0**-49, 2.0**-48]


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_sums_on_the_grid_are_exact_in_any_order(unit, rng):
    X = (rng.standard_normal((5000, 3)) * 10.0 ** rng.integers(-6, 3, (5000, 1)) * unit).astype(np.float32)
    grid = grid_for(np.abs(X).max(axis=0).astype(float), len(X))
    Y = np.round(X.astype(float) / grid) * grid
    expected = [math.fsum(column) for column in Y.T]
    for order in (np.arange(5000), rng.permutation(5000), np.argsort(X[:, 0])):
        parts = np.split(Y[order], [17, 2000, 4999])
        assert sum(part.sum(axis=0) for part in parts).tolist() == expected
    np.testing.assert_allclose(Y.sum(axis=0), X.sum(axis=0, dtype=float), rtol=1e-9, atol=1e-9 * unit)


def test_counts_of_more_points_than_32_bits_hold_add_up():
    one = Statistics.of(np.zeros((2, 1)), np.zeros((2, 2), np.uint8))
    [pair] = one.Z
    many = Statistics(one.counts + 2**30, {pair: one.Z[pair] + np.int32(2**30)}, one.W, one.groups)
    found = many + many
    assert found.Z[pair].tolist() == [[2**31 + 4]]
    assert found.counts.tolist() == [[2**31 + 4]] * 2
    assert (one + one).Z[pair].dtype == np.int32


@pytest.mark.parametrize("special", [[], [0.0, 1e-45, 1e-38, 3e38, 3e38]])
def test_a_total_is_rounded_once(special, rng):
    values = np.concatenate([rng.random(999) * 10.0 ** rng.integers(-30, 30, 999), special]).astype(np.float32)
    assert Fraction(exact(values), 2**149) == sum(Fraction(float(value)) for value in values)
    parts = np.split(rng.permutation(values), [3, 500])
    assert rounded(map(exact, parts)) == math.fsum(values.astype(float))
    assert rounded([]) == 0


def test_rows_are_dealt_evenly_and_the_same_in_parts():
    whole = dealt(10_000, 4, 5)
    for start in (0, 4096, 8192):
        assert (np.ptp(np.bincount(whole[start : start + 4096])) <= 1).all()
        assert (whole[start:] == dealt(10_000 - start, 4, 5, start)).all()
    assert not np.array_equal(whole, dealt(10_000, 4, 6))
    assert not np.array_equal(whole[:4096], whole[4096:8192])
    assert dealt(0, 4, 5).shape == (0,)
    assert not dealt(9, 1, 5).any()


@pytest.mark.parametrize("width", [1, 3, 700, 768, 2048, 12 * 256, 1 << 21, 1 << 30])
def test_blocks_divide_4096_rows(width):
    assert 4096 % block_rows(width) == 0
    assert block_rows(2048) == block_rows(1) == 1024
    assert block_rows(4096) == 512


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_of_parts_add_to_those_of_all_rows(dtype, scale, rng):
    X = (rng.standard_normal((5000, 7)) * 10.0 ** np.arange(-3, 4) + 2).astype(dtype) * dtype(scale)
    codes = rng.integers(0, 5, (5000, 2)).astype(np.uint8)
    with Workers(2) as workers:
        rows = Rows(X, Frame.of(X, workers))
        for source in (rows, Residual(rows, rng.standard_normal((2, 5, 7)).astype(np.float32), codes[::-1])):
            whole = Statistics.collect(source, codes, 5, (slice(0, 2),), workers)
            for cut in ([1], [1000, 1001], list(range(500, 5000, 500))):
                places = [np.sort(part) for part in np.split(rng.permutation(5000), cut)]
                parts = [
                    Statistics.collect(Part(source, part), codes[part], 5, (slice(0, 2),), workers) for part in places
                ]
                added = parts[0]
                for part in parts[1:]:
                    added = added + part
                assert (added.W == whole.W).all()
                assert (added.Z[0, 1] == whole.Z[0, 1]).all()


@pytest.mark.parametrize("size", [64, 1024, 4096])
def test_blocks_of_some_rows_do_not_depend_on_the_chunk_they_lie_in(size, rng):
    rows = Rows(np.zeros((10_000, 1)), Frame(np.zeros(1, np.float32)))
    some = np.flatnonzero(rng.random(10_000) < 0.4)
    whole = [some[slice(*span)].tolist() for span in Part(rows, some).spans(size)]
    apart = []
    for first, stop in ((0, 4096), (4096, 10_000)):
        own, chunk = some[(some >= first) & (some < stop)], rows.take(np.arange(first, stop))
        apart += [own[slice(*span)].tolist() for span in Part(chunk, own - first).spans(size)]
    assert whole == apart
    assert sorted(row for block in whole for row in block) == some.tolist()
    assert max(map(len, whole)) <= size


@pytest.mark.parametrize("size", [4096, 8192])
@pytest.mark.parametrize("init", ["random", "kmeans", "hierarchical"])
def test_chunks_of_any_size_give_the_same_bits(init, size, rng, monkeypatch):
    X = correlated(rng, 13_000, 5)
    monkeypatch.setattr("gkmeans.estimators.relaxing.HELD_ROWS", 64)
    monkeypatch.setattr(gk.GroupKMeans, "_relaxing_pays", lambda self, *rest: True)
    monkeypatch.setattr(gk.GroupKMeans, "_leading", lambda self, *rest: None)
    make = partial(gk.GroupKMeans, 3, 8, init=init, max_iter=5, init_iter=2, random_state=0, relaxation=0.5)
    expected = make().fit(X)
    monkeypatch.setattr("gkmeans._rows.CHUNK_ROWS", size)
    assert same_bits(make().fit(X), expected)
    assert same_bits(make().fit(np.asfortranarray(X)), expected)


def test_workers_here_are_the_calling_thread():
    with Workers(4, here=True) as workers:
        assert workers.n_jobs == 1
        assert workers.map(lambda _: threading.get_ident(), range(3)) == 3 * [threading.get_ident()]
        with pytest.raises(ZeroDivisionError):
            workers.map(lambda item: 1 // item, [1, 0])


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 9, 120])
def test_small_items_give_their_results_in_order(count):
    with Workers(2) as workers:
        assert workers.map_small(lambda item: item * item, range(count)) == [item * item for item in range(count)]

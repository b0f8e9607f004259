"""Sums and draws that are the same in whatever parts they are made, by hand and for random parts."""

import math
from fractions import Fraction

import numpy as np
import pytest

from gkmeans._elsewhere import drawn, total
from gkmeans._parallel import Workers, block_rows
from gkmeans._rows import Frame, Part, Residual, Rows
from gkmeans._sums import dealt, draws, exact, grid_for, rounded, snapped
from gkmeans.update import Statistics


def test_the_grid_leaves_room_for_n_of_the_largest():
    # 8 entries of 1 reach a little more than 8 = 2³, so steps are 2⁴⁻⁵²; a column of zeros has any grid
    assert grid_for(np.array([1.0, 0.5, 0.0]), 8).tolist() == [2.0**-48, 2.0**-49, 2.0**-48]
    assert snapped(np.array([[0.3, -0.3, 7.0]]), np.array([0.25, 1.0, 4.0])).tolist() == [[0.25, 0.0, 8.0]]


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_sums_on_the_grid_are_exact_in_any_order(unit, rng):
    X = (rng.standard_normal((5000, 3)) * 10.0 ** rng.integers(-6, 3, (5000, 1)) * unit).astype(np.float32)
    Y = snapped(X, grid_for(np.abs(X).max(axis=0).astype(float), len(X)))
    expected = [math.fsum(column) for column in Y.T]
    for order in (np.arange(5000), rng.permutation(5000), np.argsort(X[:, 0])):
        parts = np.split(Y[order], [17, 2000, 4999])
        assert sum(part.sum(axis=0) for part in parts).tolist() == expected
    np.testing.assert_allclose(Y.sum(axis=0), X.sum(axis=0, dtype=float), rtol=1e-9, atol=1e-9 * unit)


@pytest.mark.parametrize("special", [[], [0.0, 1e-45, 1e-38, 3e38, 3e38]])
def test_a_total_is_rounded_once(special, rng):
    values = np.concatenate([rng.random(999) * 10.0 ** rng.integers(-30, 30, 999), special]).astype(np.float32)
    assert Fraction(exact(values), 2**149) == sum(Fraction(float(value)) for value in values)
    parts = np.split(rng.permutation(values), [3, 500])
    assert rounded(map(exact, parts)) == total(values[:, None]) == math.fsum(values.astype(float))
    assert rounded([]) == 0


def test_draws_of_parts_are_those_of_the_whole(rng):
    weights = np.where(rng.random(10_000) < 0.3, 0, rng.random(10_000)).astype(np.float32)
    keys, places = draws(weights, 50, 3)
    parts = [draws(weights[a:b], 50, 3, a) for a, b in ((0, 4096), (4096, 8192), (8192, 10_000))]
    merged = np.concatenate([part[1] for part in parts])[np.argsort(np.concatenate([part[0] for part in parts]))][:50]
    assert (places == merged).all()
    assert (places == drawn(weights[:, None], 0, 50, 3)).all()
    assert (weights[places] > 0).all()
    assert len(set(places.tolist())) == 50
    assert (np.diff(keys) >= 0).all()
    assert not np.array_equal(places, draws(weights, 50, 4)[1])
    assert len(draws(np.zeros(9, np.float32), 5, 0)[1]) == 0


def test_rows_are_drawn_by_their_weight():
    weights = np.array([1, 2, 0, 5], np.float32)
    first = [int(draws(weights, 1, seed)[1][0]) for seed in range(4000)]
    np.testing.assert_allclose(np.bincount(first, minlength=4) / 4000, weights / 8, atol=0.03)


def test_rows_are_dealt_evenly_and_the_same_in_parts():
    whole = dealt(10_000, 4, 5)
    assert sorted(np.concatenate(whole).tolist()) == list(range(10_000))
    assert [len(part) for part in whole] == [2500] * 4
    later = dealt(10_000 - 4096, 4, 5, 4096)
    for part, rest in zip(whole, later, strict=True):
        assert (np.diff(part) > 0).all()
        assert (part[part >= 4096] - 4096 == rest).all()
    assert [len(part) for part in dealt(0, 4, 5)] == [0] * 4


@pytest.mark.parametrize("width", [1, 3, 700, 768, 2048, 12 * 256, 1 << 21, 1 << 30])
def test_blocks_divide_4096_rows(width):
    assert 4096 % block_rows(width) == 0
    assert block_rows(2048) == 1024


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
                places = np.split(rng.permutation(5000), cut)
                parts = [
                    Statistics.collect(Part(source, part), codes[part], 5, (slice(0, 2),), workers) for part in places
                ]
                added = parts[0]
                for part in parts[1:]:
                    added = added + part
                assert (added.W == whole.W).all()
                assert (added.Z[0, 1] == whole.Z[0, 1]).all()


def test_the_frame_and_the_energy_do_not_depend_on_the_order_of_rows(rng):
    X = rng.standard_normal((9000, 5)).astype(np.float32) * 100 + 1000
    with Workers(2) as workers:
        for other in (rng.permutation(X), X[::-1], np.asfortranarray(X)):
            one, two = Frame.of(X, workers), Frame.of(other, workers)
            assert (one.shift == two.shift).all()
            assert (one.largest == two.largest).all()
            assert Rows(X, one).energy(workers) == Rows(other, two).energy(workers)
        assert Rows(X, one).energy(workers) == pytest.approx((X.astype(float) ** 2).sum(), rel=1e-7)

"""Products by the matrix unit, fused and by BLAS, the minima of T and the order of its codewords, against NumPy."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from conftest import whole
from gkmeans import _core
from gkmeans.dictionaries import Block, Dictionaries, similar_order
from gkmeans.products import NARROW, UNEVEN, Products, even_enough, tiled

pytestmark = pytest.mark.native
with_unit = pytest.mark.skipif(not _core.matrix_unit(), reason="this CPU has no matrix unit")
fused = pytest.mark.skipif(not _core.fused_products(), reason="this CPU has no fused multiply-add")
in_bytes = pytest.mark.skipif(not _core.coarse_products(), reason="this CPU makes no products in bytes")
# (G, n, m, P): whole panels of 32 × 32 × 32, less than one, a little more, none
SHAPES = [
    (1, 0, 16, 32),
    (1, 1, 16, 31),
    (2, 32, 32, 32),
    (3, 33, 48, 33),
    (1, 65, 37, 784),
    (17, 31, 16, 64),
    (2, 300, 272, 100),
    (1, 257, 1, 24),
]


def all_ways(D):
    """By the unit or fused, where the CPU has them, and by BLAS."""
    fused = [Products(D, tiles=tiled(D))] if _core.fused_products() else []
    return [Products.with_all(D), *fused, Products(D)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_whole_numbers_are_exact(shape, rng):
    G, n, m, P = shape
    X, D = whole(rng, n, P, low=-100, high=101), whole(rng, G, m, P, low=-100, high=101)
    expected = np.einsum("np,gmp->gnm", X.astype(np.int64), D.astype(np.int64))
    for products in all_ways(D):
        np.testing.assert_array_equal(products.into(X, np.full((G, n, m), np.nan, np.float32)), expected)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[3] <= 100], ids=str)
@pytest.mark.parametrize("long", ["rows", "codewords"])
def test_products_of_long_with_short_whole_numbers_are_exact(shape, long, rng):
    G, n, m, P = shape  # long ones have low halves
    bounds = {"rows": (1 << 13, 8), "codewords": (8, 1 << 13)}[long]
    X, D = (whole(rng, *size, low=-b, high=b) for size, b in zip([(n, P), (G, m, P)], bounds, strict=True))
    expected = np.einsum("np,gmp->gnm", X.astype(np.int64), D.astype(np.int64))
    for products in all_ways(D):
        np.testing.assert_array_equal(products.into(X, np.empty((G, n, m), np.float32)), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_products_of_any_numbers_err_by_little(shape, scale, rng):
    G, n, m, P = shape
    X = (scale * rng.standard_normal((n, P)) * np.exp(3 * rng.standard_normal(P))).astype(np.float32)
    D = rng.standard_normal((G, m, P)).astype(np.float32)
    expected = np.einsum("np,gmp->gnm", X.astype(float), D.astype(float))
    bound = 2.0**-15 * np.sqrt(np.einsum("np,gmp->gnm", X.astype(float) ** 2, D.astype(float) ** 2))
    for products in all_ways(D):
        found = products.into(X, np.empty((G, n, m), np.float32))
        assert (np.abs(found - expected) <= bound).all()


@pytest.mark.parametrize("P", [3, 50])
def test_a_row_alone_has_the_products_it_has_among_others(P, rng):
    X, D = rng.standard_normal((70, P)).astype(np.float32), rng.standard_normal((3, 40, P)).astype(np.float32)
    # BLAS rounds the rows at the end of a block in another way
    for products in [way for way in all_ways(D) if way.packed is not None or way.tiles is not None]:
        together = products.into(X, np.empty((3, 70, 40), np.float32))
        for i in (0, 31, 32, 69):
            np.testing.assert_array_equal(
                products.into(X[i : i + 1], np.empty((3, 1, 40), np.float32))[:, 0], together[:, i]
            )


@fused
def test_fused_products_add_in_the_order_of_the_columns(rng):
    X, D = rng.standard_normal((20, 9)).astype(np.float32), rng.standard_normal((2, 37, 9)).astype(np.float32)
    expected = np.zeros((2, 20, 37), np.float32)
    for p in range(9):  # a product of floats is exact in doubles, and so is almost every sum: rounded once
        expected = (X[:, p].astype(float)[None, :, None] * D[:, None, :, p] + expected).astype(np.float32)
    np.testing.assert_array_equal(Products(D, tiles=tiled(D)).into(X, np.empty((2, 20, 37), np.float32)), expected)


@fused
def test_shapes_that_do_not_fit_fused_products_are_refused(rng):
    X, D = whole(rng, 5, 40), whole(rng, 2, 16, 40)
    tiles, out = tiled(D), np.empty((2, 5, 16), np.float32)
    for A, B, target, first in [
        (X[:, :32].copy(), tiles, out, 0),
        (X, tiles[:1], out, 0),
        (X, tiles[..., :16].copy(), out, 0),
        (X, tiles, np.empty((2, 5, 33), np.float32), 0),
        (X, tiles, out, 1),
        (X, tiles, out, -1),
    ]:
        with pytest.raises(ValueError, match=r"must have shape|no n rows"):
            _core.multiply_tiles(A, B, target, first)


def test_products_fill_the_rows_asked_for_and_no_others(rng):
    X, D = whole(rng, 5, 40), whole(rng, 2, 33, 40)
    for products in all_ways(D):
        out = np.full((2, 9, 33), np.nan, np.float32)
        products.into(X, out, 3)
        np.testing.assert_array_equal(out[:, 3:8], np.matmul(X, D.transpose(0, 2, 1)))
        assert np.isnan(out[:, [0, 1, 2, 8]]).all()


def test_narrow_rows_do_not_go_to_the_unit(rng):
    assert Products.with_all(whole(rng, 2, 16, NARROW - 1)).packed is None
    wide = Products.with_all(whole(rng, 2, 16, NARROW))
    assert (wide.packed is not None) == _core.matrix_unit()
    assert (wide.tiles is not None) == (_core.fused_products() and not _core.matrix_unit())


@with_unit
def test_shapes_that_do_not_fit_are_refused(rng):
    X, D = whole(rng, 5, 40), whole(rng, 2, 16, 40)
    packed = Products.with_all(D).packed
    out = np.empty((2, 5, 16), np.float32)
    for A, B, target, first in [
        (X[:, :32].copy(), packed, out, 0),
        (X, packed[:1], out, 0),
        (X, packed[:, :-32].copy(), out, 0),
        (X, packed, np.empty((2, 5, 48), np.float32), 0),
        (X, packed, out, 1),
        (X, packed, out, -1),
    ]:
        with pytest.raises(ValueError, match=r"must have shape|no n rows"):
            _core.multiply(A, B, target, first)
    with pytest.raises(ValueError, match="packed_size"):
        _core.pack(D[0], packed[0, :-2].copy())


def levels(X):
    """Rows rounded to whole levels, and the size of a level of each."""
    size = np.abs(X).max(axis=-1, initial=0).astype(np.float32) / np.float32(127)
    size[size <= np.float32(1e-37)] = 0
    steps = np.divide(np.float32(1), size, out=np.zeros_like(size), where=size > 0)
    return np.clip(np.rint(X * steps[..., None]), -127, 127).astype(np.int64), size


def coarse_twin(X, D):
    (rows, a), (words, b) = levels(X), levels(D)
    return np.einsum("np,gmp->gnm", rows, words).astype(np.float32) * (a[None, :, None] * b[:, None, :])


@in_bytes
@pytest.mark.parametrize(
    "shape", [(1, 0, 16, 7), (1, 1, 16, 1), (2, 6, 64, 4), (3, 65, 48, 33), (1, 300, 272, 784)], ids=str
)
def test_products_in_bytes_are_sums_of_rounded_levels(shape, rng):
    G, n, m, P = shape
    X, D = rng.standard_normal((n, P)).astype(np.float32), rng.standard_normal((G, m, P)).astype(np.float32)
    X[: n // 3] = 0
    X[n // 3 : n // 2] *= 1e-37  # too small for an inverse
    D[0, 0] = 0
    products = Products.with_all(D, coarse=True)
    assert products.coarse is not None
    out = np.full((G, n + 2, m), np.nan, np.float32)
    products.into(X, out, 1)
    np.testing.assert_array_equal(out[:, 1:-1], coarse_twin(X, D))
    assert np.isnan(out[:, [0, -1]]).all()


@in_bytes
def test_products_in_bytes_err_by_a_hundredth_of_their_spread(rng):
    X, D = rng.standard_normal((500, 128)).astype(np.float32), rng.standard_normal((1, 256, 128)).astype(np.float32)
    found, exact = (Products.with_all(D, coarse).into(X, np.empty((1, 500, 256), np.float32)) for coarse in (1, 0))
    assert 0 < (found - exact).std() < 0.015 * exact.std()


@in_bytes
def test_a_row_alone_has_the_products_in_bytes_that_it_has_among_others(rng):
    X, D = rng.standard_normal((70, 50)).astype(np.float32), rng.standard_normal((3, 48, 50)).astype(np.float32)
    products = Products.with_all(D, coarse=True)
    together = products.into(X, np.empty((3, 70, 48), np.float32))
    alone = [products.into(row[None], np.empty((3, 1, 48), np.float32))[:, 0] for row in X]
    np.testing.assert_array_equal(np.stack(alone, axis=1), together)


def test_uneven_numbers_are_not_multiplied_in_bytes(rng):
    D = rng.standard_normal((2, 32, 400)).astype(np.float32)
    assert even_enough(D)
    assert even_enough(np.zeros_like(D))
    D[:, :20, 3] = 4 * UNEVEN
    assert not even_enough(np.concatenate([D[:, :3], np.zeros((2, 13, 400), np.float32)], axis=1))  # filled up
    assert not even_enough(D)
    assert Products.with_all(D, coarse=True).coarse is None
    assert Products.with_all(np.ones((1, 17, 40), np.float32), coarse=True).coarse is None  # not whole registers


@in_bytes
def test_shapes_that_do_not_fit_products_in_bytes_are_refused(rng):
    X, D = whole(rng, 5, 40), whole(rng, 2, 16, 40)
    levels_of = Products.with_all(D, coarse=True).coarse
    out = np.empty((2, 5, 16), np.float32)
    for A, B, target, first in [
        (X[:, :32].copy(), levels_of, out, 0),
        (X, levels_of[:1], out, 0),
        (X, levels_of, np.empty((2, 5, 80), np.float32), 0),
        (X, levels_of, np.empty((2, 5, 15), np.float32), 0),
        (X, levels_of, out, 1),
        (X, levels_of, out, -1),
    ]:
        with pytest.raises(ValueError, match=r"must have shape|no n rows|multiple of 16"):
            _core.coarse_multiply(A, B, target, first)
    with pytest.raises(ValueError, match="coarse_size"):
        _core.coarse_pack(D[0], levels_of[0, :-64])
    shifted = np.empty(levels_of.shape[1] + 65, np.uint8)
    first = -shifted.ctypes.data % 64 + 1
    with pytest.raises(ValueError, match="multiple of 64"):
        _core.coarse_pack(D[0], shifted[first : first + levels_of.shape[1]])


ASK = "from gkmeans import _core; print(_core.matrix_unit(), _core.coarse_products(), _core.fused_products())"


def asked(products):
    environment = {**os.environ, "GKMEANS_PRODUCTS": products}
    return subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True)


def test_the_variable_keeps_to_some_ways():
    unit, coarse, fused = asked("").stdout.split()
    assert asked("blas").stdout.split() == ["False", "False", "False"]
    if fused == "True":
        assert asked("fused").stdout.split() == ["False", "False", "True"]
    else:
        assert "no AVX2 with FMA; use blas" in asked("fused").stderr
    assert (unit == "True") >= _core.matrix_unit()
    assert (coarse == "True") >= _core.coarse_products()


def test_the_variable_can_ask_for_the_unit():
    answer = asked("amx")
    if asked("").stdout.split()[0] == "True":
        assert answer.stdout.split()[0] == "True"
    else:
        assert "no matrix unit; use fused or blas" in answer.stderr


def test_products_that_were_pickled_are_packed_anew(rng):
    X, D = whole(rng, 5, 40), whole(rng, 2, 33, 40)
    products = Products.with_all(D)
    data = pickle.dumps(products)
    assert len(data) < D.nbytes + 1000
    out = [some.into(X, np.empty((2, 5, 33), np.float32)) for some in (products, pickle.loads(data))]
    np.testing.assert_array_equal(*out)
    coarse = Products.with_all(whole(rng, 2, 32, 40), coarse=True)
    assert (pickle.loads(pickle.dumps(coarse)).coarse is not None) == _core.coarse_products()


def test_a_rotation_that_was_used_is_pickled_as_one_that_was_not(rng):
    R = np.linalg.qr(rng.standard_normal((40, 40)))[0].astype(np.float32)
    used, fresh = (Dictionaries((Block(slice(0, 40), slice(0, 1)),), (whole(rng, 1, 3, 40),), R) for _ in range(2))
    turned = used.rotate(whole(rng, 7, 40))
    assert turned.shape == (7, 40)
    assert len(pickle.dumps(used)) == len(pickle.dumps(fresh))
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(used)).rotate(np.eye(40, dtype=np.float32)), used.rotate(np.eye(40, dtype=np.float32))
    )


def test_an_unknown_way_in_the_variable_is_explained():
    assert "GKMEANS_PRODUCTS=abacus is unknown; use amx, fused or blas" in asked("abacus").stderr


@pytest.mark.parametrize(("K", "more"), [*((K, 0) for K in (1, 2, 3, 16, 17, 255, 256, 257, 1000)), (256, 256)])
def test_minima_of_groups_and_rows(K, more, rng, level):
    Kp = -(-K // 16) * 16 + more
    width = 16 * -(-Kp // 256)
    T = np.full((2, 5, Kp), -1e9, np.float32)  # the padding must not count
    T[:, :, :K] = rng.standard_normal((2, 5, K))
    groups, rows = np.empty((2, 5, 16), np.float32), np.zeros((2, 7), np.float32)
    _core.minima(T, K, groups, rows, level)
    edges = np.arange(0, K, width)
    np.testing.assert_array_equal(groups[:, :, : len(edges)], np.minimum.reduceat(T[:, :, :K], edges, axis=2))
    assert (groups[:, :, len(edges) :] == np.inf).all()
    np.testing.assert_array_equal(rows[:, :5], T[:, :, :K].min(axis=2))
    assert (rows[:, 5:] == 0).all()


def test_minima_refuse_shapes_that_do_not_fit():
    T = np.zeros((2, 5, 32), np.float32)
    groups, rows = np.empty((2, 5, 16), np.float32), np.empty((2, 5), np.float32)
    for some in (
        (T, 33, groups, rows),
        (T, 0, groups, rows),
        (T, 32, groups[:1], rows),
        (T, 32, groups, rows[:, :4].copy()),
    ):
        with pytest.raises(ValueError, match="must have shape"):
            _core.minima(*some)


@pytest.mark.parametrize("K", [1, 15, 16, 17, 100, 256, 1000])
def test_the_similar_order_names_every_codeword_once(K, rng):
    D = rng.standard_normal((K, 7)).astype(np.float32)
    np.testing.assert_array_equal(np.sort(similar_order(D, 16)), np.arange(K))


def test_codewords_that_lie_together_get_neighbouring_places(rng):
    heaps = rng.permutation(np.repeat(np.arange(8), 16))
    D = (100 * rng.standard_normal((8, 20))[heaps] + rng.standard_normal((128, 20))).astype(np.float32)
    order = similar_order(D, 16)
    assert [len(set(heaps[order[i : i + 16]])) for i in range(0, 128, 16)] == [1] * 8


def test_equal_codewords_keep_their_order():
    np.testing.assert_array_equal(similar_order(np.ones((40, 3), np.float32), 16), np.arange(40))

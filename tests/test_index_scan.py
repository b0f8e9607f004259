"""The scan against a plain NumPy float scan, bit for bit, at every SIMD level."""

import numpy as np
import pytest

from conftest import LEVELS, whole
from gkmeans import _core, products
from gkmeans.index.lookup import bits_of, lines_of, pack, tiled, unpack
from gkmeans.index.segment import bits, counted, quantize

pytestmark = pytest.mark.native
NONE_I, NONE_F = np.empty(0, np.int64), np.empty(0, np.float32)


def float_scan(codes, ids, tables, bias, norms, floor, mask):
    """Scores and ids of one query's rows in the mask, nearest first, ties by id; sums in float32, in order."""
    scores = np.full(len(codes), bias, np.float32)
    for c in range(codes.shape[1]):
        scores += tables[c, codes[:, c]]
    if norms is not None:
        scores += norms
    scores = np.maximum(scores, np.float32(floor))[mask]
    order = np.lexsort((ids[mask], scores))
    return scores[order], ids[mask][order]


def case(rng, C, K, n, kind=None):
    """Random rows: codes, ids, tables, bias, norms, floor, mask."""
    codes = rng.integers(0, K, (n, C)).astype(np.uint8 if K <= 256 else np.uint16)
    if n > 4 and rng.random() < 0.3:
        codes[n // 2 :] = codes[: n - n // 2]  # duplicates
    ids = rng.permutation(5 * n)[:n].astype(np.int64) if rng.random() < 0.5 else np.arange(n) + 7
    Kp = -(-K // 16) * 16 if K > 256 else 1 << bits_of(K)
    tables = np.zeros((3, C, Kp), np.float32)
    spread = 10.0 ** rng.integers(-3, 4)
    drawn = whole(rng, 3, C, K) if rng.random() < 0.3 else rng.standard_normal((3, C, K)).astype(np.float32)
    tables[:, :, :K] = drawn * np.float32(spread)
    kind = rng.choice(["none", "byte", "float"]) if kind is None else kind
    norms = (np.abs(rng.standard_normal(n)) * spread).astype(np.float32) if kind != "none" else None
    mask = rng.random(n) < rng.choice([1.0, 0.5, 0.05, 0.005])
    if rng.random() < 0.2:
        mask[n // 4 : n // 2] = False  # blocks without any
    bias = (rng.standard_normal(3) * spread).astype(np.float32)
    return codes, ids, tables, bias, norms, kind, float(rng.choice([-np.inf, 0.0])), mask


def shelf(codes, ids, K, norms, kind, mask):
    """What the kernel takes of the rows, and the norms that it adds."""
    levels, byte = quantize(norms, down=kind == "float") if norms is not None and len(norms) else (NONE_F, None)
    used = None if norms is None else norms if kind == "float" else levels[byte] if len(norms) else norms
    counting = len(ids) > 0 and (ids == np.arange(len(ids)) + ids[0]).all()
    first = int(ids[0]) if counting else 0
    rows = (pack(codes, K, byte), counted(mask)[0], NONE_I if counting else ids, first, bits_of(K), levels)
    return (*rows, norms if kind == "float" else NONE_F), used


def check(rng, C, K, n, k, level, kind=None):
    codes, ids, tables, bias, norms, kind, floor, mask = case(rng, C, K, n, kind)
    rows, used = shelf(codes, ids, K, norms, kind, mask)
    scores, found = np.full((3, k), np.inf, np.float32), np.full((3, k), -1, np.int64)
    _core.search(*rows, tables, bias, floor, scores, found, level)
    _core.sort_heaps(scores, found)
    for q in range(3):
        expected, names = float_scan(codes, ids, tables[q], bias[q], used, floor, mask)
        there = min(k, len(names))
        assert (scores[q][:there] == expected[:k]).all()
        assert (found[q][:there] == names[:k]).all()
        assert (found[q][there:] == -1).all()
        limit = float(expected[len(expected) // 2]) if len(expected) else 0.0
        alone = np.full((1, k), np.inf, np.float32), np.full((1, k), -1, np.int64)
        _core.search(*rows, tables[q : q + 1], bias[q : q + 1], floor, *alone, level)
        _core.sort_heaps(*alone)
        assert (alone[0] == scores[q]).all()
        assert (alone[1] == found[q]).all()
        near, who = np.empty(n, np.float32), np.empty(n, np.int64)
        count = _core.within(*rows, tables[q], float(bias[q]), floor, limit, near, who, level)
        inside = expected <= np.float32(limit)
        assert count == inside.sum()
        assert sorted(zip(near[:count], who[:count], strict=True)) == list(
            zip(expected[inside], names[inside], strict=True)
        )


@pytest.mark.parametrize("K", [1, 2, 15, 16, 17, 255, 256, 257, 1000])
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 300])
def test_scan_of_odd_sizes_is_the_float_scan(rng, level, K, n):
    for C in (1, 2, 3, 8):
        for kind in ("none", "byte", "float"):
            check(rng, C, K, n, 5, level, kind)


@pytest.mark.parametrize("level", LEVELS)
def test_scan_is_the_float_scan_in_2000_random_cases(level):
    rng = np.random.default_rng(3)
    for _ in range(2000):
        most = 400 if rng.random() < 0.9 else 6000 if rng.random() < 0.9 else 70_000  # then by halved tables, too
        C, n, k = int(rng.integers(1, 18)), int(rng.integers(0, most)), int(rng.integers(1, 30))
        check(rng, C, int(rng.choice([2, 16, 100, 256, 256, 300])), n, k, level)


def test_scan_of_many_blocks_and_many_dictionaries_is_the_float_scan(rng, level):
    check(rng, 8, 256, 20_000, 10, level)
    check(rng, 16, 256, 20_000, 10, level)
    check(rng, 8, 16, 20_000, 10, level)
    check(rng, 40, 16, 20_000, 10, level)
    check(rng, 64, 256, 20_000, 10, level)
    check(rng, 300, 256, 200, 10, level)  # sums that 16 bits do not hold


@pytest.mark.parametrize("C", [2, 8, 30])
@pytest.mark.parametrize("kind", ["none", "byte", "float"])
def test_scan_by_halved_tables_is_the_float_scan(rng, level, C, kind):
    check(rng, C, 256, 60_000, 10, level, kind)


@pytest.mark.parametrize("C", [4, 30])
def test_tables_whose_halves_say_nothing_lose_nothing(rng, level, C):
    n, tables = 60_000, rng.standard_normal((1, C, 256)).astype(np.float32)
    tables[:, :, 128:] -= 100  # of codewords that no row has: the lesser of each pair
    codes = rng.integers(0, 128, (n, C)).astype(np.uint8)
    rows, _ = shelf(codes, np.arange(n), 256, None, "none", np.ones(n, bool))
    scores, found = np.full((1, 10), np.inf, np.float32), np.full((1, 10), -1, np.int64)
    _core.search(*rows, tables, np.zeros(1, np.float32), -np.inf, scores, found, level)
    _core.sort_heaps(scores, found)
    expected, names = float_scan(codes, np.arange(n), tables[0], 0, None, -np.inf, np.ones(n, bool))
    assert (scores[0] == expected[:10]).all()
    assert (found[0] == names[:10]).all()


@pytest.mark.parametrize("queries", [1, 2])
def test_rows_that_come_nearer_and_nearer_are_all_found(level, queries):
    codes = np.arange(255, -1, -1, dtype=np.uint8).repeat(64)[:, None].repeat(2, axis=1)
    tables = np.arange(256, dtype=np.float32)[None, None].repeat(2, axis=1).repeat(queries, axis=0)
    rows, _ = shelf(codes, np.arange(len(codes)), 256, None, "none", np.ones(len(codes), bool))
    scores, found = np.full((queries, 70), np.inf, np.float32), np.full((queries, 70), -1, np.int64)
    _core.search(*rows, tables, np.zeros(queries, np.float32), 0.0, scores, found, level)
    _core.sort_heaps(scores, found)
    assert (found == np.append(np.arange(255 * 64, 256 * 64), np.arange(254 * 64, 254 * 64 + 6))).all()


@pytest.mark.parametrize("C", [8, 40])
@pytest.mark.parametrize("value", [0.0, 1.5])
def test_of_equal_rows_the_smallest_ids_are_found(level, C, value):
    n, tables = 3000, np.full((1, C, 256), value, np.float32)
    rows, _ = shelf(np.zeros((n, C), np.uint8), np.arange(n)[::-1].copy(), 256, None, "none", np.ones(n, bool))
    scores, found = np.full((1, 5), np.inf, np.float32), np.full((1, 5), -1, np.int64)
    _core.search(*rows, tables, np.zeros(1, np.float32), 0.0, scores, found, level)
    assert sorted(found[0]) == [0, 1, 2, 3, 4]


def test_a_table_entry_that_is_not_a_number_and_not_used_changes_nothing(rng, level):
    codes = rng.integers(0, 255, (2000, 8)).astype(np.uint8)
    tables = rng.standard_normal((1, 8, 256)).astype(np.float32)
    tables[0, :, 255] = np.nan
    rows, _ = shelf(codes, np.arange(2000), 256, None, "none", np.ones(2000, bool))
    scores, found = np.full((1, 5), np.inf, np.float32), np.full((1, 5), -1, np.int64)
    _core.search(*rows, tables, np.zeros(1, np.float32), -np.inf, scores, found, level)
    _core.sort_heaps(scores, found)
    assert (
        found[0] == float_scan(codes, np.arange(2000), tables[0], 0, None, -np.inf, np.ones(2000, bool))[1][:5]
    ).all()


def test_tables_with_infinite_or_huge_entries_do_not_break_the_scan(rng, level):
    codes = rng.integers(0, 256, (100, 2)).astype(np.uint8)
    tables = rng.standard_normal((1, 2, 256)).astype(np.float32)
    for wrong in (np.inf, 3e38):
        tables[0, 0, 7] = wrong
        rows, _ = shelf(codes, np.arange(100), 256, None, "none", np.ones(100, bool))
        scores, found = np.full((1, 5), np.inf, np.float32), np.full((1, 5), -1, np.int64)
        _core.search(*rows, tables, np.zeros(1, np.float32), -np.inf, scores, found, level)
        expected, names = float_scan(codes, np.arange(100), tables[0], 0, None, -np.inf, np.ones(100, bool))
        order = np.lexsort((found[0], scores[0]))
        assert (found[0][order] == names[:5]).all()
        assert (scores[0][order] == expected[:5]).all()


@pytest.mark.parametrize("P", [1, 7, 128])
def test_tables_are_the_products_whatever_the_company(rng, level, P):
    Q, D = rng.standard_normal((9, P)).astype(np.float32), rng.standard_normal((9, 11, P)).astype(np.float32)
    out = np.empty((9, 9 * 16), np.float32)
    _core.products(Q, tiled(D, 16), out, level)
    exact = np.zeros((9, 9, 16))
    exact[:, :, :11] = np.einsum("qp,ckp->qck", Q, D, dtype=float)
    assert np.abs(out.reshape(9, 9, 16) - exact).max() <= P * 2.0**-22 * np.abs(exact).max()
    ordered, wide = np.zeros((9, 9, 16), np.float32), np.empty_like(out)
    for p in range(P):
        ordered[:, :, :11] += Q[:, p, None, None] * D[None, :, :, p]
    _core.products(Q, tiled(D, 16), wide, LEVELS[-1])
    # rounded twice for each term, or fused: the levels that fuse agree
    assert (out == wide).all() or (level == "baseline" and (out == ordered.reshape(9, -1)).all())
    alone = np.empty((1, 9 * 16), np.float32)
    for q in range(9):
        _core.products(Q[q : q + 1], tiled(D, 16), alone, level)
        assert (alone == out[q]).all()


@pytest.mark.parametrize("W", [1, 15, 17, 33, 47, 161])
def test_products_of_any_width_stay_within_their_rows(rng, level, W):
    D = whole(rng, 1, W, 5)
    tiles = products.tiled(D)[0]
    for n in range(14):
        Q = whole(rng, n, 5)
        guarded = np.full((n + 2, W), np.nan, np.float32)
        _core.products(Q, tiles, guarded[1:-1], level)
        np.testing.assert_array_equal(guarded[1:-1], Q @ D[0].T)
        assert np.isnan(guarded[[0, -1]]).all()


@pytest.mark.parametrize("W", [17, 47])
def test_products_are_the_same_bits_at_all_levels_that_fuse(rng, W):
    Q, D = rng.standard_normal((14, 9)).astype(np.float32), rng.standard_normal((1, W, 9)).astype(np.float32)
    found = []
    for level in LEVELS:
        if level != "baseline":
            found.append(np.empty((14, W), np.float32))
            _core.products(Q, products.tiled(D)[0], found[-1], level)
    assert all((one == found[0]).all() for one in found)


@pytest.mark.parametrize("P", [1, 7, 128])
def test_tables_of_whole_numbers_are_exact(rng, level, P):
    Q, D = whole(rng, 9, P), whole(rng, 9, 11, P)
    out = np.empty((9, 9 * 16), np.float32)
    _core.products(Q, tiled(D, 16), out, level)
    assert (out.reshape(9, 9, 16)[:, :, :11] == np.einsum("qp,ckp->qck", Q, D, dtype=float)).all()


@pytest.mark.parametrize("l2", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_tables_of_queries_are_those_of_rows_in_the_frame(rng, level, l2, scale):
    Q, shift = rng.standard_normal((3, 7)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    D = rng.standard_normal((2, 16, 7)).astype(np.float32)
    out, bias, expected = np.empty((3, 32), np.float32), np.empty(3, np.float32), np.empty((3, 32), np.float32)
    _core.tables(Q, shift, scale, l2, tiled(D, 16), out, bias, level)
    x = (Q - shift if l2 else Q) * np.float32(scale)
    _core.products(x * np.float32(-2 if l2 else -1), tiled(D, 16), expected, level)
    exact = (x.astype(float) ** 2).sum(axis=1) if l2 else -(x.astype(float) @ (shift.astype(float) * scale))
    assert (out == expected).all()
    assert (bias == exact.astype(np.float32)).all()


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000])
def test_words_have_the_bits_of_masks_and_of_ids(rng, level, n):
    mask, keep = rng.random(n) < 0.3, rng.random(n) < 0.7
    packed = np.packbits(np.append(mask, np.zeros(-n % 64, bool)), bitorder="little").view(np.uint64)
    out, marked = np.empty(len(packed), np.uint64), np.zeros(len(packed), np.uint64)
    for true in (1, 2, 128, 255):  # what is not 0 is true
        out[:] = 7
        assert _core.pack_mask((mask * np.uint8(true)).view(bool), out, level) == mask.sum()
        assert (out == packed).all()
        assert _core.same_mask((mask * np.uint8(true)).view(bool), out, level)
    ids = np.concatenate([np.flatnonzero(mask) + 7, np.flatnonzero(mask) + 7, [0, 6, n + 7, -(2**63), 2**63 - 1]])
    assert _core.mark_ids(ids, 7, n, counted(keep)[0], marked) == (mask & keep).sum()
    assert (marked == (out & counted(keep)[0])).all()


@pytest.mark.parametrize("n", [1, 64, 65, 2047, 2048, 2049, 32768, 32769, 100_000])
def test_a_mask_that_differs_anywhere_has_other_words(rng, level, n):
    mask = rng.random(n) < 0.3
    words = counted(mask)[0]
    for i in {0, n // 2, n - 1}:
        other = mask.copy()
        other[i] ^= True
        assert not _core.same_mask(other, words, level)
    assert _core.same_mask(mask, words, level)
    with pytest.raises(ValueError, match="words"):
        _core.same_mask(mask, np.append(words, words), level)


def test_values_are_below_a_limit_by_their_size():
    values = np.array([[1, -2], [0.5, 0]], np.float32)
    assert _core.all_below(values, 2.5)
    for wrong in (2.5, -3.0, np.nan, np.inf, -np.inf):
        values[1, 1] = wrong
        assert not _core.all_below(values, 2.5)


def test_blocks_start_at_a_line_of_the_cache(rng):
    for n in (1, 100, 5000):
        assert pack(rng.integers(0, 256, (n, 3)).astype(np.uint8), 256, None).ctypes.data % 64 == 0


@pytest.mark.parametrize("K", [2, 16, 17, 256, 300, 65536])
@pytest.mark.parametrize("C", [1, 2, 5])
def test_packed_codes_come_back_and_take_the_bytes_promised(rng, K, C):
    codes = rng.integers(0, K, (130, C)).astype(np.uint8 if K <= 256 else np.uint16)
    norm = rng.integers(0, 256, 130).astype(np.uint8)
    blocks = pack(codes, K, norm)
    assert blocks.shape == (3, lines_of(C, K) + 1, 64)
    rows = rng.permutation(130)
    assert (unpack(blocks, rows, C, K) == codes[rows]).all()
    assert (blocks.transpose(0, 2, 1).reshape(-1, blocks.shape[1])[:130, -1] == norm).all()


def test_gathered_rows_are_those_of_the_mask(rng):
    codes = rng.integers(0, 256, (200, 3)).astype(np.uint8)
    mask = rng.random(200) < 0.4
    count = int(mask.sum())
    out, rows = np.zeros((-(-count // 64), 3, 64), np.uint8), np.empty(count, np.int64)
    _core.gather(pack(codes, 256, None), counted(mask)[0], out, rows)
    assert (rows == np.flatnonzero(mask)).all()
    assert (out == pack(codes[mask], 256, None)).all()
    assert (bits(counted(mask)[0], 200) == mask).all()


@pytest.mark.parametrize("down", [False, True])
def test_levels_of_norms_are_within_the_error_promised(rng, down):
    for norms in (rng.gamma(2, 100, 1000).astype(np.float32), np.full(3, 7, np.float32), np.zeros(1, np.float32)):
        levels, byte = quantize(norms, down=down)
        step = 2 * (float(norms.max()) - float(norms.min())) / 255
        error = norms.astype(float) - levels[byte]
        assert error.max() <= step * (1 if down else 0.5) * (1 + 1e-5) + 1e-4 * step
        assert error.min() >= (0 if down else -step * 0.5001)


def test_levels_lie_where_norms_are_many(rng):
    norms = np.append(rng.normal(0, 1, 100_000), [-20, 30]).astype(np.float32)
    levels, byte = quantize(norms, down=False)
    even = np.linspace(-20, 30, 256)
    off = np.abs(norms[:, None].astype(float) - even).min(axis=1)
    assert np.square(norms - levels[byte]).mean() < 0.3 * np.square(off).mean()
    assert levels[0] == -20
    assert levels[-1] == 30
    assert (np.diff(levels) <= 2 * 50 / 255 * 1.001).all()


def test_the_kernels_refuse_shapes_that_do_not_fit(rng):
    codes = rng.integers(0, 256, (70, 2)).astype(np.uint8)
    tables, one = np.zeros((1, 2, 256), np.float32), np.zeros(1, np.float32)
    good, _ = shelf(codes, rng.permutation(70), 256, None, "none", np.ones(70, bool))
    out = np.zeros((1, 3), np.float32), np.zeros((1, 3), np.int64)
    _core.search(*good, tables, one, 0.0, *out)
    wrongs = {
        0: good[0][:, :1].copy(),
        1: np.full(2, 2**64 - 1, np.uint64),  # rows past the end of the ids
        2: np.zeros(3, np.int64),
        4: 7,
        5: np.zeros(3, np.float32),
        6: np.zeros(70, np.float32),
    }
    for place, wrong in wrongs.items():
        rows = [*good]
        rows[place] = wrong
        with pytest.raises(ValueError, match=r"must|need"):
            _core.search(*rows, tables, one, 0.0, *out)
    with pytest.raises(ValueError, match="scores and found"):
        _core.search(*good, tables, one, 0.0, out[0], np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match="words must"):
        _core.pack_mask(np.ones(65, bool), np.zeros(1, np.uint64))
    with pytest.raises(ValueError, match="keep must"):
        _core.mark_ids(np.zeros(1, np.int64), 0, 65, np.zeros(1, np.uint64), np.zeros(2, np.uint64))
    with pytest.raises(ValueError, match="shift"):
        _core.tables(np.zeros((1, 4), np.float32), one, 1.0, True, np.zeros((1, 4, 32), np.float32), tables[0, :1], one)
    with pytest.raises(ValueError, match="out must"):
        _core.gather(good[0], good[1], np.zeros((1, 2, 64), np.uint8), np.zeros(70, np.int64))

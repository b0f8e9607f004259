"""The lists of an inverted file: how they are made, found and scanned, and what training may not break."""

import threading

import numpy as np
import pytest

import gkmeans as gk
from conftest import LEVELS, correlated, message_of, whole
from gkmeans import _core
from gkmeans._parallel import Workers
from gkmeans.index import partition
from gkmeans.index.coarse import Coarse, _Rounded
from gkmeans.index.lists import ListLookup
from test_index_ivf import P, estimator, fresh


def test_no_list_is_far_above_the_mean(rng):
    X = np.concatenate([rng.standard_normal((8000, 4)) * 0.01, rng.standard_normal((2000, 4)) * 10])
    with Workers(2) as workers:
        centres, firsts = partition.partition(X.astype(np.float32), 50, rng, workers)
        counts = np.bincount(partition.nearest(X.astype(np.float32), centres, workers), minlength=50)
    assert firsts.tolist() == [0, 50]
    assert counts.max() <= 2.5 * counts.mean()
    assert counts.min() > 0


def test_means_of_more_lists_than_16_bits_count_are_those_of_their_rows(rng):
    lists = rng.permutation(70_000)
    X = np.stack([lists, -lists], axis=1).astype(np.float32)
    means = partition._means(X, lists, np.ones(70_000, np.int64), np.zeros((70_000, 2), np.float32))
    assert (means[:, 0] == np.arange(70_000)).all()
    assert (means[:, 1] == -np.arange(70_000)).all()


def test_the_centre_of_one_list_is_the_mean(rng):
    X = correlated(rng, 300, P)
    with Workers(1) as workers:
        centres, _ = partition.partition(X, 1, rng, workers)
    assert np.allclose(centres[0], X.mean(axis=0), atol=1e-4)


def two_levels(rng, n_lists, n_features=8):
    X = correlated(rng, 4 * n_lists, n_features)
    with Workers(2) as workers:
        return X, *partition.partition(X, n_lists, rng, workers)


def test_two_levels_find_nearly_all_of_the_nearest_lists_and_exactly_all_when_all_are_asked_for(rng):
    X, centres, firsts = two_levels(rng, 5000)
    assert len(centres) == 5000
    assert 60 < len(firsts) - 1 < 80
    coarse, q = Coarse(centres, firsts, "l2", 1.0), X[:200]
    distances = ((q[:, None].astype(float) - centres) ** 2).sum(axis=2)
    x = -2 * (q - coarse.frame.shift)
    bias = (x.astype(float) ** 2).sum(axis=1).astype(np.float32) / 4
    scores, lists = coarse.probe(x, bias, 10)
    true = np.argsort(distances, axis=1)[:, :10]
    assert (lists[:, :, None] == true[:, None]).any(axis=2).mean() > 0.98
    assert np.allclose(scores, np.take_along_axis(distances, lists, axis=1), rtol=1e-3, atol=1e-2)
    assert (coarse.assign(q, 2) == true[:, 0]).mean() > 0.98
    every = coarse.probe(x[:5], bias[:5], 5000)[1]
    assert (np.sort(every, axis=1) == np.arange(5000)).all()
    assert np.allclose(np.take_along_axis(distances[:5], every, axis=1), np.sort(distances[:5], axis=1), atol=1e-2)


def test_an_index_of_two_levels_gives_the_answers_of_one(rng, monkeypatch, tmp_path):
    monkeypatch.setattr(partition, "ONE_LEVEL", 16)
    X = correlated(rng, 2000, P)
    index = gk.IVFIndex(estimator(3, 16), 300, random_state=0).train(X)
    index.add(X)
    firsts = index._lookup.coarse.firsts
    assert len(firsts) > 10
    one = gk.IVFIndex._of(index.est, index.centres_, np.array([0, 300]), "l2", "byte", 1)
    one.add(X)
    for n_probe in (30, 300):  # all groups are looked into
        for a, b in zip(index.search(X[:50], 5, n_probe=n_probe), one.search(X[:50], 5, n_probe=n_probe), strict=True):
            assert (a == b).all()
    index.save(tmp_path / "index")
    again = gk.open_index(tmp_path / "index")
    assert (again._lookup.coarse.firsts == firsts).all()
    assert (again.search(X[:50], 5)[1] == index.search(X[:50], 5)[1]).all()


@pytest.mark.parametrize("level", LEVELS)
def test_the_kernels_give_equal_bits_at_every_level(rng, level):
    index, X = fresh(8, 256, 3)
    index.add(X)
    lookup, (segment,) = index._lookup, index._state.segments
    x, bias = whole(rng, 9, X.shape[1]), whole(rng, 9)
    answers = []
    for one in (level, "baseline"):
        coarse = lookup.coarse
        scores, lists = np.full((9, 2), np.inf, np.float32), np.full((9, 2), -1, np.int64)
        tops = (coarse._top_tiles, coarse._top_norms)
        tiles, norms = np.rint(coarse._tiles), np.rint(coarse._norms)  # fused sums of whole numbers are exact, too
        _core.probe(x, bias, tiles, norms, coarse._starts, coarse.firsts, *tops, 99, scores, lists, one)
        best, found = np.full((9, 4), np.inf, np.float32), np.full((9, 4), -1, np.int64)
        rows = (segment.blocks, segment.keep, segment.ids, segment.first, 8, segment.levels, segment.norms)
        _core.search_lists(*rows, segment.offsets, lookup.products(x), lists, scores, 0.0, best, found, one)
        _core.sort_heaps(best, found)
        answers.append([array.tobytes() for array in (scores, lists, best, found)])
    assert answers[0] == answers[1]


def test_the_kernels_refuse_lists_that_are_not_there():
    index, X = fresh()
    index.add(X)
    lookup, (segment,) = index._lookup, index._state.segments
    rows = (segment.blocks, segment.keep, segment.ids, segment.first, 4, segment.levels, segment.norms)
    x, _ = lookup.prepared(X[:1])
    heap = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.int64)
    bias = np.zeros((1, 1), np.float32)
    for offsets, name in ((segment.offsets, 5), (segment.offsets, -1), (segment.offsets + 1, 4), (np.zeros(1, int), 0)):
        with pytest.raises(ValueError, match=r"list|offsets"):
            _core.search_lists(*rows, offsets, lookup.products(x), np.array([[name]]), bias, 0.0, *heap)
    coarse = lookup.coarse
    tops = (coarse._top_tiles, coarse._top_norms)
    for starts, firsts in ((coarse._starts + 1, coarse.firsts), (coarse._starts, coarse.firsts[::-1].copy())):
        with pytest.raises(ValueError, match="must rise"):
            _core.probe(x, bias[0], coarse._tiles, coarse._norms, starts, firsts, *tops, 9, *heap)


@pytest.mark.parametrize("spread", [100, 1000])
def test_narrow_clusters_that_are_far_apart_are_told_apart_inside(rng, spread, tmp_path):
    centres = rng.standard_normal((8, 16)) * spread
    X = (centres[rng.integers(0, 8, 1600)] + rng.standard_normal((1600, 16))).astype(np.float32)
    index = gk.IVFIndex(estimator(4, 64), 40, random_state=0, n_jobs=1).train(X)
    index.add(X)
    index.save(tmp_path / "index")
    decoded, q = index.reconstruct(np.arange(1600)).astype(float), X[:50].astype(float)
    exact = ((q[:, None] - decoded) ** 2).sum(axis=2)
    for one in (index, gk.open_index(tmp_path / "index")):
        distances, ids = one.search(X[:50], 5, n_probe=40)
        assert np.allclose(distances, np.take_along_axis(exact, ids, axis=1), atol=0.1)
        assert np.allclose(np.take_along_axis(exact, ids, axis=1), np.sort(exact, axis=1)[:, :5], atol=0.1)


def test_threads_that_add_first_share_one_training(rng):
    X = correlated(rng, 1200, P)
    halves = (X[:600], np.arange(600)), (X[600:] * 2 + 3, np.arange(600, 1200))
    index = gk.IVFIndex(estimator(4, 64), 4, norms="float", random_state=0, n_jobs=1)
    threads = [threading.Thread(target=index.add, args=half) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(index) == list(range(1200))
    for rows, ids in halves:
        codes, lists = index._lookup.encode(rows)
        assert (index.reconstruct(ids) == index._lookup.decode(codes, lists)).all()


def test_vectors_encoded_before_a_training_are_refused_after_it(monkeypatch):
    index, X = gk.IVFIndex(estimator(2, 4), 2, random_state=0, n_jobs=1), correlated(np.random.default_rng(0), 300, P)
    index.train(X)
    encode = ListLookup.encode

    def overtaken(self, X):
        monkeypatch.undo()
        coded = encode(self, X)
        index.train(X[::2])
        return coded

    monkeypatch.setattr(ListLookup, "encode", overtaken)
    assert "call add again" in message_of(lambda: index.add(X))
    assert len(index) == 0
    index.add(X)
    assert len(index) == 300


def test_an_add_that_is_refused_does_not_train():
    X = correlated(np.random.default_rng(0), 300, P)
    index = gk.IVFIndex(estimator(2, 4), 2)
    for ids in ([1, 2], [-1] * 300, [5] * 300):
        message_of(lambda ids=ids: index.add(X, ids))
        assert not index.is_trained


def test_a_fit_of_the_estimator_leaves_the_index_as_it_is():
    X = correlated(np.random.default_rng(0), 300, P)
    index = gk.IVFIndex(estimator(2, 4), 2, random_state=0, n_jobs=1).train(X)
    index.add(X)
    before = index.reconstruct(np.arange(9))
    index.est.fit(X * 3 + 5)
    assert (index.reconstruct(np.arange(9)) == before).all()


def by_floats(coarse, x, bias, count):
    """The nearest centres, all of them compared in floats."""
    rounded, coarse._rounded = coarse._rounded, None
    try:
        return coarse.probe(x, bias, count)
    finally:
        coarse._rounded = rounded


def even(rng, L, width):
    return correlated(rng, L, width)


def uneven(rng, L, width):  # one column rounds all others away, so that bounds say little
    out = correlated(rng, L, width)
    out[:, 0] *= 1e4
    return out


def doubled(rng, L, width):
    out = correlated(rng, L, width)
    out[1::2] = out[: L // 2]
    return out


def tiny(rng, L, width):  # squares underflow
    return correlated(rng, L, width) * np.float32(1e-23)


def none(rng, L, width):
    return np.zeros((L, width), np.float32)


@pytest.mark.native
@pytest.mark.skipif(not _Rounded.possible(1), reason="this CPU or level makes no products in bytes")
@pytest.mark.parametrize("kind", [even, uneven, doubled, tiny, none])
@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("L", "width", "n", "count"),
    [(8, 1, 1, 1), (31, 7, 0, 3), (33, 17, 65, 4), (256, 128, 97, 32), (1000, 64, 63, 16), (1024, 784, 49, 3)],
)
def test_bytes_find_the_centres_that_floats_find_bit_for_bit(rng, kind, metric, biased, L, width, n, count):
    coarse = Coarse(kind(rng, L, width), np.array([0, L]), metric, 0.5)
    assert coarse._rounded is not None
    rows = np.concatenate([kind(rng, n + 2, width)[2:], coarse.centres[:3], 1e3 * coarse.centres[-2:]])
    x = np.ascontiguousarray(-2 * coarse.frame_of(rows))
    x[1::3] *= np.float32(1e-18)
    bias = (biased * 0.25 * (x.astype(float) ** 2).sum(axis=1)).astype(np.float32)
    expected, found = by_floats(coarse, x, bias, count), coarse.probe(x, bias, count)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[0], expected[0])


@pytest.mark.native
@pytest.mark.skipif(not _Rounded.possible(1), reason="this CPU or level makes no products in bytes")
def test_lengths_are_bounds_and_near_ones(rng):
    A = correlated(rng, 300, 45)
    levels = np.abs(A).max(axis=1, keepdims=True) / np.float32(127)
    lost = A - np.rint(A / levels) * levels
    found = np.empty((2, 300), np.float32)
    _core.rounded_lengths(A, found)
    for own, exact in zip(found, (A, lost), strict=True):
        true = np.linalg.norm(exact.astype(float), axis=1)
        assert (own >= true).all()
        assert (own <= 1.01 * true + 1e-6).all()


@pytest.mark.native
@pytest.mark.skipif(not _Rounded.possible(1), reason="this CPU or level makes no products in bytes")
def test_few_centres_are_compared_in_floats(rng, monkeypatch):
    coarse = Coarse(correlated(rng, 64, 16), np.array([0, 64]), "l2", 1.0)
    x, bias = np.zeros((3, 16), np.float32), np.zeros(3, np.float32)
    used = []
    monkeypatch.setattr(type(coarse._rounded), "nearest", lambda *all: used.append(all[-1].shape[1]))
    coarse.probe(x, bias, 8)
    coarse.probe(x, bias, 9)  # more than one of eight: floats
    assert used == [8]


@pytest.mark.native
@pytest.mark.skipif(not _Rounded.possible(1), reason="this CPU or level makes no products in bytes")
def test_the_kernel_refuses_what_does_not_fit(rng):
    coarse = Coarse(correlated(rng, 40, 6), np.array([0, 40]), "l2", 1.0)
    own, norms = coarse._rounded, coarse._norms
    good = [np.zeros((2, 6), np.float32), np.zeros(2, np.float32), own.centres, norms, own.packed, own.lengths]
    good += [np.full((2, 3), np.inf, np.float32), np.full((2, 3), -1, np.int64)]
    _core.nearest_centres(*good)
    for place, bad in (
        (0, np.zeros((2, 5), np.float32)),
        (1, np.zeros(3, np.float32)),
        (2, own.centres[:40]),
        (3, norms[:-1].copy()),
        (4, own.packed[:-64]),
        (5, own.lengths[:1].copy()),
        (6, np.full((2, 2), np.inf, np.float32)),
        (7, np.full((1, 3), -1, np.int64)),
    ):
        with pytest.raises(ValueError, match="must"):
            _core.nearest_centres(*good[:place], bad, *good[place + 1 :])
    with pytest.raises(ValueError, match="out must"):
        _core.rounded_lengths(own.centres, np.empty((3, len(own.centres)), np.float32))

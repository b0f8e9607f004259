"""The edges of an index: rescoring by pairs, evaluation of little, membership, sizes that are too large."""

import copy

import numpy as np
import pytest

import gkmeans as gk
from conftest import message_of
from test_index_flat import model


def test_vectors_can_be_rescored_by_rows_with_ids_of_their_own(rng):
    est, X = model(3, 16)
    ids = rng.permutation(400) + 10**12
    named, plain = gk.FlatIndex(est), gk.FlatIndex(est)
    named.add(X, ids)
    plain.add(X)
    order = rng.permutation(400)
    distances, found = named.search(X[:30], 3, rescore=(X[order], ids[order]), oversample=200)
    expected, rows = plain.search(X[:30], 3, rescore=X, oversample=200)
    assert (distances == expected).all()
    assert (found == ids[rows]).all()
    assert named.evaluate(X, 3, rescore=(X, ids), oversample=200).recall == 1
    assert abs(named.evaluate(X, 3, vectors=(X, ids)).recall - plain.evaluate(X, 3, vectors=X).recall) < 0.05  # ties


PAIRS = {
    "an id that is not there": lambda X: (X[:10], np.arange(10)),
    "no vectors": lambda X: (X[:0], np.arange(0)),
    "too few ids": lambda X: (X, np.arange(10)),
    "ids of half": lambda X: (X, np.arange(400) / 2),
    "an id twice": lambda X: (X, np.zeros(400, int)),
}


@pytest.mark.parametrize("what", PAIRS)
def test_pairs_that_do_not_fit_are_explained(what):
    est, X = model(3, 16)
    index = gk.FlatIndex(est)
    index.add(X)
    message_of(lambda: index.search(X[:9], 20, rescore=PAIRS[what](X)))


def test_missing_results_are_no_hits():
    est, X = model(3, 16)
    index = gk.IVFIndex(est, 20, random_state=0, n_jobs=1).train(X)
    index.add(X[:10])
    assert index.evaluate(X[:5], 10, np.full((5, 10), -1), n_probe=1).recall == 0
    truth = np.full((5, 10), -1)
    truth[:, 0] = np.arange(5)
    assert index.evaluate(X[:5], 10, truth, n_probe=20).recall == 1


def test_an_empty_index_has_nothing_to_evaluate():
    est, X = model(3, 16)
    assert "0 vectors" in message_of(lambda: gk.FlatIndex(est).evaluate(X[:5], 1, vectors=X))


def test_lists_are_evaluated_with_rescored_answers():
    est, X = model(3, 16)
    index = gk.IVFIndex(est, 5, random_state=0, n_jobs=1).train(X)
    index.add(X)
    plain = index.evaluate(X, 1, n_probe=5, vectors=X).recall
    assert plain < index.evaluate(X, 1, n_probe=5, rescore=X, oversample=400).recall == 1


def test_only_integers_can_be_ids_of_an_index():
    est, X = model(3, 16)
    index = gk.FlatIndex(est)
    index.add(X[:5])
    assert 3 in index
    assert np.int32(3) in index
    for other in ([1], 3.0, "3", None, True, 5, -1, 2**70, np.array([1, 2])):
        assert other not in index


def test_far_more_neighbours_than_there_are_take_no_memory():
    est, X = model(3, 16)
    index = gk.FlatIndex(est)
    index.add(X[:5])
    assert index.search(X[:1], 10_000)[1].shape == (1, 10_000)
    message_of(lambda: index.search(X[:1], 2**31 - 1))


def test_a_complex_radius_is_refused():
    est, X = model(3, 16)
    index = gk.FlatIndex(est)
    index.add(X[:5])
    message_of(lambda: index.search_radius(X[:1], np.complex64(1)))


@pytest.mark.parametrize("partial", [False, True])
def test_a_fit_of_the_estimator_leaves_the_index_as_it_is(partial, tmp_path):
    est, X = model(3, 16)
    est = copy.copy(est)
    index = gk.FlatIndex(est, norms="float")
    index.add(X)
    before = index.reconstruct(np.arange(9)), index.search(X[:9], 3)
    for one in (est, index.est):
        one.partial_fit(X * 3 + 5) if partial else one.fit(X * 3 + 5)
    index.add(X[:9], 1000 + np.arange(9))
    assert (index.reconstruct(np.arange(9)) == before[0]).all()
    assert (index.reconstruct(1000 + np.arange(9)) == before[0]).all()
    index.remove(1000 + np.arange(9))
    index.save(tmp_path / "index")
    for one in (index, gk.open_index(tmp_path / "index")):
        for a, b in zip(one.search(X[:9], 3), before[1], strict=True):
            assert (a == b).all()


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("unit", [1e-24, 1e12])
def test_tiny_and_huge_vectors_are_told_apart(metric, unit):
    X = model(4, 40)[1].astype(np.float64) * unit
    est = gk.GroupKMeans(4, 40, init="random", order=1, max_iter=3, relaxation=0, effort=0, random_state=0, n_jobs=1)
    index = gk.FlatIndex(est.fit(X), metric, norms="float")
    index.add(X)
    decoded = index.reconstruct(np.arange(len(X))).astype(np.float64) / unit
    for Q in (X[:20], X[:20].astype(np.float32)):
        q = Q.astype(np.float64) / unit
        exact = -q @ decoded.T if metric == "ip" else ((q[:, None] - decoded) ** 2).sum(axis=2)
        ids = index.search(Q, 1)[1][:, 0]
        assert np.allclose(exact[np.arange(20), ids], exact.min(axis=1), rtol=1e-4, atol=1e-4)
        if metric == "ip":
            radius = float(-np.sort(exact[0])[4]) * unit * unit
            near = index.search_radius(Q[:1], radius * (1 - 1e-4))[0][1]
            assert set(np.argsort(exact[0])[:5]) <= set(near.tolist())
            assert len(near) < 20


@pytest.mark.parametrize("own", [False, True])
def test_ranges_of_any_size_keep_the_ids_in_them(rng, own):
    est, X = model(3, 16)
    index = gk.FlatIndex(est)
    index.add(X[:70], rng.permutation(70) if own else None)
    ranges = [
        range(0, 10**30, 10**25),
        range(-(10**30), 10**30, 10**20),
        range(-(10**30) + 7, 10**30, 10),
        range(-5, 9),
    ]
    ranges += [range(10**30, -(10**30), -(10**20)), range(69, -1, -3), range(-9, 0), range(10**20, 10**30), range(3, 3)]
    for one in ranges:
        ids = index.search(X[:1], 70, one)[1][0]
        assert sorted(ids[ids >= 0]) == [i for i in range(70) if i in one]


def test_ids_end_below_two_to_the_63(tmp_path):
    est, X = model(3, 16)
    last = 2**63 - 2
    index = gk.FlatIndex(est)
    index.add(X[:1], [last])
    assert "ids of your own" in message_of(lambda: index.add(X[1:3]))
    assert list(index) == [last]
    for ids in ([last, 0], [last - 1, last]):
        index = gk.FlatIndex(est)
        index.add(X[:2], ids)
        index.save(tmp_path / str(ids[1]))
        for one in (index, gk.open_index(tmp_path / str(ids[1]))):
            assert list(one) == ids
            assert sorted(one.search(X[:1], 2)[1][0]) == sorted(ids)
            assert one.search(X[:1], 2, range(last, last + 9))[1][0].tolist() == [last, -1]

"""IVFIndex: answers against a plain float scan of the lists probed, balance, two levels, folders, bad input."""

import warnings

import numpy as np
import pytest

import gkmeans as gk
from conftest import correlated, message_of, tables_of
from gkmeans.index import base, ivf
from gkmeans.index.segment import quantize
from test_index_flat import sees_whole_batches, some_filter

P = 6
SIZES = [(1, 2, 1), (3, 16, 5), (2, 40, 9), (8, 256, 3), (3, 300, 16)]
_trained = {}


def estimator(C, K):
    return gk.GroupKMeans(C, K, init="random", order=1, max_iter=2, relaxation=0, effort=0, random_state=0, n_jobs=1)


def fresh(C=3, K=16, n_lists=5, metric="l2", norms="byte", n_jobs=1):
    """A trained and empty index, and vectors like those it was trained on."""
    key = (C, K, n_lists, metric == "cosine")
    if key not in _trained:
        X = correlated(np.random.default_rng(C), 400, P)
        index = gk.IVFIndex(estimator(C, K), n_lists, "cosine" if key[3] else "l2", random_state=0, n_jobs=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gk.DataWarning)
            _trained[key] = index.train(X), X
    index, X = _trained[key]
    return gk.IVFIndex._of(index.est, index.centres_, index._lookup.coarse.firsts, metric, norms, n_jobs), X


class Plain:
    """The float scan of the lists probed, written out, in float32 and in the order of the dictionaries."""

    def __init__(self, index):
        self.metric, est, centres = index.metric, index.est, index.centres_
        self.ids, self.codes, self.lists = index.codes()
        self.D, self.scale = est._final().full(), est.scale_
        mean = centres.mean(axis=0, dtype=np.float64).astype(np.float32)
        self.shift = mean if self.metric == "l2" else np.zeros_like(mean)
        self.centres = ((centres.astype(float) - self.shift) * self.scale).astype(np.float32)
        r = np.zeros((len(self.codes), P), np.float32)
        for c in range(len(self.D)):
            r += self.D[c, self.codes[:, c]]
        exact = np.einsum("ij,ij->i", r, r, dtype=float)
        exact = exact + 2 * np.einsum("ij,ij->i", self.centres[self.lists], r, dtype=float)
        levels, byte = quantize(exact.astype(np.float32), down=False)
        in_float = [len(segment.norms) > 0 for segment in index._state.segments]
        assert all(in_float) or index.norms == "byte" or self.metric != "l2"
        self.norms = exact.astype(np.float32) if any(in_float) else levels[byte]

    def scores(self, q, n_probe):
        """Scores of the rows probed, +inf of the others."""
        q = q.astype(np.float64)
        if self.metric == "cosine":
            q = q / np.sqrt((q * q).sum())
        q = q.astype(np.float32)
        squares = np.einsum("ij,ij->i", self.centres, self.centres, dtype=float).astype(np.float32)
        if self.metric == "l2":
            q = (q - self.shift) * np.float32(self.scale)
            bias, x = np.float32((q.astype(float) ** 2).sum()), -2 * q
        else:
            bias, x, squares = np.float32(0), -(q * np.float32(self.scale)), 0 * squares
        coarse = bias + tables_of(x, self.centres) + squares
        probed = np.lexsort((np.arange(len(coarse)), coarse))[:n_probe]
        if self.metric == "l2":
            near = coarse < bias / np.float32(64)
            away = self.centres[near] - q.astype(float)
            coarse[near] = np.einsum("ij,ij->i", away, away)
        tables = tables_of(x, self.D)
        out = coarse[self.lists]
        for c in range(len(self.D)):
            out = out + tables[c, self.codes[:, c]]
        out = np.maximum(out + self.norms, 0) if self.metric == "l2" else out
        return np.where(np.isin(self.lists, probed), out, np.inf)

    def search(self, q, k, n_probe, allowed):
        scores = self.scores(q, n_probe)
        rows = np.flatnonzero(allowed & np.isfinite(scores))
        rows = rows[np.lexsort((self.ids[rows], scores[rows]))][:k]
        signed = (scores[rows] if self.metric == "l2" else -scores[rows]) / np.float32(self.scale**2)
        missing = k - len(rows)
        end = np.inf if self.metric == "l2" else -np.inf
        return np.append(signed, np.full(missing, end)), np.append(self.ids[rows], np.full(missing, -1))


@pytest.mark.parametrize(("C", "K", "n_lists"), SIZES)
def test_answers_are_those_of_the_float_scan_of_the_lists_probed_in_4000_random_cases(C, K, n_lists):
    rng = np.random.default_rng([C, K])
    for _ in range(50):  # of 16 searches, for 5 sizes
        metric, norms = str(rng.choice(["l2", "ip", "cosine"])), str(rng.choice(["byte", "float"]))
        index, X = fresh(C, K, n_lists, metric, norms)
        n = int(rng.choice([1, 2, 63, 64, 65, 130, 400]))
        rows = X[rng.integers(0, len(X), n)] if rng.random() < 0.5 else X[:n]
        ids = rng.permutation(3 * n)[:n].astype(np.int64) if rng.random() < 0.5 else np.arange(n)
        assert (index.add(rows, ids) == ids).all()
        plain = Plain(index)
        gone = rng.random(n) > rng.choice([0.7, 1.0])
        index.remove(plain.ids[gone])
        assert list(index) == plain.ids[~gone].tolist()
        for q in correlated(rng, 16, P):
            k, n_probe = int(rng.integers(1, 20)), int(rng.integers(1, n_lists + 1))
            filter, allowed = some_filter(rng, plain.ids, ~gone)
            distances, found = index.search(q[None], k, filter, n_probe=n_probe)
            expected, names = plain.search(q, k, n_probe, allowed)
            assert (found[0] == names).all()
            assert (distances[0] == expected.astype(np.float32)).all()
        q = X[:1]
        expected, names = plain.search(q[0], n, 2, ~gone)
        there = names >= 0
        limit = float(expected[there][there.sum() // 2]) if there.any() else 0.0
        ((inside, who),) = index.search_radius(q, limit, n_probe=2)
        chosen = (expected <= limit if metric == "l2" else expected >= limit) & there
        assert (who == names[chosen]).all()
        assert (inside == expected[chosen].astype(np.float32)).all()


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_probing_all_lists_is_an_exhaustive_search(metric):
    index, X = fresh(metric=metric, norms="float")
    index.add(X)
    decoded = index.reconstruct(np.arange(400)).astype(float)
    Q = X[:30].astype(float)
    if metric == "l2":
        true = ((Q[:, None] - decoded[None]) ** 2).sum(axis=2)
    else:
        true = (Q / np.linalg.norm(Q, axis=1, keepdims=True) if metric == "cosine" else Q) @ decoded.T
    order = np.sort(true if metric == "l2" else -true, axis=1)[:, :9]
    for n_probe in (5, 100):
        distances, _ = index.search(X[:30], 9, n_probe=n_probe)
        assert np.allclose(distances, order if metric == "l2" else -order, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", [gk.CartesianKMeans, gk.OptimizedCartesianKMeans])
def test_every_estimator_works_inside_fitted_or_not_and_stays_as_it_was(kind, rng):
    X = correlated(rng, 600, P)
    est = kind(2, n_codewords=8, max_iter=3, random_state=0).fit(X)
    before = est.dictionaries_.copy()
    index = gk.IVFIndex(est, 4, random_state=0).train(X)
    index.add(X)
    again = gk.IVFIndex(kind(2, n_codewords=8, max_iter=3, random_state=0), 4, random_state=0)
    again.add(X)  # trains
    assert (index.search(X[:9], 4)[1] == again.search(X[:9], 4)[1]).all()
    assert (est.dictionaries_ == before).all()
    coded = ((X - index.reconstruct(np.arange(600))) ** 2).sum()
    assert coded < 0.8 * ((X - est.decode(est.encode(X))) ** 2).sum()


def test_vectors_are_in_the_list_of_the_nearest_centre_and_codes_are_of_residuals():
    index, X = fresh()
    index.add(X)
    ids, codes, lists = index.codes()
    distances = ((X[ids][:, None].astype(float) - index.centres_) ** 2).sum(axis=2)
    assert (distances[np.arange(400), lists] <= distances.min(axis=1) + 1e-4).all()
    assert (codes == index.est.encode(X[ids] - index.centres_[lists])).all()
    assert (index.list_sizes() == np.bincount(lists, minlength=5)).all()
    assert (index.reconstruct(ids[:7]) == index.est.decode(codes[:7]) + index.centres_[lists[:7]]).all()
    other, _ = fresh()
    other.add_codes(codes, lists, ids)
    assert [a.tobytes() for a in other.search(X[:9])] == [a.tobytes() for a in index.search(X[:9])]


def test_lists_of_equal_vectors_and_as_many_lists_as_vectors_are_made(rng):
    X = np.repeat(rng.standard_normal((3, P)), 20, axis=0).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gk.DataWarning)
        for rows, n_lists in ((X, 10), (X[::20], 3)):
            index = gk.IVFIndex(estimator(2, 2), n_lists, random_state=0)
            index.add(rows)
            assert np.allclose(index.search(rows, 1, n_probe=n_lists)[0], 0, atol=1e-4)


@pytest.mark.parametrize("unit", [1e-20, 1e12])
def test_tiny_and_huge_units_are_searched_as_well(rng, unit):
    X = correlated(rng, 300, P).astype(np.float64) * unit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gk.DataWarning)
        index = gk.IVFIndex(estimator(4, 64), 4, norms="float", random_state=0)
        index.add(X)
    distances, ids = index.search(X, 1, n_probe=4)
    true = ((X - index.reconstruct(ids[:, 0])) ** 2).sum(axis=1)
    assert np.allclose(distances[:, 0] / unit**2, true / unit**2, rtol=1e-3, atol=1e-3)


def test_answers_are_equal_for_every_number_of_threads(rng, monkeypatch):
    monkeypatch.setattr("gkmeans.index.probes.PART_BLOCKS", 1)  # one query is cut, too
    X = correlated(rng, 3000, P)
    indexes = [fresh(n_jobs=jobs)[0] for jobs in (1, 2, 5)]
    for index in indexes:
        index.add(X)
        index.remove(np.arange(100, 300))
    for Q in (X[:1], X[:3], X[:150]):
        answers = [index.search(Q, 20, n_probe=4) for index in indexes]
        for distances, ids in answers[1:]:
            assert (distances == answers[0][0]).all()
            assert (ids == answers[0][1]).all()


def test_many_small_batches_find_what_one_large_batch_finds(monkeypatch):
    for merge in (base.MERGE_ROWS, 1):
        monkeypatch.setattr(ivf, "MERGE_ROWS", merge)
        monkeypatch.setattr(ivf, "_ROWS_OF_OFFSETS", 1)
        one, X = fresh(norms="float")
        many, _ = fresh(norms="float")
        one.add(X)
        for part in np.array_split(X, 37):
            many.add(part)
        assert len(many._state.segments) == (1 if merge > 1 else 37)
        for a, b in zip(one.search(X[:30], 7, n_probe=3), many.search(X[:30], 7, n_probe=3), strict=True):
            assert (a == b).all()
        many.remove([3, 5])
        many.compact()
        assert sorted(many) == [i for i in range(400) if i not in (3, 5)]
        assert len(many._state.segments) == 1


def test_a_search_sees_either_all_or_nothing_of_a_batch_added_meanwhile():
    index, X = fresh()
    assert sees_whole_batches(index, X, n_probe=5)


def test_a_filter_is_packed_for_many_queries_or_the_second_time_however_few_rows_it_keeps():
    index, X = fresh()
    index.add(X)
    [segment] = index._state.segments
    for ids, queries, together in (([3], 1, False), ([3], 1, True), ([5], 4, True)):
        index.search(X[:queries], 1, ids)
        assert (segment._last[0].packed is not None) is together


def test_rescoring_and_evaluation_use_the_original_vectors():
    index, X = fresh()
    index.add(X)
    distances, ids = index.search(X[:20], 3, rescore=X, oversample=200, n_probe=5)
    assert (ids[:, 0] == np.arange(20)).all()
    assert (distances[:, 0] == 0).all()
    measured = index.evaluate(X, 1, n_probe=5, vectors=X)
    found = index.search(X[::2], 1, n_probe=5)[1][:, 0]
    assert measured.recall == (found == np.arange(0, 400, 2)).mean()
    assert measured.queries_per_second > 0
    assert 2 + 1 + 8 <= measured.bytes_per_vector < 12  # three nibbles, a norm and an id
    assert index.evaluate(X, 1, n_probe=1, truth=np.arange(400)[:, None]).recall <= measured.recall + 0.05


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_a_folder_gives_the_answers_of_the_index_and_takes_changes(metric, tmp_path):
    index, X = fresh(metric=metric)
    index.add(X[:200], np.arange(200)[::-1] * 7)
    index.remove([7, 14])
    index.save(tmp_path / "index")
    with gk.open_index(tmp_path / "index") as again:
        assert isinstance(again, gk.IVFIndex)
        assert again.is_trained
        assert (again.metric, again.n_lists, len(again)) == (metric, 5, 198)
        assert not again._state.segments[0].blocks.flags.owndata
        for one in (index, again):
            one.add(X[200:300])
            one.remove([21])
    reopened = gk.open_index(tmp_path / "index", verify=False)
    for other in (again, reopened):
        assert list(other) == list(index)
        assert [a.tobytes() for a in other.search(X[:20], 9)] == [a.tobytes() for a in index.search(X[:20], 9)]


def damaged_lists(folder):
    path = folder / "lists.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "lists changed": damaged_lists,
    "lists missing": lambda folder: (folder / "lists.safetensors").unlink(),
    "segment missing": lambda folder: next(folder.glob("segment-*")).unlink(),
    "segment cut": lambda folder: (path := next(folder.glob("segment-*"))).write_bytes(path.read_bytes()[:-9]),
    "model missing": lambda folder: (folder / "model.safetensors").unlink(),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_folder_is_refused(what, tmp_path):
    index, X = fresh()
    index.add(X)
    index.save(tmp_path / "index")
    DAMAGE[what](tmp_path / "index")
    message_of(lambda: gk.open_index(tmp_path / "index"), gk.FileError)


def test_offsets_that_do_not_fit_are_refused_without_reading_the_rest(tmp_path, monkeypatch):
    index, X = fresh()
    index.add(X)
    (segment,) = index._state.segments
    for offsets in (segment.offsets[::-1].copy(), segment.offsets[:-1].copy(), segment.offsets + 1):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        object.__setattr__(segment, "offsets", offsets)
        index.save(folder)
        assert "segment" in message_of(lambda folder=folder: gk.open_index(folder, verify=False), gk.FileError)


def test_an_index_without_vectors_or_with_few_gives_missing_results():
    for metric, end in (("l2", np.inf), ("ip", -np.inf), ("cosine", -np.inf)):
        index, X = fresh(metric=metric)
        distances, ids = index.search(X[:2], 4)
        assert (ids == -1).all()
        assert (distances == end).all()
        index.add(X[:3])
        distances, ids = index.search(X[:2], 4)
        assert sorted(ids[0].tolist()) == [-1, 0, 1, 2]
        assert distances[0, -1] == end
        index.remove([0, 1, 2])
        assert index.search_radius(X[:1], 1e9)[0][1].tolist() == []
        index.compact()
        assert index.add(X[:1]).tolist() == [3]


BAD = {
    "k = 0": lambda index, X: index.search(X[:1], 0),
    "n_probe = 0": lambda index, X: index.search(X[:1], n_probe=0),
    "n_probe of half": lambda index, X: index.search_radius(X[:1], 1.0, n_probe=0.5),
    "NaN query": lambda index, X: index.search(np.full((1, P), np.nan, np.float32)),
    "huge query": lambda index, X: index.search(np.full((1, P), 1e30, np.float32)),
    "narrow query": lambda index, X: index.search(X[:1, :5]),
    "short filter": lambda index, X: index.search(X[:1], 1, np.ones(3, bool)),
    "short rescore": lambda index, X: index.search(X[:1], 20, rescore=X[:3], n_probe=5),
    "duplicate ids": lambda index, X: index.add(X[:2], [50, 50]),
    "known id": lambda index, X: index.add(X[:1], [3]),
    "too few ids": lambda index, X: index.add(X[:3], [50, 51]),
    "NaN vector": lambda index, X: index.add(np.full((1, P), np.nan)),
    "narrow vector": lambda index, X: index.add(X[:1, :5]),
    "unknown id": lambda index, X: index.remove([1, 77]),
    "unknown reconstruction": lambda index, X: index.reconstruct([77]),
    "radius of NaN": lambda index, X: index.search_radius(X[:1], float("nan")),
    "unknown list": lambda index, X: index.add_codes(np.zeros((1, 3), np.uint8), [5]),
    "list of half": lambda index, X: index.add_codes(np.zeros((1, 3), np.uint8), [0.5]),
    "too few lists": lambda index, X: index.add_codes(np.zeros((2, 3), np.uint8), [0]),
    "trained again": lambda index, X: index.train(X),
    "no truth": lambda index, X: index.evaluate(X[:2], 1),
    "metric": lambda index, X: gk.IVFIndex(index.est, metric="hamming"),
    "norms": lambda index, X: gk.IVFIndex(index.est, norms="none"),
    "no lists": lambda index, X: gk.IVFIndex(index.est, 0),
    "no estimator": lambda index, X: gk.IVFIndex("model"),
    "untrained search": lambda index, X: gk.IVFIndex(index.est, 2).search(X[:1]),
    "untrained save": lambda index, X: gk.IVFIndex(index.est, 2).save("nowhere"),
    "fewer rows than lists": lambda index, X: gk.IVFIndex(index.est, 30).train(X[:20]),
    "NaN training": lambda index, X: gk.IVFIndex(index.est, 2).train(np.full((9, P), np.nan)),
    "zero vector of cosine": lambda index, X: gk.IVFIndex(index.est, 2, "cosine").train(np.zeros((9, P))),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_explained_and_changes_nothing(what):
    index, X = fresh()
    index.add(X[:20])
    message_of(lambda: BAD[what](index, X))
    assert sorted(index) == list(range(20))

"""FlatIndex: answers against a plain float scan, adding, removing, filters, rescoring, threads, bad input."""

import threading
import warnings

import numpy as np
import pytest

import gkmeans as gk
from conftest import correlated, message_of, tables_of
from gkmeans.index.segment import FEW, FILTERS, MERGE_ROWS, quantize

SIZES = [(1, 2), (3, 16), (4, 5), (2, 40), (8, 256), (5, 300)]
_models = {}


def model(C, K, n_features=6):
    if (C, K) not in _models:
        rng = np.random.default_rng(C)
        X = correlated(rng, 400, n_features)
        est = gk.GroupKMeans(C, K, init="random", order=1, max_iter=2, relaxation=0, effort=0, random_state=0, n_jobs=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gk.DataWarning)
            _models[C, K] = est.fit(X), X
    return _models[C, K]


class Plain:
    """The float scan, written out, in float32 and in the order of the dictionaries."""

    def __init__(self, est, metric, X, ids, norms):
        self.D, self.metric, self.ids, self.scale, self.shift = est._final().full(), metric, ids, est.scale_, est.shift_
        unit = X / np.linalg.norm(X.astype(float), axis=1, keepdims=True) if metric == "cosine" else X
        self.codes = est.encode(unit.astype(np.float32))
        decoded = np.zeros((len(X), X.shape[1]), np.float32)
        for c in range(len(self.D)):
            decoded += self.D[c, self.codes[:, c]]
        exact = (decoded.astype(float) ** 2).sum(axis=1).astype(np.float32)
        levels, byte = quantize(exact, down=False)
        self.norms = exact if norms == "float" else levels[byte]

    def scores(self, q):
        q = q.astype(np.float64)
        if self.metric == "cosine":
            q = q / np.sqrt((q * q).sum())
        q = q.astype(np.float32)
        if self.metric == "l2":
            q = (q - self.shift) * np.float32(self.scale)
            bias, q = np.float32((q.astype(float) ** 2).sum()), -2 * q
        else:
            q = q * np.float32(self.scale)
            bias, q = np.float32(-(q.astype(float) @ (self.shift.astype(float) * self.scale))), -q
        tables = tables_of(q, self.D)
        out = np.full(len(self.codes), bias)
        for c in range(len(self.D)):
            out += tables[c, self.codes[:, c]]
        return np.maximum(out + self.norms, 0) if self.metric == "l2" else out

    def search(self, q, k, allowed):
        scores = self.scores(q)
        rows = np.flatnonzero(allowed)
        rows = rows[np.lexsort((self.ids[rows], scores[rows]))][:k]
        signed = (scores[rows] if self.metric == "l2" else -scores[rows]) / np.float32(self.scale**2)
        missing = k - len(rows)
        end = np.inf if self.metric == "l2" else -np.inf
        return np.append(signed, np.full(missing, end)), np.append(self.ids[rows], np.full(missing, -1))


def some_filter(rng, ids, alive):
    """A filter for search, and the rows that it allows."""
    kind = rng.integers(0, 5)
    live = ids[alive]
    if kind == 0:
        mask = rng.random(len(live)) < rng.choice([0.02, 0.5, 1.0])
        return mask, np.isin(ids, live[mask]) & alive
    if kind == 1:
        some = rng.choice(ids, rng.integers(0, len(ids)), replace=False)
        return np.append(some, 10**9), np.isin(ids, some) & alive
    if kind == 2:
        between = range(int(rng.integers(-5, 50)), int(rng.integers(0, 400)), int(rng.integers(1, 4)))
        return between, np.isin(ids, np.array(between, np.int64)) & alive
    return None, alive


@pytest.mark.parametrize(("C", "K"), SIZES)
def test_answers_are_those_of_the_float_scan_in_10000_random_cases(C, K):
    rng = np.random.default_rng([C, K])
    est, X = model(C, K)
    for _ in range(105):  # of 16 searches, for 6 sizes
        n = int(rng.choice([1, 2, 63, 64, 65, 130, 400]))
        metric, norms = str(rng.choice(["l2", "ip", "cosine"])), str(rng.choice(["byte", "float"]))
        rows = X[rng.integers(0, len(X), n)] if rng.random() < 0.5 else X[:n]
        ids = rng.permutation(3 * n)[:n].astype(np.int64) if rng.random() < 0.5 else np.arange(n)
        index = gk.FlatIndex(est, metric, norms=norms, n_jobs=1)
        default = rng.random() < 0.5 and (ids == np.arange(n)).all()
        assert (index.add(rows, None if default else ids) == ids).all()
        plain = Plain(est, metric, rows, ids, norms)
        alive = rng.random(n) < rng.choice([0.7, 1.0])
        index.remove(ids[~alive])
        Q = correlated(rng, 16, X.shape[1])
        for q in Q:
            k = int(rng.integers(1, 20))
            filter, allowed = some_filter(rng, ids, alive)
            distances, found = index.search(q[None], k, filter)
            expected, names = plain.search(q, k, allowed)
            assert (found[0] == names).all()
            assert (distances[0] == expected.astype(np.float32)).all()
        distances, found = index.search(Q, 3)
        for q, near, who in zip(Q, distances, found, strict=True):
            assert (who == plain.search(q, 3, alive)[1]).all()
            limit = float(near[np.isfinite(near)][-1]) if np.isfinite(near).any() else 0.0
            ((inside, names),) = index.search_radius(q[None], limit)
            expected, wanted = plain.search(q, n, alive)
            chosen = (expected <= limit if metric == "l2" else expected >= limit) & (wanted >= 0)
            assert (names == wanted[chosen]).all()
            assert (inside == expected[chosen].astype(np.float32)).all()


@pytest.mark.parametrize("norms", ["byte", "float"])
def test_distances_are_those_of_the_reconstructions(norms):
    est, X = model(8, 256)
    index = gk.FlatIndex(est, norms=norms)
    index.add(X)
    distances, ids = index.search(X[:20], 5)
    decoded = index.reconstruct(ids.ravel()).reshape(20, 5, -1).astype(float)
    true = ((X[:20, None].astype(float) - decoded) ** 2).sum(axis=2)
    spread = np.ptp(((est.decode(est.encode(X)).astype(float) - est.shift_) ** 2).sum(axis=1))
    allowed = spread / 255 if norms == "byte" else 0
    assert np.abs(distances - true).max() <= allowed + 1e-3


def test_cosine_is_the_product_of_unit_vectors():
    est, X = model(8, 256)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    est = gk.GroupKMeans(4, 16, max_iter=2, init_iter=2, random_state=0).fit(unit)
    index = gk.FlatIndex(est, "cosine")
    index.add(100 * X)
    similarity, ids = index.search(3 * X[:4], 2)
    expected = np.einsum("ip,ikp->ik", unit[:4], index.reconstruct(ids.ravel()).reshape(4, 2, -1))
    assert np.allclose(similarity, expected, atol=1e-5)
    assert (similarity[:, 0] >= similarity[:, 1]).all()


@pytest.mark.parametrize("kind", [gk.CartesianKMeans, gk.OptimizedCartesianKMeans])
def test_every_estimator_works_inside(kind, rng):
    X = correlated(rng, 300, 6)
    est = kind(2, n_codewords=8, max_iter=3, random_state=0).fit(X)
    index = gk.FlatIndex(est, norms="float")
    index.add(X)
    distances, _ = index.search(X[:10], 1)
    every = ((X[:10, None].astype(float) - est.decode(est.encode(X))[None]) ** 2).sum(axis=2)
    assert np.allclose(distances[:, 0], every.min(axis=1), rtol=1e-3, atol=1e-3)


def test_many_small_batches_find_what_one_large_batch_finds():
    est, X = model(3, 16)
    one, many = gk.FlatIndex(est, norms="float"), gk.FlatIndex(est, norms="float")
    one.add(X)
    for part in np.array_split(X, 37):
        many.add(part)
    assert list(one) == list(many) == list(range(400))
    for a, b in zip(one.search(X[:30], 7), many.search(X[:30], 7), strict=True):
        assert (a == b).all()


def test_answers_are_equal_for_every_number_of_threads(rng):
    est, _ = model(3, 16)
    X = correlated(rng, 3 * MERGE_ROWS + 5, 6)
    indexes = [gk.FlatIndex(est, n_jobs=jobs) for jobs in (1, 2, 5)]
    for index in indexes:
        index.add(X[:40_000])
        index.add(X[40_000:])
        index.remove(np.arange(100, 300))
    for Q in (X[:1], X[:3], X[:150]):
        answers = [index.search(Q, 20) for index in indexes]
        for distances, ids in answers[1:]:
            assert (distances == answers[0][0]).all()
            assert (ids == answers[0][1]).all()


def test_ids_go_on_from_the_greatest_and_removed_ones_may_come_back():
    est, X = model(3, 16)
    index = gk.FlatIndex(est)
    assert index.add(X[:3], [5, 2, 9]).tolist() == [5, 2, 9]
    assert index.add(X[3:5]).tolist() == [10, 11]
    index.remove([2, 11])
    assert list(index) == [5, 9, 10]
    assert 9 in index
    assert 2 not in index
    assert "a" not in index
    assert index.add(X[:1], [2]).tolist() == [2]
    assert index.add(X[:1]).tolist() == [12]
    assert len(index) == 5
    index.compact()
    assert list(index) == [5, 9, 10, 2, 12]
    assert (index.reconstruct([2, 5]) == est.decode(est.encode(X[:1]))).all()


def test_an_index_emptied_by_remove_can_be_used_again():
    est, X = model(3, 16)
    index = gk.FlatIndex(est)
    index.add(X[:70])
    index.remove(np.arange(70))
    assert len(index) == 0
    index.compact()
    assert index.search(X[:2], 3)[1].tolist() == [[-1] * 3] * 2
    assert index.add(X[:1]).tolist() == [70]
    assert index.search(X[:1], 2)[1].tolist() == [[70, -1]]


def test_an_empty_index_and_a_large_k_give_missing_results():
    est, X = model(3, 16)
    for metric, end in (("l2", np.inf), ("ip", -np.inf), ("cosine", -np.inf)):
        index = gk.FlatIndex(est, metric)
        distances, ids = index.search(X[:2], 4)
        assert (ids == -1).all()
        assert (distances == end).all()
        index.add(X[:3])
        distances, ids = index.search(X[:2], 4)
        assert sorted(ids[0].tolist()) == [-1, 0, 1, 2]
        assert ids[0, -1] == -1
        assert distances[0, -1] == end
    assert index.search_radius(X[:1], 1e9)[0][1].tolist() == []


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_rescoring_ranks_by_the_original_vectors(metric, tmp_path):
    est, X = model(3, 16)
    np.save(tmp_path / "X.npy", X)
    index = gk.FlatIndex(est, metric)
    index.add(X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r", allow_pickle=False)
    distances, ids = index.search(X[:20], 3, rescore=mapped, oversample=200)
    x, q = X.astype(float), X[:20].astype(float)
    if metric == "l2":
        true = -((q[:, None] - x[None]) ** 2).sum(axis=2)
    else:
        x = x / np.linalg.norm(x, axis=1, keepdims=True) if metric == "cosine" else x
        q = q / np.linalg.norm(q, axis=1, keepdims=True) if metric == "cosine" else q
        true = q @ x.T
    best = -np.sort(-true, axis=1)[:, :3]
    assert np.allclose(distances, -best if metric == "l2" else best, rtol=1e-5, atol=1e-5)
    assert (ids[:, 0] == true.argmax(axis=1)).all()
    plain = index.search(X[:20], 3)[1]
    assert set(index.search(X[:20], 3, rescore=mapped, oversample=1)[1].ravel()) == set(plain.ravel())


def sees_whole_batches(index, X, **options):
    """Whether a thread that searches while 40 batches of 50 are added to 50 finds all or nothing of each."""
    index.add(X[:50])
    wrong, done = [], threading.Event()

    def watch():
        while not done.is_set():
            ids = index.search(X[:1], 10_000, **options)[1][0]
            count = int((ids >= 0).sum())
            if count % 50 or sorted(ids[:count]) != list(range(count)):
                wrong.append(count)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(40):
        index.add(X[50:100])
    done.set()
    watcher.join()
    return not wrong and len(index) == 2050


def test_a_search_sees_either_all_or_nothing_of_a_batch_added_meanwhile():
    est, X = model(3, 16)
    assert sees_whole_batches(gk.FlatIndex(est, n_jobs=1), X)


def test_two_threads_that_add_lose_nothing():
    est, X = model(3, 16)
    index = gk.FlatIndex(est)
    threads = [threading.Thread(target=lambda: [index.add(X[:10]) for _ in range(20)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(index) == list(range(600))


def test_evaluation_finds_the_true_neighbours_itself():
    est, X = model(8, 256)
    index = gk.FlatIndex(est)
    index.add(X)
    measured = index.evaluate(X, 1, vectors=X)
    assert measured.recall > 0.9
    assert measured.queries_per_second > 0
    assert 9 <= measured.bytes_per_vector < 10.5  # 400 rows: the last block is half full
    assert index.evaluate(X[::2], 1, np.arange(0, 400, 2)[:, None]).recall == measured.recall


BAD = {
    "k = 0": lambda index, X: index.search(X[:1], 0),
    "k of half": lambda index, X: index.search(X[:1], 1.5),
    "oversample": lambda index, X: index.search(X[:1], 1, oversample=0),
    "NaN query": lambda index, X: index.search(np.full((1, 6), np.nan, np.float32)),
    "infinite query": lambda index, X: index.search(np.full((1, 6), np.inf)),
    "huge query": lambda index, X: index.search(np.full((1, 6), 1e30, np.float32)),
    "narrow query": lambda index, X: index.search(X[:1, :5]),
    "one-dimensional query": lambda index, X: index.search(X[0]),
    "narrow query in a list": lambda index, X: index.search([[1.0, 2.0, 3.0]]),
    "one query as a list": lambda index, X: index.search(X[0].tolist()),
    "queries of unlike lengths": lambda index, X: index.search([[1.0, 2.0], [3.0]]),
    "query of a generator": lambda index, X: index.search(iter(X)),
    "no query": lambda index, X: index.search(X[:0]),
    "short filter": lambda index, X: index.search(X[:1], 1, np.ones(3, bool)),
    "filter of numbers": lambda index, X: index.search(X[:1], 1, [0.5]),
    "narrow rescore": lambda index, X: index.search(X[:1], 1, rescore=X[:, :2]),
    "short rescore": lambda index, X: index.search(X[:1], 20, rescore=X[:3]),
    "NaN rescore": lambda index, X: index.search(X[:1], 20, rescore=np.full((20, 6), np.nan)),
    "duplicate ids": lambda index, X: index.add(X[:2], [50, 50]),
    "known id": lambda index, X: index.add(X[:1], [3]),
    "too few ids": lambda index, X: index.add(X[:3], [50, 51]),
    "negative id": lambda index, X: index.add(X[:1], [-1]),
    "largest id": lambda index, X: index.add(X[:1], np.array([2**64 - 1], np.uint64)),
    "ids of text": lambda index, X: index.add(X[:1], ["a"]),
    "NaN vector": lambda index, X: index.add(np.full((1, 6), np.nan)),
    "unknown id": lambda index, X: index.remove([1, 77]),
    "unknown reconstruction": lambda index, X: index.reconstruct([77]),
    "radius of NaN": lambda index, X: index.search_radius(X[:1], float("nan")),
    "radius of text": lambda index, X: index.search_radius(X[:1], "far"),
    "metric": lambda index, X: gk.FlatIndex(index.est, "hamming"),
    "norms": lambda index, X: gk.FlatIndex(index.est, norms="none"),
    "no estimator": lambda index, X: gk.FlatIndex("model"),
    "unfitted estimator": lambda index, X: gk.FlatIndex(gk.GroupKMeans()),
    "truth of no ids": lambda index, X: index.evaluate(X[:2], 1, [[0.5], [1]]),
    "no truth": lambda index, X: index.evaluate(X[:2], 1),
    "zero query of cosine": lambda index, X: gk.FlatIndex(index.est, "cosine").search(np.zeros((1, 6), np.float32)),
    "zero vector of cosine": lambda index, X: gk.FlatIndex(index.est, "cosine").add(np.zeros((1, 6), np.float32)),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_explained_and_changes_nothing(what):
    est, X = model(3, 16)
    index = gk.FlatIndex(est)
    index.add(X[:20])
    message = message_of(lambda: BAD[what](index, X))
    if "query" in what and "zero" not in what:
        assert "Q" in message.split()[:4] or what in ("no query", "queries of unlike lengths")
        assert "SimpleImputer" not in message
    if what in ("one-dimensional query", "one query as a list"):
        assert "np.reshape(Q, (1, -1)) is one query" in message
    assert list(index) == list(range(20))


def test_a_filter_that_is_used_again_or_changed_in_place_gives_its_own_rows(rng):
    est, X = model(3, 16)
    index = gk.FlatIndex(est, n_jobs=1)
    index.add(X)
    mask = np.zeros(len(X), bool)
    for chosen in ([3, 50, 399], [3, 50, 399], [4, 50, 399], [0]):
        mask[:] = False
        mask[chosen] = True
        for filter, queries in ((mask, 1), (np.array(chosen), 9), (mask[::-1][::-1], 1)):
            assert sorted(index.search(X[:queries], 5, filter)[1][0]) == [-1] * (5 - len(chosen)) + chosen
    index.remove([50])
    assert sorted(index.search(X[:1], 2, [3, 50, 399])[1][0]) == [3, 399]


def remembering():
    """An index of 400 rows, its segment, and whether a search left the rows of its filter packed together."""
    est, X = model(3, 16)
    index = gk.FlatIndex(est, n_jobs=1)
    index.add(X)
    [segment] = index._state.segments

    def packed(queries, filter):
        index.search(X[:queries], 2, filter)
        held = {tuple(last.ids): last.packed for last in segment._last if last.ids is not None}
        return held.get(tuple(filter)) is not None

    return segment, packed


def test_the_few_rows_of_a_filter_are_packed_at_once_more_for_many_queries_or_the_second_time():
    segment, packed = remembering()
    few, more = list(range(segment.n // FEW)), list(range(1 + segment.n // FEW))
    assert packed(1, few)
    assert not packed(1, more)
    assert packed(1, more)
    assert packed(4, [20, *more])
    assert not packed(4, list(range(segment.n // 2)))


def test_filters_that_come_once_drive_out_none_that_is_used_often():
    segment, packed = remembering()
    for other in range(FILTERS):
        assert packed(4, [20, other])
    assert packed(1, [3])
    for other in range(2 * FILTERS):
        assert packed(1, [100 + other])
    names = [tuple(last.ids) for last in segment._last]
    newest = [(100 + other,) for other in range(2 * FILTERS)][: -FILTERS - 1 : -1]
    assert names == [newest[0], *((20, other) for other in reversed(range(FILTERS))), *newest[1:]]
    before = {tuple(last.ids): last.packed for last in segment._last}
    assert packed(1, newest[-1])  # it came again: now the oldest of those used often is gone
    after = {tuple(last.ids): last.packed for last in segment._last}
    assert after[newest[-1]] is before[newest[-1]]
    assert (20, 0) not in after
    assert len(after) == 2 * FILTERS - 1


def test_threads_that_use_one_filter_leave_it_once():
    segment, packed = remembering()
    assert packed(1, [3])
    assert packed(1, [5])
    [last] = [last for last in segment._last if list(last.ids) == [3]]
    for _ in range(2):  # both have found it before either moves it to the front
        segment._remember(last._replace(often=True), last)
    assert [list(last.ids) for last in segment._last] == [[3], [5]]


def test_packed_filters_hold_no_more_than_a_quarter_of_the_rows():
    est, X = model(4, 5)
    index = gk.FlatIndex(est, n_jobs=1)
    index.add(X)
    Q = X[:4]
    for first in range(0, 300, 60):
        index.search(Q, 2, range(first, first + 60))
        held = [last.packed.n for last in index._state.segments[0]._last]
        assert held == [60]


def test_a_filter_that_was_changed_in_place_is_not_taken_for_the_one_before():
    est, X = model(3, 16)
    index = gk.FlatIndex(est, n_jobs=1)
    index.add(X)
    mask, ids = np.zeros(len(X), bool), np.array([3, 7])
    mask[[3, 7]] = True
    for _ in range(3):  # the rows are packed the first time and found again the others
        assert sorted(index.search(X[:1], 2, mask)[1][0]) == [3, 7]
    mask[7], mask[9] = False, True
    for _ in range(3):
        assert sorted(index.search(X[:1], 2, mask)[1][0]) == [3, 9]
    for _ in range(3):
        assert sorted(index.search(X[:1], 2, ids)[1][0]) == [3, 7]
    ids[0] = 11
    for _ in range(3):
        assert sorted(index.search(X[:1], 2, ids)[1][0]) == [7, 11]
    index.remove([7])
    assert sorted(index.search(X[:1], 2, ids)[1][0]) == [-1, 11]


def test_a_filter_that_came_again_is_not_packed_anew():
    est, X = model(3, 16)
    index = gk.FlatIndex(est, n_jobs=1)
    index.add(X)
    mask = np.arange(len(X)) == 5
    pairs = ((mask, mask.copy()), (np.array([6, 8]), np.array([8, 6])), (range(3, 9), range(3, 9)), ([1, 2], [1, 2, 2]))
    for filter, again in pairs:
        index.search(X[:4], 2, filter)
        together = index._state.segments[0]._last[0].packed
        index.search(X[:4], 2, again)
        assert index._state.segments[0]._last[0].packed is together


def test_ranges_far_outside_the_ids_keep_what_lies_inside(rng):
    est, X = model(3, 16)
    index = gk.FlatIndex(est, n_jobs=1)
    index.add(X[:70], np.arange(70) + 100)
    for wanted, there in ((range(10**30, 10**31), []), (range(-(10**30), 102), [100, 101])):
        assert [i for i in sorted(index.search(X[:1], 3, wanted)[1][0]) if i >= 0] == there
    assert sorted(index.search(X[:1], 3, range(-3, 10**30, 83))[1][0]) == [-1, -1, 163]

"""Training on batches: partial_fit with and without decay, merge, and a fit on more than memory holds."""

import copy
import itertools
import json
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

import gkmeans as gk
from conftest import correlated, message_of, same_bits
from gkmeans import _rows, survey
from gkmeans._frame import Frame
from gkmeans._parallel import Workers, ahead, behind, regrouped
from gkmeans._rows import Rows
from gkmeans._stream import Stream
from gkmeans.dictionaries import Dictionaries
from gkmeans.survey import Distinct
from gkmeans.update import Statistics


def small(C=2, K=8, **options):
    plain = {"relaxation": 0, "max_iter": 10, "init_iter": 5, "effort": 2, "random_state": 0}
    return gk.GroupKMeans(C, K, **(plain | options))


def fed(est, X, size, **options):
    for start in range(0, len(X), size):
        est.partial_fit(X[start : start + size], **options)
    return est


@pytest.fixture
def X(rng):
    return correlated(rng, 4000, 6)


# ---- statistics


def test_weighted_statistics_are_those_of_repeated_points(rng):
    X, codes = rng.standard_normal((30, 3)), rng.integers(0, 4, (30, 2)).astype(np.uint8)
    once, thrice = Statistics.of(X, codes, 4), Statistics.of(np.tile(X, (3, 1)), np.tile(codes, (3, 1)), 4)
    weighted = once * 3
    np.testing.assert_allclose(weighted.W, thrice.W)
    assert (weighted.counts == thrice.counts).all()
    assert (weighted.Z[0, 1] == thrice.Z[0, 1]).all()
    assert once * 1 is once


def test_codewords_of_half_a_point_are_unused_and_leave_no_trace():
    X, codes = np.array([[1.0], [2.0], [4.0]]), np.array([[0, 0], [0, 1], [1, 1]], np.uint8)
    left = (Statistics.of(X, codes) * 0.4).without_rare()  # codewords 1 of the first and 0 of the second: 0.4 points
    assert left.counts.tolist() == [[0.8, 0], [0, 0.8]]
    assert left.W[:, :, 0].round(6).tolist() == [[1.2, 0], [0, 2.4]]
    assert left.Z[0, 1].tolist() == [[0, 0.4], [0, 0]]


def test_dictionaries_solve_the_statistics_that_their_codes_imply(rng, workers):
    X, codes = rng.standard_normal((500, 3)), rng.integers(0, 4, (500, 3)).astype(np.uint8)
    own = Statistics.of(X, codes, 4)
    D = own.solve(own.solve(np.zeros((3, 4, 3))))
    implied = Statistics.implied(codes, Dictionaries.single(D), workers)
    np.testing.assert_allclose(implied.W, own.W, atol=0.05)
    np.testing.assert_allclose(implied.solve(D), D, atol=1e-5)
    assert (implied.counts == own.counts).all()
    assert all((implied.Z[pair] == own.Z[pair]).all() for pair in own.Z)


# ---- partial_fit


def test_the_first_batches_are_fitted_whenever_they_have_doubled(X, monkeypatch):
    fitted, est = [], small()
    opening = gk.GroupKMeans._opening
    monkeypatch.setattr(gk.GroupKMeans, "_opening", lambda self, data: fitted.append(len(data)) or opening(self, data))
    fed(est, X[:1000], 50)
    assert fitted == [50, 100, 200, 300]  # 16 rows for each of 2 × 8 codewords are enough
    whole = small().fit(X[:300])
    assert est.relative_distortion(X) < 1.05 * whole.relative_distortion(X)


def test_batches_end_near_a_fit_on_all_rows(X):
    est = fed(small(4), X, 250)
    whole = small(4).fit(X)
    assert est.relative_distortion(X) < 1.05 * whole.relative_distortion(X)
    assert len(est.codes_) == 250
    assert est.n_iter_ <= len(est.history_)
    assert not hasattr(est, "_held")


@pytest.mark.parametrize(
    "make",
    [
        lambda: small(3, init="random"),
        lambda: gk.CartesianKMeans(3, 8, random_state=0),
        lambda: gk.OptimizedCartesianKMeans(1, 3, 8, random_state=0, max_iter=5),
    ],
    ids=["no stages", "ck-means", "ock-means"],
)
def test_every_estimator_follows_batches(make, X):
    est, start = fed(make(), X, 400), make().fit(X[:400])
    assert est.relative_distortion(X) < start.relative_distortion(X)
    assert est.relative_distortion(X) < 1.1 * make().fit(X).relative_distortion(X)


def test_a_fit_goes_on_with_batches(X):
    est = small(4).fit(X[:500])
    before = est.relative_distortion(X)
    fed(est, X[500:], 500)
    assert est.relative_distortion(X) < before
    assert est.history_.shape == (est.n_iter_ + 5 + 5,)  # two stages before


def test_decay_follows_data_that_changes(rng, X):
    new = correlated(rng, 4000, 6) * 2 - 5
    keeping, following = (fed(small(), X, 500, decay=decay) for decay in (1.0, 0.5))
    fed(keeping, new, 500)
    fed(following, new, 500, decay=0.5)
    alone = small().fit(new).relative_distortion(new)
    assert following.relative_distortion(new) < 1.15 * alone
    assert following.relative_distortion(new) < keeping.relative_distortion(new)


def kept(est):
    """Rows kept since the data turned."""
    return sum(map(len, est._turn)) if hasattr(est, "_turn") else 0


def followed(est, X, size, monkeypatch, factor, decay=0.9):
    """A copy of ``est`` after batches, of which one is odd at ``factor`` times the usual distortion."""
    monkeypatch.setattr("gkmeans.streaming.TURN", factor)
    return fed(copy.deepcopy(est), X, size, decay=decay)


@pytest.fixture
def other_kind(rng):
    return np.maximum(correlated(rng, 4000, 6), 0) ** 2 * [1, 9, 1, 9, 1, 9]


@pytest.mark.parametrize("size", [500, 1000, 2000])
def test_data_that_turns_is_fitted_anew(size, X, other_kind, monkeypatch):
    start, new = small(4, 16).fit(X), other_kind
    alone = small(4, 16).fit(new).relative_distortion(new)
    noticed, unnoticed = (followed(start, new, size, monkeypatch, factor) for factor in (1.5, np.inf))
    assert noticed.relative_distortion(new) < 1.6 * alone  # 0.9 forgets quickly
    assert noticed.relative_distortion(new) < unnoticed.relative_distortion(new)
    assert kept(noticed) < 16 * 4 * 16  # no more than a start takes
    assert noticed.history_.size > unnoticed.history_.size
    assert len(noticed.codes_) == size


@pytest.mark.parametrize(("size", "rows"), [(1, 100), (4, 200), (500, 2000)])
def test_rows_of_the_same_kind_leave_the_model(size, rows, X, monkeypatch):
    start = small(4, 16).fit(X[:2000])
    noticed, unnoticed = (followed(start, X[2000:][:rows], size, monkeypatch, f, 0.999) for f in (1.5, np.inf))
    assert noticed.relative_distortion(X) < 1.02 * unnoticed.relative_distortion(X)


def test_odd_batches_among_good_ones_leave_the_model(rng, X, monkeypatch):
    start, odd = small(4, 16).fit(X), rng.standard_normal((200, 6)) * X.std()
    batches = np.concatenate([odd, X[:2000]])
    noticed, unnoticed = (followed(start, batches, 100, monkeypatch, factor, 0.999) for factor in (1.5, np.inf))
    assert kept(followed(start, odd, 100, monkeypatch, 1.5, 0.999)) == 200
    assert noticed.relative_distortion(X) < 1.02 * unnoticed.relative_distortion(X)


def test_no_batch_is_kept_where_nothing_fades(rng, X):
    est = fed(small(), X, 500)
    est.partial_fit(100 * rng.standard_normal((500, 6)))
    assert kept(est) == 0


@pytest.mark.parametrize("factor", [0, 1e-25, 1e-38])
def test_batches_without_a_size_do_not_disturb_those_after_them(factor, X):
    est = small(4, 16).fit(X[:2000])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gk.DataWarning)
        for part in (X[:500] * factor, X[500:1000], X[1000:2000], X[2000:4000]):
            est.partial_fit(part, decay=0.9)
    assert 0 < est.seen_.usual < 1
    assert est.relative_distortion(X) < 1


def test_a_saved_model_knows_what_was_usual(X, other_kind, tmp_path):
    est = small(4, 16).fit(X).partial_fit(X[:500], decay=0.9)
    est.save(tmp_path / "model")
    assert gk.load(tmp_path / "model").seen_.usual == est.seen_.usual > 0


def test_a_function_may_fill_one_array_again_and_again(X):
    def one_array():
        buffer = np.empty_like(X[:300])
        for first in range(0, 1200, 300):
            buffer[:] = X[first : first + 300]
            yield buffer

    assert same_bits(small().fit(gk.Batches(one_array)), small().fit(X[:1200]))


class Loader:
    """Batches that are made as they are asked for, all in one array; in another order each time where it shuffles."""

    def __init__(self, X, shuffles=False):
        self.X, self.shuffles, self.passes = X, shuffles, 0

    def __iter__(self):
        buffer, self.passes = np.empty_like(self.X[:300]), self.passes + 1
        X = self.X[np.random.default_rng(self.passes).permutation(len(self.X))] if self.shuffles else self.X
        for first in range(0, len(X), 300):
            buffer[:] = X[first : first + 300]
            yield buffer


def test_an_object_may_fill_one_array_again_and_again(X):
    assert same_bits(small().fit(gk.Batches(Loader(X[:1200]))), small().fit(X[:1200]))


def test_batches_that_are_shuffled_in_each_pass_are_refused(X):
    with pytest.raises(ValueError, match="do not shuffle"):
        small().fit(gk.Batches(Loader(X[:1200], shuffles=True)))


def test_a_look_over_wide_rows_takes_few_blocks_at_once(monkeypatch):
    monkeypatch.setattr(survey, "CHUNK_FLOATS", 5000)
    taken = []
    blocks = (taken.append(i) or np.full((10, 100), float(i)) for i in range(40))
    with Workers(2) as workers:
        looks = survey._looks(blocks, workers)
        next(looks)
        assert len(taken) == 5
        assert len(list(looks)) == 39


def test_models_fitted_anew_are_not_merged(X, other_kind):
    start = small(4, 16).fit(X).mark_start()
    models = [fed(copy.deepcopy(start), part, 1000, decay=0.9) for part in (X, other_kind)]
    assert "turned" in message_of(lambda: gk.merge(models))


def test_a_frame_whose_data_turns_gives_no_warning(X, other_kind):
    old, new = (pd.DataFrame(rows, columns=list("abcdef")) for rows in (X, other_kind))
    est = small(4, 16).fit(old)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        est.partial_fit(new[:1000], decay=0.9).partial_fit(new[1000:3000], decay=0.9)
    assert est.feature_names_in_.tolist() == list("abcdef")


def test_decay_of_nothing_forgets_all_before(X):
    est = fed(small(), X[:1000], 500)
    est.partial_fit(X[1000:2000], decay=0)
    assert est.seen_.weight == 0
    assert est.seen_.since[-1].counts.sum() == 2 * 1000


def test_batches_give_equal_bits_for_any_number_of_threads(X):
    one, two = (fed(small(n_jobs=n), X, 700, decay=0.9) for n in (1, 2))
    assert one.dictionaries_.tobytes() == two.dictionaries_.tobytes()


def test_batches_of_a_frame_keep_its_names(X):
    frame = pd.DataFrame(X, columns=list("abcdef"))
    est = fed(small(), frame, 100)
    assert list(est.feature_names_in_) == list("abcdef")
    with pytest.raises(ValueError, match="feature names"):
        est.partial_fit(frame[list("fedcba")])


def test_a_bad_batch_leaves_the_model_as_it_was(X):
    est = fed(small(), X[:1000], 500)
    before = est.dictionaries_.copy(), est.seen_
    wrong = X[:50].copy()
    wrong[3, 2] = np.nan
    assert "row 3, column 2" in message_of(lambda: est.partial_fit(wrong))
    assert "6 columns" in message_of(lambda: est.partial_fit(X[:, :5]))
    for decay in (-0.1, 1.5, "much", None, True):
        assert "decay" in message_of(lambda decay=decay: est.partial_fit(X, decay=decay))
    assert (est.dictionaries_ == before[0]).all()
    assert est.seen_ is before[1]


def test_a_model_without_codes_says_what_batches_need(X, tmp_path):
    small().fit(X[:500]).save(tmp_path / "model")
    est = gk.load(tmp_path / "model")
    assert "codes_ = encode" in message_of(lambda: est.partial_fit(X))
    est.codes_ = est.encode(X[:500])
    fed(est, X, 500)
    assert est.relative_distortion(X) < 0.3


# ---- save, load, merge


@pytest.mark.parametrize("C", [1, 3])
def test_a_loaded_model_goes_on_as_the_saved_one(C, X, tmp_path):
    est = fed(small(C, order=1), X[:2000], 500, decay=0.8)
    est.save(tmp_path / "model")
    again = gk.load(tmp_path / "model")
    for one in (est, again):
        fed(one, X[2000:], 500, decay=0.8)
    assert est.dictionaries_.tobytes() == again.dictionaries_.tobytes()
    assert est.seen_.digest == again.seen_.digest


def test_sparse_counts_are_saved_too(X, tmp_path, monkeypatch):
    monkeypatch.setattr("gkmeans.update.PAIRS_BYTES", 0)
    est = fed(small(), X[:1000], 500, decay=0.8)
    est.save(tmp_path / "model")
    again = gk.load(tmp_path / "model").seen_.since[-1].Z[0, 1]
    assert (again.toarray() == est.seen_.since[-1].Z[0, 1].toarray()).all()


def test_merged_models_are_one_that_saw_all_batches(X, tmp_path):
    small().fit(X[:1000]).partial_fit(X[:200]).mark_start().save(tmp_path / "start")
    models = []
    for part in (X[1000:2500], X[2500:]):
        fed(gk.load(tmp_path / "start"), part, 500).save(tmp_path / "part")
        models.append(gk.load(tmp_path / "part"))
    merged = gk.merge(models)
    one = fed(gk.load(tmp_path / "start"), X[1000:], 500)
    assert merged.seen_.total(0).counts.sum() == one.seen_.total(0).counts.sum() == 2 * 4200  # the start counts once
    assert merged.relative_distortion(X) < 1.03 * one.relative_distortion(X)
    assert merged.relative_distortion(X) < max(model.relative_distortion(X) for model in models)
    fed(merged, X[:500], 250)


def test_models_of_different_starts_are_not_merged(X):
    one, other = (fed(small(random_state=seed), X[:1500], 500) for seed in (0, 1))
    assert "start" in message_of(lambda: gk.merge([one, other]))
    assert "partial_fit" in message_of(lambda: gk.merge([one, small().fit(X)]))
    assert "at least one" in message_of(lambda: gk.merge([]))
    assert "GroupKMeans" in message_of(lambda: gk.merge([one, 3]), (TypeError,))
    assert gk.merge([one]).dictionaries_.shape == one.dictionaries_.shape


def test_merged_weights_of_a_start_must_agree(X):
    start = fed(small(), X[:1000], 500)
    models = []
    for decay in (1.0, 0.5):
        model = fed(small(), X[:1000], 500)
        models.append(model.partial_fit(X[1000:2000], decay=decay))
    assert models[0].seen_.digest == start.seen_.digest
    assert "decay" in message_of(lambda: gk.merge(models))


# ---- a fit on batches


@pytest.fixture
def tiny_chunks(monkeypatch):
    monkeypatch.setattr(_rows, "CHUNK_ROWS", 100)
    monkeypatch.setattr(_rows, "READ_ROWS", 64)


OPTIONS = {
    "hierarchical": {},
    "kmeans": {"init": "kmeans"},
    "random": {"init": "random"},
    "relaxed": {"relaxation": 0.5},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_fit_on_batches_is_that_on_the_array(name, X, tiny_chunks):
    X = X[:700]
    array = small(4, **OPTIONS[name]).fit(X)
    for edges in ([0, 1, 99, 100, 100, 613, 700], list(range(0, 701, 7))):
        parts = [X[a:b] for a, b in itertools.pairwise(edges)]
        assert same_bits(array, small(4, **OPTIONS[name]).fit(gk.Batches(parts)))


def test_a_fitted_estimator_starts_a_fit_on_batches(X, tiny_chunks):
    first = small().fit(X[:700])
    one, two = (small(init=first).fit(data) for data in (X[:700], gk.Batches([X[:300], X[300:700]])))
    assert same_bits(one, two)


def test_batches_come_from_files_of_every_kind(X, tmp_path):
    np.save(tmp_path / "a.npy", X[:500])
    pd.DataFrame({"vector": list(X[500:900])}).to_parquet(tmp_path / "b.parquet")
    np.save(tmp_path / "c.npy", np.asfortranarray(X[900:1000]))
    with open(tmp_path / "d.fvecs", "wb") as file:
        for row in X[1000:1200]:
            file.write(np.int32(6).tobytes() + row.tobytes())
    files = [tmp_path / name for name in ("a.npy", "b.parquet", "c.npy", "d.fvecs")]
    assert same_bits(small().fit(X[:1200]), small().fit(gk.Batches(files)))
    assert same_bits(small().fit(X[:500]), small().fit(gk.Batches(files[0])))


def test_each_batch_is_read_once_a_pass(X):
    passes = []

    def batches():
        passes.append(0)
        for start in range(0, 1000, 100):
            passes[-1] += 1
            yield X[start : start + 100]

    est = small(init="random", max_iter=3, tol=0).fit(gk.Batches(batches))
    # a look, the rows of the start, greedy codes, and a pass for each iteration; more only to move unused codewords
    assert set(passes) == {10}
    assert 6 <= len(passes) <= 7
    assert est.n_features_in_ == 6


def test_a_checkpoint_of_batches_is_that_of_the_array(X, tmp_path, tiny_chunks):
    whole = small().fit(X[:700], checkpoint=tmp_path)
    again = small().fit(gk.Batches([X[:300], X[300:700]]), checkpoint=tmp_path)
    assert same_bits(whole, again)


BAD = {
    "an iterator": (lambda X: iter([X]), ["list_iterator", "once", "function"]),
    "a number": (lambda X: 3, ["iterable"]),
    "nothing": (lambda X: [], ["0 rows", "at least one"]),
    "widths": (lambda X: [X, X[:, :5]], ["batch 1", "5 columns", "6"]),
    "dtypes": (lambda X: [X, X.astype(float)], ["batch 1", "float64", "float32", "astype"]),
    "one dimension": (lambda X: [X[0]], ["batch 0", "(6,)"]),
    "strings": (lambda X: [np.array([["a"]])], ["batch 0", "U1"]),
    "NaN far away": (lambda X: [X] * 3 + [np.full((1, 6), np.nan, np.float32)], ["NaN", "row 12000", "column 0"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_batches_are_explained(name, X):
    make, words = BAD[name]
    text = message_of(lambda: small().fit(gk.Batches(make(X))))
    assert all(word in text for word in words), text


def test_a_missing_file_is_named():
    with pytest.raises(gk.FileError, match=r"no/file\.npy"):
        small().fit(gk.Batches(["no/file.npy"]))


def test_a_generator_is_explained(X):
    assert "gkmeans.Batches" in message_of(lambda: small().fit(row for row in X))
    assert "gkmeans.encode_file" in message_of(lambda: small().fit(X).encode(gk.Batches([X])))


@pytest.mark.parametrize("later", [900, 1100])
def test_batches_that_change_between_passes_are_an_error(later, X):
    sizes = iter([1000])
    batches = gk.Batches(lambda: [X[: next(sizes, later)]])
    assert "1000 rows in the first pass" in message_of(lambda: small(init="random").fit(batches))


def test_rows_of_a_stream_are_taken_in_the_order_asked_for(rng, tiny_chunks):
    X = rng.standard_normal((530, 3)).astype(np.float32)
    stream = Stream([X[:7], X[7:300], X[300:]], X.shape, Frame(np.ones(3, np.float32)))
    index = rng.integers(0, 530, 40)
    assert (X[index] == stream.take(index).X).all()
    assert (stream.block(index, slice(1, 3)) == Rows(X, stream.frame).block(index, slice(1, 3))).all()
    assert [part.stop for part, _ in stream.chunks()] == [64, 128, 192, 256, 320, 384, 448, 512, 530]  # whole blocks


def test_batches_are_regrouped_without_a_row_lost():
    batches = [np.arange(a, b)[:, None] for a, b in ((0, 3), (3, 3), (3, 14), (14, 15))]
    assert [group[:, 0].tolist() for group in regrouped(batches, 5)] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11, 12, 13, 14],
    ]


def test_what_is_read_ahead_and_written_behind_keeps_its_order_and_its_errors():
    assert list(ahead(range(50))) == list(range(50))
    written = []
    with behind(written.append) as write:
        for item in range(20):
            write(item)
    assert written == list(range(20))
    with pytest.raises(ZeroDivisionError):
        list(ahead(1 / item for item in (1, 0)))
    with pytest.raises(ZeroDivisionError), behind(lambda item: 1 / item) as write:
        write(0)


# ---- the first look


def test_distinct_rows_are_counted_in_bounded_memory(rng, monkeypatch):
    monkeypatch.setattr(survey, "KEYS", 1000)
    few, many = Distinct(), Distinct()
    values = rng.standard_normal(100_000)
    for start in range(0, 100_000, 700):
        few.add(np.repeat(values[:40], 20))
        many.add(values[start : start + 700])
    assert few.count() == 40
    assert 0.8 < many.count() / 100_000 < 1.2
    assert len(many._kept) <= 1000


def test_a_survey_finds_the_frame_of_the_rows(X):
    with Workers(2) as workers:
        found = survey.survey(survey.blocks_of(X), workers)
        expected = Frame.of(X, workers)
        assert found.energy == pytest.approx(Rows(X, expected).energy(workers))
    np.testing.assert_allclose(found.frame.shift, expected.shift, rtol=1e-6)
    assert (found.shape, found.dtype, found.distinct) == ((4000, 6), "float32", 4000)


def test_more_rows_than_can_be_counted_are_refused(X, monkeypatch):
    monkeypatch.setattr(survey, "MOST_ROWS", 100)
    assert "at most 100" in message_of(lambda: small().fit(X))


MEMORY = """
import json, resource, sys
import numpy as np
import gkmeans as gk
path = sys.argv[1]
X = gk.vectors.read(path)
est = gk.GroupKMeans(2, 8, order=1, init='random', relaxation=0, max_iter=1, random_state=0, n_jobs=1)
est.fit(np.array(X[:20000]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
est.fit(gk.Batches(path))
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


def test_a_fit_on_a_file_does_not_hold_it(tmp_path):
    path = tmp_path / "big.npy"
    X = np.lib.format.open_memmap(path, "w+", np.float32, (400_000, 64))
    X[:] = np.random.default_rng(0).standard_normal((1000, 64)).repeat(400, axis=0)
    X.flush()
    del X
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEMORY, path, "batches"], capture_output=True, text=True
    )
    # the file has 102 MB; chunks of 33 MB, of which two or three are there at once, and codes of 3 MB
    assert json.loads(out.stdout) < 90_000, out.stderr


def test_seen_statistics_of_a_start_have_no_batches(X, workers):
    est = small().fit(X)
    seen = est._what_was_seen(workers)
    assert all(not one.counts.any() for one in seen.since)
    assert seen.total(0).counts.sum() == 2 * len(X)
    assert seen.faded(0.5).weight == 0.5

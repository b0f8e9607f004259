"""Relaxed training: what it gains on new rows, that it ends well for any data, and its parts by hand."""

import pickle

import dask.array as da
import numpy as np
import pytest

import gkmeans as gk
import reference
from conftest import correlated, message_of, same_bits
from gkmeans import distributed, narrowing, passes, relaxation, training
from gkmeans._frame import Frame
from gkmeans._progress import Reporter
from gkmeans._rows import Rows, decode
from gkmeans.assignment import GroupAssignment
from gkmeans.checkpoint import State
from gkmeans.dictionaries import Dictionaries
from gkmeans.estimators import relaxing
from gkmeans.folds import FOLDS, Folds, heated, held_of, spread, turns
from gkmeans.relaxation import ITERATIONS, SAMPLE_HEAT, mean_of, warmed
from gkmeans.shrinkage import Shrinkage
from gkmeans.training import Run, updated
from gkmeans.update import Statistics

INITS = ("random", "kmeans", "hierarchical")


def small(C=4, K=8, **options):
    return gk.GroupKMeans(C, K, **({"max_iter": 6, "init_iter": 3, "random_state": 0} | options))


def rows_of(X):
    return Rows(np.asarray(X, np.float32), Frame(np.zeros(X.shape[1], np.float32)))


def ends_well(est, X):
    """The last of the history is the distortion of the codes, and everything is a number."""
    X = np.asarray(X)
    assert est.codes_.shape == (len(X), est.n_dictionaries)
    assert est.codes_.max() < est.n_codewords
    assert np.isfinite(est.dictionaries_).all()
    assert np.isfinite(est.history_).all()
    assert len(est.history_[-est.n_iter_ :]) == est.n_iter_
    assert est.relative_distortion(X, est.codes_) == pytest.approx(est.history_[-1], rel=1e-5, abs=1e-9)
    energy = (X.astype(float) ** 2).sum()
    by_hand = reference.distortion(X, est.dictionaries_, est.codes_) / energy
    assert est.history_[-1] == pytest.approx(by_hand, rel=1e-4, abs=1e-9)


# ---- what it gains


@pytest.mark.parametrize(("C", "K", "order"), [(4, 16, 2), (8, 16, 1)])
def test_new_rows_are_coded_better_than_by_plain_training(C, K, order):
    sample = gk.datasets.load_sample()
    plain, relaxed = (
        small(C, K, order=order, relaxation=heat, effort=3, max_iter=15, init_iter=5).fit(sample.learn[:2000])
        for heat in (0, 0.5)
    )
    new = sample.base[:2000]
    assert relaxed.relative_distortion(new) < 0.99 * plain.relative_distortion(new)


@pytest.mark.usefixtures("untried")
def test_rows_in_turn_lose_nothing_by_their_order(rng):
    # one row of each cluster after the other: every fourth row would be of the same clusters
    clusters = rng.standard_normal((32, 8)) * 20
    X = (clusters[np.arange(960) % 32] + rng.standard_normal((960, 8))).astype(np.float32)
    new = (clusters[np.arange(320) % 32] + rng.standard_normal((320, 8))).astype(np.float32)
    plain, relaxed = (small(1, 32, order=1, relaxation=heat, max_iter=10).fit(X) for heat in (0, 0.5))
    assert relaxed.relative_distortion(new) <= 1.02 * plain.relative_distortion(new)


@pytest.mark.usefixtures("untried")
def test_without_relaxation_training_is_plain(rng):
    X = correlated(rng, 400, 8)
    est = small(relaxation=0, max_iter=20).fit(X)
    last = est.history_[-est.n_iter_ :]
    assert (np.diff(last) <= 1e-6 * last[:-1]).all()
    assert est.n_iter_ < 20
    assert not same_bits(est, small(relaxation=1e-3, max_iter=20).fit(X))


@pytest.mark.usefixtures("untried")
def test_more_heat_moves_the_codes_further(rng):
    X = correlated(rng, 500, 8)
    start = small(relaxation=0).fit(X).dictionaries_
    first = [small(init=start, relaxation=heat, max_iter=4).fit(X).history_[0] for heat in (0.1, 0.5, 2)]
    assert first[0] < first[1] < first[2]


# ---- the contract of a fit


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.usefixtures("untried")
def test_same_seed_gives_the_same_bits_for_1_and_2_threads(init, order, rng, monkeypatch):
    monkeypatch.setattr("gkmeans._parallel.BLOCK_FLOATS", 64 * 4 * 8)
    X = correlated(rng, 700, 40)
    one, again, two = (small(init=init, order=order, max_iter=4, n_jobs=jobs).fit(X) for jobs in (1, 1, 2))
    assert same_bits(one, again)
    assert same_bits(one, two)
    assert not same_bits(one, small(init=init, order=order, max_iter=4, random_state=1).fit(X))


@pytest.mark.parametrize("init", [*INITS, "array"])
@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.usefixtures("untried")
def test_every_start_and_order_ends_with_the_distortion_of_its_codes(init, order, rng):
    X = correlated(rng, 300, 6)
    start = X[rng.permutation(300)[:32]].reshape(4, 8, 6) / 4 if init == "array" else init
    est = small(init=start, order=order, max_iter=9).fit(X)
    ends_well(est, X)
    assert est.n_iter_ == 9
    assert est.history_[-1] < min(est.history_[-9], 0.2)


@pytest.mark.usefixtures("untried")
def test_a_fitted_estimator_is_a_start(rng):
    X = correlated(rng, 300, 6)
    first = small(relaxation=0).fit(X)
    est = small(init=first).fit(X)
    ends_well(est, X)
    assert len(est.history_) == est.n_iter_ == 6


@pytest.mark.parametrize("max_iter", [1, 2, 3, ITERATIONS, ITERATIONS + 1, ITERATIONS + 9, 10_000])
@pytest.mark.usefixtures("untried")
def test_iterations_are_those_allowed_up_to_the_end_of_the_noise(max_iter, rng):
    X = correlated(rng, 80, 4)
    est = small(2, 4, init="random", max_iter=max_iter).fit(X)
    assert est.n_iter_ == len(est.history_) == min(max_iter, ITERATIONS + 1)
    ends_well(est, X)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("n", [1, 2, FOLDS - 1, FOLDS, FOLDS + 1, 7])
@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
@pytest.mark.usefixtures("untried")
def test_fewer_rows_than_folds_or_codewords_are_taken(init, n, rng):
    X = correlated(rng, n, 5)
    est = small(2, 8, init=init).fit(X)
    ends_well(est, X)
    assert est.encode(X).shape == (n, 2)
    # as many codewords as rows: nothing needs to be lost but what the shrinkage takes
    assert est.history_[-1] < 0.5


@pytest.mark.parametrize("init", INITS)
@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
def test_equal_rows_and_constant_columns_are_taken(init, rng):
    few = correlated(rng, 3, 5)
    for X in (
        np.resize(few[:1], (50, 5)),
        few[rng.integers(0, 3, 60)],
        np.concatenate([correlated(rng, 60, 3), np.full((60, 2), 7, np.float32)], axis=1),
        np.zeros((20, 5), np.float32),
    ):
        est = small(2, 4, init=init).fit(X)
        assert np.isfinite(est.dictionaries_).all()
        assert est.history_[-1] < 0.1
        if X.any():
            ends_well(est, X)
        np.testing.assert_allclose(est.decode(est.codes_)[:, 3:], X[:, 3:], rtol=0.5, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.usefixtures("untried")
def test_the_unit_of_the_data_does_not_matter(scale, rng):
    X = correlated(rng, 200, 6).astype(float)
    near, far = small().fit(X), small().fit(X * scale)
    assert far.relative_distortion(X * scale) == pytest.approx(near.relative_distortion(X), rel=0.15)


@pytest.mark.parametrize("bad", [-1, -1e-9, np.nan, np.inf, 3, 2.0001, "x", "0.5", True, None, [0.5]])
def test_a_wrong_relaxation_is_named_with_its_rule(bad, rng):
    text = message_of(lambda: small(relaxation=bad).fit(correlated(rng, 50, 4)), ValueError)
    assert f"relaxation={bad!r}" in text
    assert "from 0 (plain training) to 2" in text


@pytest.mark.parametrize("good", [0, 2, 1, np.float32(0.5), 1e-300])
@pytest.mark.usefixtures("untried")
def test_relaxations_from_0_to_2_are_taken(good, rng):
    X = correlated(rng, 60, 4)
    ends_well(small(2, 4, relaxation=good).fit(X), X)


# ---- its parts


def a_run(rows, workers):
    return Run(rows.energy(workers), GroupAssignment(1), 1e-6, np.random.default_rng(0), workers, Reporter("test", 0))


def test_shrinkage_follows_the_held_rows(workers):
    # one row of 12 in one codeword: 1 point draws it to 12 / 2 = 6, 4 points to 12 / 5, 16 to 12 / 17
    others, codes = Statistics.of(np.array([[12.0]]), np.zeros((1, 1), np.uint8)), np.zeros((2, 1), np.uint8)
    start = Dictionaries.single(np.zeros((1, 1, 1), np.float32))

    def solved(shrinkage, held):
        rows = rows_of(np.full((2, 1), held))
        fits = [updated(start, others, workers, points, rough=True) for points in (shrinkage.points, shrinkage.tried)]
        return float(shrinkage.better(*fits, rows, codes).D[0].item())

    shrinkage = Shrinkage()
    assert solved(shrinkage, 3.0) == pytest.approx(12 / 5, rel=1e-3)  # nearer than 6
    assert (shrinkage.points, shrinkage.factor) == (4, 4)
    assert solved(shrinkage, 1.0) == pytest.approx(12 / 17, rel=1e-3)
    assert (shrinkage.points, shrinkage.factor) == (16, 4)
    assert solved(shrinkage, 8.0) == pytest.approx(12 / 17, rel=1e-3)  # 64 points are worse: half as many are next
    assert (shrinkage.points, shrinkage.factor) == (16, 0.5)
    assert solved(shrinkage, 8.0) == pytest.approx(12 / 9, rel=1e-3)
    assert (shrinkage.points, shrinkage.factor) == (8, 0.5)
    assert solved(shrinkage, 0.1) == pytest.approx(12 / 9, rel=1e-3)
    assert (shrinkage.points, shrinkage.factor) == (8, 2)


def test_few_dictionaries_stand_more_noise():
    # the noise that is 0.4 of what is explained: √(0.4 · 0.8 / 0.2) = 1.265 deviations
    assert warmed(4, 0.2, 0.5) == pytest.approx(1.0)  # at most twice
    assert warmed(4, 0.2, 1.0) == pytest.approx(1.2649, rel=1e-4)
    assert warmed(4, 0.2, 2.0) == 2.0  # never less than asked for
    assert warmed(6, 0.2, 0.5) == pytest.approx(0.5 * 2**0.5)
    assert warmed(4, 0.7, 0.5) == 0.5
    for C, left, temperature in ((8, 0.2, 0.5), (2, 0.2, 0.5), (4, 0.0, 0.5), (4, 1.0, 0.5), (4, 0.2, 0.0)):
        assert warmed(C, left, temperature) == temperature


def test_what_is_unexplained_is_a_share_of_the_variance(rng):
    X = rng.standard_normal((64, 3)).astype(np.float32)
    folds = Folds(rows_of(X), np.random.default_rng(0))
    nothing = Dictionaries.single(np.zeros((1, 2, 3), np.float32))
    codes = np.zeros((64, 1), np.uint8)
    expected = (X.astype(float) ** 2).mean(axis=0).sum() / X.var(axis=0, dtype=float).sum()
    assert folds.unexplained(nothing, codes) == pytest.approx(min(1, expected), rel=1e-5)
    assert Folds(rows_of(np.ones((8, 3))), rng).unexplained(nothing, codes[:8]) == 1


def test_starts_without_structure_need_no_trial(rng, monkeypatch):
    X = correlated(rng, 16 * 2 * 8, 8)
    monkeypatch.setattr(gk.GroupKMeans, "_relaxing_pays", None)  # it is not asked
    for init in ("random", "kmeans"):
        ends_well(small(2, 8, init=init).fit(X), X)
    with pytest.raises(TypeError):
        small(2, 8).fit(X)
    with pytest.raises(TypeError):
        small(2, 8, init="random").fit(X[1:])


def test_folds_judge_the_shrinkage_in_turn_and_seldom_in_the_end():
    assert [relaxation.judge(iteration) for iteration in range(1, 5)] == [1, 2, 3, 0]
    none = [None] * 3
    assert [relaxation.judge(iteration) for iteration in range(5, 21)] == [*none, 2, *none, 3, *none, 0, *none, 1]


def test_folds_are_even_and_the_rows_held_are_spread_over_them(monkeypatch):
    monkeypatch.setattr("gkmeans.folds.HELD_ROWS", 3)
    rows = rows_of(np.arange(42.0)[:, None])
    folds = Folds(rows, np.random.default_rng(0))
    of = rows.folds(FOLDS, folds.seed)
    assert sorted(np.bincount(of)) == [10, 10, 11, 11]
    for f, (places, held) in enumerate(zip(folds.places, folds.held, strict=True)):
        mine = np.flatnonzero(of == f)
        assert (places == mine[[0, len(mine) // 2 - (len(mine) % 2 == 0), -1]]).all()
        assert (held.X[:, 0] == places).all()


def test_fewer_rows_are_held_where_they_are_wide(rng, monkeypatch):
    assert [held_of(P) for P in (1, 128, 1024, 2048, 4096, 100_000)] == [4096, 4096, 4096, 2048, 1024, 1024]
    monkeypatch.setattr("gkmeans.folds.HELD_NUMBERS", 40)
    monkeypatch.setattr("gkmeans.folds.SPREAD_ROWS", 2)
    folds = Folds(rows_of(rng.standard_normal((100, 8))), rng)
    assert [len(held) for held in folds.held] == [len(places) for places in folds.places] == FOLDS * [5]


def test_shrinkage_is_judged_by_rows_with_the_codes_they_have():
    rows, codes = rows_of(np.array([[3.0], [5.0]])), np.array([[0], [1]], np.uint8)
    now, then = (Dictionaries.single(np.array([[[a], [b]]], np.float32)) for a, b in ((2.0, 5.0), (3.0, 4.5)))
    shrinkage = relaxation.Shrinkage(1.0, 4.0)
    assert shrinkage.better(now, then, rows, codes) is then  # 1/4 against 1
    assert (shrinkage.points, shrinkage.factor) == (4.0, 4.0)
    assert shrinkage.better(then, now, rows, codes) is then
    assert (shrinkage.points, shrinkage.factor) == (4.0, 0.5)


def test_folds_without_dictionaries_keep_their_codes(rng, workers, monkeypatch):
    rows = rows_of(rng.standard_normal((300, 4)))
    folds = Folds(rows, rng)
    every = [Dictionaries.single(rng.standard_normal((2, 8, 4))) for _ in range(FOLDS)]
    codes = rng.integers(0, 8, (300, 2)).astype(np.uint8)
    first, second = turns()
    assert sorted([*first, *second]) == list(range(FOLDS))
    whole = folds.assigned(every, GroupAssignment(2), codes, workers)
    halves = [[one if f in turn else None for f, one in enumerate(every)] for turn in (first, second)]
    half, rest = (folds.assigned(some, GroupAssignment(2), codes, workers) for some in halves)
    mine = np.isin(rows.folds(FOLDS, folds.seed), first)
    assert (half.codes[mine] == whole.codes[mine]).all()
    assert (half.codes[~mine] == codes[~mine]).all()
    assert (whole.codes[~mine] != codes[~mine]).any()
    assert half.error + rest.error == whole.error
    for one, two in zip([*half.statistics, *rest.statistics], whole.statistics, strict=True):
        assert (one.W == two.W).all()
        assert (one.counts == two.counts).all()
        assert (one.Z[0, 1] == two.Z[0, 1]).all()
    # one fold after the other, and as another process gets it
    monkeypatch.setattr(passes, "TABLE_BYTES", 0)
    job = pickle.loads(pickle.dumps(passes.Sweep(halves[1], GroupAssignment(2), rows.grid(), folds.seed)))
    again = rows.passed(job, codes, workers)
    assert (again.codes == rest.codes).all()
    assert again.error == rest.error


def test_the_second_turn_is_solved_from_the_new_codes_of_the_first(rng, workers, monkeypatch):
    rows, seen = rows_of(rng.standard_normal((400, 4))), []
    run = a_run(rows, workers)
    folds = Folds(rows, run.rng)
    start = Dictionaries.single(rng.standard_normal((2, 8, 4)))
    codes = rng.integers(0, 8, (400, 2)).astype(np.uint8)
    parts = folds.statistics(codes, start, workers)
    own, heats = Folds.solved, []
    hot = Folds.heated

    def solved(self, turn, trained, parts, codes, shrinkage, judging, run):
        seen.append((turn, list(parts), codes, judging))
        return own(self, turn, trained, parts, codes, shrinkage, judging, run)

    def heated(self, turn, trained, heat, codes, run):
        heats.append(heat)
        return hot(self, turn, trained, heat, codes, run)

    monkeypatch.setattr(Folds, "solved", solved)
    monkeypatch.setattr(Folds, "heated", heated)
    numbers = relaxation.numbers_of(Shrinkage(), 0.5, 0)
    state = State((start,) * FOLDS, codes, 0, numbers=numbers)
    for _ in range(2):
        state, error = relaxation.iterated(folds, state, parts, GroupAssignment(2), 0.5, 2, run)
        assert error > 0
    assert [turn for turn, *_ in seen] == 2 * [*turns()]
    assert [judging for *_, judging in seen] == [1, None, None, 2]
    assert heats == sorted(heats, reverse=True)
    assert heats[-1] == 0 < heats[-2]
    for _, latest, codes, _ in seen:  # statistics are always those of the codes
        for one, two in zip(latest, folds.statistics(codes, start, workers), strict=True):
            assert (one.W == two.W).all()
    assert (seen[1][2] != seen[0][2]).any()


def test_folds_assigned_together_or_one_after_the_other_get_the_same_codes(rng, workers, monkeypatch):
    rows = rows_of(rng.standard_normal((500, 4)))
    folds = Folds(rows, rng)
    noisy = [Dictionaries.single(rng.standard_normal((2, 8, 4))) for _ in range(FOLDS)]
    codes = rng.integers(0, 8, (500, 2)).astype(np.uint8)
    together = folds.assigned(noisy, GroupAssignment(2), codes, workers)
    monkeypatch.setattr(passes, "TABLE_BYTES", 0)
    apart = folds.assigned(noisy, GroupAssignment(2), codes, workers)
    assert (together[0] == apart[0]).all()
    assert together[1] == pytest.approx(apart[1])
    again = folds.statistics(together[0], noisy[0], workers)
    for one, two, three in zip(together[2], apart[2], again, strict=True):
        assert (one.W == two.W).all()
        assert (one.W == three.W).all()
        assert (one.Z[0, 1] == three.Z[0, 1]).all()


@pytest.fixture
def solution(rng, workers):
    """Rows of columns of very different spread, codes, and the dictionaries that solve them."""
    X = (rng.standard_normal((600, 5)) * [1, 3, 0.1, 10, 0]).astype(np.float32)
    codes = rng.integers(0, 8, (600, 3)).astype(np.uint8)
    statistics = Statistics.of(X, codes, 8)
    fitted = Dictionaries.single(np.zeros((3, 8, 5), np.float32))
    for _ in range(3):
        fitted = updated(fitted, statistics, workers)
    return X, codes, fitted


def test_spread_is_the_deviation_of_the_residual(solution):
    X, codes, fitted = solution
    X[7, 2] = 1000  # a column that one row carries
    residual = X - reference.decode(fitted.D[0].astype(float), codes)
    np.testing.assert_allclose(
        spread((X - decode(fitted.D[0], codes)).astype(np.float32)), np.sqrt((residual**2).mean(axis=0)), rtol=1e-4
    )


def test_spread_of_rows_that_are_met_exactly_is_nothing():
    X, codes = np.array([[1.0], [2.0]] * 50), np.array([[0], [1]] * 50, np.uint8)
    fitted = Dictionaries.single(np.array([[[1.0], [2.0]]], np.float32))
    assert spread((X - decode(fitted.D[0], codes)).astype(np.float32)).tolist() == [0]


@pytest.mark.parametrize("heat", [0.3, 1.0])
def test_heat_moves_the_sums_by_as_many_deviations(heat, rng):
    D = rng.standard_normal((8, 256, 4)).astype(np.float32)
    deviation = np.array([1.0, 5.0, 0.2, 0.0], np.float32)
    moved = heated(Dictionaries.single(D), deviation, heat, rng).D[0]
    assert moved.dtype == np.float32
    codes = rng.integers(0, 256, (4000, 8))
    change = reference.decode((moved - D).astype(float), codes)
    np.testing.assert_allclose(change.std(axis=0), heat * deviation, rtol=0.1)


def test_no_heat_leaves_the_codewords_and_the_generator(rng):
    fitted = Dictionaries.single(np.ones((2, 3, 4), np.float32))
    before = rng.bit_generator.state
    assert heated(fitted, np.ones(4), 0, rng) is fitted
    assert rng.bit_generator.state == before


# ---- samples


def test_the_last_eighth_of_the_iterations_takes_samples_unless_they_are_few():
    counts = {0: 0, 7: 0, 23: 0, 24: 3, 31: 3, 50: 6, ITERATIONS: 12}
    assert {iterations: relaxation.sampled_of(iterations) for iterations in counts} == counts


def test_samples_add_up_and_leave_the_dictionaries(rng, workers, monkeypatch):
    rows = rows_of(rng.standard_normal((400, 4)))
    run = a_run(rows, workers)
    folds = Folds(rows, run.rng)
    start = Dictionaries.single(rng.standard_normal((2, 8, 4)))
    codes = rng.integers(0, 8, (400, 2)).astype(np.uint8)
    parts, seen, heats = folds.statistics(codes, start, workers), [], []
    own, hot = Folds.assigned, Folds.heated

    def assigned(self, noisy, way, codes, workers):
        found = own(self, noisy, way, codes, workers)
        seen.append(found.codes)
        return found

    def heated(self, turn, trained, heat, codes, run):
        heats.append((heat, [trained[f].D[0] for f in turn]))
        return hot(self, turn, trained, heat, codes, run)

    monkeypatch.setattr(Folds, "assigned", assigned)
    monkeypatch.setattr(Folds, "heated", heated)
    numbers = relaxation.numbers_of(Shrinkage(), 0.5, 0)
    state = State((start,) * FOLDS, codes, 5, numbers=numbers)
    trained, at_rest = relaxation.at_rest(folds, state, parts, run), list(parts)
    errors, judged = [2.0, 1.0], []  # without and with samples

    def verdict(self, fitted, *rest):
        judged.append(fitted)
        return errors.pop(0)

    monkeypatch.setattr(Folds, "errors", verdict)
    by_fold, times = relaxation.sampled(folds, state, trained, GroupAssignment(2), 0.5, 3, run)
    found = sum(by_fold[1:], by_fold[0])
    assert times == 3
    for f in range(FOLDS):  # three samples bear the shrinkage of three
        others = folds.seen_by(f, by_fold)
        expected = updated(trained[f], others, workers, 3 * Shrinkage().points, rough=True)
        assert (judged[0][f].D[0] == trained[f].D[0]).all()
        np.testing.assert_allclose(judged[1][f].D[0], expected.D[0], atol=1e-6)
    assert len(seen) == 6  # two turns each
    expected = [folds.statistics(codes, start, workers) for codes in seen[1::2]]
    np.testing.assert_allclose(found.W, sum(part.W for sample in expected for part in sample), rtol=1e-12, atol=1e-12)
    assert (found.counts.sum(axis=1) == 3 * 400).all()
    assert (seen[1] != seen[3]).any()
    assert [heat for heat, _ in heats] == 6 * [0.5]
    assert (heats[0][1][0] != start.D[0]).any()  # solved from the last codes
    for turn in (0, 1):  # each turn has its own folds, and their dictionaries stay
        for sample in (1, 2):
            for one, two in zip(heats[turn][1], heats[2 * sample + turn][1], strict=True):
                assert (one == two).all()
    assert len(run.history) == 3
    errors += [1.0, 2.0]
    by_fold, times = relaxation.sampled(folds, state, trained, GroupAssignment(2), 0.5, 3, run)
    assert times == 1
    for part, again in zip(at_rest, by_fold, strict=True):
        assert (part.W == again.W).all()
        assert (part.counts == again.counts).all()
        assert (part.Z[0, 1] == again.Z[0, 1]).all()


def test_rows_held_judge_samples_by_the_best_codes_they_find(rng, workers):
    rows = rows_of(rng.standard_normal((100, 3)))
    folds = Folds(rows, np.random.default_rng(0))
    fitted = [Dictionaries.single(rng.standard_normal((1, 5, 3))) for _ in range(FOLDS)]
    found = folds.errors(fitted, GroupAssignment(1), np.zeros((100, 1), np.uint8), workers)
    X = rows.block(slice(None))
    expected = 0.0
    for f, one in enumerate(fitted):
        far = X[rows.folds(FOLDS, folds.seed) == f][:, None] - one.D[0][0][None]
        expected += (far.astype(float) ** 2).sum(axis=2).min(axis=1).sum()
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.usefixtures("untried")
def test_new_rows_are_coded_better_by_dictionaries_from_samples(monkeypatch):
    sample = gk.datasets.load_sample()
    learn, new = sample.learn[:4000], sample.base[:4000]
    errors = []
    for fewest in (3, ITERATIONS):
        monkeypatch.setattr(relaxation, "FEWEST_SAMPLES", fewest)
        est = small(4, 64, init="random", max_iter=50).fit(learn)
        ends_well(est, learn)
        assert est.n_iter_ == 50
        errors.append(est.relative_distortion(new))
    assert errors[0] < 0.995 * errors[1]


@pytest.mark.parametrize("verdict", [True], indirect=True)
@pytest.mark.usefixtures("verdict")
def test_dictionaries_alone_are_those_that_the_last_codes_ask_for(rng, workers, monkeypatch):
    rows = rows_of(correlated(rng, 600, 5))
    run = a_run(rows, workers)
    start, points = Dictionaries.single(rng.standard_normal((2, 8, 5))), []

    def solved(fitted, statistics, workers, shrinkage):
        points.append(shrinkage)
        return updated(fitted, statistics, workers, shrinkage)

    monkeypatch.setattr(relaxation, "updated", solved)
    found = relaxation.relax(rows, start, None, run, GroupAssignment(2), 0.5, 40)
    _, shrinkage = relaxation.known(found.numbers)
    assert points == [relaxation.sampled_of(39) * shrinkage.points, shrinkage.points]
    statistics = Statistics.of(rows.block(slice(None)), found.codes, 8)
    expected = updated(found.dictionaries, statistics, workers, shrinkage.points)
    np.testing.assert_allclose(found.alone.full(), expected.full(), atol=1e-4)
    assert np.abs(found.alone.full() - found.dictionaries.full()).max() > 1e-3


@pytest.mark.parametrize(("relaxed", "sampled"), [(0.1, 0.1), (1.0, SAMPLE_HEAT)])
@pytest.mark.usefixtures("untried")
def test_samples_are_under_the_noise_asked_for_up_to_a_limit(relaxed, sampled, rng, monkeypatch):
    heats, own = [], Folds.heated

    def heated(self, turn, trained, heat, codes, run):
        heats.append(heat)
        return own(self, turn, trained, heat, codes, run)

    monkeypatch.setattr(Folds, "heated", heated)
    X = correlated(rng, 800, 8)
    ends_well(small(relaxation=relaxed, init="random", max_iter=41).fit(X), X)
    assert heats[-2 * relaxation.sampled_of(40) :] == 2 * relaxation.sampled_of(40) * [sampled]
    assert heats[-2 * relaxation.sampled_of(40) - 1] < sampled  # before them it has faded


@pytest.mark.usefixtures("untried")
def test_sparse_counts_of_pairs_which_samples_would_make_grow_take_none(rng, monkeypatch):
    monkeypatch.setattr("gkmeans.update.PAIRS_BYTES", 0)
    monkeypatch.setattr(relaxation, "sampled", lambda *rest: pytest.fail("took samples"))
    X = correlated(rng, 800, 8)
    ends_well(small(init="random", max_iter=41).fit(X), X)


def test_codes_spoilt_by_noise_do_not_shrink_the_codewords_without_end():
    # a codeword has 75 rows; unbounded, shrinkage went on to thousands of points, and training ended at 0.25
    X = np.random.default_rng(0).random((600, 16), np.float32)
    plain, relaxed = (small(4, 8, init="kmeans", max_iter=100, relaxation=r).fit(X).history_[-1] for r in (0, 0.5))
    assert relaxed < plain


def test_no_more_shrinkage_is_tried_than_a_codeword_has_rows(rng, workers):
    rows = rows_of(rng.standard_normal((80, 5)))  # for each of four codewords 20
    folds, start = Folds(rows, rng), Dictionaries.single(rng.standard_normal((2, 4, 5)))
    codes = rng.integers(0, 4, (80, 2)).astype(np.uint8)
    parts = folds.statistics(codes, start, workers)
    for tried, factor in ((20.0, 4.0), (21.0, 0.5)):
        shrinkage, judged = Shrinkage(tried / 4, 4.0), []
        shrinkage.better = lambda now, then, held, codes, judged=judged: judged.append(then) or now
        folds.solved(range(2), [start] * FOLDS, parts, codes, shrinkage, 0, a_run(rows, workers))
        assert (len(judged), shrinkage.factor) == (factor == 4, factor)


def judge_the_other_start(monkeypatch, factor):
    """Makes the errors by the other start so many times what they are; the histories of that start, one a fit."""
    elsewhere, tried = relaxing.Relaxing._from_elsewhere, []

    def judged(self, *arguments):
        if (found := elsewhere(self, *arguments)) is None:
            return None
        begin, errors, history = found
        tried.append(history[:])
        return begin, factor(errors) if callable(factor) else errors * factor, history

    monkeypatch.setattr(relaxing.Relaxing, "_from_elsewhere", judged)
    monkeypatch.setattr(relaxing.Relaxing, "_relaxing_pays", lambda self, plainly, gently: True)
    return tried


def test_a_fit_from_the_other_start_that_was_killed_goes_on_to_the_same_bits(rng, monkeypatch, tmp_path):
    judge_the_other_start(monkeypatch, 0.1)
    X, write, written = correlated(rng, 300, 9), training.write_state, []

    class Killed(BaseException):
        pass

    def crashing(path, *arguments):
        write(path, *arguments)
        written.append(path.name)
        if len(written) == last:
            raise Killed

    last = 0
    monkeypatch.setattr(training, "write_state", crashing)
    whole = small(max_iter=5, init_iter=2).fit(X, checkpoint=tmp_path / "whole")
    moments = len(written)
    assert len(whole.stages_) == 0
    for last in range(2, moments, 3):
        written.clear()
        with pytest.raises(Killed):
            small(max_iter=5, init_iter=2).fit(X, checkpoint=tmp_path / str(last))
        written.clear()
        before, last = last, 0
        again = small(max_iter=5, init_iter=2).fit(X, checkpoint=tmp_path / str(before))
        assert same_bits(whole, again)
        assert (whole.history_ == again.history_).all()


def test_wide_rows_may_be_relaxed_from_the_other_start(rng, monkeypatch):
    tried = judge_the_other_start(monkeypatch, 0.1)
    X = (rng.standard_normal((1100, 20)) @ rng.standard_normal((20, 256))).astype(np.float32)
    X += 0.1 * rng.standard_normal(X.shape, dtype=np.float32)
    est = small(max_iter=6).fit(X)
    ends_well(est, X)
    assert len(est.stages_) == 0
    assert [est.history_[: -est.n_iter_].tolist()] == tried


def test_rows_too_narrow_for_the_other_start_are_relaxed_from_their_own(rng, monkeypatch):
    check, calls = narrowing.Narrow.check, []

    def checked(self, run):
        calls.append(run)
        if len(calls) == 2:
            raise narrowing.TooNarrow("too much of it")
        check(self, run)

    tried = judge_the_other_start(monkeypatch, 0.1)
    monkeypatch.setattr(narrowing.Narrow, "check", checked)
    X = (rng.standard_normal((1100, 20)) @ rng.standard_normal((20, 256))).astype(np.float32)
    est = small(max_iter=6).fit(X + 0.1 * rng.standard_normal(X.shape, dtype=np.float32))
    assert len(calls) == 2
    assert not tried
    assert len(est.stages_) == 1


def test_the_other_start_must_gain_more_than_chance_would_have_it(rng, monkeypatch):
    X, trial_errors, own = correlated(rng, 500, 9), relaxing.Relaxing._trial_errors, []

    def noted(self, *arguments):
        found = trial_errors(self, *arguments)
        own[:] = found[1:] or own
        return found

    def by_a_hair(errors):  # less in sum, by what one row gains
        out = own[0] * 1.001
        out[0] -= 0.01 * own[0].sum()
        return out

    monkeypatch.setattr(relaxing.Relaxing, "_trial_errors", noted)
    judge_the_other_start(monkeypatch, by_a_hair)
    assert len(small(max_iter=10).fit(X).stages_) == 1


@pytest.mark.parametrize("other", ["better", "worse"])
def test_few_rows_are_relaxed_from_the_start_that_serves_rows_held_out(other, rng, monkeypatch):
    tried, X = judge_the_other_start(monkeypatch, 0.1 if other == "better" else 10), correlated(rng, 500, 9)
    whole = small(max_iter=10).fit(X)
    ends_well(whole, X)
    assert len(whole.stages_) == (0 if other == "better" else 1)  # k-means has none
    assert whole.n_iter_ == 10
    assert (whole.history_[:-10].tolist() == tried[0]) == (other == "better")
    assert same_bits(whole, small(max_iter=10, n_jobs=1).fit(X))
    assert same_bits(whole, small(max_iter=10).fit(gk.Batches([X[:99], X[99:400], X[400:]])))
    assert same_bits(whole, distributed.fit(small(max_iter=10), da.from_array(X, chunks=(130, 9))))
    if other == "worse":  # as without it
        nothing = (None, np.array([np.inf]), [])
        monkeypatch.setattr(relaxing.Relaxing, "_from_elsewhere", lambda self, *arguments: nothing)
        assert same_bits(whole, small(max_iter=10).fit(X))


@pytest.mark.parametrize("init", ["random", "hierarchical"])
@pytest.mark.usefixtures("untried")
def test_samples_are_the_same_for_threads_and_batches(init, verdict, rng, monkeypatch):
    monkeypatch.setattr("gkmeans._parallel.BLOCK_FLOATS", 64 * 4 * 8)
    monkeypatch.setattr(relaxation, "FEWEST_SAMPLES", 1)
    X = correlated(rng, 900, 9)
    one, two = (small(init=init, max_iter=20, n_jobs=jobs).fit(X) for jobs in (1, 2))
    assert same_bits(one, two)
    assert same_bits(one, small(init=init, max_iter=20).fit(gk.Batches([X[:100], X[100:700], X[700:]])))
    assert len(verdict) == (6 if init == "random" else 18)  # two trials, and again with the rows of the trial
    assert verdict == 3 * verdict[: len(verdict) // 3]


@pytest.mark.parametrize("verdict", [False], indirect=True)
def test_rejected_samples_leave_the_dictionaries_of_the_last_codes(verdict, rng, workers, monkeypatch):
    rows = rows_of(correlated(rng, 600, 5))
    start = Dictionaries.single(rng.standard_normal((2, 8, 5)))
    codes, taken = [], relaxation.sampled

    def sampled(folds, state, *rest):
        codes.append(state.codes)
        return taken(folds, state, *rest)

    monkeypatch.setattr(relaxation, "sampled", sampled)
    found = relaxation.relax(rows, start, None, a_run(rows, workers), GroupAssignment(2), 0.5, 40)
    assert len(verdict) == 2
    assert found.alone is found.dictionaries
    _, shrinkage = relaxation.known(found.numbers)
    statistics = Statistics.of(rows.block(slice(None)), codes[0], 8)
    expected = updated(found.dictionaries, statistics, workers, shrinkage.points)
    np.testing.assert_allclose(found.dictionaries.full(), expected.full(), atol=1e-4)


def test_what_takes_in_more_rows_keeps_what_samples_moved(rng, workers):
    rows = rows_of(rng.standard_normal((300, 4)))
    run = a_run(rows, workers)
    alone = Dictionaries.single(rng.standard_normal((2, 8, 4)))
    shift = rng.standard_normal((2, 8, 4)).astype(np.float32) / 8
    moved = Dictionaries.single(alone.D[0] + shift)
    codes = rng.integers(0, 8, (300, 2)).astype(np.uint8)
    numbers = relaxation.numbers_of(Shrinkage(), 0.5, 0)
    way = GroupAssignment(1)
    found, _ = relaxation.settled(rows, relaxation.Relaxed(moved, alone, codes, numbers), run, way)
    plain, _ = relaxation.settled(rows, relaxation.Relaxed(alone, alone, codes, numbers), run, way)
    np.testing.assert_allclose(found.D[0], plain.D[0] + shift, atol=1e-6)
    assert np.abs(plain.D[0] - alone.D[0]).max() > 0.1


def test_the_mean_of_the_folds_is_that_of_each_codeword():
    folds = [Dictionaries.single(np.full((1, 2, 1), value, np.float32)) for value in (1, 2, 6)]
    assert mean_of(folds).D[0].ravel().tolist() == [3, 3]


def test_rows_are_assigned_by_dictionaries_that_do_not_know_them(workers):
    # each row has a direction and a codeword of its own, 10 beside it: plain training would meet every row exactly, but
    # the folds without the row leave its codeword where it was, and draw only the others, which are far
    X = 100 * np.eye(FOLDS, dtype=np.float32)
    start = Dictionaries.single((X * 0.9)[None])
    rows = rows_of(X)
    run = a_run(rows, workers)
    relaxation.relax(rows, start, None, run, GroupAssignment(1), 1e-9, 2)
    assert run.history[0] == pytest.approx(10**2 / 100**2, rel=1e-4)


def test_fewer_than_four_rows_a_codeword_are_trained_plainly(rng):
    X = correlated(rng, 15, 4)
    relaxed, plain = small(2, 4).fit(X), small(2, 4, relaxation=0).fit(X)
    assert (relaxed.dictionaries_ == plain.dictionaries_).all()
    assert (relaxed.history_ == plain.history_).all()


def test_rows_held_out_reject_a_relaxation_that_spoils_the_dictionaries(rng, monkeypatch):
    def spoiled(rows, start, codes, run, way, temperature, max_iter, narrow):
        calls.append(len(rows))
        nothing = Dictionaries.single(0 * start.full())
        return relaxation.Relaxed(nothing, nothing, np.zeros((len(rows), 2), np.uint8), {})

    calls = []
    monkeypatch.setattr("gkmeans.estimators.relaxing.relax", spoiled)
    monkeypatch.setattr(gk.GroupKMeans, "_leading", lambda self, *rest: None)  # tests/test_leading.py
    X = correlated(rng, 400, 6)
    est = small(2, 8, max_iter=5).fit(X)
    assert calls == [350, 350]  # all rows less an eighth: trials from two starts, and nothing after them
    assert same_bits(est, small(2, 8, max_iter=5, relaxation=0).fit(X))
    assert (est.history_ == small(2, 8, max_iter=5, relaxation=0).fit(X).history_).all()


def test_the_log_says_what_the_trial_chose(rng, caplog):
    with caplog.at_level("INFO", logger="gkmeans"):
        small(2, 8, max_iter=5).fit(correlated(rng, 400, 6))
    assert any("50 rows held out" in record.getMessage() for record in caplog.records)
    assert any(record.getMessage().startswith("fit, trial, ") for record in caplog.records)


def test_fewer_than_four_iterations_leave_no_room_for_noise(rng):
    X = correlated(rng, 400, 6)
    assert same_bits(small(2, 8, max_iter=3).fit(X), small(2, 8, max_iter=3, relaxation=0).fit(X))

"""The effort of an encoding: what each step gives, where it is set, and what it refuses."""

import copy
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gkmeans as gk
import reference
from conftest import correlated, errors, message_of
from gkmeans import _core, assignment, dictionaries
from gkmeans.encoding import PLAIN_ROUNDS, SWIFT_ROUNDS
from gkmeans.estimators import coding

in_bytes = pytest.mark.skipif(not _core.coarse_products(), reason="this CPU makes no products in bytes")


def small(C=4, K=16, **options):
    return gk.GroupKMeans(C, K, **({"max_iter": 4, "init_iter": 3, "random_state": 0} | options))


@pytest.fixture(scope="module")
def sample():
    return gk.datasets.load_sample()


@pytest.fixture(scope="module")
def fitted(sample):
    return small(8, 16).fit(sample.learn[:1500])


def test_rounds_of_each_effort():
    assert (0, 0, 0, *(1 << step for step in range(7))) == PLAIN_ROUNDS
    assert (0, 1, 3, 6, 10, *(1 << step for step in range(4, 9))) == SWIFT_ROUNDS


@in_bytes
def test_high_efforts_end_with_exact_products_and_codes_given_have_no_others(fitted):
    for effort in range(10):
        alone, given = (fitted._encoding(effort, given)[0] for given in (False, True))
        swift = alone if effort <= 6 else alone.early
        assert isinstance(swift, assignment.SwiftAssignment)
        assert swift.rounds == SWIFT_ROUNDS[effort]
        assert effort <= 6 or alone == assignment.GroupAssignment(2, early=swift)
        assert given == assignment.GroupAssignment(2 if effort > 1 else 1, PLAIN_ROUNDS[effort])


def test_more_effort_lowers_the_distortion(fitted, sample):
    base = sample.base[:600]
    by_effort = [fitted.relative_distortion(base, fitted.encode(base, effort=effort)) for effort in range(10)]
    # a row's start, order or products may change, so that single rows may lose; all rows together gain
    assert (np.diff(by_effort) <= 0).all()
    assert (np.diff(by_effort[:8]) < 0).all() or not _core.coarse_products()
    assert by_effort[9] < 0.98 * by_effort[1]


def test_no_row_loses_by_more_rounds(sample):
    fitted = small(8, 16, relaxation=0).fit(sample.learn[:1500])  # all by exact products
    base = sample.base[:600]
    squared = [errors(fitted, base, fitted.encode(base, effort=effort)) for effort in (2, 3, 5, 8)]
    for fewer, more in itertools.pairwise(squared):
        assert (more <= fewer * (1 + 1e-5)).all()


@in_bytes
@pytest.mark.parametrize(("effort", "plain"), [(4, 2), (6, 4), (7, 6), (9, 8)])
def test_steps_find_as_good_codes_as_fewer_rounds_by_order_2(effort, plain, fitted, sample):
    base = sample.base[:3000]
    exact = copy.deepcopy(fitted).set_params(relaxation=0)
    swift, slow = (
        est.relative_distortion(base, est.encode(base, effort=e)) for est, e in ((fitted, effort), (exact, plain))
    )
    assert swift < 1.002 * slow


def test_codes_given_are_only_improved_at_every_effort(fitted, sample):
    base = sample.base[:600]
    given = fitted.encode(base, effort=9)
    before = errors(fitted, base, given)
    for effort in (0, 2, 4, 8):
        assert (errors(fitted, base, fitted.encode(base, given, effort=effort)) <= before * (1 + 1e-5)).all()


def test_a_second_encoding_makes_no_tables(fitted, sample, monkeypatch):
    est = copy.deepcopy(fitted)
    more = copy.deepcopy(fitted).encode(sample.base[:50], effort=4)
    before = est.encode(sample.base[:50], effort=3), dict(vars(est))
    monkeypatch.setattr(dictionaries.Tables, "of", None)
    again = est.encode(sample.base[:50], effort=3), dict(vars(est))
    np.testing.assert_array_equal(before[0], again[0])
    assert before[1].keys() == again[1].keys()
    np.testing.assert_array_equal(est.encode(sample.base[:50], effort=4), more)  # only the rounds are others
    assert (more != again[0]).any()


def test_changed_models_are_encoded_by_as_they_are(fitted, sample):
    est, base = copy.deepcopy(fitted), sample.base[:200]
    old = est.encode(base)
    for change in ("moved", "turned round"):  # in place: decodings move, and so do the best codes
        if change == "moved":
            est.dictionaries_[0] += 3
        else:
            est.dictionaries_[1] = est.dictionaries_[1, ::-1].copy()
        new = est.encode(base)
        np.testing.assert_array_equal(new, copy.deepcopy(est).encode(base))
        assert (new != old).any()
        old = new
    est.stages_[0].D[0][:] = est.stages_[0].D[0][:, ::-1].copy()
    np.testing.assert_array_equal(est.encode(base, effort=0), copy.deepcopy(est).encode(base, effort=0))
    est.set_params(order=1)
    np.testing.assert_array_equal(est.encode(base), copy.deepcopy(est).encode(base))
    est.fit(sample.learn[:700])
    np.testing.assert_array_equal(est.encode(base), copy.deepcopy(est).encode(base))


def test_few_encoders_are_kept(fitted, sample):
    models = [copy.deepcopy(fitted) for _ in range(2 * coding.READY)]
    for model in models:
        models[0].encode(sample.base[:5])
        model.encode(sample.base[:5])
    held = [one[0]() for one in coding._ready._held]
    assert len(held) == coding.READY
    assert any(one is models[0] for one in held)  # used all the time
    del models, model, held
    assert not any(one[0]() is None for one in coding._ready._held)


def test_settings_are_checked_however_often_a_model_has_encoded(fitted, sample):
    base, cartesian = sample.base[:5], gk.CartesianKMeans(2, 4, random_state=0).fit(sample.learn[:100])
    cartesian.encode(base)
    fitted.encode(base, effort=2)
    with pytest.raises(ValueError, match="effort=0 is for GroupKMeans"):
        cartesian.encode(base, effort=0)
    for effort in (2.0, True):
        with pytest.raises((ValueError, TypeError), match="effort"):
            fitted.encode(base, effort=effort)


def test_threads_encode_by_one_and_by_several_models(fitted, sample):
    models = [fitted, *(copy.deepcopy(fitted) for _ in range(5))]
    expected = fitted.encode(sample.base[:100], effort=3)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: models[i % len(models)].encode(sample.base[:100], effort=3), range(24)))
    assert all((codes == expected).all() for codes in found)


@pytest.mark.parametrize("effort", [0, 1, 3, 7])
def test_models_of_plain_training_replay_their_stages(effort, sample, monkeypatch):
    monkeypatch.setattr(gk.GroupKMeans, "_relaxing_pays", lambda self, *rest: False)
    est = small(8, 16).fit(sample.learn[:1500])
    plain = copy.deepcopy(est).set_params(relaxation=0)
    assert len(est.stages_) > 1
    np.testing.assert_array_equal(
        est.encode(sample.base[:200], effort=effort), plain.encode(sample.base[:200], effort=effort)
    )


def test_every_effort_works_on_cpus_without_bytes(sample, monkeypatch):
    monkeypatch.setattr("gkmeans._core.coarse_products", lambda: False)
    est, base = small(8, 16).fit(sample.learn[:1500]), sample.base[:600]
    by_effort = [est.relative_distortion(base, est.encode(base, effort=effort)) for effort in range(10)]
    assert (np.diff(by_effort) <= 0).all()
    assert by_effort[9] < 0.98 * by_effort[1]


def test_rows_that_are_described_well_are_not_coded_by_bytes(rng):
    X = (rng.standard_normal((3000, 3)) @ rng.standard_normal((3, 64))).astype(np.float32)  # 3 free numbers
    est = small(8, 16, max_iter=20, init_iter=5).fit(X)
    exact = copy.deepcopy(est).set_params(relaxation=0)
    assert not any(isinstance(est._encoding(effort)[0], assignment.SwiftAssignment) for effort in range(7))
    for effort in (0, 2, 5):
        np.testing.assert_array_equal(est.encode(X, effort=effort), exact.encode(X, effort=effort))


@pytest.mark.parametrize("effort", [0, 1, 2, 3, 6])
def test_codes_equal_for_1_and_2_threads(effort, fitted, sample):
    base = sample.base[:1000]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gkmeans._parallel.BLOCK_FLOATS", 300 * 8 * 16)
        one, two = (fitted.set_params(n_jobs=jobs).encode(base, effort=effort) for jobs in (1, 2))
    fitted.set_params(n_jobs=None)
    assert (one == two).all()
    assert one.dtype == np.uint8


def test_encode_takes_an_effort_instead_of_the_estimators_own(sample):
    est = small(effort=2).fit(sample.learn[:500])
    base = sample.base[:300]
    own, more = est.encode(base), est.encode(base, effort=7)
    assert (own != more).any()
    assert (est.encode(base, effort=2) == own).all()
    assert (est.encode(base, effort=np.int64(7)) == more).all()
    assert est.effort == 2
    est.set_params(effort=7)
    assert (est.encode(base) == more).all()
    assert (est.transform(base) == more).all()
    assert est.relative_distortion(base) == est.relative_distortion(base, more)


def test_the_effort_of_an_encoding_does_not_change_the_training(sample):
    learn = sample.learn[:400]
    low, high = (small(effort=effort).fit(learn) for effort in (0, 9))
    assert low.dictionaries_.tobytes() == high.dictionaries_.tobytes()
    assert (low.codes_ == high.codes_).all()


def test_effort_0_and_1_change_single_codes_and_2_pairs(sample):
    est = small(3, 8, effort=9, relaxation=0).fit(sample.learn[:500])  # by exact products
    base = sample.base[:40]
    D = est.dictionaries_.astype(float)
    ends = {effort: errors(est, base, est.encode(base, effort=effort)) for effort in (0, 1, 2)}
    for effort, order in ((0, 1), (1, 1), (2, 2)):
        codes = est.encode(base, effort=effort)
        assert (errors(est, base, reference.assign(base, D, order, codes)) >= ends[effort] * (1 - 1e-5)).all()
    pairs = reference.assign(base, D, 2, est.encode(base, effort=1))
    assert errors(est, base, pairs).sum() < ends[1].sum()


def test_effort_0_replays_the_first_stage_only(sample):
    est = small(8, 16, relaxation=0).fit(sample.learn[:500])
    base = sample.base[:200]
    codes = [est.encode(base, effort=effort) for effort in (0, 1)]
    est.stages_ = est.stages_[:1]
    assert (est.encode(base, effort=1) == codes[0]).all()
    assert (codes[0] != codes[1]).any()


@pytest.mark.parametrize("effort", range(10))
def test_codes_given_are_never_made_worse(effort, fitted, sample, rng):
    base = sample.base[:100]
    given = rng.integers(0, 16, (100, 8))
    found = fitted.encode(base, codes=given, effort=effort)
    before, after = errors(fitted, base, given), errors(fitted, base, found)
    assert (after <= before * (1 + 1e-6)).all()
    assert after.sum() < before.sum()
    good = fitted.encode(base, effort=9)
    kept = errors(fitted, base, fitted.encode(base, codes=good, effort=effort))
    assert (kept <= errors(fitted, base, good) * (1 + 1e-5)).all()


@pytest.mark.parametrize(("C", "K", "order"), [(1, 1, 1), (1, 5, 1), (2, 1, 2), (2, 5, 2), (3, 4, 3), (5, 3, 5)])
@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
def test_every_effort_works_for_few_dictionaries_and_any_order(C, K, order, rng):
    X = correlated(rng, 60, 4)
    est = small(C, K, order=order).fit(X)
    total = [errors(est, X, est.encode(X, effort=effort)).sum() for effort in range(10)]
    assert (np.diff(total[2:]) <= 1e-5 * total[0]).all()
    assert est.encode(X[:1], effort=9).shape == (1, C)


def test_rounds_without_the_table_lower_the_distortion(rng, monkeypatch):
    X = correlated(rng, 400, 8)
    est = small(5, 16, order=1, max_iter=3).fit(X)
    for module in (dictionaries, assignment):
        monkeypatch.setattr(module, "TABLE_BYTES", 0)
    by_effort = [errors(est, X, est.encode(X, effort=effort)) for effort in (2, 4, 6)]
    assert (by_effort[1] <= by_effort[0] * (1 + 1e-5)).all()
    assert by_effort[2].sum() < by_effort[1].sum() < by_effort[0].sum()
    one, two = (est.set_params(n_jobs=jobs).encode(X, effort=4) for jobs in (1, 2))
    assert (one == two).all()
    again = small(5, 16, order=1, max_iter=3).fit(X)
    assert again.relative_distortion(X, again.codes_) == pytest.approx(again.history_[-1], rel=1e-5)


@pytest.mark.parametrize("bad", [-1, 10, 2.5, True, "high", np.nan, [3], 10**30])
def test_a_wrong_effort_is_named_with_its_rule(bad, fitted, sample):
    for call in (
        lambda: fitted.encode(sample.base[:5], effort=bad),
        lambda: small(effort=bad).fit(sample.learn[:50]),
        lambda: small().fit(sample.learn[:50]).set_params(effort=bad).encode(sample.base[:5]),
    ):
        text = message_of(call, ValueError)
        assert f"effort={bad!r}" in text
        assert "an integer from 0 to 9" in text


def test_an_effort_of_none_is_no_effort_of_an_estimator(sample):
    assert "effort=None" in message_of(lambda: small(effort=None).fit(sample.learn[:50]), ValueError)


@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
@pytest.mark.parametrize("other", [gk.CartesianKMeans(2, 4, max_iter=2), gk.OptimizedCartesianKMeans(1, 4, max_iter=2)])
def test_other_estimators_refuse_an_effort(other, rng):
    X = correlated(rng, 60, 4)
    est = other.set_params(random_state=0).fit(X)
    with pytest.raises(ValueError, match=rf"effort=3 is for GroupKMeans; {type(est).__name__}"):
        est.encode(X, effort=3)
    assert est.encode(X, effort=None).shape == est.codes_.shape


def test_save_and_load_keep_effort_and_relaxation(tmp_path, sample):
    base = sample.base[:200]
    for effort, relaxation in ((2, 0), (np.int64(5), np.float32(0.25))):
        est = small(effort=effort, relaxation=relaxation).fit(sample.learn[:400])
        est.save(tmp_path / "model.safetensors")
        again = gk.load(tmp_path / "model.safetensors")
        assert (again.effort, again.relaxation) == (effort, relaxation)
        assert (again.encode(base) == est.encode(base)).all()
        assert (again.encode(base, effort=7) == est.encode(base, effort=7)).all()


def test_encode_stands_on_the_fit_and_not_on_later_parameters(rng):
    X = correlated(rng, 200, 6)
    est = gk.GroupKMeans(4, 8, max_iter=4, init_iter=2, random_state=0).fit(X)
    codes = est.encode(X)
    assert (est.set_params(n_dictionaries=1, n_codewords=10**6).encode(X) == codes).all()

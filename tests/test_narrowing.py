"""Training in principal components: what is kept, what is left out, and that nothing else changes."""

import copy
import itertools
import logging
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest

import gkmeans as gk
from conftest import same_bits
from gkmeans import _core, distributed, narrowing
from gkmeans._files import FileError
from gkmeans._frame import Frame
from gkmeans._parallel import Workers
from gkmeans._progress import Reporter
from gkmeans._rows import Rows
from gkmeans._sums import rounded
from gkmeans.assignment import GroupAssignment
from gkmeans.dictionaries import Dictionaries
from gkmeans.initialization.hierarchical import first_blocks
from gkmeans.passes import Project
from gkmeans.relaxation import ITERATIONS
from gkmeans.training import Run

P = 256


@pytest.fixture(scope="module")
def X():
    """Rows of 256 columns, nearly all of whose variance lies in 12 directions, not along the columns."""
    rng = np.random.default_rng(3)
    few = rng.standard_normal((3000, 12)) * np.geomspace(8, 1, 12)
    return (few @ rng.standard_normal((12, P)) + 0.3 * rng.standard_normal((3000, P)) + 5).astype(np.float32)


def small(**options):
    settings = {"random_state": 0, "max_iter": 8, "init_iter": 4, "effort": 3} | options
    return gk.GroupKMeans(3, 16, **settings)


def rows_of(X):
    with Workers(1) as workers:
        return Rows(X, Frame.of(X, workers))


def a_run(workers):
    return Run(1.0, GroupAssignment(1), 0.0, np.random.default_rng(0), workers, Reporter("test", 0))


def narrow_of(X, C=3, K=16):
    with Workers(2) as workers:
        return narrowing.narrowed(rows_of(X), C, K, a_run(workers))


# ---- what is kept


def test_water_filling_by_hand():
    # two components of 4 and 1: one bit halves the deviation of the first, the second stays as it is
    assert narrowing.gaussian_error(np.array([4.0, 1.0]), 1) == pytest.approx(1 + 1)
    # three bits: the first goes down to the second by one, the other two halve both variances twice
    assert narrowing.gaussian_error(np.array([4.0, 1.0]), 3) == pytest.approx(0.25 + 0.25)
    assert narrowing.gaussian_error(np.array([4.0, 1.0, 0.0]), 0) == pytest.approx(5)
    assert narrowing.gaussian_error(np.zeros(3), 5) == 0


def test_water_filling_is_the_best_of_all_levels(rng):
    variances = np.sort(rng.exponential(size=40))[::-1]
    for bits in (1.0, 7.5, 64.0, 300.0):
        levels = np.exp(np.linspace(-30, np.log(variances[0]), 200_000))[:, None]
        spent = 0.5 * np.log2(np.maximum(variances / levels, 1)).sum(axis=1)
        enough = np.flatnonzero(spent <= bits)[0]
        expected = np.minimum(variances, levels[enough]).sum()
        assert narrowing.gaussian_error(variances, bits) == pytest.approx(expected, rel=1e-3)


def test_more_bits_need_more_components():
    variances = 0.95 ** np.arange(400.0)
    counts = [narrowing.kept(variances, 0.05 * narrowing.gaussian_error(variances, bits)) for bits in (8, 32, 64, 128)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert all(count % narrowing.STEP == 0 for count in counts)
    assert narrowing.kept(np.ones(300), 15.0) == 288  # 12 of 300 are outside
    assert narrowing.kept(np.ones(300), 11.0) == 300
    assert narrowing.kept(np.zeros(300), 0.0) == narrowing.STEP


def test_rows_that_are_not_wide_or_need_all_columns_stay_as_they_are(rng, X):
    assert narrow_of(X) is not None
    assert narrow_of(X[:, :-1]) is None
    assert narrow_of(X, C=1) is None
    assert narrow_of(rng.standard_normal((500, P)).astype(np.float32)) is None
    assert narrow_of(X, C=64) is None  # more dictionaries than components
    assert narrow_of(X[: 4 * P]) is not None
    assert narrow_of(X[: 4 * P - 1]) is None  # too few rows to show the components of new ones


def test_blocks_that_do_not_fit_into_those_of_the_columns_stay_as_they_are(rng):
    # 131 blocks of 256 columns and of 192 components: a block of one column would have to hold two components
    X = (rng.standard_normal((2000, P)) * 0.985 ** np.arange(P)).astype(np.float32)
    for C in (128, 131, 133, 137, 192):
        narrow = narrow_of(X, C, 2)
        assert narrow is None or narrow.basis.shape[1] >= C


def test_rows_that_a_sample_does_not_show_stay_as_they_are(X, monkeypatch):
    other = X.copy()
    other[1::2] += 20 * np.random.default_rng(0).standard_normal(other[1::2].shape).astype(np.float32)
    monkeypatch.setattr(narrowing, "SAMPLE_NUMBERS", P)
    monkeypatch.setattr(narrowing, "SAMPLE_ROWS", 4)
    monkeypatch.setattr(np, "linspace", lambda a, b, count: np.arange(0, 2 * count, 2))  # every second row
    assert narrow_of(X) is not None
    assert narrow_of(other) is None


def test_rows_of_zeros_are_described_exactly(tmp_path):
    est = gk.GroupKMeans(2, 3, init="random", max_iter=5, random_state=0).fit(np.zeros((4 * P, P), np.float32))
    assert (est.history_ == 0).all()
    est.save(tmp_path / "zeros.safetensors")
    assert (gk.load(tmp_path / "zeros.safetensors").decode(est.codes_) == 0).all()


def test_rows_too_many_to_hold_stay_as_they_are(X, monkeypatch):
    monkeypatch.setattr(narrowing, "HELD_BYTES", 4 * 32 * len(X))
    assert narrow_of(X) is not None
    monkeypatch.setattr(narrowing, "HELD_BYTES", 4 * 32 * len(X) - 1)
    assert narrow_of(X) is None


# ---- the coordinates


def test_narrow_rows_and_what_is_outside_make_up_the_rows(X):
    narrow = narrow_of(X)
    U, rows = narrow.basis.astype(float), rows_of(X)
    wide = rows.block(slice(None)).astype(float)
    assert U.shape == (P, 32)
    np.testing.assert_allclose(U.T @ U, np.eye(32), atol=1e-5)
    np.testing.assert_allclose(narrow.rows.block(slice(None)), wide @ U, atol=2e-4)
    outside = wide - wide @ U @ U.T
    assert narrow.outside == pytest.approx((outside**2).sum(), rel=5e-3)
    np.testing.assert_allclose(narrow.columns, (outside**2).mean(axis=0), rtol=0.05)
    with Workers(1) as workers:
        assert narrow.outside_of(rows.take(np.arange(100)), workers) == pytest.approx(
            (outside[:100] ** 2).sum(), rel=5e-3
        )
    assert (np.abs(narrow.rows.block(slice(None))) <= narrow.rows.frame.largest).all()


def test_a_projection_is_the_same_for_any_number_of_threads(X):
    basis = narrow_of(X).basis
    found = []
    for n_jobs in (1, 2):
        with Workers(n_jobs) as workers:
            found.append(Project(basis).over(rows_of(np.tile(X, (3, 1))), None, workers))
    assert (found[0].codes == found[1].codes).all()
    assert found[0].error == found[1].error
    assert rounded([found[0].error]) > 0


def test_second_moments_are_the_same_for_any_number_of_threads(rng):
    X = rng.standard_normal((9000, 8)).astype(np.float16)  # three blocks
    rows, found = Rows(X, Frame(np.ones(8, np.float32))), []
    for n_jobs in (1, 2):
        with Workers(n_jobs) as workers:
            found.append(narrowing._moments(rows, workers))
    assert (found[0] == found[1]).all()
    less = X.astype(float) - 1
    assert found[0] == pytest.approx(less.T @ less / len(X), rel=1e-4)


def test_the_basis_lies_along_the_blocks_of_columns(rng):
    # two blocks of columns that know nothing of each other: each has its own part of the basis
    left, right = (rng.standard_normal((4000, 8)) @ rng.standard_normal((8, 128)) for _ in range(2))
    X = np.hstack([left, right]).astype(np.float32)
    S = (X.T @ X / len(X)).astype(np.float32)
    V = np.linalg.eigh(S)[1][:, ::-1][:, :16]
    U = narrowing.aligned_with(V, S, first_blocks(2, P), first_blocks(2, 16))
    assert np.abs(U[128:, :8]).max() < 0.05
    assert np.abs(U[:128, 8:]).max() < 0.05
    np.testing.assert_allclose(U @ U.T, V @ V.T, atol=1e-4)


def test_noise_is_that_of_the_columns_seen_from_the_components(X, rng):
    narrow = narrow_of(X)
    residual = rng.standard_normal((400, 32)).astype(np.float32)
    U = narrow.basis.astype(float)
    squares = ((residual @ U.T) ** 2).mean(axis=0) + narrow.columns
    F = narrow.noise(residual)
    np.testing.assert_allclose(F.T @ F, U.T @ (squares[:, None] * U), atol=1e-4 * squares.max())


def test_dictionaries_of_narrow_rows_decode_to_wide_ones(X, rng):
    narrow = narrow_of(X)
    D = rng.standard_normal((3, 16, 32)).astype(np.float32)
    single = narrow.wide(Dictionaries.single(D))
    np.testing.assert_allclose(single.full(), D @ narrow.basis.T, atol=1e-5)
    R = np.linalg.qr(rng.standard_normal((32, 32)))[0].astype(np.float32)
    stage = Dictionaries(
        first_blocks(3, 32), tuple(D[c : c + 1, :, b.dims] for c, b in enumerate(first_blocks(3, 32))), R
    )
    wide = narrow.wide(stage)
    assert wide.shape == (3, 16, P)
    np.testing.assert_allclose(wide.full(), stage.full() @ narrow.basis.T, atol=1e-5)
    rows = rows_of(X).block(slice(0, 50))
    np.testing.assert_allclose(wide.rotate(rows), stage.rotate(rows @ narrow.basis), atol=2e-3)


# ---- training


@pytest.mark.usefixtures("untried")
def test_wide_rows_are_trained_in_components_and_lose_nothing(X, monkeypatch):
    learn, new = X[:2500], X[2500:]
    est = small(max_iter=20).fit(learn)
    assert all(stage.R.shape == (P, 32) for stage in est.stages_)
    assert len(est.stages_) == 1
    monkeypatch.setattr(narrowing, "WIDE", P + 1)
    wide = small(max_iter=20).fit(learn)
    assert all(stage.R.shape == (P, P) for stage in wide.stages_)
    assert est.relative_distortion(new) < 1.05 * wide.relative_distortion(new)
    assert est.relative_distortion(learn, est.codes_) == pytest.approx(est.history_[-1], rel=1e-4)


def test_the_history_counts_what_is_outside(X):
    est = small(init="random", max_iter=8).fit(X)
    # the last iteration sees all columns, the one before it only the components and the sum of the rest
    assert est.history_[-2] == pytest.approx(est.history_[-1], rel=0.05)
    assert len(est.history_) == est.n_iter_ == 8
    longest = small(init="random", max_iter=200, effort=0).fit(X)
    assert longest.n_iter_ == ITERATIONS + 2  # the one on all rows, and the one that takes in the columns


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("init", ["random", "hierarchical"])
def test_rows_with_too_much_outside_are_trained_as_they_are(init, X, monkeypatch, caplog):
    options = {"init": init, "relaxation": 0.5}
    monkeypatch.setattr(narrowing, "WIDE", P + 1)
    wide = small(**options).fit(X)
    monkeypatch.setattr(narrowing, "WIDE", P)
    monkeypatch.setattr(narrowing, "MOST_OUTSIDE", 0.0)
    caplog.set_level(logging.INFO, "gkmeans")
    assert same_bits(small(**options).fit(X), wide)
    assert any("lies outside of 32 components" in message for message in caplog.messages)


def test_plain_training_is_never_narrowed(X, monkeypatch):
    expected = small(relaxation=0).fit(X[:800])
    monkeypatch.setattr(narrowing, "WIDE", P + 1)
    assert same_bits(small(relaxation=0).fit(X[:800]), expected)


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("init", ["random", "kmeans", "hierarchical"])
def test_threads_batches_and_a_cluster_give_the_bits_of_fit(init, X):
    expected = small(init=init, n_jobs=1).fit(X)
    assert same_bits(small(init=init, n_jobs=2).fit(X), expected)
    parts = [X[a:b] for a, b in itertools.pairwise([0, 1, 700, 701, 2999, 3000])]
    assert same_bits(small(init=init).fit(gk.Batches(parts)), expected)
    with dask.config.set(scheduler="threads"):
        assert same_bits(distributed.fit(small(init=init), da.from_array(X, chunks=(1000, -1))), expected)


@pytest.mark.usefixtures("untried")
def test_several_shards_give_the_bits_of_fit(X):
    many = np.tile(X, (12, 1)) + np.random.default_rng(0).standard_normal((36_000, 1)).astype(np.float32)
    options = {"max_iter": 4, "init_iter": 1}
    with dask.config.set(scheduler="threads"):
        est = distributed.fit(small(**options), da.from_array(many, chunks=(17_000, -1)))
    assert est.stages_[0].R.shape == (P, 32)
    assert same_bits(est, small(**options).fit(many))


@pytest.mark.usefixtures("untried")
def test_a_checkpoint_goes_on_with_narrow_rows(X, tmp_path, monkeypatch):
    expected = small().fit(X, checkpoint=tmp_path / "whole")
    for path in sorted((tmp_path / "whole").glob("training-*"))[-1:]:
        path.unlink()
    # the basis is kept, and not made anew
    monkeypatch.setattr(narrowing, "aligned_with", None)
    assert same_bits(small().fit(X, checkpoint=tmp_path / "whole"), expected)
    monkeypatch.undo()
    monkeypatch.setattr(gk.GroupKMeans, "_relaxing_pays", lambda self, *rest: True)
    monkeypatch.setattr(gk.GroupKMeans, "_leading", lambda self, *rest: None)
    # as if another version had begun it: the first training is that of an order of the dimensions, or a stage
    monkeypatch.setattr(narrowing, "WIDE", P + 1)
    with pytest.raises(FileError, match=r"pass a new folder|remove its folder"):
        small().fit(X, checkpoint=tmp_path / "whole")


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("init", ["random", "hierarchical"])
def test_a_checkpoint_goes_on_after_rows_were_too_narrow(init, X, tmp_path, monkeypatch):
    monkeypatch.setattr(narrowing, "MOST_OUTSIDE", 0.0)
    expected = small(init=init).fit(X, checkpoint=tmp_path)
    for path in sorted(tmp_path.glob("training-*"))[-2:]:
        path.unlink()
    assert same_bits(small(init=init).fit(X, checkpoint=tmp_path), expected)


@pytest.mark.usefixtures("untried")
def test_a_state_that_is_not_of_this_training_is_refused(X, tmp_path):
    small().fit(X, checkpoint=tmp_path)
    files = sorted(tmp_path.glob("training-*"))
    files[-1].write_bytes(files[0].read_bytes())  # a stage with its rotation in the place of relaxed training
    with pytest.raises(FileError, match=r"pass a new folder|remove its folder"):
        small().fit(X, checkpoint=tmp_path)


@pytest.mark.parametrize("damage", [lambda R: 3 * R, lambda R: np.hstack([R[:, :-1], R[:, :1]])])
def test_a_rotation_that_is_not_orthonormal_is_refused(damage, X, tmp_path):
    est = small(relaxation=0, max_iter=2, init_iter=1).fit(X[:300])
    stage = est.stages_[0]
    est.stages_ = (replace(stage, R=np.ascontiguousarray(damage(stage.R))), *est.stages_[1:])
    est.save(tmp_path / "model.safetensors")
    with pytest.raises(FileError, match="orthonormal"):
        gk.load(tmp_path / "model.safetensors")


def test_a_narrow_rotation_of_subspaces_is_refused(rng, tmp_path):
    est = gk.CartesianKMeans(2, 4, max_iter=2, random_state=0).fit(rng.standard_normal((100, 8)))
    narrow = first_blocks(2, 4)
    D = tuple(np.ascontiguousarray(D[:, :, :2]) for D in est.stages_[0].D)
    est.stages_ = (Dictionaries(narrow, D, np.ascontiguousarray(est.rotation_[:, :4])),)
    est.dictionaries_ = est.stages_[0].full()
    est.dictionaries_[0] += est.shift_
    est.save(tmp_path / "model.safetensors")
    with pytest.raises(FileError, match="rotation of shape"):
        gk.load(tmp_path / "model.safetensors")


# ---- what is done with the model


@pytest.mark.usefixtures("untried")
def test_a_model_of_narrow_stages_is_saved_and_goes_on(X, tmp_path):
    est = small().fit(X[:2000])
    est.save(tmp_path / "model.safetensors")
    again = gk.load(tmp_path / "model.safetensors")
    for effort in (0, 1, 3, 7):
        assert (again.encode(X, effort=effort) == est.encode(X, effort=effort)).all()
    before = est.relative_distortion(X[2000:])
    est.partial_fit(X[2000:])
    assert all(stage.R.shape == (P, 32) for stage in est.stages_)
    for stage in est.stages_:
        np.testing.assert_allclose(stage.R.T @ stage.R, np.eye(32), atol=1e-4)
    assert est.relative_distortion(X[2000:]) < before
    est.save(tmp_path / "model.safetensors")
    assert (gk.load(tmp_path / "model.safetensors").encode(X) == est.encode(X)).all()


@pytest.mark.usefixtures("untried")
def test_stages_are_a_good_start_of_an_encoding(X):
    est = small(max_iter=20).fit(X[:2500]).set_params(relaxation=0)  # by exact products
    replayed = est.relative_distortion(X[2500:], est.encode(X[2500:], effort=1))
    est.stages_ = ()
    greedy = est.relative_distortion(X[2500:], est.encode(X[2500:], effort=1))
    assert replayed < greedy


@pytest.mark.usefixtures("untried")
def test_models_of_narrow_stages_are_merged(X):
    est = small().fit(X[:2000]).mark_start()
    one, two = copy.deepcopy(est), copy.deepcopy(est)
    both = gk.merge([one.partial_fit(X[2000:2500]), two.partial_fit(X[2500:])])
    assert both.stages_[0].R.shape == (P, 32)
    assert both.relative_distortion(X) < 1.05 * est.relative_distortion(X)


# ---- quick encodings


def test_codewords_are_taken_in_as_few_components_as_leave_so_much(rng):
    deviations = np.concatenate([np.geomspace(10, 1, 40), np.full(P - 40, 0.01)])
    D = (rng.standard_normal((2, 200, P)) * deviations @ np.linalg.qr(rng.standard_normal((P, P)))[0]).astype(
        np.float32
    )
    usage = rng.dirichlet(np.ones(200), 2).astype(np.float32)
    fitted = Dictionaries.single(D)
    found = narrowing.in_components(fitted, usage, 0.5)
    assert found.R.shape == (P, 64)
    np.testing.assert_allclose(found.R.T @ found.R, np.eye(64), atol=1e-4)
    np.testing.assert_allclose(found.D[0], D @ found.R, atol=1e-3)
    varied = D - np.einsum("ck,ckp->cp", usage, D)[:, None]
    outside = varied - varied @ found.R @ found.R.T
    assert np.einsum("ck,ckp->", usage, outside**2) < 0.5
    assert narrowing.in_components(fitted, usage, 1e6).R.shape == (P, narrowing.STEP)
    assert narrowing.in_components(fitted, usage, 1e-9) is fitted  # all columns are needed
    slim = Dictionaries.single(D[:, :, : P - 1])
    assert narrowing.in_components(slim, usage, 0.5) is slim


def distortions(est, X, efforts=(0, 1)):
    return np.array([est.relative_distortion(X, est.encode(X, effort=effort)) for effort in efforts])


def whole(est):
    """The model, encoding in all columns."""
    other = copy.deepcopy(est)
    other._encoding = lambda effort, given=False: (
        type(est)._encoding(other, effort, given)[0],
        (*type(est)._encoding(other, effort, given)[1][:-1], est._final()),
    )
    return other


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("in_bytes", [True, False])
def test_quick_encodings_of_wide_rows_lose_little(in_bytes, X, monkeypatch):
    if not in_bytes:
        monkeypatch.setattr("gkmeans._core.coarse_products", lambda: False)
    elif not _core.coarse_products():
        pytest.skip("this CPU makes no products in bytes")
    monkeypatch.setattr("gkmeans.estimators.group.MOST_SWAYED", np.inf)
    est = small(max_iter=20).fit(X[:2500])
    for effort in range(10):
        *early, last = est._encoding(effort)[1]
        assert (last.R is None) == (effort > (6 if in_bytes else 1))
        assert len(early) == (not in_bytes or effort > 6)
        assert est._encoding(effort, given=True)[1][-1].R is None
    assert est._encoding(0)[1][-1].R.shape[1] < P
    quick, all_columns = distortions(est, X[2500:]), distortions(whole(est), X[2500:])
    assert (quick != all_columns).any() or not in_bytes  # they are not the same
    assert (quick < 1.04 * all_columns).all()


@pytest.mark.usefixtures("untried")
def test_components_that_bytes_would_sway_are_not_taken(X):
    est = small(max_iter=20).fit(X[:2500])  # 32 of 256 columns, and little is left unexplained
    if _core.coarse_products():
        assert all(est._encoding(effort)[1][-1].R is None for effort in range(10))


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(("count", "times"), [(12, 8), (40, 6)])
def test_a_few_long_rows_do_not_spoil_quick_encodings(count, times, rng):
    X = (rng.standard_normal((5000, P)) * 0.985 ** np.arange(P) @ np.linalg.qr(rng.standard_normal((P, P)))[0]).astype(
        np.float32
    )
    X[:count] *= times
    est = gk.GroupKMeans(8, 32, random_state=0, max_iter=8, init_iter=3).fit(X[:4400])
    new = X[4400:]
    assert (distortions(est, new) < 1.04 * distortions(whole(est), new)).all()


@pytest.mark.usefixtures("untried")
def test_a_batch_of_short_rows_does_not_spoil_quick_encodings(X):
    est = small(max_iter=10).fit(X[:2500])
    before = distortions(est, X[2500:])
    est.partial_fit(X[:20] * 0.05)
    assert (distortions(est, X[2500:]) < 1.03 * before).all()


@pytest.mark.usefixtures("untried")
def test_what_quick_encodings_need_is_saved(X, tmp_path):
    est = small().fit(X)
    assert len(est.stages_) == 1
    est.save(tmp_path / "model.safetensors")
    again = gk.load(tmp_path / "model.safetensors")
    assert again.residual_ == est.residual_ > 0
    assert (again.usage_ == est.usage_).all()
    for effort in (0, 3, 7):
        np.testing.assert_array_equal(again.encode(X[:200], effort=effort), est.encode(X[:200], effort=effort))

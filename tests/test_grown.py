"""The growing start of ck-means, Sec. 2.3.1 beyond the paper."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

import gkmeans as gk
from gkmeans import training
from gkmeans.dictionaries import Dictionaries
from gkmeans.estimators import cartesian
from gkmeans.initialization import grown as module
from gkmeans.initialization.grown import can_grow, doubled, sizes, widened, widened_rotation
from gkmeans.initialization.hierarchical import first_blocks

P, C, K = 144, 2, 16


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Few and short tries, so that the tests are too."""
    for name, value in {"TRIES": 3, "ITERATIONS": 4, "LAST_ITERATIONS": 6, "COMPARED_ITERATIONS": 2}.items():
        monkeypatch.setattr(module, name, value)


@pytest.fixture(scope="module")
def X():
    """Two hidden factors of many clusters each, mixed: blocks of the columns as they come do not fit them."""
    rng = np.random.default_rng(0)
    hidden = [rng.standard_normal((40, 4))[rng.integers(0, 40, 1200)] for _ in range(C)]
    mixed = np.concatenate(hidden, axis=1) @ rng.standard_normal((C * 4, P))
    return (mixed + 0.1 * rng.standard_normal(mixed.shape)).astype(np.float32)


def estimator(**options):
    return gk.CartesianKMeans(C, K, **{"random_state": 0, "n_jobs": 1, "max_iter": 5, **options})


@pytest.mark.parametrize("K", [2, 3, 16, 17, 255, 256, 257, 1000])
def test_each_number_of_codewords_is_at_most_twice_the_one_before(K):
    steps = sizes(K)
    assert steps[-1] == K
    assert steps[0] in (2, 3)
    assert all(b in (2 * a - 1, 2 * a) for a, b in pairwise(steps))


def test_only_wide_blocks_and_many_codewords_grow():
    assert can_grow(first_blocks(4, 784), 256)
    assert not can_grow(first_blocks(4, 256), 256)  # 64 dimensions a block
    assert not can_grow(first_blocks(1, 784), 256)  # nothing to turn
    assert not can_grow(first_blocks(4, 784), 8)


def test_components_are_dealt_out_in_turn():
    R = widened_rotation(np.zeros((0, 0), np.float32), [0, 0, 0], first_blocks(3, 7))  # widths 2, 2, 3
    assert R.argmax(axis=0).tolist() == [0, 3, 1, 4, 2, 5, 6]
    assert (np.eye(7) == R @ R.T).all()


def test_a_wider_stage_decodes_the_same_in_the_old_dimensions(rng):
    blocks = first_blocks(2, 4)
    turned, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    stage = Dictionaries(blocks, tuple(rng.standard_normal((1, 3, 2)).astype(np.float32) for _ in blocks), turned)
    wide = widened(stage, first_blocks(2, 7))
    assert np.allclose(wide.R @ wide.R.T, np.eye(7), atol=1e-6)
    assert np.allclose(wide.full()[:, :, :4], stage.full(), atol=1e-6)
    assert (wide.full()[:, :, 4:] == 0).all()


def test_codewords_are_cut_in_two_around_where_they_were(rng):
    stage = Dictionaries(first_blocks(2, 4), tuple(rng.standard_normal((1, 3, 2)).astype(np.float32) for _ in "ab"))
    more = doubled(stage, 5, rng)
    for before, after in zip(stage.D, more.D, strict=True):
        assert after.shape == (1, 5, 2)
        assert np.allclose((after[:, :2] + after[:, 3:]) / 2, before[:, :2], atol=1e-6)
        assert not np.allclose(after[:, :2], before[:, :2])
        assert (after[:, 2] == before[:, 2]).all()
    assert all((a == b).all() for a, b in zip(doubled(stage, 3, rng).D, stage.D, strict=True))


@pytest.mark.parametrize("spoiled", ["grown", "first_stage"])
def test_a_bad_start_is_not_taken(spoiled, X, monkeypatch):
    make, starts = {name: getattr(module, name) for name in ("grown", "first_stage")}, {}

    def made(name, *given):
        stage = make[name](*given)
        if name == spoiled:  # all codewords in one place, and rows that the iterations cannot take elsewhere
            stage = replace(stage, D=tuple(np.full_like(Du, 1e3) for Du in stage.D))
        starts[name] = stage
        return stage

    for name in make:
        monkeypatch.setattr(module, name, partial(made, name))
    monkeypatch.setattr(module, "COMPARED_ITERATIONS", 1)
    monkeypatch.setattr(cartesian, "train", lambda rows, start, *_: (start, np.zeros((len(X), C), np.uint8)))
    taken = estimator().fit(X).stages_[-1]
    [other] = set(starts) - {spoiled}
    assert all((a == b).all() for a, b in zip(taken.D, starts[other].D, strict=True))


def test_a_grown_fit_is_the_same_for_1_and_2_threads_and_from_batches(X):
    one = estimator().fit(X)
    assert np.allclose(one.rotation_ @ one.rotation_.T, np.eye(P), atol=1e-4)
    for other in (estimator(n_jobs=2).fit(X), estimator().fit(gk.Batches([X[:700], X[700:]]))):
        assert (other.dictionaries_ == one.dictionaries_).all()
        assert (other.codes_ == one.codes_).all()


def test_the_bar_ends_full_with_and_without_growth(X, capfd):
    steps = 3 + 4 * 2 + 6 + 2 * 2 + 5
    for rows in (X, X[: 32 * K - 1]):
        estimator(verbose=1).fit(rows)
        assert f"{steps}/{steps}" in capfd.readouterr().err
    estimator(verbose=1).fit(X[:, :100])
    assert "5/5" in capfd.readouterr().err


def test_few_rows_start_as_narrow_blocks_do(X, monkeypatch):
    monkeypatch.setattr(module, "best_try", None)  # would raise
    assert estimator().fit(X[: 32 * K - 1]).history_[-1] < 1
    with pytest.raises(TypeError):
        estimator().fit(X[: 32 * K])


@pytest.mark.parametrize(("C", "P", "K"), [(2, 129, 13), (3, 200, 17)])
def test_odd_shapes_duplicates_and_constant_columns_grow(C, P, K, rng):
    X = rng.standard_normal((700, P)).astype(np.float32)
    X[:, 5], X[350:] = 3, X[:350]
    with pytest.warns(gk.DataWarning):
        est = gk.CartesianKMeans(C, K, max_iter=3, random_state=0, n_jobs=1).fit(X)
    assert np.allclose(est.rotation_ @ est.rotation_.T, np.eye(P), atol=1e-4)
    assert np.allclose(est.decode(est.codes_)[:, 5], 3, atol=1e-3)
    assert (np.diff(est.history_) <= 1e-6).all()


def test_a_growth_killed_anywhere_goes_on_to_the_same_bits(X, tmp_path, monkeypatch):
    write, saves, last = training.write_state, [], [10_000]

    def crashing(*arguments):
        write(*arguments)
        saves.append(arguments)
        if len(saves) == last[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "write_state", crashing)
    whole = estimator().fit(X, checkpoint=tmp_path / "whole")
    count = len(saves)
    assert count > 30  # 3 tries, 3 doublings, the orders' trial, the comparison, the training
    for killed in range(2, count, 12):
        saves.clear()
        last[0] = killed
        with pytest.raises(KeyboardInterrupt):
            estimator().fit(X, checkpoint=tmp_path / str(killed))
        again = estimator().fit(X, checkpoint=tmp_path / str(killed))
        assert len(saves) == count
        assert (again.dictionaries_ == whole.dictionaries_).all()
        assert (again.codes_ == whole.codes_).all()


def test_one_dictionary_a_subspace_grows_as_ck_means_does(X):
    other = gk.OptimizedCartesianKMeans(C, 1, K, max_iter=5, tol=1e-3, random_state=0, n_jobs=1)
    one, two = estimator().fit(X), other.fit(X)
    assert (two.dictionaries_ == one.dictionaries_).all()
    assert (two.codes_ == one.codes_).all()
    assert other._start_iterations(P) == one._start_iterations(P)

"""Few rows of a steep spectrum are trained in their leading components, where rows held out fare better by it."""

import logging
from functools import partial

import dask.array as da
import numpy as np
import pytest

import gkmeans as gk
from conftest import same_bits
from gkmeans import distributed, narrowing, training
from gkmeans._frame import Frame
from gkmeans._parallel import Workers
from gkmeans._rows import Rows
from gkmeans.estimators import relaxing

P = 48
CHOSEN = "leading components"


def steep(n, seed):
    """Gaussian rows (n, P) whose variances fall as k^-1.2, in directions of their own."""
    directions = np.linalg.qr(np.random.default_rng(5).standard_normal((P, P)))[0]
    rows = np.random.default_rng(seed).standard_normal((n, P)) * np.arange(1, P + 1) ** -0.6
    return (rows @ directions + 0.5).astype(np.float32)


def small(**options):
    return gk.GroupKMeans(4, **({"n_codewords": 16, "max_iter": 8, "init_iter": 4, "random_state": 0} | options))


@pytest.fixture(scope="module")
def X():
    return steep(300, 1)


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, logger="gkmeans")
    return lambda: any(CHOSEN in record.getMessage() for record in caplog.records)


def test_the_water_level_by_hand():
    # two bits: 4 alone would be left with 4 · 2⁻⁴ = 0.25, below 1; 4 and 1 share them, √4 · 2⁻² = 0.5 each; a third
    # would have to stand above (0.04)^⅓ · 2^(−4/3) = 0.14
    variances = np.array([4, 1, 0.01])
    assert narrowing.water(variances, 2) == (2, pytest.approx(0.5))
    assert narrowing.gaussian_error(variances, 2) == pytest.approx(2 * 0.5 + 0.01)
    assert narrowing.water(np.zeros(3), 2) == (0, 0.0)


@pytest.mark.parametrize("init", ["hierarchical", "kmeans", "random"])
def test_new_rows_of_a_steep_spectrum_fare_better_than_by_plain_training(init, X, said):
    new = steep(3000, 2)
    est, plain = (small(init=init, **options).fit(X) for options in ({}, {"relaxation": 0}))
    assert said()
    assert est.relative_distortion(new) < 0.95 * plain.relative_distortion(new, plain.encode(new, effort=7))


def test_codewords_lie_in_the_components_and_the_history_counts_what_is_outside(X):
    est = small().fit(X)
    assert len(est.stages_) == 1  # relaxed
    D = est.dictionaries_ - est.dictionaries_.mean(axis=1, keepdims=True)
    assert np.linalg.matrix_rank(D.reshape(-1, P), tol=1e-4) < 0.75 * P
    assert est.history_[-1] == pytest.approx(est.relative_distortion(X, est.codes_), rel=1e-4)
    assert est.relative_distortion(X) == pytest.approx(est.history_[-1], rel=0.02)  # afresh, by the stages kept


def test_threads_batches_a_cluster_and_a_checkpoint_give_the_bits_of_fit(X, tmp_path, said):
    whole = small().fit(X)
    assert said()
    assert same_bits(whole, small(n_jobs=1).fit(X))
    assert same_bits(whole, small().fit(gk.Batches([X[:1], X[1:140], X[140:]])))
    assert same_bits(whole, distributed.fit(small(), da.from_array(X, chunks=(130, P))))
    assert same_bits(whole, small().fit(X, checkpoint=tmp_path))
    assert same_bits(whole, small().fit(X, checkpoint=tmp_path))


@pytest.mark.parametrize("part", range(8))
def test_a_fit_that_was_killed_goes_on_to_the_same_bits(part, X, tmp_path, monkeypatch):
    files = []
    write = training.write_state

    class Killed(BaseException):
        pass

    def crashing(at, path, *arguments):
        write(path, *arguments)
        files.append(path.name)
        if len(files) - 1 == at:
            raise Killed

    monkeypatch.setattr(training, "write_state", partial(crashing, -1))
    whole = small().fit(X, checkpoint=tmp_path / "whole")
    # in the last training, in one on trial in components, and so on back to the first start
    names = sorted(set(files), reverse=True)
    at = files.index(names[part * len(names) // 8]) + 1
    files.clear()
    monkeypatch.setattr(training, "write_state", partial(crashing, at))
    with pytest.raises(Killed):
        small().fit(X, checkpoint=tmp_path / "killed")
    monkeypatch.setattr(training, "write_state", write)
    assert same_bits(whole, small().fit(X, checkpoint=tmp_path / "killed"))


def test_a_fit_goes_on_in_the_components_it_began_with(X, tmp_path, monkeypatch):
    whole = small().fit(X, checkpoint=tmp_path)
    last = max(tmp_path.glob("training-*"))
    last.unlink()
    principal = narrowing._principal
    monkeypatch.setattr(narrowing, "_principal", lambda S: (principal(S)[0], -principal(S)[1]))  # as another CPU might
    assert same_bits(whole, small().fit(X, checkpoint=tmp_path))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float64"])
def test_other_dtypes_and_scales(dtype, X, said):
    rows = (X - X.min()) * (60 if dtype == "uint8" else 1)
    rows = rows.astype(dtype) * (1e-12 if dtype == "float64" else 1)
    est = small().fit(rows)
    assert said()
    assert est.history_[-1] == pytest.approx(est.relative_distortion(rows, est.codes_), rel=1e-3)


def test_more_rows_than_a_block_give_the_same_bits_in_batches(said):
    X = steep(5000, 3)
    options = {"max_iter": 4, "init_iter": 2, "n_codewords": 64}
    whole = small(**options).fit(X)
    assert said()
    assert same_bits(whole, small(**options).fit(gk.Batches([X[:4097], X[4097:]])))


def test_wide_rows_are_tried_too(said):
    wide = np.random.default_rng(4).standard_normal((1100, 260)) * np.arange(1, 261) ** -0.5
    est, plain = (small(**options).fit(wide.astype(np.float32)) for options in ({}, {"relaxation": 0}))
    assert said()
    new = (np.random.default_rng(5).standard_normal((2000, 260)) * np.arange(1, 261) ** -0.5).astype(np.float32)
    assert est.relative_distortion(new) < plain.relative_distortion(new, plain.encode(new, effort=7))


def test_a_little_noise_in_the_components_serves_new_rows(said, monkeypatch):
    X, new, errors, little = steep(2000, 1), steep(3000, 2), {}, relaxing.LITTLE_NOISE
    for share in (0.0, little, 1.0):
        monkeypatch.setattr(relaxing, "LITTLE_NOISE", share)
        errors[share] = small(max_iter=40, n_codewords=32).fit(X).relative_distortion(new)
    assert said()
    assert min(errors, key=errors.get) == little


@pytest.mark.parametrize("n", [64, 255])
def test_too_few_rows_held_out_say_nothing(n, X, said):
    small(n_codewords=8).fit(X[:n])
    assert not said()


def test_a_start_that_is_given_is_not_left(X, said):
    small(init=small(relaxation=0).fit(X)).fit(X)
    assert not said()


def test_a_saved_model_encodes_to_the_same_codes(X, tmp_path):
    est = small().fit(X)
    est.save(tmp_path / "model.safetensors")
    again = gk.load(tmp_path / "model.safetensors")
    for effort in (0, 2, 7):
        assert (again.encode(X, effort=effort) == est.encode(X, effort=effort)).all()


def test_rows_that_a_code_describes_better_than_a_gaussian_are_not_tried(monkeypatch):
    def broken(*arguments):
        raise AssertionError("tried")

    monkeypatch.setattr(gk.GroupKMeans, "_error_in", broken)
    rng = np.random.default_rng(0)
    centres = 5 * rng.standard_normal((20, P))
    small().fit((centres[rng.integers(20, size=400)] + 0.1 * rng.standard_normal((400, P))).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "value"), [("MOST_ROWS", 1), ("MOST_COLUMNS", P - 1), ("SAMPLE_NUMBERS", 1000), ("SURELY", 1e9)]
)
def test_otherwise_training_is_as_it_was(name, value, X, monkeypatch, said):
    monkeypatch.setattr(relaxing, name, value)
    est = small().fit(X)
    assert not said()
    monkeypatch.setattr(gk.GroupKMeans, "_leading", lambda self, *rest: None)
    assert same_bits(est, small().fit(X))


def test_rows_in_components_have_their_rest_outside(X):
    basis = np.ascontiguousarray(np.linalg.qr(np.random.default_rng(0).standard_normal((P, 5)))[0], np.float32)
    shift = X.mean(axis=0)
    rows = Rows(X, Frame(shift, 1.0, np.abs(X - shift).max(axis=0).astype(np.float64)))
    with Workers(1) as workers:
        narrow = narrowing.spanned(rows, basis, workers)
    wide, inside = (some.block(slice(None)).astype(np.float64) for some in (rows, narrow.rows))
    assert np.allclose(inside, wide @ basis, atol=1e-4)
    assert narrow.outside == pytest.approx((wide**2).sum() - (inside**2).sum(), rel=1e-4)

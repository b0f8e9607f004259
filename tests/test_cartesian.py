"""CartesianKMeans and OptimizedCartesianKMeans: the contract of GroupKMeans, and what their subspaces promise."""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import gkmeans as gk
import reference
from conftest import KINDS, correlated, errors, message_of, same_bits
from gkmeans import _files, _parallel, dictionaries, pursuit
from gkmeans.dictionaries import Block, Dictionaries
from gkmeans.estimators.coding import KIND
from gkmeans.initialization.hierarchical import split

QUICK = {"max_iter": 3, "random_state": 0, "n_jobs": 1}


def ck(C=2, K=4, **options):
    return gk.CartesianKMeans(C, K, **(QUICK | options))


def ock(M=2, C=2, K=4, n_candidates=3, **options):
    return gk.OptimizedCartesianKMeans(M, C, K, n_candidates, **(QUICK | {"init_iter": 2} | options))


both = pytest.mark.parametrize("make", [ck, ock])


@pytest.fixture
def X(rng):
    return correlated(rng, 300, 6)


def every_sum(D):
    """All codes (K^C, C) of ``D`` (C, K, P), and what they decode to."""
    C, K, _ = D.shape
    grid = np.stack(np.meshgrid(*[np.arange(K)] * C, indexing="ij"), axis=-1).reshape(-1, C)
    return grid, reference.decode(D.astype(float), grid)


def nearest_sum(X, D):
    """Codes of the sum nearest to each row, by trying all of them, and its squared distance."""
    grid, sums = every_sum(D)
    squares = ((X.astype(float)[:, None] - sums) ** 2).sum(axis=2)
    return grid[squares.argmin(axis=1)], squares.min(axis=1)


# ---- scikit-learn's contract


@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
@parametrize_with_checks(
    [
        gk.CartesianKMeans(2, 4, max_iter=3),
        gk.OptimizedCartesianKMeans(2, 2, 4, max_iter=3, init_iter=2),
        gk.OptimizedCartesianKMeans(n_candidates=2, max_iter=1, init_iter=1),
    ]
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_defaults_are_those_of_the_design():
    shared = {"n_codewords": 256, "max_iter": 100, "tol": 1e-5, "random_state": None, "n_jobs": None, "verbose": 0}
    assert gk.CartesianKMeans().get_params() == shared | {"n_dictionaries": 8, "tol": 1e-3}
    own = {"n_subspaces": 4, "n_dictionaries": 2, "n_candidates": 10, "init_iter": 30, "max_hours": 24.0}
    assert gk.OptimizedCartesianKMeans().get_params() == shared | own


@both
def test_clone_has_the_parameters_and_not_the_fit(make, X):
    est = make(tol=0.01).fit(X)
    copy = clone(est)
    assert copy.get_params() == est.get_params()
    assert not hasattr(copy, "dictionaries_")
    assert same_bits(copy.fit(X), est)


@both
def test_pickle_round_trip_keeps_the_fit(make, X):
    est = make().fit(X)
    again = pickle.loads(pickle.dumps(est))
    assert same_bits(again, est)
    assert (again.encode(X) == est.encode(X)).all()


def test_set_params_changes_the_next_fit(X):
    assert ck().set_params(n_dictionaries=3, n_codewords=5).fit(X).dictionaries_.shape == (3, 5, 6)
    est = ock().set_params(n_subspaces=1, n_dictionaries=3, n_codewords=5, n_candidates=2)
    assert est.fit(X).dictionaries_.shape == (3, 5, 6)


@both
def test_parameters_set_after_the_fit_do_not_break_encode(make, X):
    est = make().fit(X)
    codes = est.encode(X)
    est.set_params(n_dictionaries=9, n_codewords=60000, max_iter=-1)
    assert (est.encode(X) == codes).all()


@both
def test_pipeline_scales_encodes_and_comes_back(make, X):
    pipeline = make_pipeline(StandardScaler(), make(K=16, max_iter=20))
    codes = pipeline.fit_transform(X)
    back = pipeline.inverse_transform(codes)
    assert back.shape == X.shape
    assert ((back - X) ** 2).sum() < 0.5 * ((X - X.mean(axis=0)) ** 2).sum()


@both
def test_grid_search_prefers_more_dictionaries(make, X):
    search = GridSearchCV(make(), {"n_dictionaries": [1, 3]}, cv=2).fit(X)
    assert search.best_params_ == {"n_dictionaries": 3}


@both
def test_data_frames_give_their_names(make, X):
    frame = pd.DataFrame(X, columns=list("abcdef"))
    est = make().fit(frame)
    assert est.feature_names_in_.tolist() == list("abcdef")
    assert est.get_feature_names_out()[1] == f"{type(est).__name__.lower()}1"
    with pytest.raises(ValueError, match="feature names"):
        est.encode(frame[list("fedcba")])


@both
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_input_gives_the_codes_of_float32(make, kind, bytes_, tmp_path):
    plain = bytes_.astype(np.float32)
    expected = make().fit(plain)
    given = KINDS[kind](bytes_, tmp_path)
    assert same_bits(make().fit(given), expected)
    assert (expected.encode(given) == expected.encode(plain)).all()


# ---- what fit leaves


@both
def test_the_rotation_is_orthogonal_and_codewords_lie_in_their_subspaces(make, rng):
    X = correlated(rng, 400, 7)
    est = make(max_iter=10).fit(X)
    np.testing.assert_allclose(est.rotation_.T @ est.rotation_, np.eye(7), atol=1e-4)
    assert abs(est.rotation_ - np.eye(7)).max() > 0.01  # it was learned
    D = est.dictionaries_.astype(float)
    D[0] -= est.shift_
    rotated = D @ est.rotation_
    largest = np.abs(rotated).max()
    (stage,) = est.stages_
    for block in stage.blocks:
        outside = np.ones(7, bool)
        outside[block.dims] = False
        assert np.abs(rotated[block.dictionaries][:, :, outside]).max() < 1e-5 * largest


@both
def test_decode_is_the_sum_of_codewords_and_distortion_that_of_the_paper(make, X):
    est = make(K=8, max_iter=10).fit(X)
    codes = est.encode(X)
    np.testing.assert_allclose(est.decode(codes), reference.decode(est.dictionaries_, codes), rtol=1e-5, atol=1e-5)
    energy = (X.astype(float) ** 2).sum()
    expected = reference.distortion(X, est.dictionaries_, codes) / energy
    assert est.relative_distortion(X) == pytest.approx(expected, rel=1e-5)
    expected = reference.distortion(X, est.dictionaries_, est.codes_) / energy
    assert est.history_[-1] == pytest.approx(expected, rel=1e-4)


def test_codes_of_the_fit_are_those_of_encode(rng):
    X = correlated(rng, 700, 9)
    for C in (1, 2, 4, 9):
        est = ck(C, 8, max_iter=5).fit(X)
        assert (est.encode(X) == est.codes_).all()


@pytest.mark.parametrize(("C", "P"), [(1, 3), (2, 5), (3, 7), (4, 4)])
def test_cartesian_codes_are_the_nearest_of_all_sums(C, P, rng):
    est = ck(C, 4, max_iter=10).fit(correlated(rng, 300, P))
    new = correlated(rng, 200, P)
    expected, _ = nearest_sum(new, est.dictionaries_)
    assert (est.encode(new) == expected).all()
    assert (est.encode(new, codes=rng.integers(0, 4, (200, C))) == expected).all()  # whatever the start


@pytest.mark.parametrize(("M", "C"), [(1, 2), (1, 3), (2, 2), (3, 1)])
def test_all_candidates_give_the_nearest_of_all_sums(M, C, rng):
    # the subspaces are orthogonal: the best code in each of them is the best of all
    est = ock(M, C, 4, n_candidates=4, max_iter=5).fit(correlated(rng, 300, 6))
    new = correlated(rng, 100, 6)
    _, best = nearest_sum(new, est.dictionaries_)
    np.testing.assert_allclose(errors(est, new, est.encode(new)), best, rtol=1e-3, atol=1e-4)


@both
def test_decoded_vectors_are_encoded_to_what_they_came_from(make, rng):
    est = make(K=8, max_iter=10).fit(correlated(rng, 300, 6))
    est.set_params(**({"n_candidates": 8} if make is ock else {}))
    vectors = est.decode(est.encode(correlated(rng, 200, 6)))
    again = est.decode(est.encode(vectors))
    np.testing.assert_allclose(again, vectors, atol=1e-4 * np.abs(vectors).max())
    codes = est.encode(vectors)
    assert (est.encode(vectors, codes=codes) == codes).all()


@both
def test_codes_given_are_only_ever_improved(make, rng):
    est = make(K=8).fit(correlated(rng, 300, 6))
    new = correlated(rng, 200, 6)
    given = rng.integers(0, 8, (200, len(est.dictionaries_)))
    before, after = errors(est, new, given), errors(est, new, est.encode(new, codes=given))
    assert (after <= before * (1 + 1e-5)).all()
    assert after.sum() < before.sum()


def by_hand(est, D, R):
    """``est`` with the stage given instead of that of its fit, in the frame of the data itself."""
    blocks = tuple(Block(slice(u, u + 1), slice(u, u + 1)) for u in range(len(D)))
    stage = Dictionaries(blocks, tuple(np.array(Du, np.float32).reshape(1, -1, 1) for Du in D), np.array(R, np.float32))
    est.stages_, est.dictionaries_, est.shift_ = (stage,), stage.full(), np.zeros(len(D), np.float32)
    return est


def test_a_case_worked_by_hand(rng):
    # (5, 0) turns to (3, -4): nearest of {2, 5} is 2, of {-1, -6} is -6; (2, -6) turned back is (6, -2)
    est = by_hand(ck(2, 2).fit(rng.standard_normal((20, 2))), [[5, 2], [-1, -6]], [[0.6, -0.8], [0.8, 0.6]])
    codes = est.encode([[5, 0]])
    assert codes.tolist() == [[1, 1]]
    np.testing.assert_allclose(est.decode(codes), [[6, -2]], atol=1e-6)
    assert est.relative_distortion([[5, 0]]) == pytest.approx(5 / 25)  # (-1, 2) is missed of (5, 0)


def test_a_product_of_two_choices_is_learned_exactly():
    # (-1 or 1, -5 or 5): each axis holds its two values, and no sum misses a row
    X = np.array([[a, b] for a in (-1.0, 1.0) for b in (-5.0, 5.0)], np.float32)
    est = ck(2, 2, max_iter=30).fit(X)
    assert est.history_[-1] < 1e-5
    np.testing.assert_allclose(est.decode(est.codes_), X, atol=1e-2)


shapes = st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 30), st.integers(2, 5))  # C, P, n, K
factors = st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (1, 4), (4, 1), (2, 3), (3, 2), (6, 1)])


def check_history(est, X):
    assert np.isfinite(est.history_).all()
    slack = 1e-6 * est.history_[:-1] + 1e-7  # costs are float32: below 1e-7 of ‖x‖² codes tie
    assert (np.diff(est.history_) <= slack).all()
    by_codes = reference.distortion(X, est.dictionaries_, est.codes_) / (X.astype(float) ** 2).sum()
    assert est.history_[-1] == pytest.approx(by_codes, rel=1e-3, abs=1e-7)


@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), shapes)
def test_history_of_cartesian_never_rises(seed, shape):
    C, P, n, K = shape
    X = correlated(np.random.default_rng(seed), n, P)
    check_history(ck(C, K, max_iter=8, tol=0, random_state=seed).fit(X), X)


@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), factors, shapes, st.integers(1, 4))
def test_history_of_optimized_cartesian_never_rises(seed, factor, shape, n_candidates):
    _, P, n, K = shape
    X = correlated(np.random.default_rng(seed), n, P)
    est = ock(*factor, K, n_candidates, max_iter=6, init_iter=3, tol=0, random_state=seed).fit(X)
    check_history(est, X)
    assert len(est.history_) >= est.n_iter_


def test_the_optimized_training_goes_on_from_that_of_the_finer_subspaces(rng):
    X = correlated(rng, 500, 8)
    est = ock(2, 2, 8, 4, init_iter=7, max_iter=10, tol=0).fit(X)
    start = ck(4, 8, max_iter=7, tol=0).fit(X)
    assert est.history_[:7].tolist() == start.history_.tolist()
    assert est.history_[7] < start.history_[-1]
    assert (len(est.history_), est.n_iter_) == (17, 10)


# ---- shapes


@pytest.mark.parametrize("P", [3, 6, 8])
def test_one_dictionary_a_subspace_is_cartesian_kmeans(P, rng):
    X = correlated(rng, 300, P)
    one, other = ock(3, 1, 8).fit(X), ck(3, 8).fit(X)
    assert same_bits(one, other)
    assert one.rotation_.tobytes() == other.rotation_.tobytes()
    assert (one.encode(X) == other.encode(X)).all()


@pytest.mark.parametrize("C", [1, 2, 3, 4, 5])
def test_one_subspace_pursues_the_whole_vector(C, rng):
    X = correlated(rng, 200, 6)
    est = ock(1, C, 4, 3, max_iter=5).fit(X)
    assert est.dictionaries_.shape == (C, 4, 6)
    assert [block.dims for block in est.stages_[0].blocks] == [slice(0, 6)]
    expected, _ = reference.mcmp((X - est.shift_) @ est.rotation_, est.stages_[0].D[0], 3)
    np.testing.assert_allclose(errors(est, X, est.encode(X)), errors(est, X, expected), rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
@pytest.mark.parametrize("P", [1, 2, 3, 5, 7, 11])
@pytest.mark.parametrize("make", [ck, lambda **options: ck(5, **options), lambda **options: ock(3, 2, **options)])
def test_any_number_of_columns_is_taken(make, P, rng):
    X = correlated(rng, 150, P)
    est = make(max_iter=4).fit(X)
    assert est.dictionaries_.shape[2] == P
    assert est.codes_.shape == (150, len(est.dictionaries_))
    assert est.rotation_.shape == (P, P)
    check_history(est, X)
    assert est.relative_distortion(X) <= 1.5 * est.history_[-1] + 1e-3


def test_subspaces_are_as_even_as_they_go():
    for P, C, count in ((30, 22, 22), (45, 39, 33), (10, 6, 4), (3, 8, 8)):
        blocks = split(Block(slice(5, 5 + P), slice(2, 2 + C)), count)
        for axis, size in (("dims", P), ("dictionaries", C)):
            parts = [getattr(block, axis) for block in blocks]
            edges = [parts[0].start, *(part.stop for part in parts)]
            first = 5 if axis == "dims" else 2
            assert edges == [first + size * u // len(blocks) for u in range(len(blocks) + 1)]
            assert max(np.diff(edges)) - min(np.diff(edges)) <= 1


@both
def test_fewer_rows_than_codewords_warn_and_are_coded_exactly(make, rng):
    X = correlated(rng, 10, 6)
    with pytest.warns(gk.DataWarning, match="X has 10 rows, fewer than n_codewords=16"):
        est = make(K=16, max_iter=30).fit(X)
    assert est.relative_distortion(X) < 1e-4


@both
def test_codes_take_two_bytes_above_256_codewords(make, rng):
    X = rng.standard_normal((400, 4))
    est = make(K=257, max_iter=1).fit(X)
    assert est.codes_.dtype == est.encode(X).dtype == np.uint16
    assert (est.codes_ == 256).any()


@both
def test_codes_equal_for_1_and_2_threads(make, rng, monkeypatch):
    monkeypatch.setattr(_parallel, "BLOCK_FLOATS", 64 * 4 * 8)  # several blocks of rows
    X = correlated(rng, 4500, 40)
    one, two = make(K=8, n_jobs=1).fit(X), make(K=8, n_jobs=2).fit(X)
    assert same_bits(one, two)
    assert one.rotation_.tobytes() == two.rotation_.tobytes()
    assert (one.encode(X) == two.encode(X)).all()


@both
def test_the_seed_decides(make, X):
    assert same_bits(make(random_state=5).fit(X), make(random_state=5).fit(X))
    assert not same_bits(make(random_state=5).fit(X), make(random_state=6).fit(X))


# ---- files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@both
def test_a_model_comes_back_to_the_bit(make, X, path):
    est = make(max_iter=5, tol=0.001).fit(pd.DataFrame(X, columns=list("abcdef")))
    est.save(path)
    again = gk.load(path)
    assert type(again) is type(est)
    assert again.get_params() == est.get_params()
    assert again.feature_names_in_.tolist() == list("abcdef")
    for name in ("dictionaries_", "shift_", "history_", "rotation_"):
        assert getattr(again, name).tobytes() == getattr(est, name).tobytes()
    new = pd.DataFrame(X[::-1] + np.float32(0.3), columns=list("abcdef"))
    assert again.encode(new).tobytes() == est.encode(new).tobytes()
    assert again.relative_distortion(new) == est.relative_distortion(new)


@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
@both
@pytest.mark.parametrize("factor", [2.0**-100, 2.0**56])
def test_a_scaled_model_comes_back_to_the_bit(make, factor, X, path):
    est = make().fit(X * np.float32(factor))
    assert est.scale_ != 1
    est.save(path)
    assert (gk.load(path).encode(X * np.float32(factor)) == est.codes_).mean() > 0.9


@pytest.mark.parametrize("max_hours", [None, 0.5, 3, np.float32(2), float("inf")])
def test_the_limit_of_hours_comes_back(max_hours, X, path):
    ock(max_hours=max_hours).fit(X).save(path)
    assert gk.load(path).max_hours == max_hours


@both
def test_a_truncated_or_changed_file_is_refused(make, X, path):
    make().fit(X).save(path)
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], data[:-1], b"", data[:-1] + bytes([data[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.raises(gk.FileError, match=r"model\.safetensors"):
            gk.load(path)


# what is done to the arrays and the description of a model, and a word of the error
TAMPERED = {
    "stages missing": (lambda arrays, about: about.update(stages=[]), "0 stages"),
    "a stage more": (lambda arrays, about: about["stages"].append(about["stages"][0]), "stage1"),
    "rotation missing": (lambda arrays, about: arrays.pop("stage0.R"), r"stage0\.R"),
    "rotation not square": (lambda arrays, about: arrays.update({"stage0.R": arrays["stage0.R"][:3]}), "rotation"),
    "another rotation": (lambda arrays, about: arrays.update({"stage0.R": arrays["stage0.R"][::-1]}), "not those"),
    "not a rotation": (lambda arrays, about: arrays.update({"stage0.R": arrays["stage0.R"] * 2}), "orthonormal"),
    "another subspace": (lambda arrays, about: arrays.update({"stage0.D1": arrays["stage0.D0"]}), "not those"),
    "another shift": (lambda arrays, about: arrays.update(shift=arrays["shift"] + 5), "not those"),
    "edges elsewhere": (lambda arrays, about: about["stages"][0].__setitem__(0, [0, 2, 6]), "stage0"),
    "parameters of another": (lambda arrays, about: about["params"].update(order=2), "order"),
}


@both
@pytest.mark.parametrize("name", TAMPERED)
def test_parts_that_do_not_fit_are_refused(make, name, X, path):
    make().fit(X).save(path)
    arrays, description = _files.read(path, KIND)
    change, word = TAMPERED[name]
    change(arrays, description)
    _files.write(path, KIND, arrays, description)
    with pytest.raises(gk.FileError, match=rf"model\.safetensors.*{word}"):
        gk.load(path)


# ---- bad parameters

WRONG = [
    (ck, "n_dictionaries", 0, ["n_dictionaries=0", "at least 1"]),
    (ck, "n_codewords", 65537, ["n_codewords=65537", "at most 65536"]),
    (ck, "max_iter", 0, ["max_iter=0", "at least 1"]),
    (ck, "tol", -1, ["tol=-1", "at least 0"]),
    (ck, "n_jobs", 0, ["n_jobs=0", "threads"]),
    (ock, "n_subspaces", 0, ["n_subspaces=0", "at least 1"]),
    (ock, "n_subspaces", 2.0, ["n_subspaces=2.0", "integer"]),
    (ock, "n_dictionaries", 0, ["n_dictionaries=0", "at least 1"]),
    (ock, "n_codewords", 0, ["n_codewords=0", "from 1 to 65536"]),
    (ock, "n_candidates", 0, ["n_candidates=0", "at least 1"]),
    (ock, "n_candidates", "10", ["n_candidates='10'", "integer"]),
    (ock, "n_candidates", True, ["n_candidates=True", "integer"]),
    (ock, "init_iter", 0, ["init_iter=0", "at least 1"]),
    (ock, "max_iter", 1.5, ["max_iter=1.5", "integer"]),
    (ock, "max_hours", 0, ["max_hours=0", "above 0", "None"]),
    (ock, "max_hours", -3, ["max_hours=-3", "above 0", "None"]),
    (ock, "max_hours", "x", ["max_hours='x'", "above 0", "None"]),
    (ock, "max_hours", float("nan"), ["max_hours=nan", "above 0", "None"]),
    (ock, "max_hours", True, ["max_hours=True", "above 0", "None"]),
]


@pytest.mark.parametrize(("make", "name", "value", "words"), WRONG, ids=[f"{w[1]}-{w[2]}" for w in WRONG])
def test_bad_parameters_are_explained_by_fit(make, name, value, words, X):
    est = make().set_params(**{name: value})
    text = message_of(lambda: est.fit(X))
    assert all(word in text for word in words), text
    assert not hasattr(est, "dictionaries_")


@pytest.mark.parametrize(("name", "value"), [("n_candidates", 0), ("n_candidates", "x"), ("max_hours", 0)])
def test_bad_parameters_set_after_the_fit_are_explained_by_encode(name, value, X):
    est = ock().fit(X).set_params(**{name: value})
    assert f"{name}={value!r}" in message_of(lambda: est.encode(X))


@both
def test_an_unfitted_estimator_has_no_rotation(make):
    with pytest.raises(NotFittedError, match="fit"):
        _ = make().rotation_
    assert not hasattr(make(), "rotation_")


@both
def test_a_failed_fit_keeps_the_earlier_one(make, X):
    est = make().fit(X)
    codes = est.encode(X)
    with pytest.raises(ValueError, match="NaN"):
        est.fit(np.full((50, 9), np.nan))
    assert (est.encode(X) == codes).all()


# ---- what a run would take


def forbidden(*arguments, **options):
    raise AssertionError("work was begun")


def test_a_fit_of_days_raises_before_any_work(X, monkeypatch):
    monkeypatch.setattr("gkmeans.estimators.base.Workers", forbidden)
    text = message_of(lambda: gk.OptimizedCartesianKMeans(1, 8, 256, 30).fit(X))
    assert "100 passes over 300 rows with 30 candidates at each of 8 dictionaries of 256 codewords" in text
    assert "days, more than max_hours=24;" in text
    assert "max_hours=None" in text


def test_an_encoding_of_days_raises_before_any_work(X, monkeypatch):
    est = ock(1, 8, 64, 1, max_iter=1).fit(X).set_params(n_candidates=64)
    monkeypatch.setattr("gkmeans.estimators.base.Workers", forbidden)
    for call in (est.encode, est.transform, est.score, lambda X: est.encode(X, codes=est.codes_)):
        text = message_of(lambda call=call: call(X))
        assert "1 pass over 300 rows with 64 candidates" in text
        assert " days, more than max_hours=24" in text


def test_a_tree_beyond_all_numbers_is_estimated_too(X):
    assert "more than a million years" in message_of(lambda: ock(1, 400, 16, 10).fit(X))


def test_the_estimate_decides_and_no_limit_lets_it_run(X, monkeypatch):
    est = ock().fit(X)
    codes = est.encode(X)
    monkeypatch.setattr(pursuit, "SECONDS_A_SCORE", 1e6)
    assert "years" in message_of(lambda: ock().fit(X))
    assert "years" in message_of(lambda: est.encode(X))
    assert same_bits(ock(max_hours=None).fit(X), est)
    assert (est.set_params(max_hours=None).encode(X) == codes).all()


def test_the_estimate_takes_no_more_threads_than_cores(X, monkeypatch):
    monkeypatch.setattr(pursuit, "SECONDS_A_SCORE", 1e6)
    assert message_of(lambda: ock(n_jobs=1000).fit(X)) == message_of(lambda: ock(n_jobs=-1).fit(X))


def test_the_estimate_takes_the_dictionaries_that_share_a_dimension(rng, monkeypatch):
    # six subspaces of one dictionary each in two dimensions: two blocks of three
    X = correlated(rng, 100, 2)
    est = ock(6, 1).fit(X)
    assert [D.shape[0] for D in est.stages_[0].D] == [3, 3]
    monkeypatch.setattr(pursuit, "SECONDS_A_SCORE", 1e6)
    assert "at each of 3 dictionaries" in message_of(lambda: ock(6, 1).fit(X))
    assert "at each of 3 dictionaries" in message_of(lambda: est.encode(X))


def test_a_table_beyond_memory_is_refused_before_any_work(X, monkeypatch):
    monkeypatch.setattr("gkmeans.estimators.base.Workers", forbidden)
    text = message_of(lambda: ock(2, 2, 65536).fit(X))
    assert "2 dictionaries of 65536 codewords needs a table of 64.0 GiB" in text


def test_one_dictionary_a_subspace_needs_no_table(X, monkeypatch):
    expected = ock(3, 1).fit(X)
    for module in (dictionaries, pursuit):
        monkeypatch.setattr(module, "TABLE_BYTES", 0)
    assert same_bits(ock(3, 1).fit(X), expected)


@pytest.mark.parametrize(("C", "total"), [(1, 3), (2, 5)])
def test_the_bar_ends_full_when_the_fit_ends(C, total, X, capfd):
    # up to 3 iterations, and up to 2 of the ck-means before them, which one dictionary a subspace does not need
    ock(2, C, verbose=1, tol=0.5).fit(X)
    assert f"{total}/{total}" in capfd.readouterr().err


# ---- as the start of gk-means


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    "first", [ck(4, 8, max_iter=15), ock(2, 2, 8, 8, max_iter=15), ock(1, 4, 8, max_iter=15)], ids=["ck", "ock", "MCMP"]
)
def test_group_kmeans_goes_on_from_a_fitted_rival(first, order, rng):
    X = correlated(rng, 500, 8)
    first = clone(first).fit(X)
    plain = {"relaxation": 0, "effort": 2, "max_iter": 5, "random_state": 0, "n_jobs": 1}
    est = gk.GroupKMeans(4, 8, order=order, init=first, **plain).fit(X)
    assert est.history_[0] <= first.relative_distortion(X) * (1 + 1e-6)
    assert est.history_[-1] < first.relative_distortion(X)
    assert (clone(est).fit(X).codes_ == est.codes_).all()


def test_a_start_of_another_shape_is_refused(X):
    with pytest.raises(ValueError, match=r"init has shape \(2, 4, 6\).*\(3, 4, 6\)"):
        gk.GroupKMeans(3, 4, init=ck().fit(X)).fit(X)


def test_a_start_that_takes_days_to_encode_with_is_refused(X, monkeypatch):
    first = ock().fit(X)
    monkeypatch.setattr(pursuit, "SECONDS_A_SCORE", 1e6)
    assert "years" in message_of(lambda: gk.GroupKMeans(4, 4, init=first).fit(X))


@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
def test_a_start_of_another_magnitude_is_taken_without_its_codes(X):
    first = ck().fit(X * np.float32(1e-20))
    est = gk.GroupKMeans(2, 4, init=first, max_iter=5, random_state=0).fit(X)
    assert est.history_[-1] < est.history_[0]


def test_more_candidates_than_fit_an_integer_are_all_codewords(X):
    assert (ock(n_candidates=2**40).fit(X).codes_ == ock(n_candidates=4).fit(X).codes_).all()


@pytest.mark.parametrize(("level", "times"), [("avx512vbmi", 1), ("avx512", 1), ("avx2", 3), ("baseline", 4)])
def test_the_estimate_knows_the_instruction_set(level, times, monkeypatch):
    monkeypatch.setattr(pursuit._core, "simd_level", lambda: level)
    monkeypatch.setattr(pursuit, "SECONDS_A_PRODUCT", 0)
    scores = pursuit.tree_size(10, 4, 256) + (pursuit.FIRST_SCORES - 1) * pursuit.tree_size(10, 2, 256)
    hours = times * 1e9 * scores * pursuit.SECONDS_A_SCORE / 3600
    pursuit.check_cost((10**9, 128), 1, 1, 10, 4, 256, 1, hours * 1.01)
    with pytest.raises(ValueError, match="would take about"):
        pursuit.check_cost((10**9, 128), 1, 1, 10, 4, 256, 1, hours * 0.99)

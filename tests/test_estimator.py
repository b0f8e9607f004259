"""GroupKMeans as scikit-learn and its users see it: the contract, kinds of input, what fit leaves, and shapes."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import gkmeans as gk
import reference
from conftest import KINDS, correlated, errors, same_bits
from gkmeans import _parallel, assignment, dictionaries, update
from gkmeans.initialization.hierarchical import count_stages
from gkmeans.update import Statistics

INITS = ("random", "kmeans", "hierarchical")


def small(C=2, K=4, **options):
    return gk.GroupKMeans(C, K, **({"max_iter": 3, "init_iter": 2, "random_state": 0, "n_jobs": 1} | options))


@pytest.fixture
def X(rng):
    return correlated(rng, 300, 6)


# ---- scikit-learn's contract


@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
@parametrize_with_checks(
    [
        *(gk.GroupKMeans(2, 4, max_iter=3, init_iter=2, init=init) for init in INITS),
        gk.GroupKMeans(max_iter=1, init_iter=1),
    ]
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_clone_has_the_parameters_and_not_the_fit(X):
    est = small(order=1, init="kmeans", tol=0.01).fit(X)
    copy = clone(est)
    assert copy.get_params() == est.get_params()
    assert not hasattr(copy, "dictionaries_")
    assert same_bits(copy.fit(X), est)


def test_clone_keeps_an_init_array(X):
    start = np.ones((2, 4, 6))
    assert (clone(small(init=start)).init == start).all()


def test_set_params_changes_the_next_fit(X):
    est = small().set_params(n_dictionaries=3, n_codewords=5, order=3)
    assert est.get_params()["n_dictionaries"] == 3
    assert est.fit(X).dictionaries_.shape == (3, 5, 6)


def test_init_stores_its_arguments_untouched():
    start = [[[1.0]]]
    est = gk.GroupKMeans("8", -1, order=None, init=start, tol="x")
    assert est.n_dictionaries == "8"
    assert est.init is start
    assert list(est.get_params()) == sorted(
        [
            "n_dictionaries",
            "n_codewords",
            "order",
            "init",
            "relaxation",
            "effort",
            "max_iter",
            "init_iter",
            "tol",
            "random_state",
            "n_jobs",
            "verbose",
        ]
    )


def test_defaults_are_those_of_the_design():
    assert gk.GroupKMeans().get_params() == {
        "n_dictionaries": 8,
        "n_codewords": 256,
        "order": 2,
        "init": "hierarchical",
        "relaxation": 0.5,
        "effort": 7,
        "max_iter": 100,
        "init_iter": 30,
        "tol": 1e-5,
        "random_state": None,
        "n_jobs": None,
        "verbose": 0,
    }


def test_options_are_keywords_only():
    with pytest.raises(TypeError):
        gk.GroupKMeans(8, 256, 2)


def test_pipeline_scales_encodes_and_comes_back(X):
    pipeline = make_pipeline(StandardScaler(), small(3, 16, max_iter=20))
    codes = pipeline.fit_transform(X)
    scaled = StandardScaler().fit_transform(X)
    assert (codes == small(3, 16, max_iter=20).fit(scaled).encode(scaled)).all()
    back = pipeline.inverse_transform(codes)
    assert back.shape == X.shape
    assert ((back - X) ** 2).sum() < 0.2 * ((X - X.mean(axis=0)) ** 2).sum()


def test_grid_search_prefers_more_dictionaries(X):
    search = GridSearchCV(small(order=1), {"n_dictionaries": [1, 2, 4]}, cv=2).fit(X)
    assert search.best_params_ == {"n_dictionaries": 4}
    assert search.best_score_ < 0


@pytest.mark.parametrize("init", INITS)
def test_pickle_round_trip_keeps_the_fit(init, X):
    est = small(init=init).fit(X)
    again = pickle.loads(pickle.dumps(est))
    assert same_bits(again, est)
    assert again.get_params() == est.get_params()
    assert (again.encode(X) == est.encode(X)).all()


def test_fit_returns_self_and_leaves_its_input_alone(X):
    before = X.copy()
    est = small()
    assert est.fit(X) is est
    est.encode(X)
    assert (before == X).all()


def test_second_fit_forgets_the_first(X, rng):
    est = small(init="hierarchical").fit(correlated(rng, 50, 9))
    est.fit(X)
    assert same_bits(est, small(init="hierarchical").fit(X))
    assert len(est.stages_) == 1
    assert est.encode(X).shape == (300, 2)
    est.set_params(init="random").fit(X)
    assert est.stages_ == ()


# ---- kinds of input


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_input_gives_the_codes_of_float32(kind, bytes_, tmp_path):
    plain = bytes_.astype(np.float32)
    expected = small().fit(plain)
    given = KINDS[kind](bytes_, tmp_path)
    assert same_bits(small().fit(given), expected)
    assert (expected.encode(given) == expected.encode(plain)).all()
    assert (expected.encode(given, codes=expected.codes_) == expected.encode(plain, codes=expected.codes_)).all()
    assert expected.relative_distortion(given) == expected.relative_distortion(plain)


def test_booleans_are_zeros_and_ones(rng):
    X = rng.random((100, 6)) < 0.4
    assert same_bits(small().fit(X), small().fit(X.astype(np.float32)))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_layout_does_not_change_the_codes_of_real_numbers(order, dtype, X):
    est = small(3, 8).fit(X)
    given = np.array(X, dtype, order=order)[::-1][::-1]
    assert (est.encode(given) == est.encode(X)).all()


def test_data_frames_give_their_names(X):
    frame = pd.DataFrame(X, columns=list("abcdef"))
    est = small().fit(frame)
    assert est.feature_names_in_.tolist() == list("abcdef")
    assert est.n_features_in_ == 6
    assert est.get_feature_names_out().tolist() == ["groupkmeans0", "groupkmeans1"]
    with pytest.raises(ValueError, match="feature names"):
        est.encode(frame[list("fedcba")])


def test_set_output_gives_a_data_frame_of_codes(X):
    est = small().fit(X).set_output(transform="pandas")
    out = est.transform(X)
    assert isinstance(out, pd.DataFrame)
    assert (out.to_numpy() == est.encode(X)).all()
    assert est.score(X) == -est.relative_distortion(X)


def test_codes_come_as_any_integers(X):
    est = small().fit(X)
    expected = est.decode(est.codes_)
    for codes in (
        est.codes_.astype(np.int64),
        est.codes_.tolist(),
        np.asfortranarray(est.codes_),
        est.codes_[::-1][::-1],
    ):
        assert (est.decode(codes) == expected).all()
        assert (est.encode(X, codes=codes) == est.encode(X, codes=est.codes_)).all()


# ---- what fit leaves


@pytest.mark.parametrize(("init", "stages"), [("random", 0), ("kmeans", 4), ("hierarchical", 2)])
@pytest.mark.parametrize("order", [1, 2])
def test_history_holds_every_iteration_of_every_stage(init, stages, order, rng):
    est = small(4, 8, init=init, order=order, init_iter=3, max_iter=4, tol=0).fit(correlated(rng, 600, 8))
    assert est.n_iter_ == 4
    assert est.history_.shape == (3 * stages + 4,)
    assert np.isfinite(est.history_).all()
    assert est.history_.dtype == np.float64


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_history_never_rises_and_ends_with_the_codes(init, order, rng):
    X = correlated(rng, 500, 8)
    est = small(4, 8, init=init, order=order, relaxation=0, init_iter=5, max_iter=20).fit(X)
    last = est.history_[-est.n_iter_ :]
    assert (np.diff(last) <= 1e-6 * last[:-1]).all()
    assert last[-1] < last[0]
    assert est.relative_distortion(X, est.codes_) == pytest.approx(est.history_[-1], rel=1e-5)
    by_hand = reference.distortion(X, est.dictionaries_, est.codes_) / (X.astype(float) ** 2).sum()
    assert est.history_[-1] == pytest.approx(by_hand, rel=1e-5)


def test_hierarchical_start_beats_the_others_on_its_own_ground(rng):
    X = correlated(rng, 2000, 16)
    final = {
        init: small(4, 16, init=init, relaxation=0, init_iter=15, max_iter=30).fit(X).history_[-1] for init in INITS
    }
    assert final["hierarchical"] < 1.02 * min(final.values())


def test_tolerance_ends_a_plain_training(X):
    assert small(relaxation=0, max_iter=50, tol=0.9).fit(X).n_iter_ == 2
    assert small(relaxation=0, max_iter=1).fit(X).n_iter_ == 1
    assert 2 < small(relaxation=0, max_iter=500, tol=1e-4).fit(X).n_iter_ < 500


def test_distortion_is_relative_to_the_rows_as_they_came(rng):
    # far from the origin the same cloud has a small relative distortion, and a large offset costs no digits
    X = correlated(rng, 300, 4)
    near, far = small(2, 8).fit(X), small(2, 8).fit(X + np.float32(1024))
    cloud = near.history_[-1] * (X.astype(float) ** 2).sum()
    assert far.history_[-1] == pytest.approx(cloud / ((X.astype(float) + 1024) ** 2).sum(), rel=0.02)
    assert far.relative_distortion(X + np.float32(1024), far.codes_) == pytest.approx(far.history_[-1], rel=0.01)


@pytest.mark.parametrize(("K", "dtype"), [(2, np.uint8), (256, np.uint8), (257, np.uint16)])
def test_codes_take_two_bytes_above_256_codewords(K, dtype, rng):
    X = rng.standard_normal((400, 3))
    est = small(2, K, init="random", max_iter=2).fit(X)
    for codes in (est.codes_, est.encode(X), est.transform(X)):
        assert codes.dtype == dtype
        assert codes.shape == (400, 2)
        assert codes.max() < K
    assert est.dictionaries_.dtype == np.float32
    assert est.dictionaries_.shape == (2, K, 3)
    assert est.decode(est.codes_).dtype == np.float32
    if K == 257:
        assert (est.codes_ == 256).any()


# ---- randomness and threads


def test_random_state_makes_fits_equal(X):
    assert same_bits(small(random_state=5).fit(X), small(random_state=5).fit(X))
    assert not same_bits(small(random_state=5).fit(X), small(random_state=6).fit(X))
    assert same_bits(
        small(random_state=np.random.default_rng(3)).fit(X), small(random_state=np.random.default_rng(3)).fit(X)
    )
    assert same_bits(
        small(random_state=np.random.RandomState(3)).fit(X), small(random_state=np.random.RandomState(3)).fit(X)
    )


def test_fit_leaves_the_global_generator_alone(X):
    np.random.seed(1)  # noqa: NPY002  the legacy generator is the one that must not move
    before = np.random.get_state()[1].tobytes()  # noqa: NPY002
    small(random_state=None).fit(X)
    assert np.random.get_state()[1].tobytes() == before  # noqa: NPY002


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_codes_equal_for_1_and_2_threads(init, order, rng, monkeypatch):
    # several blocks of rows (64 each), of reading (4096 rows), of W (32 columns) and of the solution (64 columns)
    monkeypatch.setattr(_parallel, "BLOCK_FLOATS", 64 * 4 * 8)
    X = correlated(rng, 4500, 70)
    one = small(4, 8, init=init, order=order, max_iter=2, n_jobs=1).fit(X)
    two = small(4, 8, init=init, order=order, max_iter=2, n_jobs=2).fit(X)
    assert same_bits(one, two)
    assert (one.encode(X) == two.encode(X)).all()
    assert (one.decode(one.codes_) == two.decode(one.codes_)).all()
    assert one.relative_distortion(X) == two.relative_distortion(X)


def test_codes_equal_for_1_and_2_threads_with_several_panels_of_the_solution(rng):
    # 2 × 256 codewords in use: the Cholesky factor has three panels of 192
    X = correlated(rng, 3000, 8)
    one, two = (small(2, 256, init="random", order=1, n_jobs=jobs).fit(X) for jobs in (1, 2))
    assert same_bits(one, two)


# ---- shapes


@pytest.mark.parametrize("C", [1, 2, 3, 5, 6, 7, 12])
@pytest.mark.parametrize("P", [1, 3, 7, 13])
@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
def test_hierarchical_start_takes_any_number_of_dictionaries_and_columns(C, P, rng):
    X = correlated(rng, 200, P)
    est = small(C, 4, order=min(2, C), relaxation=0, effort=2, max_iter=5).fit(X)
    assert est.dictionaries_.shape == (C, 4, P)
    assert est.codes_.shape == (200, C)
    assert len(est.stages_) == count_stages(C, P)
    assert [len(stage.blocks) for stage in est.stages_] == halved(min(C, P))
    assert np.isfinite(est.dictionaries_).all()
    assert est.history_[-1] < est.history_[0]
    assert est.relative_distortion(X, est.codes_) == pytest.approx(est.history_[-1], rel=1e-4, abs=1e-9)
    assert est.relative_distortion(X) < 2 * est.history_[-1] + 1e-3


def halved(blocks):
    """Numbers of blocks of the stages: C, ⌈C / 2⌉, … above 1."""
    out = []
    while blocks > 1:
        out.append(blocks)
        blocks = -(-blocks // 2)
    return out


@pytest.mark.parametrize(("C", "P"), [(3, 7), (5, 13), (12, 7), (4, 8)])
def test_stages_hold_every_dimension_and_dictionary_once_inside_a_rotation(C, P, rng):
    est = small(C, 4).fit(correlated(rng, 200, P))
    for stage in est.stages_:
        assert [d for block in stage.blocks for d in range(P)[block.dims]] == list(range(P))
        assert [c for block in stage.blocks for c in range(C)[block.dictionaries]] == list(range(C))
        np.testing.assert_allclose(stage.R.T @ stage.R, np.eye(P), atol=1e-5)


@pytest.mark.parametrize("init", ["random", "kmeans"])
@pytest.mark.parametrize(("C", "P"), [(1, 1), (3, 1), (5, 2), (1, 5), (7, 3)])
@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
def test_other_starts_take_any_number_of_dictionaries_and_columns(init, C, P, rng):
    X = correlated(rng, 100, P)
    est = small(C, 3, init=init, order=1).fit(X)
    assert est.dictionaries_.shape == (C, 3, P)
    assert est.relative_distortion(X, est.codes_) == pytest.approx(est.history_[-1], rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("init", INITS)
def test_one_codeword_is_the_mean(init, X):
    est = small(2, 1, init=init).fit(X)
    assert (est.codes_ == 0).all()
    assert (est.encode(X) == 0).all()
    np.testing.assert_allclose(est.decode([[0, 0]])[0], X.mean(axis=0, dtype=float), rtol=1e-4, atol=1e-4)
    variance = ((X - X.mean(axis=0, dtype=float)) ** 2).sum() / (X.astype(float) ** 2).sum()
    assert est.history_[-1] == pytest.approx(variance, rel=1e-5)


def test_one_dictionary_is_plain_kmeans(rng):
    centres = np.array([[0, 0], [100, 0], [0, 100], [100, 100]], np.float32)
    X = (centres[np.arange(400) % 4] + rng.standard_normal((400, 2))).astype(np.float32)
    est = small(1, 4, order=1, init=centres[None], relaxation=0, max_iter=10).fit(X)
    means = np.stack([X[k::4].mean(axis=0) for k in range(4)])
    np.testing.assert_allclose(est.dictionaries_[0], means, atol=1e-2)
    assert (est.codes_[:, 0] == np.arange(400) % 4).all()


# ---- starts that are given


@pytest.fixture
def planted(rng):
    """Dictionaries (2, 4, 6) far from the origin, and rows that they decode exactly."""
    D = rng.standard_normal((2, 4, 6)) * 10 + 50
    codes = rng.integers(0, 4, (300, 2))
    return D, codes, D[0, codes[:, 0]] + D[1, codes[:, 1]]


def test_an_array_is_where_the_training_starts(planted):
    D, codes, X = planted
    est = small(init=D, relaxation=0, max_iter=2).fit(X)
    assert (est.codes_ == codes).all()
    assert est.history_[0] < 1e-10
    assert len(est.history_) == est.n_iter_
    np.testing.assert_allclose(est.decode(codes), X, rtol=1e-5)


def test_a_fitted_estimator_is_where_the_training_starts(planted, X):
    D, codes, rows = planted
    first = small(init=D, max_iter=2).fit(rows)
    assert (small(init=first, max_iter=1).fit(rows).codes_ == codes).all()
    fitted = small(max_iter=30).fit(X)
    assert (small(init=fitted, max_iter=1).fit(X).history_ <= fitted.relative_distortion(X) * (1 + 1e-6)).all()


def test_a_list_is_where_the_training_starts(planted):
    D, codes, X = planted
    assert (small(init=D.tolist(), max_iter=1).fit(X).codes_ == codes).all()


def test_the_given_start_is_not_changed(planted):
    D, _, X = planted
    before = D.copy()
    small(init=D).fit(X + 1)
    assert (before == D).all()


# ---- encode, decode, score


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("init", INITS)
def test_warm_start_is_never_worse_than_the_codes_given(order, init, rng):
    est = small(4, 8, order=order, init=init).fit(correlated(rng, 300, 6))
    new = correlated(rng, 300, 6)
    given = rng.integers(0, 8, (300, 4))
    before = errors(est, new, given)
    after = errors(est, new, est.encode(new, codes=given))
    assert (after <= before * (1 + 1e-5)).all()
    assert after.sum() < 0.9 * before.sum()
    improved = est.encode(new, codes=est.encode(new))
    assert (errors(est, new, improved) <= errors(est, new, est.encode(new)) * (1 + 1e-5)).all()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_decoded_codes_are_kept_as_they_are(order, rng):
    est = small(3, 8, order=order).fit(correlated(rng, 300, 6))
    codes = rng.integers(0, 8, (200, 3))
    assert (est.encode(est.decode(codes), codes=codes) == codes).all()


@pytest.mark.parametrize("init", INITS)
def test_the_order_of_all_dictionaries_finds_the_exact_sum(init, rng):
    est = small(3, 8, order=3, init=init).fit(correlated(rng, 300, 6))
    sums = est.decode(rng.integers(0, 8, (200, 3)))
    assert est.relative_distortion(sums) < 1e-9
    assert (errors(est, sums, est.encode(sums)) <= 1e-6 * (sums**2).sum(axis=1)).all()


def test_the_order_of_all_dictionaries_is_the_global_optimum(rng):
    est = small(3, 5, order=3).fit(correlated(rng, 300, 4))
    new = correlated(rng, 50, 4)
    grid = np.stack(np.meshgrid(*[np.arange(5)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    sums = reference.decode(est.dictionaries_.astype(float), grid)
    best = ((new[:, None] - sums[None]) ** 2).sum(axis=2).min(axis=1)
    np.testing.assert_allclose(errors(est, new, est.encode(new)), best, rtol=1e-4, atol=1e-5)


def test_higher_orders_encode_better(rng):
    X = correlated(rng, 1000, 12)
    est = small(4, 16).fit(X)
    one, two, four = (est.set_params(order=order).relative_distortion(X) for order in (1, 2, 4))
    assert four < two < one


def test_a_row_has_the_same_codes_alone_and_among_others(rng):
    X = correlated(rng, 200, 8)
    est = small(4, 16).fit(X)
    together = est.encode(X)
    alone = np.concatenate([est.encode(X[i : i + 1]) for i in range(50)])
    # the products may differ in their last digit, so a tie may fall otherwise
    assert (alone == together[:50]).all(axis=1).mean() > 0.9
    assert errors(est, X[:50], alone).sum() == pytest.approx(errors(est, X[:50], together[:50]).sum(), rel=0.01)


def test_replaying_the_stages_encodes_better_than_a_greedy_start():
    learn = gk.datasets.load_sample().learn[:2000]
    est = small(8, 16, order=1, relaxation=0, effort=1, init_iter=10, max_iter=20).fit(learn)
    replayed = est.relative_distortion(learn)
    est.stages_ = ()
    assert replayed < est.relative_distortion(learn)


def test_the_words_of_scikit_learn_mean_the_same(X):
    est = small().fit(X)
    codes = est.encode(X)
    assert (est.transform(X) == codes).all()
    assert (est.fit_transform(X) == codes).all()
    assert (est.inverse_transform(codes) == est.decode(codes)).all()
    assert est.score(X) == -est.relative_distortion(X)
    assert est.relative_distortion(X) == est.relative_distortion(X, codes)


def test_decode_and_distortion_are_those_of_the_paper(X):
    est = small(3, 8).fit(X)
    codes = est.encode(X)
    np.testing.assert_allclose(est.decode(codes), reference.decode(est.dictionaries_, codes), rtol=1e-5, atol=1e-5)
    expected = reference.distortion(X, est.dictionaries_, codes) / (X.astype(float) ** 2).sum()
    assert est.relative_distortion(X) == pytest.approx(expected, rel=1e-5)


def test_parameters_set_after_the_fit_do_not_break_encode(X):
    est = small(3, 8).fit(X)
    codes = est.encode(X)
    est.set_params(n_dictionaries=9, n_codewords=2, init="random", max_iter=-1)
    assert (est.encode(X) == codes).all()


# ---- the paths for many codewords


def without_table(monkeypatch):
    for module in (dictionaries, assignment):
        monkeypatch.setattr(module, "TABLE_BYTES", 0)


@pytest.mark.parametrize("init", INITS)
def test_one_dictionary_has_equal_codes_with_and_without_the_table(init, X, monkeypatch):
    est = small(1, 16, order=1, init=init).fit(X)
    codes = est.encode(X)
    without_table(monkeypatch)
    assert (est.encode(X) == codes).all()
    assert (small(1, 16, order=1, init=init).fit(X).codes_ == est.codes_).all()


@pytest.mark.parametrize("init", INITS)
def test_distortion_is_close_with_and_without_the_table(init, rng, monkeypatch):
    X, new = correlated(rng, 1000, 8), correlated(rng, 1000, 8)
    est = small(3, 16, order=1, init=init, relaxation=0, max_iter=10).fit(X)
    given = rng.integers(0, 16, (1000, 3))
    fresh, warm = est.relative_distortion(new), est.relative_distortion(new, est.encode(new, codes=given))
    without_table(monkeypatch)
    assert est.relative_distortion(new) == pytest.approx(fresh, rel=0.01)
    codes = est.encode(new, codes=given)
    assert est.relative_distortion(new, codes) == pytest.approx(warm, rel=0.01)
    assert (errors(est, new, codes) <= errors(est, new, given) * (1 + 1e-5)).all()
    again = small(3, 16, order=1, init=init, relaxation=0, max_iter=10).fit(X)
    assert again.history_[-1] == pytest.approx(est.history_[-1], rel=0.05)
    assert again.relative_distortion(X, again.codes_) == pytest.approx(again.history_[-1], rel=1e-5)


def test_order_2_without_the_table_is_refused_at_fit_and_at_encode(X, monkeypatch):
    est = small(2, 16, order=1).fit(X)
    without_table(monkeypatch)
    with pytest.raises(ValueError, match=r"order=2 .*table.*use order=1"):
        small(2, 16, order=2).fit(X)
    est.set_params(order=2)
    with pytest.raises(ValueError, match=r"order=2 .*table.*use order=1"):
        est.encode(X)


@pytest.mark.parametrize("limit", [4, 25, 60])
def test_the_sparse_solution_agrees_with_the_dense_one(limit, rng, monkeypatch):
    # 4: Z is counted and solved sparsely; 25: counted densely and solved sparsely; 60: counted sparsely for its size,
    # but so few codewords are in use that they are solved densely
    K = 200 if limit == 60 else 20
    X = correlated(rng, 400, 7)
    codes = rng.integers(0, 20, (400, 3)).astype(np.uint16)
    codes[codes == 3] = 0
    previous = rng.standard_normal((3, K, 7)).astype(np.float32)
    dense = Statistics.of(X, codes, K).solve(previous)
    monkeypatch.setattr(update, "DENSE_UNKNOWNS", limit)
    sparse = Statistics.of(X, codes, K).solve(previous)
    sums = reference.decode(dense, codes)
    np.testing.assert_allclose(reference.decode(sparse, codes), sums, atol=1e-4 * np.abs(sums).max())
    assert reference.distortion(X, sparse, codes) == pytest.approx(reference.distortion(X, dense, codes), rel=1e-4)
    assert (sparse[:, 3] == previous[:, 3]).all()
    assert (sparse[:, 20:] == previous[:, 20:]).all()


@pytest.mark.parametrize("init", INITS)
def test_fits_with_the_sparse_solution_reach_the_same_distortion(init, rng, monkeypatch):
    X = correlated(rng, 500, 8)
    dense = small(3, 16, init=init).fit(X)
    monkeypatch.setattr(update, "DENSE_UNKNOWNS", 10)
    sparse = small(3, 16, init=init).fit(X)
    assert sparse.history_[-1] == pytest.approx(dense.history_[-1], rel=0.02)

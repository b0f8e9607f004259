"""Bad input gets an error that names the value, the rule and the way out; odd input its answer and a warning."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

import gkmeans as gk
import reference
from conftest import WAY_OUT, message_of
from gkmeans import _core
from gkmeans.update import Statistics

pytestmark = pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")  # those expected are caught where they are
INITS = ("random", "kmeans", "hierarchical")


def small(C=2, K=4, **options):
    return gk.GroupKMeans(C, K, **({"max_iter": 20, "init_iter": 5, "random_state": 0, "n_jobs": 1} | options))


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(3)
    return (rng.standard_normal((60, 4)) @ rng.standard_normal((4, 4)) + 1).astype(np.float32)


@pytest.fixture(scope="module")
def fitted(X):
    return small().fit(X)


def outcome(call):
    """The result of ``call``, or None and an explanation that shows a way out; no overflow on the way."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return call(), None
        except (ValueError, TypeError) as error:
            text = str(error)
    assert WAY_OUT.search(text), f"no way out in: {text}"
    return None, text


# ---- vectors


def with_value(X, value, dtype):
    out = X.astype(dtype)
    out[7, 2] = value
    return out


# name: (what to make of X, words of the message)
VECTORS = {
    "NaN": (lambda X: with_value(X, np.nan, np.float32), ["NaN", "row 7", "column 2", "finite"]),
    "NaN float64": (lambda X: with_value(X, np.nan, np.float64), ["NaN", "row 7", "column 2", "finite"]),
    "NaN float16": (lambda X: with_value(X, np.nan, np.float16), ["NaN", "row 7", "column 2", "finite"]),
    "infinity": (lambda X: with_value(X, np.inf, np.float32), ["infinity", "row 7", "column 2", "finite"]),
    "minus infinity": (lambda X: with_value(X, -np.inf, np.float64), ["infinity", "row 7", "column 2", "finite"]),
    "infinity float16": (lambda X: with_value(X, np.inf, np.float16), ["infinity", "row 7", "column 2", "finite"]),
    "None among objects": (lambda X: with_value(X, None, object), ["NaN", "row 7", "column 2"]),
    "no rows": (lambda X: X[:0], ["0 sample", "minimum of 1"]),
    "no columns": (lambda X: X[:, :0], ["0 feature", "minimum of 1"]),
    "3-d": (lambda X: X.reshape(6, 10, 4), ["(6, 10, 4)", "2-d", "reshape"]),
    "3-d list": (lambda X: X.reshape(6, 10, 4).tolist(), ["3", "2"]),
    "1-d": (lambda X: X[0], ["1D", "2D", "reshape"]),
    "scalar": (lambda X: 3.5, ["scalar", "2D", "reshape"]),
    "square over float32": (lambda X: X * np.float32(1e25), ["e+25", "square", "float32", "divide"]),
    "square over float64": (lambda X: X.astype(float) * 1e200, ["e+200", "square", "float32", "divide"]),
    "one value over": (lambda X: with_value(X, 1e20, np.float32), ["1e+20", "row 7", "float32", "divide"]),
    "negative value over": (lambda X: with_value(X, -1e20, np.float32), ["1e+20", "row 7", "float32", "divide"]),
    "float64 over float32": (lambda X: with_value(X, 1e60, np.float64), ["1e+60", "row 7", "float32", "divide"]),
    "integers over": (lambda X: with_value(X, 2**63 - 1, np.int64), ["9.22e+18", "row 7", "float32", "divide"]),
    "strings": (lambda X: np.array([["a", "b", "c", "d"]] * 5), ["U1", "not numeric", "astype"]),
    "digits": (lambda X: X.astype("U8"), ["U8", "not numeric", "astype"]),
    "bytes": (lambda X: X.astype("S8"), ["S8", "not numeric", "astype"]),
    "list of strings": (lambda X: [["a", "b", "c", "d"]] * 5, ["numeric", "onvert"]),
    "strings among objects": (lambda X: with_value(X, "seven", object), ["seven"]),
    "objects": (lambda X: with_value(X, object(), object), ["object", "number"]),
    "lists of different length": (lambda X: [[1, 2, 3, 4], [5, 6]], []),
    "complex": (lambda X: X + 1j, ["omplex"]),
    "csr_matrix": (lambda X: scipy.sparse.csr_matrix(X), ["parse", "dense", "toarray"]),
    "csr_array": (lambda X: scipy.sparse.csr_array(X), ["parse", "dense", "toarray"]),
    "coo_matrix": (lambda X: scipy.sparse.coo_matrix(X), ["parse", "dense", "toarray"]),
    "dates": (lambda X: X.astype("M8[s]"), ["[s]"]),
    "records": (lambda X: np.zeros((5, 4), [("a", int), ("b", float)]), ["not numeric"]),
}


@pytest.mark.parametrize("name", VECTORS)
def test_fit_explains_what_is_wrong_with_the_vectors(name, X):
    make, words = VECTORS[name]
    est = small()
    text = message_of(lambda: est.fit(make(X)))
    assert all(word in text for word in words), text
    assert not hasattr(est, "dictionaries_")


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("method", ["encode", "relative_distortion"])
def test_encode_explains_what_is_wrong_with_the_vectors(name, method, X, fitted):
    make, words = VECTORS[name]
    text = message_of(lambda: getattr(fitted, method)(make(X)))
    assert all(word in text for word in words), text


def test_the_row_of_a_bad_value_is_counted_over_blocks():
    rows = np.ones((9000, 2), np.float32)
    rows[::2] = 2
    rows[8765, 1] = np.nan
    assert "row 8765, column 1" in message_of(lambda: small(1, 2, order=1).fit(rows))
    rows[8765, 1] = 1e30
    assert "row 8765" in message_of(lambda: small(1, 2, order=1).fit(rows))


@pytest.mark.parametrize("method", ["encode", "transform", "relative_distortion", "score"])
@pytest.mark.parametrize("width", [3, 5])
def test_another_width_than_at_fit_is_refused(method, width, fitted):
    text = message_of(lambda: getattr(fitted, method)(np.ones((5, width))))
    assert f"{width} features" in text
    assert "4 features" in text


def test_a_failed_fit_keeps_the_earlier_one(X):
    est = small().fit(X)
    codes = est.encode(X)
    with pytest.raises(ValueError, match="NaN"):
        est.fit(with_value(X, np.nan, np.float32))
    assert (est.encode(X) == codes).all()


def test_extended_precision_is_taken_or_explained(X, fitted):
    wide = X.astype(np.longdouble)
    if wide.dtype == np.float64:
        pytest.skip("this platform's long double is float64")
    codes, explanation = outcome(lambda: fitted.encode(wide))
    assert explanation or (codes == fitted.encode(X)).all()


# ---- codes


CODES = {
    "too large": ([[4, 0]], ["4", "n_codewords=4", "0 … 3"]),
    "far too large": ([[256, 0]], ["256", "n_codewords=4", "0 … 3"]),
    "largest uint64": (np.array([[2**64 - 1, 0]], np.uint64), ["18446744073709551615", "0 … 3"]),
    "negative": ([[0, -1]], ["-1", "0 … 3"]),
    "float": ([[0.0, 1.0]], ["float64", "integers", "uint8"]),
    "NaN": ([[np.nan, 1.0]], ["float64", "integers", "uint8"]),
    "bool": ([[True, False]], ["bool", "integers", "uint8"]),
    "strings": ([["0", "1"]], ["U1", "integers", "uint8"]),
    "objects": (np.array([[0, 1]], object), ["object", "integers", "uint8"]),
    "complex": ([[1j, 0]], ["complex", "integers", "uint8"]),
    "1-d": ([0, 1], ["(2,)", "(n, 2)"]),
    "3-d": ([[[0, 1]]], ["(1, 1, 2)", "(n, 2)"]),
    "one column": ([[0]], ["(1, 1)", "(n, 2)"]),
    "three columns": ([[0, 1, 2]], ["(1, 3)", "(n, 2)"]),
    "empty list": ([], ["(0,)", "(n, 2)"]),
}


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("method", ["decode", "inverse_transform", "encode", "relative_distortion"])
def test_bad_codes_are_explained(name, method, X, fitted):
    codes, words = CODES[name]
    takes_rows = method in ("encode", "relative_distortion")
    arguments = (X[:1], codes) if takes_rows else (codes,)
    with pytest.raises((ValueError, TypeError)) as caught:
        getattr(fitted, method)(*arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "must" in str(caught.value)


def test_codes_above_255_are_refused_and_not_wrapped(X):
    est = small(2, 257, init="random", max_iter=1)
    with pytest.warns(gk.DataWarning):
        est.fit(X)
    with pytest.raises(ValueError, match=r"hold 257; .*0 … 256"):
        est.decode([[257, 0]])
    assert est.decode([[256, 256]]).shape == (1, 4)


@pytest.mark.parametrize("method", ["encode", "relative_distortion"])
def test_codes_need_a_row_for_each_vector(method, X, fitted):
    text = message_of(lambda: getattr(fitted, method)(X, codes=np.zeros((3, 2), np.uint8)))
    assert "3 rows" in text
    assert "60" in text


def test_no_codes_decode_to_no_vectors(fitted):
    out = fitted.decode(np.zeros((0, 2), np.uint8))
    assert out.shape == (0, 4)
    assert out.dtype == np.float32


def test_statistics_explain_bad_codes(X):
    good = np.zeros((60, 2), np.uint8)
    with pytest.raises(ValueError, match=r"\(60, 4\).*\(59, 2\).*equally many rows"):
        Statistics.of(X, good[1:])
    with pytest.raises(ValueError, match=r"float64; .*integers"):
        Statistics.of(X, good.astype(float))
    with pytest.raises(ValueError, match=r"-1 .*0 … "):
        Statistics.of(X, good.astype(int) - 1)
    with pytest.raises(ValueError, match=r"0 … 2"):
        Statistics.of(X, good + 3, 3)
    with pytest.raises(ValueError, match=r"\(2, 1, 9\).*\(2, 1, 4\)"):
        Statistics.of(X, good).solve(np.zeros((2, 1, 9)))
    with pytest.raises(ValueError, match=r"1 codewords.*up to 3"):
        Statistics.of(X, good + 3).solve(np.zeros((2, 1, 4)))
    with pytest.raises(ValueError, match=r"do not add"):
        Statistics.of(X, good) + Statistics.of(X[:, :2], good)


# ---- an unfitted estimator


@pytest.mark.parametrize(
    "method", ["encode", "transform", "relative_distortion", "score", "decode", "inverse_transform", "save"]
)
def test_an_unfitted_estimator_asks_for_fit(method, X, tmp_path):
    argument = tmp_path / "model" if method == "save" else X
    with pytest.raises(NotFittedError, match=r"GroupKMeans .*not fitted.*'fit'"):
        getattr(small(), method)(argument)
    assert not list(tmp_path.iterdir())


def test_an_unfitted_estimator_as_init_asks_for_fit(X):
    with pytest.raises(NotFittedError, match="fit"):
        small(init=small()).fit(X)


# ---- parameters

ARRAY = np.zeros((2, 4, 4), np.float32)
PARAMETERS = [
    ("n_jobs", 0, ["n_jobs=0", "threads", "None", "-1"]),
    ("n_jobs", True, ["n_jobs=True", "threads"]),
    ("n_jobs", 1.5, ["n_jobs=1.5", "threads"]),
    ("n_jobs", "2", ["n_jobs='2'", "threads"]),
    ("order", 3, ["order=3", "n_dictionaries=2", "from 1 to 2"]),
    ("order", 0, ["order=0", "from 1 to 2"]),
    ("order", -1, ["order=-1", "from 1 to 2"]),
    ("order", True, ["order=True", "integer"]),
    ("order", 1.0, ["order=1.0", "integer"]),
    ("order", "2", ["order='2'", "integer"]),
    ("init", "zzz", ["init='zzz'", "random", "kmeans", "hierarchical", "array"]),
    ("init", "", ["init=''", "random", "kmeans", "hierarchical", "array"]),
    ("init", ARRAY[:1], ["init", "(1, 4, 4)", "(2, 4, 4)"]),
    ("init", ARRAY[:, :3], ["init", "(2, 3, 4)", "(2, 4, 4)"]),
    ("init", ARRAY[:, :, :3], ["init", "(2, 4, 3)", "(2, 4, 4)"]),
    ("init", ARRAY[0], ["init", "(4, 4)", "(2, 4, 4)"]),
    ("init", ARRAY + np.nan, ["init", "finite"]),
    ("init", ARRAY + np.inf, ["init", "finite"]),
    ("init", ARRAY + 1j, ["init", "complex", "numbers"]),
    ("init", ARRAY.astype(str), ["init", "U", "numbers"]),
    ("init", ARRAY.astype(object), ["init", "object", "numbers"]),
    ("init", ARRAY + np.float32(1e30), ["init", "1e+30", "float32"]),
    ("init", ARRAY.astype(float) + 1e300, ["init", "1e+300", "float32"]),
    ("init", None, ["init"]),
    ("init", 5, ["init"]),
    ("n_codewords", 0, ["n_codewords=0", "from 1 to 65536"]),
    ("n_codewords", -4, ["n_codewords=-4", "from 1 to 65536"]),
    ("n_codewords", 65537, ["n_codewords=65537", "uint16", "at most 65536"]),
    ("n_codewords", 70000, ["n_codewords=70000", "uint16", "at most 65536"]),
    ("n_codewords", 4.0, ["n_codewords=4.0", "integer"]),
    ("n_codewords", True, ["n_codewords=True", "integer"]),
    ("n_codewords", "4", ["n_codewords='4'", "integer"]),
    ("n_codewords", None, ["n_codewords=None", "integer"]),
    ("n_dictionaries", 0, ["n_dictionaries=0", "at least 1"]),
    ("n_dictionaries", -2, ["n_dictionaries=-2", "at least 1"]),
    ("n_dictionaries", True, ["n_dictionaries=True", "integer"]),
    ("n_dictionaries", 2.0, ["n_dictionaries=2.0", "integer"]),
    ("max_iter", 0, ["max_iter=0", "at least 1"]),
    ("max_iter", True, ["max_iter=True", "integer"]),
    ("max_iter", 2.5, ["max_iter=2.5", "integer"]),
    ("init_iter", 0, ["init_iter=0", "at least 1"]),
    ("init_iter", False, ["init_iter=False", "integer"]),
    ("tol", -1e-9, ["tol=-1e-09", "at least 0"]),
    ("tol", np.nan, ["tol=nan", "at least 0"]),
    ("tol", np.inf, ["tol=inf", "at least 0"]),
    ("tol", True, ["tol=True", "number"]),
    ("tol", "0", ["tol='0'", "number"]),
    ("tol", None, ["tol=None", "number"]),
    ("random_state", -1, ["random_state=-1", "at least 0"]),
    ("random_state", "seed", ["seed"]),
    ("random_state", 1.5, ["1.5"]),
]


@pytest.mark.parametrize(("name", "value", "words"), PARAMETERS, ids=[f"{p[0]}-{i}" for i, p in enumerate(PARAMETERS)])
def test_bad_parameters_are_explained_by_fit(name, value, words, X):
    est = small().set_params(**{name: value})
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises((ValueError, TypeError)) as caught:
            est.fit(X)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not hasattr(est, "dictionaries_")


def test_bad_parameters_are_found_before_the_data_is_read():
    class Unreadable:
        def __array__(self, *arguments, **options):
            raise AssertionError("X was read")

    for name, value, _ in PARAMETERS:
        if name not in ("init", "random_state"):
            with pytest.raises(ValueError, match=name):
                small().set_params(**{name: value}).fit(Unreadable())


@pytest.mark.parametrize(("name", "value"), [("n_jobs", 0), ("order", 3), ("order", 0)])
def test_bad_parameters_set_after_the_fit_are_explained_by_encode(name, value, X):
    est = small().fit(X).set_params(**{name: value})
    with pytest.raises(ValueError, match=f"{name}={value}"):
        est.encode(X)


def test_a_table_beyond_memory_is_refused_before_any_work(X):
    with pytest.raises(ValueError, match=r"order=2 with 8 dictionaries of 65536 .*GiB.*use order=1"):
        small(8, 65536).fit(X)


def test_numpy_integers_are_integers(X):
    est = small(np.int64(2), np.uint16(4), order=np.int8(2), max_iter=np.int32(20), tol=np.float32(1e-5))
    assert est.fit(X).dictionaries_.shape == (2, 4, 4)


def test_an_unknown_simd_level_is_explained():
    codes, out = np.zeros((1, 1), np.uint16), np.empty((1, 1), np.float32)
    with pytest.raises(ValueError, match="simd_levels"):
        _core.decode(np.ones((1, 1, 1), np.float32), codes, out, "mmx")


# ---- odd data: the answer, and a warning with the numbers


def error_of(est, X):
    return reference.distortion(X, est.dictionaries_, est.codes_) / max((X.astype(float) ** 2).sum(), 1e-300)


def used(est):
    return [len(np.unique(column)) for column in est.codes_.T]


@pytest.mark.parametrize("init", INITS)
def test_fewer_rows_than_codewords_are_coded_exactly(init, X):
    with pytest.warns(gk.DataWarning, match=r"5 rows, fewer than n_codewords=8.* 3 of each 8 .*unused"):
        est = small(2, 8, init=init, relaxation=0, effort=2).fit(X[:5])
    assert error_of(est, X[:5]) < 1e-9
    assert est.relative_distortion(X[:5]) < 1e-4
    assert max(used(est)) <= 5
    assert est.dictionaries_.shape == (2, 8, 4)
    assert np.isfinite(est.dictionaries_).all()


@pytest.mark.parametrize("init", INITS)
def test_one_row_is_coded_exactly(init, X):
    with pytest.warns(gk.DataWarning, match=r"1 rows?, fewer than n_codewords=4"):
        est = small(init=init).fit(X[:1])
    np.testing.assert_allclose(est.decode(est.codes_), X[:1], rtol=1e-5)
    np.testing.assert_allclose(est.decode(est.encode(X[:1])), X[:1], rtol=1e-5)


@pytest.mark.parametrize("init", INITS)
def test_one_column_is_quantized(init, rng):
    X = rng.standard_normal((500, 1))
    with pytest.warns(gk.DataWarning, match=r"1 column and 500 rows"):
        est = small(2, 16, init=init).fit(X)
    assert est.dictionaries_.shape == (2, 16, 1)
    assert error_of(est, X) < 0.01  # 256 sums; 16 levels alone reach 0.01
    assert est.relative_distortion(X) < 0.02


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("value", [0.0, 7.25])
def test_equal_rows_are_coded_exactly(init, value):
    X = np.full((20, 3), value, np.float32)
    with pytest.warns(gk.DataWarning, match=r"all 20 rows of X are equal"):
        est = small(init=init).fit(X)
    np.testing.assert_allclose(est.decode(est.encode(X)), X, rtol=1e-6)
    assert est.relative_distortion(X) < 1e-12
    assert est.history_[-1] < 1e-12
    assert est.score(X) <= 0


@pytest.mark.parametrize("init", INITS)
def test_duplicates_are_coded_exactly_where_codewords_suffice(init, X):
    rows = np.repeat(X[:5], 20, axis=0)
    with pytest.warns(gk.DataWarning, match=r"5 distinct rows among 100, fewer than n_codewords=8"):
        est = small(2, 8, init=init, relaxation=0, effort=2).fit(rows)
    assert error_of(est, rows) < 1e-9
    assert max(used(est)) <= 5
    assert (est.codes_[::20].repeat(20, axis=0) == est.codes_).all()


@pytest.mark.parametrize("init", INITS)
def test_constant_columns_are_decoded_exactly(init, X):
    rows = np.c_[X, np.full(60, 3.0, np.float32), np.zeros(60, np.float32)]
    with pytest.warns(gk.DataWarning, match=r"2 of 6 columns of X are constant"):
        est = small(init=init).fit(rows)
    decoded = est.decode(est.codes_)
    np.testing.assert_allclose(decoded[:, 4], 3, rtol=1e-4)
    np.testing.assert_allclose(decoded[:, 5], 0, atol=1e-4)
    assert est.history_[-1] < 0.5


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("power", [-100, -120])
def test_values_around_1e_30_are_coded_as_well_as_larger_ones(init, dtype, power, X):
    # a power of two changes no digit, so the fit must be the same; 2^-100 is 8e-31, 2^-120 is 8e-37
    expected = small(init=init).fit(X)
    tiny = (X.astype(dtype) * dtype(2.0**power)).astype(dtype)
    with pytest.warns(gk.DataWarning, match=r"no value above [0-9.]+e-3[0-9]: .*float32"):
        est = small(init=init).fit(tiny)
    assert est.history_[-1] == pytest.approx(expected.history_[-1], rel=1e-3)
    assert est.relative_distortion(tiny, est.codes_) == pytest.approx(est.history_[-1], rel=1e-4)
    assert est.relative_distortion(tiny) == pytest.approx(expected.relative_distortion(X), rel=0.02)
    np.testing.assert_allclose(
        est.decode(est.codes_).astype(float) * 2.0**-power, expected.decode(expected.codes_), rtol=0.05, atol=0.2
    )


@pytest.mark.parametrize("factor", [1e9, 1e17])
def test_large_values_are_coded_as_well_as_smaller_ones(factor, X):
    expected = small().fit(X)
    est = small().fit(X.astype(float) * factor)
    assert est.history_[-1] == pytest.approx(expected.history_[-1], rel=1e-3)
    assert est.relative_distortion(X.astype(float) * factor) == pytest.approx(expected.relative_distortion(X), rel=0.02)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(lambda X: X.astype(float) * 1e-60, id="float64 below float32"),
        pytest.param(lambda X: X.astype(float) * 1e-300, id="float64 near its end"),
        pytest.param(lambda X: X * np.float32(1e-42), id="float32 denormal"),
    ],
)
def test_values_too_small_for_float32_are_refused_or_right(rows, X):
    rows = rows(X)
    est, explanation = outcome(lambda: small().fit(rows))
    if explanation:
        assert "float32" in explanation
    else:  # denormals have few digits
        assert est.relative_distortion(rows, est.codes_) == pytest.approx(est.history_[-1], rel=0.05)


@pytest.mark.parametrize("factor", [1e-10, 1.0, 1e9, 1e15])
def test_vectors_beyond_the_scale_of_the_fit_are_refused_or_right(factor, X):
    est = small(1, 8, order=1).fit(X * np.float32(1e-30))
    D = est.dictionaries_[0].astype(float)
    new = X * np.float32(factor)
    codes, explanation = outcome(lambda: est.encode(new))
    if not explanation:
        cost = (D**2).sum(axis=1) - 2 * new.astype(float) @ D.T
        best, chosen = cost.min(axis=1), cost[np.arange(len(new)), codes[:, 0]]
        assert (chosen - best <= 1e-5 * np.abs(best)).all()


def test_data_warnings_point_at_the_line_that_called_fit():
    with pytest.warns(gk.DataWarning) as caught:
        small().fit(np.ones((20, 3)))
    assert {warning.filename for warning in caught} == {__file__}


def test_ordinary_data_gives_no_warning(X):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        est = small().fit(X)
        est.relative_distortion(X)


def test_warnings_can_be_turned_into_errors(X):
    with warnings.catch_warnings():
        warnings.simplefilter("error", gk.DataWarning)
        with pytest.raises(gk.DataWarning, match="fewer than"):
            small().fit(X[:2])

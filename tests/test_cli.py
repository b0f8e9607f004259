"""The command ``gkmeans`` and the embedded sample."""

import re
import warnings
from importlib.resources import files

import numpy as np
import pytest
from typer.testing import CliRunner

import gkmeans as gk
from gkmeans import cli
from gkmeans.baselines import product_quantization
from gkmeans.datasets import Dataset, load_sample

METHODS = ["product quantization", *(f"gk-means ({order}, {init})" for order in (1, 2) for init in "rkh")]


def run(*arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gk.DataWarning)
        return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def flat(text):
    """Text without the frame and the line breaks that the console put in."""
    return re.sub(r"[\s│]+", " ", text)


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    return (rng.standard_normal((450, 8)) @ rng.standard_normal((8, 8))).astype(np.float32)


@pytest.fixture(scope="module")
def short_fits():
    """The estimators that the demo makes, held to a few iterations."""
    made = []

    def short(*arguments, **options):
        made.append(gk.GroupKMeans(*arguments, **(options | {"max_iter": 2, "init_iter": 1})))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "GroupKMeans", short)
        yield made


@pytest.fixture(scope="module")
def result(vectors, short_fits, tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "small.npy"
    np.save(path, vectors)
    short_fits.clear()
    return run("demo", "--data", path, "--seed", 3, "--jobs", 1)


@pytest.fixture(scope="module")
def rows(result):
    """(method, bits, learn, base, ratio, seconds) of each line of the table."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    return [(row[0], int(row[1]), *map(float, row[2:])) for row in cells if len(row) == 6]


def test_demo_prints_a_row_for_each_method_and_length(result, rows):
    assert result.exit_code == 0, result.output
    assert [(row[0], row[1]) for row in rows] == [(method, bits) for bits in (32, 64) for method in METHODS]


def test_demo_names_the_data_and_the_columns(result):
    text = flat(result.stdout)
    assert all(part in text for part in ("learn 300 × 8", "base 150", "K = 256", "seed 3"))
    assert "Relative distortion × 10⁻²" in text
    for column in ("method", "bits", "learn", "base", "ratio to PQ", "fit, s"):
        assert column in text


def test_demo_compares_with_product_quantization_of_the_same_bytes(rows, vectors):
    for bits in (32, 64):
        lines = [row for row in rows if row[1] == bits]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gk.DataWarning)
            learn, base = product_quantization(vectors[:300], vectors[300:], bits // 8, 256, 3, 1)
        assert lines[0][2] == pytest.approx(100 * learn, abs=0.006)
        assert lines[0][3] == pytest.approx(100 * base, abs=0.006)
        assert lines[0][4] == 1
        for row in lines:
            assert row[4] == pytest.approx(row[3] / (100 * base), rel=0.06, abs=0.006 / (100 * base))


def test_demo_shows_the_distortion_of_the_fit_and_of_a_fresh_encoding(rows, short_fits, vectors):
    lines = [row for row in rows if row[0] != "product quantization"]
    for row, est in zip(lines, short_fits[:12], strict=True):
        assert row[0] == f"gk-means ({est.order}, {est.init[0]})"
        assert row[1] == 8 * est.n_dictionaries
        assert (est.n_codewords, est.random_state, est.n_jobs) == (256, 3, 1)
        assert est.codes_.shape == (300, est.n_dictionaries)
        assert row[2] == pytest.approx(100 * est.history_[-1], abs=0.006)
        assert row[3] == pytest.approx(100 * est.relative_distortion(vectors[300:]), abs=0.006)


def test_demo_reads_other_formats_than_npy(vectors, tmp_path):
    rows = [np.int32(8).tobytes() + row.tobytes() for row in vectors]
    (tmp_path / "small.fvecs").write_bytes(b"".join(rows))
    learn, base = cli._vectors(tmp_path / "small.fvecs")
    assert (learn == vectors[:300]).all()
    assert (base == vectors[300:]).all()


def test_help_names_the_commands_and_options():
    assert "demo" in run("--help").output
    text = run("demo", "--help").output
    assert all(option in re.sub(r"\x1b\[[0-9;]*m", "", text) for option in ("--data", "--seed", "--jobs"))


def test_no_arguments_show_the_help():
    assert "Usage" in run().output


# ---- files that are no vectors


def saved(array, **options):
    return lambda path: np.save(path, array, **options)


def truncated(path):
    np.save(path, np.ones((100, 8)))
    path.write_bytes(path.read_bytes()[:-100])


def archive(path):
    with path.open("wb") as file:
        np.savez(file, X=np.ones((100, 8)))


NAN = np.ones((100, 8))
NAN[70, 2] = np.nan
BAD = {
    "missing": (lambda path: None, ["No such file"]),
    "empty": (lambda path: path.write_bytes(b""), ["cannot be read"]),
    "text": (lambda path: path.write_text("1 2 3\n4 5 6\n"), ["cannot be read"]),
    "truncated": (truncated, ["cannot be read"]),
    "folder": (lambda path: path.mkdir(), ["cannot be read"]),
    "objects": (saved(np.array([[1, "a"]], object), allow_pickle=True), ["cannot be read"]),
    "archive": (archive, [".npy"]),
    "1-d": (saved(np.ones(100)), ["(100,)", "(n, P)"]),
    "3-d": (saved(np.ones((10, 10, 4))), ["(10, 10, 4)", "(n, P)"]),
    "strings": (saved(np.full((100, 4), "a")), ["U1", "numbers"]),
    "complex": (saved(np.ones((100, 4), complex)), ["complex", "numbers"]),
    "no rows": (saved(np.ones((0, 4))), ["(0, 4)"]),
    "two rows": (saved(np.ones((2, 4))), ["(2, 4)"]),
    "no columns": (saved(np.ones((100, 0))), ["(100, 0)"]),
    "NaN": (saved(NAN), ["NaN"]),
    "overflow": (saved(np.full((100, 4), 1e30)), ["float32"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_ends_with_code_2_and_says_why(name, tmp_path, short_fits):
    make, words = BAD[name]
    path = tmp_path / "bad.npy"
    make(path)
    result = run("demo", "--data", path, "--jobs", 1)
    assert result.exit_code == 2, repr(result.exception)
    text = flat(result.output)
    assert "bad.npy" in text.replace(" ", "")
    assert all(word.replace(" ", "") in text.replace(" ", "") for word in words), text
    assert "Traceback" not in text


@pytest.mark.parametrize(("option", "value"), [("--jobs", "0"), ("--seed", "-1"), ("--jobs", "two")])
def test_a_bad_option_ends_with_code_2_and_says_why(option, value, vectors, tmp_path, short_fits):
    np.save(tmp_path / "small.npy", vectors)
    result = run("demo", "--data", tmp_path / "small.npy", option, value)
    assert result.exit_code == 2, repr(result.exception)
    assert option.strip("-") in result.output


# ---- the embedded sample


@pytest.fixture(scope="module")
def sample():
    return load_sample()


def test_demo_takes_the_sample_by_default(monkeypatch):
    tiny = Dataset("tiny", *(np.zeros((3, 2), np.uint8) for _ in range(4)))
    monkeypatch.setattr(cli, "load_sample", lambda: tiny)
    learn, base = cli._vectors(None)
    assert learn is tiny.learn
    assert base is tiny.base


def test_the_sample_has_the_shapes_and_dtypes_it_says(sample):
    assert (sample.learn.shape, sample.learn.dtype) == ((20000, 128), np.uint8)
    assert (sample.base.shape, sample.base.dtype) == ((10000, 128), np.uint8)
    assert (sample.query.shape, sample.query.dtype) == ((500, 128), np.uint8)
    assert (sample.groundtruth.shape, sample.groundtruth.dtype) == ((500, 100), np.int32)
    assert all(array.flags.c_contiguous for array in (sample.learn, sample.base, sample.query, sample.groundtruth))


def test_the_ground_truth_is_exact(sample):
    chosen = np.random.default_rng(0).choice(500, 20, replace=False)
    base = sample.base.astype(np.int64)
    for i in chosen:
        distances = ((base - sample.query[i].astype(np.int64)) ** 2).sum(axis=1)
        assert (np.argsort(distances, kind="stable")[:100] == sample.groundtruth[i]).all()


def test_the_sample_is_descriptors_and_not_filler(sample):
    assert sample.learn.max() > 100
    assert len(np.unique(sample.learn[:2000], axis=0)) > 1900
    norms = np.linalg.norm(sample.learn.astype(float), axis=1)
    assert np.median(norms) == pytest.approx(512, rel=0.1)  # SIFT is scaled to a length of 512
    rows = {row.tobytes() for row in sample.base}
    assert sum(row.tobytes() in rows for row in sample.learn) < 100  # learn and base are different photos


def test_the_sample_takes_a_few_megabytes():
    assert len((files("gkmeans") / "data" / "sample.npz").read_bytes()) < 5e6

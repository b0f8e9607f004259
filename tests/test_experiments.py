"""The paper's tables and figures on tiny data: resuming, reports, marks of what is estimated, errors."""

import csv
import errno
import json
import os
import re
import warnings
from importlib import import_module

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import gkmeans as gk
from gkmeans import cli
from gkmeans.datasets import Dataset, load_sample
from gkmeans.estimators.base import AdditiveQuantizer
from gkmeans.experiments import (
    Settings,
    figure1,
    figure2,
    fits,
    methods,
    paper,
    pictures,
    pursued,
    run,
    store,
    table1,
    table2,
)
from gkmeans.experiments.pursued import pursue, timed
from gkmeans.experiments.scan import scan
from gkmeans.experiments.store import Store
from gkmeans.experiments.subject import Subject
from gkmeans.pursuit import SECONDS_A_SCORE, tree_size

TINY = Settings(n_codewords=16, max_iter=3, init_iter=2, n_jobs=1)
TWO = ("gk-means(2, h)", "ck-means")
KINDS = ("json", "csv", "md", "png", "svg")
sample = load_sample()
# the package shows the functions; these are the modules of the same names
TABLE2, FIGURE2 = (import_module(f"gkmeans.experiments.{name}") for name in ("table2", "figure2"))


def small(name="small", n=300):
    return Dataset(name, sample.learn[:n], sample.base[:200], sample.query[:30], None)


def mnist_like(n=300):
    learn = sample.learn[:n]
    return Dataset("mnist", learn, learn, sample.query[:30], None)


def content(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def lines(folder, name):
    with (folder / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def drawn():
    """Asked for by the tests that look into the pictures; the others spare the time of drawing."""


@pytest.fixture(autouse=True)
def _quick(request, monkeypatch):
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(Figure, "savefig", lambda self, out, **options: out.write(b"-"))


@pytest.fixture
def counted(monkeypatch):
    """Methods that were fitted, in order."""
    made = []
    original = fits._fit

    def counting(kept, subject, key, *rest):
        made.append(key["method"])
        return original(kept, subject, key, *rest)

    monkeypatch.setattr(fits, "_fit", counting)
    return made


def test_table1_fits_each_method_at_each_length_and_seed(tmp_path, counted):
    rows = table1(small(), tmp_path, methods=TWO, bits=(8, 16), seeds=(0, 1), settings=TINY)
    asked = [(seed, bits, method) for seed in (0, 1) for bits in (8, 16) for method in TWO]
    assert [(row["seed"], row["bits"], row["method"]) for row in rows] == asked
    assert len(counted) == 8
    assert all((tmp_path / f"table1.{kind}").stat().st_size for kind in KINDS)
    assert content(tmp_path, "table1")["rows"] == rows
    assert [float(line["distortion"]) for line in lines(tmp_path, "table1")] == [row["distortion"] for row in rows]


def test_the_distortion_is_that_of_the_database(tmp_path):
    [row] = table1(small(), tmp_path, methods=TWO[:1], bits=[8], settings=TINY)
    est = methods.build(TWO[0], 8, 0, TINY).fit(sample.learn[:300])
    assert row["distortion"] == row["distortion_fresh"] == est.relative_distortion(sample.base[:200])
    assert row["distortion_train"] == est.history_[-1]
    assert row["n_iter"] == est.n_iter_


def test_where_the_database_is_the_training_set_the_codes_of_the_last_iteration_count(tmp_path):
    [row] = table1(mnist_like(), tmp_path, methods=["2h"], bits=[8], settings=TINY)
    X = sample.learn[:300]
    est = methods.build("gk-means(2, h)", 8, 0, TINY).fit(X)
    assert row["distortion"] == est.relative_distortion(X, est.codes_) == pytest.approx(est.history_[-1], rel=1e-5)
    assert row["distortion_fresh"] == est.relative_distortion(X)
    assert "encoded afresh" in (tmp_path / "table1.md").read_text()


def test_a_second_run_and_the_figures_do_not_fit_again(tmp_path, counted):
    options = {"methods": TWO, "bits": (8,), "settings": TINY}
    first = table1(small(), tmp_path, **options)
    assert counted == list(TWO)
    assert table1(small(), tmp_path, **options) == first
    figure1(small(), tmp_path, **options)
    figure2(small(), tmp_path, **options)
    assert counted == list(TWO)


def test_a_stopped_run_goes_on_where_it_was(tmp_path, counted, monkeypatch):
    original = AdditiveQuantizer.save

    def stop(self, path):
        if "ck-means" in str(path):
            raise KeyboardInterrupt
        original(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(AdditiveQuantizer, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            table1(small(), tmp_path, methods=TWO, bits=(8,), settings=TINY)
    assert len(list((tmp_path / "cells").glob("*.json"))) == 1
    table1(small(), tmp_path, methods=TWO, bits=(8,), settings=TINY)
    assert counted == [*TWO, "ck-means"]


@pytest.mark.parametrize("ending", ["json", "model.safetensors", "codes.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_cell_is_made_anew_with_a_warning(tmp_path, counted, ending, damage):
    options = {"methods": ["2r"], "bits": (8,), "settings": TINY}
    first = table1(small(), tmp_path, **options)
    [path] = (tmp_path / "cells").glob(f"*[0-9a-f].{ending}")
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else data[:-40] + bytes(b ^ 1 for b in data[-40:]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = table1(small(), tmp_path, **options)
    told = [str(warning.message) for warning in caught if "damaged" in str(warning.message)]
    assert len(told) == (0 if (ending, damage) == ("json", "gone") else 1)
    assert len(counted) == 2
    assert again[0]["distortion"] == first[0]["distortion"]


def test_other_settings_or_data_make_another_cell(tmp_path, counted):
    options = {"methods": ["1r"], "bits": (8,)}
    table1(small(), tmp_path, settings=TINY, **options)
    for change in ({"max_iter": 4}, {"init_iter": 3}, {"n_codewords": 4}, {"limit": 250}):
        table1(small(), tmp_path, settings=Settings(**(vars(TINY) | change)), **options)
    table1(small(), tmp_path, settings=TINY, seeds=[1], **options)
    table1(small(n=299), tmp_path, settings=TINY, **options)
    table1(small(name="other"), tmp_path, settings=TINY, **options)
    assert len(counted) == 8
    table1(small(), tmp_path, settings=Settings(**(vars(TINY) | {"n_jobs": 2})), **options)  # the same bits
    assert len(counted) == 8


def test_a_changed_value_in_the_data_is_seen():
    learn = sample.learn[:300].copy()
    one = Subject.of(Dataset("x", learn, learn, learn, None), None)
    other = learn.copy()
    other[17, 3] ^= 1
    two = Subject.of(Dataset("x", other, learn, learn, None), None)
    assert one.fingerprint["learn"] != two.fingerprint["learn"]
    assert one.base_is_learn
    assert not two.base_is_learn


def test_the_markdown_has_the_papers_numbers_beside_ours_where_the_shape_is_the_published_one(tmp_path, monkeypatch):
    fast = Settings(max_iter=1, init_iter=1)
    names = ["gk-means(2, r)", "gk-means(1, r)"]
    rows = table1(mnist_like(400), tmp_path, methods=names, bits=[32], settings=fast)
    assert [row["paper_distortion"] for row in rows] == [None, None]
    assert "17.62" not in (tmp_path / "table1.md").read_text()
    monkeypatch.setitem(paper.SHAPES, "mnist", ((400, 128), (400, 128)))
    rows = table1(mnist_like(400), tmp_path, methods=names, bits=[32], settings=fast)
    text = (tmp_path / "table1.md").read_text()
    two, one = (100 * row["distortion"] for row in rows)
    assert two <= one
    assert f"| 32 | **{two:.2f}** (17.62) | {one:.2f} (22.43) |" in text
    assert [row["paper_distortion"] for row in rows] == [0.1762, 0.2243]
    assert "| bits | (2, r) | (1, r) |" in text


def test_several_seeds_show_the_median_and_the_spread(tmp_path):
    rows = table1(small(), tmp_path, methods=["2r"], bits=[8], seeds=[0, 1, 2], settings=TINY)
    values = sorted(100 * row["distortion"] for row in rows)
    text = (tmp_path / "table1.md").read_text()
    assert f"| 8 | **{values[1]:.2f}** |" in text
    assert f"| 8 | {values[0]:.2f} … {values[2]:.2f} |" in text


def test_reports_name_seed_version_cpu_and_settings(tmp_path, drawn):
    table1(small(), tmp_path, methods=["2r"], bits=[8], seeds=[5], settings=TINY)
    about = content(tmp_path, "table1")["about"]
    assert about["seeds"] == [5]
    assert about["settings"] == vars(TINY)
    assert about["machines"][0]["version"] == gk.__version__
    assert {"version", "cpu", "cores", "threads", "simd", "seed", "max_iter", "date"} <= set(
        lines(tmp_path, "table1")[0]
    )
    for kind in ("md", "svg", "png"):
        data = (tmp_path / f"table1.{kind}").read_bytes()
        assert b"Seeds 5" in data
        assert f"gkmeans {gk.__version__}".encode() in data
        assert fits.cpu().encode() in data


def test_every_cell_and_report_names_the_code(tmp_path):
    figure2(small(), tmp_path, methods=["2r"], bits=[8], settings=TINY)
    cells = [json.loads(path.read_text()) for path in (tmp_path / "cells").glob("*.json")]
    assert len(cells) == 3
    assert all(cell["machine"]["code"] == store.CODE and "code" not in cell["key"] for cell in cells)
    assert content(tmp_path, "figure2")["about"]["codes"] == [store.CODE]
    assert {line["code"] for line in lines(tmp_path, "figure2")} == {store.CODE}
    assert f"Code sha256 {store.CODE}." in (tmp_path / "figure2.md").read_text()


def test_a_report_of_cells_from_different_code_says_so(tmp_path, monkeypatch, counted):
    options = {"bits": [8], "settings": TINY}
    monkeypatch.setattr(store, "CODE", "before")
    table1(small(), tmp_path, methods=["2r"], **options)
    monkeypatch.setattr(store, "CODE", "after")
    rows = table1(small(), tmp_path, methods=["2r", "1r"], **options)
    assert len(counted) == 2  # the code is no part of the key
    assert [row["code"] for row in rows] == ["before", "after"]
    assert "Made by different code (sha256 before, after)" in (tmp_path / "table1.md").read_text()
    figure2(small(), tmp_path, methods=["2r"], **options)  # searched by the new code, fitted by the old
    assert content(tmp_path, "figure2")["about"]["codes"] == ["before", "after"]


def test_a_cell_that_does_not_name_its_code_is_used(tmp_path, monkeypatch, counted):
    def plain(settings):
        return {name: value for name, value in original(settings).items() if name != "code"}

    original = fits.machine
    with monkeypatch.context() as patch:
        patch.setattr(fits, "machine", plain)
        table1(small(), tmp_path, methods=["2r"], bits=[8], settings=TINY)
    table1(small(), tmp_path, methods=["2r", "1r"], bits=[8], settings=TINY)
    assert len(counted) == 2
    assert content(tmp_path, "table1")["about"]["codes"] == ["unknown", store.CODE]


def test_the_digest_changes_with_the_name_and_content_of_every_source(tmp_path):
    native = tmp_path / "native.so"
    native.write_bytes(b"1")
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    digests = [store.code_digest(package, native)]
    for path, text in (
        (package / "a.py", "x"),
        (package / "inner" / "b.py", "y"),
        (package / "a.py", "z"),
        (native, "2"),
    ):
        path.write_text(text)
        digests.append(store.code_digest(package, native))
    (package / "a.py").rename(package / "c.py")
    digests.append(store.code_digest(package, native))
    assert len(set(digests)) == 6
    (package / "notes.txt").write_text("")
    assert store.code_digest(package, native) == digests[-1]


def test_figure1_shows_the_iterations_of_the_training_proper(tmp_path, drawn):
    rows = figure1(small(), tmp_path, methods=["2h", "1r"], bits=[8], settings=TINY)
    est = methods.build("gk-means(2, h)", 8, 0, TINY).fit(sample.learn[:300])
    assert rows[0]["distortions"] == list(est.history_[-est.n_iter_ :])
    assert len(est.history_) > est.n_iter_
    table = lines(tmp_path, "figure1")
    assert [(row["method"], int(row["iteration"])) for row in table] == [
        (row["method"], at) for row in rows for at in range(1, len(row["distortions"]) + 1)
    ]
    svg = (tmp_path / "figure1.svg").read_text()
    assert all((tmp_path / f"figure1.{kind}").exists() for kind in KINDS)
    assert "Iteration" in svg
    assert "Relative distortion" in svg


def test_the_scan_ranks_by_the_distance_to_the_decoded_vectors():
    X, query = sample.base[:5000], sample.query[:40]
    est = methods.build("gk-means(2, h)", 8, 0, TINY).fit(X[:500])
    codes = est.encode(X)
    distances = ((query[:, None].astype(float) - est.decode(codes)[None]) ** 2).sum(axis=2)
    found = scan(est, codes, query, 20, 2)
    assert np.take_along_axis(distances, found, 1) == pytest.approx(np.sort(distances, 1)[:, :20], rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda query: np.where(np.arange(128) == 5, np.nan, query), "query contains NaN in row 0, column 5"),
        (lambda query: query * 1e30, "query holds .* overflows float32"),
        (lambda query: query[:, :100], "query has vectors of 100 features and learn of 128"),
    ],
)
def test_queries_that_have_no_distance_are_refused_before_any_fit(tmp_path, change, message):
    query = change(sample.query[:30].astype(float))
    data = Dataset("bad", sample.learn[:300], sample.base[:200], query, np.zeros((30, 1), int))
    with pytest.raises(ValueError, match=message):
        figure2(data, tmp_path, methods=["2r"], bits=[8], settings=TINY)
    assert not list(tmp_path.iterdir())


def test_figure2_recall_equals_brute_force(tmp_path, drawn):
    data = small()
    [row] = figure2(data, tmp_path, methods=["2h"], bits=[12], settings=TINY)
    est = methods.build("gk-means(2, h)", 12, 0, TINY).fit(data.learn)
    base, query = data.base.astype(float), data.query.astype(float)
    truth = ((query[:, None] - base[None]) ** 2).sum(axis=2).argmin(axis=1)
    coded = ((query[:, None] - est.decode(est.encode(base)).astype(float)[None]) ** 2).sum(axis=2)
    order = np.argsort(coded, axis=1, kind="stable")
    places = (order == truth[:, None]).argmax(axis=1)
    assert row["recall"] == pytest.approx([(places < R).mean() for R in range(1, 101)], abs=0.04)  # ties by rounding
    assert row["recall_at_10"] == row["recall"][9]
    assert "| bits | method | recall@1 | recall@10 | recall@100 |" in (tmp_path / "figure2.md").read_text()
    assert all((tmp_path / f"figure2.{kind}").exists() for kind in KINDS)


def test_figure2_takes_the_datasets_own_neighbours_unless_the_database_is_cut(tmp_path):
    wrong = np.full((30, 1), 7)
    data = Dataset("own", sample.learn[:300], sample.base[:200], sample.query[:30], wrong)
    assert (Subject.of(data, None).groundtruth == 7).all()
    assert Subject.of(data, 100).groundtruth is None
    assert len(Subject.of(data, 200).query) == 30
    rows = figure2(data, tmp_path, methods=["2r"], bits=[8], settings=TINY)
    assert not list((tmp_path / "cells").glob("neighbours*"))
    assert rows[0]["recall"] != figure2(small("own"), tmp_path, methods=["2r"], bits=[8], settings=TINY)[0]["recall"]


def test_true_neighbours_are_found_once(tmp_path, monkeypatch):
    calls = []
    original = FIGURE2.nearest
    monkeypatch.setattr(FIGURE2, "nearest", lambda *a, **o: calls.append(1) or original(*a, **o))
    for bits in (8, 12):
        figure2(small(), tmp_path, methods=["2r"], bits=[bits], settings=TINY)
    assert calls == [1]


def test_table2_marks_what_is_estimated_in_every_output(tmp_path, monkeypatch, drawn):
    monkeypatch.setattr(TABLE2, "timed", lambda encode, X, budget, jobs, rng: timed(encode, X, 1e-9, jobs, rng))
    rows = table2(small(), tmp_path, dictionaries=(2, 8), settings=TINY)
    marks = {(row["method"], row["dictionaries"]): row["estimated"] for row in rows}
    assert marks == {(m, C): m == "MCMP" for m in TABLE2.PAPER_METHODS for C in (2, 8)}
    last = rows[-1]
    assert last["dictionaries_of"] == "gk-means(2, h)"
    assert last["sample_rows"] == 2
    assert last["distortion"] is None
    assert last["paper_seconds"] == 10790250.0
    text = (tmp_path / "table2.md").read_text()
    assert re.search(r"\| MCMP \| 8 \| [\d,.]+ \(estimated\) \| [\d,.]+ \(estimated\) \| – \|", text)
    assert "Estimated: MCMP with 8 dictionaries encoded 2 vectors" in text
    assert "another machine" in text
    assert [line["estimated"] for line in lines(tmp_path, "table2")] == ["False"] * 4 + ["True"] * 2
    assert "estimated from a sample" in (tmp_path / "table2.svg").read_text()


def test_table2_does_not_run_what_would_take_years(tmp_path, monkeypatch, drawn):
    monkeypatch.setattr(TABLE2, "timed", lambda *a: pytest.fail("the pursuit was run"))
    rows = table2(small(), tmp_path, methods=["MCMP"], dictionaries=(16, 20), settings=TINY)
    for row in rows:
        assert (row["estimated"], row["estimated_from"], row["sample_rows"]) == (True, "tree", 0)
        assert row["distortion"] is None
    assert rows[0]["seconds"] == pytest.approx(200 * tree_size(10, 16, 16) * SECONDS_A_SCORE)
    text = (tmp_path / "table2.md").read_text()
    assert re.search(r"\| MCMP \| 16 \| [\d,.]+ \(estimated\) \| [\d,.]+ \(estimated\) \| – \|", text)
    assert "MCMP with 16 dictionaries was not run" in text
    assert "from the size of its tree" in text
    assert [line["estimated_from"] for line in lines(tmp_path, "table2")] == ["tree", "tree"]
    svg = (tmp_path / "table2.svg").read_text()
    assert "estimated from the size of its tree" in svg
    assert "estimated from a sample" not in svg


def test_table2_encodes_at_least_a_sample_where_a_few_vectors_fit_the_budget(tmp_path):
    [row] = table2(small(), tmp_path, methods=["MCMP"], dictionaries=[8], settings=TINY, budget=0.2)
    assert row["sample_rows"] >= 2
    assert row["estimated_from"] in (None, "sample")


def test_an_expected_time_stays_a_number_for_any_tree():
    assert np.isfinite(pursued.expected(10**6, 1000, 256, 10, 1))


def test_an_encoding_weighs_its_seconds_and_mcmp_no_more_than_its_budget(tmp_path, monkeypatch):
    weights = {}

    def listen(title, kept, jobs, progress):
        weights.update({job.title: job.work for job in jobs if title == "Table 2, encoding"})
        return run.run(title, kept, jobs, progress)

    monkeypatch.setattr(TABLE2, "run", listen)
    settings = Settings(**(vars(TINY) | {"mcmp_iter": 1}))
    table2(small(), tmp_path, methods=["2h", "MCMP"], dictionaries=(2, 8, 16), settings=settings, budget=0.5)
    cells = [json.loads(path.read_text()) for path in (tmp_path / "cells").glob("fit*.json")]
    after = {(c["key"]["method"], c["key"]["bits"] // 4): c["values"]["encode_seconds"] for c in cells}
    for C in (2, 8, 16):
        assert weights[f"gk-means(2, h), {C} dictionaries"] == after["gk-means(2, h)", C]
    assert weights["MCMP, 2 dictionaries"] == after["MCMP", 2]
    assert weights["MCMP, 8 dictionaries"] == 0.5
    assert weights["MCMP, 16 dictionaries"] == 0


def test_table2_measures_all_where_the_budget_allows(tmp_path):
    settings = Settings(**(vars(TINY) | {"mcmp_iter": 2}))
    rows = table2(small(), tmp_path, methods=["MCMP", "2h"], dictionaries=(2, 4), settings=settings)
    assert not any(row["estimated"] for row in rows)
    assert all(row["sample_rows"] == 200 for row in rows)
    text = (tmp_path / "table2.md").read_text()
    assert "| MCMP | 2 → 4 |" in text
    assert "59.3" in text  # the paper's growth
    assert "estimated" not in text
    assert "MCMP was trained for at most 2 iterations" in text


def test_table2_uses_the_fits_of_table1_and_measures_once(tmp_path, counted):
    options = {"methods": ["2h"], "settings": TINY}
    table1(small(), tmp_path, bits=[8], **options)
    first = table2(small(), tmp_path, dictionaries=[2], **options)
    assert counted == ["gk-means(2, h)"]
    assert table2(small(), tmp_path, dictionaries=[2], **options) == first


def test_mcmp_has_iterations_of_its_own():
    settings = Settings(max_iter=9, mcmp_iter=4)
    assert methods.build("MCMP", 32, 0, settings).max_iter == 4
    assert methods.build("ock-means", 32, 0, settings).max_iter == 9
    keys = [fits.fit_key(Subject.of(small(), None), m, 32, 0, settings) for m in ("MCMP", "ock-means")]
    assert ["mcmp_iter" in key for key in keys] == [True, False]


def test_a_sample_is_timed_and_scaled(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(pursued.time, "perf_counter", lambda: clock[0])
    sizes = []

    def slow(rows):
        sizes.append(len(rows))
        clock[0] += len(rows) * 0.5
        return rows.astype(np.uint8)

    timing = timed(slow, np.arange(4000.0)[:, None], 100.0, 1, np.random.default_rng(0))
    assert sizes == [2, 64, 200]  # as many as the budget allows, and at most 32 times as many as before
    assert timing.estimated
    assert timing.seconds == 2000
    assert len(set(timing.rows)) == 200
    assert timed(slow, np.zeros((2, 1)), 1e-9, 1, np.random.default_rng(0)).estimated is False


def test_mcmp_codes_by_the_dictionaries_of_a_model():
    X = sample.base[:300]
    est = methods.build("gk-means(2, h)", 12, 0, TINY).fit(X)
    codes = pursue(est, X, 16, 2)
    assert est.relative_distortion(X, codes) < 1.3 * est.relative_distortion(X)
    assert codes.dtype == np.uint8


def test_a_full_disk_is_explained_and_finished_cells_stay(tmp_path, monkeypatch):
    table1(small(), tmp_path, methods=["2r"], bits=[8], settings=TINY)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(gk.FileError, match=r"no space left on the disk; what is finished there is kept"):
            table1(small(), tmp_path, methods=["2r", "1r"], bits=[8], settings=TINY)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_that_cannot_be_made_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(gk.FileError, match=r"cannot be written to .*Not a directory.* a folder that you may write to"):
        Store(tmp_path / "file" / "out")


def test_without_matplotlib_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    for experiment in (table1, table2, figure1, figure2):
        with pytest.raises(ImportError, match=r"gkmeans\[plot\]"):
            experiment(small(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["lsq"]}, "'lsq' is not one of gk-means"),
        ({"methods": []}, "methods is empty"),
        ({"bits": []}, "bits is empty"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [-1]}, "seed=-1"),
        ({"bits": [12], "settings": Settings()}, "bits=12 do not suit gk-means"),
        ({"methods": ["ock"], "bits": [24], "settings": Settings()}, "multiple of 16"),
    ],
)
def test_bad_choices_are_explained(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        table1(small(), tmp_path, **({"bits": [8], "settings": TINY} | options))


def test_integers_of_numpy_are_integers(tmp_path, counted):
    settings = Settings(**{name: np.int64(value) for name, value in vars(TINY).items() if value is not None})
    rows = table1(small(), tmp_path, methods=["2r"], bits=np.array([8]), seeds=np.array([1]), settings=settings)
    assert rows == table1(small(), tmp_path, methods=["2r"], bits=[8], seeds=[1], settings=TINY)
    counts = np.array([2])
    assert table2(small(), tmp_path, methods=["1h"], dictionaries=counts, seed=np.int64(1), settings=settings)
    assert len(counted) == 2
    for bits in (True, 8.0, "8"):
        with pytest.raises(ValueError, match=f"bits={bits!r} is not an integer"):
            table1(small(), tmp_path, methods=["2r"], bits=[bits], settings=TINY)
        with pytest.raises(ValueError, match=f"bits={bits!r} is not an integer"):
            methods.count_dictionaries("gk-means(2, r)", bits, TINY)


@pytest.mark.parametrize("name", ["gk-means(2, h)", "gk-means (2,h)", "(2, h)", "2h", "GK2H"])
def test_a_method_is_known_by_short_names_too(name):
    assert methods.canonical(name) == "gk-means(2, h)"
    assert [methods.canonical(short) for short in ("ock", "ck", "mcmp")] == ["ock-means", "ck-means", "MCMP"]


def test_methods_become_the_estimators_of_the_paper():
    made = {name: methods.build(name, 64, 3, Settings()).get_params() for name in (*paper.METHODS, "MCMP")}
    for order in (1, 2):
        for letter, init in (("h", "hierarchical"), ("k", "kmeans"), ("r", "random")):
            params = made[f"gk-means({order}, {letter})"]
            assert (params["order"], params["init"], params["n_dictionaries"]) == (order, init, 8)
    assert made["ck-means"]["n_dictionaries"] == 8
    assert [made["ock-means"][name] for name in ("n_subspaces", "n_dictionaries", "n_candidates")] == [4, 2, 10]
    assert [made["MCMP"][name] for name in ("n_subspaces", "n_dictionaries")] == [1, 8]
    assert all(params["random_state"] == 3 for params in made.values())


def test_the_papers_table_is_whole():
    values = [paper.table1_cell(name, m, b) for name in paper.DATASETS for m in paper.METHODS for b in (32, 64, 128)]
    assert all(isinstance(value, float) for value in values)
    assert len(values) == 72
    assert paper.table1_cell("MNIST", "gk-means(2, h)", 128) == 5.91
    assert paper.table1_cell("mnist", "gk-means(2, h)", 16) is None
    assert paper.table1_cell("sample", "ck-means", 32) is None


def test_longer_codes_and_better_starts_weigh_more():
    def weight(method, bits):
        return methods.work(method, bits, 60000, 784, Settings())

    assert weight("gk-means(2, h)", 128) > 2 * weight("gk-means(2, h)", 32)
    assert weight("gk-means(2, h)", 64) > weight("gk-means(2, k)", 64) > weight("gk-means(2, r)", 64)
    assert weight("gk-means(2, h)", 64) > weight("gk-means(1, h)", 64) > weight("ck-means", 64)


def test_the_growing_start_has_its_weight_where_there_is_one():
    plain = 100 * methods.ck_iteration(60000, 256, 784)
    assert 0.05 < methods.work("ck-means", 32, 60000, 784, Settings()) / plain - 1 < 1
    assert methods.work("ck-means", 128, 60000, 784, Settings()) == plain  # narrow blocks
    for C, K, n, P in ((4, 256, 60000, 256), (4, 12, 60000, 784), (4, 256, 8000, 784), (1, 256, 60000, 784)):
        assert methods.growth_work(C, K, n, P) == 0


def test_the_time_left_goes_by_work():
    jobs = [run.Job("light", {}, 1.0, lambda: None, 10), run.Job("heavy", {}, 3.0, lambda: None, 10)]
    board = run.Board("x", jobs, False)
    assert board.left(board.started + 5) is None
    board.begin(jobs[0])
    board.end(jobs[0])
    assert board.left(board.started + 10) == pytest.approx(30)
    board.begin(jobs[1])
    for _ in range(5):
        board.step("")
    assert board.left(board.started + 25) == pytest.approx(15)


def test_the_board_hears_every_iteration_and_leaves_the_log_as_it_was(tmp_path, monkeypatch, caplog):
    notes = []
    monkeypatch.setattr(run.Board, "step", lambda self, note: notes.append(note))
    before = (run.logger.level, list(run.logger.filters))
    [row] = figure1(small(), tmp_path, methods=["1r"], bits=[8], settings=TINY)
    assert [note.split(",")[0] for note in notes] == [
        f"gk-means {at}/3" for at in range(1, len(row["distortions"]) + 1)
    ]
    assert (run.logger.level, list(run.logger.filters)) == before
    assert not caplog.records


def reproduce(*arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gk.DataWarning)
        return CliRunner().invoke(cli.app, ["reproduce", *(str(argument) for argument in arguments)])


def test_the_command_writes_the_table(tmp_path, drawn):
    options = (
        "--dataset",
        "sample",
        "--bits",
        16,
        "--max-iter",
        2,
        "--init-iter",
        1,
        "--limit",
        600,
        "--out",
        tmp_path,
    )
    result = reproduce(
        "table1", *options, "--method", "2r", "--method", "gk-means(1, r)", "--seeds", "0,1", "--jobs", 1
    )
    assert result.exit_code == 0, result.output
    assert "(2, r)" in result.stdout
    assert len(content(tmp_path, "table1")["rows"]) == 4
    assert "Only the first 600 vectors of each part: a trial" in (tmp_path / "table1.md").read_text()
    assert all((tmp_path / f"table1.{kind}").exists() for kind in KINDS)


def test_all_gives_table2_the_first_seed(tmp_path):
    options = ("--dataset", "sample", "--bits", "16", "--max-iter", 1, "--init-iter", 1, "--limit", 300)
    result = reproduce("all", *options, "--out", tmp_path, "--method", "1h", "--seeds", "3,4", "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert content(tmp_path, "table1")["about"]["seeds"] == [3, 4]
    assert content(tmp_path, "table2")["about"]["seeds"] == [3]


def test_the_command_makes_all_of_them_and_leaves_out_what_has_no_such_method(tmp_path):
    options = ("--dataset", "sample", "--bits", "16", "--max-iter", 1, "--init-iter", 1, "--limit", 400)
    result = reproduce("all", *options, "--out", tmp_path, "--method", "2r")
    assert result.exit_code == 0, result.output
    made = {name for name in ("table1", "table2", "figure1", "figure2") if (tmp_path / f"{name}.md").exists()}
    assert made == {"table1", "figure1", "figure2"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table1", "--bits", "x"), "not a list of whole numbers"),
        (("table1", "--method", "lsq"), "'lsq' is not one of"),
        (("table2", "--method", "ck"), "table2 has no method ck-means"),
        (("table2", "--method", "2h", "--method", "ck"), "table2 has no method ck-means; use gk-means(1, h)"),
        (("figure2", "--method", "2h", "--method", "mcmp"), "figure2 has no method MCMP"),
        (("table2", "--seeds", "0,1,2"), "--seeds 0,1,2 are 3 seeds, and table2 has one"),
        (("table2", "--bits", "20"), "multiple of 8"),
        (("figure1", "--seeds", "0;1"), "--seeds '0;1'"),
        (("table1", "--seeds", "1.5"), "--seeds '1.5' is not a list of whole numbers such as 0,1,2"),
        (("all", "--budget", "nan"), "budget=nan is out of range"),
        (("all", "--bits", "24"), "bits=24 do not suit ock-means"),
        (("table1", "--max-iter", "0"), "max_iter=0"),
        (("table2", "--budget", "0"), "budget=0.0"),
    ],
)
def test_the_command_explains_bad_options(tmp_path, arguments, message):
    result = reproduce(*arguments, "--dataset", "sample", "--out", tmp_path)
    assert result.exit_code == 2
    assert message in re.sub(r"[\s│]+", " ", result.output)
    assert not (tmp_path / "cells").exists()


def test_the_command_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    result = reproduce("table1", "--dataset", "sample", "--out", tmp_path)
    assert result.exit_code == 1
    assert "gkmeans[plot]" in result.output


@pytest.mark.parametrize("n", [1, 130, 197, 4095, 4097])
def test_all_vectors_are_timed_where_that_fits_the_budget(n):
    timing = pursued.timed(lambda X: X, np.zeros((n, 1), np.uint8), 1000.0, 2, np.random.default_rng(0))
    assert not timing.estimated
    assert len(timing.codes) == n

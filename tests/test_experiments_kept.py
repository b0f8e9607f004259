"""What the experiments keep: by which data and code, over Ctrl-C, and what the reports and the command say of it."""

import csv
import json
import logging
import os
import re
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import gkmeans as gk
from gkmeans import cli, training
from gkmeans.datasets import Dataset, load_sample
from gkmeans.experiments import Settings, figure1, figure2, fits, methods, pictures, store, subject, table1, table2
from gkmeans.experiments.subject import Subject

TINY = Settings(n_codewords=16, max_iter=3, init_iter=2, n_jobs=1)
ONE = {"methods": ["2h"], "bits": [8], "settings": TINY}
sample = load_sample()


def small(**parts):
    whole = {"learn": sample.learn[:300], "base": sample.base[:200], "query": sample.query[:30]} | parts
    return Dataset("small", *whole.values(), None)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda self, out, **options: out.write(b"-"))


@pytest.fixture
def long(monkeypatch):
    """Every fit counts as a long one."""
    monkeypatch.setattr(fits, "LONG", 0.0)


def about(folder, name):
    return json.loads((folder / f"{name}.json").read_text())["about"]


# ---- by which data


def test_a_base_that_differs_from_learn_in_one_row_of_many_is_not_learn(monkeypatch):
    monkeypatch.setattr(subject, "chunk_rows", lambda P: 1000)
    learn = np.arange(5000, dtype=np.float32)[:, None] % 97
    base = learn.copy()
    assert Subject.of(Dataset("x", learn, base, learn, None), None).base_is_learn
    base[3333] += 1  # not among 1024 rows spread evenly
    made = Subject.of(Dataset("x", learn, base, learn, None), None)
    assert made.sampled["learn"] == made.sampled["base"]
    assert not made.base_is_learn
    assert made.fingerprint["learn"] != made.fingerprint["base"]


def test_the_fingerprint_does_not_depend_on_the_chunks_or_the_strides(monkeypatch):
    whole = subject.fingerprint(sample.learn[:3000])
    monkeypatch.setattr(subject, "chunk_rows", lambda P: 7)
    assert subject.fingerprint(np.asfortranarray(sample.learn[:3000])) == whole


def test_cells_named_by_a_sample_of_the_data_are_still_read_and_said_to_be(tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:  # as an earlier version did
        patch.setattr(subject, "fingerprint", subject.sampled_fingerprint)
        patch.setattr(import_module("gkmeans.experiments.figure2"), "fingerprint", subject.sampled_fingerprint)
        patch.setattr(store, "CODE", "before")
        before = figure2(small(), tmp_path, **ONE)
    there = set((tmp_path / "cells").iterdir())
    assert figure2(small(), tmp_path, **ONE) == before
    assert set((tmp_path / "cells").iterdir()) == there
    assert "Named by a sample of the data, whose other rows may have changed: 1 of them" in caplog.text
    assert "Named by a sample of the data" in (tmp_path / "figure2.md").read_text()


@pytest.mark.parametrize("part", ["learn", "base", "query"])
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_a_bad_row_is_found_before_the_first_fit_and_its_part_is_named(tmp_path, part, value, word):
    rows = getattr(small(), part).astype(np.float32)
    rows[17, 3] = value
    for experiment in (table1, table2, figure1, figure2):
        with pytest.raises(ValueError, match=f"^{part} contains {word} in row 17, column 3"):
            experiment(small(**{part: rows}), tmp_path / "out", settings=TINY)
    assert not (tmp_path / "out").exists()


# ---- by which code


def test_cells_of_other_code_are_told_of_even_where_all_are(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(store, "CODE", "before")
    table1(small(), tmp_path, **ONE)
    assert not caplog.records
    assert about(tmp_path, "table1")["other_code"] == {}
    monkeypatch.setattr(store, "CODE", "after")
    table1(small(), tmp_path, **ONE)
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    found = about(tmp_path, "table1")
    assert re.match("Table 1 in .*: 1 of 1 cells were not made by the code", record.getMessage())
    [(name, code)] = found["other_code"].items()
    assert code == "before"
    assert (tmp_path / "cells" / f"{name}.json").exists()
    for text in (record.getMessage(), found["other_code_note"], (tmp_path / "table1.md").read_text()):
        assert "sha256 after" in text
        assert name in text
        assert "use another --out folder or delete them" in text


# ---- over Ctrl-C


@contextmanager
def stopped_after(count, monkeypatch):
    """The training is stopped by Ctrl-C after so many states are kept."""
    original, kept = training.write_state, []

    def write(*arguments):
        original(*arguments)
        kept.append(1)
        if len(kept) == count:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "write_state", write)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize("method", ["2h", "2k", "1r", "ock", "ck"])
def test_a_stopped_fit_goes_on_and_ends_with_the_same_bits(tmp_path, monkeypatch, long, caplog, method):
    options = ONE | {"methods": [method]}
    [whole] = table1(small(), tmp_path / "whole", **options)
    with stopped_after(2, monkeypatch):
        table1(small(), tmp_path / "out", **options)
    [folder] = (tmp_path / "out" / "cells").iterdir()
    assert folder.name.endswith(".checkpoint")
    assert f"0 of 1 cells are kept in {tmp_path / 'out' / 'cells'}; the same command goes on" in caplog.text
    tries = json.loads((folder / fits.TRIES).read_text())
    (folder / fits.TRIES).write_text(json.dumps(tries | {"seconds": 1000.0}))
    states, kind = [], type(methods.build(methods.canonical(method), 8, 0, TINY))
    monkeypatch.setattr(kind, "fit", _listening(kind.fit, states))
    [row] = table1(small(), tmp_path / "out", **options)
    assert [count > 0 for count in states] == [True]
    assert row["distortion"] == whole["distortion"]
    assert row["distortion_train"] == whole["distortion_train"]
    assert 1000 < row["fit_seconds"] < 1060
    assert not list((tmp_path / "out" / "cells").glob("*.checkpoint"))


def _listening(fit, states):
    """``fit`` that notes how many states its checkpoint had."""

    def listening(self, X, y=None, *, checkpoint=None):
        states.append(0 if checkpoint is None else len(list(Path(checkpoint).glob("training-*"))))
        return fit(self, X, y, checkpoint=checkpoint)

    return listening


def test_seconds_of_a_try_that_was_killed_count_up_to_its_last_state(tmp_path):
    (tmp_path / "fit").mkdir()
    began = time.time() - 500
    (tmp_path / fits.TRIES).write_text(json.dumps({"code": store.CODE, "seconds": 30.0, "began": began}))
    assert fits.earlier_seconds(tmp_path) == 30
    state = tmp_path / "fit" / "training-0001.safetensors"
    state.write_bytes(b"")
    os.utime(state, (began + 200, began + 200))
    assert fits.earlier_seconds(tmp_path) == pytest.approx(230)


@pytest.mark.parametrize("what", ["other code", "no tries", "damaged tries", "damaged state", "damaged fit.json"])
def test_a_checkpoint_that_cannot_be_gone_on_from_begins_anew(tmp_path, monkeypatch, long, caplog, what):
    with stopped_after(2, monkeypatch):
        table1(small(), tmp_path, **ONE)
    [folder] = (tmp_path / "cells").iterdir()
    if what == "other code":
        monkeypatch.setattr(store, "CODE", "after")
    elif what == "no tries":
        (folder / fits.TRIES).unlink()
    elif what == "damaged tries":
        (folder / fits.TRIES).write_text("{")
    else:
        [path] = (folder / "fit").glob("training-0001*" if what == "damaged state" else "fit.json")
        path.write_bytes(path.read_bytes()[:-20])
    [row] = table1(small(), tmp_path, **ONE)
    assert "begins anew" in caplog.text
    assert row["distortion"] == methods.build("gk-means(2, h)", 8, 0, TINY).fit(small().learn).relative_distortion(
        small().base
    )


def test_a_fit_that_another_run_makes_is_left_to_it(tmp_path, long):
    folder = tmp_path / "cells" / f"{store.name_of(fits.fit_key(Subject.of(small(), None), 'ck-means', 8, 0, TINY))}"
    folder = folder.with_name(f"{folder.name}.checkpoint")
    folder.mkdir(parents=True)
    lock = fits.Lock(folder / "lock", "")
    try:
        if lock.locked:
            with pytest.raises(gk.FileError, match="is of a fit that is running"):
                table1(small(), tmp_path, **(ONE | {"methods": ["ck"]}))
    finally:
        lock.release()


def test_a_short_fit_keeps_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "resumed_fit", lambda *a: pytest.fail("a checkpoint of a short fit"))
    table1(small(), tmp_path, **ONE)


# ---- what the reports say


def test_the_csv_names_the_limit_and_the_iterations_of_mcmp(tmp_path):
    settings = Settings(**(vars(TINY) | {"limit": 150, "mcmp_iter": 2}))
    table1(small(), tmp_path, **(ONE | {"settings": settings}))
    with (tmp_path / "table1.csv").open() as file:
        [line] = csv.DictReader(file)
    assert (line["limit"], line["mcmp_iter"], line["max_iter"]) == ("150", "2", "3")


def test_figure1_does_not_call_a_training_converged_that_reached_max_iter(tmp_path):
    rows = figure1(small(), tmp_path, **ONE)
    text = (tmp_path / "figure1.md").read_text()
    assert len(rows[0]["distortions"]) == 3
    assert "| 3 (max_iter) |" in text
    assert "it had converged, or reached max_iter = 3" in text
    figure1(small(), tmp_path, **(ONE | {"settings": Settings(**(vars(TINY) | {"max_iter": 90}))}))
    assert "(max_iter)" not in (tmp_path / "figure1.md").read_text()


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_figure1_counts_iterations_in_whole_numbers(count):
    figure = pictures.figure1_picture({("ck-means", 8): list(np.linspace(1, 0.5, count))}, "")
    low, high = figure.axes[0].get_xlim()
    ticks = [tick for tick in figure.axes[0].get_xticks() if low <= tick <= high]
    assert ticks
    assert all(tick == round(tick) for tick in ticks)


def test_one_number_of_dictionaries_has_no_table_of_growth(tmp_path):
    options = {"methods": ["1h"], "settings": TINY}
    table2(small(), tmp_path, dictionaries=[2], **options)
    assert "Growth" not in (tmp_path / "table2.md").read_text()
    table2(small(), tmp_path, dictionaries=[2, 4], **options)
    assert "Growth" in (tmp_path / "table2.md").read_text()


# ---- the command


def reproduce(*arguments, **options):
    return CliRunner().invoke(cli.app, ["reproduce", *(str(argument) for argument in arguments)], **options)


def test_a_trial_has_a_folder_of_its_own_and_known_names_go_in_any_case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--method", "1r", "--bits", 8, "--max-iter", 1, "--init-iter", 1, "--limit", 300, "--jobs", 1)
    result = reproduce("table1", "--dataset", "Sample", *options)
    assert result.exit_code == 0, result.output
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["sample-limit300"]


def test_a_published_dataset_is_loaded_as_such_in_any_case(tmp_path, monkeypatch):
    asked = []

    def load(name, data):
        asked.append(name)
        raise gk.FileError("enough")

    monkeypatch.setattr("gkmeans.reproduce.load", load)
    for name in ("MNIST", "Sift1M", "Photos"):
        reproduce("table1", "--dataset", name, "--data", tmp_path, "--out", tmp_path / "out")
    assert asked == ["mnist", "sift1m", "Photos"]


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/tmp/x", "..\\x"])
def test_a_dataset_name_that_is_a_path_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    result = reproduce("table1", "--dataset", name, "--data", tmp_path)
    assert result.exit_code == 2
    assert "is no name of a folder; use a word" in re.sub(r"[\s│]+", " ", result.output)
    assert not list(tmp_path.iterdir())


def test_all_checks_every_experiment_against_the_data_before_the_first(tmp_path, monkeypatch):
    def refuse(self, shape):
        raise ValueError("would take more than max_hours")

    monkeypatch.setattr(gk.OptimizedCartesianKMeans, "_check_data", refuse)
    options = ("--method", "1h", "--method", "mcmp", "--bits", 16, "--limit", 300, "--max-iter", 1)
    result = reproduce("all", "--dataset", "sample", "--out", tmp_path / "out", *options)
    assert result.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_the_method_stays_on_one_line_at_80_columns(tmp_path):
    options = ("--method", "1h", "--bits", "16,32", "--limit", 300, "--max-iter", 1, "--init-iter", 1, "--jobs", 1)
    result = reproduce("table2", "--dataset", "sample", "--out", tmp_path, *options, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if "gk-means(1, h) " in line]
    assert len(lines) == 3  # two of the table, one of its growth
    assert max(map(len, result.stdout.splitlines())) <= 80

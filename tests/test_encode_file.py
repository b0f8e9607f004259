"""Files of vectors to files of codes: every format, bounded, resumed after a kill, refused where the input changes."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import gkmeans as gk
from conftest import correlated
from gkmeans import encode_files as module
from gkmeans._lock import Lock
from gkmeans.cli import app

KILLER = Path(__file__).with_name("kill_encode.py")


@pytest.fixture(scope="module")
def X():
    return correlated(np.random.default_rng(0), 1000, 6)


@pytest.fixture(scope="module")
def est(X):
    return gk.GroupKMeans(4, 8, relaxation=0, max_iter=3, init_iter=2, effort=3, random_state=0).fit(X)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(module, "BATCH_ROWS", 70)
    monkeypatch.setattr(module, "SAFE_ROWS", 200)


def vecs(path, X):
    with path.open("wb") as file:
        for row in X:
            file.write(np.int32(len(row)).tobytes() + row.tobytes())


def hdf5(path, X):
    with h5py.File(path, "w") as file:
        file["train"] = X


FORMATS = {
    "X.npy": lambda path, X: np.save(path, X),
    "X.fvecs": vecs,
    "X.bvecs": lambda path, X: vecs(path, X.astype(np.uint8)),
    "X.hdf5": hdf5,
    "X.parquet": lambda path, X: pd.DataFrame({"vector": list(X)}).to_parquet(path),
    "fortran.npy": lambda path, X: np.save(path, np.asfortranarray(X)),
    "double.npy": lambda path, X: np.save(path, X.astype(">f8")),
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_codes_of_a_file_are_those_of_its_array(name, est, X, tmp_path, monkeypatch, small_batches):
    monkeypatch.setattr("gkmeans._batched.BATCH_BYTES", 1000)
    rows = np.abs(X).astype(np.uint8) if name == "X.bvecs" else X
    FORMATS[name](tmp_path / name, rows)
    assert gk.encode_file(est, tmp_path / name, tmp_path / "codes.npy") == 1000
    codes = np.load(tmp_path / "codes.npy")
    assert codes.dtype == np.uint8
    assert (codes == est.encode(rows)).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "codes.npy"])


@pytest.mark.parametrize("start", [0, 1, 500, 999])
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_read_from_any_row_on(name, start, X, tmp_path, monkeypatch):
    monkeypatch.setattr("gkmeans._batched.BATCH_BYTES", 1000)
    FORMATS[name](tmp_path / name, X)
    rows = X.astype(np.uint8) if name == "X.bvecs" else X
    assert (np.concatenate(list(gk.vectors.batches(tmp_path / name, start=start))) == rows[start:]).all()


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_an_index_comes_out(metric, est, X, tmp_path, small_batches):
    np.save(tmp_path / "X.npy", X)
    gk.encode_file(est, tmp_path / "X.npy", tmp_path / "X.index", metric=metric)
    found, expected = gk.open_index(tmp_path / "X.index"), gk.FlatIndex(est, metric)
    expected.add(X)
    for one, two in zip(found.search(X[:5]), expected.search(X[:5]), strict=True):
        assert (one == two).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["X.index", "X.npy"]


class Killed(BaseException):
    """As a crash."""


def test_what_was_safe_is_not_encoded_again(est, X, tmp_path, monkeypatch, small_batches):
    np.save(tmp_path / "X.npy", X)
    encoded, codes = [], module.Encoder.codes

    def counting(self, rows, *rest):
        if sum(encoded) > 600 and len(encoded) < 100:
            encoded.extend([0] * 100)
            raise Killed
        encoded.append(len(rows))
        return codes(self, rows, *rest)

    monkeypatch.setattr(module.Encoder, "codes", counting)
    with pytest.raises(Killed):
        gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy")
    assert not (tmp_path / "codes.npy").exists()
    before = sum(encoded)
    gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy")
    assert sum(encoded) - before <= 1000 - 400  # at least two times 200 rows were safe
    assert (np.load(tmp_path / "codes.npy") == est.encode(X)).all()


def test_processes_killed_at_random_moments_leave_what_the_next_goes_on_from(tmp_path):
    done = subprocess.run([sys.executable, KILLER, tmp_path, "4"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    kills, left = done.stdout.split(" kills, ")
    assert int(kills) >= 1  # the last may have come after the end
    assert left == "['X.npy', 'codes.npy']\n"


def cut_short(est, X, tmp_path, monkeypatch):
    """A part of the codes, beside the output."""
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr(module._Job, "finish", lambda self, index: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy")
    monkeypatch.undo()


def test_codes_of_something_else_are_kept(est, X, tmp_path, monkeypatch):
    cut_short(est, X, tmp_path, monkeypatch)
    other = gk.GroupKMeans(4, 8, relaxation=0, max_iter=1, init="random", random_state=1).fit(X)
    with pytest.raises(gk.FileError, match="another model"):
        gk.encode_file(other, tmp_path / "X.npy", tmp_path / "codes.npy")
    with pytest.raises(gk.FileError, match="effort"):
        gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy", effort=0)
    with pytest.raises(gk.FileError, match="effort"):
        gk.encode_file(clone_with(est, effort=0), tmp_path / "X.npy", tmp_path / "codes.npy")
    np.save(tmp_path / "Y.npy", X[::-1])
    with pytest.raises(gk.FileError, match="file"):
        gk.encode_file(est, tmp_path / "Y.npy", tmp_path / "codes.npy")
    assert gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy") == 1000
    assert (np.load(tmp_path / "codes.npy") == est.encode(X)).all()


def test_codes_of_another_effort_are_kept_whatever_the_efforts(X, tmp_path, monkeypatch):
    est = gk.GroupKMeans(4, 8, init="random", max_iter=4, random_state=0).fit(X)
    cut_short(est, X, tmp_path, monkeypatch)  # begun with effort 7
    for effort in {*range(10)} - {7}:
        with pytest.raises(gk.FileError, match="effort"):
            gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy", effort=effort)
    assert gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy", effort=7) == 1000


def clone_with(est, **params):
    return copy.copy(est).set_params(**params)


def test_an_output_that_another_encoding_writes_is_refused(est, X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    running = Lock(tmp_path / "codes.npy.part", "refused")
    with pytest.raises(gk.FileError, match="another encoding"):
        gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy")
    running.release()
    assert gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy") == 1000


def test_a_part_of_something_else_is_kept(est, X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    (tmp_path / "codes.npy.part").write_bytes(b"half of a download")
    with pytest.raises(gk.FileError, match="holds no such codes"):
        gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy")
    assert (tmp_path / "codes.npy.part").read_bytes() == b"half of a download"


@pytest.mark.parametrize("moment", ["before the lock", "while it runs"])
def test_an_output_that_another_encoding_has_just_written_is_kept(est, X, tmp_path, monkeypatch, moment):
    np.save(tmp_path / "X.npy", X)
    out = tmp_path / "codes.npy"
    if moment == "before the lock":
        monkeypatch.setattr(Lock, "holds", lambda self: False)
    else:
        run = module._Job.run
        monkeypatch.setattr(module._Job, "run", lambda job, verbose: (run(job, verbose), out.write_bytes(b"theirs")))
    with pytest.raises(gk.FileError, match=r"written meanwhile|there already"):
        gk.encode_file(est, tmp_path / "X.npy", out)
    assert not out.exists() or out.read_bytes() == b"theirs"


def test_an_index_is_put_together_segment_by_segment(est, X, tmp_path, monkeypatch):
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr(module, "SEGMENT_ROWS", 300)
    monkeypatch.setattr("gkmeans.index.base.MERGE_ROWS", 1)
    assert gk.encode_file(est, tmp_path / "X.npy", tmp_path / "index") == 1000
    found, plain = gk.open_index(tmp_path / "index"), gk.FlatIndex(est)
    plain.add(X)
    assert [segment.n for segment in found._state.segments] == [300, 300, 300, 100]
    assert list(found) == list(range(1000))
    assert (found.reconstruct(range(1000)) == plain.reconstruct(range(1000))).all()


def test_what_the_system_refuses_is_explained(est, X, tmp_path, monkeypatch):
    np.save(tmp_path / "X.npy", X)
    with pytest.raises(gk.FileError, match="goes on from them"):
        gk.encode_file(est, tmp_path / "X.npy", tmp_path / "no" / "codes.npy")
    with pytest.raises(ValueError, match="taxicab"):
        gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy", metric="taxicab")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_bytes", full)
    with pytest.raises(gk.FileError, match="No space left"):
        gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy")
    monkeypatch.undo()
    assert gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy") == 1000


def test_a_file_by_columns_that_is_truncated_is_an_error(X, tmp_path):
    np.save(tmp_path / "X.npy", np.asfortranarray(X))
    opened = gk.vectors.opened(tmp_path / "X.npy")
    os.truncate(tmp_path / "X.npy", 9000)
    with pytest.raises(gk.FileError, match="truncated"):
        list(opened.batches())


def test_a_large_array_is_read_where_little_may_be_mapped(tmp_path):
    script = (
        "import resource, sys, numpy as np, gkmeans as gk\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "opened = gk.vectors.opened(sys.argv[1])\n"
        "print(opened.n, next(opened.batches()).sum())\n"
    )
    rows = np.lib.format.open_memmap(tmp_path / "X.npy", "w+", np.uint8, (5 << 25, 32))  # 5 GB, none of it written
    rows.flush()
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "X.npy")], capture_output=True, text=True)
    assert done.stdout.split() == [str(5 << 25), "0"], done.stderr


def test_a_file_that_is_written_to_while_it_is_read_is_an_error(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    opened = gk.vectors.opened(tmp_path / "X.npy")
    os.utime(tmp_path / "X.npy", ns=(0, 0))
    with pytest.raises(gk.FileError, match="written to"):
        list(opened.batches())


@pytest.mark.parametrize("text", ["", "{}", '{"identity": 1, "done": "x"}'])
def test_a_damaged_note_is_refused(text, est, X, tmp_path, monkeypatch):
    cut_short(est, X, tmp_path, monkeypatch)
    (tmp_path / "codes.npy.note").write_text(text)
    with pytest.raises(gk.FileError, match="remove"):
        gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy")


def test_lost_codes_are_refused(est, X, tmp_path, monkeypatch):
    cut_short(est, X, tmp_path, monkeypatch)
    os.truncate(tmp_path / "codes.npy.part", 500)
    with pytest.raises(gk.FileError, match="shorter"):
        gk.encode_file(est, tmp_path / "X.npy", tmp_path / "codes.npy")


@pytest.mark.parametrize(("change", "word"), [(-300, "truncated"), (300, "grew")])
def test_a_file_that_changes_while_it_is_read_is_an_error(change, word, est, X, tmp_path, monkeypatch, small_batches):
    monkeypatch.setattr("gkmeans._batched.BATCH_BYTES", 1000)
    path, codes = tmp_path / "X.npy", module.Encoder.codes
    np.save(path, X)
    size = path.stat().st_size

    def changing(self, *rest):
        with path.open("r+b") as file:
            file.truncate(size + change)
        return codes(self, *rest)

    monkeypatch.setattr(module.Encoder, "codes", changing)
    with pytest.raises(gk.FileError, match=word):
        gk.encode_file(est, path, tmp_path / "codes.npy")
    assert not (tmp_path / "codes.npy").exists()


def test_bad_input_is_explained(est, X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "wide.npy", np.ones((5, 7)))
    np.save(tmp_path / "flat.npy", np.ones(5))
    wrong = X.copy()
    wrong[700, 3] = np.nan
    np.save(tmp_path / "nan.npy", wrong)
    out = tmp_path / "codes.npy"
    with pytest.raises(gk.FileError, match="7 numbers where the model has 6"):
        gk.encode_file(est, tmp_path / "wide.npy", out)
    out.with_name("codes.npy.part").unlink()
    with pytest.raises(gk.FileError, match=r"shape \(n, P\)"):
        gk.encode_file(est, tmp_path / "flat.npy", out)
    out.with_name("codes.npy.part").unlink()
    with pytest.raises(ValueError, match="row 700, column 3"):
        gk.encode_file(est, tmp_path / "nan.npy", out)
    with pytest.raises(gk.FileError, match=r"no\.npy"):
        gk.encode_file(est, tmp_path / "no.npy", out)
    with pytest.raises(ValueError, match="metric"):
        gk.encode_file(est, tmp_path / "X.npy", tmp_path / "index", metric="taxicab")
    out.write_text("mine")
    with pytest.raises(gk.FileError, match="there already"):
        gk.encode_file(est, tmp_path / "X.npy", out)


def test_the_command_encodes_and_goes_on(est, X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    est.save(tmp_path / "model")
    arguments = ["encode", str(tmp_path / "model"), str(tmp_path / "X.npy"), str(tmp_path / "codes.npy"), "--jobs", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "1,000 vectors" in result.output
    assert (np.load(tmp_path / "codes.npy") == est.encode(X)).all()
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    assert "already" in result.output

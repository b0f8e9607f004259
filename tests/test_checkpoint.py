"""A fit with a checkpoint ends with the bits of one that was never interrupted, whenever it is killed."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import gkmeans as gk
from conftest import message_of, same_bits
from gkmeans import relaxation, training
from gkmeans._files import FileError
from gkmeans._lock import Lock
from gkmeans.checkpoint import Checkpoint

KILLER = Path(__file__).with_name("kill_fit.py")


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(3)
    return (rng.standard_normal((400, 6)) @ rng.standard_normal((6, 6)) + 1).astype(np.float32)


def small(**options):
    return gk.GroupKMeans(4, 8, **({"max_iter": 5, "init_iter": 3, "random_state": 0, "tol": 0} | options))


class Killed(BaseException):
    """As a crash: nothing cleans up after it."""


def killed_after(count, monkeypatch):
    """Every save of a state after the first ``count`` is a crash before or after its file is in place."""
    calls = iter(range(10_000))
    write = training.write_state

    def crashing(*arguments):
        call = next(calls)
        if call == count and count % 2:
            raise Killed
        write(*arguments)
        if call == count:
            raise Killed

    monkeypatch.setattr(training, "write_state", crashing)


ESTIMATORS = {
    "hierarchical": lambda: small(relaxation=0),
    "kmeans": lambda: small(relaxation=0, init="kmeans"),
    "random": lambda: small(relaxation=0, init="random"),
    "relaxed": lambda: small(),
    "relaxed from k-means": lambda: small(init="kmeans"),
    "relaxed from random": lambda: small(init="random"),
    "without a seed": lambda: small(relaxation=0, random_state=None),
    "ck-means": lambda: gk.CartesianKMeans(3, 8, random_state=0, max_iter=4, tol=0),
    "ock-means": lambda: gk.OptimizedCartesianKMeans(2, 2, 8, random_state=0, max_iter=3, init_iter=2),
    "another generator": lambda: small(relaxation=0, random_state=np.random.Generator(np.random.MT19937(1))),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_fit_that_is_interrupted_again_and_again_ends_with_the_same_bits(name, X, tmp_path, monkeypatch):
    whole = ESTIMATORS[name]().fit(X, checkpoint=tmp_path / "whole")
    if name != "without a seed":
        assert same_bits(whole, ESTIMATORS[name]().fit(X))  # keeping a checkpoint changes nothing
    shutil.copytree(tmp_path / "whole", tmp_path / "cut", ignore=shutil.ignore_patterns("training*"))
    for count in (0, 1, 2, 5, 4, 3):
        killed_after(count, monkeypatch)
        try:
            est = ESTIMATORS[name]().fit(X, checkpoint=tmp_path / "cut")
            break
        except Killed:
            monkeypatch.undo()
    est = ESTIMATORS[name]().fit(X, checkpoint=tmp_path / "cut")
    assert same_bits(whole, est)
    assert est.n_iter_ == whole.n_iter_
    assert (est.encode(X) == whole.encode(X)).all()


def test_a_fit_that_is_killed_while_it_takes_samples_ends_with_the_same_bits(verdict, X, tmp_path, monkeypatch):
    X = np.concatenate([X, X[::-1] * 1.5])  # enough for a training without a trial

    def fit(**options):
        return small(init="random", max_iter=26).fit(X, **options)

    own, calls = relaxation.Folds.assigned, []

    def crashing(self, *arguments):
        calls.append(1)
        if len(calls) == 2 * 22 + 3:  # 22 iterations of two turns cool down; the second sample
            raise Killed
        return own(self, *arguments)

    whole = fit()
    monkeypatch.setattr(relaxation.Folds, "assigned", crashing)
    with pytest.raises(Killed):
        fit(checkpoint=tmp_path)
    est = fit(checkpoint=tmp_path)
    assert len(calls) == 2 * 22 + 3 + 2 * 3
    assert len(verdict) == 4
    assert verdict[:2] == verdict[2:]
    assert same_bits(whole, est)
    assert (est.history_ == whole.history_).all()


def without_samples(monkeypatch):
    monkeypatch.setattr(relaxation, "SAMPLED_OF", 1000)


def without_the_number(monkeypatch):
    own = relaxation.numbers_of
    numbers = ("points", "factor", "unexplained")
    monkeypatch.setattr(relaxation, "numbers_of", lambda *rest: {name: own(*rest)[name] for name in numbers})


@pytest.mark.parametrize(
    ("earlier", "differs"),
    [(without_samples, "it takes 0 samples, where 3 are taken"), (without_the_number, r"'unexplained'\], where")],
)
@pytest.mark.parametrize("saves", [13, 10_000])
def test_a_state_of_training_without_samples_is_refused_midway_and_at_its_end(
    saves, earlier, differs, X, tmp_path, monkeypatch
):
    earlier(monkeypatch)
    killed_after(saves, monkeypatch)
    with pytest.raises(Killed) if saves < 1000 else nullcontext():
        small(init="random", max_iter=26).fit(np.tile(X, (2, 1)), checkpoint=tmp_path)
    monkeypatch.undo()
    with pytest.raises(FileError, match=rf"training-0001.*{differs}.*pass a new folder"):
        small(init="random", max_iter=26).fit(np.tile(X, (2, 1)), checkpoint=tmp_path)


def test_a_fit_that_ended_is_read_and_not_trained_again(X, tmp_path, monkeypatch):
    whole = small().fit(X, checkpoint=tmp_path)

    def broken(*arguments):
        raise AssertionError("trained")

    monkeypatch.setattr(training, "updated", broken)
    monkeypatch.setattr("gkmeans.relaxation.updated", broken)
    assert same_bits(whole, small(n_jobs=1).fit(X, checkpoint=tmp_path))


def test_children_killed_at_random_moments_leave_what_the_next_goes_on_from(tmp_path):
    done = subprocess.run([sys.executable, KILLER, tmp_path, "3", "1"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kills" in done.stdout


def test_another_fit_is_refused_and_the_checkpoint_kept(X, tmp_path):
    small().fit(X, checkpoint=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = X.copy()
    other[-1, -1] += 1
    wrong = {
        "max_iter was 5 and is 6": lambda: small(max_iter=6).fit(X, checkpoint=tmp_path),
        "random_state was 0 and is 1": lambda: small(random_state=1).fit(X, checkpoint=tmp_path),
        "init was 'hierarchical'": lambda: small(init=np.zeros((4, 8, 6))).fit(X, checkpoint=tmp_path),
        "estimator was 'GroupKMeans'": lambda: gk.CartesianKMeans(4, 8).fit(X, checkpoint=tmp_path),
        "sha256 of the rows was": lambda: small().fit(other, checkpoint=tmp_path),
        "dtype was 'float32'": lambda: small().fit(X.astype(float), checkpoint=tmp_path),
        "shape was [400, 6]": lambda: small().fit(X[:-1], checkpoint=tmp_path),
        "sha256": lambda: small().fit(X[::-1], checkpoint=tmp_path),  # the same rows in another order
    }
    for words, call in wrong.items():
        text = message_of(call)
        assert words in text
        assert "another folder" in text
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_folder_that_a_fit_is_using_is_refused(X, tmp_path):
    est = small().fit(X, checkpoint=tmp_path)
    found = json.loads((tmp_path / "fit.json").read_text())["identity"]
    running = Checkpoint(tmp_path, found, np.random.default_rng(0))
    assert "that is running" in message_of(lambda: small().fit(X, checkpoint=tmp_path), FileError)
    running.close()
    assert same_bits(small().fit(X, checkpoint=tmp_path), est)


def test_a_process_forked_during_a_fit_does_not_hold_its_checkpoint(tmp_path):
    lock = Lock(tmp_path / "lock", "taken")
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:
        lock.release()
        Lock(tmp_path / "lock", "taken").release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_file_system_without_locks_keeps_checkpoints(X, tmp_path, monkeypatch):
    def nothing(file, operation):
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr("fcntl.flock", nothing)
    assert small().fit(X, checkpoint=tmp_path).n_iter_ == 5


def test_a_folder_of_something_else_is_refused(X, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    assert "not empty" in message_of(lambda: small().fit(X, checkpoint=tmp_path))
    (tmp_path / "file").write_text("")
    assert "cannot keep" in message_of(lambda: small().fit(X, checkpoint=tmp_path / "file" / "folder"))


def test_what_a_kill_left_of_a_file_is_taken_away(X, tmp_path):
    for name in (".fit.json.x7q_k2", ".training-0001.safetensors.abc"):
        (tmp_path / name).write_bytes(b"half")
    small(relaxation=0).fit(X, checkpoint=tmp_path)
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["fit.json", "lock", *["training"] * 5]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other", "version": 1, "identity": {}}'])
def test_a_description_that_is_not_one_is_refused(text, X, tmp_path):
    (tmp_path / "fit.json").write_text(text)
    with pytest.raises(FileError):
        small().fit(X, checkpoint=tmp_path)


def test_a_damaged_state_is_refused(X, tmp_path):
    small(relaxation=0).fit(X, checkpoint=tmp_path)
    first = min(tmp_path.glob("training-*"))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    with pytest.raises(FileError, match="sha256"):
        small(relaxation=0).fit(X, checkpoint=tmp_path)
    whole = json.loads((tmp_path / "fit.json").read_text())
    whole["random"] = {"bit_generator": "MT19937"}
    (tmp_path / "fit.json").write_text(json.dumps(whole))
    assert "random_state" in message_of(lambda: small(relaxation=0).fit(X, checkpoint=tmp_path))


def test_a_state_of_other_rows_is_refused(X, tmp_path):
    small(relaxation=0).fit(X, checkpoint=tmp_path / "one")
    small(relaxation=0).fit(X[:300], checkpoint=tmp_path / "two")
    shutil.copy(tmp_path / "two" / "training-0003.safetensors", tmp_path / "one")
    with pytest.raises(FileError, match="300, 4"):
        small(relaxation=0).fit(X, checkpoint=tmp_path / "one")

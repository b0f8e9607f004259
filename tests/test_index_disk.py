"""Indexes on disk: what is committed stays, at every moment a process may end; damaged folders are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gkmeans as gk
from conftest import message_of
from gkmeans.index import disk, segment


def answers(index, X):
    return [array.tobytes() for array in index.search(X[:20], 9)] + [list(index)]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("norms", ["byte", "float"])
def test_an_opened_index_gives_the_answers_of_the_saved_one(fitted, tmp_path, metric, norms):
    est, X = fitted
    index = gk.FlatIndex(est, metric, norms=norms)
    index.add(X[:200], np.arange(200)[::-1] * 7)
    index.add(X[200:300])
    index.remove([7, 14])
    index.save(tmp_path / "index")
    for verify in (True, False):
        again = gk.open_index(tmp_path / "index", verify=verify)
        assert (again.metric, again.norms, len(again)) == (metric, norms, 298)
        assert answers(again, X) == answers(index, X)
    assert not again._state.segments[0].blocks.flags.owndata


def test_changes_of_an_opened_index_are_there_for_the_next(fitted, folder):
    est, X = fitted
    memory = gk.FlatIndex(est)
    memory.add(X[:200])
    with gk.open_index(folder) as index:
        for one in (memory, index):
            one.add(X[200:203], [900, 901, 902])
            one.remove([3, 4, 901])
        assert answers(index, X) == answers(memory, X) == answers(gk.open_index(folder), X)
        for one in (memory, index):
            one.compact()
        assert index.add(X[:1]).tolist() == memory.add(X[:1]).tolist() == [903]
    again = gk.open_index(folder)
    assert answers(again, X) == answers(memory, X)
    assert len(list(folder.glob("segment-*"))) == 1
    assert not list(folder.glob("removed-*"))


def test_a_reader_keeps_its_snapshot_while_a_writer_replaces_the_files(fitted, folder):
    X = fitted[1]
    reader = gk.open_index(folder)
    before = answers(reader, X)
    with gk.open_index(folder) as writer:
        writer.remove(np.arange(150))
        writer.compact()
        assert answers(reader, X) == before
        assert len(gk.open_index(folder)) == 50


def test_an_empty_index_can_be_saved_and_filled_later(fitted, tmp_path):
    est, X = fitted
    gk.FlatIndex(est).save(tmp_path / "index")
    with gk.open_index(tmp_path / "index") as index:
        assert index.search(X[:1], 2)[1].tolist() == [[-1, -1]]
        index.add(X[:5])
        index.remove(np.arange(5))
    assert len(gk.open_index(tmp_path / "index")) == 0
    assert gk.open_index(tmp_path / "index").add(X[:1]).tolist() == [5]


def test_an_opened_index_can_be_saved_elsewhere(fitted, folder, tmp_path):
    index = gk.open_index(folder)
    index.remove([0])
    index.save(tmp_path / "copy")
    index.remove([1])
    assert (len(gk.open_index(tmp_path / "copy")), len(gk.open_index(folder))) == (199, 198)


def test_a_vector_takes_the_bytes_promised_on_disk(fitted, tmp_path):
    index = gk.FlatIndex(fitted[0])
    n = 64 * 800
    codes = np.random.default_rng(0).integers(0, 20, (n, 3)).astype(np.uint8)
    index._state = segment.State((segment.Segment.of(codes, np.arange(n), index._lookup, "byte"),), n)
    index.save(tmp_path / "index")
    size = sum(path.stat().st_size for path in (tmp_path / "index").glob("segment-*"))
    assert 4 * n <= size <= 4 * n * 1.02


def change(folder, what):
    """Damage a file of the folder."""
    path = next(folder.glob(what))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def manifest_with(folder, **changes):
    whole = json.loads((folder / "manifest.json").read_bytes())
    disk.write_manifest(folder, {**whole["index"], **changes})


def segments_of(folder):
    return json.loads((folder / "manifest.json").read_bytes())["index"]["segments"]


def replaced_by_folder(path):
    path.unlink()
    path.mkdir()


DAMAGE = {
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "empty manifest": lambda folder: (folder / "manifest.json").write_bytes(b""),
    "foreign manifest": lambda folder: (folder / "manifest.json").write_text('{"format": "cake"}'),
    "list as manifest": lambda folder: (folder / "manifest.json").write_text("[1]"),
    "deep manifest": lambda folder: (folder / "manifest.json").write_text("[" * 100_000),
    "changed manifest": lambda folder: change(folder, "manifest.json"),
    "newer format": lambda folder: (folder / "manifest.json").write_text('{"format": "gkmeans-index", "version": 9}'),
    "format of no version": lambda folder: (folder / "manifest.json").write_text(
        '{"format": "gkmeans-index", "version": true}'
    ),
    "missing segment": lambda folder: next(folder.glob("segment-*")).unlink(),
    "changed segment": lambda folder: change(folder, "segment-*"),
    "short segment": lambda folder: os.truncate(next(folder.glob("segment-*")), 900),
    "tiny segment": lambda folder: os.truncate(next(folder.glob("segment-*")), 5),
    "changed list of removed rows": lambda folder: change(folder, "removed-*"),
    "missing model": lambda folder: (folder / "model.safetensors").unlink(),
    "changed model": lambda folder: change(folder, "model.safetensors"),
    "name outside": lambda folder: manifest_with(folder, segments=[{"file": "../x.safetensors", "removed": ""}]),
    "no segments": lambda folder: manifest_with(folder, segments=None),
    "segment twice": lambda folder: manifest_with(folder, segments=2 * segments_of(folder)),
    "next id below the ids": lambda folder: manifest_with(folder, next_id=199),
    "manifest is a folder": lambda folder: replaced_by_folder(folder / "manifest.json"),
    "segment is a folder": lambda folder: replaced_by_folder(next(folder.glob("segment-*"))),
    "model is a folder": lambda folder: replaced_by_folder(folder / "model.safetensors"),
    "next id of text": lambda folder: manifest_with(folder, next_id="x"),
    "other metric": lambda folder: manifest_with(folder, metric="hamming"),
    "other norms": lambda folder: manifest_with(folder, norms="float"),
    "metric without norms": lambda folder: manifest_with(folder, metric="ip"),
    "wrong segment": lambda folder: manifest_with(
        folder, segments=[{"file": next(folder.glob("removed-*")).name, "removed": ""}]
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_folder_is_refused_and_left_as_it_is(folder, what):
    with gk.open_index(folder) as index:
        index.remove([1, 2])
    DAMAGE[what](folder)
    before = files(folder)
    message_of(lambda: gk.open_index(folder), gk.FileError)
    assert files(folder) == before


def test_a_next_id_below_ids_of_ones_own_is_refused(fitted, tmp_path):
    index = gk.FlatIndex(fitted[0])
    index.add(fitted[1][:3], [7, 3, 5])
    index.save(tmp_path / "index")
    manifest_with(tmp_path / "index", next_id=7)
    message_of(lambda: gk.open_index(tmp_path / "index"), gk.FileError)


def test_a_file_that_may_not_be_read_is_explained(folder, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "Permission denied" in message_of(lambda: gk.open_index(folder), gk.FileError)


def test_headers_are_checked_even_without_verification(folder):
    os.truncate(next(folder.glob("segment-*")), 900)
    message_of(lambda: gk.open_index(folder, verify=False), gk.FileError)


def test_a_folder_that_cannot_be_written_is_explained(fitted, folder, monkeypatch):
    X = fitted[1]
    before = files(folder)

    def refuse(*_, **__):
        raise PermissionError(13, "Read-only file system")

    index = gk.open_index(folder)
    monkeypatch.setattr("os.open", refuse)
    assert "untouched" in message_of(lambda: index.add(X[:1]), gk.FileError)
    monkeypatch.undo()
    assert files(folder) == before
    assert len(index) == 200
    assert index.add(X[:1]).tolist() == [200]


@pytest.mark.parametrize("name", ["taken", "file", "no/such"])
def test_saving_over_something_is_refused(fitted, tmp_path, name):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "cake").write_text("x")
    (tmp_path / "file").write_text("x")
    message_of(lambda: gk.FlatIndex(fitted[0]).save(tmp_path / name), gk.FileError)
    assert (tmp_path / "taken" / "cake").read_text() == (tmp_path / "file").read_text() == "x"


class Crash(BaseException):
    """The process ends here."""


def take(step, index, X):
    if step == "add":
        index.add(X[:3])
    elif step == "remove":
        index.remove([7])
    else:
        index.compact()


@pytest.mark.parametrize("step", ["add", "remove", "compact"])
def test_a_crash_at_any_call_of_the_system_leaves_the_index_before_or_after(fitted, tmp_path, monkeypatch, step):
    est, X = fitted
    real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink")}
    ended = False
    for crash_at in range(100):
        folder = tmp_path / str(crash_at)
        start = gk.FlatIndex(est)
        start.add(X[:100])
        start.save(folder)
        index = gk.open_index(folder)
        index.remove([5])
        before, calls = answers(gk.open_index(folder), X), iter(range(1000))

        def call(name, *args, calls=calls, crash_at=crash_at, **options):
            if next(calls) == crash_at:
                raise Crash
            return real[name](*args, **options)

        for name in real:
            monkeypatch.setattr(os, name, lambda *args, name=name, call=call, **options: call(name, *args, **options))
        try:
            take(step, index, X)
            ended = True
        except Crash:
            pass
        monkeypatch.undo()
        index.close()
        after = gk.FlatIndex(est)
        after.add(X[:100])
        after.remove([5])
        take(step, after, X)
        found = answers(gk.open_index(folder), X)
        assert found in (before, answers(after, X))
        if ended:
            assert found == answers(after, X)
            break
        if gk.open_index(folder)._disk.serial == index._disk.serial:
            index.add(X[:1])  # a failed change can be followed by another
            assert len(gk.open_index(folder)) == len(index)
    assert ended
    assert crash_at >= 4


def test_an_interrupt_after_the_commit_keeps_it_and_ends_the_writer(fitted, folder, monkeypatch):
    X = fitted[1]
    index = gk.open_index(folder)
    index.remove([5])
    unlink, calls = os.unlink, iter(range(100))

    def interrupted(path, *args, **options):
        unlink(path, *args, **options)
        if next(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index.compact()
    monkeypatch.undo()
    assert "open_index again" in message_of(lambda: index.remove([8]), gk.FileError)
    with gk.open_index(folder) as again:
        again.add(X[:1])
    assert len(gk.open_index(folder)) == 200


def test_a_folder_that_cannot_be_cleaned_up_still_takes_changes(fitted, folder, monkeypatch):
    X = fitted[1]

    def fail(self):
        raise OSError(5, "Input/output error")

    with gk.open_index(folder) as index:
        monkeypatch.setattr(Path, "iterdir", fail)
        index.add(X[200:210])
        monkeypatch.undo()
        assert len(gk.open_index(folder)) == len(index) == 210
        index.add(X[300:301])
    assert len(gk.open_index(folder)) == 211
    assert len(list(folder.glob("segment-*"))) == 1


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_kills_at_random_moments_lose_nothing_that_was_committed(tmp_path, kind):
    command = [sys.executable, str(Path(__file__).parent / "kill_index.py"), str(tmp_path), "20", kind]
    kills, commits = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert kills == 20
    assert commits > 0

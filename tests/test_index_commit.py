"""Commits of an index: the order in which files reach the disk, saves that fail, readers beside a writer."""

import os

import numpy as np
import pytest

import gkmeans as gk
from conftest import message_of
from gkmeans.index import disk, opened


def names_of_calls(monkeypatch):
    """Calls that make files last, as they are made: what, and of which file."""
    calls, fsync, replace = [], os.fsync, os.replace

    def kind(path):
        name = os.path.basename(path)
        return name.lstrip(".").split("-")[0].split(".")[0] if os.path.isfile(path) else "folder"

    def flushed(handle):
        calls.append(("fsync", kind(os.readlink(f"/proc/self/fd/{handle}"))))
        fsync(handle)

    def renamed(source, target):
        calls.append(("replace", kind(source)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    return calls


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="files are told by /proc")
def test_files_are_on_disk_before_a_manifest_names_them(fitted, folder, monkeypatch):
    X = fitted[1]
    with gk.open_index(folder) as index:
        calls = names_of_calls(monkeypatch)
        index.add(X[:3])
        index.remove([5])
    manifest = [("fsync", "manifest"), ("replace", "manifest"), ("fsync", "folder")]
    added = [("fsync", "segment"), ("replace", "segment"), ("fsync", "folder"), *manifest]
    removed = [("fsync", "removed"), ("replace", "removed"), ("fsync", "folder"), *manifest]
    assert calls == added + removed


@pytest.mark.parametrize("ends_at", [0, 1, 2])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "Ctrl-C"])
def test_a_save_that_fails_leaves_a_folder_that_can_be_saved_to(fitted, tmp_path, monkeypatch, ends_at, error):
    est, X = fitted
    index, replace, calls = gk.FlatIndex(est), os.replace, iter(range(100))
    index.add(X[:50])

    def failing(*args):
        if next(calls) == ends_at:
            raise error
        replace(*args)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises((gk.FileError, KeyboardInterrupt)):
        index.save(tmp_path / "index")
    monkeypatch.undo()
    index.save(tmp_path / "index")
    assert len(gk.open_index(tmp_path / "index")) == 50


def test_what_a_killed_save_left_is_named(fitted, folder):
    (folder / "manifest.json").unlink()
    assert "did not end" in message_of(lambda: gk.FlatIndex(fitted[0]).save(folder), gk.FileError)
    (folder / "cake").write_text("x")
    assert "not empty" in message_of(lambda: gk.FlatIndex(fitted[0]).save(folder), gk.FileError)
    assert (folder / "model.safetensors").exists()


def test_an_interrupt_between_the_commit_and_the_index_in_memory_ends_the_writer(fitted, folder, monkeypatch):
    index, commit = gk.open_index(folder), disk.Disk.commit

    def interrupted(self, state):
        commit(self, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(disk.Disk, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index.remove([5])
    monkeypatch.undo()
    assert "open_index again" in message_of(lambda: index.remove([8]), gk.FileError)
    assert len(gk.open_index(folder)) == 199


def test_a_change_that_fails_before_its_manifest_can_be_made_again(fitted, folder, monkeypatch):
    index = gk.open_index(folder)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "write_manifest", full)
    assert "untouched" in message_of(lambda: index.remove([5]), gk.FileError)
    monkeypatch.undo()
    index.remove([5])
    assert len(gk.open_index(folder)) == len(index) == 199


def test_a_reader_that_meets_a_commit_reads_the_manifest_again(fitted, folder, monkeypatch):
    X, read, times = fitted[1], opened.read_manifest, []

    def slowly(path):
        manifest = read(path)
        times.append(manifest["serial"])
        if len(times) == 1:  # a writer takes a segment away that this manifest names
            with gk.open_index(folder) as writer:
                writer.add(X[:1])
        return manifest

    monkeypatch.setattr(opened, "read_manifest", slowly)
    index = gk.open_index(folder)
    monkeypatch.undo()
    assert len(index) == 201
    assert len(times) > 2


def test_a_lock_file_that_somebody_deleted_is_made_again(fitted, folder):
    X = fitted[1]
    with gk.open_index(folder) as index:
        index.add(X[:1])
        (folder / "lock").unlink()
        index.add(X[:1])
        assert "another writer" in message_of(lambda: gk.open_index(folder).add(X[:1]), gk.FileError)
    assert len(gk.open_index(folder)) == 202


def test_the_order_of_own_ids_is_found_once(fitted, tmp_path, monkeypatch):
    est, X = fitted
    index = gk.FlatIndex(est)
    index.add(X[:300], np.arange(300)[::-1] * 3)
    index.save(tmp_path / "index")
    with gk.open_index(tmp_path / "index") as again:
        again.remove([30])
        sorts = []
        monkeypatch.setattr(np, "argsort", lambda *args, **options: sorts.append(args))
        again.remove([33])
        again.remove([36])
        assert not sorts
        monkeypatch.undo()
        assert sorted(again) == sorted(set(range(0, 900, 3)) - {30, 33, 36})

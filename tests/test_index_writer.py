"""The one writer of an index folder: threads, forks, folders replaced, locks that are let go."""

import json
import os
import shutil
import threading

import pytest

import gkmeans as gk
from conftest import message_of
from gkmeans import _files
from gkmeans.index import disk
from test_index_disk import files


def test_a_second_writer_is_refused_until_the_first_closes(fitted, folder):
    X = fitted[1]
    first, second = gk.open_index(folder), gk.open_index(folder)
    first.add(X[:1])
    before = files(folder)
    assert "another writer" in message_of(lambda: second.add(X[:1]))
    assert files(folder) == before
    first.close()
    assert "open_index again" in message_of(lambda: second.add(X[:1]))
    assert files(folder) == before
    third = gk.open_index(folder)
    third.add(X[:1])
    assert len(gk.open_index(folder)) == 202


def test_closing_waits_for_the_commit_of_another_thread(fitted, folder, monkeypatch):
    X = fitted[1]
    first, second = gk.open_index(folder), gk.open_index(folder)
    write, inside, go = _files.write, threading.Event(), threading.Event()

    def slow(*args):
        inside.set()
        go.wait(10)
        write(*args)

    monkeypatch.setattr(_files, "write", slow)
    adding = threading.Thread(target=lambda: first.add(X[:3]))
    adding.start()
    assert inside.wait(10)
    closing = threading.Thread(target=first.close)
    closing.start()
    closing.join(0.2)
    monkeypatch.undo()
    assert "another writer" in message_of(lambda: second.add(X[:5]))
    go.set()
    adding.join()
    closing.join()
    assert len(gk.open_index(folder)) == 203


def test_a_forked_process_does_not_write_by_the_lock_of_its_parent(fitted, folder):
    X = fitted[1]
    index = gk.open_index(folder, n_jobs=1)
    index.remove([0])
    child = os.fork()
    if child == 0:
        try:
            index.remove([1])
        except gk.FileError:
            os._exit(3)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    index.add(X[:1])
    assert len(gk.open_index(folder)) == 200


def test_closing_lets_another_write_though_a_forked_process_lives_on(fitted, folder):
    X = fitted[1]
    index = gk.open_index(folder, n_jobs=1)
    index.remove([0])
    waiting, done = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(done)
        os.read(waiting, 1)
        os._exit(0)
    index.close()
    gk.open_index(folder).add(X[:1])
    os.close(done)
    os.waitpid(child, 0)
    os.close(waiting)
    assert len(gk.open_index(folder)) == 200


@pytest.mark.parametrize("writing", [False, True])
def test_a_folder_that_was_replaced_is_not_written_to(fitted, folder, writing):
    est, X = fitted
    old = gk.open_index(folder)
    if writing:
        old.remove([0])
    shutil.rmtree(folder)
    other = gk.FlatIndex(est)
    other.add(X[200:400])
    other.save(folder)
    if writing:
        with gk.open_index(folder) as index:
            index.remove([0])
    before = files(folder)
    assert "open_index again" in message_of(lambda: old.remove([1]), gk.FileError)
    assert files(folder) == before


def test_a_folder_of_an_older_manifest_without_uuid_takes_changes(folder):
    whole = json.loads((folder / "manifest.json").read_bytes())
    del whole["index"]["uuid"]
    disk.write_manifest(folder, whole["index"])
    with gk.open_index(folder) as index:
        index.remove([0])
    assert len(gk.open_index(folder)) == 199


def test_a_change_that_finds_no_manifest_does_not_keep_the_lock(fitted, folder):
    X = fitted[1]
    first, second = gk.open_index(folder), gk.open_index(folder)
    (folder / "manifest.json").rename(folder / "away")
    with pytest.raises(gk.FileError) as held:
        first.add(X[:1])
    (folder / "away").rename(folder / "manifest.json")
    second.add(X[:1])
    assert len(gk.open_index(folder)) == 201
    del held

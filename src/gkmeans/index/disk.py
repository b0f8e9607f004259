"""An index in a folder: a model, immutable segments, lists of removed rows, and one manifest that names them.

New files are written under new names, flushed, and become part of the index when the manifest is renamed into place.
Whatever happens before leaves the index as it was; files that no manifest names are deleted by the next commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import _files
from .._files import FileError
from .._lock import Lock
from ..estimators.base import AdditiveQuantizer
from .lookup import BLOCK, Lookup, lines_of
from .segment import NO_FLOATS, NO_IDS, Segment, State, all_words

MANIFEST, MODEL, LISTS, LOCK = "manifest.json", "model.safetensors", "lists.safetensors", "lock"
FORMAT, SEGMENT, DEAD, CENTRES = "gkmeans-index", "gkmeans-segment", "gkmeans-removed", "gkmeans-lists"
VERSION = 1
_NAMES = re.compile(r"(segment|removed)-[0-9]{1,20}-[0-9]{1,10}\.safetensors")

_BESIDE = (".segment", ".removed", f".{MANIFEST}")  # what a crash leaves of a file that was being written
_ALL_BESIDE = (*_BESIDE, f".{MODEL}", f".{LISTS}")


def _is_ours(name: str) -> bool:
    """Whether a file of an index, or what a crash leaves of one, has such a name."""
    return name in (MODEL, LISTS, MANIFEST) or bool(_NAMES.fullmatch(name)) or name.startswith(_ALL_BESIDE)


class Disk:
    """The folder of an index as one writer sees it."""

    def __init__(self, folder: Path, description: dict[str, Any], serial: int) -> None:
        self.folder, self.description, self.serial = folder, description, serial
        self._lock: Lock | None = None

    @classmethod
    def create(
        cls,
        folder: Path,
        est: AdditiveQuantizer,
        description: dict[str, Any],
        state: State,
        lists: _files.Arrays | None = None,
    ) -> None:
        """Write a new index, with what its ``lists`` are where it has any; the folder must be empty or not there."""
        with _explained(folder):
            folder.mkdir(exist_ok=True)
            lock = Lock(folder / LOCK, f"{folder} is being written by another process; pass another folder")
            try:
                cls._fill(folder, est, description, state, lists)
            finally:
                lock.release()
            sync(folder.parent)

    @classmethod
    def _fill(
        cls,
        folder: Path,
        est: AdditiveQuantizer,
        description: dict[str, Any],
        state: State,
        lists: _files.Arrays | None,
    ) -> None:
        """Write the files of a new index; where that fails the folder is empty again."""
        there = [path.name for path in folder.iterdir() if path.name != LOCK]
        if there and MANIFEST not in there and all(map(_is_ours, there)):
            raise FileError(f"{folder} holds what a save left that did not end; remove it or pass a new folder")
        if there:
            raise FileError(f"{folder} is not empty; pass a new folder")
        try:
            est.save(folder / MODEL)
            digests = {"model": digest_of(folder / MODEL)}
            if lists is not None:
                _files.write(folder / LISTS, CENTRES, lists, {})
                digests["lists"] = digest_of(folder / LISTS)
            disk = cls(folder, {**description, **digests, "uuid": uuid.uuid4().hex}, 0)
            disk._write(State(tuple(segment.named("", "") for segment in state.segments), state.next_id))
        except BaseException:
            if not (folder / MANIFEST).exists():
                for path in folder.iterdir():
                    if _is_ours(path.name):
                        path.unlink()
            raise

    def commit(self, state: State) -> tuple[State, int]:
        """Write what ``state`` has and the folder does not, then the manifest; gives the state as it is on disk.

        And its serial, which the index sets when it has taken the state over: an interrupt in between ends the writer.
        """
        with _explained(self.folder):
            self._acquire()
            serial, self.serial = self.serial, -1
            try:
                return self._write(state, serial + 1), serial + 1
            except BaseException:
                with contextlib.suppress(FileError, OSError):
                    if read_manifest(self.folder)["serial"] == serial:  # else it is one that the index does not know
                        self.serial = serial
                self.release()
                raise

    def _write(self, state: State, serial: int = 1) -> State:
        segments = []
        for i, segment in enumerate(state.segments):
            file, dead = segment.file, segment.dead_file
            if not file:
                file = f"segment-{serial}-{i}.safetensors"
                _files.write(self.folder / file, SEGMENT, _arrays(segment), {"n": segment.n, "first": segment.first})
            if segment.alive < segment.n and not dead:
                dead = f"removed-{serial}-{i}.safetensors"
                rows = np.flatnonzero(~segment.mask()).astype(np.int64)
                _files.write(self.folder / dead, DEAD, {"rows": rows}, {})
            segments.append(segment.named(file, dead))
        sync(self.folder)  # the files are there before a manifest names them
        manifest = {
            **self.description,
            "serial": serial,
            "next_id": state.next_id,
            "segments": [{"file": segment.file, "removed": segment.dead_file} for segment in segments],
        }
        write_manifest(self.folder, manifest)
        named = {name for segment in segments for name in (segment.file, segment.dead_file)}
        with contextlib.suppress(OSError):  # what is left is deleted by the next commit
            for path in self.folder.iterdir():
                if path.name not in named and (_NAMES.fullmatch(path.name) or path.name.startswith(_BESIDE)):
                    with contextlib.suppress(OSError):
                        path.unlink()
        return State(tuple(segments), state.next_id)

    def _acquire(self) -> None:
        """Become the writer, or raise."""
        if self._lock is not None and self._lock.holds() and self.serial >= 0:
            return
        self.release()
        refusal = f"{self.folder} has another writer; call close() of that index first, or end its process"
        lock = Lock(self.folder / LOCK, refusal)
        try:
            if not lock.locked:
                raise FileError(f"{self.folder} cannot be locked, so it has no one writer; use a disk that has locks")
            manifest = read_manifest(self.folder)
            if manifest["serial"] != self.serial or manifest.get("uuid") != self.description.get("uuid"):
                raise FileError(
                    f"{self.folder} was changed by another writer since it was opened; call open_index again"
                )
        except BaseException:
            lock.release()
            raise
        self._lock = lock

    def release(self) -> None:
        """Stop being the writer."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Errors of the system as errors that say what became of the index."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"{folder} could not be written ({error}); what was committed there is untouched: use a folder that can be "
            "written, with room on its disk"
        ) from error


def digest_of(path: Path) -> str:
    """The sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sync(folder: Path) -> None:
    """Flush the names in a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Commit: the manifest with its checksum, renamed into place."""
    whole = {"format": FORMAT, "version": VERSION, "sha256": _digest(manifest), "index": manifest}
    _files.write_bytes(folder / MANIFEST, json.dumps(whole, indent=1).encode())
    sync(folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, its format, version, checksum and names checked."""
    path = folder / MANIFEST
    try:
        whole = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileError(f"{folder} is not an index: it has no {MANIFEST}; pass a folder that save wrote") from error
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path} cannot be read ({error}); use a copy of the folder") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise FileError(f"{path} is not the manifest of an index; pass a folder that save wrote")
    version = whole.get("version")
    if type(version) is not int or version < 1:
        raise FileError(f"{path} has format version {version!r}, which no gkmeans wrote; use a copy of the folder")
    if version > VERSION:
        raise FileError(f"{path} has format version {version}; this gkmeans reads {VERSION}: use a newer gkmeans")
    manifest = whole.get("index")
    if not isinstance(manifest, dict) or _digest(manifest) != whole.get("sha256"):
        raise FileError(f"{path} was changed after it was saved: its sha256 does not match; use a copy of the folder")
    try:
        numbers = [manifest["serial"], manifest["next_id"]]
        names = [entry["file"] for entry in manifest["segments"]]
        names += [entry["removed"] for entry in manifest["segments"] if entry["removed"]]
        if not all(isinstance(number, int) and 0 <= number < 2**63 for number in numbers):
            raise ValueError(f"serial and next_id are {numbers}")
        if wrong := [name for name in names if not _NAMES.fullmatch(name)]:
            raise ValueError(f"a file is named {wrong[0]!r}")
        if len(set(names)) < len(names):
            raise ValueError("a file is named twice")
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} is inconsistent ({error}); use a copy of the folder") from error
    return manifest


def _arrays(segment: Segment) -> _files.Arrays:
    arrays: _files.Arrays = {
        "blocks": segment.blocks,
        "ids": segment.ids,
        "levels": segment.levels,
        "norms": segment.norms,
        "offsets": segment.offsets,
    }
    return {name: array for name, array in arrays.items() if array.size}


def read_segment(folder: Path, entry: dict[str, str], lookup: Lookup, norms: str, verify: bool) -> Segment:
    """A segment that the manifest names, memory-mapped."""
    path = folder / entry["file"]
    arrays, description = _files.mapped(path, SEGMENT, verify)
    try:
        n, first = description["n"], description["first"]
        blocks, ids = arrays["blocks"], arrays.get("ids", NO_IDS)
        levels, floats = arrays.get("levels", NO_FLOATS), arrays.get("norms", NO_FLOATS)
        offsets = arrays.get("offsets", NO_IDS)
        if not (isinstance(n, int) and n >= 1 and isinstance(first, int) and 0 <= first < 2**63 - n):
            raise ValueError(f"{n} rows from id {first}")
        L = lines_of(lookup.C, lookup.K) + lookup.has_norms
        wanted = [(blocks, "|u1", (-(-n // BLOCK), L, BLOCK)), (ids, "<i8", (n,) if len(ids) else (0,))]
        wanted += [
            (levels, "<f4", (256 * lookup.has_norms,)),
            (offsets, "<i8", (lookup.n_lists + bool(lookup.n_lists),)),
        ]
        in_float = norms == "float" or (lookup.n_lists > 0 and len(floats) > 0)
        wanted += [(floats, "<f4", (n * (lookup.has_norms and in_float),))]
        for array, dtype, shape in wanted:
            if array.dtype != np.dtype(dtype) or array.shape != shape:
                raise ValueError(f"an array has dtype {array.dtype} and shape {array.shape}, not {dtype} and {shape}")
        if len(offsets) and (offsets[0] != 0 or offsets[-1] != n or (np.diff(offsets) < 0).any()):
            raise ValueError(f"lists of {n} rows that begin at {offsets[0]} and end at {offsets[-1]}, or overlap")
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} is not a segment of this index ({error}); use a copy of the folder") from error
    segment = Segment(blocks, n, first, ids, levels, floats, all_words(n), n, offsets, file=entry["file"])
    return _without_removed(folder, entry["removed"], segment)


def _without_removed(folder: Path, name: str, segment: Segment) -> Segment:
    if not name:
        return segment
    arrays, _ = _files.read(folder / name, DEAD)
    rows = arrays.get("rows", NO_IDS)
    if rows.dtype != np.int64 or rows.ndim != 1 or (rows.size and not 0 <= rows.min() <= rows.max() < segment.n):
        raise FileError(f"{folder / name} does not list rows of {segment.file}; use a copy of the folder")
    return replace(segment.without(rows), dead_file=name)

"""The store of finished cells: one JSON file each, with the files that belong to it, written whole or not at all.

A cell's JSON is written last, so it is there only when its files are. It carries its key and the checksums of itself
and of its files; one that does not agree with them is made anew.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import FileError, write_bytes

Key = Mapping[str, Any]
Writer = Callable[[Path], None]


@dataclass(frozen=True)
class Cell:
    """A finished piece of an experiment."""

    key: dict[str, Any]
    values: dict[str, Any]
    machine: dict[str, Any]
    files: dict[str, Path]


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failure to write into an error that says what is kept and what to do."""
    try:
        yield
    except OSError as error:
        reason = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror or error
        raise FileError(
            f"results cannot be written to {folder}: {reason}; what is finished there is kept: "
            "make room and run the same command again"
        ) from error


class Store:
    """Cells under ``folder``/cells."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.cells = self.folder / "cells"
        with writing(self.folder):
            self.cells.mkdir(parents=True, exist_ok=True)

    def name(self, key: Key) -> str:
        """File name of the cell, without its ending: readable, and different for every key."""
        words = [str(key[part]) for part in ("kind", "dataset", "method", "bits", "seed") if part in key]
        readable = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")
        return f"{readable}-{_digest(dict(key))[:12]}"

    def find(self, key: Key) -> Cell | None:
        """The cell, or None where it is not there; a damaged one is reported and counts as not there."""
        path = self.cells / f"{self.name(key)}.json"
        if not path.exists():
            return None
        try:
            return self._read(path, dict(key))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            warnings.warn(f"{path} is damaged ({error}) and is made anew", UserWarning, stacklevel=2)
            return None

    def _read(self, path: Path, key: dict[str, Any]) -> Cell:
        content = json.loads(path.read_bytes())
        digest = content.pop("sha256")
        if _digest(content) != digest or content["key"] != key:
            raise ValueError("its checksum does not match")
        files = {}
        for name, entry in content["files"].items():
            files[name] = self.cells / Path(entry["name"]).name
            if _file_digest(files[name]) != entry["sha256"]:
                raise ValueError(f"the checksum of {files[name].name} does not match")
        return Cell(content["key"], content["values"], content["machine"], files)

    def keep(
        self, key: Key, values: dict[str, Any], machine: dict[str, Any], files: Mapping[str, Writer] | None = None
    ) -> Cell:
        """Write a cell: its files, then its JSON."""
        name = self.name(key)
        entries, paths = {}, {}
        with writing(self.folder):
            for part, write in (files or {}).items():
                paths[part] = self.cells / f"{name}.{part}.safetensors"
                write(paths[part])
                entries[part] = {"name": paths[part].name, "sha256": _file_digest(paths[part])}
            content: dict[str, Any] = {"key": dict(key), "values": values, "machine": machine, "files": entries}
            content["sha256"] = _digest(content)
            write_bytes(self.cells / f"{name}.json", json.dumps(content, indent=1).encode())
        return Cell(dict(key), values, machine, paths)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()

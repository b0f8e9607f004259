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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _core
from .._files import FileError, write_bytes
from .subject import WHOLE

Key = Mapping[str, Any]
Writer = Callable[[Path], None]
UNKNOWN = "unknown"
"""The code of a cell that does not name it."""
_NAMED = 3
"""Cells that a message names."""


def code_digest(package: Path, native: Path) -> str:
    """Short sha256 of the sources of ``package``, by name and content, and of its native module."""
    digest = hashlib.sha256()
    for path in [*sorted(package.rglob("*.py")), native]:
        content = path.read_bytes()
        name = path.name if path == native else path.relative_to(package).as_posix()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


# at import: files that change during a run are not what it runs
CODE = code_digest(Path(__file__).parents[1], Path(_core.__file__))


@dataclass(frozen=True)
class Cell:
    """A finished piece of an experiment."""

    key: dict[str, Any]
    values: dict[str, Any]
    machine: dict[str, Any]
    files: dict[str, Path]

    @property
    def code(self) -> str:
        """Digest of the code that made it."""
        return str(self.machine.get("code", UNKNOWN))

    @property
    def name(self) -> str:
        """File name, without its ending."""
        return name_of(self.key)

    @property
    def knows_a_sample(self) -> bool:
        """Whether it was named by some rows of the data, as earlier versions did."""
        return WHOLE not in str(self.key.get("fingerprint", WHOLE))


def name_of(key: Key) -> str:
    """File name of the cell with this key, without its ending: readable, and different for every key."""
    words = [str(key[part]) for part in ("kind", "dataset", "method", "bits", "seed") if part in key]
    readable = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")
    return f"{readable}-{_digest(dict(key))[:12]}"


def of_other_code(cells: Iterable[Cell]) -> list[Cell]:
    """The cells that the running code did not make: their figures may not be those it would give."""
    return [cell for cell in cells if cell.code != CODE]


def told(others: Sequence[Cell], count: int) -> str:
    """What to know of ``others``, those of ``count`` cells that other code made."""
    names = [cell.name for cell in others]
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    some = sum(cell.knows_a_sample for cell in others)
    sampled = f" Named by a sample of the data, whose other rows may have changed: {some:,} of them." if some else ""
    return (
        f"{len(others):,} of {count:,} cells were not made by the code that ran now (sha256 {CODE}) and are shown as "
        f"they were kept: {', '.join(names[:_NAMED])}{more}.{sampled} To make them anew, use another --out folder or "
        "delete them in cells/."
    )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failure to write into an error that says what is kept and what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno == errno.ENOSPC
        reason = "no space left on the disk" if full else error.strerror or error
        way = "make room and run" if full else "make it a folder that you may write to, or choose another, and run"
        raise FileError(
            f"results cannot be written to {folder}: {reason}; what is finished there is kept: "
            f"{way} the same command again"
        ) from error


class Store:
    """Cells under ``folder``/cells."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.cells = self.folder / "cells"
        with writing(self.folder):
            self.cells.mkdir(parents=True, exist_ok=True)

    def find(self, key: Key) -> Cell | None:
        """The cell, or None where it is not there; a damaged one is reported and counts as not there."""
        path = self.cells / f"{name_of(key)}.json"
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
        name = name_of(key)
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

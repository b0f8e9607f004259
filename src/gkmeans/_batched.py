"""Vector files read batch by batch: in bounded memory, by plain reads, from any row on.

Mapped memory would end the process where a file is truncated meanwhile; here it is an error, as growth is.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import _formats
from ._formats import Array
from ._parallel import spans

BATCH_BYTES = 1 << 24
_SOME = 1 << 20


@dataclass(frozen=True)
class Opened:
    """A file of ``n`` vectors, and how to read them from a row on."""

    path: Path
    n: int
    stat: os.stat_result
    rows: Callable[[int], Iterator[Array]]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.stat.st_size

    def digest(self) -> str:
        """Of a million bytes of the start, the middle and the end of the file."""
        found = hashlib.sha256()
        with self.path.open("rb") as file:
            for place in (0, self.size // 2, max(0, self.size - _SOME)):
                file.seek(place)
                found.update(file.read(_SOME))
        return found.hexdigest()

    def batches(self, start: int = 0) -> Iterator[Array]:
        """Rows (m, P) from row ``start`` on; raises where the file does not stay as it was."""
        seen = start
        for batch in self.rows(start):
            self._check()
            if batch.ndim != 2:
                raise _formats.bad(self.path, f"it holds {batch.dtype} of shape (n,)", "pass vectors of shape (n, P)")
            seen += len(batch)
            yield batch
        self._check()
        if seen != self.n:
            raise _formats.bad(self.path, f"{self.n - seen} of its {self.n} rows are missing", "take a whole copy")

    def _check(self) -> None:
        now = self.path.stat()
        if now.st_size != self.size:
            what = "grew" if now.st_size > self.size else "was truncated"
            problem = f"it was {self.size} bytes and is {now.st_size} now: it {what} while it was read"
        elif now.st_mtime_ns != self.stat.st_mtime_ns:
            problem = "it was written to while it was read"
        else:
            return
        raise _formats.bad(self.path, problem, "use a file that nobody writes to, or a copy")


def opened(path: Path, kind: str, dataset: str | None, read: Callable[[], Array]) -> Opened:
    """A file of this kind, its header checked; ``read`` gives its array, mapped where the format can."""
    stat = path.stat()
    if kind == "HDF5":
        n = _formats.hdf5_shape(path, dataset)[0]
        return Opened(path, n, stat, lambda start: _hdf5(path, dataset, start))
    if kind == "Parquet":
        n = _formats.parquet_rows(path)
        return Opened(path, n, stat, lambda start: _skipped(_formats.parquet_batches(path, dataset), start))
    if kind == "a .npy array" and dataset is None and (layout := _formats.npy_layout(path)):
        shape, by_columns, dtype, first = layout
        if len(shape) == 2 and 0 not in shape and dtype.kind in "fiub":
            n, P = shape
            if by_columns:
                return Opened(path, n, stat, lambda start: _columns(path, n, P, dtype, first, start))
            return Opened(path, n, stat, lambda start: _plain(path, n, P, dtype, P * dtype.itemsize, first, start))
    array = read()
    n = len(array)
    if isinstance(array, np.memmap) and array.ndim == 2 and array.strides[1] == array.itemsize:
        where = array.offset if kind != "vecs" else array.offset + 4
        records = (n, array.shape[1], array.dtype, array.strides[0], where)
        return Opened(path, n, stat, lambda start: _plain(path, *records, start))
    return Opened(path, n, stat, lambda start: (array[slice(*span)] for span in _spans(array, start)))


def _spans(array: Array, start: int) -> list[tuple[int, int]]:
    size = max(1, BATCH_BYTES // max(1, array[:1].nbytes))
    return [(start + a, start + b) for a, b in spans(len(array) - start, size)]


def _plain(path: Path, n: int, P: int, dtype: np.dtype[Any], record: int, where: int, start: int) -> Iterator[Array]:
    """Rows of ``record`` bytes each, their numbers first, the first row at byte ``where``."""
    size = max(1, BATCH_BYTES // record)
    with path.open("rb") as file:
        file.seek(where + start * record)
        for first, last in spans(n - start, size):
            wanted = (last - first) * record - (record - P * dtype.itemsize if start + last == n else 0)
            data = np.zeros((last - first) * record, np.uint8)
            if file.readinto(memoryview(data)[:wanted]) != wanted:  # type: ignore[arg-type]
                raise _formats.bad(path, f"it was truncated after row {start + first}", "use a whole copy")
            rows = data.reshape(last - first, record)[:, : P * dtype.itemsize]
            yield np.ascontiguousarray(rows).view(dtype)


def _columns(path: Path, n: int, P: int, dtype: np.dtype[Any], where: int, start: int) -> Iterator[Array]:
    """Rows of an array that lies column by column, the first column at byte ``where``."""
    with path.open("rb") as file:
        for first, last in spans(n - start, max(1, BATCH_BYTES // (P * dtype.itemsize))):
            out = np.empty((P, last - first), dtype)
            for p in range(P):
                file.seek(where + (p * n + start + first) * dtype.itemsize)
                if file.readinto(out[p].view(np.uint8)) != out[p].nbytes:
                    raise _formats.bad(path, f"it was truncated in column {p}", "use a whole copy")
            yield np.ascontiguousarray(out.T)


def _hdf5(path: Path, dataset: str | None, start: int) -> Iterator[Array]:
    shape, itemsize = _formats.hdf5_shape(path, dataset), 8
    size = max(1, BATCH_BYTES // (itemsize * max(1, *shape[1:])))
    for first, last in spans(shape[0] - start, size):
        yield _formats.read_hdf5(path, dataset, slice(start + first, start + last))


def _skipped(batches: Iterator[Array], count: int) -> Iterator[Array]:
    """The batches without their first ``count`` rows."""
    for batch in batches:
        left = batch[count:]
        count = max(0, count - len(batch))
        if len(left):
            yield left

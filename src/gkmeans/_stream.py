"""Rows that come in batches, read once a pass, the same in every pass."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._frame import Frame
from ._parallel import ahead, regrouped
from ._rows import Floats, Here, Rows, chunk_rows
from ._sums import Doubles, grid_for

CHECKED_ROWS = 64
"""Rows of a chunk whose bytes are compared from pass to pass."""


class Stream(Here):
    """Rows (n, P) = ``shape`` that come in batches, the same in every pass over ``batches``."""

    def __init__(self, batches: Iterable[NDArray[Any]], shape: tuple[int, int], frame: Frame) -> None:
        self.batches, self.shape, self.frame = batches, shape, frame
        self.n_features = shape[1]
        self._seen: dict[int, int] = {}  # checksum of some rows of the chunk that begins at each place

    def __len__(self) -> int:
        return self.shape[0]

    def chunks(self) -> Iterator[tuple[slice, Rows]]:
        """The batches cut to chunks, each read while the one before is worked on."""
        stop = 0
        for chunk in ahead(regrouped(self.batches, chunk_rows(self.n_features))):
            start, stop = stop, stop + len(chunk)
            if stop > len(self):
                break
            some = zlib.crc32(chunk[:: -(-len(chunk) // CHECKED_ROWS)].tobytes())
            if self._seen.setdefault(start, some) != some:
                raise ValueError(
                    f"rows {start} to {stop - 1} of the batches are others than in an earlier pass; every pass must "
                    "give the same rows in the same order: use data that does not change, and do not shuffle it"
                )
            yield slice(start, stop), Rows(chunk, self.frame)
        if stop != len(self):
            raise ValueError(
                f"the batches had {len(self)} rows in the first pass and {'more' if stop > len(self) else stop} now; "
                "every pass must give the same rows: use data that does not change while it is read"
            )

    def take(self, index: NDArray[np.intp]) -> Rows:
        """Some rows, found in one pass."""
        order = np.argsort(index, kind="stable")
        ordered, parts = index[order], []
        for where, chunk in self.chunks():
            first, last = np.searchsorted(ordered, (where.start, where.stop))
            if first < last:
                parts.append(chunk.X[ordered[first:last] - where.start])
        found = np.concatenate(parts)
        out = np.empty_like(found)
        out[order] = found
        return Rows(out, self.frame)

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None), room: Floats | None = None) -> Floats:
        """Float32 rows, found in one pass."""
        index = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        return self.take(index).block(slice(None), columns, room)

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """Grid (P,) of sums."""
        assert self.frame.largest is not None  # a survey finds it before the rows are summed
        return grid_for(self.frame.largest + more, len(self))

    def framed(self, frame: Frame) -> Stream:
        """The same rows in another frame."""
        out = Stream(self.batches, self.shape, frame)
        out._seen = self._seen
        return out

"""The user's rows as the kernels see them: blocks of float32, relative to a frame (a shift and a scale).

Nothing here copies the whole array, so a memory-mapped file is read block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._frame import Frame
from ._parallel import Workers, spans
from ._sums import UNIT_ROWS, Doubles, dealt, grid_for

Floats = NDArray[np.float32]
Codes = NDArray[np.unsignedinteger]
Result = TypeVar("Result", covariant=True)

READ_ROWS = UNIT_ROWS
CHUNK_ROWS, CHUNK_FLOATS = 1 << 17, 1 << 24
"""A pass over the data works on chunks of at most so many rows and numbers."""
_EXACT_IN_FLOAT32 = ("float32", "float16", "uint8", "int8", "uint16", "int16", "bool")


def chunk_rows(P: int) -> int:
    """Rows of a chunk: a multiple of 4096, so that the blocks of a chunk are blocks of all rows."""
    return max(READ_ROWS, min(CHUNK_ROWS, CHUNK_FLOATS // P) // READ_ROWS * READ_ROWS)


class Job(Protocol[Result]):
    """One pass over rows (passes.py)."""

    def over(self, rows: Source, codes: Codes | None, workers: Workers) -> Result:
        """What the pass gives for these rows with these codes."""
        ...


class Source(Protocol):
    """Anything that gives rows: all of them in order, chunk by chunk, or some of them."""

    n_features: int

    def __len__(self) -> int: ...

    def chunks(self) -> Iterator[tuple[slice, Source]]:
        """Where each chunk lies, and the chunk, whose rows are at hand: one pass over the data."""
        ...

    def take(self, index: NDArray[np.intp]) -> Source:
        """A copy of the rows that ``index`` (m,) names, in its order."""
        ...

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None), room: Floats | None = None) -> Floats:
        """Float32 rows, C-contiguous, of the columns asked for; in ``room``, at least as long, where it helps."""
        ...

    def spans(self, size: int) -> list[tuple[int, int]]:
        """Blocks of at most ``size`` rows, for a chunk: the same wherever the chunk was cut."""
        ...

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """Grid (P,) on which the sums of all rows are exact, were their entries larger by ``more``."""
        ...

    def folds(self, count: int, seed: int, first: int = 0) -> NDArray[np.uint8]:
        """The fold (n,) of each row, by its place among all; ``first`` is that of the first row here."""
        ...

    def passed(self, job: Job[Result], codes: Codes | None, workers: Workers) -> Result:
        """What one pass over all rows gives."""
        ...

    def without(self, left_out: NDArray[np.intp]) -> Source:
        """The rows but those that ``left_out`` (m,), in rising order, names."""
        ...

    def less(self, D: Floats, codes: Codes) -> Source:
        """The rows less their decoding."""
        ...

    def beside(self, codes: Sequence[Codes]) -> Codes:
        """Codes of the rows by several dictionaries, side by side."""
        ...

    def completed(self, codes: Codes, left_out: NDArray[np.intp], theirs: Codes) -> Codes:
        """Codes of all rows, from those ``without`` some and the codes of these."""
        ...


class Here:
    """What all rows of this process share."""

    def __len__(self) -> int:
        raise NotImplementedError

    def spans(self, size: int) -> list[tuple[int, int]]:
        """Blocks of ``size`` rows."""
        return spans(len(self), size)

    def folds(self, count: int, seed: int, first: int = 0) -> NDArray[np.uint8]:
        """The fold of each row."""
        return dealt(len(self), count, seed, first)

    def passed(self: Source, job: Job[Result], codes: Codes | None, workers: Workers) -> Result:
        """What one pass over all rows gives."""
        return job.over(self, codes, workers)

    def without(self: Source, left_out: NDArray[np.intp]) -> Source:
        """The rows but some."""
        return Without(self, left_out)

    def less(self: Source, D: Floats, codes: Codes) -> Source:
        """The rows less their decoding."""
        return Residual(self, D, codes)

    def beside(self, codes: Sequence[Codes]) -> Codes:
        """Codes side by side."""
        return np.concatenate(codes, axis=1)

    def completed(self, codes: Codes, left_out: NDArray[np.intp], theirs: Codes) -> Codes:
        """Codes of all rows."""
        return completed(codes, left_out, theirs)

    def replaced(self, values: Any, frame: Frame) -> Data:
        """Other rows in the place of these."""
        return Rows(values, frame)


class Rows(Here):
    """Rows of ``X`` (n, P), of any numeric dtype and layout, in a frame."""

    def __init__(self, X: NDArray[np.generic], frame: Frame) -> None:
        self.X = X
        self.frame = frame
        self.n_features = int(X.shape[1])
        self._work = np.float32 if X.dtype.name in _EXACT_IN_FLOAT32 else np.float64
        self._as_it_is = X.dtype == np.float32 and frame.scale == 1.0 and not frame.shift.any()

    def __len__(self) -> int:
        return len(self.X)

    def chunks(self) -> Iterator[tuple[slice, Rows]]:
        """Views of the array."""
        for span in spans(len(self), chunk_rows(self.n_features)):
            yield slice(*span), Rows(self.X[slice(*span)], self.frame)

    def take(self, index: NDArray[np.intp]) -> Rows:
        """Some rows in the dtype of the array."""
        return Rows(self.X[index], self.frame)

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None), room: Floats | None = None) -> Floats:
        """``(X[rows, columns] − shift) · scale`` as float32."""
        found: NDArray[Any] = self.X[:, columns][rows]
        if self._as_it_is and not isinstance(rows, slice):
            return np.ascontiguousarray(found)  # a copy already
        rounds_once = self._work is np.float32 or self.frame.scale == 1.0
        own = room[: found.size].reshape(found.shape) if room is not None and rounds_once else None
        if self._as_it_is:
            out = np.empty(found.shape, np.float32) if own is None else own
            np.copyto(out, found)
            return out
        out = np.subtract(found, self.frame.shift[columns], out=own, dtype=self._work, casting="same_kind")
        if self.frame.scale != 1.0:
            out *= self.frame.scale
        return np.ascontiguousarray(out, dtype=np.float32)

    @cached_property
    def _largest(self) -> Doubles:
        if self.frame.largest is not None:
            return self.frame.largest
        largest = np.zeros(self.n_features)
        for span in spans(len(self), READ_ROWS):
            largest = np.maximum(largest, np.abs(self.block(slice(*span))).max(axis=0))
        return largest

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """Grid (P,) of sums."""
        return grid_for(self._largest + more, len(self))

    def framed(self, frame: Frame) -> Rows:
        """The same rows in another frame."""
        return Rows(self.X, frame)

    def energy(self, workers: Workers) -> float:
        """Σ‖x‖² of the rows as they came, in units of ``1 / scale²``."""

        def part(span: tuple[int, int]) -> float:
            x = np.asarray(self.X[span[0] : span[1]], np.float64) * self.frame.scale
            return float(np.einsum("ij,ij->", x, x))

        return float(np.sum(workers.map(part, spans(len(self), READ_ROWS))))


class Data(Source, Protocol):
    """What a fit is given: rows in their frame."""

    frame: Frame

    def take(self, index: NDArray[np.intp]) -> Rows:
        """Some rows, here, as they came."""
        ...

    def framed(self, frame: Frame) -> Data:
        """The same rows in another frame."""
        ...

    def replaced(self, values: Any, frame: Frame) -> Data:
        """Other rows in the place of these, ``values`` (n, r) as a pass over these gave them, in a frame."""


class Part(Here):
    """The rows of a chunk that ``index`` (m,), in rising order, names, read where they lie."""

    def __init__(self, rows: Source, index: NDArray[np.intp]) -> None:
        self.rows: Source = rows.rows if isinstance(rows, Part) else rows  # a part of a part is one of its chunk
        self.index: NDArray[np.intp] = rows.index[index] if isinstance(rows, Part) else index
        self.n_features = rows.n_features

    def __len__(self) -> int:
        return len(self.index)

    def chunks(self) -> Iterator[tuple[slice, Part]]:
        """The part itself."""
        yield slice(0, len(self)), self

    def take(self, index: NDArray[np.intp]) -> Source:
        """Some rows of the part."""
        return self.rows.take(self.index[index])

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None), room: Floats | None = None) -> Floats:
        """Float32 rows of the part."""
        return self.rows.block(self.index[rows], columns, room)

    def spans(self, size: int) -> list[tuple[int, int]]:
        """Blocks that end where 4096 rows of the chunk do."""
        edges = np.searchsorted(self.index, np.arange(0, len(self.rows) + READ_ROWS, READ_ROWS)).tolist()
        return [(first + a, first + b) for first, last in pairwise(edges) for a, b in spans(last - first, size)]

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """That of the whole, so that the sums of parts add exactly too."""
        return self.rows.grid(more)


class Without(Here):
    """The rows of ``rows`` but those that ``left_out`` (m,), in rising order, names."""

    def __init__(self, rows: Source, left_out: NDArray[np.intp]) -> None:
        self.rows, self.left_out = rows, left_out
        self.n_features = rows.n_features
        self._before = left_out - np.arange(len(left_out))  # rows that stay, before each that does not

    def __len__(self) -> int:
        return len(self.rows) - len(self.left_out)

    def _places(self, index: NDArray[np.intp]) -> NDArray[np.intp]:
        """Where the rows that stay lie among all."""
        return index + np.searchsorted(self._before, index, side="right")

    def chunks(self) -> Iterator[tuple[slice, Source]]:
        """Those of ``rows``, each with what stays of it."""
        stop = 0
        for where, chunk in self.rows.chunks():
            first, last = np.searchsorted(self.left_out, (where.start, where.stop))
            stays = np.delete(np.arange(len(chunk)), self.left_out[first:last] - where.start)
            start, stop = stop, stop + len(stays)
            yield slice(start, stop), Part(chunk, stays)

    def take(self, index: NDArray[np.intp]) -> Source:
        """Some of the rows that stay."""
        return self.rows.take(self._places(index))

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None), room: Floats | None = None) -> Floats:
        """Float32 rows of those that stay."""
        index = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        return self.rows.block(self._places(index), columns, room)

    def folds(self, count: int, seed: int, first: int = 0) -> NDArray[np.uint8]:
        """Those of all rows, where they stay."""
        return np.delete(self.rows.folds(count, seed, first), self.left_out)

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """That of all rows."""
        return self.rows.grid(more)


class Residual(Here):
    """Rows of ``rows`` less their decoding by ``D`` (C, K, P) with ``codes`` (n, C): k-means' input (Sec. 2.3.1)."""

    def __init__(self, rows: Source, D: Floats, codes: Codes) -> None:
        self.rows, self.D, self.codes = rows, D, codes
        self.n_features = rows.n_features

    def __len__(self) -> int:
        return len(self.rows)

    def chunks(self) -> Iterator[tuple[slice, Residual]]:
        """Chunks of the rows with their codes."""
        for part, chunk in self.rows.chunks():
            yield part, Residual(chunk, self.D, self.codes[part])

    def take(self, index: NDArray[np.intp]) -> Residual:
        """Some rows with their codes."""
        return Residual(self.rows.take(index), self.D, self.codes[index])

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None), room: Floats | None = None) -> Floats:
        """Float32 residuals of the columns asked for."""
        return take_away(self.rows.block(rows, columns, room), self.D[:, :, columns], self.codes[rows])

    def spans(self, size: int) -> list[tuple[int, int]]:
        """Blocks of the rows."""
        return self.rows.spans(size)

    def folds(self, count: int, seed: int, first: int = 0) -> NDArray[np.uint8]:
        """Those of the rows."""
        return self.rows.folds(count, seed, first)

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """Grid of rows that may be larger by a codeword of each dictionary."""
        return self.rows.grid(more + np.abs(self.D).max(axis=1).sum(axis=0, dtype=np.float64))


def completed(codes: Codes, left_out: NDArray[np.intp], theirs: Codes) -> Codes:
    """Codes of all rows, from those of the rows that are not ``left_out`` and ``theirs``."""
    seen = np.ones(len(codes) + len(left_out), bool)
    seen[left_out] = False
    out = np.empty((len(seen), codes.shape[1]), codes.dtype)
    out[seen], out[left_out] = codes, theirs
    return out


def decode(D: Floats, codes: Codes) -> Floats:
    """Σ_c D[c, codes[:, c]] for one block of rows, (m, P) float32."""
    out = np.empty((len(codes), D.shape[2]), np.float32)
    _core.decode(np.ascontiguousarray(D), np.ascontiguousarray(codes, np.uint16), out)
    return out


def take_away(X: Floats, D: Floats, codes: Codes) -> Floats:
    """``X`` (m, P) less its decoding, in place."""
    _core.decode(np.ascontiguousarray(D), np.ascontiguousarray(codes, np.uint16), X, less=True)
    return X

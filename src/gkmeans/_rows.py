"""The user's rows as the kernels see them: blocks of float32, relative to a frame (a shift and a scale).

Nothing here copies the whole array, so a memory-mapped file is read block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._parallel import Workers, ahead, spans

Floats = NDArray[np.float32]
Codes = NDArray[np.unsignedinteger]

READ_ROWS = 4096
CHUNK_ROWS, CHUNK_FLOATS = 1 << 17, 1 << 24
"""A pass over the data works on chunks of at most so many rows and numbers."""
_EXACT_IN_FLOAT32 = ("float32", "float16", "uint8", "int8", "uint16", "int16", "bool")


@dataclass(frozen=True)
class Frame:
    """Where the arithmetic is done: ``(x − shift) · scale``.

    Sums in float32 lose what a large common offset or a tiny unit hides; the frame takes both away. ``scale`` is a
    power of two, so it changes no digit.
    """

    shift: Floats
    scale: float = 1.0

    @classmethod
    def of(cls, X: NDArray[np.generic], workers: Workers) -> Frame:
        """Mean of the rows as the shift; a scale only where values are too small or too large to square safely."""
        n = len(X)
        parts = workers.map(
            lambda span: (
                X[span[0] : span[1]].sum(axis=0, dtype=np.float64),
                _largest(X[span[0] : span[1]]),
            ),
            spans(n, READ_ROWS),
        )
        shift = (np.sum([part[0] for part in parts], axis=0) / n).astype(np.float32)
        return cls.by(shift, max(part[1] for part in parts))

    @classmethod
    def by(cls, shift: Floats, largest: float) -> Frame:
        """The frame of rows with this mean and this largest value."""
        scale = 1.0 if largest == 0 or 1e-8 <= largest <= 1e8 else 2.0 ** -float(np.frexp(largest)[1])
        return cls(shift, scale)


def _largest(X: NDArray[np.generic]) -> float:
    return max(abs(float(X.max())), abs(float(X.min())))


def chunk_rows(P: int) -> int:
    """Rows of a chunk."""
    return max(READ_ROWS, min(CHUNK_ROWS, CHUNK_FLOATS // P))


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

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None)) -> Floats:
        """Float32 rows, C-contiguous, of the columns asked for."""
        ...


class Rows:
    """Rows of ``X`` (n, P), of any numeric dtype and layout, in a frame."""

    def __init__(self, X: NDArray[np.generic], frame: Frame) -> None:
        self.X = X
        self.frame = frame
        self.n_features = int(X.shape[1])
        self._work = np.float32 if X.dtype.name in _EXACT_IN_FLOAT32 else np.float64

    def __len__(self) -> int:
        return len(self.X)

    def chunks(self) -> Iterator[tuple[slice, Rows]]:
        """Views of the array."""
        for span in spans(len(self), chunk_rows(self.n_features)):
            yield slice(*span), Rows(self.X[slice(*span)], self.frame)

    def take(self, index: NDArray[np.intp]) -> Rows:
        """Some rows in the dtype of the array."""
        return Rows(self.X[index], self.frame)

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None)) -> Floats:
        """``(X[rows, columns] − shift) · scale`` as float32."""
        out = np.subtract(self.X[:, columns][rows], self.frame.shift[columns], dtype=self._work)
        if self.frame.scale != 1.0:
            out *= self.frame.scale
        return np.ascontiguousarray(out, dtype=np.float32)

    def framed(self, frame: Frame) -> Rows:
        """The same rows in another frame."""
        return Rows(self.X, frame)

    def energy(self, workers: Workers) -> float:
        """Σ‖x‖² of the rows as they came, in units of ``1 / scale²``."""

        def part(span: tuple[int, int]) -> float:
            x = np.asarray(self.X[span[0] : span[1]], np.float64) * self.frame.scale
            return float(np.einsum("ij,ij->", x, x))

        return float(np.sum(workers.map(part, spans(len(self), READ_ROWS))))


class Stream:
    """Rows (n, P) = ``shape`` that come in batches, the same in every pass over ``batches``."""

    def __init__(self, batches: Iterable[NDArray[Any]], shape: tuple[int, int], frame: Frame) -> None:
        self.batches, self.shape, self.frame = batches, shape, frame
        self.n_features = shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def chunks(self) -> Iterator[tuple[slice, Rows]]:
        """The batches cut to chunks, each read while the one before is worked on."""
        stop = 0
        for chunk in ahead(regrouped(self.batches, chunk_rows(self.n_features))):
            start, stop = stop, stop + len(chunk)
            if stop > len(self):
                break
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

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None)) -> Floats:
        """Float32 rows, found in one pass."""
        index = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        return self.take(index).block(slice(None), columns)

    def framed(self, frame: Frame) -> Stream:
        """The same rows in another frame."""
        return Stream(self.batches, self.shape, frame)


Data = Rows | Stream


class Without:
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
            yield slice(start, stop), chunk.take(stays)

    def take(self, index: NDArray[np.intp]) -> Source:
        """Some of the rows that stay."""
        return self.rows.take(self._places(index))

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None)) -> Floats:
        """Float32 rows of those that stay."""
        index = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        return self.rows.block(self._places(index), columns)


def regrouped(batches: Iterable[NDArray[Any]], size: int) -> Iterator[NDArray[Any]]:
    """The rows of the batches, ``size`` at a time."""
    waiting: list[NDArray[Any]] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += len(batch)
        while count >= size:
            rows = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
            yield rows[:size]
            waiting, count = [rows[size:]], count - size
    if count:
        yield np.concatenate(waiting)


class Residual:
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

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None)) -> Floats:
        """Float32 residuals of the columns asked for."""
        out = self.rows.block(rows, columns)
        out -= decode(self.D[:, :, columns], self.codes[rows])
        return out


def decode(D: Floats, codes: Codes) -> Floats:
    """Σ_c D[c, codes[:, c]] for one block of rows, (m, P) float32."""
    out = np.empty((len(codes), D.shape[2]), np.float32)
    _core.decode(np.ascontiguousarray(D), np.ascontiguousarray(codes, np.uint16), out)
    return out

"""The user's rows as the kernels see them: blocks of float32, relative to a frame (a shift and a scale).

Nothing here copies the whole array, so a memory-mapped file is read block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._parallel import Workers, spans
from ._sums import Doubles, exact, grid_for, rounded, snapped

Floats = NDArray[np.float32]
Codes = NDArray[np.unsignedinteger]

Choose = Callable[[NDArray[np.generic], None, Workers], Codes]

READ_ROWS = 4096
_EXACT_IN_FLOAT32 = ("float32", "float16", "uint8", "int8", "uint16", "int16", "bool")


@dataclass(frozen=True)
class Frame:
    """Where the arithmetic is done: ``(x − shift) · scale``.

    Sums in float32 lose what a large common offset or a tiny unit hides; the frame takes both away. ``scale`` is a
    power of two, so it changes no digit. ``largest`` (P,), where it is known, bounds the entries of the rows in it.
    """

    shift: Floats
    scale: float = 1.0
    largest: Doubles | None = None

    @classmethod
    def of(cls, X: NDArray[np.generic], workers: Workers) -> Frame:
        """Mean of the rows as the shift; a scale only where values are too small or too large to square safely."""
        blocks = spans(len(X), READ_ROWS)
        range_ = joint_range(workers.map(lambda span: column_range(X[slice(*span)]), blocks))
        grid = grid_for(np.abs(range_).max(axis=0), len(X))
        sums = workers.map(lambda span: snapped(X[slice(*span)], grid).sum(axis=0), blocks)
        return cls.between(range_, np.sum(sums, axis=0) / len(X))

    @classmethod
    def between(cls, range_: Doubles, mean: Doubles) -> Frame:
        """The frame of rows with this ``range_`` (2, P) and ``mean`` (P,) of each column."""
        shift, scale = mean.astype(np.float32), scale_for(range_)
        return cls(shift, scale, np.abs(range_ - shift).max(axis=0) * scale)


def scale_for(range_: Doubles) -> float:
    """1, or the power of two that takes entries of this ``range_`` to where they can be squared safely."""
    largest = float(np.abs(range_).max())
    return 1.0 if largest == 0 or 1e-8 <= largest <= 1e8 else 2.0 ** -float(np.frexp(largest)[1])


def column_range(X: NDArray[np.generic]) -> Doubles:
    """Least and largest entry of each column, (2, P)."""
    return np.stack([X.min(axis=0), X.max(axis=0)]).astype(np.float64)


def joint_range(ranges: Sequence[Doubles]) -> Doubles:
    """The range of several parts together."""
    return np.stack([np.min([part[0] for part in ranges], axis=0), np.max([part[1] for part in ranges], axis=0)])


def exact_energy(X: NDArray[np.generic], scale: float) -> int:
    """Σ‖x‖² of rows as they came, in units of ``1 / scale²`` and of ``_sums.exact``."""
    doubles = np.ascontiguousarray(X, np.float64) * scale
    return exact(np.einsum("ij,ij->i", doubles, doubles).astype(np.float32))


class Source(Protocol):
    """Anything that gives blocks of rows."""

    n_features: int

    def __len__(self) -> int: ...

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None)) -> Floats:
        """Float32 rows, C-contiguous, of the columns asked for."""
        ...

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """Grid (P,) on which the sums of all rows are exact, were their entries larger by ``more``."""
        ...


class Data(Source, Protocol):
    """What a fit is given: rows in their frame."""

    frame: Frame

    def energy(self, workers: Workers) -> float:
        """Σ‖x‖² of the rows as they came, in units of ``1 / scale²``."""
        ...

    def take(self, index: NDArray[np.intp]) -> Rows:
        """The rows that ``index`` (m,) names, here."""
        ...

    def coded(self, choose: Choose, workers: Workers) -> Codes:
        """Codes that ``choose`` gives to the rows as they came."""
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

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None)) -> Floats:
        """``(X[rows, columns] − shift) · scale`` as float32."""
        out = np.subtract(self.X[:, columns][rows], self.frame.shift[columns], dtype=self._work)
        if self.frame.scale != 1.0:
            out *= self.frame.scale
        return np.ascontiguousarray(out, dtype=np.float32)

    @cached_property
    def _largest(self) -> Doubles:
        if self.frame.largest is not None:
            return self.frame.largest
        parts = [np.abs(self.block(slice(*span))).max(axis=0) for span in spans(len(self), READ_ROWS)]
        largest: Doubles = np.max(parts, axis=0).astype(np.float64)
        return largest

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """Grid (P,) on which the sums of all rows are exact, were their entries larger by ``more``."""
        return grid_for(self._largest + more, len(self))

    def energy(self, workers: Workers) -> float:
        """Σ‖x‖² of the rows as they came, in units of ``1 / scale²``."""
        blocks = spans(len(self), READ_ROWS)
        return rounded(workers.map(lambda span: exact_energy(self.X[slice(*span)], self.frame.scale), blocks))

    def take(self, index: NDArray[np.intp]) -> Rows:
        """The rows that ``index`` (m,) names."""
        return Rows(self.X[index], self.frame)

    def coded(self, choose: Choose, workers: Workers) -> Codes:
        """Codes that ``choose`` gives to the rows as they came."""
        return choose(self.X, None, workers)


class Part:
    """The rows of ``rows`` that ``index`` (m,) names, read where they lie."""

    def __init__(self, rows: Source, index: NDArray[np.intp]) -> None:
        self.rows, self.index = rows, index
        self.n_features = rows.n_features

    def __len__(self) -> int:
        return len(self.index)

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None)) -> Floats:
        """Float32 rows of the part."""
        return self.rows.block(self.index[rows], columns)

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """That of the whole, so that the sums of parts add exactly too."""
        return self.rows.grid(more)


class Residual:
    """Rows of ``rows`` less their decoding by ``D`` (C, K, P) with ``codes`` (n, C): k-means' input (Sec. 2.3.1)."""

    def __init__(self, rows: Source, D: Floats, codes: Codes) -> None:
        self.rows, self.D, self.codes = rows, D, codes
        self.n_features = rows.n_features

    def __len__(self) -> int:
        return len(self.rows)

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None)) -> Floats:
        """Float32 residuals of the columns asked for."""
        out = self.rows.block(rows, columns)
        out -= decode(self.D[:, :, columns], self.codes[rows])
        return out

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """Grid of rows that may be larger by a codeword of each dictionary."""
        return self.rows.grid(more + np.abs(self.D).max(axis=1).sum(axis=0, dtype=np.float64))


def decode(D: Floats, codes: Codes) -> Floats:
    """Σ_c D[c, codes[:, c]] for one block of rows, (m, P) float32."""
    out = np.empty((len(codes), D.shape[2]), np.float32)
    _core.decode(np.ascontiguousarray(D), np.ascontiguousarray(codes, np.uint16), out)
    return out

"""The user's rows as the kernels see them: blocks of float32, relative to a frame (a shift and a scale).

Nothing here copies the whole array, so a memory-mapped file is read block by block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._parallel import Workers, spans

Floats = NDArray[np.float32]
Codes = NDArray[np.unsignedinteger]

READ_ROWS = 4096
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
        largest = max(part[1] for part in parts)
        scale = 1.0 if largest == 0 or 1e-8 <= largest <= 1e8 else 2.0 ** -float(np.frexp(largest)[1])
        return cls(shift, scale)


def _largest(X: NDArray[np.generic]) -> float:
    return max(abs(float(X.max())), abs(float(X.min())))


class Source(Protocol):
    """Anything that gives blocks of rows."""

    n_features: int

    def __len__(self) -> int: ...

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

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None)) -> Floats:
        """``(X[rows, columns] − shift) · scale`` as float32."""
        out = np.subtract(self.X[:, columns][rows], self.frame.shift[columns], dtype=self._work)
        if self.frame.scale != 1.0:
            out *= self.frame.scale
        return np.ascontiguousarray(out, dtype=np.float32)

    def energy(self, workers: Workers, index: NDArray[np.intp] | None = None) -> float:
        """Σ‖x‖² of the rows, or of those that ``index`` names, as they came, in units of ``1 / scale²``."""

        def part(span: tuple[int, int]) -> float:
            rows = slice(*span) if index is None else index[slice(*span)]
            x = np.asarray(self.X[rows], np.float64) * self.frame.scale
            return float(np.einsum("ij,ij->", x, x))

        return float(np.sum(workers.map(part, spans(len(self) if index is None else len(index), READ_ROWS))))


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


def decode(D: Floats, codes: Codes) -> Floats:
    """Σ_c D[c, codes[:, c]] for one block of rows, (m, P) float32."""
    out = np.empty((len(codes), D.shape[2]), np.float32)
    _core.decode(np.ascontiguousarray(D), np.ascontiguousarray(codes, np.uint16), out)
    return out

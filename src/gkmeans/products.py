"""Products of float32 matrices: by the CPU's matrix unit where it has one (native/matrix.hpp), else by fused
multiply-adds (native/scan.inl), else by BLAS.

They are most of the work of an assignment. But for BLAS, a row's products do not depend on the rows beside it. Where a
choice may be swayed a little, they are made in bytes (native/coarse.hpp). ``GKMEANS_PRODUCTS=fused`` keeps to what has
equal bits on all CPUs with AVX2 and FMA, ``blas`` to BLAS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._parallel import aligned
from ._rows import Floats

NARROW = 24
"""With fewer numbers a row the unit, which takes 32 at a time, is slower."""
TILE = 32
"""Rows of a matrix that lie together, number by number, for fused products."""
ROUNDED, MOST_SWAYED = 0.013, 2e-3
"""How far products in bytes are off, and the most that they may sway a choice: distortions move by less than 0.1 %."""
UNEVEN = 12.0
"""Where the largest number of a row is more than so many times their root mean square, bytes round the others away."""
MOST_NUMBERS = 1 << 16
"""With more numbers a row the sums in bytes would not fit 32 bits."""


def way() -> str:
    """What makes products here: ``amx``, ``fused`` or ``blas``, and whether some are made in bytes."""
    floats = "amx" if _core.matrix_unit() else "fused" if _core.fused_products() else "blas"
    return floats + (" and bytes" if _core.coarse_products() else "")


def even_enough(D: Floats) -> bool:
    """Whether the largest number of a row of ``D`` (G, m, P) is, as a rule, no more than UNEVEN times the usual one."""
    D = D[:, D.any(axis=(0, 2))]  # not what fills up registers
    squares = np.einsum("gmp,gmp->gm", D, D) / D.shape[2]
    largest = np.maximum(D.max(axis=2, initial=0), -D.min(axis=2, initial=0))
    return largest.size == 0 or bool(np.median(largest - UNEVEN * np.sqrt(squares)) <= 0)


def swayed(C: int, P: int, unexplained: float) -> float:
    """What rounding to bytes adds to the cost of a choice, as a share of the residual's energy.

    C dictionaries leave ``unexplained`` of the variance of rows of P numbers. A product of the residual with the
    difference of two codewords is off by ROUNDED of their lengths over √P; where little is left unexplained, codewords
    are long beside the residual.
    """
    if unexplained <= 0:
        return np.inf
    return float(ROUNDED * np.sqrt(2 * max(0.0, 1 - unexplained) / (unexplained * C * P)))


def tiled(D: Floats) -> Floats:
    """The rows of ``D`` (G, m, P) in tiles (G, tiles, P, 32), the last one filled up with zeros."""
    G, m, P = D.shape
    out = aligned(G, -(-m // TILE), P, TILE)
    for matrix, tiles in zip(D, out, strict=True):
        for start, tile in zip(range(0, m, TILE), tiles, strict=True):
            some = matrix[start : start + TILE].T
            tile[:, : some.shape[1]] = some
            tile[:, some.shape[1] :] = 0
    return out


@dataclass(frozen=True)
class Products:
    """``X D[g]ᵀ`` for each of G matrices ``D`` (G, m, P)."""

    D: Floats
    packed: NDArray[np.uint16] | None = None
    coarse: NDArray[np.uint8] | None = None
    tiles: Floats | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # another machine may have no unit
        bytes_too = self.coarse is not None
        return Products.with_all, (self.D, bytes_too, bytes_too)

    @classmethod
    def with_all(cls, D: Floats, coarse: bool = False, uneven: bool = False) -> Products:
        """Products with the rows of ``D`` (G, m, P), brought into the order of what makes them once.

        ``coarse``: in bytes, where the CPU has instructions for it, m is a multiple of 16 and the rows are even enough,
        or may be ``uneven``.
        """
        G, m, P = D.shape
        if coarse and m % 16 == 0 and P <= MOST_NUMBERS and _core.coarse_products() and (uneven or even_enough(D)):
            size = _core.coarse_size(m, P)
            levels = aligned(G * size // 4).view(np.uint8).reshape(G, size)
            for matrix, bytes_of in zip(D, levels, strict=True):
                _core.coarse_pack(np.ascontiguousarray(matrix), bytes_of)
            return cls(D, coarse=levels)
        if P < NARROW or not _core.matrix_unit():
            return cls(D, tiles=tiled(D)) if _core.fused_products() else cls(D)
        size = _core.packed_size(m, P)
        packed = aligned(G * size // 2).view(np.uint16).reshape(G, size)
        for matrix, place in zip(D, packed, strict=True):
            _core.pack(np.ascontiguousarray(matrix), place)
        return cls(D, packed)

    def into(self, X: Floats, out: Floats, first: int = 0) -> Floats:
        """Rows ``first`` and on of ``out`` (G, N, m) become the products of the rows ``X`` (n, P)."""
        if self.coarse is not None:
            _core.coarse_multiply(np.ascontiguousarray(X), self.coarse, out, first)
        elif self.packed is not None:
            _core.multiply(np.ascontiguousarray(X), self.packed, out, first)
        elif self.tiles is not None:
            _core.multiply_tiles(np.ascontiguousarray(X), self.tiles, out, first)
        else:
            np.matmul(X, self.D.transpose(0, 2, 1), out=out[:, first : first + len(X)])
        return out

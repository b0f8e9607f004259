"""Products of float32 matrices: by the CPU's matrix unit where it has one (native/matrix.hpp), else by BLAS.

They are most of the work of an assignment. ``GKMEANS_PRODUCTS=blas`` keeps to BLAS, for equal bits on unequal CPUs.
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
"""With fewer numbers a row BLAS is faster: the unit takes 32 at a time."""


@dataclass(frozen=True)
class Products:
    """``X D[g]ᵀ`` for each of G matrices ``D`` (G, m, P)."""

    D: Floats
    packed: NDArray[np.uint16] | None

    def __reduce__(self) -> tuple[Any, ...]:
        return Products.with_all, (self.D,)  # another machine may have no unit

    @classmethod
    def with_all(cls, D: Floats) -> Products:
        """Products with the rows of ``D`` (G, m, P), brought into the unit's order once."""
        G, m, P = D.shape
        if P < NARROW or not _core.matrix_unit():
            return cls(D, None)
        size = _core.packed_size(m, P)
        packed = aligned(G * size // 2).view(np.uint16).reshape(G, size)
        for matrix, place in zip(D, packed, strict=True):
            _core.pack(np.ascontiguousarray(matrix), place)
        return cls(D, packed)

    def into(self, X: Floats, out: Floats, first: int = 0) -> Floats:
        """Rows ``first`` and on of ``out`` (G, N, m) become the products of the rows ``X`` (n, P)."""
        if self.packed is None:
            np.matmul(X, self.D.transpose(0, 2, 1), out=out[:, first : first + len(X)])
        else:
            _core.multiply(np.ascontiguousarray(X), self.packed, out, first)
        return out

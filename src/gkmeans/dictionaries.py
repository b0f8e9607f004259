"""The dictionaries: C × K codewords of P numbers, block-diagonal inside a rotation, and the table T, Eq. 8 and 21.

``GroupKMeans`` proper is one block without rotation. The stages of the hierarchical initialisation, ck-means and
ock-means are the same with more blocks: a block is a range of the rotated dimensions and the dictionaries that live
there, so every codeword is zero outside its block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._parallel import Workers, aligned, spans
from ._rows import Codes, Floats, Source
from .products import Products
from .steps import Steps

PAD = 16
GROUPS = 16
MANY_ROWS = 1 << 20
"""Above this many rows, some are drawn without a permutation of all."""
TABLE_ROWS = 256
"""Rows of T that one task makes."""
TABLE_BYTES = 1 << 31
"""T may take 2 GiB; with more codewords, order 1 works without it (assignment.py)."""


@dataclass(frozen=True)
class Block:
    """Dictionaries ``dictionaries`` live in the rotated dimensions ``dims``."""

    dims: slice
    dictionaries: slice


@dataclass(frozen=True)
class Dictionaries:
    """One (C_u, K, P_u) array for each block u, and the rotation R with rows ``x R``, or None.

    R is (P, P), or (P, r) with orthonormal columns where the blocks have r dimensions (narrowing.py).
    """

    blocks: tuple[Block, ...]
    D: tuple[Floats, ...]
    R: Floats | None = None

    @classmethod
    def single(cls, D: NDArray[np.floating]) -> Dictionaries:
        """Unconstrained dictionaries ``D`` (C, K, P): one block, no rotation."""
        C, _, P = D.shape
        return cls((Block(slice(0, P), slice(0, C)),), (np.ascontiguousarray(D, np.float32),))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, K, P)."""
        P = self.blocks[-1].dims.stop if self.R is None else len(self.R)
        return self.blocks[-1].dictionaries.stop, self.D[0].shape[1], P

    @property
    def groups(self) -> tuple[slice, ...]:
        """Dictionaries that are solved together, those of each block."""
        return tuple(block.dictionaries for block in self.blocks)

    def like(self, other: Dictionaries) -> bool:
        """Whether ``other`` has the same blocks, shape and kind of rotation."""
        rotations = [None if one.R is None else one.R.shape for one in (self, other)]
        return self.blocks == other.blocks and self.shape == other.shape and rotations[0] == rotations[1]

    def full(self) -> Floats:
        """Full-length dictionaries (C, K, P): ``D Rᵀ`` with zeros outside the blocks."""
        C, K, P = self.shape
        r = self.blocks[-1].dims.stop
        out = np.zeros((C, K, r), np.float32)
        for block, D in zip(self.blocks, self.D, strict=True):
            out[block.dictionaries, :, block.dims] = D
        if self.R is None:
            return out
        return np.ascontiguousarray((out.reshape(C * K, r) @ self.R.T).reshape(C, K, P))

    def rotate(self, X: Floats, coarse: bool = False, room: Floats | None = None) -> Floats:
        """Rows ``X`` (m, P) in the coordinates of the blocks, in ``room`` (m r,) where given.

        ``coarse``: by products in bytes, where there are such.
        """
        if self.R is None:
            return X
        shape = 1, len(X), self.R.shape[1]
        turn = self._coarse_turn if coarse else self._turn
        out: Floats = turn.into(X, np.empty(shape, np.float32) if room is None else room.reshape(shape))[0]
        return out

    def ready(self, coarse: bool = False) -> None:
        """Bring the rotation into the order of products, before threads ask for it at once."""
        if self.R is not None:
            _ = self._coarse_turn if coarse else self._turn

    @cached_property
    def _turn(self) -> Products:
        """Products with the rows of Rᵀ."""
        assert self.R is not None
        return Products.with_all(self.R.T[None])

    @cached_property
    def _coarse_turn(self) -> Products:
        """The same in bytes, however uneven the rotation is: the codes of an encoding may be swayed a little by it."""
        assert self.R is not None
        return Products.with_all(self.R.T[None], coarse=True, uneven=True)

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be made anew."""
        return {key: value for key, value in self.__dict__.items() if key not in ("_turn", "_coarse_turn")}


@dataclass(frozen=True)
class Tables:
    """What the assignment needs of one block's dictionaries ``D`` (C, K, P), padded to Kp codewords.

    ``products`` are those with the padded codewords (C, Kp, P).
    Inside, each dictionary's codewords stand in the ``order`` (C, K) that puts similar ones together, because pairs are
    bounded by groups of neighbours; ``place`` (C, K) is its inverse. ``T`` (C, C, K, Kp) has ``T[c, b, j, k] =
    ⟨d^c_k, d^b_j⟩``, so the rows that dictionary c needs lie together; ``N`` (C, Kp) half the squared norms, +inf in
    the padding; ``rowmin`` (C, C, Kp) the least of each row of T and ``groupmin`` (C, C, K, 16) of each of up to 16
    groups of its columns. Where ``steps`` hold the table instead, there is none of these.
    """

    D: Floats
    products: Products
    N: Floats
    order: NDArray[np.uint16]
    place: NDArray[np.uint16]
    T: Floats | None = None
    rowmin: Floats | None = None
    groupmin: Floats | None = None
    steps: Steps | None = None

    @classmethod
    def of(cls, D: Floats, workers: Workers, order: int = 2, coarse: bool = False) -> Tables:
        """Compute the tables, one dictionary a task; ``order`` 1 needs neither the similar order nor the minima.

        ``coarse``: the products with rows are made in bytes; the tables are not.
        """
        C, K, P = D.shape
        Kp = -(-K // PAD) * PAD
        width = PAD * -(-Kp // (PAD * GROUPS))
        needed = C > 1 and table_bytes(C, K) <= TABLE_BYTES
        pairs = needed and order > 1
        order_of = np.stack(
            workers.map_small(lambda c: similar_order(D[c], width) if pairs else np.arange(K, dtype=np.int32), range(C))
        )
        padded = np.zeros((C, Kp, P), np.float32)
        for c, some in enumerate(order_of):
            np.take(D[c], some, axis=0, out=padded[c, :K])
        N = aligned(C, Kp)
        N[:] = np.inf
        N[:, :K] = np.einsum("ckp,ckp->ck", padded[:, :K], padded[:, :K], dtype=np.float64) / 2
        exact = Products.with_all(padded) if needed or C == 1 else Products(padded)
        products = Products.with_all(padded, coarse=True) if coarse and (needed or C == 1) else exact
        start = cls(D, products, N, order_of.astype(np.uint16), np.argsort(order_of, axis=1).astype(np.uint16))
        if not needed:
            return start
        ordered = padded[:, :K].reshape(C * K, P)
        T = aligned(C, C, K, Kp)
        rowmin = aligned(C, C, Kp)
        rowmin[:] = 0
        groupmin = aligned(C, C, K, GROUPS)
        groupmin[:] = np.inf

        def fill(rows: tuple[int, int]) -> None:
            exact.into(ordered[slice(*rows)], T.reshape(C, C * K, Kp), rows[0])

        def bound(c: int) -> None:
            _core.minima(T[c], K, groupmin[c], rowmin[c])

        workers.map(fill, spans(C * K, TABLE_ROWS))
        for c, norms in enumerate(N[:, :K]):
            np.fill_diagonal(T[c, c, :, :K], 2 * norms)  # squares are what the unit rounds all one way
        if pairs:
            workers.map_small(bound, range(C))
        return replace(start, T=T, rowmin=rowmin, groupmin=groupmin)

    @classmethod
    def in_steps(cls, D: Floats, workers: Workers, fine: float) -> Tables | None:
        """Tables in 16-bit steps, for products in bytes; None where the CPU or these dictionaries ask for floats.

        Half the squared norm of a usual codeword is to have at least ``fine`` steps.
        """
        C, K, _ = D.shape
        if C == 1 or not _core.coarse_products() or table_bytes(C, K) > TABLE_BYTES:
            return None
        exact = cls.of(D, workers, 1, coarse=True)
        if exact.products.coarse is None or exact.T is None:
            return None
        steps = Steps.of(exact.T, exact.N, workers, fine)
        return None if steps is None else replace(exact, T=None, rowmin=None, groupmin=None, steps=steps)

    @property
    def nbytes(self) -> int:
        """Size of what is largest here: the codewords, in every order they are held in, and T."""
        products = self.products
        held = (self.D, products.D, products.packed, products.coarse, products.tiles, self.T, self.groupmin, self.steps)
        return sum(array.nbytes for array in held if array is not None)

    def inside(self, codes: Codes) -> NDArray[np.uint16]:
        """Codes (m, C) as places in the order of the tables."""
        out: NDArray[np.uint16] = np.take_along_axis(self.place, codes.T.astype(np.intp), axis=1).T.copy()
        return out

    def outside(self, places: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Codes (m, C) of places."""
        out: NDArray[np.uint16] = np.take_along_axis(self.order, places.T.astype(np.intp), axis=1).T
        return out


def similar_order(D: Floats, width: int) -> NDArray[np.int32]:
    """Codewords ``D`` (K, P) in an order that puts similar ones into the same ``width`` places."""
    order = np.empty(len(D), np.int32)
    _core.similar_order(np.ascontiguousarray(D), width, order)
    return order


def table_bytes(C: int, K: int) -> int:
    """Size of T."""
    return 4 * C * C * K * (-(-K // PAD) * PAD)


def code_dtype(K: int) -> type[np.unsignedinteger]:
    """uint8 for at most 256 codewords, else uint16."""
    return np.uint8 if K <= 256 else np.uint16


def squared_errors(X: Floats, D: Floats, codes: Codes) -> NDArray[np.float32]:
    """‖x − Σ_c D[c, codes[:, c]]‖² of each row of ``X``."""
    out = np.empty(len(X), np.float32)
    _core.errors(X, D, np.ascontiguousarray(codes, np.uint16), out)
    return out


def drawn(n: int, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """``count`` distinct places below ``n`` in random order; where there are fewer, they are repeated in turn."""
    few = min(n, count)
    chosen = rng.permutation(n)[:few] if n <= MANY_ROWS else rng.choice(n, few, replace=False)
    return np.resize(chosen, count)


def sample_rows(rows: Source, count: int, rng: np.random.Generator, times: int = 1) -> Floats:
    """(times, count, P): ``count`` rows drawn anew each time, all read in one pass."""
    places = np.concatenate([drawn(len(rows), count, rng) for _ in range(times)])
    return rows.take(places).block(slice(None)).reshape(times, count, rows.n_features)

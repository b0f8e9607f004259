"""The coarse step of an inverted file: which lists are nearest to a row, in one level or in two.

Up to 4,096 lists every centre is compared. Above, centres lie in about √lists groups: those nearest by their own
centres are looked into until they hold 16 √lists centres, or 16 times those asked for. What is found in them is
exact, and all lists are looked at where a sixteenth of them is asked for. In one level products in bytes tell which
centres may be among the nearest, where the CPU makes them, and only those are compared in floats: the same answers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._frame import Frame
from .._parallel import Workers, aligned, block_rows, spans
from .._rows import Floats, Rows
from ..products import MOST_NUMBERS, TILE, tiled

_LOOKED_AT = 16
_FEW = 8
"""Bytes help where no more than one of so many lists is asked for."""
Lists = NDArray[np.int64]


class Coarse:
    """Centres (L, P), group by group; ``firsts`` (groups + 1) is the first of each group.

    With x = −2 (q − shift) · scale, and centres in the same frame, ‖q − c‖² is a bias + ⟨x, c⟩ + ‖c‖². For the inner
    product x = −q · scale, centres are multiplied by the scale alone, and there is no norm.
    """

    def __init__(self, centres: Floats, firsts: Lists, metric: str, scale: float) -> None:
        self.centres, self.firsts = centres, firsts
        self.n_lists, self.P = centres.shape
        zero = np.zeros(self.P, np.float32)
        self.frame = Frame(centres.mean(axis=0, dtype=np.float64).astype(np.float32) if metric == "l2" else zero, scale)
        sizes = np.diff(firsts)
        self._starts = np.concatenate([[0], np.cumsum(-(-sizes // TILE))])
        slots = np.arange(self.n_lists) + np.repeat(self._starts[:-1] * TILE - firsts[:-1], sizes)
        padded, self._norms = _padded(self.framed(np.arange(self.n_lists)), slots, int(self._starts[-1]))
        self._tiles = tiled(padded[None])[0]
        self._rounded = _Rounded(padded) if len(sizes) == 1 and _Rounded.possible(self.P) else None
        tops = np.add.reduceat(centres.astype(np.float64), firsts[:-1], axis=0) / sizes[:, None]
        groups = np.arange(len(sizes))
        top, self._top_norms = _padded(self.frame_of(tops), groups, -(-len(sizes) // TILE))
        self._top_tiles = tiled(top[None])[0]
        self._probe_norms, self._top_probe_norms = (
            norms if metric == "l2" else np.where(np.isinf(norms), norms, np.float32(0))
            for norms in (self._norms, self._top_norms)
        )

    def frame_of(self, centres: NDArray[np.floating]) -> Floats:
        """Centres in the frame."""
        return ((centres.astype(np.float64) - self.frame.shift) * self.frame.scale).astype(np.float32)

    def framed(self, lists: Lists) -> Floats:
        """Centres of lists in the frame."""
        return self.frame_of(self.centres[lists])

    def probe(self, x: Floats, bias: Floats, count: int) -> tuple[Floats, Lists]:
        """Scores and lists (n, count) of the nearest lists, nearest first, ties by list."""
        return self._nearest(x, bias, count, self._probe_norms, self._top_probe_norms)

    def held(self, count: int) -> int:
        """Scores that a row has at once where ``count`` lists are asked for."""
        return self.n_lists if len(self.firsts) == 2 else count

    def assign(self, X: NDArray[np.generic], n_jobs: int | None) -> Lists:
        """The list of each row: that of the nearest centre by Euclidean distance, whatever the metric."""
        rows, out = Rows(X, self.frame), np.empty(len(X), np.int64)

        def one(span: tuple[int, int]) -> None:
            x = rows.block(slice(*span))
            x *= -2
            zero = np.zeros(len(x), np.float32)
            out[slice(*span)] = self._nearest(x, zero, 1, self._norms, self._top_norms)[1][:, 0]

        with Workers(n_jobs) as workers:
            workers.map(one, spans(len(X), block_rows(self.n_lists)))
        return out

    def _nearest(self, x: Floats, bias: Floats, count: int, norms: Floats, top_norms: Floats) -> tuple[Floats, Lists]:
        scores = np.full((len(x), count), np.inf, np.float32)
        lists = np.full((len(x), count), -1, np.int64)
        if self._rounded is not None and _FEW * count <= self.n_lists:
            self._rounded.nearest(x, bias, norms, scores, lists)
            return scores, lists
        _core.probe(
            Q=x,
            bias=bias,
            tiles=self._tiles,
            norms=norms,
            starts=self._starts,
            firsts=self.firsts,
            top_tiles=self._top_tiles,
            top_norms=top_norms,
            wanted=_LOOKED_AT * max(count, math.isqrt(self.n_lists)),
            scores=scores,
            lists=lists,
        )
        return scores, lists


class _Rounded:
    """Centres (W, P) in bytes, and what that takes from their lengths."""

    def __init__(self, centres: Floats) -> None:
        self.centres, self.lengths = centres, np.empty((2, len(centres)), np.float32)
        self.packed = aligned(_core.coarse_size(*centres.shape) // 4).view(np.uint8)
        _core.coarse_pack(centres, self.packed)
        _core.rounded_lengths(centres, self.lengths)

    @staticmethod
    def possible(P: int) -> bool:
        """Whether the CPU makes such products of P numbers, and sums floats as they must be summed."""
        return P <= MOST_NUMBERS and _core.coarse_products() and _core.simd_level().startswith("avx512")

    def nearest(self, x: Floats, bias: Floats, norms: Floats, scores: Floats, lists: Lists) -> None:
        """Fill ``scores`` and ``lists`` (n, count) with the nearest centres of rows ``x`` (n, P)."""
        _core.nearest_centres(x, bias, self.centres, norms, self.packed, self.lengths, scores, lists)


def _padded(centres: Floats, slots: Lists, tiles: int) -> tuple[Floats, Floats]:
    """Centres (tiles · 32, P), each at its slot, and their squared norms, +inf where there is none."""
    padded = np.zeros((tiles * TILE, centres.shape[1]), np.float32)
    padded[slots] = centres
    norms = np.full(tiles * TILE, np.inf, np.float32)
    norms[slots] = np.einsum("ij,ij->i", centres, centres, dtype=np.float64)
    return padded, norms


def check_centres(centres: NDArray[np.generic], firsts: NDArray[np.generic], P: int) -> None:
    """Raise ValueError where arrays of a file are not centres in groups."""
    if centres.dtype != np.float32 or centres.ndim != 2 or centres.shape[1] != P or not np.isfinite(centres).all():
        raise ValueError(f"centres of dtype {centres.dtype} and shape {centres.shape}, or not finite")
    edges = firsts if firsts.dtype == np.int64 and firsts.ndim == 1 and len(firsts) > 1 else np.zeros(1, np.int64)
    if edges[0] != 0 or edges[-1] != len(centres) or (np.diff(edges) < 1).any():
        raise ValueError(f"groups of {len(centres)} centres that begin at {firsts[:3].tolist()}, …")

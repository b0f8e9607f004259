"""Rows of a Dask array as training sees them: shards that stay on the workers, with their codes and errors.

A pass is a task a shard. It depends on the chunk, on the dictionaries of the pass and on the shard's codes of the
pass before: where a worker is lost, Dask runs again what made the codes that were there. Dictionaries go out inside
the one task that holds them, and workers pass them on to each other.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from operator import getitem
from typing import Any

import dask
import numpy as np
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from .._elsewhere import Elsewhere
from .._parallel import Workers
from .._rows import Choose, Codes, Floats, Frame, Rows, scale_for
from .._sums import Doubles, dealt, dealt_lengths, grid_for, rounded
from ..assignment import Method
from ..dictionaries import Dictionaries
from ..update import Statistics
from . import tasks

Edges = NDArray[np.int64]
"""Places (shards + 1,) of the first row of each shard, and the number of rows."""

FAN = 8
"""Sums that one task adds."""


def task(function: Any, *arguments: Any, parts: int | None = None) -> Any:
    """A call of ``function`` to be made by a worker, of which ``parts`` results may be taken one by one."""
    return delayed(function, pure=False, nout=parts)(*arguments)


def kept(items: Sequence[Any]) -> list[Any]:
    """The same, being computed, with results that stay on the workers."""
    return list(dask.persist(*items, optimize_graph=False))


def fetched(items: Sequence[Any]) -> list[Any]:
    """The results, here."""
    return list(dask.compute(*items, optimize_graph=False))


class Sharded(Elsewhere):
    """Codes, or errors, of which each shard's rows lie with the shard: ``item`` 0, or 1, of what a task gave."""

    def __init__(self, parts: Sequence[Delayed], edges: Edges, item: int = 0) -> None:
        self.parts, self.edges, self.item = list(parts), edges, item

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found = np.concatenate(fetched([task(getitem, part, self.item) for part in self.parts]))
        return found if dtype is None else found.astype(dtype, copy=False)

    def __getitem__(self, index: NDArray[np.intp]) -> NDArray[Any]:
        return gathered_rows(index, self.edges, lambda p, some: task(tasks.rows_of, self.parts[p], self.item, some))

    def beside(self, others: Sequence[Sharded]) -> Sharded:
        """Codes with those of more dictionaries beside them."""
        return Sharded(
            kept(
                [task(tasks.beside, list(parts)) for parts in zip(self.parts, *(o.parts for o in others), strict=True)]
            ),
            self.edges,
        )

    def total(self) -> float:
        """The sum of all entries, rounded once."""
        return rounded(fetched([task(tasks.total, part, self.item) for part in self.parts]))

    def drawn(self, u: int, count: int, seed: int) -> NDArray[np.int64]:
        """Rows drawn by their errors in block u."""
        firsts = self.edges[:-1].tolist()
        found = fetched(
            [task(tasks.drawn, part, u, count, seed, first) for part, first in zip(self.parts, firsts, strict=True)]
        )
        keys, places = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        out: NDArray[np.int64] = places[np.argsort(keys, kind="stable")[:count]]
        return out


def gathered_rows(index: NDArray[np.intp], edges: Edges, take: Any) -> NDArray[Any]:
    """Rows that ``index`` (m,) names, in its order, from the shards that have them."""
    index = np.asarray(index)
    where = np.searchsorted(edges, index, side="right") - 1
    shards = np.unique(where)
    found = fetched([take(p, index[where == p] - edges[p]) for p in shards.tolist()])
    out = np.empty((len(index), *found[0].shape[1:]), found[0].dtype)
    for p, rows in zip(shards, found, strict=True):
        out[where == p] = rows
    return out


class Shards(Elsewhere):
    """Rows (n, P) in a frame, one shard for each chunk of a Dask array.

    ``places`` hold what a task needs to open a shard's rows: its chunk, the frame, and where they are residuals or a
    fold, D with codes and the fold's rows. ``largest`` (P,) bounds their entries, and ``total`` counts all rows.
    """

    def __init__(
        self, places: Sequence[Sequence[Any]], edges: Edges, frame: Frame, energy: float, largest: Doubles, total: int
    ) -> None:
        self.places, self.edges, self.frame = list(places), edges, frame
        self.n_features = len(frame.shift)
        self._energy, self._largest, self._total = energy, largest, total

    @classmethod
    def of(cls, chunks: Sequence[Delayed], edges: Edges, range_: Doubles) -> Shards:
        """Shards of chunks already checked, whose columns have this range (2, P)."""
        n = int(edges[-1])
        grid = grid_for(np.abs(range_).max(axis=0), n)
        sums, energies = zip(
            *fetched([task(tasks.added, chunk, grid, scale_for(range_)) for chunk in chunks]), strict=True
        )
        frame = Frame.between(range_, np.sum(sums, axis=0) / n)
        assert frame.largest is not None  # between knows it
        [shared] = kept([task(tasks.received, frame)])
        places = [(chunk, shared, None, None) for chunk in chunks]
        return cls(places, edges, frame, rounded(energies), frame.largest, n)

    def _with(self, places: Sequence[Sequence[Any]], edges: Edges, more: Doubles | float = 0.0) -> Shards:
        return Shards(places, edges, self.frame, self._energy, self._largest + more, self._total)

    def __len__(self) -> int:
        return int(self.edges[-1])

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """Grid (P,) on which the sums of all rows are exact."""
        return grid_for(self._largest + more, self._total)

    def energy(self, workers: Workers) -> float:
        """Σ‖x‖² of the rows as they came."""
        return self._energy

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None)) -> Floats:
        """Float32 rows, here."""
        index = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        return gathered_rows(index, self.edges, lambda p, some: task(tasks.taken, self.places[p], some, columns))

    def take(self, index: NDArray[np.intp]) -> Rows:
        """The rows that ``index`` (m,) names, as they came, here."""
        found = gathered_rows(index, self.edges, lambda p, some: task(np.take, self.places[p][0], some, 0))
        return Rows(found, self.frame)

    def coded(self, choose: Choose, workers: Workers) -> Codes:
        """Codes that ``choose``, a method of an estimator, gives to the rows as they came."""
        model = task(tasks.received, without_codes(choose.__self__))  # type: ignore[attr-defined]
        parts = [task(tasks.started, place[0], model) for place in self.places]
        return Sharded(kept(parts), self.edges)  # type: ignore[return-value]  # it passes for an array

    def assign(self, dictionaries: Dictionaries, method: Method, codes: Sharded | None) -> tuple[Sharded, Sharded]:
        """Codes and errors, each shard's where it lies."""
        sent = task(tasks.received, tasks.Sent(dictionaries, method))
        given = [None] * len(self.places) if codes is None else codes.parts
        found = kept([task(tasks.assigned, place, sent, some) for place, some in zip(self.places, given, strict=True)])
        return Sharded(found, self.edges), Sharded(found, self.edges, 1)

    def collect(self, codes: Sharded, K: int, groups: Sequence[slice]) -> Statistics:
        """Statistics of all shards, added in a tree."""
        grid = self.grid()
        sums = [
            task(tasks.collected, place, some, K, list(groups), grid)
            for place, some in zip(self.places, codes.parts, strict=True)
        ]
        while len(sums) > 1:
            sums = [task(tasks.joined, sums[first : first + FAN]) for first in range(0, len(sums), FAN)]
        [(counts, Z, W)] = fetched(sums)
        return Statistics(counts, Z, W, tuple(groups))

    def residual(self, D: Floats, codes: Sharded) -> Shards:
        """Rows less their decoding."""
        [shared] = kept([task(tasks.received, D)])
        places = [
            (chunk, frame, (shared, some), index)
            for (chunk, frame, _, index), some in zip(self.places, codes.parts, strict=True)
        ]
        return self._with(places, self.edges, np.abs(D).max(axis=1).sum(axis=0, dtype=np.float64))

    def folds(self, parts: int, seed: int, codes: Sharded) -> tuple[list[Shards], list[Sharded]]:
        """The rows dealt into folds, each shard's where it lies, and their codes."""
        sizes = np.diff(self.edges).tolist()
        hands = [
            task(dealt, size, parts, seed, first, parts=parts)
            for size, first in zip(sizes, self.edges[:-1].tolist(), strict=True)
        ]
        index = kept([fold for hand in hands for fold in hand])
        lengths = np.array([dealt_lengths(size, parts) for size in sizes])
        rows, given = [], []
        for f in range(parts):
            edges = np.concatenate([[0], np.cumsum(lengths[:, f])])
            places = [(*place[:3], own) for place, own in zip(self.places, index[f::parts], strict=True)]
            rows.append(self._with(places, edges))
            some = [task(tasks.fold_of, part, own) for part, own in zip(codes.parts, index[f::parts], strict=True)]
            given.append(Sharded(kept(some), edges))
        return rows, given

    def gathered(self, folds: Sequence[Shards], codes: Sequence[Sharded]) -> Sharded:
        """Codes of all rows from those of the folds."""
        parts = [
            task(tasks.undealt, [fold.places[p][3] for fold in folds], [some.parts[p] for some in codes])
            for p in range(len(self.places))
        ]
        return Sharded(kept(parts), self.edges)


def without_codes(model: Any) -> Any:
    """The estimator without the codes of its training rows, which need not travel."""
    bare = copy.copy(model)
    bare.__dict__.pop("codes_", None)
    return bare

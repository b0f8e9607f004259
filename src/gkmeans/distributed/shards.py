"""Rows of a Dask array as training sees them: shards that stay on the workers, with their codes.

A pass is a task a shard. It depends on the chunk, on the dictionaries of the pass and on the shard's codes of the
pass before: where a worker is lost, Dask runs again what made the codes that were there. Dictionaries go out inside
the one task that holds them, and workers pass them on to each other; or, where each of a few shards has a worker of
its own, inside the task of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dask
import numpy as np
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from .._frame import Frame
from .._parallel import Workers
from .._rows import Codes, Floats, Here, Job, Rows, completed
from .._sums import Doubles, dealt, grid_for
from ..passes import Passed
from ..survey import Survey
from ..update import Statistics
from . import tasks

Edges = NDArray[np.int64]
"""Places (shards + 1,) of the first row of each shard, and the number of rows."""

FEW, FAN, LAST = 4, 8, 2
"""Shards up to which dictionaries go out with each task; sums that one task adds; sums that are added here, since a
last task would take longer."""

DEALT = 4
"""Shards a thread up to which they are dealt out evenly."""


def task(function: Any, *arguments: Any, parts: int | None = None) -> Any:
    """A call of ``function`` to be made by a worker, of which ``parts`` results may be taken one by one."""
    return delayed(function, pure=False, nout=parts)(*arguments)


def kept(items: Sequence[Any]) -> list[Any]:
    """The same, being computed, with results that stay on the workers."""
    return list(dask.persist(*items, optimize_graph=False))


def under_way(items: Sequence[Any]) -> list[Any]:
    """The futures of items that a cluster is computing; none where there is no cluster, or they are yet to be sent."""
    found = [item.__dask_graph__()[item.key] for item in items]
    return found if all(hasattr(one, "client") for one in found) else []


def there(items: Sequence[Delayed]) -> list[Any]:
    """The same, once they are computed."""
    if futures := under_way(items):
        from distributed import wait  # a cluster has it

        with futures[0].client.as_current():  # which need not be the default one
            wait(futures)  # type: ignore[no-untyped-call]
    return futures


def fetched(items: Sequence[Any]) -> list[Any]:
    """The results, here; those that a cluster keeps are asked for as they are, without a task more."""
    if futures := under_way(items):
        return list(futures[0].client.gather(futures))
    return list(dask.compute(*items, optimize_graph=False))


def dealt_out(chunks: Sequence[Delayed]) -> tuple[list[Delayed], bool]:
    """The chunks dealt out evenly, and whether they lie apart.

    With up to ``DEALT`` a thread, those that a worker has beyond its threads' share move to others: there a whole chunk
    more is a good part of a pass. More than that are even enough as Dask puts them.

    They lie apart where there are few, each with a worker of its own: then dictionaries go out with each task. By way
    of one worker to the others they would take longer; but shards of one worker share them, and their tables.
    """
    futures = there(chunks)
    if not futures:
        return list(chunks), False
    client = futures[0].client
    threads = client.nthreads()  # none, where every worker is lost and Dask waits for another
    total = sum(threads.values())
    if len(futures) > DEALT * total:
        return list(chunks), False
    share = {worker: -(-len(futures) * own // total) for worker, own in threads.items()}
    holders = client.who_has(futures)
    homes = housed([holders[future.key] for future in futures], share)
    out = [
        chunk if home in holders[future.key] else moved(client, future, home)
        for chunk, future, home in zip(chunks, futures, homes, strict=True)
    ]
    return out, len(futures) <= FEW and len(set(homes)) == len(futures)


def housed(holders: Sequence[Sequence[str]], share: dict[str, int]) -> list[str]:
    """A worker for each chunk, none with more than its share: one that holds it, if any of those has room."""
    room, homes = dict(share), [""] * len(holders)
    for place in sorted(range(len(holders)), key=lambda place: len(holders[place])):  # those with least choice first
        own = [worker for worker in holders[place] if room.get(worker, 0) > 0]
        if own:
            homes[place] = max(own, key=room.__getitem__)
            room[homes[place]] -= 1
    for place, home in enumerate(homes):
        if not home:
            homes[place] = max(room, key=room.__getitem__)
            room[homes[place]] -= 1
    return homes


def moved(client: Any, future: Any, home: str) -> Delayed:
    """The chunk as a worker of another choice holds it; where that worker is lost, another will."""
    copy = client.submit(tasks.received, future, workers=[home], allow_other_workers=True, pure=False)
    return Delayed(copy.key, {copy.key: copy})


class Sharded:
    """Codes of which each shard's rows lie with the shard."""

    def __init__(self, parts: Sequence[Delayed], edges: Edges) -> None:
        self.parts, self.edges = list(parts), edges

    def __len__(self) -> int:
        return int(self.edges[-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found = np.concatenate(fetched(self.parts))
        return found if dtype is None else found.astype(dtype, copy=False)

    def __getitem__(self, index: NDArray[np.intp]) -> NDArray[Any]:
        return gathered(index, self.edges, lambda p, some: task(np.take, self.parts[p], some, 0))


def gathered(index: NDArray[np.intp], edges: Edges, take: Any) -> NDArray[Any]:
    """Rows that ``index`` (m,) names, in its order, from the shards that have them."""
    where = np.searchsorted(edges, index, side="right") - 1
    shards = np.unique(where)
    found = fetched([take(p, index[where == p] - edges[p]) for p in shards.tolist()])
    out = np.empty((len(index), *found[0].shape[1:]), found[0].dtype)
    for p, rows in zip(shards, found, strict=True):
        out[where == p] = rows
    return out


class Shards(Here):
    """Rows (n, P) in a frame, one shard for each chunk of a Dask array.

    ``places`` hold what a task needs to open a shard's rows: its chunk, the frame, the rows left out, and where they
    are residuals, D with codes. ``firsts`` are the places of the shards' first rows among ``total`` rows, of which
    ``edges`` count those that are not left out. ``largest`` (P,) bounds their entries.
    """

    def __init__(
        self, places: Sequence[Sequence[Any]], edges: Edges, frame: Frame, largest: Doubles, firsts: Edges, total: int
    ) -> None:
        self.places, self.edges, self.frame = list(places), edges, frame
        self.n_features = len(frame.shift)
        self._largest, self._firsts, self._total = largest, firsts, total
        self._left_out: NDArray[np.intp] | None = None
        self._before: list[Any] = []
        self._apart = False

    @classmethod
    def of(cls, chunks: Sequence[Delayed], edges: Edges, frame: Frame) -> Shards:
        """Shards of chunks already checked."""
        assert frame.largest is not None  # a survey finds it
        [shared] = kept([task(tasks.received, frame)])
        there([shared])  # Dask then knows how short such a task is, and leaves chunks where they are moved to
        placed, apart = dealt_out(chunks)
        places = [(chunk, shared, None, None) for chunk in placed]
        out = cls(places, edges, frame, frame.largest, edges[:-1], int(edges[-1]))
        out._apart = apart
        return out

    def _after(self, before: Shards) -> Shards:
        """These, made of those before: they go by the same way."""
        self._before, self._apart = before._before, before._apart
        return self

    def _with(self, places: Sequence[Sequence[Any]], edges: Edges, more: Doubles | float = 0.0) -> Shards:
        out = Shards(places, edges, self.frame, self._largest + more, self._firsts, self._total)
        out._left_out = self._left_out
        return out._after(self)

    def __len__(self) -> int:
        return int(self.edges[-1])

    def chunks(self) -> Iterator[tuple[slice, Rows]]:
        """The shards, here, one after the other."""
        for start, stop in zip(self.edges[:-1].tolist(), self.edges[1:].tolist(), strict=True):
            yield slice(start, stop), self.take(np.arange(start, stop))

    def take(self, index: NDArray[np.intp]) -> Rows:
        """The rows that ``index`` (m,) names, here."""
        found = gathered(index, self.edges, lambda p, some: task(tasks.taken, self.places[p], some))
        as_they_came = self.places[0][3] is None
        return Rows(found, self.frame if as_they_came else Frame(np.zeros(self.n_features, np.float32)))

    def block(self, rows: slice | NDArray[np.intp], columns: slice = slice(None), room: Floats | None = None) -> Floats:
        """Float32 rows, here."""
        index = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        return self.take(index).block(slice(None), columns, room)

    def grid(self, more: Doubles | float = 0.0) -> Doubles:
        """Grid (P,) on which the sums of all rows are exact."""
        return grid_for(self._largest + more, self._total)

    def folds(self, count: int, seed: int, first: int = 0) -> NDArray[np.uint8]:
        """The fold of each row that is not left out."""
        every = dealt(self._total, count, seed, first)
        return every if self._left_out is None else np.delete(every, self._left_out)

    def framed(self, frame: Frame) -> Shards:
        """The same rows in another frame."""
        [shared] = kept([task(tasks.received, frame)])
        places = [(place[0], shared, *place[2:]) for place in self.places]
        return Shards(places, self.edges, frame, self._largest, self._firsts, self._total)._after(self)

    def replaced(self, values: Any, frame: Frame) -> Shards:
        """Other rows in the place of these, as a pass over these has left them."""
        out = Shards.of(values.parts, self.edges, frame)
        out._before = self._before
        return out

    def passed(self, job: Job[Any], codes: Any, workers: Workers) -> Any:
        """What one pass over all rows gives; the codes stay where the shards lie, and the sums add in a tree."""
        sent: Any = job if self._apart else task(tasks.received, job)
        given = [None] * len(self.places) if codes is None else codes.parts
        found = [
            task(tasks.passed, place, sent, some, first, parts=2)
            for place, some, first in zip(self.places, given, self._firsts.tolist(), strict=True)
        ]
        sums = [one[1] for one in found]
        while len(sums) > LAST:
            sums = [task(tasks.summed, sums[first : first + FAN]) for first in range(0, len(sums), FAN)]
        held = kept([*(one[0] for one in found), *sums])
        # What the pass before has left is let go after this one is asked for: word of it would go first, and the
        # next word could follow only after 10 ms.
        self._before[:] = held, codes
        parts, last = held[: len(found)], held[len(found) :]
        error, folds = tasks.joined(fetched(last))
        chosen: Any = Sharded(parts, self.edges)  # it passes for an array
        return Passed(chosen, error, [Statistics(*fold) for fold in folds])

    def without(self, left_out: NDArray[np.intp]) -> Shards:
        """The rows but some."""
        local = self._cut(left_out, left_out - self._firsts[self._shard_of(left_out)])
        own = kept([task(tasks.received, some) for some in local])
        places = [(*place[:2], some, place[3]) for place, some in zip(self.places, own, strict=True)]
        sizes = np.diff(self.edges) - [len(some) for some in local]
        out = self._with(places, np.concatenate([[0], np.cumsum(sizes)]))
        out._left_out = left_out
        return out

    def _shard_of(self, index: NDArray[np.intp]) -> NDArray[np.intp]:
        return np.searchsorted(self._firsts, index, side="right") - 1

    def _cut(self, index: NDArray[np.intp], values: NDArray[Any]) -> list[NDArray[Any]]:
        """``values``, one for each row that the rising ``index`` names, shard by shard."""
        return np.split(values, np.searchsorted(index, self._firsts[1:]))

    def less(self, D: Floats, codes: Any) -> Shards:
        """The rows less their decoding."""
        [shared] = kept([task(tasks.received, D)])
        places = [(*place[:3], (shared, some)) for place, some in zip(self.places, codes.parts, strict=True)]
        return self._with(places, self.edges, np.abs(D).max(axis=1).sum(axis=0, dtype=np.float64))

    def beside(self, codes: Sequence[Any]) -> Any:
        """Codes side by side."""
        parts = zip(*(one.parts for one in codes), strict=True)
        return Sharded(kept([task(tasks.beside, list(some)) for some in parts]), self.edges)

    def completed(self, codes: Any, left_out: NDArray[np.intp], theirs: Codes) -> Any:
        """Codes of all rows."""
        local = self._cut(left_out, left_out - self._firsts[self._shard_of(left_out)])
        more = self._cut(left_out, theirs)
        parts = [task(completed, *three) for three in zip(codes.parts, local, more, strict=True)]
        return Sharded(kept(parts), self.edges)


def survey_of(chunks: Sequence[Delayed], shape: tuple[int, int], dtype: str) -> Survey:
    """A first look over all shards; different rows are not counted, and there is no digest."""
    total, energy = np.zeros(1), 0.0
    lows, highs = [], []
    for totals, energies, low, high in fetched([task(tasks.looked, chunk) for chunk in chunks]):
        for more, own in zip(totals, energies.tolist(), strict=True):  # in the order of a survey of one array
            total, energy = total + more, energy + own
        lows.append(low)
        highs.append(high)
    return Survey.of(shape, dtype, total, energy, np.min(lows, axis=0), np.max(highs, axis=0), shape[0], "")

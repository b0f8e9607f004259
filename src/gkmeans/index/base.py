"""What every index shares: vectors that come and go, rescoring, measuring, and the folder it lives in."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _files
from .._parallel import Lock, spans
from .._rows import Floats
from .._top import Top
from .._validation import check_codes, check_integer, check_n_jobs
from . import scan
from .disk import Disk
from .filters import kept
from .lookup import METRICS, Lists, Lookup
from .segment import MERGE_ROWS, Ids, Rows, Segment, State, live

NORMS = ("byte", "float")
LARGEST_ID = 2**63 - 1
MOST_MISSING = 1 << 20
"""The most neighbours that can be asked of an index with fewer vectors."""
Filter = ArrayLike | range | None
Found = tuple[Floats, Ids]
Self = TypeVar("Self", bound="Index")


@dataclass(frozen=True)
class Evaluation:
    """What ``evaluate`` measured."""

    recall: float
    """Share of the k true neighbours among the k found."""
    queries_per_second: float
    bytes_per_vector: float


class Index:
    """Codes of vectors by their ids."""

    kind: str

    def __init__(self, metric: str, norms: str, n_jobs: int | None) -> None:
        if metric not in METRICS:
            raise ValueError(f"metric={metric!r} is not known; use one of {', '.join(map(repr, METRICS))}")
        if norms not in NORMS:
            raise ValueError(f"norms={norms!r} is not known; use 'byte' or 'float'")
        self.metric, self.norms, self.n_jobs = metric, norms, check_n_jobs(n_jobs)
        self._state, self._disk = State(), cast("Disk | None", None)
        self._writing = Lock()

    @property
    def _lookup(self) -> Lookup:
        """What the scan needs; raises where it is not known yet."""
        raise NotImplementedError

    @property
    def _merge_rows(self) -> int:
        """A shorter last segment is written anew with what is added."""
        return MERGE_ROWS

    def _lists(self) -> _files.Arrays | None:
        """What is saved of lists."""
        return None

    def __len__(self) -> int:
        return sum(segment.alive for segment in self._state.segments)

    def __iter__(self) -> Iterator[int]:
        for segment in self._state.segments:
            yield from segment.live_ids().tolist()

    def __contains__(self, id: object) -> bool:
        if not isinstance(id, (int, np.integer)) or isinstance(id, bool) or not 0 <= id < LARGEST_ID:
            return False
        return bool(_places(self._state, np.array([id], np.int64))[1][0] >= 0)

    def _commit(self, state: State) -> None:
        """Make ``state`` what searches see, once it is on disk where the index is."""
        if self._disk is None:
            self._state = state
        else:
            self._state, serial = self._disk.commit(state)
            self._disk.serial = serial

    def add(self, X: ArrayLike, ids: ArrayLike | None = None) -> Ids:
        """Encode vectors and add them; an ``IVFIndex`` that is not trained is first trained on them.

        Parameters
        ----------
        X : (n, P) array
            Vectors; a memory-mapped array is read block by block.
        ids : (n,) integers, optional
            Their ids, from 0 to 2⁶³ − 2, none of them in the index; by default they go on from the greatest so far.

        Returns
        -------
        (n,) int64
            The ids.
        """
        own = self._check_ids(X, ids)
        if own is not None:
            self._check_new(own, self._state)  # before the work of encoding
        self._prepare(X)
        lookup = self._lookup
        return self._add(lookup, *lookup.encode(X), own)

    def _prepare(self, X: ArrayLike) -> None:
        """Learn from the first vectors added what is needed to encode them."""

    def _check_ids(self, X: ArrayLike, ids: ArrayLike | None) -> Ids | None:
        """Ids of rows that are to be added."""
        if ids is None:
            return None
        own, n = check_ids(ids), (*np.shape(X), 0)[0]
        if len(own) != n:
            raise ValueError(f"ids has {len(own)} entries but X has {n} rows; pass an id for each vector")
        return own

    def _add(self, lookup: Lookup, codes: ArrayLike, lists: Lists, ids: ArrayLike | None) -> Ids:
        """Add rows that are coded by ``lookup``, with their lists where there are any."""
        rows = check_codes(codes, lookup.C, lookup.K)
        own = self._check_ids(rows, ids)
        if not len(rows):
            raise ValueError("codes has 0 rows; pass at least one")
        with self._writing:
            if lookup is not self._lookup:
                raise ValueError("the index was trained anew while the vectors were encoded; call add again")
            state = self._state
            if own is None:
                own = _next_ids(state.next_id, len(rows))
            else:
                self._check_new(own, state)
            kept = len(state.segments)
            while kept and state.segments[kept - 1].alive < self._merge_rows:  # few rows: one segment with the new ones
                kept -= 1
            fresh = live(state.segments[kept:], lookup, Rows(own, rows, lists))
            segment = Segment.of(fresh.codes, fresh.ids, lookup, self.norms, fresh.lists)
            next_id = max(state.next_id, int(own.max()) + 1)
            self._commit(State((*state.segments[:kept], segment), next_id))
        return own

    def _check_new(self, ids: Ids, state: State) -> None:
        unique, counts = np.unique(ids, return_counts=True)
        if (counts > 1).any():
            raise ValueError(f"ids holds {unique[counts > 1][0]} more than once; pass each id once")
        there = _places(state, ids)[1] >= 0
        if there.any():
            raise ValueError(f"id {ids[there][0]} is in the index already; remove it first or pass another id")

    def remove(self, ids: ArrayLike) -> None:
        """Remove the vectors of these ids; where one of them is not there, nothing is removed and it is an error."""
        wanted = np.unique(check_ids(ids))
        with self._writing:
            state = self._state
            places, rows = self._found(wanted, state)
            segments = [
                segment.without(rows[places == s]) if (places == s).any() else segment
                for s, segment in enumerate(state.segments)
            ]
            left = tuple(segment for segment in segments if segment.alive)
            self._commit(State(left, state.next_id))

    def _found(self, ids: Ids, state: State) -> tuple[Ids, Ids]:
        places, rows = _places(state, ids)
        if (rows < 0).any():
            raise ValueError(f"id {ids[rows < 0][0]} is not in the index; pass ids that add gave")
        return places, rows

    def _ranked(
        self,
        Q: ArrayLike,
        k: int,
        filter: Filter,
        rescore: ArrayLike | None,
        oversample: int,
        best: Callable[[list[Segment], NDArray[np.generic], int], Found],
    ) -> tuple[NDArray[np.floating], Ids]:
        """The k nearest by ``best``, which gives scores and ids, ranked anew by the original vectors where given."""
        k, oversample = self._check_k(k), check_integer("oversample", oversample, 1)
        queries = self._lookup.queries(Q)
        segments = self._kept(filter, len(queries))
        if rescore is None:
            scores, ids = best(segments, queries, k)
            return self._lookup.distances(scores), ids
        originals = scan.Originals(rescore, queries.shape[1])
        pool = min(k * oversample, max(k, sum(segment.alive for segment in segments)))
        ids = best(segments, queries, pool)[1]
        exact = scan.exact(self.metric, queries, ids, originals)
        order = np.lexsort((ids, exact), axis=-1)[:, :k]
        exact = np.take_along_axis(exact, order, axis=1)
        return exact if self.metric == "l2" else -exact, np.take_along_axis(ids, order, axis=1)

    def _check_k(self, k: int) -> int:
        """A count of neighbours; far more than there are would only take memory."""
        return check_integer("k", k, 1, max(len(self), MOST_MISSING))

    def _kept(self, filter: Filter, queries: int) -> list[Segment]:
        return kept(self._state.segments, filter, queries)

    def _limit(self, radius: float) -> float:
        """The greatest score within a radius."""
        if (
            isinstance(radius, bool)
            or not isinstance(radius, (int, float, np.integer, np.floating))
            or np.isnan(radius)
        ):
            raise ValueError(f"radius={radius!r} is not a number; pass the greatest distance wanted")
        return self._lookup.limit(float(radius))

    def reconstruct(self, ids: ArrayLike) -> Floats:
        """Vectors (m, P) float32 that the codes of ``ids`` stand for; for cosine, of the unit vectors."""
        state, wanted, lookup = self._state, check_ids(ids), self._lookup
        places, rows = self._found(wanted, state)
        codes, lists = np.empty((len(wanted), lookup.C), np.uint16), np.zeros(len(wanted), np.int64)
        for s in np.unique(places):
            here, segment = places == s, state.segments[s]
            codes[here] = segment.codes(rows[here], lookup)
            lists[here] = segment.lists(rows[here]) if lookup.n_lists else 0
        return lookup.decode(codes, lists)

    def compact(self) -> None:
        """Drop what was removed and join all segments into one."""
        with self._writing:
            state = self._state
            if not state.segments:
                return self._commit(state)
            ids, codes, lists = live(state.segments, self._lookup)
            self._commit(State((Segment.of(codes, ids, self._lookup, self.norms, lists),), state.next_id))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index to a new folder; ``gkmeans.open_index`` opens it. The index itself stays where it is.

        The folder holds the model, immutable segments and a manifest, which is written last.
        """
        description: dict[str, Any] = {"kind": self.kind, "metric": self.metric, "norms": self.norms}
        Disk.create(Path(folder), self._lookup.est, description, self._state, self._lists())

    def close(self) -> None:
        """Let another writer have the folder; an index in memory has nothing to close."""
        if self._disk is not None:
            with self._writing:
                self._disk.release()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _evaluated(
        self,
        Q: ArrayLike,
        k: int,
        truth: ArrayLike | None,
        vectors: ArrayLike | None,
        search: Callable[[NDArray[np.generic]], Ids],
    ) -> Evaluation:
        """Recall, speed and size of ``search``, which gives the ids of k neighbours."""
        if not len(self):
            raise ValueError("the index holds 0 vectors, so nothing can be found; add some and call evaluate again")
        k = check_integer("k", k, 1, len(self))
        queries = self._lookup.queries(Q)
        if truth is None:
            if vectors is None:
                raise ValueError("the index keeps codes, not vectors; pass truth, or vectors to find it from")
            queries = queries[:: -(-len(queries) // 200)]
            truth = self._neighbours(queries, k, vectors)
        true = np.asarray(truth)
        if true.ndim != 2 or true.dtype.kind not in "iu" or len(true) != len(queries) or true.shape[1] < k:
            raise ValueError(f"truth has shape {true.shape}; pass ids (q, at least {k}), a row for each query")
        start = time.perf_counter()
        found = search(queries)
        seconds = time.perf_counter() - start
        wanted = true[:, :k]
        hits = sum(np.isin(row, own[own >= 0]).sum() for row, own in zip(found, wanted, strict=True))
        recall = float(hits / max(1, np.count_nonzero(wanted >= 0)))
        return Evaluation(recall, len(queries) / seconds, self._bytes() / len(self))

    def _neighbours(self, Q: NDArray[np.generic], k: int, vectors: ArrayLike) -> Ids:
        """Ids of the exact neighbours."""
        ids = np.sort(np.concatenate([segment.live_ids() for segment in self._state.segments]))
        top, originals = Top(len(Q), k), scan.Originals(vectors, Q.shape[1])
        for start, stop in spans(len(ids), 1 << 14):
            top.add(slice(None), scan.exact_to_all(self.metric, Q, ids[start:stop], originals), start)
        return ids[top.rows]

    def _bytes(self) -> int:
        arrays = [(s.blocks, s.ids, s.norms, s.offsets) for s in self._state.segments]
        return sum(array.nbytes for parts in arrays for array in parts)


def _places(state: State, ids: Ids) -> tuple[Ids, Ids]:
    """Segment and row of each id; row -1 where it is not there."""
    places, rows = np.zeros(len(ids), np.int64), np.full(len(ids), -1, np.int64)
    for s, segment in enumerate(state.segments):
        found = segment.find(ids)
        there = found >= 0
        places[there], rows[there] = s, found[there]
    return places, rows


def _next_ids(first: int, count: int) -> Ids:
    if first + count > LARGEST_ID:
        raise ValueError(f"{count} ids from {first} on would pass 2**63 - 2; pass ids of your own")
    return np.arange(first, first + count, dtype=np.int64)


def check_ids(ids: ArrayLike) -> Ids:
    """Ids (n,) from 0 to 2⁶³ − 2."""
    out = np.asarray(ids)
    if out.ndim != 1 or out.dtype.kind not in "iu":
        if out.size:
            raise ValueError(f"ids has dtype {out.dtype} and shape {out.shape}; pass integers of shape (n,)")
        out = out.reshape(-1).astype(np.int64)
    if out.size and (int(out.min()) < 0 or int(out.max()) >= LARGEST_ID):
        wrong = int(out.min()) if int(out.min()) < 0 else int(out.max())
        raise ValueError(f"ids holds {wrong}; use ids from 0 to 2**63 - 2 (-1 marks what is missing)")
    return out.astype(np.int64)

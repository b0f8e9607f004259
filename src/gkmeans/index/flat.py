"""The index that scans every code: exact by its float tables, in memory or in a folder (disk.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._parallel import Lock, spans
from .._rows import Codes, Floats
from .._top import Top
from .._validation import check_codes, check_integer, check_n_jobs
from ..estimators.base import AdditiveQuantizer
from . import scan
from .disk import Disk
from .filters import kept
from .lookup import Lookup
from .segment import MERGE_ROWS, NO_IDS, Ids, Segment, State

NORMS = ("byte", "float")
LARGEST_ID = 2**63 - 1


@dataclass(frozen=True)
class Evaluation:
    """What ``evaluate`` measured."""

    recall: float
    """Share of the k true neighbours among the k found."""
    queries_per_second: float
    bytes_per_vector: float


class FlatIndex:
    """Exhaustive search over compressed vectors by lookup tables.

    Parameters
    ----------
    est : fitted estimator
        ``GroupKMeans``, ``CartesianKMeans`` or ``OptimizedCartesianKMeans``.
    metric : {"l2", "ip", "cosine"}, default="l2"
        Squared Euclidean distance (small is near), inner product, or cosine (large is near). For cosine, vectors are
        divided by their lengths before they are encoded, so fit the estimator on unit vectors.
    norms : {"byte", "float"}, default="byte"
        How "l2" keeps ‖x̂‖²: as one of 256 even levels from the least to the greatest of a segment, so that a distance
        is off by at most a 510th of that range; or in float, for 4 more bytes a vector.
    n_jobs : int or None, default=None
        Threads of a search; None and -1 mean all cores. The answers are the same for every number.

    Examples
    --------
    >>> import gkmeans as gk
    >>> sample = gk.datasets.load_sample()
    >>> est = gk.GroupKMeans(4, 16, max_iter=3, init_iter=3, random_state=0).fit(sample.learn[:2000])
    >>> index = gk.FlatIndex(est)
    >>> ids = index.add(sample.base[:1000])
    >>> distances, found = index.search(sample.query[:5], k=3)
    >>> found.shape, len(index)
    ((5, 3), 1000)
    >>> index.remove(found[0])
    >>> bool(set(found[0].tolist()) & set(index))
    False
    """

    def __init__(
        self, est: AdditiveQuantizer, metric: str = "l2", *, norms: str = "byte", n_jobs: int | None = None
    ) -> None:
        if norms not in NORMS:
            raise ValueError(f"norms={norms!r} is not known; use 'byte' or 'float'")
        self._lookup = Lookup(est, metric)
        self.est, self.metric, self.norms, self.n_jobs = est, metric, norms, check_n_jobs(n_jobs)
        self._state, self._disk = State(), cast("Disk | None", None)
        self._writing = Lock()

    def __len__(self) -> int:
        return sum(segment.alive for segment in self._state.segments)

    def __iter__(self) -> Iterator[int]:
        for segment in self._state.segments:
            yield from segment.live_ids().tolist()

    def __contains__(self, id: object) -> bool:
        one = np.array([id])
        return one.dtype.kind in "iu" and _places(self._state, one.astype(np.int64))[1][0] >= 0

    def _commit(self, state: State) -> None:
        """Make ``state`` what searches see, once it is on disk where the index is."""
        self._state = state if self._disk is None else self._disk.commit(state)

    def add(self, X: ArrayLike, ids: ArrayLike | None = None) -> Ids:
        """Encode vectors and add them.

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
        if ids is not None:
            self._check_new(check_ids(ids), self._state)  # before the work of encoding
        return self.add_codes(np.concatenate(list(self._lookup.encode(X))), ids)

    def add_codes(self, codes: ArrayLike, ids: ArrayLike | None = None) -> Ids:
        """Add vectors that ``est.encode`` has compressed; otherwise as ``add``, whose ids it gives.

        For "cosine" the codes are those of unit vectors.
        """
        rows = check_codes(codes, self._lookup.C, self._lookup.K)
        own = None if ids is None else check_ids(ids)
        if own is not None and len(own) != len(rows):
            raise ValueError(f"ids has {len(own)} entries but X has {len(rows)} rows; pass an id for each vector")
        if not len(rows):
            raise ValueError("codes has 0 rows; pass at least one")
        with self._writing:
            state = self._state
            if own is None:
                own = np.arange(state.next_id, state.next_id + len(rows))
            else:
                self._check_new(own, state)
            segments, names = list(state.segments), own
            while segments and segments[-1].alive < MERGE_ROWS:  # few rows: one segment with the new ones
                last = segments.pop()
                rows = np.concatenate([last.live_codes(self._lookup), rows])
                names = np.concatenate([last.live_ids(), names])
            segments.append(Segment.of(rows, names, self._lookup, self.norms))
            self._commit(State(tuple(segments), max(state.next_id, int(own.max()) + 1)))
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

    def search(
        self,
        Q: ArrayLike,
        k: int = 10,
        filter: ArrayLike | range | None = None,
        rescore: ArrayLike | None = None,
        oversample: int = 4,
    ) -> tuple[NDArray[np.floating], Ids]:
        """Find the nearest vectors.

        Parameters
        ----------
        Q : (q, P) array
            Queries.
        k : int, default=10
            Neighbours of each.
        filter : boolean mask, ids, or range, optional
            Search these alone: a mask over the vectors in the order of iteration, an integer array of ids (unknown ones
            are passed over), or a range of ids.
        rescore : (n, P) array, optional
            The original vectors, row i that of id i, in memory or memory-mapped: the best ``oversample * k`` by the
            codes are ranked by their exact distances.
        oversample : int, default=4
            See ``rescore``.

        Returns
        -------
        distances : (q, k) float32, or float64 with ``rescore``
            Nearest first, ties by id; squared distances, or similarities for "ip" and "cosine".
        ids : (q, k) int64
            -1 where there are fewer than k, with an infinite distance.
        """
        k = check_integer("k", k, 1, 2**31 - 1)
        oversample = check_integer("oversample", oversample, 1)
        queries = self._lookup.queries(Q)
        segments = kept(self._state.segments, filter)
        if rescore is None:
            scores, ids = scan.search(self._lookup, segments, queries, k, self.n_jobs)
            return self._lookup.distances(scores), ids
        pool = min(k * oversample, max(k, sum(segment.alive for segment in segments)))
        ids = scan.search(self._lookup, segments, queries, pool, self.n_jobs)[1]
        exact = scan.exact(self.metric, queries, ids, rescore)
        order = np.lexsort((ids, exact), axis=-1)[:, :k]
        exact = np.take_along_axis(exact, order, axis=1)
        return exact if self.metric == "l2" else -exact, np.take_along_axis(ids, order, axis=1)

    def search_radius(
        self, Q: ArrayLike, radius: float, filter: ArrayLike | range | None = None
    ) -> list[tuple[Floats, Ids]]:
        """Find all vectors within a radius.

        Parameters
        ----------
        Q : (q, P) array
            Queries.
        radius : float
            The greatest squared distance, or for "ip" and "cosine" the least similarity.
        filter : boolean mask, ids, or range, optional
            As in ``search``.

        Returns
        -------
        list of (distances, ids), one for each query
            Nearest first, ties by id.
        """
        if isinstance(radius, bool) or not isinstance(radius, (int, float, np.number)) or np.isnan(radius):
            raise ValueError(f"radius={radius!r} is not a number; pass the greatest distance wanted")
        queries = self._lookup.queries(Q)
        segments = kept(self._state.segments, filter)
        results = scan.within(self._lookup, segments, queries, self._lookup.limit(float(radius)), self.n_jobs)
        return [(self._lookup.distances(scores), ids) for scores, ids in results]

    def reconstruct(self, ids: ArrayLike) -> Floats:
        """Vectors (m, P) float32 that the codes of ``ids`` stand for; for cosine, of the unit vectors."""
        state, wanted = self._state, check_ids(ids)
        places, rows = self._found(wanted, state)
        codes = np.empty((len(wanted), self._lookup.C), np.uint16)
        for s in np.unique(places):
            codes[places == s] = state.segments[s].codes(rows[places == s], self._lookup)
        return self.est.decode(codes)

    def codes(self) -> tuple[Ids, Codes]:
        """Ids (n,) and codes (n, C) of all vectors, in the order of iteration."""
        return _all(self._state, self._lookup)

    def compact(self) -> None:
        """Drop what was removed and join all segments into one."""
        with self._writing:
            state = self._state
            if not state.segments:
                return self._commit(state)
            ids, codes = _all(state, self._lookup)
            self._commit(State((Segment.of(codes, ids, self._lookup, self.norms),), state.next_id))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index to a new folder; ``gkmeans.open_index`` opens it. The index itself stays where it is.

        The folder holds the model, immutable segments and a manifest, which is written last.
        """
        description = {"kind": "flat", "metric": self.metric, "norms": self.norms}
        Disk.create(Path(folder), self.est, description, self._state)

    def close(self) -> None:
        """Let another writer have the folder; an index in memory has nothing to close."""
        if self._disk is not None:
            self._disk.release()

    def __enter__(self) -> FlatIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def evaluate(
        self,
        Q: ArrayLike,
        k: int = 10,
        truth: ArrayLike | None = None,
        *,
        vectors: ArrayLike | None = None,
        rescore: ArrayLike | None = None,
        oversample: int = 4,
    ) -> Evaluation:
        """Measure recall, speed and size.

        Parameters
        ----------
        Q : (q, P) array
            Queries; without ``truth`` at most 200 of them, evenly spaced, are used.
        k : int, default=10
            Neighbours asked for.
        truth : (q, at least k) integers, optional
            Ids of the true neighbours, nearest first.
        vectors : (n, P) array, optional
            The original vectors, row i that of id i, in memory or memory-mapped: the true neighbours are found here.
            The index keeps codes alone, so without ``truth`` it needs these, or those of ``rescore``.
        rescore, oversample : optional
            As in ``search``, whose rescored answers are then measured.

        Returns
        -------
        Evaluation
            ``recall`` (share of the k true neighbours among the k found), ``queries_per_second`` and
            ``bytes_per_vector``.
        """
        k = check_integer("k", k, 1, max(1, len(self)))
        queries = self._lookup.queries(Q)
        if truth is None:
            vectors = rescore if vectors is None else vectors
            if vectors is None:
                raise ValueError("the index keeps codes, not vectors; pass truth, or vectors to find it from")
            queries = queries[:: -(-len(queries) // 200)]
            truth = self._neighbours(queries, k, vectors)
        true = np.asarray(truth)
        if true.ndim != 2 or true.dtype.kind not in "iu" or len(true) != len(queries) or true.shape[1] < k:
            raise ValueError(f"truth has shape {true.shape}; pass ids (q, at least {k}), a row for each query")
        start = time.perf_counter()
        found = self.search(queries, k, rescore=rescore, oversample=oversample)[1]
        seconds = time.perf_counter() - start
        hits = (found[:, :, None] == true[:, None, :k]).any(axis=2).mean()
        return Evaluation(float(hits), len(queries) / seconds, self._bytes() / max(1, len(self)))

    def _neighbours(self, Q: NDArray[np.generic], k: int, vectors: ArrayLike) -> Ids:
        """Ids of the exact neighbours."""
        ids = np.sort(np.concatenate([segment.live_ids() for segment in self._state.segments]))
        top = Top(len(Q), k)
        for start, stop in spans(len(ids), 1 << 14):
            top.add(slice(None), scan.exact_to_all(self.metric, Q, ids[start:stop], vectors), start)
        return ids[top.rows]

    def _bytes(self) -> int:
        return sum(s.blocks.nbytes + s.ids.nbytes + s.norms.nbytes for s in self._state.segments)


def _places(state: State, ids: Ids) -> tuple[Ids, Ids]:
    """Segment and row of each id; row -1 where it is not there."""
    places, rows = np.zeros(len(ids), np.int64), np.full(len(ids), -1, np.int64)
    for s, segment in enumerate(state.segments):
        found = segment.find(ids)
        there = found >= 0
        places[there], rows[there] = s, found[there]
    return places, rows


def _all(state: State, lookup: Lookup) -> tuple[Ids, Codes]:
    """Ids and codes of all rows that are there."""
    ids = [NO_IDS, *(segment.live_ids() for segment in state.segments)]
    none: Codes = np.empty((0, lookup.C), np.uint8 if lookup.K <= 256 else np.uint16)
    return np.concatenate(ids), np.concatenate([none, *(segment.live_codes(lookup) for segment in state.segments)])


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

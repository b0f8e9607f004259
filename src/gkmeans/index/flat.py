"""The index that scans every code: exact by its float tables, in memory or in a folder (disk.py)."""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._rows import Codes, Floats
from ..estimators.base import AdditiveQuantizer
from . import scan
from .base import Evaluation, Filter, Found, Index
from .lookup import NO_LISTS, Lookup
from .segment import Ids, Segment, live


class FlatIndex(Index):
    """Exhaustive search over compressed vectors by lookup tables.

    Parameters
    ----------
    est : fitted estimator
        ``GroupKMeans``, ``CartesianKMeans`` or ``OptimizedCartesianKMeans``.
    metric : {"l2", "ip", "cosine"}, default="l2"
        Squared Euclidean distance (small is near), inner product, or cosine (large is near). For cosine, vectors are
        divided by their lengths before they are encoded, so fit the estimator on unit vectors.
    norms : {"byte", "float"}, default="byte"
        How "l2" keeps ‖x̂‖²: as one of 256 levels from the least to the greatest of a segment, so that a distance is
        off by at most a 255th of that range; or in float, for 4 more bytes a vector.
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

    kind = "flat"

    def __init__(
        self, est: AdditiveQuantizer, metric: str = "l2", *, norms: str = "byte", n_jobs: int | None = None
    ) -> None:
        super().__init__(metric, norms, n_jobs)
        self._fixed = Lookup(est, metric)

    @property
    def est(self) -> AdditiveQuantizer:
        """The estimator as it was given, a copy that can be fitted anew."""
        return copy.copy(self._fixed.est)

    @property
    def _lookup(self) -> Lookup:
        return self._fixed

    def add_codes(self, codes: ArrayLike, ids: ArrayLike | None = None) -> Ids:
        """Add vectors that ``est.encode`` has compressed; otherwise as ``add``, whose ids it gives.

        For "cosine" the codes are those of unit vectors.
        """
        return self._add(self._lookup, codes, NO_LISTS, ids)

    def search(
        self,
        Q: ArrayLike,
        k: int = 10,
        filter: Filter = None,
        rescore: ArrayLike | None = None,
        oversample: int = 4,
    ) -> tuple[NDArray[np.floating], Ids]:
        """Find the nearest vectors.

        Parameters
        ----------
        Q : (q, P) array
            Queries.
        k : int, default=10
            Neighbours of each, at most as many as there are vectors, or 2²⁰.
        filter : boolean mask, ids, or range, optional
            Search these alone: a mask over the vectors in the order of iteration, an integer array of ids (unknown ones
            are passed over), or a range of ids.
        rescore : (n, P) array, or pair of (m, P) array and (m,) ids, optional
            The original vectors, row i that of id i, or with the ids of their rows, in memory or memory-mapped: the
            best ``oversample * k`` by the codes are ranked by their exact distances.
        oversample : int, default=4
            See ``rescore``.

        Returns
        -------
        distances : (q, k) float32, or float64 with ``rescore``
            Nearest first, ties by id; squared distances, or similarities for "ip" and "cosine".
        ids : (q, k) int64
            -1 where there are fewer than k, with an infinite distance.
        """

        def best(segments: list[Segment], queries: NDArray[np.generic], count: int) -> Found:
            return scan.search(self._lookup, segments, queries, count, self.n_jobs)

        return self._ranked(Q, k, filter, rescore, oversample, best)

    def search_radius(self, Q: ArrayLike, radius: float, filter: Filter = None) -> list[tuple[Floats, Ids]]:
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
        limit, queries = self._limit(radius), self._lookup.queries(Q)
        results = scan.within(self._lookup, self._kept(filter, len(queries)), queries, limit, self.n_jobs)
        return [(self._lookup.distances(scores), ids) for scores, ids in results]

    def codes(self) -> tuple[Ids, Codes]:
        """Ids (n,) and codes (n, C) of all vectors, in the order of iteration."""
        return live(self._state.segments, self._lookup)[:2]

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
            Ids of the true neighbours, nearest first; -1 where there are fewer.
        vectors : (n, P) array, or pair of (m, P) array and (m,) ids, optional
            The original vectors, as ``rescore`` of ``search``: the true neighbours are found here.
            The index keeps codes alone, so without ``truth`` it needs these, or those of ``rescore``.
        rescore, oversample : optional
            As in ``search``, whose rescored answers are then measured.

        Returns
        -------
        Evaluation
            ``recall`` (share of the k true neighbours among the k found), ``queries_per_second`` and
            ``bytes_per_vector``.
        """
        vectors = rescore if vectors is None else vectors
        return self._evaluated(
            Q, k, truth, vectors, lambda queries: self.search(queries, k, rescore=rescore, oversample=oversample)[1]
        )

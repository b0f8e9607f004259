"""The inverted file: vectors in lists around centres, of which a query probes the nearest."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from .. import _files
from .._frame import Frame
from .._parallel import Lock, Workers
from .._rows import Codes, Floats
from .._validation import check_integer, check_X
from ..dictionaries import drawn
from ..estimators.base import AdditiveQuantizer, generator
from . import probes
from .base import Evaluation, Filter, Found, Index
from .coarse import Coarse
from .lists import ListLookup, residuals
from .lookup import Lists, units
from .partition import ROWS_PER_LIST, partition
from .segment import MERGE_ROWS, Ids, Segment, live

TRAINING_ROWS = 1 << 17
"""The most residuals that the estimator is fitted on."""
_ROWS_OF_OFFSETS = 8
"""Rows for each list that a segment holds at least, before another is begun."""


class IVFIndex(Index):
    """Search over compressed vectors in lists: a query looks into the lists whose centres are nearest.

    Parameters
    ----------
    est : estimator
        ``GroupKMeans``, ``CartesianKMeans`` or ``OptimizedCartesianKMeans``, fitted or not: ``train`` fits a copy of it
        on the residuals of vectors to the centres of their lists, which is ``est`` from then on.
    n_lists : int, default=1024
        Lists; about the square root of the number of vectors, times 1 to 8.
    metric : {"l2", "ip", "cosine"}, default="l2"
        Squared Euclidean distance (small is near), inner product, or cosine (large is near), as in ``FlatIndex``.
    norms : {"byte", "float"}, default="byte"
        How "l2" keeps ‖r̂‖² + 2⟨c, r̂⟩ of a residual r̂ in the list of centre c: as one of 256 levels from the least to
        the greatest of a segment, so that a distance is off by at most a 255th of that range; or in float, for 4
        more bytes a vector. A segment where half of that is more than a 32nd of the median ‖r̂‖², as with narrow lists
        that are far apart, keeps floats in either case.
    random_state : int, Generator, RandomState or None, default=None
        Same seed, same lists.
    n_jobs : int or None, default=None
        Threads; None and -1 mean all cores. The answers are the same for every number.

    Attributes
    ----------
    centres_ : (n_lists, P) float32
        Centres of the lists, once trained.

    Examples
    --------
    >>> import gkmeans as gk
    >>> sample = gk.datasets.load_sample()
    >>> index = gk.IVFIndex(gk.GroupKMeans(4, 16, max_iter=3, init_iter=3, random_state=0), n_lists=16, random_state=0)
    >>> index = index.train(sample.learn[:2000])
    >>> ids = index.add(sample.base[:1000])
    >>> distances, found = index.search(sample.query[:5], k=3, n_probe=4)
    >>> found.shape, len(index)
    ((5, 3), 1000)
    """

    kind = "ivf"

    def __init__(
        self,
        est: AdditiveQuantizer,
        n_lists: int = 1024,
        metric: str = "l2",
        *,
        norms: str = "byte",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(metric, norms, n_jobs)
        if not isinstance(est, AdditiveQuantizer):
            raise TypeError(f"est is a {type(est).__name__}; pass a GroupKMeans or another estimator of gkmeans")
        self.n_lists, self.random_state = check_integer("n_lists", n_lists, 1, 2**31 - 1), random_state
        self._untrained = copy.copy(est)
        self._trained: ListLookup | None = None
        self._training = Lock()

    @classmethod
    def _of(
        cls, est: AdditiveQuantizer, centres: Floats, firsts: Lists, metric: str, norms: str, n_jobs: int | None
    ) -> IVFIndex:
        """An index that is trained: ``est`` of residuals, its ``shift_`` zero, and the centres in groups."""
        index = cls(est, len(centres), metric, norms=norms, n_jobs=n_jobs)
        index._trained = ListLookup(est, metric, centres, firsts, n_jobs)
        return index

    @property
    def est(self) -> AdditiveQuantizer:
        """The estimator of residuals, a copy that can be fitted anew; before training, the one to be fitted."""
        return copy.copy(self._untrained if self._trained is None else self._trained.est)

    @property
    def is_trained(self) -> bool:
        """Whether the index has its lists and an estimator of residuals."""
        return self._trained is not None

    @property
    def centres_(self) -> Floats:
        """Centres of the lists, (n_lists, P) float32."""
        return self._lookup.coarse.centres

    @property
    def _lookup(self) -> ListLookup:
        if self._trained is None:
            raise ValueError("the index is not trained; call train(X) with vectors like those to come, or add(X)")
        return self._trained

    @property
    def _merge_rows(self) -> int:
        return max(MERGE_ROWS, _ROWS_OF_OFFSETS * self.n_lists)

    def _lists(self) -> _files.Arrays:
        coarse = self._lookup.coarse
        return {"centres": coarse.centres, "firsts": coarse.firsts}

    def train(self, X: ArrayLike) -> IVFIndex:
        """Make the lists and fit a copy of the estimator on residuals.

        The centres come from a k-means of at most 64 rows a list that balances its lists; the estimator is fitted on at
        most 131,072 rows. Both are drawn at random, and held in memory as float32.

        Parameters
        ----------
        X : (n, P) array
            Vectors like those to be added, at least ``n_lists``.

        Returns
        -------
        IVFIndex
            The index itself.
        """
        with self._training:
            self._train(X)
        return self

    def _check_empty(self) -> None:
        if len(self) or self._disk is not None:
            raise ValueError(
                f"the index holds {len(self)} vectors in lists that it was trained for; use a new index to train"
            )

    def _train(self, X: ArrayLike) -> None:
        """Train, in the one thread that holds ``_training``."""
        self._check_empty()
        est: AdditiveQuantizer = clone(self.est)
        rng = generator(self.random_state)
        data = check_X(est, X, reset=True)
        if len(data) < self.n_lists:
            raise ValueError(f"X has {len(data)} rows for n_lists={self.n_lists}; pass more, or use fewer lists")
        count = min(len(data), max(ROWS_PER_LIST * self.n_lists, TRAINING_ROWS))
        rows = data[drawn(len(data), count, rng)]
        sample = units(rows, "X") if self.metric == "cosine" else np.ascontiguousarray(rows, np.float32)
        with Workers(self.n_jobs) as workers:
            scale = np.float32(Frame.of(sample, workers).scale)
            part = sample[: ROWS_PER_LIST * self.n_lists] * scale
            centres, firsts = partition(part, self.n_lists, rng, workers)
        centres, some = centres / scale, sample[:TRAINING_ROWS]
        lists = Coarse(centres, firsts, "l2", float(scale)).assign(some, self.n_jobs)
        est.fit(residuals(some, centres, lists))
        # the mean of the residuals belongs to the centres
        centres = (centres.astype(np.float64) + est.shift_).astype(np.float32)
        est.dictionaries_[0] -= est.shift_
        est.shift_ = np.zeros_like(est.shift_)
        with self._writing:
            self._check_empty()  # what was added meanwhile has the codes of an earlier training
            self._trained = ListLookup(est, self.metric, centres, firsts, self.n_jobs)

    def _prepare(self, X: ArrayLike) -> None:
        with self._training:  # of several threads that add first, one trains
            if not self.is_trained:
                self._train(X)

    def add_codes(self, codes: ArrayLike, lists: ArrayLike, ids: ArrayLike | None = None) -> Ids:
        """Add vectors by the codes (n, C) of their residuals and their lists (n,); otherwise as ``add``."""
        where = np.asarray(lists)
        if where.ndim != 1 or where.dtype.kind not in "iu" or len(where) != len(np.asarray(codes)):
            raise ValueError(f"lists has dtype {where.dtype} and shape {where.shape}; pass one for each row of codes")
        if where.size and not 0 <= int(where.min()) <= int(where.max()) < self.n_lists:
            raise ValueError(f"lists holds {where.min()} to {where.max()}; use lists from 0 to {self.n_lists - 1}")
        return self._add(self._lookup, codes, where.astype(np.int64), ids)

    def search(
        self,
        Q: ArrayLike,
        k: int = 10,
        filter: Filter = None,
        rescore: ArrayLike | None = None,
        oversample: int = 4,
        n_probe: int = 16,
    ) -> tuple[NDArray[np.floating], Ids]:
        """Find the nearest vectors in the nearest lists.

        Parameters
        ----------
        Q : (q, P) array
            Queries.
        k : int, default=10
            Neighbours of each.
        filter : boolean mask, ids, or range, optional
            As in ``FlatIndex.search``.
        rescore : (n, P) array, or pair of (m, P) array and (m,) ids, optional
            The original vectors, as in ``FlatIndex.search``.
        oversample : int, default=4
            See ``rescore``.
        n_probe : int, default=16
            Lists that a query looks into; as many as there are, or more, are an exhaustive search.

        Returns
        -------
        distances : (q, k) float32, or float64 with ``rescore``
            Nearest first, ties by id; squared distances, or similarities for "ip" and "cosine".
        ids : (q, k) int64
            -1 where the lists hold fewer than k, with an infinite distance.
        """
        asked = self._probes(n_probe)

        def best(segments: list[Segment], queries: NDArray[np.generic], count: int) -> Found:
            return probes.search(self._lookup, segments, queries, count, asked, self.n_jobs)

        return self._ranked(Q, k, filter, rescore, oversample, best)

    def _probes(self, n_probe: int) -> int:
        return min(check_integer("n_probe", n_probe, 1), self.n_lists)

    def search_radius(
        self, Q: ArrayLike, radius: float, filter: Filter = None, n_probe: int = 16
    ) -> list[tuple[Floats, Ids]]:
        """Find all vectors within a radius in the nearest lists.

        Parameters
        ----------
        Q : (q, P) array
            Queries.
        radius : float
            The greatest squared distance, or for "ip" and "cosine" the least similarity.
        filter : boolean mask, ids, or range, optional
            As in ``search``.
        n_probe : int, default=16
            Lists that a query looks into.

        Returns
        -------
        list of (distances, ids), one for each query
            Nearest first, ties by id.
        """
        limit, asked, lookup = self._limit(radius), self._probes(n_probe), self._lookup
        queries = lookup.queries(Q)
        results = probes.within(lookup, self._kept(filter, len(queries)), queries, limit, asked, self.n_jobs)
        return [(lookup.distances(scores), ids) for scores, ids in results]

    def codes(self) -> tuple[Ids, Codes, Lists]:
        """Ids (n,), codes of residuals (n, C) and lists (n,) of all vectors, in the order of iteration."""
        ids, codes, lists = live(self._state.segments, self._lookup)
        return ids, codes, lists

    def list_sizes(self) -> NDArray[np.int64]:
        """Vectors in each list, (n_lists,)."""
        sizes = np.zeros(self._lookup.n_lists, np.int64)
        for segment in self._state.segments:
            sizes += np.bincount(segment.lists(segment.live_rows()), minlength=self.n_lists)
        return sizes

    def evaluate(
        self,
        Q: ArrayLike,
        k: int = 10,
        truth: ArrayLike | None = None,
        *,
        n_probe: int = 16,
        vectors: ArrayLike | None = None,
        rescore: ArrayLike | None = None,
        oversample: int = 4,
    ) -> Evaluation:
        """Measure recall, speed and size, as ``FlatIndex.evaluate``, with ``n_probe`` lists a query.

        Parameters
        ----------
        Q : (q, P) array
            Queries; without ``truth`` at most 200 of them, evenly spaced, are used.
        k : int, default=10
            Neighbours asked for.
        truth : (q, at least k) integers, optional
            Ids of the true neighbours, nearest first; -1 where there are fewer.
        n_probe : int, default=16
            Lists that a query looks into.
        vectors : (n, P) array, or pair of (m, P) array and (m,) ids, optional
            The original vectors, as ``rescore`` of ``search``: the true neighbours are found here.
        rescore, oversample : optional
            As in ``search``, whose rescored answers are then measured; its vectors serve as ``vectors`` too.

        Returns
        -------
        Evaluation
        """
        vectors = rescore if vectors is None else vectors

        def search(queries: NDArray[np.generic]) -> Ids:
            return self.search(queries, k, rescore=rescore, oversample=oversample, n_probe=n_probe)[1]

        return self._evaluated(Q, k, truth, vectors, search)

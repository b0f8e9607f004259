"""The scan of the lists that queries probe, by threads: groups of queries, and parts of the lists of few queries.

As in scan.py, what is best by (score, id) does not depend on how the work was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._parallel import block_rows, effective_jobs, spans
from .._rows import Floats
from .lists import ListLookup
from .lookup import BLOCK
from .scan import PART_BLOCKS, all_of, joined, merged, rows_of, run
from .segment import Ids, Segment

_FEW, _MANY = 8, 512
"""Queries that are not worth a thread of their own, and those that probe together."""


def search(
    lookup: ListLookup, segments: Sequence[Segment], Q: NDArray[np.generic], k: int, n_probe: int, n_jobs: int | None
) -> tuple[Floats, Ids]:
    """Scores and ids (q, k) of the k smallest scores, ties by id; +inf and -1 where there are fewer.

    A query probes the ``n_probe`` lists whose centres are nearest.
    """
    scores = np.full((len(Q), k), np.inf, np.float32)
    found = np.full((len(Q), k), -1, np.int64)
    alive = sum(segment.alive for segment in segments)
    room = min(k, alive)
    if room == 0:
        return scores, found
    jobs = effective_jobs(n_jobs)
    most = min(_MANY, block_rows(lookup.coarse.held(n_probe)))
    turns = max(1, jobs * -(-len(Q) // (jobs * most)))  # as many for each thread
    groups = spans(len(Q), max(_FEW, -(-len(Q) // turns)))
    rows = len(Q) * alive * n_probe // lookup.n_lists
    cuts = 1 if len(groups) > 1 else max(1, min(jobs, n_probe, rows // (PART_BLOCKS * BLOCK)))

    def one(task: tuple[tuple[int, int], int]) -> tuple[Floats, Ids]:
        (start, stop), cut = task
        x, biases, lists = _probed(lookup, Q[start:stop], n_probe, slice(cut, None, cuts))
        best = np.full((stop - start, room), np.inf, np.float32)
        ids = np.full((stop - start, room), -1, np.int64)
        for part in lookup.groups(len(x)):
            some = slice(*part)
            asked = _asked(lookup, x[some], biases[some], lists[some])
            for segment in segments:
                _core.search_lists(**_rows(segment, lookup), **asked, scores=best[some], found=ids[some])
        _core.sort_heaps(best, ids)
        return best, ids

    results = run(one, [(group, cut) for group in groups for cut in range(cuts)], jobs)
    for g, (start, stop) in enumerate(groups):
        own = results[g * cuts : (g + 1) * cuts]
        scores[start:stop, :room], found[start:stop, :room] = own[0] if cuts == 1 else merged(own, room)
    return scores, found


def within(
    lookup: ListLookup,
    segments: Sequence[Segment],
    Q: NDArray[np.generic],
    limit: float,
    n_probe: int,
    n_jobs: int | None,
) -> list[tuple[Floats, Ids]]:
    """Scores of at most ``limit`` in the lists probed and their ids, smallest first, ties by id, for each query."""

    def one(row: int) -> tuple[Floats, Ids]:
        asked = _asked(lookup, *_probed(lookup, Q[row : row + 1], n_probe, slice(None)))
        asked |= {"tables": asked["tables"][0], "limit": limit}
        return joined([all_of(_core.within_lists, **_rows(segment, lookup), **asked) for segment in segments])

    return run(one, range(len(Q)), effective_jobs(n_jobs))


def _probed(
    lookup: ListLookup, Q: NDArray[np.generic], n_probe: int, part: slice
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Queries as the tables need them, and a part of the lists that they probe, with what those add to scores."""
    x, bias = lookup.prepared(Q)
    biases, lists = lookup.probe(x, bias, n_probe)
    return x, np.ascontiguousarray(biases[:, part]), np.ascontiguousarray(lists[:, part])


def _asked(lookup: ListLookup, x: Floats, biases: Floats, lists: NDArray[np.int64]) -> dict[str, Any]:
    """What queries bring to the kernel."""
    return {"tables": lookup.products(x), "lists": lists, "biases": biases, "floor": lookup.floor}


def _rows(segment: Segment, lookup: ListLookup) -> dict[str, Any]:
    return {**rows_of((segment, 0, len(segment.blocks)), lookup), "offsets": segment.offsets}

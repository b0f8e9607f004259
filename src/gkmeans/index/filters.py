"""Filters of a search: masks, ids and ranges of ids, as the rows of each segment that are kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core
from .segment import NO_IDS, Ids, Segment, Words, counted

Mask = NDArray[np.bool_]


MANY = 4
"""Queries for which the few rows of a filter are worth packing together at once."""


def kept(segments: Sequence[Segment], filter: ArrayLike | range | None, queries: int) -> list[Segment]:
    """The segments with only the rows that ``filter`` keeps, for so many queries."""
    if filter is None:
        return list(segments)
    often = queries >= MANY
    if isinstance(filter, range):
        ids_of = _rising(filter)
        words = [_of_range(segment, ids_of) for segment in segments]
        return [segment.kept(*some, often) for segment, some in zip(segments, words, strict=True) if some[1]]
    array = np.asarray(filter)
    parts: Sequence[Mask | Ids]
    if array.dtype == np.bool_:
        parts = _by_position(segments, array)
    elif array.ndim == 1 and (array.dtype.kind in "iu" or array.size == 0):
        parts = [np.ascontiguousarray(array, np.int64)] * len(segments)
    else:
        raise ValueError(
            f"filter has dtype {array.dtype} and shape {array.shape}; pass a boolean mask, integer ids or a range"
        )
    found = [_kept(segment, part, often) for segment, part in zip(segments, parts, strict=True)]
    return [segment for segment in found if segment.alive]


def _kept(segment: Segment, part: Mask | Ids, often: bool) -> Segment:
    """The segment with only the rows of a mask (n,) of its own, or of ids."""
    packed = segment.again(part)
    if packed is not None:
        return packed
    if part.dtype == np.bool_:
        return segment.kept(*counted(part.astype(np.bool_, copy=False)), often)
    ids = part.astype(np.int64, copy=False)
    return segment.kept(*_of_ids(segment, ids), often, ids)


def _by_position(segments: Sequence[Segment], mask: Mask) -> list[Mask]:
    total = sum(segment.alive for segment in segments)
    if mask.shape != (total,):
        raise ValueError(
            f"filter has shape {mask.shape} but the index {total} vectors; pass a mask of shape ({total},), in the "
            "order of iteration, or ids"
        )
    out, before = [], 0
    for segment in segments:
        part = mask[before : before + segment.alive]
        before += segment.alive
        if segment.alive < segment.n:
            rows = segment.mask()
            rows[rows] = part
            part = rows
        out.append(part)
    return out


def _of_ids(segment: Segment, ids: Ids) -> tuple[Words, int]:
    rows, first = (segment.find(ids), 0) if len(segment.ids) else (ids, segment.first)
    words = np.zeros_like(segment.keep)
    return words, _core.mark_ids(rows, first, segment.n, segment.keep, words)


def _rising(ids: range) -> range:
    """The ids of a range that an index can hold, smallest first, the numbers of the range within int64."""
    if ids.step < 0:
        ids = ids[::-1]
    start = ids.start if ids.start >= 0 else ids.start % ids.step
    stop = min(ids.stop, 2**63 - 1)
    return range(start, stop, min(ids.step, stop - start)) if start < stop else range(0)


def _of_range(segment: Segment, ids: range) -> tuple[Words, int]:
    if len(segment.ids):
        mask = (segment.ids >= ids.start) & (segment.ids < ids.stop)
        if ids.step > 1:
            mask &= (segment.ids - ids.start) % ids.step == 0
        return counted(mask if segment.alive == segment.n else mask & segment.mask())
    start = ids.start if ids.start >= segment.first else segment.first + (ids.start - segment.first) % ids.step
    stop = min(ids.stop, segment.first + segment.n)
    within = np.arange(start, stop, min(ids.step, segment.n), dtype=np.int64) if start < stop else NO_IDS
    return _of_ids(segment, within)

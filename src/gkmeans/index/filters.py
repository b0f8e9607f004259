"""Filters of a search: masks, ids and ranges of ids, as the rows of each segment that are kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .segment import Segment

Mask = NDArray[np.bool_]


def kept(segments: Sequence[Segment], filter: ArrayLike | range | None) -> list[Segment]:
    """The segments with only the rows that ``filter`` keeps."""
    if filter is None:
        return list(segments)
    if isinstance(filter, range):
        masks = [_in_range(segment, filter) for segment in segments]
    else:
        array = np.asarray(filter)
        if array.dtype == np.bool_:
            masks = _by_position(segments, array)
        elif array.ndim == 1 and (array.dtype.kind in "iu" or array.size == 0):
            masks = [_of_ids(segment, array.astype(np.int64)) for segment in segments]
        else:
            raise ValueError(
                f"filter has dtype {array.dtype} and shape {array.shape}; pass a boolean mask, integer ids or a range"
            )
    some = [segment.kept(mask) for segment, mask in zip(segments, masks, strict=True)]
    return [segment for segment in some if segment.alive]


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


def _of_ids(segment: Segment, ids: NDArray[np.int64]) -> Mask:
    rows = segment.find(ids)
    mask = np.zeros(segment.n, np.bool_)
    mask[rows[rows >= 0]] = True
    return mask


def _in_range(segment: Segment, ids: range) -> Mask:
    if ids.step < 0:
        ids = ids[::-1]
    if len(segment.ids):
        low, high = (min(max(edge, 0), 2**63 - 1) for edge in (ids.start, ids.stop))
        mask = (segment.ids >= low) & (segment.ids < high)
        if ids.step > 1:
            mask &= (segment.ids - ids.start % ids.step) % ids.step == 0
    else:
        mask = np.zeros(segment.n, np.bool_)
        start = ids.start - segment.first
        start = start if start >= 0 else start % ids.step
        stop = min(ids.stop - segment.first, segment.n)
        if start < stop:
            mask[start : stop : ids.step] = True
    return mask if segment.alive == segment.n else mask & segment.mask()

"""What runs where a shard lies: one task on one thread, arrays in and arrays out.

Every task is a function of its arguments alone, so that Dask can run it again after a worker is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from .._frame import Frame
from .._parallel import Room, Workers, in_main_thread, spans
from .._rows import READ_ROWS, Codes, Floats, Rows, Source
from .._sums import Doubles
from .._validation import check_rows
from ..survey import look
from ..update import Blocks

Sums = tuple[int, list[tuple[NDArray[np.int64], Blocks, Doubles, tuple[slice, ...]]]]
"""What passes over shards add: errors, and of each fold what ``Statistics`` holds, as Dask can weigh it."""

_room = Room()
"""Buffers of the threads of passes: a worker of Dask's would give their memory back after each, and ask for it anew."""

Looked = tuple[Doubles, Doubles, Doubles, Doubles]
"""Sums (blocks, P) and energies (blocks,) of each 4096 rows, least and largest entries (P,)."""


def _workers(room: Room | None = None) -> Workers:
    """The thread that Dask gave the task; but where that is the main thread another one, so that Ctrl-C is heard."""
    return Workers(1, room, here=not in_main_thread())


def received(value: Any) -> Any:
    """What is sent out with the task that holds it, and comes again with that task."""
    return value


def opened(
    chunk: NDArray[np.generic], frame: Frame, left_out: NDArray[np.intp] | None, less: tuple[Floats, Codes] | None
) -> Source:
    """The shard's rows but those ``left_out``, and ``less`` their decoding by D with codes."""
    rows: Source = Rows(chunk, frame)
    if left_out is not None:
        rows = rows.without(left_out)
    return rows if less is None else rows.less(*less)


def checked(chunk: Any, kind: np.dtype[Any], scale: float, block_info: Any = None) -> NDArray[np.generic]:
    """The chunk, if it is what the Dask array says; ``block_info`` is Dask's, and errors name rows by their place."""
    (first, stop), (_, width) = block_info[0]["array-location"]
    rows = f"rows {first} to {stop - 1}"
    if not isinstance(chunk, np.ndarray) or np.ma.isMaskedArray(chunk):
        raise ValueError(f"the chunk of {rows} is a {type(chunk).__name__}; convert it to a plain numpy array")
    if chunk.shape != (stop - first, width):
        raise ValueError(
            f"the chunk of {rows} has shape {chunk.shape}, but X says {(stop - first, width)}; set the chunks of X anew"
        )
    if chunk.dtype != kind:
        raise ValueError(f"the chunk of {rows} is {chunk.dtype}, but X says {kind}; convert each chunk to {kind}")
    for start, end in spans(len(chunk), READ_ROWS):
        check_rows(chunk[start:end], first + start, scale)
    return chunk


def looked(chunk: NDArray[np.generic]) -> Looked:
    """What a first look over the shard finds."""
    parts = [look(chunk[slice(*span)]) for span in spans(len(chunk), READ_ROWS)]
    return (
        np.stack([part.total for part in parts]),
        np.array([part.energy for part in parts]),
        np.min([part.low for part in parts], axis=0),
        np.max([part.high for part in parts], axis=0),
    )


def taken(place: Sequence[Any], index: NDArray[np.intp]) -> NDArray[Any]:
    """Rows of the shard: as they came, or where they are residuals, in the frame."""
    rows = opened(*place).take(index)
    return rows.X if isinstance(rows, Rows) else rows.block(slice(None))


def passed(place: Sequence[Any], job: Any, codes: Codes | None, first: int) -> tuple[Codes, Sums]:
    """A pass over the shard, whose first row has place ``first``."""
    with _workers(_room) as workers:
        found = job.over(opened(*place), codes, workers, first)
    return found.codes, light((found.error, [(one.counts, one.Z, one.W, one.groups) for one in found.statistics]))


def light(sums: Sums) -> Sums:
    """The sums as they travel."""
    return sums[0], [(counts, narrow(Z), W, groups) for counts, Z, W, groups in sums[1]]


def summed(parts: Sequence[Sums]) -> Sums:
    """The sums of several shards, to travel on."""
    return light(joined(parts))


def narrow(Z: Blocks) -> Blocks:
    """The blocks with no more bytes a count than they need on their way."""
    return {
        pair: block if issparse(block) else block.astype(np.min_scalar_type(block.max())) for pair, block in Z.items()
    }


def wide(Z: Blocks) -> Blocks:
    """Blocks as ``Statistics`` adds them."""
    return {pair: block.astype(np.int32, copy=False) for pair, block in Z.items()}


def joined(parts: Sequence[Sums]) -> Sums:
    """The sums of several shards, none of which is to be written to: those of one are its own."""
    folds = []
    for same in zip(*(folds for _, folds in parts), strict=True):
        counts, Zs, Ws, groups = zip(*same, strict=True)
        wider = [wide(one) for one in Zs]
        Z = {pair: reduce(add, (one[pair] for one in wider)) for pair in Zs[0]}
        folds.append((reduce(add, counts), Z, reduce(add, Ws), groups[0]))
    return sum(error for error, _ in parts), folds


def coded(chunk: NDArray[np.generic], model: Any, effort: int | None = None) -> Codes:
    """Codes of the rows by a fitted estimator."""
    with _workers() as workers:
        codes: Codes = model._choose(chunk, None, workers, effort=effort)
        return codes


def beside(codes: Sequence[Codes]) -> Codes:
    """Codes of several dictionaries side by side."""
    return np.concatenate(codes, axis=1)

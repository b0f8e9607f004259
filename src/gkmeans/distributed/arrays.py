"""Dask arrays, DataFrames and columns of vectors as chunks of whole rows, or an error that says what to do."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from .._sums import UNIT_ROWS
from . import tasks
from .shards import Edges, fetched, kept, task

UNIT = 4 * UNIT_ROWS
"""Shards start at multiples of this: then their blocks are blocks of all rows, and their sums are worth adding."""


def as_array(X: Any) -> da.Array:
    """``X`` as a Dask array (n, P) of real numbers, with known chunks that hold whole rows."""
    if isinstance(X, da.Array):
        array = X
    elif hasattr(X, "to_dask_array") and getattr(X, "ndim", 0) == 2:
        array = X.to_dask_array(lengths=True)
    elif hasattr(X, "to_dask_array"):
        array = stacked(X)
    else:
        raise TypeError(
            f"X is a {type(X).__name__}; pass a Dask array or DataFrame, for instance dask.array.from_array(X), "
            "or call the estimator's own method, which takes arrays"
        )
    if array.ndim != 2:
        raise ValueError(f"X has {array.ndim} dimensions; it must be 2-d, a vector a row: use X.reshape(len(X), -1)")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"X has dtype {array.dtype}, which is not real numbers; convert it, X.astype(numpy.float32)")
    if np.isnan(np.array(array.shape, float)).any() or np.isnan(np.concatenate(array.chunks)).any():
        raise ValueError("X has chunks of unknown size; call X.compute_chunk_sizes() first")
    if len(array.chunks[1]) > 1:
        raise ValueError(
            f"X is cut along its columns into chunks of {array.chunks[1]}; a vector must lie in one chunk: "
            "use X.rechunk({1: -1})"
        )
    if 0 in array.shape:
        raise ValueError(f"X has shape {array.shape}, which is empty; pass at least one row and one column")
    return array


def stacked(column: Any) -> da.Array:
    """A Dask Series whose entries are vectors as an array."""
    parts = column.to_delayed()
    shapes = fetched([task(shape_of, part, p) for p, part in enumerate(parts)])
    widths = {width for rows, width, _ in shapes if rows}
    if len(widths) != 1:
        raise ValueError(
            f"the vectors of {column.name!r} have lengths {sorted(widths)}; pass at least one, and drop those that are "
            "longer or shorter than the others"
        )
    [width] = widths
    dtype = np.result_type(*(kind for rows, _, kind in shapes if rows))
    full = [(part, rows) for part, (rows, _, _) in zip(parts, shapes, strict=True) if rows]
    chunks = [da.from_delayed(task(stack, part, dtype), (rows, width), dtype=dtype) for part, rows in full]
    array: da.Array = da.concatenate(chunks)
    return array


def stack(part: Any, dtype: Any) -> NDArray[Any]:
    """One partition of a column of vectors, a vector a row."""
    return np.stack([np.asarray(vector) for vector in part]).astype(dtype, copy=False)


def shape_of(part: Any, number: int) -> tuple[int, int, Any]:
    """Rows, width and dtype of one partition of a column of vectors."""
    if any(isinstance(vector, str) for vector in part):
        raise ValueError(
            f"partition {number} of the column holds text, not vectors; where Dask made text of them, set "
            "dask.config.set({'dataframe.convert-string': False}) before the column is read"
        )
    vectors = [np.asarray(vector) for vector in part]
    shapes = {vector.shape for vector in vectors}
    if len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
        raise ValueError(
            f"partition {number} of the column holds entries of shapes {sorted(shapes)}; pass a column of equally long "
            "vectors, or a DataFrame with a column for each dimension"
        )
    dtype = np.result_type(*vectors) if vectors else np.dtype(np.uint8)
    return len(vectors), len(vectors[0]) if vectors else 0, dtype


def note_features(est: Any, X: Any, array: da.Array, *, reset: bool) -> None:
    """Let scikit-learn note, or check, how many columns there are and their names."""
    meta = X._meta if X is not array and getattr(X, "ndim", 0) == 2 else np.empty((0, array.shape[1]), np.float32)
    try:
        validate_data(est, meta, reset=reset, skip_check_array=True)
    except ValueError as error:
        raise ValueError(f"{str(error).rstrip('.')}; pass the columns that the estimator was fitted on") from error


def checked(array: da.Array, scale: float = 1.0) -> da.Array:
    """The array, with an error from every chunk that is not what it says or holds what cannot be taken."""
    out: da.Array = array.map_blocks(
        tasks.checked,
        name=f"gkmeans-checked-{uuid4().hex}",  # two fits of one array must not share a key for unlike tasks
        kind=array.dtype,
        scale=scale,
        dtype=array.dtype,
        meta=np.empty((0, 0), array.dtype),
    )
    return out


def recut(array: da.Array, unit: int) -> da.Array:
    """The array with chunks that start at multiples of ``unit`` rows, those nearest to where they started."""
    n = len(array)
    starts = np.rint(np.cumsum(array.chunks[0])[:-1] / unit).astype(np.int64) * unit
    sizes = tuple(np.diff(np.unique([0, *starts[starts < n], n])).tolist())
    if sizes == array.chunks[0]:
        return array
    out: da.Array = array.rechunk((sizes, array.chunks[1]), method="tasks")
    return out


def shards_of(array: da.Array) -> tuple[list[Delayed], Edges]:
    """The chunks, being computed, which stay where they are, and where each starts."""
    edges = np.concatenate([[0], np.cumsum(array.chunks[0])]).astype(np.int64)
    return kept(array.to_delayed().reshape(-1).tolist()), edges

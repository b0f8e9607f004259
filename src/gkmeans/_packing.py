"""Dictionaries and statistics as named arrays of a file, and back, every part checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from . import _files
from .dictionaries import Block, Dictionaries
from .update import Blocks, Statistics, pairs_of

UNEVEN = 0.01
"""Most by which a product of two columns of a rotation is off; what training leaves is a thousand times nearer."""


def part_of(arrays: _files.Arrays, prefix: str) -> _files.Arrays:
    """The arrays whose names begin with ``prefix`` and a dot, without both."""
    start = f"{prefix}."
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


def packed_dictionaries(dictionaries: Dictionaries) -> tuple[list[list[int]], _files.Arrays]:
    """The edges of the blocks, and the arrays D0, D1, … and R."""
    arrays: _files.Arrays = {f"D{u}": D for u, D in enumerate(dictionaries.D)}
    if dictionaries.R is not None:
        arrays["R"] = dictionaries.R
    edges = [[0] + [getattr(block, axis).stop for block in dictionaries.blocks] for axis in ("dims", "dictionaries")]
    return edges, arrays


def restored_dictionaries(arrays: _files.Arrays, prefix: str, edges: Any, shape: tuple[int, int, int]) -> Dictionaries:
    """Dictionaries of shape (C, K, P) from what ``packed_dictionaries`` gave, its names after ``prefix`` and a dot."""
    C, K, P = shape
    dims, dictionaries = ([int(edge) for edge in axis] for axis in edges)
    R = tensor(arrays, f"{prefix}.R", np.dtype(np.float32), 2) if f"{prefix}.R" in arrays else None
    if R is not None and not (len(R) == P and 1 <= R.shape[1] <= P):
        raise ValueError(f"{prefix} with a rotation of shape {R.shape}")
    if R is not None and float(np.abs(R.T @ R - np.eye(R.shape[1])).max()) > UNEVEN:
        raise ValueError(f"{prefix} with a rotation whose columns are not orthonormal")
    for axis, end in ((dims, P if R is None else R.shape[1]), (dictionaries, C)):
        if axis[0] != 0 or axis[-1] != end or sorted(set(axis)) != axis or len(axis) != len(dims):
            raise ValueError(f"{prefix} with block edges {axis} for {end}")
    blocks = tuple(
        Block(slice(dims[u], dims[u + 1]), slice(dictionaries[u], dictionaries[u + 1])) for u in range(len(dims) - 1)
    )
    D = []
    for u, block in enumerate(blocks):
        Du = tensor(arrays, f"{prefix}.D{u}", np.dtype(np.float32), 3)
        if Du.shape != (dictionaries[u + 1] - dictionaries[u], K, dims[u + 1] - dims[u]):
            raise ValueError(f"{prefix} with dictionaries of shape {Du.shape} in {block}")
        D.append(Du)
    return Dictionaries(blocks, tuple(D), R)


def packed_statistics(statistics: Statistics) -> _files.Arrays:
    """Counts, W, and Z pair by pair; a sparse pair as the three arrays of its rows."""
    arrays: _files.Arrays = {"counts": statistics.counts, "W": statistics.W}
    for (b, c), Z in statistics.Z.items():
        if scipy.sparse.issparse(Z):
            rows = Z.tocsr()
            arrays |= {f"Z{b}.{c}.{part}": getattr(rows, part) for part in ("data", "indices", "indptr")}
        else:
            arrays[f"Z{b}.{c}"] = Z
    return arrays


def restored_statistics(arrays: _files.Arrays, dictionaries: Dictionaries) -> Statistics:
    """Statistics that fit the dictionaries, from what ``packed_statistics`` gave."""
    C, K, P = dictionaries.shape
    counts, W = _numbers(arrays, "counts", (C, K)), _numbers(arrays, "W", (C, K, P))
    groups = dictionaries.groups
    Z: Blocks = {}
    for b, c in pairs_of(groups):
        if f"Z{b}.{c}" in arrays:
            Z[b, c] = _numbers(arrays, f"Z{b}.{c}", (K, K))
            continue
        parts = tuple(arrays[f"Z{b}.{c}.{part}"] for part in ("data", "indices", "indptr"))
        Z[b, c] = scipy.sparse.csr_array(parts, shape=(K, K))
        Z[b, c].check_format(full_check=True)
    if float(counts.min()) < 0:
        raise ValueError("counts below zero")
    return Statistics(counts, Z, W.astype(np.float64), groups)


def tensor(arrays: _files.Arrays, name: str, dtype: np.dtype[Any], ndim: int) -> NDArray[Any]:
    """The array of this name, its kind checked, all of it finite."""
    array = arrays[name]
    if array.dtype != dtype or array.ndim != ndim or not np.isfinite(array).all():
        raise ValueError(f"array {name!r} of dtype {array.dtype} and shape {array.shape}, or not finite")
    return array


def _numbers(arrays: _files.Arrays, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    array = arrays[name]
    if array.dtype not in (np.int32, np.int64, np.float64) or array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"array {name!r} of dtype {array.dtype} and shape {array.shape}, or not finite")
    return array

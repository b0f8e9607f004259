"""How good codes are: relative distortion, Sec. 3.1, recall, Appendix, and the exact neighbours recall is held to."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._parallel import Workers, spans
from ._rows import READ_ROWS
from ._top import Top
from ._validation import check_integer, check_n_jobs
from .training import relative

_QUERIES = 256


def relative_distortion(X: ArrayLike, X_hat: ArrayLike) -> float:
    """Σ‖x − x̂‖² / Σ‖x‖², in float64 and block by block.

    Parameters
    ----------
    X : (n, P) array
        Vectors.
    X_hat : (n, P) array
        What stands for them.

    Returns
    -------
    float

    Examples
    --------
    >>> from gkmeans.metrics import relative_distortion
    >>> relative_distortion([[3.0, 4.0]], [[3.0, 3.0]])
    0.04
    """
    exact, coded = _vectors("X", X), _vectors("X_hat", X_hat)
    if exact.shape != coded.shape:
        raise ValueError(f"X has shape {exact.shape} but X_hat {coded.shape}; pass one vector for each vector")
    error = energy = 0.0
    for start, stop in spans(len(exact), READ_ROWS):
        x = exact[start:stop].astype(np.float64)
        r = x - coded[start:stop].astype(np.float64)
        error += float(np.einsum("ij,ij->", r, r))
        energy += float(np.einsum("ij,ij->", x, x))
    return relative(error, energy)


def recall(found: ArrayLike, groundtruth: ArrayLike, R: int) -> float:
    """Share of the queries whose true nearest neighbour is among the first ``R`` found.

    Parameters
    ----------
    found : (q, at least R) integers
        Rows found for each query, nearest first.
    groundtruth : (q, at least 1) integers
        True neighbours of each query, nearest first; only the first is used.
    R : int
        Rows looked at.

    Returns
    -------
    float

    Examples
    --------
    >>> from gkmeans.metrics import recall
    >>> recall([[4, 7], [1, 3]], [[7], [2]], 2)
    0.5
    """
    ids, truth = _vectors("found", found), _vectors("groundtruth", groundtruth)
    for name, array in (("found", ids), ("groundtruth", truth)):
        if array.dtype.kind not in "iu":
            raise ValueError(f"{name} holds {array.dtype}; pass integer rows of the database")
    if len(ids) != len(truth):
        raise ValueError(
            f"found has {len(ids)} queries but groundtruth {len(truth)}; pass a row of each for each query"
        )
    R = check_integer("R", R, 1, ids.shape[1])
    return float((ids[:, :R] == truth[:, :1]).any(axis=1).mean())


def nearest(base: ArrayLike, query: ArrayLike, k: int, *, n_jobs: int | None = None) -> NDArray[np.int64]:
    """Rows of the ``k`` vectors of ``base`` nearest to each query: exhaustive, in float64.

    Parameters
    ----------
    base : (n, P) array
        Database; a memory-mapped array is read block by block.
    query : (q, P) array
        Queries.
    k : int
        Neighbours of each query, at most n.
    n_jobs : int or None, default=None
        Threads; None and -1 mean all cores.

    Returns
    -------
    (q, k) int64
        Nearest first by Euclidean distance, the earlier row first among equal ones.

    Examples
    --------
    >>> from gkmeans.metrics import nearest
    >>> nearest([[0.0], [2.0], [5.0]], [[1.5]], 2)
    array([[1, 0]])
    """
    data, asked = _vectors("base", base), _vectors("query", query)
    if data.shape[1] != asked.shape[1]:
        raise ValueError(f"base has {data.shape[1]} features but query {asked.shape[1]}; pass vectors of one length")
    k = check_integer("k", k, 1, len(data))
    power = _power(data, asked)
    # distances do not change under a shift; a whole one keeps whole numbers exact and takes a large offset away
    shift = np.rint(_doubles(data[:READ_ROWS], power).mean(axis=0))
    top = Top(len(asked), k)
    queries = spans(len(asked), _QUERIES)

    with Workers(check_n_jobs(n_jobs)) as workers:
        for start, stop in spans(len(data), READ_ROWS):
            x = _doubles(data[start:stop], power) - shift
            norms = np.einsum("ij,ij->i", x, x)

            def one(
                span: tuple[int, int],
                x: NDArray[np.float64] = x,
                norms: NDArray[np.float64] = norms,
                first: int = start,
            ) -> None:
                q = _doubles(asked[slice(*span)], power) - shift
                top.add(slice(*span), norms - 2 * (q @ x.T), first)

            workers.map(one, queries)
    return top.rows


def _power(*arrays: NDArray[np.generic]) -> int:
    """The power of two to multiply by so that squares neither overflow nor vanish in float64: 0 where they do not."""
    largest = 0.0
    for array in arrays:
        if array.dtype.kind == "f" and array.dtype.itemsize > 4:  # the squares of all others fit
            for start, stop in spans(len(array), READ_ROWS):
                largest = max(largest, float(np.abs(array[start:stop]).max()))
        else:
            largest = max(largest, 1.0)
    exponent = int(np.frexp(largest)[1])
    return 0 if largest == 0 or -400 < exponent < 480 else 52 - exponent


def _doubles(array: NDArray[np.generic], power: int) -> NDArray[np.float64]:
    doubles = array.astype(np.float64)
    return doubles if power == 0 else np.ldexp(doubles, power)


def _vectors(name: str, values: ArrayLike) -> NDArray[np.generic]:
    """``values`` as a finite (n, P) array of numbers, in its own dtype."""
    array = np.asanyarray(values)
    if array.ndim != 2 or array.dtype.kind not in "fiub" or min(array.shape) < 1:
        raise ValueError(f"{name} has dtype {array.dtype} and shape {array.shape}; pass numbers of shape (n, P)")
    if array.dtype.kind == "f":
        for start, stop in spans(len(array), READ_ROWS):
            if not np.isfinite(array[start:stop]).all():
                raise ValueError(f"{name} has NaN or infinite values in rows {start} to {stop - 1}; drop or fill them")
    return array

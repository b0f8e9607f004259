"""Training and encoding of Dask arrays: the same code as on one machine, with passes that go where the rows lie.

Every function runs wherever Dask runs: on threads of this process, on the default client's cluster, on whatever
scheduler ``dask.config`` names. A chunk is a shard, a task takes one thread.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

try:
    import dask
    import dask.array as da
    import dask.distributed  # its settings must be there before `fit` sets one: they would go when that one does
except ImportError as error:
    raise ImportError("gkmeans.distributed needs Dask; install it by: pip install 'gkmeans[dask]'") from error

from .._parallel import Workers
from .._sums import UNIT_ROWS
from .._validation import check_effort
from ..dictionaries import code_dtype
from ..estimators.base import AdditiveQuantizer, bare
from ..survey import MOST_ROWS, Survey
from . import tasks
from .arrays import UNIT, as_array, checked, note_features, recut, shards_of
from .shards import Shards, survey_of, task

__all__ = ["encode", "fit"]

Quantizer = TypeVar("Quantizer", bound=AdditiveQuantizer)


def fit(est: Quantizer, X: Any) -> Quantizer:
    """Learn the dictionaries from the rows of a Dask collection; the same bits as ``est.fit`` on the same rows.

    Chunks are computed once, checked and kept on the workers. Those that do not start at a multiple of 16,384 rows
    are cut anew at the nearest one, because the last bits of a product depend on the block a row is in.

    Parameters
    ----------
    est : GroupKMeans, CartesianKMeans or OptimizedCartesianKMeans
        The estimator to fit, in place. Its ``n_jobs`` threads solve the update in this process.
    X : Dask array, DataFrame or Series
        (n, P) numbers with whole rows in each chunk; or a DataFrame with a column for each dimension; or a column
        whose entries are vectors.

    Returns
    -------
    The estimator, as after ``est.fit``: ``codes_`` is a NumPy array.

    Examples
    --------
    >>> import dask.array as da
    >>> import gkmeans as gk
    >>> from gkmeans import distributed
    >>> X = da.from_array(gk.datasets.load_sample().learn[:2000], chunks=(500, -1))
    >>> est = gk.GroupKMeans(2, 16, relaxation=0, max_iter=5, init_iter=5, random_state=0)
    >>> distributed.fit(est, X).codes_.shape
    (2000, 2)
    """
    _checked(est)._check_settings()
    with est._keeping_features():
        array = as_array(X)
        if len(array) > MOST_ROWS:
            raise ValueError(
                f"X has {len(array)} rows, more than the {MOST_ROWS} that are counted; pass a sample of them"
            )
        note_features(est, X, array, reset=True)
        est._check_data(array.shape)
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):  # dictionaries are large
            est._fit(partial(_opened, array))
    return est


def _opened(array: da.Array, workers: Workers) -> tuple[Survey, Shards]:
    """An opening of rows of other machines."""
    chunks, edges = shards_of(recut(checked(array), UNIT))
    found = survey_of(chunks, array.shape, str(array.dtype))
    return found, Shards.of(chunks, edges, found.frame)


def encode(est: AdditiveQuantizer, X: Any, *, effort: int | None = None) -> da.Array:
    """Compress the rows of a Dask collection, chunk by chunk, when the result is computed.

    Parameters
    ----------
    est : fitted estimator
        The model; it goes to each worker once.
    X : Dask array, DataFrame or Series
        As for ``fit``.
    effort : int from 0 to 9, optional
        As for ``GroupKMeans.encode``.

    Returns
    -------
    (n, C) Dask array of uint8 or uint16 with the chunks of ``X``; its rows are those of ``est.encode``.

    Examples
    --------
    >>> import dask.array as da
    >>> import gkmeans as gk
    >>> from gkmeans import distributed
    >>> learn = gk.datasets.load_sample().learn[:2000]
    >>> est = gk.CartesianKMeans(4, 16, random_state=0).fit(learn)
    >>> codes = distributed.encode(est, da.from_array(learn, chunks=(500, -1)))
    >>> codes.chunks
    ((500, 500, 500, 500), (4,))
    >>> bool((codes.compute() == est.encode(learn)).all())
    True
    """
    check_is_fitted(_checked(est))
    if effort is not None and "effort" in est.get_params():
        check_effort(effort)
    est._encoding(effort)
    array = as_array(X)
    note_features(est, X, array, reset=False)
    est._check_encoding(len(array))
    C, K, _ = est.dictionaries_.shape
    cut = recut(checked(array, est.scale_), UNIT_ROWS)
    codes = cut.map_blocks(
        tasks.coded,
        model=task(tasks.received, bare(est)),
        effort=effort,
        dtype=code_dtype(K),
        chunks=(cut.chunks[0], (C,)),
        meta=np.empty((0, C), code_dtype(K)),
    )
    return codes if cut.chunks == array.chunks else codes.rechunk((array.chunks[0], (C,)), method="tasks")


def _checked(est: Quantizer) -> Quantizer:
    if not isinstance(est, AdditiveQuantizer):
        raise TypeError(f"est is a {type(est).__name__}; pass an estimator, such as gkmeans.GroupKMeans()")
    return est

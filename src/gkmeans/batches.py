"""Vectors in batches, for a fit on more than memory holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import vectors
from ._batched import Opened
from ._parallel import regrouped
from ._rows import READ_ROWS
from ._validation import check_rows

Batch = ArrayLike | str | os.PathLike[str]


class Batches:
    """Vectors that come in batches, the same in every pass.

    Training passes over its rows many times: each pass asks for a fresh iterator and reads every batch once.

    Parameters
    ----------
    source : path, iterable or callable
        One file; or a list, or any object that can be iterated again and again, of files and arrays (m, P); or a
        function that gives such an iterator anew each time. Files are of the formats of ``vectors.read`` and are read
        piece by piece.
    dataset : str, optional
        The dataset of HDF5 files or the column of Parquet files.

    Examples
    --------
    >>> import gkmeans as gk
    >>> learn = gk.datasets.load_sample().learn[:4000]
    >>> batches = gk.Batches(lambda: (learn[i : i + 1000] for i in range(0, 4000, 1000)))
    >>> est = gk.GroupKMeans(2, 16, relaxation=0, random_state=0).fit(batches)
    >>> bool((est.codes_ == gk.GroupKMeans(2, 16, relaxation=0, random_state=0).fit(learn).codes_).all())
    True
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Iterable[Batch] | Callable[[], Iterable[Batch]],
        *,
        dataset: str | None = None,
    ) -> None:
        if isinstance(source, Iterator):
            raise ValueError(
                f"source is a {type(source).__name__}, which gives its batches once, and training passes over them "
                "many times; pass the function that makes it, or a list"
            )
        if isinstance(source, str | os.PathLike):
            source = [source]
        if not callable(source) and not isinstance(source, Iterable):
            raise ValueError(f"source={source!r} is no iterable; pass files, arrays, or a function that gives them")
        self.source, self.dataset = source, dataset
        self._files: dict[str, Opened] = {}

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """One pass: arrays (m, P) of one width and dtype, checked."""
        width, dtype = 0, np.dtype(float)
        for number, item in enumerate(self.source() if callable(self.source) else self.source):
            for batch in self._arrays(item):
                if batch.ndim != 2 or batch.dtype.kind not in "biuf" or not batch.shape[1]:
                    raise ValueError(
                        f"batch {number} has dtype {batch.dtype} and shape {batch.shape}; pass arrays of numbers of "
                        "shape (m, P)"
                    )
                if not width:
                    width, dtype = batch.shape[1], batch.dtype
                if batch.shape[1] != width:
                    raise ValueError(
                        f"batch {number} has {batch.shape[1]} columns and those before {width}; pass vectors of one "
                        "length"
                    )
                if batch.dtype != dtype:
                    raise ValueError(
                        f"batch {number} has dtype {batch.dtype} and those before {dtype}; convert them to one, for "
                        "instance by astype"
                    )
                if len(batch):
                    yield batch

    def _arrays(self, item: Batch) -> Iterator[NDArray[Any]]:
        if isinstance(item, str | os.PathLike):
            path = os.fspath(item)
            if path not in self._files:  # checked once; each pass reads it once
                self._files[path] = vectors.opened(path, self.dataset)
            yield from self._files[path].batches()
        else:
            # what makes arrays as it goes may fill one again and again
            yield np.asarray(item) if isinstance(self.source, list | tuple) else np.array(item)

    def checked(self) -> Iterator[NDArray[Any]]:
        """Blocks of rows whose values float32 can square; an error names the row."""
        first = 0
        self._files.clear()  # a fit begins; what has grown since the last one is read
        for block in regrouped(self, READ_ROWS):
            check_rows(block, first)
            first += len(block)
            yield block

"""Data to try the library on: a sample of SIFT descriptors of photos, embedded in the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Sample:
    """Vectors to learn from, a database, queries, and each query's nearest rows of the database."""

    learn: NDArray[np.uint8]  # (20000, 128)
    base: NDArray[np.uint8]  # (10000, 128)
    query: NDArray[np.uint8]  # (500, 128)
    groundtruth: NDArray[np.int32]  # (500, 100), nearest first by Euclidean distance, ties by row


def load_sample() -> Sample:
    """SIFT descriptors of real photos: 20,000 to learn from, 10,000 to encode, 500 queries with exact neighbours.

    Returns
    -------
    Sample
        ``learn``, ``base`` and ``query`` (n, 128) uint8, ``groundtruth`` (500, 100) int32. Learn and base come from
        different photos.

    Examples
    --------
    >>> from gkmeans.datasets import load_sample
    >>> sample = load_sample()
    >>> sample.learn.shape, sample.base.shape, sample.query.shape, sample.groundtruth.shape
    ((20000, 128), (10000, 128), (500, 128), (500, 100))
    """
    with (files("gkmeans") / "data" / "sample.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return Sample(*(arrays[name] for name in ("learn", "base", "query", "groundtruth")))

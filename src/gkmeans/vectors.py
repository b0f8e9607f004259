"""Vectors from files: .npy, .fvecs, .bvecs, .ivecs, idx, HDF5 and Parquet, memory-mapped where the format can."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from . import _batched, _formats, _vecs

SUFFIXES = {
    ".npy": "a .npy array",
    ".fvecs": "vecs",
    ".bvecs": "vecs",
    ".ivecs": "vecs",
    ".idx": "idx",
    ".gz": "idx",
    ".hdf5": "HDF5",
    ".h5": "HDF5",
    ".parquet": "Parquet",
}


def read(path: str | os.PathLike[str], *, dataset: str | None = None) -> NDArray[Any]:
    """Read the array of a vector file.

    The name says the format: ``.npy``, ``.fvecs``, ``.bvecs``, ``.ivecs``, ``.idx``, ``.gz`` (idx packed by gzip),
    ``.hdf5``, ``.h5``, ``.parquet``; with any other name, such as ``train-images-idx3-ubyte``, the first bytes do.

    Parameters
    ----------
    path : str or path
        The file.
    dataset : str, optional
        The dataset of an HDF5 file (``"train"`` by default; the ANN benchmarks also have ``test``, ``neighbors``,
        ``distances``), or the column of a Parquet file. Without it, a Parquet file's one column of lists is taken, or
        all columns where each holds numbers.

    Returns
    -------
    ndarray
        (n, P) in the dtype of the file, or (n,) where it holds one number a row, such as labels. Images in idx come
        as (n, rows × columns). ``.npy``, ``.*vecs``, plain idx, and HDF5 where the dataset lies unpacked in one piece,
        are read-only ``numpy.memmap`` views: nothing is copied; rows are read when they are used.

    Raises
    ------
    FileError
        Where the file is missing, truncated, damaged, of another format than its name says, holds vectors of
        different lengths, or lacks what ``dataset`` names.
    ImportError
        Where h5py (HDF5) or pyarrow (Parquet) is not installed.

    Examples
    --------
    >>> import numpy as np, os, tempfile
    >>> from gkmeans import vectors
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "X.npy")
    >>> np.save(path, np.arange(6, dtype=np.float32).reshape(3, 2))
    >>> vectors.read(path)
    memmap([[0., 1.],
            [2., 3.],
            [4., 5.]], dtype=float32)
    >>> folder.cleanup()
    """
    file = Path(path)
    try:
        out = _read(file, dataset)
    except OSError as error:
        raise _formats.bad(file, error.strerror or str(error), "check the path; datasets.load takes folders") from error
    if out.ndim not in (1, 2) or out.dtype.kind not in "fiub" or not out.size:
        raise _formats.bad(
            file, f"it holds {out.dtype} of shape {out.shape}", "vectors must be numbers of shape (n, P)"
        )
    return out


def batches(path: str | os.PathLike[str], *, dataset: str | None = None, start: int = 0) -> Iterator[NDArray[Any]]:
    """Read the vectors of a file piece by piece, about 16 MB at a time.

    Parameters
    ----------
    path : str or path
        The file, in any format of ``read``; packed idx is unpacked whole.
    dataset : str, optional
        As for ``read``.
    start : int, default=0
        The first row to read.

    Yields
    ------
    ndarray
        Rows (m, P) in the dtype of the file.

    Raises
    ------
    FileError
        As ``read`` does, and where the file grows or is truncated meanwhile.

    Examples
    --------
    >>> import numpy as np, os, tempfile
    >>> from gkmeans import vectors
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "X.npy")
    >>> np.save(path, np.arange(6, dtype=np.float32).reshape(3, 2))
    >>> [batch.tolist() for batch in vectors.batches(path, start=1)]
    [[[2.0, 3.0], [4.0, 5.0]]]
    >>> folder.cleanup()
    """
    yield from opened(path, dataset).batches(start)


def opened(path: str | os.PathLike[str], dataset: str | None = None) -> _batched.Opened:
    """A file whose vectors are read batch by batch, from any row on, with its number of rows.

    Examples
    --------
    >>> import numpy as np, os, tempfile
    >>> from gkmeans import vectors
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "X.npy")
    >>> np.save(path, np.zeros((3, 2), np.float32))
    >>> vectors.opened(path).n
    3
    >>> folder.cleanup()
    """
    file = Path(path)
    try:
        return _batched.opened(file, _kind(file), dataset, lambda: read(file, dataset=dataset))
    except OSError as error:
        raise _formats.bad(file, error.strerror or str(error), "check the path; datasets.load takes folders") from error


def _read(file: Path, dataset: str | None) -> NDArray[Any]:
    kind = _kind(file)
    if kind == "HDF5":
        return _formats.read_hdf5(file, dataset)
    if kind == "Parquet":
        return _formats.read_parquet(file, dataset)
    if dataset is not None:
        raise _formats.bad(file, f"dataset={dataset!r} is for HDF5 and Parquet", "leave it out")
    readers = {"a .npy array": _formats.read_npy, "vecs": _vecs.read_vecs, "idx": _formats.read_idx}
    return readers[kind](file)


def _kind(file: Path) -> str:
    """The format, by name or content; raise where the two disagree or say nothing."""
    named, found = SUFFIXES.get(file.suffix.lower()), _formats.content(file)
    if found == "an .npz archive":
        raise _formats.bad(file, "it is an archive of arrays", "pass a .npy file with one array")
    if found == "a gzip" and named in (None, "idx"):
        return "idx"
    if named is None and found is None:
        raise _formats.bad(
            file, "neither its name nor its first bytes are of a known format", f"use {', '.join(SUFFIXES)}"
        )
    if named is not None and found is not None and found != named:
        raise _formats.bad(file, f"it is named {file.suffix} and is {found}", "name it by what it is")
    return named or str(found)

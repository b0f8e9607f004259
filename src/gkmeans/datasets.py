"""Data to learn from, to encode and to search: an embedded sample, MNIST, SIFT1M, GIST1M, and the user's own folders.

Files are looked for in the path given, then in ``GKMEANS_DATA``, then in the cache; what is nowhere is downloaded.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _formats, vectors
from ._download import Source, fetch
from ._files import FileError
from ._validation import DataWarning

ROLES = ("learn", "base", "query", "groundtruth")
_IMAGES = {"learn": "train-images-idx3-ubyte", "query": "t10k-images-idx3-ubyte"}
_HDF5 = {"learn": "train", "query": "test", "groundtruth": "neighbors"}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Vectors to learn from, a database, queries, and each query's nearest rows of the database.

    Parameters
    ----------
    name : str
        What it was loaded as.
    learn, base, query : ndarray
        Vectors (n, P) of one P each; ``base is learn`` where one file is both.
    groundtruth : ndarray or None
        (n queries, k) rows of the base, nearest first; None where none is published.

    Examples
    --------
    >>> from gkmeans.datasets import load
    >>> sample = load("sample")
    >>> sample.name, sample.query.shape, sample.groundtruth.shape
    ('sample', (500, 128), (500, 100))
    """

    name: str
    learn: NDArray[Any]
    base: NDArray[Any]
    query: NDArray[Any]
    groundtruth: NDArray[Any] | None = None


@dataclass(frozen=True)
class _Known:
    """Where a published dataset lies: names of its folder, and for each role the file's possible names."""

    folders: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]


def _texmex(prefix: str, url: str, size: int, md5: str, rows: tuple[int, int, int], width: int) -> Source:
    """A tar of the TEXMEX corpus: learn, base and query of so many rows, 100 neighbours of each query."""
    members = [
        (f"{prefix}/{prefix}_{role}.fvecs", count * (4 + 4 * width))
        for role, count in zip(ROLES[:3], rows, strict=True)
    ]
    members.append((f"{prefix}/{prefix}_groundtruth.ivecs", rows[2] * (4 + 4 * 100)))
    return Source(f"{prefix}.tar.gz", (url,), size, f"md5:{md5}", tuple(members))


def _mnist_source(name: str, size: int, sha256: str) -> Source:
    mirrors = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
    return Source(name, tuple(mirror + name for mirror in mirrors), size, f"sha256:{sha256}")


_TEXMEX = "ftp://ftp.irisa.fr/local/texmex/corpus/"
_KNOWN = {
    "mnist": _Known(("mnist",), {role: (name, f"{name}.gz") for role, name in _IMAGES.items()}),
    **{
        f"{prefix}1m": _Known(
            (f"{prefix}1m", prefix),
            {role: (f"{prefix}_{role}.{'ivecs' if role == 'groundtruth' else 'fvecs'}",) for role in ROLES},
        )
        for prefix in ("sift", "gist")
    },
}

# SHA-256 of MNIST's archives as yann.lecun.com published them. MD5 of the TEXMEX archives as in the corpus's MD5SUM
# file, which ann-benchmarks quotes in install/data-sift.sh and data-gist.sh (commit 5e3f264).
SOURCES: dict[str, tuple[Source, ...]] = {
    "mnist": (
        _mnist_source(
            "train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
        ),
        _mnist_source(
            "t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
        ),
    ),
    "sift1m": (
        _texmex(
            *("sift", f"{_TEXMEX}sift.tar.gz", 168280445, "b23d1b3b2ee8469d819b61ca900ef0ed"),
            *((100_000, 1_000_000, 10_000), 128),
        ),
    ),
    "gist1m": (
        _texmex(
            *("gist", f"{_TEXMEX}gist.tar.gz", 2740172684, "31185e0f00854f74d27e8ad8d52628a9"),
            *((500_000, 1_000_000, 1_000), 960),
        ),
    ),
}


def load_sample() -> Dataset:
    """SIFT descriptors of real photos: 20,000 to learn from, 10,000 to encode, 500 queries with exact neighbours.

    Returns
    -------
    Dataset
        ``learn``, ``base`` and ``query`` (n, 128) uint8, ``groundtruth`` (500, 100) int32, ties by row. Learn and base
        come from different photos.

    Examples
    --------
    >>> from gkmeans.datasets import load_sample
    >>> sample = load_sample()
    >>> sample.learn.shape, sample.base.shape, sample.query.shape, sample.groundtruth.shape
    ((20000, 128), (10000, 128), (500, 128), (500, 100))
    """
    with (files("gkmeans") / "data" / "sample.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return Dataset("sample", *(arrays[role] for role in ROLES))


def load_mnist(path: str | os.PathLike[str] | None = None, *, download: bool = True) -> Dataset:
    """MNIST, raw pixels: the 60,000 training images are both learn and base, the 10,000 test images the queries.

    Parameters
    ----------
    path : str or path, optional
        The folder with ``train-images-idx3-ubyte`` and ``t10k-images-idx3-ubyte``, packed (``.gz``) or not.
    download : bool, default True
        Download what is neither in ``GKMEANS_DATA`` nor in the cache: 12 MB.

    Returns
    -------
    Dataset
        ``learn`` (which is also ``base``) and ``query`` (n, 784) uint8; no ground truth is published.

    Examples
    --------
    >>> from gkmeans.datasets import load_mnist
    >>> load_mnist().learn.shape  # doctest: +SKIP
    (60000, 784)
    """
    return load("mnist", path, download=download)


def load_sift1m(path: str | os.PathLike[str] | None = None, *, download: bool = True) -> Dataset:
    """SIFT1M of the TEXMEX corpus: 100,000 SIFT descriptors to learn from, a base of 1,000,000, 10,000 queries.

    Parameters
    ----------
    path : str or path, optional
        The folder with ``sift_learn.fvecs``, ``sift_base.fvecs``, ``sift_query.fvecs``, ``sift_groundtruth.ivecs``.
    download : bool, default True
        Download what is neither in ``GKMEANS_DATA`` nor in the cache: 168 MB, 577 MB unpacked.

    Returns
    -------
    Dataset
        Memory-mapped float32 (n, 128), ``groundtruth`` (10000, 100) int32.

    Examples
    --------
    >>> from gkmeans.datasets import load_sift1m
    >>> load_sift1m().base.shape  # doctest: +SKIP
    (1000000, 128)
    """
    return load("sift1m", path, download=download)


def load_gist1m(path: str | os.PathLike[str] | None = None, *, download: bool = True) -> Dataset:
    """GIST1M of the TEXMEX corpus: 500,000 GIST descriptors to learn from, a base of 1,000,000, 1,000 queries.

    Parameters
    ----------
    path : str or path, optional
        The folder with ``gist_learn.fvecs``, ``gist_base.fvecs``, ``gist_query.fvecs``, ``gist_groundtruth.ivecs``.
    download : bool, default True
        Download what is neither in ``GKMEANS_DATA`` nor in the cache: 2.7 GB, 5.8 GB unpacked.

    Returns
    -------
    Dataset
        Memory-mapped float32 (n, 960), ``groundtruth`` (1000, 100) int32.

    Examples
    --------
    >>> from gkmeans.datasets import load_gist1m
    >>> load_gist1m().base.shape  # doctest: +SKIP
    (1000000, 960)
    """
    return load("gist1m", path, download=download)


def load(name: str, path: str | os.PathLike[str] | None = None, *, download: bool = True) -> Dataset:
    """Load a dataset by name, or one of your own from a folder or an HDF5 file.

    Parameters
    ----------
    name : str
        ``"sample"``, ``"mnist"``, ``"sift1m"``, ``"gist1m"``, or any other word, with a ``path``.
    path : str or path, optional
        A folder: for a published dataset one with its files (or with a subfolder ``mnist``, ``sift``, …); for your own
        one with ``learn.*``, ``base.*``, ``query.*`` and, if there is one, ``groundtruth.*`` in any format that
        :func:`gkmeans.vectors.read` takes, also with a prefix as in ``sift_base.fvecs``. Or an HDF5 file as the ANN
        benchmarks have it: ``train`` is learn and base, ``test`` the queries, ``neighbors`` the ground truth, left out
        with a ``DataWarning`` where the file's attribute ``distance`` is not ``euclidean``.
    download : bool, default True
        Download a published dataset where ``path`` is not given and it is neither in ``GKMEANS_DATA`` nor in the cache.

    Returns
    -------
    Dataset
        Checked: all vectors are equally long, and the ground truth fits the queries and the base.

    Raises
    ------
    FileError
        Where files are missing, damaged or do not fit together, or a download fails.

    Examples
    --------
    >>> from gkmeans.datasets import load
    >>> load("sample").base.shape
    (10000, 128)
    """
    if name == "sample":
        if path is not None:
            raise ValueError(
                f"path={os.fspath(path)!r} is given for the embedded sample; leave it out or use another name"
            )
        return load_sample()
    if path is not None:
        place = Path(path)
        if place.is_file():
            _check_hdf5(name, place)
            return _from_hdf5(name, place)
        return _from_files(name, _found(name, [place]) if name in _KNOWN else _own(place))
    if name not in _KNOWN:
        known = ", ".join(("sample", *_KNOWN))
        raise ValueError(f"name={name!r} is no known dataset; use one of {known}, or pass the path of your own files")
    places = [Path(os.environ["GKMEANS_DATA"])] if os.environ.get("GKMEANS_DATA") else []
    cache = _cache()
    try:
        return _from_files(name, _found(name, [*places, cache]))
    except _NowhereError:
        if not download:
            raise
    for source in SOURCES[name]:
        fetch(source, cache / name)
    return _from_files(name, _found(name, [cache]))


class _NowhereError(FileError):
    """A published dataset is in none of the places."""


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "gkmeans"


def _found(name: str, places: list[Path]) -> dict[str, Path]:
    """The files of a published dataset, all in one of the places or in its subfolder of the dataset's name."""
    known, looked = _KNOWN[name], []
    for place in places:
        for folder in (place, *(place / sub for sub in known.folders)):
            there = {
                role: next((folder / file for file in names if (folder / file).is_file()), None)
                for role, names in known.names.items()
            }
            lacking = [known.names[role][0] for role, file in there.items() if file is None]
            if not lacking:
                return {role: file for role, file in there.items() if file is not None}
            looked.append(f"{folder} (without {', '.join(lacking)})" if len(lacking) < len(there) else str(folder))
    raise _NowhereError(
        f"{name} ({', '.join(names[0] for names in known.names.values())}) is not in {', '.join(looked)}; pass path= "
        "or set GKMEANS_DATA to its folder, or let it be downloaded (no path, download=True)"
    )


def _own(folder: Path) -> dict[str, Path]:
    """``learn.*``, ``base.*``, ``query.*`` and ``groundtruth.*`` of a folder, also with a prefix."""
    if not folder.is_dir():
        raise FileError(f"{folder} is not there; pass a folder with learn.*, base.* and query.*, or an HDF5 file")
    out = {}
    there = sorted(file for file in folder.iterdir() if file.suffix.lower() in vectors.SUFFIXES)
    for role in ROLES:
        fitting = [file for file in there if file.name.split(".")[0].split("_")[-1] == role]
        if len(fitting) > 1:
            names = ", ".join(file.name for file in fitting)
            raise FileError(f"{folder} has several files for {role}: {names}; keep one of them")
        if fitting:
            out[role] = fitting[0]
        elif role != "groundtruth":
            names = ", ".join(file.name for file in there) or "no vector file"
            raise FileError(f"{folder} has no {role}.* ({names}); add it as {role}{', '.join(vectors.SUFFIXES)}")
    return out


def _from_files(name: str, found: dict[str, Path]) -> Dataset:
    arrays = {role: vectors.read(file) for role, file in found.items()}
    return _checked(name, arrays, {role: str(file) for role, file in found.items()})


def _check_hdf5(name: str, path: Path) -> None:
    """Raise where a file is of another kind than HDF5, by its first bytes or else by its name."""
    suffix = path.suffix.lower()
    try:
        kind = _formats.content(path) or vectors.SUFFIXES.get(suffix, "no vector file")
    except OSError as error:
        raise _formats.bad(path, error.strerror or str(error), "check the path") from error
    if kind == "HDF5":
        return
    files = (names[0] for names in _KNOWN[name].names.values()) if name in _KNOWN else ("learn.*", "base.*", "query.*")
    what = f"a {suffix} file" if kind == "vecs" else kind
    raise FileError(f"{path} is {what}, one file and no HDF5; pass the folder that holds {', '.join(files)}")


def _from_hdf5(name: str, path: Path) -> Dataset:
    there = _formats.hdf5_names(path)
    wanted = {role: part for role, part in _HDF5.items() if role != "groundtruth" or part in there}
    distance = _formats.hdf5_attribute(path, "distance")
    if "groundtruth" in wanted and distance not in (None, "euclidean"):
        del wanted["groundtruth"]
        warnings.warn(
            f"the neighbours in {path} are nearest by the distance {distance!r}, not the Euclidean; they are left "
            "out and groundtruth is None: gkmeans.metrics.nearest finds the Euclidean ones",
            DataWarning,
            stacklevel=3,
        )
    arrays = {role: vectors.read(path, dataset=part) for role, part in wanted.items()}
    return _checked(name, arrays, {role: f"{part} of {path}" for role, part in wanted.items()})


def _checked(name: str, arrays: dict[str, NDArray[Any]], origin: dict[str, str]) -> Dataset:
    """The arrays as a dataset, where they fit together."""
    arrays.setdefault("base", arrays["learn"])
    origin.setdefault("base", origin["learn"])
    for role, array in arrays.items():
        if array.ndim != 2:
            raise FileError(f"{origin[role]} has shape {array.shape}; {role} must be (n, P)")
    width = arrays["learn"].shape[1]
    for role in ("base", "query"):
        if arrays[role].shape[1] != width:
            raise FileError(
                f"{origin[role]} has vectors of {arrays[role].shape[1]} numbers and {origin['learn']} of {width}; "
                "take files of one dataset"
            )
    truth = arrays.get("groundtruth")
    if truth is not None:
        rows, n = len(arrays["query"]), len(arrays["base"])
        if truth.dtype.kind not in "iu" or len(truth) != rows:
            raise FileError(
                f"{origin['groundtruth']} holds {truth.dtype} of shape {truth.shape}; ground truth must be integers, a "
                f"row for each of the {rows} queries"
            )
        low, high = int(truth.min()), int(truth.max())
        if low < 0 or high >= n:
            raise FileError(
                f"{origin['groundtruth']} names row {low if low < 0 else high} of a base with rows 0 … {n - 1}; take "
                "files of one dataset"
            )
    return Dataset(name, arrays["learn"], arrays["base"], arrays["query"], truth)

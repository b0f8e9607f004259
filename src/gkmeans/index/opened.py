"""Indexes on disk, opened."""

from __future__ import annotations

import os
from pathlib import Path

from .. import _files, store
from .._files import FileError
from .._rows import Floats
from ..estimators.base import AdditiveQuantizer
from .base import NORMS
from .coarse import check_centres
from .disk import CENTRES, LISTS, MODEL, Disk, digest_of, read_manifest, read_segment
from .flat import FlatIndex
from .ivf import IVFIndex
from .lookup import METRICS, Lists
from .segment import State

_TRIES = 10


def open_index(
    folder: str | os.PathLike[str], *, verify: bool = True, n_jobs: int | None = None
) -> FlatIndex | IVFIndex:
    """Open an index that ``save`` wrote, its codes memory-mapped.

    ``add``, ``remove`` and ``compact`` of an opened index change the folder: each is there whole once it returns, and
    not at all before. The first of them makes this index the folder's one writer until ``close``, or until the process
    ends; others may read meanwhile, and see the index as it was when they opened it.

    Parameters
    ----------
    folder : str or path
        The folder.
    verify : bool, default=True
        Read every file once and check its sha256; False checks the headers alone, in no time.
    n_jobs : int or None, default=None
        Threads of a search.

    Returns
    -------
    FlatIndex or IVFIndex
        As it was saved.

    Raises
    ------
    FileError
        Where the folder is no index, or a file of it is missing, damaged, foreign, or of a newer version.

    Examples
    --------
    >>> import gkmeans as gk, tempfile, os
    >>> sample = gk.datasets.load_sample()
    >>> est = gk.GroupKMeans(2, 8, max_iter=3, init_iter=3, random_state=0).fit(sample.learn[:500])
    >>> index = gk.FlatIndex(est)
    >>> ids = index.add(sample.base[:100])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index.save(os.path.join(folder, "base"))
    ...     with gk.open_index(os.path.join(folder, "base")) as again:
    ...         ids = again.add(sample.base[100:103])
    ...     len(gk.open_index(os.path.join(folder, "base"))), ids.tolist()
    (103, [100, 101, 102])
    """
    path = Path(folder)
    for left in reversed(range(_TRIES)):
        manifest = read_manifest(path)
        try:
            return _opened(path, manifest, verify, n_jobs)
        except FileNotFoundError as error:  # a writer may have replaced a segment since the manifest was read
            if left == 0 or read_manifest(path)["serial"] == manifest["serial"]:
                raise FileError(f"{error.filename} is missing, which the manifest names; use a copy of it") from error
        except OSError as error:
            raise FileError(f"{error.filename or path} cannot be read ({error}); use a copy of it") from error
    raise AssertionError


def _opened(folder: Path, manifest: dict[str, object], verify: bool, n_jobs: int | None) -> FlatIndex | IVFIndex:
    kind, metric, norms = (str(manifest.get(name)) for name in ("kind", "metric", "norms"))
    if kind not in ("flat", "ivf") or metric not in METRICS or norms not in NORMS:
        raise FileError(
            f"{folder} holds a {kind} index ({metric}, {norms}), which this gkmeans does not know: use a newer one"
        )
    names = {"model": MODEL} if kind == "flat" else {"model": MODEL, "lists": LISTS}
    for key, name in names.items():
        if digest_of(folder / name) != manifest.get(key):
            raise FileError(f"{folder / name} is not the file that the index was made with; use a copy of it")
    est = store.load(folder / MODEL)
    index: FlatIndex | IVFIndex
    if kind == "flat":
        index = FlatIndex(est, metric, norms=norms, n_jobs=n_jobs)
    else:
        index = IVFIndex._of(est, *_centres(folder / LISTS, est), metric, norms, n_jobs)
    entries = manifest["segments"]
    assert isinstance(entries, list)
    segments = tuple(read_segment(folder, entry, index._lookup, norms, verify) for entry in entries)
    next_id = int(str(manifest["next_id"]))
    for segment in segments:
        if next_id <= segment.greatest(read=verify):
            raise FileError(f"{folder / segment.file} holds an id of {next_id} or more, the next one; use a copy of it")
    description = {name: manifest[name] for name in ("kind", "metric", "norms", *names, "uuid") if name in manifest}
    index._disk = Disk(folder, description, int(str(manifest["serial"])))
    index._state = State(segments, next_id)
    return index


def _centres(path: Path, est: AdditiveQuantizer) -> tuple[Floats, Lists]:
    """Centres and groups of a file."""
    arrays, _ = _files.read(path, CENTRES)
    try:
        centres, firsts = arrays["centres"], arrays["firsts"]
        check_centres(centres, firsts, est.n_features_in_)
        if est.shift_.any():
            raise ValueError("a model that is not one of residuals")
    except (KeyError, ValueError) as error:
        raise FileError(f"{path} does not hold the lists of this index ({error}); use a copy of it") from error
    return centres, firsts

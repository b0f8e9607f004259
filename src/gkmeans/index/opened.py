"""Indexes on disk, opened."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from .. import store
from .._files import FileError
from .disk import MODEL, Disk, read_manifest, read_segment
from .flat import NORMS, FlatIndex
from .lookup import METRICS
from .segment import State

_TRIES = 10


def open_index(folder: str | os.PathLike[str], *, verify: bool = True, n_jobs: int | None = None) -> FlatIndex:
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
    FlatIndex

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
    raise AssertionError


def _opened(folder: Path, manifest: dict[str, object], verify: bool, n_jobs: int | None) -> FlatIndex:
    kind, metric, norms = (str(manifest.get(name)) for name in ("kind", "metric", "norms"))
    if kind != "flat" or metric not in METRICS or norms not in NORMS:
        raise FileError(
            f"{folder} holds a {kind} index ({metric}, {norms}), which this gkmeans does not know: use a newer one"
        )
    if hashlib.sha256((folder / MODEL).read_bytes()).hexdigest() != manifest.get("model"):
        raise FileError(f"{folder / MODEL} is not the model that the index was made with; use a copy of it")
    index = FlatIndex(store.load(folder / MODEL), metric, norms=norms, n_jobs=n_jobs)
    entries = manifest["segments"]
    assert isinstance(entries, list)
    segments = tuple(read_segment(folder, entry, index._lookup, norms, verify) for entry in entries)
    description = {name: manifest[name] for name in ("kind", "metric", "norms", "model")}
    index._disk = Disk(folder, description, int(str(manifest["serial"])))
    index._state = State(segments, int(str(manifest["next_id"])))
    return index

"""Models on disk: one safetensors file each, read back into the estimator that wrote it."""

from __future__ import annotations

import os

from . import _files
from .estimators.base import AdditiveQuantizer
from .estimators.cartesian import CartesianKMeans
from .estimators.coding import KIND
from .estimators.group import GroupKMeans
from .estimators.optimized_cartesian import OptimizedCartesianKMeans
from .estimators.saving import restored

ESTIMATORS: dict[str, type[AdditiveQuantizer]] = {
    kind.__name__: kind for kind in (GroupKMeans, CartesianKMeans, OptimizedCartesianKMeans)
}


def load(path: str | os.PathLike[str]) -> AdditiveQuantizer:
    """Read a model that ``save`` wrote.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    The fitted estimator

    Raises
    ------
    FileError
        Where the file is truncated, changed, foreign, or of an unknown version.

    Examples
    --------
    >>> import gkmeans as gk, tempfile, os
    >>> learn = gk.datasets.load_sample().learn[:500]
    >>> est = gk.GroupKMeans(2, 8, max_iter=3, init_iter=3, random_state=0).fit(learn)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     est.save(path)
    ...     again = gk.load(path)
    >>> bool((again.encode(learn) == est.encode(learn)).all())
    True
    """
    arrays, description = _files.read(path, KIND)
    estimator = ESTIMATORS.get(str(description.get("estimator")))
    if estimator is None:
        known = ", ".join(ESTIMATORS)
        raise _files.FileError(f"{path} holds a {description.get('estimator')!r}; this gkmeans knows {known}")
    try:
        return restored(estimator, arrays, description)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise _files.FileError(f"{path} is inconsistent ({error}); save it anew or take a copy") from error

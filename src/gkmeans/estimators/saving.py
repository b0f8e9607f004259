"""A fitted estimator as the arrays and the description of one file, and back, every part checked."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import _files
from .._packing import (
    packed_dictionaries,
    packed_statistics,
    part_of,
    restored_dictionaries,
    restored_statistics,
    tensor,
)
from ..streaming import Chain, Seen

Estimator = TypeVar("Estimator")
_PLAIN = (str, int, float, bool, type(None))


def packed(est: Any) -> tuple[_files.Arrays, dict[str, Any]]:
    """Arrays and description of a fitted estimator."""
    params = est.get_params(deep=False)
    arrays: _files.Arrays = {
        "dictionaries": est.dictionaries_,
        "shift": est.shift_,
        "history": np.asarray(est.history_, np.float64),
    }
    if not isinstance(params.get("init", ""), str):
        start = getattr(params["init"], "dictionaries_", params["init"])
        arrays["init"] = _storable(np.asarray(start))
        params["init"] = "array"
    plain = {key: value if isinstance(value, _PLAIN) else _plain(value) for key, value in params.items()}
    stages = []
    for s, stage in enumerate(est.stages_):
        edges, own = packed_dictionaries(stage)
        stages.append(edges)
        arrays |= {f"stage{s}.{name}": array for name, array in own.items()}
    description = {
        "estimator": type(est).__name__,
        "params": plain,
        "n_iter": int(est.n_iter_),
        "scale": float(est.scale_),
        "stages": stages,
    }
    if hasattr(est, "usage_"):
        arrays["usage"], description["residual"] = est.usage_, est.residual_
    if hasattr(est, "feature_names_in_"):
        description["feature_names"] = [str(name) for name in est.feature_names_in_]
    if hasattr(est, "seen_"):
        seen: Seen = est.seen_
        description["seen"] = {"weight": seen.weight, "digest": seen.digest, "usual": seen.usual}
        for part, links in (("start", seen.start), ("since", seen.since)):
            for i, statistics in enumerate(links):
                arrays |= {f"{part}{i}.{name}": array for name, array in packed_statistics(statistics).items()}
    return arrays, description


def restored(kind: type[Estimator], arrays: _files.Arrays, description: dict[str, Any]) -> Estimator:
    """A fitted estimator from what ``packed`` gave; raises ValueError where the parts do not fit together."""
    params = dict(description["params"])
    if params.get("init") == "array":
        params["init"] = tensor(arrays, "init", np.dtype(arrays["init"].dtype), 3)
    est: Any = kind(**params)
    D = tensor(arrays, "dictionaries", np.dtype(np.float32), 3)
    C, K, P = D.shape
    if min(D.shape) < 1 or K > 65536:
        raise ValueError(f"dictionaries of shape {D.shape}")
    shift = tensor(arrays, "shift", np.dtype(np.float32), 1)
    scale = float(description["scale"])
    if shift.shape != (P,) or not np.isfinite(scale) or scale <= 0 or np.frexp(scale)[0] != 0.5:
        raise ValueError(f"a frame of shape {shift.shape} and scale {scale}")
    est.dictionaries_, est.shift_, est.scale_ = D, shift, scale
    est.stages_ = tuple(
        restored_dictionaries(arrays, f"stage{s}", edges, (C, K, P)) for s, edges in enumerate(description["stages"])
    )
    for s, stage in enumerate(est.stages_):
        if stage.R is None:
            raise ValueError(f"no array 'stage{s}.R'")
    est._check_stages()
    if "usage" in arrays:
        est.usage_, est.residual_ = tensor(arrays, "usage", np.dtype(np.float32), 2), float(description["residual"])
        if est.usage_.shape != (C, K) or est.usage_.min() < 0 or not 0 <= est.residual_ < np.inf:
            raise ValueError(f"a usage of shape {est.usage_.shape} and a residual of {est.residual_}")
    est.history_ = tensor(arrays, "history", np.dtype(np.float64), 1)
    est.n_iter_ = description["n_iter"]
    if not isinstance(est.n_iter_, int) or not 0 <= est.n_iter_ <= len(est.history_):
        raise ValueError(f"n_iter {est.n_iter_!r} with a history of {len(est.history_)}")
    est.n_features_in_ = P
    if names := description.get("feature_names"):
        if len(names) != P:
            raise ValueError(f"{len(names)} feature names for {P} features")
        est.feature_names_in_ = np.array([str(name) for name in names], dtype=object)
    if "seen" in description:
        est.seen_ = _restored_seen(arrays, description["seen"], est._links()[0])
    return est  # type: ignore[no-any-return]


def _restored_seen(arrays: _files.Arrays, description: dict[str, Any], chain: Chain) -> Seen:
    start, since = (
        tuple(restored_statistics(part_of(arrays, f"{part}{i}"), link) for i, link in enumerate(chain))
        for part in ("start", "since")
    )
    weight = float(description["weight"])
    if not 0 <= weight <= 1:
        raise ValueError(f"a start of weight {weight}")
    usual = description.get("usual")
    if usual is not None and not 0 <= float(usual) < np.inf:
        raise ValueError(f"batches of relative distortion {usual}")
    return Seen(start, since, weight, str(description["digest"]), None if usual is None else float(usual))


def told(value: Any) -> Any:
    """A parameter as JSON can tell it from others: itself, or the digest of its array, or its type."""
    if isinstance(value, _PLAIN):
        return value
    value = getattr(value, "dictionaries_", value)
    if isinstance(value, np.ndarray | list | tuple):
        array = _storable(np.asarray(value))
        return f"{array.dtype} {array.shape} {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()}"
    return value.item() if isinstance(value, np.generic) else type(value).__name__


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else None


def _storable(array: NDArray[Any]) -> NDArray[Any]:
    """``array`` in a dtype that safetensors has."""
    native = array.astype(array.dtype.newbyteorder("="))
    return native if native.dtype.kind in "iu" or native.dtype.itemsize <= 8 else native.astype(np.float64)

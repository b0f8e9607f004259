"""What every estimator shares: the frame of a fit, encode, decode, score, save. What is learned is each one's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from .. import _files
from .._parallel import Workers, spans
from .._progress import Reporter
from .._rows import READ_ROWS, Codes, Data, Floats, Frame, Rows, decode
from .._validation import (
    check_codes,
    check_codewords,
    check_integer,
    check_n_jobs,
    check_tolerance,
    check_X,
    generator,
    warn_about,
)
from ..assignment import Method
from ..dictionaries import Block, Dictionaries
from ..encoding import encode
from ..training import Run, relative

KIND = "gkmeans-model"
_PLAIN = (str, int, float, bool, type(None))


Quantizer = TypeVar("Quantizer", bound="AdditiveQuantizer")


@dataclass(frozen=True)
class Learned:
    """What training gives: dictionaries, the training rows' codes, and the stages that encoding needs."""

    final: Dictionaries
    codes: Codes
    stages: tuple[Dictionaries, ...]


class AdditiveQuantizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A fitted quantizer: ``x ≈ Σ_c dictionaries_[c, code_c]``."""

    dictionaries_: Floats
    codes_: Codes
    shift_: Floats
    scale_: float
    stages_: tuple[Dictionaries, ...]
    history_: NDArray[np.float64]
    n_iter_: int
    n_features_in_: int
    n_dictionaries: int
    n_codewords: int
    max_iter: int
    tol: float
    random_state: Any
    n_jobs: int | None
    verbose: int

    # What each estimator has of its own.

    def _sizes(self) -> tuple[int, int]:
        """Columns of the codes, and K, from the parameters."""
        return check_integer("n_dictionaries", self.n_dictionaries, 1), check_codewords(self.n_codewords)

    def _method(self, C: int, K: int) -> Method:
        """How the C codes of a row are chosen."""
        raise NotImplementedError

    def _check_parameters(self) -> None:
        """Raise where a parameter of its own is wrong whatever the data."""

    def _check_data(self, shape: tuple[int, int]) -> None:
        """Raise where the parameters do not fit data of this shape."""

    def _check_encoding(self, n: int) -> None:
        """Raise where ``n`` rows cannot be encoded in the time allowed."""

    def _start_iterations(self, P: int) -> int:
        """Most iterations before those of the training proper."""
        return 0

    def _learn(self, rows: Data, run: Run, max_iter: int) -> Learned:
        """Train."""
        raise NotImplementedError

    def _final(self) -> Dictionaries:
        """``dictionaries_`` in the frame of the arithmetic."""
        raise NotImplementedError

    def _check_stages(self) -> None:
        """Raise where the stages of a file are not those of this estimator."""

    def _encoding(self, effort: int | None) -> tuple[Method, tuple[Dictionaries, ...]]:
        """How new points are coded, and by what, one after the other, ``_final`` last; ``effort`` None: the default."""
        if effort is not None:
            raise ValueError(
                f"effort={effort!r} is for GroupKMeans; {type(self).__name__} encodes in one way, so leave effort out"
            )
        return self._method(*self.dictionaries_.shape[:2]), (self._final(),)

    # What they share.

    def fit(self: Quantizer, X: ArrayLike, y: Any = None) -> Quantizer:
        """Learn the dictionaries from vectors ``X`` (n, P); ``y`` is ignored.

        Where the fit fails or is interrupted, an earlier fit stays as it was.
        """
        rng = self._check_settings()
        with self._keeping_features():
            data = check_X(self, X, reset=True)
            self._check_data(data.shape)
            warn_about(data, self._sizes()[1])
            self._fit(lambda workers: Rows(data, Frame.of(data, workers)), rng)
        return self

    def _check_settings(self) -> np.random.Generator:
        """Raise where a parameter is wrong whatever the data; what all draws of a fit come from."""
        self._method(*self._sizes())
        self._check_parameters()
        check_integer("max_iter", self.max_iter, 1)
        check_tolerance(self.tol)
        check_integer("verbose", int(self.verbose) if self.verbose in (True, False) else self.verbose, 0)
        check_n_jobs(self.n_jobs)
        return generator(self.random_state)

    def _fit(self, opened: Callable[[Workers], Data], rng: np.random.Generator) -> None:
        """``fit`` with parameters and data already checked."""
        with Workers(self.n_jobs) as workers, Reporter("fit", self.verbose) as reporter:
            rows = opened(workers)
            reporter.expect(self._start_iterations(rows.n_features) + self.max_iter)
            run = Run(rows.energy(workers), self._method(*self._sizes()), self.tol, rng, workers, reporter)
            learned = self._learn(rows, run, self.max_iter)
            learned = replace(learned, codes=np.asarray(learned.codes))
        self._keep(learned, rows.frame, run)

    def _keep(self, learned: Learned, frame: Frame, run: Run) -> None:
        """Set what a fit leaves."""
        self.dictionaries_ = full_length(learned.final, frame)
        self.codes_ = learned.codes
        self.shift_, self.scale_ = frame.shift, frame.scale
        self.stages_ = learned.stages
        self.history_ = np.array(run.history)
        self.n_iter_ = run.last

    def _frame(self) -> Frame:
        return Frame(self.shift_, self.scale_)

    @contextmanager
    def _keeping_features(self) -> Iterator[None]:
        """What scikit-learn notes of the input before a fit is undone where the fit fails or is interrupted."""
        names = ("n_features_in_", "feature_names_in_")
        before = {name: getattr(self, name) for name in names if hasattr(self, name)}
        try:
            yield
        except BaseException:
            for name in names:
                self.__dict__.pop(name, None)
            self.__dict__.update(before)
            raise

    def __sklearn_clone__(self) -> AdditiveQuantizer:
        """Unfitted copy; an ``init`` stays as it is, since a fitted estimator there is data, not a part to refit."""
        params = self.get_params(deep=False)
        copied = {name: value if name == "init" else clone(value, safe=False) for name, value in params.items()}
        return type(self)(**copied)

    def encode(self, X: ArrayLike, codes: ArrayLike | None = None, *, effort: int | None = None) -> Codes:
        """Compress vectors.

        Parameters
        ----------
        X : (n, P) array
            Vectors of any numeric dtype; a memory-mapped array is read block by block.
        codes : (n, C) integers, optional
            Codes to start from, each row only ever improved; by default the stages of the training are replayed.
        effort : int from 0 to 9, optional
            How hard to look for the best codes, instead of the estimator's own ``effort``; of ``GroupKMeans`` only.

        Returns
        -------
        (n, C) array of uint8, or uint16 where ``n_codewords`` is above 256
        """
        check_is_fitted(self)
        data = check_X(self, X, reset=False, scale=self.scale_)
        C, K, _ = self.dictionaries_.shape
        given = None if codes is None else check_codes(codes, C, K)
        if given is not None and len(given) != len(data):
            raise ValueError(f"codes have {len(given)} rows but X has {len(data)}; pass a row of codes for each vector")
        return self._encode(data, given, effort)

    def _encode(self, data: NDArray[np.generic], given: Codes | None, effort: int | None = None) -> Codes:
        """``encode`` of rows and codes already checked."""
        self._check_encoding(len(data))
        with Workers(check_n_jobs(self.n_jobs)) as workers, Reporter("encode", self.verbose) as reporter:
            reporter.expect(len(data))
            return self._choose(data, given, workers, reporter.step, effort)

    def _choose(
        self,
        data: NDArray[np.generic],
        given: Codes | None,
        workers: Workers,
        done: Callable[[int], None] = lambda count: None,
        effort: int | None = None,
    ) -> Codes:
        """Codes of rows already checked, by threads already there."""
        method, stages = self._encoding(effort)
        return encode(Rows(data, self._frame()), stages, method, given, workers, done)

    def decode(self, codes: ArrayLike) -> Floats:
        """Vectors (n, P) float32 that ``codes`` (n, C) stand for."""
        check_is_fitted(self)
        C, K, P = self.dictionaries_.shape
        checked = check_codes(codes, C, K)
        out = np.empty((len(checked), P), np.float32)
        with Workers(check_n_jobs(self.n_jobs)) as workers:
            workers.map(
                lambda span: out.__setitem__(slice(*span), decode(self.dictionaries_, checked[slice(*span)])),
                spans(len(checked), READ_ROWS),
            )
        return out

    def relative_distortion(self, X: ArrayLike, codes: ArrayLike | None = None) -> float:
        """Σ‖x − x̂‖² / Σ‖x‖² of ``X``, encoded afresh, or with the ``codes`` given."""
        check_is_fitted(self)
        data = check_X(self, X, reset=False, scale=self.scale_)
        C, K, _ = self.dictionaries_.shape
        chosen = self._encode(data, None) if codes is None else check_codes(codes, C, K)
        if len(chosen) != len(data):
            raise ValueError(
                f"codes have {len(chosen)} rows but X has {len(data)}; pass a row of codes for each vector"
            )

        def part(span: tuple[int, int]) -> tuple[float, float]:
            x = np.asarray(data[slice(*span)], np.float64) * self.scale_
            r = x - decode(self.dictionaries_, chosen[slice(*span)]).astype(np.float64) * self.scale_
            return float(np.einsum("ij,ij->", r, r)), float(np.einsum("ij,ij->", x, x))

        with Workers(check_n_jobs(self.n_jobs)) as workers:
            error, energy = np.sum(workers.map(part, spans(len(data), READ_ROWS)), axis=0)
        return relative(float(error), float(energy))

    def transform(self, X: ArrayLike) -> Codes:
        """Codes of ``X``: scikit-learn's word for ``encode``."""
        return self.encode(X)

    def inverse_transform(self, codes: ArrayLike) -> Floats:
        """Vectors of ``codes``: scikit-learn's word for ``decode``."""
        return self.decode(codes)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Minus the relative distortion of ``X``: higher is better, as scikit-learn's searches expect."""
        return -self.relative_distortion(X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Names of the columns of the codes."""
        check_is_fitted(self)
        prefix = type(self).__name__.lower()
        return np.array([f"{prefix}{c}" for c in range(len(self.dictionaries_))], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one safetensors file; ``gkmeans.load`` reads it.

        The file holds everything but ``codes_``, which belong to the data, not to the model.
        A ``random_state`` that is not a number or None is saved as None, a fitted estimator as ``init`` as its
        dictionaries.
        """
        check_is_fitted(self)
        params = self.get_params(deep=False)
        arrays: _files.Arrays = {
            "dictionaries": self.dictionaries_,
            "shift": self.shift_,
            "history": np.asarray(self.history_, np.float64),
        }
        if not isinstance(params.get("init", ""), str):
            start = getattr(params["init"], "dictionaries_", params["init"])
            arrays["init"] = _storable(np.asarray(start))
            params["init"] = "array"
        plain = {key: value if isinstance(value, _PLAIN) else _plain(value) for key, value in params.items()}
        stages = []
        for s, stage in enumerate(self.stages_):
            stages.append([_edges(stage, "dims"), _edges(stage, "dictionaries")])
            arrays |= {f"stage{s}.D{u}": D for u, D in enumerate(stage.D)}
            if stage.R is not None:
                arrays[f"stage{s}.R"] = stage.R
        description = {
            "estimator": type(self).__name__,
            "params": plain,
            "n_iter": int(self.n_iter_),
            "scale": float(self.scale_),
            "stages": stages,
        }
        if hasattr(self, "feature_names_in_"):
            description["feature_names"] = [str(name) for name in self.feature_names_in_]
        _files.write(path, KIND, arrays, description)

    @classmethod
    def _restored(cls, arrays: _files.Arrays, description: dict[str, Any]) -> AdditiveQuantizer:
        """A fitted estimator from what ``save`` wrote; raises ValueError where the parts do not fit together."""
        params = dict(description["params"])
        if params.get("init") == "array":
            params["init"] = _tensor(arrays, "init", np.dtype(arrays["init"].dtype), 3)
        estimator = cls(**params)
        D = _tensor(arrays, "dictionaries", np.dtype(np.float32), 3)
        C, K, P = D.shape
        if min(D.shape) < 1 or K > 65536:
            raise ValueError(f"dictionaries of shape {D.shape}")
        shift = _tensor(arrays, "shift", np.dtype(np.float32), 1)
        scale = float(description["scale"])
        if shift.shape != (P,) or not np.isfinite(scale) or scale <= 0 or np.frexp(scale)[0] != 0.5:
            raise ValueError(f"a frame of shape {shift.shape} and scale {scale}")
        estimator.dictionaries_, estimator.shift_, estimator.scale_ = D, shift, scale
        estimator.stages_ = tuple(
            _restored_stage(arrays, s, stage, (C, K, P)) for s, stage in enumerate(description["stages"])
        )
        estimator._check_stages()
        estimator.history_ = _tensor(arrays, "history", np.dtype(np.float64), 1)
        estimator.n_iter_ = description["n_iter"]
        if not isinstance(estimator.n_iter_, int) or not 0 <= estimator.n_iter_ <= len(estimator.history_):
            raise ValueError(f"n_iter {estimator.n_iter_!r} with a history of {len(estimator.history_)}")
        estimator.n_features_in_ = P
        if names := description.get("feature_names"):
            if len(names) != P:
                raise ValueError(f"{len(names)} feature names for {P} features")
            estimator.feature_names_in_ = np.array([str(name) for name in names], dtype=object)
        return estimator


def full_length(final: Dictionaries, frame: Frame) -> Floats:
    """``dictionaries_`` (C, K, P) in the units of the input, from those in the frame of the arithmetic."""
    D = final.full().astype(np.float64) / frame.scale
    D[0] += frame.shift
    return np.ascontiguousarray(D, np.float32)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else None


def _storable(array: NDArray[Any]) -> NDArray[Any]:
    """``array`` in a dtype that safetensors has."""
    native = array.astype(array.dtype.newbyteorder("="))
    return native if native.dtype.kind in "iu" or native.dtype.itemsize <= 8 else native.astype(np.float64)


def _edges(stage: Dictionaries, axis: str) -> list[int]:
    return [0] + [getattr(block, axis).stop for block in stage.blocks]


def _tensor(arrays: _files.Arrays, name: str, dtype: np.dtype[Any], ndim: int) -> NDArray[Any]:
    array = arrays[name]
    if array.dtype != dtype or array.ndim != ndim or not np.isfinite(array).all():
        raise ValueError(f"array {name!r} of dtype {array.dtype} and shape {array.shape}, or not finite")
    return array


def _restored_stage(arrays: _files.Arrays, s: int, stage: Any, shape: tuple[int, int, int]) -> Dictionaries:
    C, K, P = shape
    dims, dictionaries = ([int(edge) for edge in axis] for axis in stage)
    for axis, end in ((dims, P), (dictionaries, C)):
        if axis[0] != 0 or axis[-1] != end or sorted(set(axis)) != axis or len(axis) != len(dims):
            raise ValueError(f"stage {s} with block edges {axis} for {end}")
    blocks = tuple(
        Block(slice(dims[u], dims[u + 1]), slice(dictionaries[u], dictionaries[u + 1])) for u in range(len(dims) - 1)
    )
    D = []
    for u, block in enumerate(blocks):
        Du = _tensor(arrays, f"stage{s}.D{u}", np.dtype(np.float32), 3)
        if Du.shape != (dictionaries[u + 1] - dictionaries[u], K, dims[u + 1] - dims[u]):
            raise ValueError(f"stage {s} with dictionaries of shape {Du.shape} in {block}")
        D.append(Du)
    R = _tensor(arrays, f"stage{s}.R", np.dtype(np.float32), 2)
    if R.shape != (P, P):
        raise ValueError(f"stage {s} with a rotation of shape {R.shape}")
    return Dictionaries(blocks, tuple(D), R)

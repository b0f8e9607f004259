"""What every fitted estimator does with vectors and codes: encode, decode, score, save."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from .. import _files
from .._frame import Frame
from .._parallel import Lock, Workers, spans
from .._progress import Reporter
from .._rows import READ_ROWS, Codes, Floats, Rows, decode
from .._validation import check_codes, check_n_jobs, check_X
from ..assignment import Method
from ..dictionaries import Dictionaries
from ..encoding import Encoder, encode
from ..streaming import Chain
from ..training import relative
from . import saving

READY, READY_BYTES = 8, 1 << 28
"""Encoders that are kept from call to call, and their bytes in all: with few rows the tables are most of the work."""

KIND = "gkmeans-model"


class _Ready:
    """The encoders used last, each with the model it was made of; another one is made where the model has changed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: list[tuple[weakref.ref[Coder], tuple[Any, ...], Encoder]] = []

    def encoder(self, est: Coder, effort: int | None, workers: Workers) -> Encoder:
        """That of the estimator as it is now."""
        key = (*est._settings(effort), *(fingerprint(array) for array in est._fitted_arrays()), est.scale_)
        with self._lock:
            for place, one in enumerate(self._held):
                if one[0]() is est and one[1] == key:
                    self._held.insert(0, self._held.pop(place))
                    return est._tuned(one[2], effort)
        method, stages = est._encoding(effort)
        made = Encoder(stages, method, workers)
        with self._lock:
            self._held.insert(0, (weakref.ref(est, self._dropped), key, made))
            total, kept = 0, []
            for one in self._held[:READY]:
                total += one[2].nbytes
                if total <= READY_BYTES:
                    kept.append(one)
            self._held = kept
        return est._tuned(made, effort)

    def _dropped(self, gone: weakref.ref[Coder]) -> None:
        """A model is gone, and so are its encoders. No lock: this may run in the middle of anything."""
        self._held = [one for one in self._held if one[0] is not gone]


def fingerprint(array: Floats) -> int:
    """A number that tells arrays of one shape apart, whatever entry has changed or moved."""
    held = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    out = 0
    for start, stop in spans(len(held), len(_PLACES)):
        part = int((held[start:stop] * _PLACES[: stop - start]).sum(dtype=np.uint64))
        out = (out * 0x9E3779B97F4A7C15 + part) % 2**64
    return out


_PLACES = np.arange(1, 2 << 15, 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_ready = _Ready()


class Coder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A fitted quantizer: ``x ≈ Σ_c dictionaries_[c, code_c]``."""

    dictionaries_: Floats
    codes_: Codes
    shift_: Floats
    scale_: float
    stages_: Chain
    usage_: Floats
    residual_: float = 0.0
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

    def _method(self, C: int, K: int) -> Method:
        """How the C codes of a row are chosen."""
        raise NotImplementedError

    def _check_encoding(self, n: int) -> None:
        """Raise where ``n`` rows cannot be encoded in the time allowed."""

    def _final(self) -> Dictionaries:
        """``dictionaries_`` in the frame of the arithmetic."""
        raise NotImplementedError

    def _encoding(self, effort: int | None, given: bool = False) -> tuple[Method, tuple[Dictionaries, ...]]:
        """How new points are coded, and by what, one after the other, ``_final`` last; ``effort`` None: the default.

        Where codes are ``given``, rows must not end worse than they began.
        """
        self._settings(effort)
        return self._method(*self.dictionaries_.shape[:2]), (self._final(),)

    def _tuned(self, encoder: Encoder, effort: int | None) -> Encoder:
        """An encoder made for these settings, for just this effort."""
        return encoder

    def _settings(self, effort: int | None) -> tuple[Any, ...]:
        """What the tables of an encoding depend on besides the fitted arrays; raises where a setting is wrong."""
        if effort is not None:
            raise ValueError(
                f"effort={effort!r} is for GroupKMeans; {type(self).__name__} encodes in one way, so leave effort out"
            )
        return (self._method(*self.dictionaries_.shape[:2]),)

    def _measured(self, energy: float) -> None:
        """Note what encodings need to know of the rows of the fit, whose squared lengths add to ``energy``."""

    # What they share.

    def _fitted_arrays(self) -> list[Floats]:
        """All that an encoding depends on."""
        stages = [array for stage in self.stages_ for array in (*stage.D, stage.R) if array is not None]
        return [self.dictionaries_, self.shift_, *stages, *([self.usage_] if hasattr(self, "usage_") else [])]

    def _frame(self) -> Frame:
        return Frame(self.shift_, self.scale_)

    def encode(self, X: ArrayLike, codes: ArrayLike | None = None, *, effort: int | None = None) -> Codes:
        """Compress vectors.

        Parameters
        ----------
        X : (n, P) array
            Vectors of any numeric dtype; a memory-mapped array is read block by block.
        codes : (n, C) integers, optional
            Codes to start from, each row only ever improved; by default they are found afresh.
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
        rows = Rows(data, self._frame())
        if given is None:
            return _ready.encoder(self, effort, workers).codes(rows, workers, None, done)
        method, stages = self._encoding(effort, True)
        return encode(rows, stages, method, given, workers, done)

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
        _files.write(path, KIND, *saving.packed(self))

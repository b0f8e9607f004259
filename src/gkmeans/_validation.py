"""User input to checked arrays, or an error that names the value, the rule and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data

from ._parallel import spans
from ._rows import READ_ROWS, Codes, Floats
from .dictionaries import code_dtype

LARGEST_SQUARE = float(np.finfo(np.float32).max) / 16
SMALL_VALUE = 1e-15
MAX_ORDER = 64
MAX_EFFORT = 9
MAX_RELAXATION = 2.0
SMALLEST_VALUE = 1e-36
_SAFE_KINDS = ("uint8", "int8", "uint16", "int16", "bool", "float16")


class DataWarning(UserWarning):
    """The data has a property that a user should know of; the answer given is still right."""


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """``value`` as an int from ``low`` to ``high``."""
    rule = f"an integer from {low} to {high}" if high is not None else f"an integer of at least {low}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name}={value!r} is not an integer; use {rule}")
    number = int(value)
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name}={value!r} is out of range; use {rule}")
    return number


def check_codewords(value: Any) -> int:
    """``n_codewords``: codes must fit uint16."""
    if isinstance(value, Integral) and int(value) > 65536:
        raise ValueError(f"n_codewords={value} does not fit uint16 codes; use at most 65536")
    return check_integer("n_codewords", value, 1, 65536)


def check_order(value: Any, C: int) -> int:
    """``order``: dictionaries assigned jointly, at most all of them."""
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) > C:
        raise ValueError(f"order={value} is larger than n_dictionaries={C}; use an order from 1 to {C}")
    return check_integer("order", value, 1, min(C, MAX_ORDER))


def check_effort(value: Any) -> int:
    """``effort`` of an encoding."""
    return check_integer("effort", value, 0, MAX_EFFORT)


def check_relaxation(value: Any) -> float:
    """``relaxation``: a temperature that the codes can stand."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= MAX_RELAXATION:
        raise ValueError(
            f"relaxation={value!r} is out of range; use a number from 0 (plain training) to {MAX_RELAXATION:g}"
        )
    return float(value)


def check_tolerance(value: Any) -> float:
    """``tol``: a finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < np.inf:
        raise ValueError(f"tol={value!r} is out of range; use a number of at least 0, such as 1e-5")
    return float(value)


def check_decay(value: Any) -> float:
    """``decay``: a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise ValueError(
            f"decay={value!r} is out of range; use a number from 0 (forget all before) to 1 (forget nothing)"
        )
    return float(value)


def check_hours(value: Any) -> float | None:
    """``max_hours``: None, or a number above 0."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise ValueError(f"max_hours={value!r} is out of range; use a number above 0, or None for no limit")
    return float(value)


def check_n_jobs(value: Any) -> int | None:
    """``n_jobs``: None, or an integer that is not 0."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value == 0:
        raise ValueError(
            f"n_jobs={value!r} is not a number of threads; use None for all cores, 1 for one, or -1 for all"
        )
    return int(value)


def check_X(estimator: Any, X: Any, *, reset: bool, scale: float = 1.0, name: str = "X") -> NDArray[np.generic]:
    """Rows (n, P) of real, finite numbers whose squares fit float32, in their own dtype and without a copy.

    ``scale`` is that of the frame the rows will be taken to, ``name`` what the user calls them.
    """
    _check_kind(X, name)
    try:
        out: NDArray[np.generic] = validate_data(
            estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False, ensure_min_samples=1
        )
    except (ValueError, TypeError) as error:
        width = f" with {estimator.n_features_in_} columns" if not reset else ""
        rule = f"pass a 2-d array of real numbers, a vector a row{width}"
        raise type(error)(f"{str(error).rstrip('.')}; {rule}") from error
    for start, stop in spans(len(out), READ_ROWS):
        check_rows(out[start:stop], start, scale, name)
    return out


HALF_EXPONENT = np.uint16(0x7C00)
"""Bits of a float16 that are all set where it is no finite number."""


def check_rows(X: NDArray[Any], first: int, scale: float = 1.0, name: str = "X") -> None:
    """Raise where rows ``name``, of which the first has number ``first``, hold what float32 cannot square."""
    limit = LARGEST_SQUARE / max(1.0, scale) ** 2
    if X.dtype == np.float32 and X.flags.c_contiguous:
        numbers = X.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            if np.dot(numbers, numbers) < limit / 2:  # what is not finite would show, and no row is longer than all
                return
    if X.dtype.name not in _SAFE_KINDS or scale > 1:
        _check_values(X, first, limit, name)
    elif X.dtype == np.float16 and (X.view(np.uint16) & HALF_EXPONENT).max(initial=0) == HALF_EXPONENT:
        _check_finite(X, first, name)


def _check_kind(X: Any, name: str) -> None:
    """Raise for what scikit-learn would take, or refuse without saying what to do."""
    if isinstance(X, Iterable) and not any(hasattr(X, name) for name in ("__len__", "__array__", "__dataframe__")):
        raise ValueError(
            f"{name} is a {type(X).__name__} and no array; pass an array, or to fit gkmeans.Batches of files or of a "
            "function that gives batches anew, and to gkmeans.encode_file a file"
        )
    if np.ma.isMaskedArray(X) and np.ma.getmaskarray(X).any():
        raise ValueError(
            f"{name} is masked in {int(np.ma.getmaskarray(X).sum())} places; fill them first, {name}.filled(value)"
        )
    shape, dtype = getattr(X, "shape", None), getattr(X, "dtype", None)
    if shape is not None and len(shape) > 2:
        raise ValueError(
            f"{name} has shape {tuple(shape)}, {len(shape)} dimensions; it must be 2-d, a vector a row: "
            f"use {name}.reshape(len({name}), -1)"
        )
    kind = getattr(dtype, "kind", None)
    if scipy.sparse.issparse(X) or kind is None:
        return
    if kind == "c":
        raise ValueError(
            f"Complex data not supported: {name} has dtype {dtype}; pass real numbers, for instance {name}.real"
        )
    if kind in "SUVMm":
        raise ValueError(
            f"{name} has dtype {dtype}, which is not numeric; convert it first, for instance by {name}.astype(float)"
        )


def _check_finite(X: NDArray[Any], first: int, name: str) -> None:
    finite = np.isfinite(X)
    if finite.all():
        return
    row, column = (int(i) for i in np.argwhere(~finite)[0])
    what = "NaN" if np.isnan(X[row, column]) else "infinity"
    raise ValueError(
        f"{name} contains {what} in row {first + row}, column {column}; every value must be finite: drop such rows "
        f"or fill them{', for instance with sklearn.impute.SimpleImputer' if name == 'X' else ''}"
    )


def _check_values(X: NDArray[Any], first: int, limit: float, name: str) -> None:
    if X.dtype.kind == "f":
        _check_finite(X, first, name)
    with np.errstate(over="ignore"):
        doubles = X.astype(np.float64)
        squares = np.einsum("ij,ij->i", doubles, doubles)
    if squares.max() > limit:
        row = int(squares.argmax())
        value = float(np.abs(doubles[row]).max())
        raise ValueError(
            f"{name} holds {value:.3g} in row {first + row}; its square overflows float32 (the squared length of a row "
            f"must stay below {limit:.3g} here): divide {name}, for instance by {value:.1g}"
        )


def check_codes(codes: ArrayLike, C: int, K: int) -> Codes:
    """Codes (n, C) of unsigned or other integers below K."""
    out = np.asarray(codes)
    if out.ndim != 2 or out.shape[1] != C:
        raise ValueError(f"codes have shape {out.shape}; they must be (n, {C}), a column for each dictionary")
    if out.dtype.kind not in "ui":
        raise ValueError(
            f"codes have dtype {out.dtype}; they must be integers as encode gives, {code_dtype(K).__name__}"
        )
    if out.size and (int(out.max()) >= K or int(out.min()) < 0):
        wrong = int(out.max()) if int(out.max()) >= K else int(out.min())
        raise ValueError(f"codes hold {wrong}; with n_codewords={K} they must lie in 0 … {K - 1}")
    return out.astype(code_dtype(K), copy=False)


def check_start(init: NDArray[Any], shape: tuple[int, int, int], scale: float) -> Floats:
    """An ``init`` array of shape (C, K, P) for a frame of this scale."""
    if init.shape != shape:
        raise ValueError(f"init has shape {init.shape}; it must be (n_dictionaries, n_codewords, n_features) = {shape}")
    if init.dtype.kind not in "fiu" or not np.isfinite(init).all():
        raise ValueError(f"init ({init.dtype}) holds values that are not finite numbers; pass dictionaries_ of a fit")
    largest = float(np.abs(init.astype(np.float64)).max())
    if largest * max(1.0, scale) > np.sqrt(LARGEST_SQUARE / shape[2]) / shape[0]:
        raise ValueError(
            f"init holds {largest:.3g}, whose square overflows float32; pass codewords in the units of X, such as "
            "dictionaries_ of a fit"
        )
    return np.asarray(init, np.float32)

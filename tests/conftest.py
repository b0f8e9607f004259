"""Shared by the tests: small data in all its kinds, what to compare, the levels of this CPU, and one seed."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest

import gkmeans as gk
import reference
from gkmeans import _core
from gkmeans._parallel import Workers
from gkmeans.folds import Folds
from gkmeans.index.lookup import tiled

LEVELS = _core.simd_levels()
# a message shows the way out with one of these
WAY_OUT = re.compile(
    r"\b(use|pass|convert|divide|drop|fill|reshape|call|save|give|set|scale|remove)\b|\.toarray\(|\.reshape\(|\.astype\(",
    re.IGNORECASE,
)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def workers():
    with Workers(2) as pool:
        yield pool


@pytest.fixture
def untried(monkeypatch):
    """Relaxed training, whatever a trial would say."""
    monkeypatch.setattr(gk.GroupKMeans, "_relaxing_pays", lambda self, *rest: True)
    monkeypatch.setattr(gk.GroupKMeans, "_leading", lambda self, *rest: None)


class Verdict(list):
    """What rows held say of dictionaries without and with samples, fit after fit, and whether samples are ``taken``."""

    def __init__(self, taken):
        self.taken = taken


@pytest.fixture(params=[True, False], ids=["samples", "no samples"])
def verdict(request, monkeypatch):
    """Relaxed training that takes its samples, or does not, whatever the rows held say; they are asked all the same."""
    own, said = Folds.errors, Verdict(request.param)

    def errors(*arguments):
        said.append(own(*arguments))
        return float((len(said) % 2 == 1) == said.taken)  # without samples at first

    monkeypatch.setattr(Folds, "errors", errors)
    return said


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


@pytest.fixture(scope="module")
def fitted():
    """A model for indexes, and the rows it was fitted on."""
    X = correlated(np.random.default_rng(1), 500, 6)
    return gk.GroupKMeans(3, 20, init="random", max_iter=2, effort=0, random_state=0, n_jobs=1).fit(X), X


@pytest.fixture
def folder(fitted, tmp_path):
    """A flat index of 200 rows on disk."""
    index = gk.FlatIndex(fitted[0])
    index.add(fitted[1][:200])
    index.save(tmp_path / "index")
    return tmp_path / "index"


def tables_of(x, D):
    """Products of x (P,) with codewords D (..., P), by the kernel that test_index_scan.py has tests of."""
    words = D.reshape(1, -1, D.shape[-1])
    out = np.empty((1, -(-words.shape[1] // 16) * 16), np.float32)
    _core.products(np.ascontiguousarray(x[None]), tiled(words, out.shape[1]), out)
    return out[0, : words.shape[1]].reshape(D.shape[:-1])


def whole(rng, *shape, low=-8, high=9):
    """Whole numbers as float32: sums and products of them are exact, so kernels and oracle must agree to the bit."""
    return rng.integers(low, high, shape).astype(np.float32)


@pytest.fixture
def bytes_(rng):
    """Whole numbers from 0 to 255: equal values in every dtype."""
    return np.clip(rng.integers(0, 256, (300, 6)) * rng.uniform(0.2, 1, 6) + 10, 0, 255).astype(np.uint8)


def correlated(rng, n, P):
    return (rng.standard_normal((n, P)) @ rng.standard_normal((P, P)) + 3).astype(np.float32)


def errors(est, X, codes):
    return ((X.astype(float) - reference.decode(est.dictionaries_.astype(float), codes)) ** 2).sum(axis=1)


def same_bits(one, other):
    return all(
        getattr(one, name).tobytes() == getattr(other, name).tobytes()
        for name in ("codes_", "dictionaries_", "history_", "shift_")
    )


def message_of(call, kinds=(ValueError, TypeError)):
    """The text of the error of ``call``, which must show a way out."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # an overflow or NaN inside means that the check came too late
        with pytest.raises(kinds) as caught:
            call()
    text = str(caught.value)
    assert WAY_OUT.search(text), f"no way out in: {text}"
    return text


def mapped(A, folder):
    A.tofile(folder / "rows.dat")
    return np.memmap(folder / "rows.dat", np.uint8, "r", shape=A.shape)


def with_gaps(A, folder):
    wide = np.zeros((2 * len(A), A.shape[1] + 3), np.float32)
    wide[::2, 2:-1] = A
    return wide[::2, 2:-1]


def frozen(A, folder):
    out = A.astype(np.float32)
    out.flags.writeable = False
    return out


# the same whole numbers A (n, P) uint8 as users may bring them
KINDS = {
    "float64": lambda A, folder: A.astype(np.float64),
    "float16": lambda A, folder: A.astype(np.float16),
    "uint8": lambda A, folder: A,
    "int16": lambda A, folder: A.astype(np.int16),
    "int64": lambda A, folder: A.astype(np.int64),
    "uint64": lambda A, folder: A.astype(np.uint64),
    "big endian": lambda A, folder: A.astype(">f4"),
    "list of lists": lambda A, folder: A.tolist(),
    "list of rows": lambda A, folder: list(A.astype(np.float32)),
    "objects": lambda A, folder: A.astype(object),
    "DataFrame": lambda A, folder: pd.DataFrame(A),
    "DataFrame of two dtypes": lambda A, folder: pd.DataFrame(A).astype({0: np.float32, 1: np.int64}),
    "memory map": mapped,
    "Fortran": lambda A, folder: np.asfortranarray(A, np.float32),
    "Fortran uint8": lambda A, folder: np.asfortranarray(A),
    "negative strides": lambda A, folder: np.ascontiguousarray(A[::-1, ::-1], np.float32)[::-1, ::-1],
    "gaps": with_gaps,
    "read-only": frozen,
    "odd offset": lambda A, folder: np.frombuffer(b"x" + A.tobytes(), np.uint8, offset=1).reshape(A.shape),
}

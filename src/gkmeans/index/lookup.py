"""Lookup-table distances, Appendix: a score is a sum with one term from the table of each dictionary, and a norm.

With x̂ = Σ_c d_c and everything in the frame of the fit, ‖q − x̂‖² = ‖q‖² + Σ_c −2⟨q, d_c⟩ + ‖x̂‖². For the inner product
the score is −⟨q, x̂⟩ and has no norm. Cosine is the inner product of the query, made a unit vector, with the decoding of
the vector, which was made a unit vector before it was encoded. Scores are float32 sums in the order of the
dictionaries, the norm last, in the user's units times the squared scale of the frame; the smallest wins.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from .. import _core, _parallel, products
from .._frame import Frame
from .._parallel import BLOCK_FLOATS, Workers, spans
from .._rows import READ_ROWS, Codes, Floats, Rows, decode
from .._validation import LARGEST_SQUARE, check_X
from ..estimators.base import AdditiveQuantizer

BLOCK = 64
METRICS = ("l2", "ip", "cosine")
_QUERIES = 64
_PAD = 16
Blocks = NDArray[np.uint8]
Lists = NDArray[np.int64]
NO_LISTS: Lists = np.empty(0, np.int64)


def bits_of(K: int) -> int:
    """Bits that a code takes: 4 (two codes a byte), 8 or 16."""
    return 4 if K <= 16 else 8 if K <= 256 else 16


def lines_of(C: int, K: int) -> int:
    """Bytes of a row's codes."""
    return {4: -(-C // 2), 8: C, 16: 2 * C}[bits_of(K)]


def pack(codes: Codes, K: int, norm: NDArray[np.uint8] | None) -> Blocks:
    """Codes (n, C), and a byte for each norm, as blocks (⌈n / 64⌉, lines, 64) of 64 rows, dictionary by dictionary."""
    n, C = codes.shape
    L = lines_of(C, K)
    columns = np.zeros((-(-n // BLOCK) * BLOCK, L + (norm is not None)), np.uint8)
    if bits_of(K) == 4:
        columns[:n, :L] = codes[:, ::2]
        columns[:n, : C // 2] |= (codes[:, 1::2] << 4).astype(np.uint8)
    elif bits_of(K) == 8:
        columns[:n, :L] = codes
    else:
        columns[:n, 0:L:2] = codes & 255
        columns[:n, 1:L:2] = codes >> 8
    if norm is not None:
        columns[:n, L] = norm
    out = aligned((len(columns) // BLOCK, columns.shape[1], BLOCK))
    out[:] = columns.reshape(-1, BLOCK, columns.shape[1]).transpose(0, 2, 1)
    return out


def aligned(shape: tuple[int, ...]) -> Blocks:
    """Bytes that start where a line of the cache does."""
    size = math.prod(shape)
    return _parallel.aligned(-(-size // 4)).view(np.uint8)[:size].reshape(shape)


def is_plain(Q: NDArray[np.generic]) -> bool:
    """Whether the kernels take an array as it is."""
    return Q.dtype == np.float32 and Q.flags.c_contiguous


def unpack(blocks: Blocks, rows: NDArray[np.int64], C: int, K: int) -> Codes:
    """Codes (m, C) of the rows asked for."""
    columns = blocks[rows // BLOCK, : lines_of(C, K), rows % BLOCK]
    if bits_of(K) == 8:
        return columns
    if bits_of(K) == 4:
        out = np.empty((len(rows), 2 * columns.shape[1]), np.uint8)
        out[:, ::2], out[:, 1::2] = columns & 15, columns >> 4
        return out[:, :C]
    wide = columns.astype(np.uint16)
    codes: Codes = wide[:, ::2] + wide[:, 1::2] * np.uint16(256)
    return codes


class Lookup:
    """What a fitted estimator and a metric give to the scan."""

    n_lists = 0
    """Lists that rows are kept in; 0: rows stand in the order in which they came."""

    def __init__(self, est: AdditiveQuantizer, metric: str) -> None:
        if not isinstance(est, AdditiveQuantizer):
            raise TypeError(f"est is a {type(est).__name__}; pass a fitted GroupKMeans or another estimator of gkmeans")
        check_is_fitted(est)
        self.est, self.metric = copy.copy(est), metric  # a fit of the caller's puts other arrays into that one
        self.D = est._final().full()
        self.C, self.K, self.P = self.D.shape
        self.bits = bits_of(self.K)
        self.Kp = -(-self.K // _PAD) * _PAD if self.bits == 16 else 1 << self.bits
        self._tiles = tiled(self.D, self.Kp)
        self._frame = Frame(np.ascontiguousarray(est.shift_, np.float32), est.scale_)
        self._largest = float(np.sqrt(LARGEST_SQUARE / self.P))
        self.floor = 0.0 if metric == "l2" else -np.inf
        self.has_norms = metric == "l2"

    def queries(self, Q: ArrayLike) -> NDArray[np.generic]:
        """Checked queries (q, P); what needs no conversion costs little."""
        if (
            type(Q) is np.ndarray
            and is_plain(Q)
            and Q.ndim == 2
            and Q.shape[1] == self.P
            and len(Q)
            and self.est.scale_ <= 1
            and _core.all_below(Q, self._largest)  # NaN is not
        ):
            checked: NDArray[np.generic] = Q
        else:
            if isinstance(Q, list | tuple):
                with suppress(ValueError):  # rows of several lengths: check_X says so
                    Q = np.asarray(Q)
            shape = getattr(Q, "shape", (0, self.P))
            if len(shape) < 3 and shape[1:] != (self.P,):
                one = "; np.reshape(Q, (1, -1)) is one query" if shape == (self.P,) else ""
                raise ValueError(f"Q has shape {tuple(shape)}; pass queries (q, {self.P}), one a row{one}")
            checked = check_X(self.est, Q, reset=False, scale=self.est.scale_, name="Q")
        return units(checked, "query") if self.metric == "cosine" else checked

    def groups(self, n: int) -> list[tuple[int, int]]:
        """Spans of queries whose tables are held at once."""
        return spans(n, max(1, min(_QUERIES, BLOCK_FLOATS // (self.C * self.Kp))))

    def prepared(self, Q: NDArray[np.generic]) -> tuple[Floats, Floats]:
        """Rows (q, P) whose products with the codewords are the tables, and what is added to every score (q,)."""
        if is_plain(Q):
            x, own = np.empty(Q.shape, np.float32), np.empty(len(Q), np.float32)
            _core.prepared(cast("Floats", Q), self._frame.shift, self.est.scale_, self.metric == "l2", x, own)
            return x, own
        if self.metric == "l2":
            x = Rows(Q, self._frame).block(slice(None))
            bias = np.einsum("ij,ij->i", x, x, dtype=np.float64)
            x *= -2
        else:
            scale = np.float32(self.est.scale_)
            x = np.asarray(Q, np.float32) * scale
            bias = -(x.astype(np.float64) @ (self.est.shift_.astype(np.float64) * scale))
            x = np.ascontiguousarray(-x)
        return x, bias.astype(np.float32)

    def products(self, x: Floats) -> Floats:
        """Tables (q, C, Kp) of rows prepared."""
        out = np.empty((len(x), self.C * self.Kp), np.float32)
        _core.products(x, self._tiles, out)
        return out.reshape(len(x), self.C, self.Kp)

    def tables(self, Q: NDArray[np.generic]) -> tuple[Floats, Floats]:
        """Tables (q, C, Kp) and what is added to every score (q,); rows that need no conversion in one native call."""
        if not is_plain(Q):
            x, bias = self.prepared(Q)
            return self.products(x), bias
        x, bias = cast("Floats", Q), np.empty(len(Q), np.float32)
        out = np.empty((len(x), self.C * self.Kp), np.float32)
        _core.tables(x, self._frame.shift, self.est.scale_, self.metric == "l2", self._tiles, out, bias)
        return out.reshape(len(x), self.C, self.Kp), bias

    def distances(self, scores: Floats) -> Floats:
        """Scores in the user's units: squared distances, or similarities."""
        out: Floats = scores if self.metric == "l2" else np.negative(scores)
        if self.est.scale_ == 1:
            return out
        scale = np.float32(self.est.scale_)
        scaled: Floats = np.divide(out / scale, scale, dtype=np.float32)
        return scaled

    def limit(self, radius: float) -> float:
        """The greatest score that is within ``radius``."""
        wanted = (radius if self.metric == "l2" else -radius) * self.est.scale_**2
        with np.errstate(over="ignore"):
            limit = np.float32(wanted)
        return float(np.nextafter(limit, np.float32(-np.inf)) if float(limit) > wanted else limit)

    def vectors(self, X: ArrayLike) -> NDArray[np.generic]:
        """Checked vectors (n, P)."""
        return check_X(self.est, X, reset=False, scale=self.est.scale_)

    def parts(self, data: NDArray[np.generic]) -> Iterator[NDArray[np.generic]]:
        """Checked vectors as they are encoded, part by part: of unit length for cosine."""
        for start, stop in spans(len(data), 16 * READ_ROWS):
            yield units(data[start:stop], "X", start) if self.metric == "cosine" else data[start:stop]

    def encode(self, X: ArrayLike) -> tuple[Codes, Lists]:
        """Codes (n, C) and, where there are lists, the list of each vector, (n,)."""
        data = self.vectors(X)
        if self.metric != "cosine":
            return self.est._encode(data, None), NO_LISTS
        return np.concatenate([self.est._encode(part, None) for part in self.parts(data)]), NO_LISTS

    def decode(self, codes: Codes, lists: Lists) -> Floats:
        """Vectors (n, P) that codes, and lists where there are any, stand for."""
        return self.est.decode(codes)

    def norms(self, codes: Codes, lists: Lists) -> Floats:
        """What is added to the score of each row, (n,): ‖x̂‖² in the frame."""
        out = np.empty(len(codes), np.float32)

        def part(span: tuple[int, int]) -> None:
            rows = slice(*span)
            out[rows] = self._norms(decode(self.D, codes[rows]), lists[rows])

        with Workers(self.est.n_jobs) as workers:
            workers.map(part, spans(len(codes), READ_ROWS))
        return out

    def needs_floats(self, norms: Floats, codes: Codes) -> bool:
        """Whether a byte for each of these norms would blur the distances of such codes."""
        return False

    def _norms(self, x: Floats, lists: Lists) -> NDArray[np.float64]:
        squares: NDArray[np.float64] = np.einsum("ij,ij->i", x, x, dtype=np.float64)
        return squares


def tiled(D: Floats, Kp: int) -> Floats:
    """Codewords (C, K, P), each dictionary padded with zeros to Kp, in tiles (tiles, P, 32) of 32."""
    C, K, P = D.shape
    padded = np.zeros((C, Kp, P), np.float32)
    padded[:, :K] = D
    tiles: Floats = products.tiled(padded.reshape(1, C * Kp, P))[0]
    return tiles


def units(X: NDArray[Any], name: str, first: int = 0) -> Floats:
    """Rows divided by their lengths."""
    x = np.asarray(X, np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", x, x))
    if not lengths.all():
        row = first + int(np.flatnonzero(lengths == 0)[0])
        raise ValueError(f"{name} has length 0 in row {row}, which has no direction; drop it, or use metric='l2'")
    return np.ascontiguousarray(x / lengths[:, None], np.float32)

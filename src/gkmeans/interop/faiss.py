"""Models and flat indexes to Faiss and back: an additive quantizer there is dictionaries and codes here."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._rows import Codes, Floats
from ..estimators.base import AdditiveQuantizer
from ..estimators.group import GroupKMeans
from ..index.flat import FlatIndex


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError("Faiss is not installed; use pip install 'gkmeans[faiss]'") from error
    return faiss


def to_faiss(model: AdditiveQuantizer | FlatIndex) -> Any:
    """Give a model or an index as Faiss's ``IndexLocalSearchQuantizer``.

    Parameters
    ----------
    model : fitted estimator or FlatIndex
        An estimator gives an empty index.

    Returns
    -------
    faiss.IndexLocalSearchQuantizer, or faiss.IndexIDMap of one
        The latter where the ids are not 0, 1, 2, … in order. For "l2" norms are float, or Faiss's ``qint8`` where the
        index keeps them as bytes; for "cosine" divide queries by their lengths. Vectors that are added there are
        encoded by Faiss.

    Examples
    --------
    >>> import gkmeans as gk
    >>> sample = gk.datasets.load_sample()
    >>> est = gk.GroupKMeans(4, 16, max_iter=3, init_iter=3, random_state=0).fit(sample.learn[:2000])
    >>> index = gk.FlatIndex(est, norms="float")
    >>> ids = index.add(sample.base[:1000])
    >>> faiss_index = gk.to_faiss(index)  # doctest: +SKIP
    """
    faiss = _faiss()
    index = model if isinstance(model, FlatIndex) else FlatIndex(model, norms="float")
    C, K, P = index.est.dictionaries_.shape
    bits = max(1, int(K - 1).bit_length())
    D = np.repeat(index.est.dictionaries_[:, :1], 1 << bits, axis=1)  # codewords that no code names
    D[:, :K] = index.est.dictionaries_
    ids, codes = index.codes()
    kind = faiss.AdditiveQuantizer
    if index.metric != "l2":
        metric, search = faiss.METRIC_INNER_PRODUCT, kind.ST_LUT_nonorm
    else:
        byte = index.norms == "byte" and len(ids) > 0
        metric, search = faiss.METRIC_L2, kind.ST_norm_qint8 if byte else kind.ST_norm_float
    out = faiss.IndexLocalSearchQuantizer(P, C, bits, metric, search)
    faiss.copy_array_to_vector(D.ravel(), out.lsq.codebooks)
    out.lsq.is_trained = out.is_trained = True
    out.lsq.nperts = min(int(out.lsq.nperts), C)
    if not len(ids):
        return out
    X = index.est.decode(codes).astype(np.float64)
    norms = np.einsum("ij,ij->i", X, X).astype(np.float32)
    if search == kind.ST_norm_qint8:
        out.lsq.train_norm(len(ids), faiss.swig_ptr(norms))
    packed = np.zeros((len(ids), out.lsq.code_size), np.uint8)
    whole = np.ascontiguousarray(codes, np.int32)
    out.lsq.pack_codes(len(ids), faiss.swig_ptr(whole), faiss.swig_ptr(packed), -1, faiss.swig_ptr(norms), None)
    faiss.copy_array_to_vector(packed.ravel(), out.codes)
    if (ids == np.arange(len(ids))).all():
        out.ntotal = len(ids)
        return out
    named = faiss.IndexIDMap(out)  # wants an empty one
    faiss.copy_array_to_vector(ids, named.id_map)
    named.ntotal = out.ntotal = len(ids)
    named.referenced_objects = [out]  # Faiss does not own it
    return named


def from_faiss(index: Any) -> FlatIndex:
    """Read a flat index of Faiss: PQ, OPQ and other rotations before PQ, RQ or LSQ.

    Parameters
    ----------
    index : faiss.Index
        ``IndexPQ``, ``IndexResidualQuantizer`` or ``IndexLocalSearchQuantizer``, in an ``IndexPreTransform`` or an
        ``IndexIDMap`` or not.

    Returns
    -------
    FlatIndex
        With the same codes and ids, a ``GroupKMeans`` of the same codewords as ``est``, and norms in float.

    Examples
    --------
    >>> import gkmeans as gk
    >>> index = gk.from_faiss(faiss_index)  # doctest: +SKIP
    """
    faiss = _faiss()
    inner, ids = faiss.downcast_index(index), None
    if isinstance(inner, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        ids = faiss.vector_to_array(inner.id_map).astype(np.int64)
        inner = faiss.downcast_index(inner.index)
    back: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    if isinstance(inner, faiss.IndexPreTransform):
        back = [_orthonormal(faiss, inner.chain.at(i)) for i in range(inner.chain.size())]
        inner = faiss.downcast_index(inner.index)
    D, codes = _parts(faiss, inner)
    shift = np.zeros(D.shape[2], np.float64)
    for A, b in reversed(back):  # y = A x + b, so x = Aᵀ (y − b)
        D, shift = D @ A, (shift - b) @ A
    D[0] += shift
    metrics = {faiss.METRIC_L2: "l2", faiss.METRIC_INNER_PRODUCT: "ip"}
    if inner.metric_type not in metrics:
        raise ValueError(f"the index has metric {inner.metric_type} of Faiss; pass one with L2 or inner product")
    out = FlatIndex(_model(D.astype(np.float32)), metrics[inner.metric_type], norms="float")
    if len(codes):
        out.add_codes(codes, ids)
    return out


def _orthonormal(faiss: Any, transform: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A (P, P) and b (P,) of a rotation."""
    linear = faiss.downcast_VectorTransform(transform)
    name = type(linear).__name__
    if not isinstance(linear, faiss.LinearTransform) or linear.d_in != linear.d_out:
        raise ValueError(f"the index begins with a {name}, which is no rotation; pass one without it")
    A = faiss.vector_to_array(linear.A).reshape(linear.d_out, linear.d_in).astype(np.float64)
    if np.abs(A @ A.T - np.eye(len(A))).max() > 1e-3:
        raise ValueError(f"the {name} of the index changes distances; pass one whose matrix is orthonormal")
    b = faiss.vector_to_array(linear.b).astype(np.float64)
    return A, b if linear.have_bias and len(b) else np.zeros(len(A))


def _parts(faiss: Any, index: Any) -> tuple[NDArray[np.float64], Codes]:
    """Dictionaries (C, K, P) and codes (n, C)."""
    if isinstance(index, faiss.IndexPQ):
        pq = index.pq
        C, bits, width = int(pq.M), int(pq.nbits), int(pq.dsub)
        parts = faiss.vector_to_array(pq.centroids).reshape(C, 1 << bits, width)
        D = np.zeros((C, 1 << bits, int(pq.d)))
        for c in range(C):
            D[c, :, c * width : (c + 1) * width] = parts[c]
    elif isinstance(index, (faiss.IndexResidualQuantizer, faiss.IndexLocalSearchQuantizer)):
        quantizer = index.rq if isinstance(index, faiss.IndexResidualQuantizer) else index.lsq
        sizes = faiss.vector_to_array(quantizer.nbits)
        C, bits = len(sizes), int(sizes[0])
        if (sizes != bits).any():
            raise ValueError(f"the codebooks of the index have {sizes.tolist()} bits; pass one with equal codebooks")
        D = faiss.vector_to_array(quantizer.codebooks).reshape(C, 1 << bits, -1).astype(np.float64)
    else:
        raise ValueError(f"a {type(index).__name__} cannot be read; pass an IndexPQ, or Faiss's RQ or LSQ")
    codes = faiss.vector_to_array(index.codes).reshape(index.ntotal, index.code_size)[:, : (C * bits + 7) // 8]
    whole = faiss.unpack_bitstrings(np.ascontiguousarray(codes), C, bits) if index.ntotal else np.empty((0, C), int)
    return D, whole.astype(np.uint8 if bits <= 8 else np.uint16)


def _model(D: Floats) -> GroupKMeans:
    """A fitted estimator with these dictionaries."""
    C, K, P = D.shape
    est = GroupKMeans(C, K)
    est.dictionaries_ = np.ascontiguousarray(D)
    est.shift_ = D.mean(axis=1, dtype=np.float64).sum(axis=0).astype(np.float32)
    est.scale_, est.stages_ = 1.0, ()
    est.codes_ = np.empty((0, C), np.uint8 if K <= 256 else np.uint16)
    est.history_, est.n_iter_, est.n_features_in_ = np.empty(0), 0, P
    return est

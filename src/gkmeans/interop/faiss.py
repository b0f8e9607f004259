"""Models and indexes to Faiss and back: an additive quantizer there is dictionaries and codes here."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._rows import Codes, Floats
from ..estimators.base import AdditiveQuantizer
from ..estimators.group import GroupKMeans
from ..index.flat import FlatIndex
from ..index.ivf import IVFIndex
from ..index.segment import Ids


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError("Faiss is not installed; use pip install 'gkmeans[faiss]'") from error
    return faiss


def to_faiss(model: AdditiveQuantizer | FlatIndex | IVFIndex) -> Any:
    """Give a model or an index as Faiss's ``IndexLocalSearchQuantizer``, or its IVF kind.

    Parameters
    ----------
    model : fitted estimator, FlatIndex or IVFIndex
        An estimator gives an empty index.

    Returns
    -------
    faiss.IndexLocalSearchQuantizer, faiss.IndexIDMap of one, or faiss.IndexIVFLocalSearchQuantizer
        An ``IndexIDMap`` where the ids of a flat index are not 0, 1, 2, … in order. For "l2" norms are float, or
        Faiss's ``qint8`` where the index keeps them as bytes; for "cosine" divide queries by their lengths. Vectors
        that are added there are encoded by Faiss.

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
    if isinstance(model, IVFIndex):
        return _lists_to_faiss(faiss, model)
    index = model if isinstance(model, FlatIndex) else FlatIndex(model, norms="float")
    ids, codes = index.codes()
    out = faiss.IndexLocalSearchQuantizer(*_sizes(index.est), *_kinds(faiss, index, len(ids)))
    X = index.est.decode(codes) if len(ids) else np.empty((0, 1), np.float32)
    packed = _filled(faiss, out, index.est, codes, np.einsum("ij,ij->i", X, X, dtype=np.float64))
    if not len(ids):
        return out
    faiss.copy_array_to_vector(packed.ravel(), out.codes)
    if (ids == np.arange(len(ids))).all():
        out.ntotal = len(ids)
        return out
    named = faiss.IndexIDMap(out)  # wants an empty one
    faiss.copy_array_to_vector(ids, named.id_map)
    named.ntotal = out.ntotal = len(ids)
    named.referenced_objects = [out]  # Faiss does not own it
    return named


def _lists_to_faiss(faiss: Any, index: IVFIndex) -> Any:
    ids, codes, lists = index.codes()
    metric, search = _kinds(faiss, index, len(ids))
    L, P = index.centres_.shape
    quantizer = faiss.IndexFlat(P, metric)
    quantizer.add(index.centres_)
    _, C, bits = _sizes(index.est)
    out = faiss.IndexIVFLocalSearchQuantizer(quantizer, P, L, C, bits, metric, search)
    out.referenced_objects = [quantizer]  # Faiss does not own it
    r = index.est.decode(codes) if len(ids) else np.empty((0, P), np.float32)
    # Faiss makes tables of q − c for every list, so its norm is ‖r̂‖² alone
    packed = _filled(faiss, out, index.est, codes, np.einsum("ij,ij->i", r, r, dtype=np.float64))
    order = np.argsort(lists, kind="stable")
    edges = np.searchsorted(lists[order], np.arange(L + 1))
    for name in np.flatnonzero(np.diff(edges)):
        rows = order[edges[name] : edges[name + 1]]
        own, coded = ids[rows], packed[rows]
        out.invlists.add_entries(int(name), len(rows), faiss.swig_ptr(own), faiss.swig_ptr(coded))
    out.ntotal = len(ids)
    return out


def _sizes(est: AdditiveQuantizer) -> tuple[int, int, int]:
    """P, C and the bits of a code."""
    C, K, P = est.dictionaries_.shape
    return P, C, max(1, int(K - 1).bit_length())


def _kinds(faiss: Any, index: FlatIndex | IVFIndex, n: int) -> tuple[int, int]:
    """Faiss's metric, and how it keeps norms."""
    kind = faiss.AdditiveQuantizer
    if index.metric != "l2":
        return faiss.METRIC_INNER_PRODUCT, kind.ST_LUT_nonorm
    return faiss.METRIC_L2, kind.ST_norm_qint8 if index.norms == "byte" and n else kind.ST_norm_float


def _filled(
    faiss: Any, out: Any, est: AdditiveQuantizer, codes: Codes, norms: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """Give ``out`` the codewords; codes and norms packed as it keeps them."""
    C, K, _ = est.dictionaries_.shape
    D = np.repeat(est.dictionaries_[:, :1], 1 << _sizes(est)[2], axis=1)  # codewords that no code names
    D[:, :K] = est.dictionaries_
    lsq = out.lsq
    faiss.copy_array_to_vector(D.ravel(), lsq.codebooks)
    lsq.is_trained = out.is_trained = True
    lsq.nperts = min(int(lsq.nperts), C)
    packed = np.zeros((len(codes), lsq.code_size), np.uint8)
    if len(codes):
        floats = norms.astype(np.float32)
        if lsq.search_type == faiss.AdditiveQuantizer.ST_norm_qint8:
            lsq.train_norm(len(codes), faiss.swig_ptr(floats))
        whole = np.ascontiguousarray(codes, np.int32)
        lsq.pack_codes(len(codes), faiss.swig_ptr(whole), faiss.swig_ptr(packed), -1, faiss.swig_ptr(floats), None)
    return packed


def from_faiss(index: Any) -> FlatIndex | IVFIndex:
    """Read an index of Faiss: PQ, OPQ and other rotations before PQ, RQ or LSQ, flat or in inverted lists.

    Parameters
    ----------
    index : faiss.Index
        ``IndexPQ``, ``IndexResidualQuantizer`` or ``IndexLocalSearchQuantizer``, or of residuals ``IndexIVFPQ``,
        ``IndexIVFResidualQuantizer`` or ``IndexIVFLocalSearchQuantizer``, in an ``IndexPreTransform`` or an
        ``IndexIDMap`` or not.

    Returns
    -------
    FlatIndex or IVFIndex
        With the same codes and ids, a ``GroupKMeans`` of the same codewords as ``est``, and norms in float.

    Examples
    --------
    >>> import gkmeans as gk
    >>> index = gk.from_faiss(faiss_index)  # doctest: +SKIP
    """
    faiss = _faiss()
    if not isinstance(index, faiss.Index):
        raise TypeError(f"index is a {type(index).__name__}; pass an index of Faiss")
    if not index.is_trained:
        raise ValueError(f"the {type(index).__name__} is not trained; call its train first")
    inner, names = faiss.downcast_index(index), None
    if isinstance(inner, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        names = faiss.vector_to_array(inner.id_map).astype(np.int64)
        inner = faiss.downcast_index(inner.index)
    back: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    if isinstance(inner, faiss.IndexPreTransform):
        back = [_orthonormal(faiss, inner.chain.at(i)) for i in range(inner.chain.size())]
        inner = faiss.downcast_index(inner.index)
    metrics = {faiss.METRIC_L2: "l2", faiss.METRIC_INNER_PRODUCT: "ip"}
    if inner.metric_type not in metrics:
        raise ValueError(f"the index has metric {inner.metric_type} of Faiss; pass one with L2 or inner product")
    metric = metrics[inner.metric_type]
    D, bits = _codewords(faiss, inner)
    in_lists = isinstance(inner, faiss.IndexIVF)
    origin = _centres(inner) if in_lists else np.zeros((1, D.shape[2]))
    for A, b in reversed(back):  # y = A x + b, so x = Aᵀ (y − b)
        D, origin = D @ A, (origin - b) @ A
    if not (np.isfinite(D).all() and np.isfinite(origin).all()):
        raise ValueError(
            f"the {type(inner).__name__} has codewords or centres with NaN or infinite values; pass one trained on "
            "finite vectors"
        )
    if in_lists:
        return _from_lists(faiss, inner, D, bits, origin.astype(np.float32), metric, names)
    D[0] += origin[0]
    out = FlatIndex(_model(D.astype(np.float32), centred=True), metric, norms="float")
    if inner.ntotal:
        packed = faiss.vector_to_array(inner.codes).reshape(inner.ntotal, inner.code_size)
        out.add_codes(_unpacked(faiss, packed, len(D), bits), names)
    return out


def _from_lists(
    faiss: Any, index: Any, D: NDArray[np.float64], bits: int, centres: Floats, metric: str, names: Ids | None
) -> IVFIndex:
    """An inverted file with the codes and ids of Faiss's; ``names`` of its ids where there are any."""
    est = _model(D.astype(np.float32), centred=False)
    out = IVFIndex._of(est, centres, np.array([0, len(centres)]), metric, "float", None)
    if not index.ntotal:
        return out
    sizes = np.array([index.invlists.list_size(name) for name in range(len(centres))])
    ids, packed = [], []
    for name in np.flatnonzero(sizes):
        size = int(sizes[name])
        ids.append(faiss.rev_swig_ptr(index.invlists.get_ids(int(name)), size).astype(np.int64))
        raw = faiss.rev_swig_ptr(index.invlists.get_codes(int(name)), size * index.code_size)
        packed.append(raw.reshape(size, index.code_size).copy())
    own = np.concatenate(ids)
    codes = _unpacked(faiss, np.concatenate(packed), len(D), bits)
    out.add_codes(codes, np.repeat(np.arange(len(centres)), sizes), own if names is None else names[own])
    return out


def _centres(index: Any) -> NDArray[np.float64]:
    """Centres of an inverted file of residuals."""
    if not index.by_residual:
        raise ValueError(f"the {type(index).__name__} does not code residuals; pass one with by_residual=True")
    if index.quantizer.metric_type != index.metric_type:
        raise ValueError("the index chooses its lists by another metric than its own; pass one with equal metrics")
    centres: NDArray[np.float64] = index.quantizer.reconstruct_n(0, index.nlist).astype(np.float64)
    return centres


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


def _codewords(faiss: Any, index: Any) -> tuple[NDArray[np.float64], int]:
    """Dictionaries (C, K, P), and the bits of a code."""
    if isinstance(index, (faiss.IndexPQ, faiss.IndexIVFPQ)):
        pq = index.pq
        C, bits, width = int(pq.M), int(pq.nbits), int(pq.dsub)
        parts = faiss.vector_to_array(pq.centroids).reshape(C, 1 << bits, width)
        D = np.zeros((C, 1 << bits, int(pq.d)))
        for c in range(C):
            D[c, :, c * width : (c + 1) * width] = parts[c]
        return D, bits
    residual = (faiss.IndexResidualQuantizer, faiss.IndexIVFResidualQuantizer)
    if not isinstance(index, (*residual, faiss.IndexLocalSearchQuantizer, faiss.IndexIVFLocalSearchQuantizer)):
        raise ValueError(f"a {type(index).__name__} cannot be read; pass Faiss's PQ, RQ or LSQ, flat or in lists")
    quantizer = index.rq if isinstance(index, residual) else index.lsq
    sizes = faiss.vector_to_array(quantizer.nbits)
    C, bits = len(sizes), int(sizes[0])
    if (sizes != bits).any():
        raise ValueError(f"the codebooks of the index have {sizes.tolist()} bits; pass one with equal codebooks")
    return faiss.vector_to_array(quantizer.codebooks).reshape(C, 1 << bits, -1).astype(np.float64), bits


def _unpacked(faiss: Any, packed: NDArray[np.uint8], C: int, bits: int) -> Codes:
    """Codes (n, C) of Faiss's bytes (n, size)."""
    codes = np.ascontiguousarray(packed[:, : (C * bits + 7) // 8])
    whole: Codes = faiss.unpack_bitstrings(codes, C, bits).astype(np.uint8 if bits <= 8 else np.uint16)
    return whole


def _model(D: Floats, *, centred: bool) -> GroupKMeans:
    """A fitted estimator with these dictionaries, its arithmetic done about their mean or about zero."""
    C, K, P = D.shape
    est = GroupKMeans(C, K)
    est.dictionaries_ = np.ascontiguousarray(D)
    est.shift_ = (D.mean(axis=1, dtype=np.float64).sum(axis=0) * centred).astype(np.float32)
    est.scale_, est.stages_ = 1.0, ()
    est.codes_ = np.empty((0, C), np.uint8 if K <= 256 else np.uint16)
    est.history_, est.n_iter_, est.n_features_in_ = np.empty(0), 0, P
    return est

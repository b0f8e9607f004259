"""Faiss both ways: the same neighbours by the same codes, with the real Faiss."""

import warnings

import faiss
import numpy as np
import pytest

import gkmeans as gk
from conftest import correlated, message_of


@pytest.fixture(scope="module")
def X():
    return correlated(np.random.default_rng(2), 600, 8)


@pytest.fixture(scope="module", params=[(3, 16), (4, 256), (2, 20)])
def est(request, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gk.DataWarning)
        return gk.GroupKMeans(*request.param, init="random", max_iter=2, effort=0, random_state=0).fit(X)


def trained(kind, metric, X):
    """An index of Faiss on one thread, and without the reordering of codes that takes it seconds and changes nothing
    of what is read.
    """
    faiss.omp_set_num_threads(1)
    index = faiss.index_factory(8, kind, metric)
    if hasattr(index, "do_polysemous_training"):
        index.do_polysemous_training = False
    index.train(X)
    return index


def same_neighbours(ours, theirs, Q, rtol=1e-3):
    """Equal distances at each rank, and to each id: among equal ones Faiss has no order."""
    distances, ids = ours.search(Q, len(ours))
    other, names = theirs.search(Q, len(ours))
    allowed = rtol * np.abs(distances).max()
    assert np.abs(distances - other).max() <= allowed
    by_id = (np.take_along_axis(d, np.argsort(i, axis=1), axis=1) for d, i in ((distances, ids), (other, names)))
    assert np.abs(next(by_id) - next(by_id)).max() <= allowed
    assert (np.sort(ids, axis=1) == np.sort(names, axis=1)).all()


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_faiss_finds_the_neighbours_that_the_index_finds(est, X, metric):
    index = gk.FlatIndex(est, metric, norms="float")
    index.add(X)
    theirs = gk.to_faiss(index)
    assert isinstance(theirs, faiss.IndexLocalSearchQuantizer)
    same_neighbours(index, theirs, X[:50])
    assert np.allclose(theirs.reconstruct_n(0, 600), index.reconstruct(np.arange(600)), atol=1e-4)
    again = gk.from_faiss(theirs)
    assert (again.codes()[1] == index.codes()[1]).all()
    same_neighbours(again, theirs, X[:50])


def test_ids_go_to_faiss_and_come_back(est, X):
    index = gk.FlatIndex(est, norms="float")
    index.add(X, np.arange(600)[::-1] * 3)
    index.remove([0, 300])
    theirs = gk.to_faiss(index)
    same_neighbours(index, theirs, X[:50])
    again = gk.from_faiss(theirs)
    assert list(again) == list(index)
    same_neighbours(again, theirs, X[:50])


def test_byte_norms_go_to_faiss_as_its_bytes(est, X):
    index = gk.FlatIndex(est)
    index.add(X)
    theirs = gk.to_faiss(index)
    assert theirs.lsq.search_type == faiss.AdditiveQuantizer.ST_norm_qint8
    distances, other = index.search(X[:50], 1)[0], theirs.search(X[:50], 1)[0]
    norms = (index.reconstruct(np.arange(600)).astype(float) ** 2).sum(axis=1)
    assert np.abs(distances - other).max() <= 2 * np.ptp(norms) / 256 + 1e-3


def test_a_model_goes_to_faiss_empty_and_encodes_there(est, X):
    theirs = gk.to_faiss(est)
    assert (theirs.ntotal, theirs.is_trained) == (0, True)
    theirs.add(X[:100])
    assert theirs.search(X[:3], 1)[1].shape == (3, 1)


@pytest.mark.parametrize("kind", ["PQ4x4", "PQ2x8", "OPQ4,PQ4x4", "RQ3x4", "LSQ3x4", "RQ2x6_Nqint8"])
@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
def test_flat_indexes_of_faiss_are_read(X, kind, metric):
    theirs = trained(kind, metric, X)
    theirs.add(X)
    ours = gk.from_faiss(theirs)
    assert len(ours) == 600
    assert np.allclose(ours.reconstruct(np.arange(600)), theirs.reconstruct_n(0, 600), atol=1e-3)
    if "N" not in kind:
        same_neighbours(ours, theirs, X[:50])
    ours.add(X[:2])
    assert len(ours) == 602


def test_what_cannot_be_read_is_explained(X):
    flat = faiss.IndexFlatL2(8)
    assert "IndexFlat" in message_of(lambda: gk.from_faiss(flat))
    pca = faiss.index_factory(8, "PCA4,PQ2x4")
    pca.train(X)
    assert "PCAMatrix" in message_of(lambda: gk.from_faiss(pca))
    uneven = faiss.index_factory(8, "RQ1x3_1x4")
    uneven.train(X)
    assert "bits" in message_of(lambda: gk.from_faiss(uneven))
    assert "str" in message_of(lambda: gk.from_faiss("index"))
    for kind in ("PQ4x4", "LSQ3x4", "IVF7,PQ4x4", "OPQ4,PQ4x4"):
        assert "not trained" in message_of(lambda kind=kind: gk.from_faiss(faiss.index_factory(8, kind)))
    empty = faiss.IndexPQ(8, 2, 4)
    empty.train(X)
    assert len(gk.from_faiss(empty)) == 0


def test_codewords_that_are_not_finite_are_refused(rng):
    index = faiss.IndexPQ(8, 2, 4)
    index.train(correlated(rng, 400, 8))
    words = faiss.vector_to_array(index.pq.centroids)
    words[5] = np.nan
    faiss.copy_array_to_vector(words, index.pq.centroids)
    assert "NaN or infinite" in message_of(lambda: gk.from_faiss(index))


def lists_of(X, C, K, metric="l2", norms="float"):
    est = gk.GroupKMeans(C, K, init="random", max_iter=2, relaxation=0, effort=0, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gk.DataWarning)
        index = gk.IVFIndex(est, 7, metric, norms=norms, random_state=0).train(X)
    index.add(X, np.arange(len(X))[::-1] * 3)
    return index


class Probed:
    """An inverted file with a number of probes, of either library, as one without."""

    def __init__(self, index, count):
        self.index, self.count = index, count

    def __len__(self):
        return len(self.index)

    def search(self, Q, k):
        if isinstance(self.index, gk.IVFIndex):
            return self.index.search(Q, k, n_probe=self.count)
        inner = faiss.extract_index_ivf(self.index)
        inner.nprobe = self.count
        return self.index.search(Q, k)


def found_alike(ours, theirs, Q, n_probe):
    """The same rows in the lists probed, and equal distances at each rank and to each id."""
    distances, ids = Probed(ours, n_probe).search(Q, len(ours))
    other, names = Probed(theirs, n_probe).search(Q, len(ours))
    there = ids >= 0
    assert (there == (names >= 0)).all()
    distances, other = np.where(there, distances, 0), np.where(there, other, 0)
    allowed = 1e-3 * np.abs(distances).max()
    assert np.abs(distances - other).max() <= allowed
    assert (np.sort(ids, axis=1) == np.sort(names, axis=1)).all()
    by_id = [np.take_along_axis(d, np.argsort(i, axis=1), axis=1) for d, i in ((distances, ids), (other, names))]
    assert np.abs(by_id[0] - by_id[1]).max() <= allowed


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("size", [(3, 16), (4, 256), (2, 20)])
def test_lists_go_to_faiss_and_come_back(X, metric, size):
    index = lists_of(X, *size, metric)
    index.remove([0, 300])
    theirs = gk.to_faiss(index)
    assert isinstance(theirs, faiss.IndexIVFLocalSearchQuantizer)
    assert theirs.ntotal == 598
    Q = X[:50] / np.linalg.norm(X[:50], axis=1, keepdims=True) if metric == "cosine" else X[:50]
    for n_probe in (1, 3, 7):
        found_alike(index, theirs, Q, n_probe)
    again = gk.from_faiss(theirs)
    assert isinstance(again, gk.IVFIndex)
    assert [a.tolist() for a in again.codes()] == [a.tolist() for a in index.codes()]
    found_alike(again, theirs, Q, 3)
    theirs.add(X[:5])
    assert theirs.ntotal == 603


def test_byte_norms_of_lists_go_to_faiss_as_its_bytes(X):
    index = lists_of(X, 3, 16, norms="byte")
    theirs = gk.to_faiss(index)
    assert theirs.lsq.search_type == faiss.AdditiveQuantizer.ST_norm_qint8
    theirs.nprobe = 7
    distances, other = index.search(X[:50], 1, n_probe=7)[0], theirs.search(X[:50], 1)[0]
    levels = index._state.segments[0].levels
    residuals = index.est.decode(index.codes()[1]).astype(float)
    theirs_too = np.ptp((residuals**2).sum(axis=1))
    assert np.abs(distances - other).max() <= (np.ptp(levels) + theirs_too) / 256 + 1e-3
    assert gk.to_faiss(gk.IVFIndex._of(index.est, index.centres_, np.array([0, 7]), "l2", "byte", None)).ntotal == 0


@pytest.mark.parametrize("kind", ["IVF7,PQ4x4", "OPQ4,IVF7,PQ4x4", "IVF7,PQ2x8", "IVF7,RQ3x4", "IVF7,LSQ3x4"])
@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
def test_inverted_files_of_faiss_are_read(X, kind, metric):
    theirs = trained(kind, metric, X)
    theirs.add_with_ids(X, np.arange(600) * 5)
    ours = gk.from_faiss(theirs)
    assert isinstance(ours, gk.IVFIndex)
    assert sorted(ours) == list(range(0, 3000, 5))
    for n_probe in (1, 3, 7):
        found_alike(ours, theirs, X[:50], n_probe)
    ours.add(X[:2])
    assert len(ours) == 602


def test_inverted_files_that_cannot_be_read_are_explained(X):
    plain = faiss.index_factory(8, "IVF7,PQ4x4")
    plain.by_residual = False
    flat = faiss.index_factory(8, "IVF7,Flat")
    for index, what in ((plain, "residual"), (flat, "IndexIVFFlat")):
        index.train(X)
        assert what in message_of(lambda index=index: gk.from_faiss(index))
    trained = faiss.index_factory(8, "IVF7,PQ4x4")
    trained.train(X)
    assert len(gk.from_faiss(trained)) == 0

"""Faiss both ways: the same neighbours by the same codes, with the real Faiss."""

import warnings

import numpy as np
import pytest

import gkmeans as gk
from conftest import correlated, message_of

faiss = pytest.importorskip("faiss")


@pytest.fixture(scope="module")
def X():
    return correlated(np.random.default_rng(2), 600, 8)


@pytest.fixture(scope="module", params=[(3, 16), (4, 256), (2, 20)])
def est(request, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gk.DataWarning)
        return gk.GroupKMeans(*request.param, init="random", max_iter=2, effort=0, random_state=0).fit(X)


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
    theirs = faiss.index_factory(8, kind, metric)
    theirs.train(X)
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
    assert len(gk.from_faiss(faiss.IndexPQ(8, 2, 4))) == 0

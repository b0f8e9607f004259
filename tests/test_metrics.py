"""Relative distortion, recall and exact neighbours, against cases by hand and brute force."""

import numpy as np
import pytest

import gkmeans as gk
from gkmeans import metrics
from gkmeans._top import Top


def brute(base, query, k):
    distances = ((np.asarray(query, np.float64)[:, None] - np.asarray(base, np.float64)[None]) ** 2).sum(axis=2)
    return np.argsort(distances, axis=1, kind="stable")[:, :k]


def test_relative_distortion_by_hand():
    assert metrics.relative_distortion([[3, 4], [0, 0]], [[3, 2], [0, 1]]) == 5 / 25


def test_relative_distortion_is_that_of_the_estimator():
    X = gk.datasets.load_sample().learn[:5000]
    est = gk.GroupKMeans(2, 8, max_iter=2, init_iter=2, random_state=0).fit(X)
    codes = est.encode(X)
    assert metrics.relative_distortion(X, est.decode(codes)) == pytest.approx(est.relative_distortion(X, codes))


def test_relative_distortion_of_bytes_does_not_wrap():
    assert metrics.relative_distortion(np.uint8([[1]]), np.uint8([[3]])) == 4


def test_recall_by_hand():
    found = np.array([[5, 2, 9], [1, 0, 3], [7, 8, 6]])
    truth = np.array([[2, 5], [1, 0], [4, 7]])
    assert [metrics.recall(found, truth, R) for R in (1, 2, 3)] == [1 / 3, 2 / 3, 2 / 3]


def test_nearest_equals_brute_force(rng):
    base, query = rng.standard_normal((9000, 6)), rng.standard_normal((300, 6))
    assert (metrics.nearest(base, query, 7) == brute(base, query, 7)).all()


def test_ties_go_to_the_earlier_row_within_and_across_blocks(rng):
    base = rng.integers(0, 3, (9000, 2), dtype=np.uint8)  # nine different rows, a thousand times each
    query = rng.integers(0, 3, (40, 2), dtype=np.uint8)
    assert (metrics.nearest(base, query, 20) == brute(base, query, 20)).all()


def test_a_large_offset_does_not_blur_the_neighbours(rng):
    base, query = rng.standard_normal((500, 4)), rng.standard_normal((20, 4))
    assert (metrics.nearest(base + 1e7, query + 1e7, 3) == brute(base + 1e7, query + 1e7, 3)).all()


@pytest.mark.parametrize("scale", [2.0**1020, 2.0**600, 2.0**-600, 2.0**-1020])
def test_huge_and_tiny_vectors_have_neighbours_too(rng, scale):
    base, query = rng.standard_normal((500, 4)), rng.standard_normal((20, 4))
    assert (metrics.nearest(base * scale, query * scale, 3) == brute(base, query, 3)).all()


def test_one_huge_query_finds_the_rows_on_its_side():
    assert metrics.nearest([[-1e200], [1e200], [0.0]], [[1e300], [-1e300]], 1).tolist() == [[1], [0]]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_top_refuses_distances_that_are_not_finite(value):
    with pytest.raises(ValueError, match="rows 7 to 8 are not finite"):
        Top(1, 1).add(slice(0, 1), np.array([[1.0, value]]), 7)


def test_nearest_is_the_same_for_any_number_of_threads(rng):
    base, query = rng.standard_normal((5000, 8)).astype(np.float32), rng.standard_normal((600, 8)).astype(np.float32)
    one, two = (metrics.nearest(base, query, 5, n_jobs=jobs) for jobs in (1, 2))
    assert (one == two).all()


def test_nearest_agrees_with_the_ground_truth_of_the_sample():
    sample = gk.datasets.load_sample()
    assert (metrics.nearest(sample.base, sample.query[:50], 100) == sample.groundtruth[:50]).all()


def test_top_takes_as_many_as_the_first_block_has():
    top = Top(1, 3)
    top.add(slice(0, 1), np.array([[4.0, 2.0]]), 0)
    top.add(slice(0, 1), np.array([[2.0, 9.0]]), 2)
    assert top.rows.tolist() == [[1, 2, 0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.relative_distortion(np.ones((2, 3)), np.ones((3, 3))), "one vector for each"),
        (lambda: metrics.relative_distortion(np.ones(3), np.ones(3)), r"shape \(n, P\)"),
        (lambda: metrics.recall([[1, 2]], [[1]], 3), "R=3"),
        (lambda: metrics.recall([[1, 2]], [[1], [2]], 1), "1 queries but groundtruth 2"),
        (lambda: metrics.recall([[1.5]], [[1]], 1), "integer rows"),
        (lambda: metrics.nearest(np.ones((3, 2)), np.ones((3, 4)), 1), "2 features but query 4"),
        (lambda: metrics.nearest(np.ones((3, 2)), np.ones((3, 2)), 4), "k=4"),
        (lambda: metrics.nearest([[np.nan]], [[1.0]], 1), "base has NaN"),
        (lambda: metrics.nearest([[1.0]], [[np.inf]], 1), "query has NaN or infinite"),
    ],
)
def test_bad_input_is_explained(call, message):
    with pytest.raises(ValueError, match=message):
        call()

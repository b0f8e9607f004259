"""Cases worked out by hand: assignment of each order, update, and the three initialisations."""

import numpy as np
import pytest

import gkmeans as gk
from gkmeans._frame import Frame
from gkmeans._progress import Reporter
from gkmeans._rows import Rows
from gkmeans.assignment import GroupAssignment, assign_block
from gkmeans.dictionaries import Dictionaries, Tables
from gkmeans.initialization.hierarchical import balanced_order, first_blocks, first_stage, hierarchical, merged
from gkmeans.initialization.kmeans import kmeans
from gkmeans.initialization.random import random
from gkmeans.training import Run
from gkmeans.update import Statistics


@pytest.fixture
def tables(workers):
    # codewords 0, 6 and 0, 4, -3 on a line: the sums are 0, 4, -3, 6, 10 and 3
    D = np.array([[[0.0], [6.0], [6.0]], [[0.0], [4.0], [-3.0]]], np.float32)
    return Tables.of(D, workers)


def test_greedy_start_takes_the_nearest_of_each_dictionary_in_turn(tables, workers):
    # 4: nearest of 0 and 6 is 6 (distance 2), and of 0, 4, -3 to the residual -2 it is -3: 6 - 3 = 3. Order 1 then
    # keeps both: given -3 the first wants 7, so 6; given 6 the second wants -2, so -3.
    assert assign_block(np.array([[4.0]], np.float32), tables, 1, None, workers).tolist() == [[1, 2]]


def test_order_1_stops_in_a_local_minimum_that_order_2_leaves(tables, workers):
    # 4 = 0 + 4 exactly, but from (6, -3) each code alone is at its best; jointly both change
    X = np.array([[4.0]], np.float32)
    codes = np.array([[1, 2]], np.uint8)
    assert assign_block(X, tables, 1, codes, workers).tolist() == [[1, 2]]
    assert assign_block(X, tables, 2, codes, workers).tolist() == [[0, 1]]


def test_order_3_leaves_a_minimum_of_order_2(workers):
    # x = (1, 1, 1) is the sum of the second codewords; from the first ones (all 0) a change of one codeword costs
    # |x - d|² = 3 - 2 · 1 + |d|², and the cross terms make all three together exact but one or two alone worse
    D = np.zeros((3, 2, 3), np.float32)
    D[0, 1], D[1, 1], D[2, 1] = (3, -1, -1), (-1, 3, -1), (-1, -1, 3)
    X = np.array([[1.0, 1.0, 1.0]], np.float32)
    start = np.zeros((1, 3), np.uint8)
    tables = Tables.of(D, workers)
    assert assign_block(X, tables, 1, start, workers).tolist() == [[0, 0, 0]]  # 3 against 4 + 4 + 4 = 12
    assert assign_block(X, tables, 2, start, workers).tolist() == [[0, 0, 0]]  # 3 against 1 + 1 + 9 = 11
    assert assign_block(X, tables, 3, start, workers).tolist() == [[1, 1, 1]]


def test_update_of_one_dictionary_is_the_mean():
    X = np.array([[1.0, 2.0], [3.0, 4.0], [10.0, 0.0]])
    codes = np.array([[0], [0], [1]], np.uint8)
    solved = Statistics.of(X, codes).solve(np.zeros((1, 3, 2)))
    np.testing.assert_allclose(solved[0, :2], [[2, 3], [10, 0]], rtol=1e-3)
    assert solved[0, 2].tolist() == [0, 0]  # chosen by nobody: it keeps its place


def test_update_of_two_dictionaries_solves_both_together():
    # rows 0+0, 0+10, 1+0, 1+10 of a two-way table: codewords (0, 1) and (0, 10) decode all of it
    X = np.array([[0.0], [10.0], [1.0], [11.0]])
    codes = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.uint8)
    statistics = Statistics.of(X, codes)
    assert statistics.counts.tolist() == [[2, 2], [2, 2]]
    assert statistics.Z[0, 1].tolist() == [[1, 1], [1, 1]]
    assert statistics.W[:, :, 0].tolist() == [[10, 12], [1, 21]]
    D = statistics.solve(np.zeros((2, 2, 1)))
    decoded = D[0, codes[:, 0]] + D[1, codes[:, 1]]
    np.testing.assert_allclose(decoded, X, atol=1e-2)


def a_run(rows, workers, order=1):
    return Run(
        rows.energy(workers), GroupAssignment(order), 1e-6, np.random.default_rng(0), workers, Reporter("test", 0)
    )


def test_random_start_holds_rows_of_the_data(workers):
    X = np.arange(10, dtype=np.float32)[:, None] * 2
    rows = Rows(X, Frame(np.zeros(1, np.float32)))
    D = random(rows, 2, 4, np.random.default_rng(0)).D[0]
    assert D.shape == (2, 4, 1)
    for dictionary in D[:, :, 0] * 2:  # each is divided by C = 2
        assert len(set(dictionary.tolist())) == 4
        assert set(dictionary.tolist()) <= set(X[:, 0].tolist())


def test_kmeans_start_codes_the_residual_of_the_dictionaries_before(workers):
    # four points, two far clusters of two: k-means gives the means ±10, its residuals are ±1, coded exactly
    X = np.array([[9.0], [11.0], [-9.0], [-11.0]], np.float32)
    rows = Rows(X, Frame(np.zeros(1, np.float32)))
    run = a_run(rows, workers)
    dictionaries, codes = kmeans(rows, 2, 2, run, 20)
    D = dictionaries.D[0][:, :, 0]
    np.testing.assert_allclose(sorted(D[0]), [-10, 10], atol=1e-2)
    np.testing.assert_allclose(sorted(D[1]), [-1, 1], atol=1e-2)
    np.testing.assert_allclose(D[0][codes[:, 0]] + D[1][codes[:, 1]], X[:, 0], atol=2e-2)
    # the distortion of the first k-means is 4 · 1, of all Σx² = 404
    assert any(value == pytest.approx(4 / 404, rel=1e-3) for value in run.history)


def test_hierarchical_start_keeps_codewords_in_their_blocks(workers, rng):
    blocks = first_blocks(4, 8)
    assert [(b.dims.start, b.dims.stop, b.dictionaries.start) for b in blocks] == [
        (0, 2, 0),
        (2, 4, 1),
        (4, 6, 2),
        (6, 8, 3),
    ]
    stage = Dictionaries(blocks, tuple(np.full((1, 1, 2), u + 1, np.float32) for u in range(4)))
    joined = merged(stage)
    # D^{1,1} = [D^1 ; 0], D^{1,2} = [0 ; D^2], and D^{2,2} stands in the lower half
    assert joined.D[0][:, 0].tolist() == [[1, 1, 0, 0], [0, 0, 2, 2]]
    assert joined.D[1][:, 0].tolist() == [[3, 3, 0, 0], [0, 0, 4, 4]]
    assert joined.full()[3, 0].tolist() == [0, 0, 0, 0, 0, 0, 4, 4]


def test_hierarchical_start_codes_a_product_of_blocks_exactly(workers):
    # every pair of one of two values in each of two dimensions: ck-means with K = 2 has no error
    X = np.array([[a, b] for a in (-1.0, 1.0) for b in (-5.0, 5.0)] * 3, np.float32)
    rows = Rows(X, Frame(np.zeros(2, np.float32)))
    run = a_run(rows, workers, order=2)
    dictionaries, codes, stages = hierarchical(rows, 2, 2, run, 30)
    assert len(stages) == 1
    assert len(stages[0].blocks) == 2
    assert run.history[-1] < 1e-5
    D = dictionaries.D[0]
    np.testing.assert_allclose(D[0, codes[:, 0]] + D[1, codes[:, 1]], X, atol=1e-2)


@pytest.mark.parametrize("bad", [0, -1])
def test_an_init_stage_needs_iterations(bad):
    with pytest.raises(ValueError, match="init_iter"):
        gk.GroupKMeans(2, 2, init_iter=bad).fit(np.eye(4))


def test_balanced_order_cuts_where_the_variance_reaches_its_shares():
    blocks = first_blocks(2, 6)
    # shares of 5: dimensions 0 to 3 | 4 and 5; the first is too long and gives its least dimension, 0, away
    order = balanced_order(np.array([0.0, 1, 2, 2, 4, 1]), blocks)
    assert order.tolist() == [1, 2, 3, 4, 5, 0]
    assert balanced_order(np.ones(6), blocks).tolist() == [0, 1, 2, 3, 4, 5]
    assert sorted(balanced_order(np.zeros(6), blocks).tolist()) == [0, 1, 2, 3, 4, 5]


def test_the_first_stage_balances_blocks_where_that_is_better(rng, workers):
    # all variance lies in the first half of the dimensions: in their own order one dictionary has nothing to do
    X = np.concatenate([rng.integers(0, 8, (600, 4)) * 10.0, rng.standard_normal((600, 4)) * 0.01], axis=1)
    rows = Rows(X.astype(np.float32), Frame(np.zeros(8, np.float32)))
    stage = first_stage(rows, first_blocks(2, 8), 16, a_run(rows, workers))
    variance = X.var(axis=0) @ np.abs(stage.R)
    assert 0.3 < variance[:4].sum() / variance.sum() < 0.7

"""What must hold for any data: hypothesis looks for the data that breaks it."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gkmeans as gk
import reference
from conftest import whole
from gkmeans import update
from gkmeans._frame import Frame
from gkmeans._parallel import Workers
from gkmeans._rows import Rows
from gkmeans._solve import Cholesky, CholeskyAlone
from gkmeans.assignment import GroupAssignment, assign, assign_block
from gkmeans.dictionaries import Block, Dictionaries, Tables
from gkmeans.rotation import cross_product, procrustes
from gkmeans.training import revived, updated
from gkmeans.update import ROUGH, Statistics, centred

pytestmark = pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
RIDGE = 1e-3  # the pull of the previous dictionary, in points
common = settings(deadline=None, max_examples=40)

seeds = st.integers(0, 2**32 - 1)
codewords = st.one_of(st.integers(1, 7), st.sampled_from([16, 17, 40]))
widths = st.one_of(st.integers(1, 6), st.sampled_from([24, 33]))  # from 24 on the matrix unit, where there is one
shapes = st.tuples(st.integers(1, 4), codewords, widths, st.integers(1, 40))  # C, K, P, n
scales = st.sampled_from([1e-6, 1.0, 300.0])


def drawn(seed, shape, scale=1.0):
    """Rows, codes, and dictionaries that need not fit them."""
    C, K, P, n = shape
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((n, P)) * scale).astype(np.float32)
    D = (rng.standard_normal((C, K, P)) * scale * rng.choice([0.1, 1, 3])).astype(np.float32)
    codes = rng.integers(0, rng.integers(1, K + 1), (n, C)).astype(np.uint16)  # some codewords are chosen by nobody
    return X, D, codes


def energy(X, D):
    return float((X.astype(float) ** 2).sum() + len(X) * (D.astype(float) ** 2).sum())


@common
@given(seeds, shapes, scales)
@example(0, (2, 1, 1, 1), 1.0)
@example(1, (4, 7, 3, 2), 300.0)
def test_update_never_raises_distortion(seed, shape, scale):
    X, D, codes = drawn(seed, shape, scale)
    solved = Statistics.of(X, codes, shape[1]).solve(D)
    before = reference.distortion(X, D, codes)
    assert reference.distortion(X, solved, codes) <= before * (1 + 1e-5) + 1e-11 * energy(X, D)


@common
@given(seeds, shapes)
def test_update_agrees_with_the_pseudo_inverse(seed, shape):
    X, D, codes = drawn(seed, shape)
    C, K, P, _ = shape
    solved = Statistics.of(X, codes, K).solve(D)
    exact = reference.update(X, codes, K)
    # the exact solution nearest to D: what Z leaves open stays as in D
    Z, _ = reference.statistics(X, codes, K)
    Z = Z.reshape(C * K, C * K)
    gap = exact.reshape(C * K, P) - D.reshape(C * K, P)
    nearest = D + (np.linalg.pinv(Z) @ Z @ gap).reshape(C, K, P)
    least = reference.distortion(X, exact, codes)
    reached = reference.distortion(X, solved, codes)
    slack = 1e-10 * energy(X, D)
    assert least - slack <= reached <= least + RIDGE * ((nearest - D) ** 2).sum() + slack


@common
@given(seeds, shapes)
def test_update_leaves_unused_codewords_where_they_were(seed, shape):
    X, D, codes = drawn(seed, shape)
    solved = Statistics.of(X, codes, shape[1]).solve(D)
    for c, k in itertools.product(range(shape[0]), range(shape[1])):
        if not (codes[:, c] == k).any():
            assert (solved[c, k] == D[c, k]).all()


@common
@given(seeds, shapes)
def test_sparse_update_never_raises_distortion(seed, shape):
    X, D, codes = drawn(seed, shape)
    dense = Statistics.of(X, codes, shape[1]).solve(D)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "DENSE_UNKNOWNS", 1)
        solved = Statistics.of(X, codes, shape[1]).solve(D)
    slack = 1e-9 * energy(X, D)
    assert reference.distortion(X, solved, codes) <= reference.distortion(X, D, codes) * (1 + 1e-5) + slack
    np.testing.assert_allclose(reference.decode(solved, codes), reference.decode(dense, codes), rtol=1e-3, atol=2e-3)


@common
@given(seeds, shapes, st.integers(1, 3), scales)
@example(0, (3, 1, 1, 5), 3, 1.0)
def test_assignment_never_raises_distortion(seed, shape, order, scale):
    X, D, codes = drawn(seed, shape, scale)
    with Workers(1) as workers:
        chosen = assign_block(X, Tables.of(D, workers), min(order, shape[0]), codes, workers)
    squared = [((X - reference.decode(D.astype(float), given)) ** 2).sum(axis=1) for given in (codes, chosen)]
    slack = 1e-6 * ((X.astype(float) ** 2).sum(axis=1) + (D.astype(float) ** 2).sum(axis=(1, 2)).sum())
    assert (squared[1] <= squared[0] + slack).all()
    assert chosen.max() < shape[1]


@common
@given(seeds, shapes, st.integers(1, 3))
def test_assignment_of_duplicate_codewords_never_raises_distortion(seed, shape, order):
    # whole numbers, equal codewords and rows: ties everywhere, and exact sums
    C, K, P, n = shape
    rng = np.random.default_rng(seed)
    X, D = whole(rng, n, P, low=-2, high=3), whole(rng, C, K, P, low=-1, high=2)
    codes = rng.integers(0, K, (n, C)).astype(np.uint16)
    with Workers(1) as workers:
        tables = Tables.of(D, workers)
        chosen = assign_block(X, tables, min(order, C), codes, workers)
        again = assign_block(X, tables, min(order, C), chosen, workers)
    assert reference.distortion(X, D, chosen) <= reference.distortion(X, D, codes)
    assert (again == chosen).all()


@common
@given(seeds, shapes)
def test_order_1_without_the_table_never_raises_distortion(seed, shape):
    X, D, codes = drawn(seed, shape)
    with pytest.MonkeyPatch.context() as patch, Workers(1) as workers:
        patch.setattr("gkmeans.dictionaries.TABLE_BYTES", 0)
        chosen = assign_block(X, Tables.of(D, workers), 1, codes, workers)
    assert reference.distortion(X, D, chosen) <= reference.distortion(X, D, codes) + 1e-6 * energy(X, D)


@common
@given(seeds, shapes, st.integers(1, 3), scales, st.integers(0, 2**64 - 1))
@example(0, (2, 1, 1, 1), 2, 1.0, 2**64 - 1)
def test_rounds_never_raise_the_error_of_a_row(seed, shape, order, scale, draw):
    X, D, codes = drawn(seed, shape, scale)
    with Workers(1) as workers:
        tables = Tables.of(D, workers)
        found = [assign_block(X, tables, min(order, shape[0]), codes, workers, rounds, draw) for rounds in (0, 1, 5)]
    squared = [((X - reference.decode(D.astype(float), given)) ** 2).sum(axis=1) for given in (codes, *found)]
    slack = 1e-6 * ((X.astype(float) ** 2).sum(axis=1) + (D.astype(float) ** 2).sum(axis=(1, 2)).sum())
    assert all((after <= before + slack).all() for before, after in itertools.pairwise(squared))
    assert all(codes.max() < shape[1] for codes in found)


@common
@given(seeds, shapes)
def test_rounds_without_the_table_never_raise_the_error_of_a_row(seed, shape):
    # whole numbers: exact sums
    C, K, P, n = shape
    rng = np.random.default_rng(seed)
    X, D = whole(rng, n, P, low=-20, high=21), whole(rng, C, K, P)
    codes = rng.integers(0, K, (n, C)).astype(np.uint16)
    with pytest.MonkeyPatch.context() as patch, Workers(1) as workers:
        patch.setattr("gkmeans.dictionaries.TABLE_BYTES", 0)
        tables = Tables.of(D, workers)
        found = [assign_block(X, tables, 1, codes, workers, rounds, 5) for rounds in (0, 1, 5)]
        again = assign_block(X, tables, 1, codes, workers, 5, 5)
    assert tables.T is None
    squared = [((X - reference.decode(D, given)) ** 2).sum(axis=1) for given in (codes, *found)]
    assert all((after <= before).all() for before, after in itertools.pairwise(squared))
    assert (again == found[2]).all()


@common
@given(seeds, shapes, st.sampled_from([0.5, 1.0, 30.0]))
def test_shrinkage_solves_the_ridge_regression_to_zero(seed, shape, points):
    # Σ‖x − x̂‖² + points Σ_{used} ‖d‖²: with ridge to the codewords before, as in the plain update
    X, D, codes = drawn(seed, shape)
    C, K, P, n = shape
    with Workers(1) as workers:
        statistics = Statistics.of(X, codes, K)
        solved = statistics.normal(slice(0, C), workers, points).solve(statistics.W, D).reshape(C * K, P)
    chosen = np.zeros((n, C * K))
    chosen[np.arange(n)[:, None], codes + K * np.arange(C)] = 1
    used = chosen.any(axis=0)
    A = (chosen.T @ chosen + (points + RIDGE) * np.eye(C * K))[used][:, used]
    previous = D.reshape(C * K, P)[used].astype(float)
    expected = np.linalg.solve(A, chosen.T[used] @ X.astype(float) + RIDGE * previous)
    np.testing.assert_allclose(solved[used], expected, rtol=1e-4, atol=1e-5)
    assert (solved[~used] == D.reshape(C * K, P)[~used]).all()


@common
@given(seeds, shapes, st.sampled_from([0.0, 1.0, 30.0]))
def test_a_rough_solution_is_near_the_exact_one(seed, shape, points):
    X, D, codes = drawn(seed, shape)
    statistics, all_of = Statistics.of(X, codes, shape[1]), slice(0, shape[0])
    with Workers(1) as workers:
        ways = (False, True)  # one after the other: the factors share their memory
        solved = [statistics.normal(all_of, workers, points, rough).solve(statistics.W, D) for rough in ways]
    np.testing.assert_allclose(*(reference.decode(D, codes) for D in solved), rtol=1e-4, atol=1e-4 * np.abs(X).max())


def test_a_rough_solution_of_many_codewords_is_near_the_exact_one(rng, workers):
    codes = (256 * rng.random((20_000, 4)) ** 3).astype(np.uint16)  # some are chosen far more often
    X = rng.standard_normal((20_000, 3)).astype(np.float32) + codes[:, :3]
    statistics, D = Statistics.of(X, codes, 256), np.zeros((4, 256, 3), np.float32)
    points = 1.01 * ROUGH * 4 * (statistics.counts.max() + 1.0)

    def decoded(rough, dtype):  # the factors share their memory
        normal = statistics.normal(slice(0, 4), workers, points, rough)
        assert normal.factor.A.dtype == dtype
        return reference.decode(normal.solve(statistics.W, D), codes)

    exact, rough = decoded(False, np.float64), decoded(True, np.float32)
    residual = np.linalg.norm(X - exact)
    assert np.linalg.norm(rough - exact) < 1e-3 * residual


def test_a_rough_solution_that_fails_is_made_exactly(rng, workers, monkeypatch):
    def refused(A):
        if A.dtype == np.float32:
            raise np.linalg.LinAlgError
        return CholeskyAlone(A)

    monkeypatch.setattr("gkmeans.update.CholeskyAlone", refused)
    statistics = Statistics.of(rng.standard_normal((100, 3)), rng.integers(0, 4, (100, 2)), 4)
    assert statistics.normal(slice(0, 2), workers, 1.0, rough=True).factor.A.dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_factor_made_alone_solves_as_that_of_several_threads(dtype, rng, workers):
    for m, q in ((0, 2), (1, 1), (7, 3), (200, 65), (450, 0)):
        L = np.tril(rng.standard_normal((m, m))) + 3 * np.sqrt(m) * np.eye(m)
        A, right = (L @ L.T).astype(dtype), rng.standard_normal((m, q))
        alone = CholeskyAlone(np.tril(A)).solve(right)
        assert alone.dtype == dtype
        assert alone.shape == (m, q)
        tolerance = {"rtol": 1e-3, "atol": 1e-4} if dtype == np.float32 else {"rtol": 1e-9, "atol": 1e-12}
        np.testing.assert_allclose(alone, np.linalg.solve(L @ L.T, right), **tolerance)
        np.testing.assert_allclose(alone, Cholesky(np.tril(A), workers).solve(right), **tolerance)


@pytest.mark.parametrize("shape", [(1, 2, 3), (2, 4, 3), (3, 200, 2)])
def test_no_points_leave_the_dictionaries_as_they_were(shape, rng):
    D = rng.standard_normal(shape).astype(np.float32)
    nothing = Statistics.of(np.empty((0, shape[2])), np.empty((0, shape[0]), np.uint8), shape[1])
    np.testing.assert_array_equal(nothing.solve(D), D)
    with Workers(1) as workers:
        rough = nothing.normal(slice(0, shape[0]), workers, shrinkage=1.0, rough=True)
        np.testing.assert_array_equal(rough.solve(nothing.W, D), D)


def test_a_factor_of_what_is_not_positive_is_refused():
    with pytest.raises(np.linalg.LinAlgError, match="row 2 of 2"):
        CholeskyAlone(np.array([[1.0, 0.0], [2.0, 1.0]]))


def test_a_rough_solution_is_in_float32_where_the_shrinkage_allows_it(rng, workers):
    codes = rng.integers(0, 16, (1000, 4))
    statistics = Statistics.of(rng.standard_normal((1000, 3)), codes, 16)
    for points, rough, dtype in ((1.0, True, np.float32), (0.0, True, np.float64), (1.0, False, np.float64)):
        assert statistics.normal(slice(0, 4), workers, points, rough).factor.A.dtype == dtype


@common
@given(seeds, shapes, st.integers(1, 40))
def test_statistics_of_parts_add_up_to_those_of_the_whole(seed, shape, more):
    C, K, P, n = shape
    rng = np.random.default_rng(seed)
    X = whole(rng, n + more, P)
    codes = rng.integers(0, K, (n + more, C)).astype(np.uint8)
    codes[:n] %= max(1, K // 2)  # the parts have seen different numbers of codewords
    both = Statistics.of(X[:n], codes[:n]) + Statistics.of(X[n:], codes[n:])
    all_ = Statistics.of(X, codes)
    assert (both.counts == all_.counts).all()
    assert (both.W == all_.W).all()
    assert both.Z.keys() == all_.Z.keys()
    assert all((both.Z[pair] == all_.Z[pair]).all() for pair in all_.Z)
    D = whole(rng, C, K, P)
    assert (both.solve(D) == all_.solve(D)).all()


@common
@given(seeds, shapes)
def test_sparse_statistics_of_parts_add_up_too(seed, shape):
    C, K, P, n = shape
    rng = np.random.default_rng(seed)
    X, D = whole(rng, 2 * n, P), whole(rng, C, K, P)
    codes = rng.integers(0, K, (2 * n, C)).astype(np.uint8)
    codes[:n] %= max(1, K // 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "DENSE_UNKNOWNS", 1)
        both = Statistics.of(X[:n], codes[:n]) + Statistics.of(X[n:], codes[n:])
        all_ = Statistics.of(X, codes)
        assert (both.counts == all_.counts).all()
        assert (both.W == all_.W).all()
        assert all(abs(both.Z[pair] - all_.Z[pair]).sum() == 0 for pair in all_.Z)
        np.testing.assert_allclose(both.solve(D), all_.solve(D), rtol=1e-4, atol=1e-4)


@common
@given(seeds, shapes)
def test_statistics_are_those_of_the_paper(seed, shape):
    C, K, P, n = shape
    rng = np.random.default_rng(seed)
    X, codes = whole(rng, n, P), rng.integers(0, K, (n, C)).astype(np.uint8)
    statistics = Statistics.of(X, codes, K)
    Z, W = reference.statistics(X, codes, K)
    assert (statistics.W == W).all()
    assert all((statistics.Z[b, c] == Z[b, :, c, :]).all() for b in range(C) for c in range(b + 1, C))
    assert all((statistics.counts[c] == np.diag(Z[c, :, c, :])).all() for c in range(C))


@common
@given(seeds, shapes, st.floats(0, 100))
def test_centring_leaves_every_sum_unchanged(seed, shape, offset):
    X, D, codes = drawn(seed, shape)
    D = D + np.float32(offset) * np.arange(1, len(D) + 1, dtype=np.float32)[:, None, None] * (-1) ** len(D)
    counts = Statistics.of(X, codes, shape[1]).counts
    moved = centred(D, counts)
    every = np.array(list(itertools.islice(itertools.product(range(shape[1]), repeat=shape[0]), 500)))
    np.testing.assert_allclose(
        reference.decode(moved.astype(float), every),
        reference.decode(D.astype(float), every),
        atol=1e-6 * (1 + np.abs(D).max()) * shape[0],
    )
    usage = np.einsum("ck,ckp->cp", counts, moved.astype(float)) / len(X)
    np.testing.assert_allclose(usage[1:], 0, atol=1e-6 * (1 + np.abs(D).max()))


@common
@given(seeds, st.integers(1, 8), st.integers(0, 8), st.sampled_from([1e-12, 1.0, 1e12]))
def test_rotation_is_orthogonal_and_not_worse_than_any_other(seed, P, rank, scale):
    rng = np.random.default_rng(seed)
    M = scale * rng.standard_normal((P, rank)) @ rng.standard_normal((rank, P))
    previous = np.linalg.qr(rng.standard_normal((P, P)))[0].astype(np.float32)
    R = procrustes(M, previous)
    assert R.dtype == np.float32
    assert R.flags.c_contiguous
    np.testing.assert_allclose(R.T @ R, np.eye(P), atol=1e-5)
    trace = np.trace(R.T.astype(float) @ M)
    slack = 1e-5 * np.linalg.norm(M, "nuc")
    assert trace >= np.trace(previous.T.astype(float) @ M) - slack
    assert trace >= np.trace(reference.procrustes(M).T @ M) - slack


@common
@given(seeds, st.integers(2, 6))
def test_rotation_stays_where_the_data_leaves_it_open(seed, P):
    rng = np.random.default_rng(seed)
    previous = np.linalg.qr(rng.standard_normal((P, P)))[0].astype(np.float32)
    np.testing.assert_allclose(procrustes(np.zeros((P, P)), previous), previous, atol=1e-5)
    once = procrustes(rng.standard_normal((P, 1)) @ rng.standard_normal((1, P)), previous)
    M = rng.standard_normal((P, P))
    np.testing.assert_allclose(procrustes(M, procrustes(M, once)), procrustes(M, once), atol=1e-4)


@common
@given(seeds, st.integers(2, 3), st.integers(1, 5), st.integers(3, 6), st.integers(1, 40))
def test_a_stage_in_blocks_never_raises_distortion(seed, U, K, P, n):
    # rotation, codewords and codes of U blocks, each step at its optimum given the others
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, P)).astype(np.float32)
    edges = [0, *sorted(rng.choice(np.arange(1, P), U - 1, replace=False).tolist()), P]
    blocks = tuple(Block(slice(edges[u], edges[u + 1]), slice(u, u + 1)) for u in range(U))
    D = tuple(rng.standard_normal((1, K, b.dims.stop - b.dims.start)).astype(np.float32) for b in blocks)
    R = np.linalg.qr(rng.standard_normal((P, P)))[0].astype(np.float32)
    stage = Dictionaries(blocks, D, R)
    rows = Rows(X, Frame(np.zeros(P, np.float32)))
    codes = rng.integers(0, K, (n, U)).astype(np.uint8)
    groups = [block.dictionaries for block in blocks]
    with Workers(1) as workers:
        statistics = Statistics.collect(rows, codes, K, groups, workers)
        after = updated(stage, statistics, workers)
        chosen, errors = assign(rows, after, GroupAssignment(1), codes, workers)
    decoded = reference.decode(stage.full().astype(float), codes)
    np.testing.assert_allclose(cross_product(blocks, statistics.W, D), X.T.astype(float) @ (decoded @ R), atol=1e-3)
    distortions = [
        reference.distortion(X, stage.full(), codes),
        reference.distortion(X, after.full(), codes),
        reference.distortion(X, after.full(), chosen),
    ]
    assert distortions[1] <= distortions[0] * (1 + 1e-5) + 1e-6
    assert distortions[2] <= distortions[1] * (1 + 1e-5) + 1e-6
    assert float(errors.sum()) == pytest.approx(distortions[2], rel=1e-4, abs=1e-5)


@common
@given(seeds, shapes)
def test_revived_codewords_meet_a_point_and_raise_nothing(seed, shape):
    X, D, codes = drawn(seed, shape)
    _, K, P, _ = shape
    rows = Rows(X, Frame(np.zeros(P, np.float32)))
    statistics = Statistics.of(X, codes, K)
    errors = ((X - reference.decode(D, codes)) ** 2).sum(axis=1, keepdims=True).astype(np.float32)
    moved = revived(Dictionaries.single(D), statistics, rows, codes, errors, np.random.default_rng(seed)).D[0]
    assert (moved[statistics.counts > 0] == D[statistics.counts > 0]).all()
    assert reference.distortion(X, moved, codes) == reference.distortion(X, D, codes)
    for c, k in np.argwhere((moved != D).any(axis=2)):
        trial = codes.copy()
        trial[:, c] = k
        assert ((X - reference.decode(moved, trial)) ** 2).sum(axis=1).min() <= 1e-9 * (1 + energy(X, moved))


@settings(deadline=None, max_examples=15)
@given(seeds, shapes, st.sampled_from(["random", "kmeans", "hierarchical"]), st.integers(1, 3), st.booleans())
def test_same_seed_gives_same_bits_and_a_history_that_falls_where_plain(seed, shape, init, order, plain):
    C, K, _, _ = shape
    X = drawn(seed, shape)[0]
    options = {"order": min(order, C), "init": init, "relaxation": 0 if plain else 0.5}
    fits = [
        gk.GroupKMeans(C, K, **options, max_iter=4, init_iter=2, random_state=seed, n_jobs=jobs).fit(X)
        for jobs in (1, 1, 2)
    ]
    for other in fits[1:]:
        for name in ("dictionaries_", "codes_", "history_"):
            assert getattr(other, name).tobytes() == getattr(fits[0], name).tobytes()
    last = fits[0].history_[-fits[0].n_iter_ :]
    if plain:
        assert (np.diff(last) <= 1e-6 * last[:-1] + 1e-7).all()  # costs are float32: below 1e-7 of ‖x‖² codes tie
    assert fits[0].codes_.max() < K
    assert reference.distortion(X, fits[0].dictionaries_, fits[0].codes_) / (X.astype(float) ** 2).sum() == (
        pytest.approx(last[-1], rel=1e-4, abs=1e-9)
    )

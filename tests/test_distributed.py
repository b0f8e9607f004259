"""Training and encoding over Dask: the bits of one machine, lost workers, and what cannot be taken."""

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from dask.delayed import Delayed
from distributed import wait

import gkmeans as gk
from conftest import correlated, message_of, same_bits
from gkmeans import distributed
from gkmeans._parallel import Workers
from gkmeans.assignment import GroupAssignment
from gkmeans.dictionaries import Dictionaries
from gkmeans.distributed import tasks
from gkmeans.distributed.arrays import UNIT, recut
from gkmeans.distributed.shards import dealt_out, fetched, housed
from gkmeans.training import sweep

dd = pytest.importorskip("dask.dataframe")
INITS = ("random", "kmeans", "hierarchical")
N = 3 * UNIT - 5000
on_the_cluster = pytest.mark.xdist_group("cluster")  # one process of the tests, and so one cluster
CHUNKS = ((15_000, 20_000, N - 35_000), -1)  # cut anew at 16,384 and 32,768


def small(C=4, K=8, **options):
    return gk.GroupKMeans(
        C, K, **({"max_iter": 3, "init_iter": 3, "random_state": 0, "relaxation": 0, "effort": 0} | options)
    )


@pytest.fixture(scope="module")
def X():
    return correlated(np.random.default_rng(1), N, 6)


@pytest.fixture
def few(rng):
    return correlated(rng, 900, 5)


@pytest.fixture(scope="module")
def client():
    """Two processes of one thread each."""
    from distributed import Client, LocalCluster

    with (
        warnings.catch_warnings(),
        dask.config.set({"distributed.worker.daemon": True, "distributed.comm.timeouts.connect": "60s"}),
    ):
        warnings.simplefilter("ignore")
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            yield client


def on_threads(est, array):
    with dask.config.set(scheduler="threads", num_workers=2):
        return distributed.fit(est, array)


# ---- the same bits


@on_the_cluster
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("chunks", [CHUNKS, (22_000, -1)], ids=["three", "two"])  # a worker with two, or one for each
def test_a_cluster_of_two_processes_gives_the_bits_of_fit(init, chunks, X, client):
    est = distributed.fit(small(init=init), da.from_array(X, chunks=chunks))
    assert same_bits(est, small(init=init).fit(X))
    assert isinstance(est.codes_, np.ndarray)


@on_the_cluster
@pytest.mark.parametrize(("count", "apart"), [(2, True), (3, False), (8, False)])
def test_chunks_of_one_worker_are_dealt_out_to_both(count, apart, client):
    client.wait_for_workers(2)
    first, _ = client.nthreads()
    futures = [client.submit(np.full, 5, p, workers=[first], pure=False) for p in range(count)]
    wait(futures)
    chunks = [Delayed(future.key, {future.key: future}) for future in futures]
    dealt, found = dealt_out(chunks)
    there = [chunk.__dask_graph__()[chunk.key] for chunk in dealt]
    wait(there)
    assert found == apart
    assert [list(client.who_has(there)[future.key]) for future in there].count([first]) == -(-count // 2)
    assert [rows[0] for rows in fetched(dealt)] == list(range(count))


@on_the_cluster
def test_many_chunks_stay_where_they_are(client):
    client.wait_for_workers(2)
    first, _ = client.nthreads()
    futures = [client.submit(np.full, 5, p, workers=[first], pure=False) for p in range(9)]
    wait(futures)
    chunks = [Delayed(future.key, {future.key: future}) for future in futures]
    assert dealt_out(chunks) == (chunks, False)


NOT_THE_DEFAULT = """
import sys, dask, numpy as np, dask.array as da, gkmeans as gk
from distributed import Client
from gkmeans import distributed
X = np.random.default_rng(0).random((60, 4))
def make():
    return gk.GroupKMeans(2, 4, init="random", max_iter=2, relaxation=0, effort=0, random_state=0)
with Client(sys.argv[1], set_as_default=False) as client, dask.config.set(scheduler=client):
    est = distributed.fit(make(), da.from_array(X, chunks=(30, -1)))
assert (est.dictionaries_ == make().fit(X).dictionaries_).all()
"""


TWICE = """
import dask.array as da, gkmeans as gk, numpy as np
from gkmeans import distributed
X = np.random.default_rng(0).random((60, 4))
array = da.from_array(X, chunks=(30, -1))
def make():
    return gk.GroupKMeans(2, 4, init="random", max_iter=2, relaxation=0, effort=0, random_state=0)
one, two = distributed.fit(make(), array), distributed.fit(make(), array)
assert (one.dictionaries_ == two.dictionaries_).all()
assert (distributed.encode(one, array).compute() == one.encode(X)).all()
"""


def test_a_process_without_a_client_fits_twice_and_encodes():
    subprocess.run([sys.executable, "-c", TWICE], check=True, timeout=120)


@on_the_cluster
def test_a_client_need_not_be_the_default_one(client):
    subprocess.run([sys.executable, "-c", NOT_THE_DEFAULT, client.scheduler.address], check=True, timeout=120)


def test_a_pass_runs_in_the_thread_that_dask_gave_it_or_beside_the_main_one():
    def seen():
        with tasks._workers() as workers:
            return workers.map(lambda _: threading.get_ident(), range(2)), threading.get_ident()

    assert len(set(ids := seen()[0])) == 1
    assert ids[0] != threading.get_ident()
    with ThreadPoolExecutor(1) as pool:
        ids, own = pool.submit(seen).result()
    assert ids == [own, own]


def test_chunks_stay_with_workers_that_have_room_for_them():
    assert housed([["a"], ["a", "b"], ["b"]], {"a": 2, "b": 2}) == ["a", "a", "b"]
    assert housed([["a"], ["a"], ["a"], []], {"a": 2, "b": 1, "c": 1}) == ["a", "a", "b", "c"]
    assert housed([["lost"], ["a"]], {"a": 1, "b": 1}) == ["b", "a"]
    assert housed([["a", "b"], ["a"]], {"a": 1, "b": 1}) == ["b", "a"]  # nothing moves


@on_the_cluster
def test_a_moved_chunk_that_is_lost_comes_again(client):
    client.wait_for_workers(2)
    first, _ = client.nthreads()
    futures = [client.submit(np.full, 5, p, workers=[first], pure=False) for p in range(2)]
    wait(futures)
    dealt, _ = dealt_out([Delayed(future.key, {future.key: future}) for future in futures])
    [copy] = [chunk.__dask_graph__()[chunk.key] for chunk in dealt if chunk.key not in {one.key for one in futures}]
    wait(copy)
    [home] = client.who_has([copy])[copy.key]
    del futures
    os.kill(client.run(os.getpid)[home], signal.SIGKILL)
    assert [rows[0] for rows in fetched(dealt)] == [0, 1]


@on_the_cluster
@pytest.mark.usefixtures("untried")
def test_relaxed_training_gives_the_bits_of_fit(X, client):
    options = {"init": "random", "relaxation": 0.5, "max_iter": 5}
    assert same_bits(distributed.fit(small(**options), da.from_array(X, chunks=CHUNKS)), small(**options).fit(X))


@on_the_cluster
def test_encoding_on_a_cluster_gives_the_codes_of_encode(X, client):
    est = small(effort=3).fit(X[:2000])
    codes = distributed.encode(est, da.from_array(X, chunks=CHUNKS))
    assert codes.chunks == ((15_000, 20_000, N - 35_000), (4,))
    assert codes.dtype == np.uint8
    assert (codes.compute() == est.encode(X)).all()


class Killer(logging.Handler):
    """Kills a worker when the second iteration of a stage has been noted."""

    def __init__(self, client):
        super().__init__()
        self.client, self.killed = client, []

    def emit(self, record):
        _, stage, iteration, *_ = record.args
        if iteration == 2:
            pids = self.client.run(os.getpid)
            os.kill(list(pids.values())[len(self.killed) % len(pids)], signal.SIGKILL)
            self.killed.append(stage)


@on_the_cluster
def test_a_worker_killed_in_each_stage_changes_no_bit(X, client, caplog):
    expected = small().fit(X)
    killer = Killer(client)
    logger = logging.getLogger("gkmeans")
    caplog.set_level(logging.INFO, "gkmeans")
    logger.addHandler(killer)
    try:
        est = distributed.fit(small(), da.from_array(X, chunks=CHUNKS))
    finally:
        logger.removeHandler(killer)
    assert killer.killed == ["stage 1: 4 blocks", "stage 2: 2 blocks", "gk-means"]
    assert same_bits(est, expected)


@pytest.mark.parametrize("chunks", [100, 5000, 16_384, 20_000, N])
def test_threads_give_the_bits_of_fit_for_any_chunks(chunks, X):
    est = small(init="random", max_iter=2)
    assert same_bits(on_threads(est, da.from_array(X, chunks=(chunks, -1))), small(init="random", max_iter=2).fit(X))


@pytest.mark.parametrize("init", INITS)
@pytest.mark.usefixtures("untried")
def test_relaxed_training_from_each_start_gives_the_bits_of_fit(init, X, monkeypatch):
    # rows of every shard are held out of the start, and coded by it
    monkeypatch.setattr("gkmeans.estimators.relaxing.HELD_ROWS", 64)
    monkeypatch.setattr("gkmeans.estimators.relaxing.MANY_ROWS", 1 << 30)
    options = {"init": init, "relaxation": 0.5, "init_iter": 2, "max_iter": 5}
    array = da.from_array(X, chunks=CHUNKS)
    assert same_bits(on_threads(small(**options), array), small(**options).fit(X))


def test_samples_of_codes_give_the_bits_of_fit(verdict, X):
    options = {"init": "random", "relaxation": 0.5, "max_iter": 26}
    fits = [on_threads(small(**options), da.from_array(X, chunks=CHUNKS)), small(**options).fit(X)]
    assert same_bits(*fits)
    assert (fits[0].history_ == fits[1].history_).all()
    assert len(verdict) == 4
    assert verdict[:2] == verdict[2:]


def test_the_default_with_its_trial_gives_the_bits_of_fit(X, monkeypatch):
    monkeypatch.setattr("gkmeans.estimators.relaxing.HELD_ROWS", 64)
    options = {"init": "hierarchical", "relaxation": 0.5, "init_iter": 2, "max_iter": 5}
    array = da.from_array(X, chunks=CHUNKS)
    assert same_bits(on_threads(small(**options), array), small(**options).fit(X))


def test_counts_travel_in_few_bytes_and_add_to_what_they_are():
    counts = [np.array([[0, 3], [1, 255]]), np.array([[0, 2], [1, 65_535]]), np.array([[7, 0], [0, 4]])]
    Z = [{(0, 1): block.astype(np.int32)} for block in counts]
    sparse = [{(0, 1): scipy.sparse.csr_array(block, dtype=np.int32)} for block in counts]
    ones = np.ones((2, 2), np.int64), np.ones((2, 2, 3))

    def sums(blocks):
        return 5, [(ones[0], tasks.narrow(blocks), ones[1], (slice(0, 2),))]

    assert [tasks.narrow(one)[0, 1].dtype for one in Z] == [np.uint8, np.uint16, np.uint8]
    for some in (Z, sparse, Z[:1], sparse[:1]):
        error, [(total, pairs, W, groups)] = tasks.joined(
            [tasks.summed([sums(one) for one in some[:2]])] + [sums(one) for one in some[2:]]
        )
        found = pairs[0, 1]
        assert found.dtype == np.int32
        np.testing.assert_array_equal(
            found.toarray() if scipy.sparse.issparse(found) else found, sum(counts[: len(some)])
        )
        assert (error, groups) == (5 * len(some), (slice(0, 2),))
        assert (total == len(some)).all()
        assert (len(some) == W).all()


def test_what_a_pass_leaves_is_held_once_for_all_that_is_made_of_the_same_rows(few):
    with dask.config.set(scheduler="threads"), Workers(1) as workers:
        _, rows = distributed._opened(da.from_array(few, chunks=(300, -1)), workers)
        D = Dictionaries.single(few[None, :4].astype(np.float32))
        first, _, _ = sweep(rows, D, GroupAssignment(1), None, workers)
        others = rows.without(np.array([3])), rows.less(D.D[0], first), rows.framed(rows.frame)
        assert rows._before[1] is None
        for other in others:
            sweep(other, D, GroupAssignment(1), None, workers)
            assert rows._before is other._before
            assert len(rows._before) == 2


@on_the_cluster
def test_a_fit_leaves_nothing_on_the_cluster(X, client):
    def keys():
        gc.collect()
        return client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.tasks))

    before, deadline = keys(), time.monotonic() + 20
    distributed.fit(small(init="kmeans"), da.from_array(X, chunks=CHUNKS))
    while keys() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not keys() - before


def test_unused_codewords_are_given_the_same_job(rng):
    # far more codewords than clusters: many are out of use after the first update
    X = (rng.standard_normal((5, 4)) * 100)[rng.integers(0, 5, 40_000)] + rng.standard_normal((40_000, 4))
    options = {"C": 2, "K": 64, "init": "random", "max_iter": 4}
    assert same_bits(on_threads(small(**options), da.from_array(X, chunks=(20_000, -1))), small(**options).fit(X))


@pytest.mark.parametrize("model", [gk.CartesianKMeans(3, 8), gk.OptimizedCartesianKMeans(2, 2, 8, 3, init_iter=2)])
def test_the_other_estimators_give_the_bits_of_fit(model, X):
    model.set_params(max_iter=2, random_state=0)
    est = on_threads(model.__sklearn_clone__(), da.from_array(X, chunks=CHUNKS))
    assert same_bits(est, model.__sklearn_clone__().fit(X))


def test_starts_that_are_given_are_taken(X):
    array = da.from_array(X, chunks=CHUNKS)
    first = small(max_iter=1, init_iter=1).fit(X[:2000])
    for init in (first, first.dictionaries_):
        assert same_bits(on_threads(small(init=init), array), small(init=init).fit(X))


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64, np.int64])
def test_every_dtype_gives_the_bits_of_fit(dtype, rng):
    X = rng.integers(0, 256, (40_000, 3)).astype(dtype)
    est = on_threads(small(2, 8, init="random"), da.from_array(X, chunks=(20_000, -1)))
    assert same_bits(est, small(2, 8, init="random").fit(X))


# ---- collections


def test_a_dataframe_has_a_column_for_each_dimension(few):
    frame = pd.DataFrame(few, columns=list("abcde"))
    est = on_threads(small(), dd.from_pandas(frame, npartitions=3))
    assert same_bits(est, small().fit(few))
    assert est.feature_names_in_.tolist() == list("abcde")
    codes = distributed.encode(est, dd.from_pandas(frame, npartitions=2))
    assert (codes.compute() == est.encode(frame)).all()
    wrong = dd.from_pandas(frame.rename(columns={"a": "z"}), npartitions=1)
    assert "feature names" in message_of(lambda: distributed.encode(est, wrong))


@pytest.mark.parametrize("kind", ["arrays", "lists"])
def test_a_column_may_hold_the_vectors(kind, few):
    entries = list(few) if kind == "arrays" else few.astype(float).tolist()
    frame = pd.DataFrame({"v": pd.Series(entries, dtype=object)})
    with dask.config.set({"dataframe.convert-string": False}):
        est = on_threads(small(), dd.from_pandas(frame, npartitions=3)["v"])
    assert same_bits(est, small().fit(few if kind == "arrays" else few.astype(float)))


def test_columns_of_unequal_vectors_are_refused(few):
    ragged = pd.DataFrame({"v": pd.Series([*few, few[0, :3]], dtype=object)})
    with dask.config.set({"dataframe.convert-string": False}):
        text = message_of(lambda: on_threads(small(), dd.from_pandas(ragged, npartitions=1)["v"]))
    assert "partition 0" in text
    assert "(3,), (5,)" in text
    with dask.config.set({"dataframe.convert-string": True}):
        text = message_of(lambda: on_threads(small(), dd.from_pandas(ragged, npartitions=1)["v"]))
    assert "convert-string" in text


def test_empty_partitions_are_passed_over(few):
    array = da.from_array(few, chunks=((0, 400, 0, 500, 0), 5))
    est = on_threads(small(), array)
    assert same_bits(est, small().fit(few))
    assert (distributed.encode(est, array).compute() == est.encode(few)).all()
    sorted_ = pd.DataFrame(few, columns=list("abcde")).sort_values("a", ignore_index=True)
    frame = dd.from_pandas(sorted_, npartitions=4)
    some = frame[frame.a < float(sorted_.a[100])]  # rows of the first partition alone
    assert on_threads(small(2, 4), some).codes_.shape == (100, 2)


def test_chunks_are_moved_to_the_nearest_unit():
    array = da.zeros((100_000, 2), chunks=((20_000, 20_000, 60_000), 2))
    assert recut(array, UNIT).chunks[0] == (UNIT, UNIT, 100_000 - 2 * UNIT)
    assert recut(da.zeros((10, 2), chunks=(3, 2)), UNIT).chunks[0] == (10,)
    already = da.zeros((3 * UNIT, 2), chunks=(UNIT, 2))
    assert recut(already, UNIT) is already


# ---- what cannot be taken


def test_unknown_chunks_are_refused(few):
    array = da.from_array(few, chunks=(300, -1))
    unknown = array[array[:, 0] > 0]
    for call in (lambda: distributed.fit(small(), unknown), lambda: distributed.encode(small().fit(few), unknown)):
        assert "compute_chunk_sizes()" in message_of(call)


def test_chunks_of_some_columns_are_refused(few):
    text = message_of(lambda: distributed.fit(small(), da.from_array(few, chunks=(300, 2))))
    assert "(2, 2, 1)" in text
    assert "X.rechunk({1: -1})" in text


def test_chunks_of_another_dtype_are_refused(few):
    halves = [few[:400], few[400:].astype(np.float64)]
    parts = [da.from_delayed(dask.delayed(half), half.shape, dtype=np.float32) for half in halves]
    mixed = da.concatenate(parts)
    text = message_of(lambda: on_threads(small(), mixed))
    assert "float64, but X says float32" in text


def test_chunks_of_another_shape_are_refused(few):
    array = da.from_array(few, chunks=-1).map_blocks(lambda a: a[:-1], dtype=np.float32)
    assert "(899, 5), but X says (900, 5)" in message_of(lambda: on_threads(small(), array))


@on_the_cluster
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_value_in_a_distant_chunk_is_named_by_its_row(value, X, client):
    est = small().fit(X[:500])
    bad = X.copy()
    bad[41_234, 3] = value
    array = da.from_array(bad, chunks=CHUNKS)
    before = est.dictionaries_
    for call in (lambda: distributed.fit(est, array), lambda: distributed.encode(est, array).compute()):
        text = message_of(call)
        assert "row 41234, column 3" in text
        assert ("NaN" if np.isnan(value) else "infinity") in text
    assert est.dictionaries_ is before


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (np.zeros((5, 2)), "is a ndarray"),
        ("text", "is a str"),
        (da.zeros(5), "1 dimensions"),
        (da.zeros((5, 2, 2)), "3 dimensions"),
        (da.zeros((0, 2)), "empty"),
        (da.zeros((5, 0)), "empty"),
        (da.zeros((5, 2), dtype=complex), "complex128"),
        (da.zeros((2**31, 2), dtype=np.uint8), "2147483648 rows"),
        (dd.from_pandas(pd.DataFrame({"a": ["x", "y"]}), npartitions=1), "not real numbers"),
    ],
    ids=str,
)
def test_what_is_no_dask_array_of_rows_is_refused(bad, part):
    assert part in message_of(lambda: distributed.fit(small(), bad))


def test_parameters_and_width_are_checked_as_by_fit(few):
    array = da.from_array(few, chunks=-1)
    assert "max_iter=0" in message_of(lambda: distributed.fit(small(max_iter=0), array))
    assert "est is a str" in message_of(lambda: distributed.fit("model", array))
    est = small().fit(few)
    assert "4 features" in message_of(lambda: distributed.encode(est, array[:, :4]))
    assert "effort=11" in message_of(lambda: distributed.encode(est, array, effort=11))
    with pytest.warns(gk.DataWarning, match="fewer than n_codewords"):
        on_threads(small(2, 1000), array)


def test_without_dask_the_error_says_what_to_install():
    code = "import sys; sys.modules['dask'] = None\nimport gkmeans\nfrom gkmeans import distributed"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: gkmeans.distributed needs Dask; install it by: pip install 'gkmeans[dask]'" in done.stderr

"""Ctrl-C comes back at once and leaves the process as it was; progress goes to logging and to stderr."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_info

import gkmeans as gk
from gkmeans._parallel import Workers

SCRIPT = """
import signal, sys, threading
import numpy as np
from threadpoolctl import threadpool_info
import gkmeans as gk

def limits():
    return sorted((pool["filepath"], pool["num_threads"]) for pool in threadpool_info())

def say(word):
    print(word, flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what runs in the background of a shell

rng = np.random.default_rng(0)
X = rng.standard_normal((20000, 64)).astype(np.float32)
small = gk.GroupKMeans(2, 4, max_iter=2, init_iter=1, random_state=0).fit(X[:300])
before, threads = limits(), threading.active_count()
est = gk.GroupKMeans(8, 256, tol=0, max_iter=100000, random_state=0)
if "{what}" == "encode":
    est = gk.GroupKMeans(8, 256, init="random", order=1, max_iter=1, random_state=0).fit(X[:1000]).set_params(order=4)
say("ready")
try:
    {call}
    say("finished")
except KeyboardInterrupt:
    say("interrupted")
say("limits kept" if limits() == before else f"limits changed from {{before}} to {{limits()}}")
say("threads ended" if threading.active_count() <= threads else "threads left")
if "{what}" == "fit":
    say("unfitted" if not hasattr(est, "dictionaries_") else "half fitted")
again = gk.GroupKMeans(2, 4, max_iter=2, init_iter=1, random_state=0).fit(X[:300])
say("works" if again.dictionaries_.tobytes() == small.dictionaries_.tobytes() else "differs")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent by POSIX means")
@pytest.mark.parametrize(
    ("what", "call", "wait"),
    [
        ("fit", "est.set_params(order=1).fit(X)", 0.8),
        ("fit", "est.set_params(order=2, n_jobs=1).fit(X)", 1.2),
        ("fit", "est.set_params(order=4, init='random').fit(X)", 1.0),
        ("fit", "est.set_params(init='random').fit(X)", 1.0),
        ("encode", "est.encode(X)", 0.8),
        ("encode", "est.set_params(order=2).encode(X, effort=9)", 0.8),
        ("fit", "(est := gk.OptimizedCartesianKMeans(1, 6, init_iter=1, max_hours=None, random_state=0)).fit(X)", 1.5),
    ],
    ids=["order 1", "order 2 on one thread", "order 4", "relaxation", "encode", "encode with rounds", "pursuit"],
)
def test_interrupt_returns_control_and_leaves_the_process_as_it_was(what, call, wait):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT.format(what=what, call=call)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        guard = threading.Timer(60, process.kill)
        guard.start()
        try:
            assert process.stdout.readline().strip() == "ready"
            time.sleep(wait)
            process.send_signal(signal.SIGINT)
            sent = time.perf_counter()
            first = process.stdout.readline().strip()
            seconds = time.perf_counter() - sent
            rest = process.stdout.read().split("\n")
            errors = process.stderr.read()
        finally:
            guard.cancel()
            guard.join()  # the tests after this one count threads
            process.kill()
    assert first == "interrupted", errors
    assert seconds < 5
    expected = ["limits kept", "threads ended", *(["unfitted"] if what == "fit" else []), "works", ""]
    assert rest == expected, errors


def limits():
    return sorted((pool["filepath"], pool["num_threads"]) for pool in threadpool_info())


@pytest.fixture
def X(rng):
    return (rng.standard_normal((300, 6)) @ rng.standard_normal((6, 6)) + 1).astype(np.float32)


def small(**options):
    return gk.GroupKMeans(4, 8, **({"max_iter": 3, "init_iter": 2, "random_state": 0, "tol": 0} | options))


def test_thread_limits_are_restored_after_work_and_after_errors(X):
    before = limits()
    est = small().fit(X)
    est.relative_distortion(X)
    assert limits() == before
    with pytest.raises(ZeroDivisionError), Workers(2) as workers:
        workers.map(lambda item: 1 / item, [1, 0, 2])
    assert limits() == before


def threads_of(workers):
    """The threads that work, all at once."""
    together = threading.Barrier(workers.n_jobs, timeout=10)

    def own(_):
        together.wait()
        return threading.current_thread()

    return set(workers.map(own, range(workers.n_jobs)))


def test_threads_wait_for_the_next_call_and_no_more_than_one_pool_of_them():
    with Workers(2) as workers:
        first = threads_of(workers)
    with Workers(2) as outer:
        assert threads_of(outer) == first
        with Workers(2) as inner:
            second = threads_of(inner)
            assert not second & first  # a call within a call has its own
    for thread in second:  # those given back last stay, the others end
        thread.join(10)
    assert not any(thread.is_alive() for thread in second)
    assert all(thread.is_alive() for thread in first)


def test_after_an_error_nothing_of_the_call_runs_on():
    with Workers(1) as workers:
        first = threads_of(workers)
    done = []
    with pytest.raises(ZeroDivisionError), Workers(1) as workers:
        workers.map(lambda item: done.append(1 / item), [0, *[1] * 50])
    assert not any(thread.is_alive() for thread in first)
    count = len(done)
    with Workers(1) as workers:
        assert threads_of(workers).isdisjoint(first)
    assert len(done) == count


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_has_threads_of_its_own():
    script = """
import os
import numpy as np
import gkmeans as gk
from gkmeans._parallel import Workers
X = np.random.default_rng(0).standard_normal((200, 8), np.float32)
est = gk.GroupKMeans(2, 4, max_iter=3, random_state=0, n_jobs=2).fit(X)
codes = est.encode(X)
child = os.fork()
if not child:
    os._exit(0 if (est.encode(X) == codes).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with Workers(2) as workers:  # a fork in the middle of a call
    workers.map(abs, [1, 2])
    child = os.fork()
if not child:
    os._exit(0 if (est.encode(X) == codes).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n0\n", done.stderr


@pytest.fixture
def restored_limits():
    """The limits before the test, put back after it whatever happened."""
    before = limits()
    yield before
    for path, count in before:
        ThreadpoolController().select(filepath=path).limit(limits=count)


@pytest.mark.skipif(all(count == 1 for _, count in limits()), reason="BLAS has one thread anyway")
def test_thread_limits_are_restored_when_two_calls_overlap(restored_limits):
    # as two fits of a search on threads do: the second starts before the first ends, and ends after it
    first, second = Workers(1), Workers(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    inside = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    second.__exit__(None, None, None)
    assert inside == {1}  # the second still holds BLAS to one thread, so that its bits stay the same
    assert limits() == restored_limits


def test_fits_on_several_threads_at_once_are_those_of_one(X, restored_limits):
    expected = small(n_jobs=1).fit(X)
    found = [None] * 4

    def fit(i):
        found[i] = small(n_jobs=1 + i % 2).fit(X)

    threads = [threading.Thread(target=fit, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(est.dictionaries_.tobytes() == expected.dictionaries_.tobytes() for est in found)


def test_the_first_error_of_a_task_is_raised():
    with Workers(2) as workers:
        assert workers.map(lambda item: item * 2, range(50)) == list(range(0, 100, 2))
        with pytest.raises(ValueError, match="seven"):
            workers.map(lambda item: item if item != 7 else fail("seven"), range(5000))


def interrupted_after(count):
    yield from range(count)
    raise KeyboardInterrupt


def test_an_interrupt_while_tasks_are_handed_out_stops_those_that_run():
    stopped = []

    def task(_):
        end = time.monotonic() + 1
        while not workers.stop[0] and time.monotonic() < end:  # as the kernels look at it
            time.sleep(0.01)
        stopped.append(bool(workers.stop[0]))

    with pytest.raises(KeyboardInterrupt), Workers(1) as workers:
        workers.map(task, interrupted_after(3))
    assert all(stopped)


def fail(text):
    raise ValueError(text)


# ---- progress


@pytest.mark.parametrize("init", ["random", "kmeans", "hierarchical"])
def test_every_iteration_is_logged(init, X, caplog):
    with caplog.at_level(logging.INFO, "gkmeans"):
        est = small(init=init, max_iter=4).fit(X)
    lines = [record.getMessage() for record in caplog.records if record.name == "gkmeans"]
    assert any(line.startswith("fit, trial, ") for line in lines)
    lines = [line for line in lines if not line.startswith("fit, trial")]
    assert all(record.levelno == logging.INFO for record in caplog.records)
    said = iter(lines)  # what a trial took back is said too
    assert all(any(f"{distortion:.6f}" in line for line in said) for distortion in est.history_)
    assert "iteration 4 of 4" in lines[-1]


def test_nothing_is_logged_or_shown_unless_asked_for(X, caplog, capfd):
    est = small().fit(X)
    est.relative_distortion(X)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_the_logger_is_left_to_the_user():
    logger = logging.getLogger("gkmeans")
    assert logger.level == logging.NOTSET
    assert logger.propagate
    assert all(isinstance(handler, logging.NullHandler) for handler in logger.handlers)


def test_verbose_shows_a_bar_on_stderr(X, capfd):
    est = small(verbose=1).fit(X)
    out, err = capfd.readouterr()
    assert out == ""
    assert "fit" in err
    assert f"{est.history_[-1]:.5f}" in err
    assert "left" in err
    est.encode(X)
    out, err = capfd.readouterr()
    assert out == ""
    assert "encode" in err
    assert "300/300" in err


@pytest.mark.parametrize("tol", [0, 0.5])
def test_the_bar_ends_full_when_the_fit_ends(tol, X, capfd):
    # 2 stages of up to 2 iterations and up to 3 of the training; those spared by the tolerance count as done
    small(verbose=1, tol=tol, relaxation=0).fit(X)
    assert "7/7" in capfd.readouterr().err
    # besides, trials: 4 of plain and 3 of relaxed training, and perhaps 2 stages of 2 again
    small(verbose=1, tol=tol, max_iter=4).fit(X)
    assert "19/19" in capfd.readouterr().err
    small(verbose=1, tol=tol, max_iter=4).fit(X[:30])  # too few for trials: their iterations count as done
    assert "19/19" in capfd.readouterr().err


@pytest.mark.parametrize(("relaxation", "training"), [(0, "train"), (0.5, "relax")])
def test_the_bar_is_taken_away_by_an_error(relaxation, training, X, capfd, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("broken")

    monkeypatch.setattr(f"gkmeans.estimators.relaxing.{training}", broken)
    before = limits()
    with pytest.raises(RuntimeError, match="broken"):
        small(verbose=1, init="random", max_iter=4, relaxation=relaxation).fit(X)
    assert limits() == before
    monkeypatch.undo()
    small(verbose=1, init="random").fit(X)  # rich allows one bar at a time: the first must have ended

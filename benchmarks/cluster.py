"""Training over Dask on photo SIFT learn at 64 bits: the bits of fit, the overhead, and a worker killed in each stage.

python benchmarks/cluster.py [--rows 100000] [--repeats 1] [--relaxation 0] [--max-iter 100] [--no-kill]

``distributed.fit`` runs on a LocalCluster of two processes with one thread each, ``fit`` with ``n_jobs=2``, in turns;
the chunks are on the workers before the clock starts, as the rows are in memory for ``fit``. A killed worker gets
SIGKILL a little after the second iteration of each stage; Dask's nanny starts another in its place.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import time
from typing import Any

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster, wait

import gkmeans as gk
from common import alternate, machine, median, photosift, spread
from gkmeans import distributed

NAMES = ("codes_", "dictionaries_", "history_", "shift_")


class Killer(logging.Handler):
    """Kills a worker half a second after the second iteration of each stage has been noted."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client, self.killed = client, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Look for second iterations."""
        if len(record.args) == 5 and record.args[2] == 2 and not str(record.args[0]).endswith("trial"):
            pids = list(self.client.run(os.getpid).values())
            threading.Timer(0.5, os.kill, (pids[self.killed % len(pids)], signal.SIGKILL)).start()
            self.killed += 1


def same(one: Any, other: Any) -> bool:
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in NAMES)


def killed_fit(client: Client, make: Any, array: da.Array) -> tuple[Any, float, int]:
    """A fit whose workers are killed, its seconds, and how many were."""
    killer, logger = Killer(client), logging.getLogger("gkmeans")
    logger.setLevel(logging.INFO)
    logger.addHandler(killer)
    start = time.perf_counter()
    try:
        est = distributed.fit(make(), array)
    finally:
        logger.removeHandler(killer)
    return est, time.perf_counter() - start, killer.killed


def compare(client: Client, learn: np.ndarray, init: str, options: argparse.Namespace) -> None:
    """One initialisation."""
    settings = {"relaxation": options.relaxation, "max_iter": options.max_iter, "init_iter": options.init_iter}

    def make() -> gk.GroupKMeans:
        return gk.GroupKMeans(8, init=init, random_state=0, n_jobs=2, **settings)

    array = da.from_array(learn, chunks=(-(-len(learn) // 2), -1))
    held = array.persist()
    wait(held)
    client.run(__import__, "gkmeans.distributed")  # here it is imported already
    fitted: dict[str, Any] = {}
    seconds = alternate(
        {
            "fit": lambda: fitted.update(here=make().fit(learn)),
            "distributed.fit": lambda: fitted.update(there=distributed.fit(make(), held)),
        },
        options.repeats,
    )
    ratio = median(seconds["distributed.fit"]) / median(seconds["fit"])
    print(f"{init:13} fit, s {spread(seconds['fit'])}   distributed.fit, s {spread(seconds['distributed.fit'])}")
    print(f"{'':13} {ratio:.2f} of fit; equal bits: {same(fitted['here'], fitted['there'])}", flush=True)
    if options.kill:
        est, elapsed, killed = killed_fit(client, make, array)
        print(f"{'':13} {killed} workers killed: {elapsed:.1f} s, equal bits: {same(fitted['here'], est)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--relaxation", type=float, default=0.0)
    parser.add_argument("--max-iter", type=int, default=100)
    parser.add_argument("--init-iter", type=int, default=30)
    parser.add_argument("--inits", nargs="+", default=["random", "kmeans", "hierarchical"])
    parser.add_argument("--kill", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    print(machine(), flush=True)
    learn = np.array(photosift("learn")[: options.rows])
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        for init in options.inits:
            compare(client, learn, init, options)


if __name__ == "__main__":
    main()

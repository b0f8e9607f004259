"""Writers of an index that are killed at random moments: ``kill_index.py FOLDER KILLS KIND`` opens it after each.

KIND is flat or ivf. A writer notes every commit once the call has returned. The folder must then hold what was noted
last, or the change that was under way. Prints the kills and the commits.
"""

import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import gkmeans as gk


def step(index, X, number):
    """The change of this number: it depends on the ids alone."""
    ids = sorted(index)
    draw = random.Random(number)
    what = draw.choice(["add", "add", "remove", "compact"])
    if what == "add" or not ids:
        count = draw.randint(1, 40)
        index.add(X[:count], 1000 * number + np.arange(count))
    elif what == "remove":
        index.remove(draw.sample(ids, draw.randint(1, len(ids))))
    else:
        index.compact()


class Ids:
    """What an index holds, without its codes."""

    def __init__(self, ids):
        self.ids = set(ids)

    def __iter__(self):
        return iter(self.ids)

    def add(self, X, ids):
        self.ids |= set(ids.tolist())

    def remove(self, ids):
        self.ids -= set(ids)

    def compact(self):
        pass


def write(folder, notes, X, number):
    """Change the index until killed; the first note says that it is open."""
    with gk.open_index(folder, n_jobs=1) as index:
        os.write(notes, b".")
        while True:
            step(index, X, number)
            os.write(notes, b".")
            number += 1


def main(folder, kills, kind):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 4)).astype(np.float32)
    warnings.simplefilter("ignore")
    est = gk.GroupKMeans(2, 8, init="random", max_iter=2, effort=0, random_state=0, n_jobs=1).fit(X)
    index = gk.FlatIndex(est) if kind == "flat" else gk.IVFIndex(est, 4, random_state=0, n_jobs=1).train(X)
    index.add(X)
    index.save(folder)
    number, ids, commits, draw = 1, Ids(range(40)), 0, random.Random(5)
    for kill in range(kills):
        reading, notes = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write(folder, notes, X, number)
            finally:
                os._exit(1)
        os.close(notes)
        noted = b""
        wanted = 2 if kill % 4 == 0 else 1  # now and then after a change, however slow the machine
        while len(noted) < wanted and (part := os.read(reading, 1)):
            noted += part
        time.sleep(draw.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            raise SystemExit("the writer ended by itself")
        while part := os.read(reading, 4096):
            noted += part
        os.close(reading)
        noted = noted[1:]
        for _ in noted:
            step(ids, X, number)
            number += 1
        found = set(gk.open_index(folder))
        if found != ids.ids:
            step(ids, X, number)
            number += 1
        if found != ids.ids:
            raise SystemExit(f"after change {number} the index holds {len(found)} ids, not {len(ids.ids)}")
        commits += len(noted)
    sys.stdout.write(f"{kills} {commits}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "index", int(sys.argv[2]), sys.argv[3])

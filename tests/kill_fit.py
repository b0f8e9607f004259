"""Fits that are killed at random moments: ``kill_fit.py FOLDER KILLS SEED`` fits with a checkpoint until it is done.

Each child is killed by SIGKILL at a random moment of what a whole fit takes, four children a model; the next may end.
The model must be that of a fit without a checkpoint, bit for bit. Plain and relaxed training take turns, and so do the
starts. Prints the kills.
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

INITS = ("hierarchical", "kmeans", "random")


def estimator(number):
    return gk.GroupKMeans(
        4,
        16,
        init=INITS[number % 3],
        relaxation=0.5 * (number % 2),
        max_iter=12,
        init_iter=6,
        tol=0,
        random_state=0,
        n_jobs=1,
    )


def child(X, number, folder):
    """The process that fits, and notes the bits of its model at the end."""
    process = os.fork()
    if process == 0:
        try:
            est = estimator(number).fit(X, checkpoint=folder / f"fit{number}")
            est.save(folder / "model.part")
            os.replace(folder / "model.part", folder / f"model{number}")
        finally:
            os._exit(0)
    return process


def main(folder, kills, seed):
    warnings.simplefilter("ignore")
    X = (np.random.default_rng(0).standard_normal((3000, 8)) ** 3).astype(np.float32)
    draw, done, number = random.Random(seed), 0, 0
    while done < kills:
        start = time.perf_counter()
        estimator(number).fit(X).save(folder / "expected")
        seconds = time.perf_counter() - start
        most = min(kills, done + 4)
        while not (folder / f"model{number}").exists():
            process = child(X, number, folder)
            if done < most:
                time.sleep(draw.uniform(0, 0.7) * seconds)
                os.kill(process, signal.SIGKILL)
                done += 1
            os.waitpid(process, 0)
        expected, found = (gk.load(folder / name) for name in ("expected", f"model{number}"))
        for name in ("dictionaries_", "history_", "shift_"):
            if getattr(expected, name).tobytes() != getattr(found, name).tobytes():
                raise SystemExit(f"{name} of fit {number} differs after {done} kills")
        number += 1
    sys.stdout.write(f"{done} kills, {number} models with the bits of fits that were not interrupted\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

"""Encodings of a file that are killed at random moments: ``kill_encode.py FOLDER KILLS`` goes on until it is done."""

import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import gkmeans as gk
from gkmeans import encode_files as module


def main(folder, kills):
    warnings.simplefilter("ignore")
    module.BATCH_ROWS, module.SAFE_ROWS = 200, 600
    X = np.random.default_rng(0).standard_normal((3000, 8)).astype(np.float32)
    np.save(folder / "X.npy", X)
    est = gk.GroupKMeans(4, 16, relaxation=0, init="random", max_iter=2, effort=5, random_state=0, n_jobs=1).fit(
        X[:999]
    )
    out, draw, done = folder / "codes.npy", random.Random(1), 0
    while not out.exists():
        process = os.fork()
        if process == 0:
            gk.encode_file(est, folder / "X.npy", out)
            os._exit(0)
        if done < kills:
            time.sleep(draw.uniform(0, 0.05))
            os.kill(process, signal.SIGKILL)
            done += 1
        os.waitpid(process, 0)
    if not (np.load(out) == est.encode(X)).all():
        raise SystemExit("the codes differ")
    sys.stdout.write(f"{done} kills, {sorted(path.name for path in folder.iterdir())}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

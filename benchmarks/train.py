"""Training on photo SIFT learn at 64 bits: when do we reach the training distortion of Faiss's LocalSearchQuantizer?

python benchmarks/train.py [--repeats 2] [--threads 2]

Faiss trains with its defaults; its training distortion is that of its own codes of the learn set. Ours is read off
the log: the first iteration whose relative distortion is as low.
"""

from __future__ import annotations

import argparse
import time

import faiss
import numpy as np

import gkmeans as gk
from common import clocked, machine, median, photosift, spread
from gkmeans.estimators.group import plain
from gkmeans.metrics import relative_distortion


def ours(learn: np.ndarray, order: int, seed: int, threads: int) -> list[tuple[float, float]]:
    model = gk.GroupKMeans(8, random_state=seed, n_jobs=threads, **plain(order))
    return clocked(lambda: model.fit(learn)).points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(machine(), flush=True)
    faiss.omp_set_num_threads(options.threads)
    learn = photosift("learn")
    floats = learn.astype(np.float32)
    faiss_seconds, reached = [], {1: [], 2: []}
    for seed in range(options.repeats):
        index = faiss.IndexLocalSearchQuantizer(128, 8, 8)
        lsq = index.lsq
        start = time.perf_counter()
        index.train(floats)
        faiss_seconds.append(time.perf_counter() - start)
        goal = relative_distortion(learn, lsq.decode(lsq.compute_codes(floats)))
        print(f"Faiss LSQ {faiss_seconds[-1]:7.1f} s, training distortion {100 * goal:.3f}", flush=True)
        for order in (1, 2):
            points = ours(learn, order, seed, options.threads)
            when = next((seconds for seconds, distortion in points if distortion <= goal), float("inf"))
            reached[order].append(when)
            print(
                f"gk-means ({order}, h) reaches it in {when:6.1f} s; ends at {100 * points[-1][1]:.3f} "
                f"after {points[-1][0]:.1f} s",
                flush=True,
            )
    print(f"\nFaiss LSQ, s:        {spread(faiss_seconds)}")
    for order, seconds in reached.items():
        print(f"gk-means ({order}, h), s: {spread(seconds)}   1/{median(faiss_seconds) / median(seconds):.1f} of Faiss")


if __name__ == "__main__":
    main()

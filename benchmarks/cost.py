"""The constants of the cost model in docs/scaling.md: processor time of each part of a pass, on one thread.

python benchmarks/cost.py [--rows 8192]

Photo SIFT for P = 128; for P = 768, pairs of sentence embeddings side by side. C = 8, K = 256, codes already warm.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from common import glosses, machine, photosift
from gkmeans._frame import Frame
from gkmeans._parallel import Workers
from gkmeans._rows import Rows
from gkmeans.assignment import GroupAssignment, assign
from gkmeans.dictionaries import Dictionaries
from gkmeans.initialization.hierarchical import first_blocks, product_start
from gkmeans.training import updated
from gkmeans.update import Statistics

C, K, PASSES = 8, 256, 3


def clocked(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the processor, and the result."""
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def passes(rows: Rows, D: Dictionaries, order: int, workers: Workers) -> dict[str, float]:
    """Seconds of each part of the last of a few passes."""
    method, groups = GroupAssignment(order), D.groups
    codes, _ = assign(rows, D, method, None, workers)
    seconds = {}
    for _ in range(PASSES):
        seconds["collect"], sums = clocked(lambda codes=codes: Statistics.collect(rows, codes, K, groups, workers))
        seconds["update"], D = clocked(lambda D=D, sums=sums: updated(D, sums, workers))
        seconds["tables"], tables = clocked(lambda D=D: [method.tables(Du, workers) for Du in D.D])
        seconds["assign"], (codes, _) = clocked(
            lambda D=D, codes=codes, tables=tables: assign(rows, D, method, codes, workers, tables)
        )
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192)
    options = parser.parse_args()
    n = options.rows
    print(machine(), flush=True)
    pairs = np.asarray(glosses("learn")[: 2 * n], np.float32).reshape(n, -1)
    for X in (np.array(photosift("learn")[:n]), pairs):
        with Workers(1) as workers:
            rows = Rows(X, Frame.of(X, workers))
            P, rng = rows.n_features, np.random.default_rng(0)
            free = Dictionaries.single(np.stack([rows.block(rng.permutation(n)[:K]) for _ in range(C)]) / C)
            first = product_start(rows, first_blocks(C, P), K, rng)
            first = Dictionaries(first.blocks, first.D, np.eye(P, dtype=np.float32))
            for name, D, order in (("order 1", free, 1), ("order 2", free, 2), ("stage 1", first, 1)):
                s = passes(rows, D, order, workers)
                print(
                    f"P = {P}, {name}, µs a row: {1e6 * s['assign'] / n:.1f} to assign, "
                    f"{1e6 * s['collect'] / n:.1f} to collect; "
                    f"s a pass: {s['tables']:.3f} for the tables, {s['update']:.3f} for the update",
                    flush=True,
                )


if __name__ == "__main__":
    main()

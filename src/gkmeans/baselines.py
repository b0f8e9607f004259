"""Plain product quantization, the yardstick of the demo: k-means on each range of dimensions, no rotation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._frame import Frame
from ._parallel import Workers
from ._progress import Reporter
from ._rows import Rows
from .assignment import GroupAssignment, assign
from .initialization.hierarchical import first_blocks, product_start
from .training import Run, relative, train


def product_quantization(
    learn: NDArray[np.generic], base: NDArray[np.generic], C: int, K: int, seed: int, n_jobs: int | None
) -> tuple[float, float]:
    """Relative distortion of ``learn`` and of ``base`` by product quantization of C bytes trained on ``learn``."""
    with Workers(n_jobs) as workers, Reporter("product quantization", 0) as reporter:
        rows = Rows(learn, Frame.of(learn, workers))
        run = Run(rows.energy(workers), GroupAssignment(1), 1e-5, np.random.default_rng(seed), workers, reporter)
        start = product_start(rows, first_blocks(C, rows.n_features), K, run.rng)
        fitted, _ = train(rows, start, None, run, 30, "k-means")
        fresh = Rows(base, rows.frame)
        _, errors = assign(fresh, fitted, run.method, None, workers)
        return run.history[-1], relative(float(errors.sum(dtype=np.float64)), fresh.energy(workers))

"""What the guards against overfitting are worth: relaxed training with and without folds and shrinkage, on new rows.

python benchmarks/overfit.py [--dataset glosses] [--bits 64] [--iterations 96]

Without them every fold is assigned by dictionaries solved from all rows, and codewords are drawn to nothing: the noise,
the perturbed rounds and the start are the same. Neither is compared with plain training. Distortion is on base, encoded
afresh, and on learn, by the codes of training.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from functools import reduce
from operator import add
from unittest.mock import patch

import gkmeans as gk
from common import learn_and_base, machine
from gkmeans.checkpoint import State
from gkmeans.dictionaries import Dictionaries
from gkmeans.relaxation import FOLDS, Folds, Shrinkage
from gkmeans.training import Run, updated
from gkmeans.update import Statistics


def from_all_rows(
    folds: Folds, state: State, parts: Sequence[Statistics], shrinkage: Shrinkage, run: Run
) -> list[Dictionaries]:
    """In place of ``Folds.solved``: one solution, from all rows, without shrinkage."""
    shrinkage.points = 0.0
    return [updated(state.dictionaries[0], reduce(add, parts), run.workers)] * FOLDS


@contextmanager
def relaxed(guarded: bool):
    """Relaxed training whatever the trial says, with or without its guards."""
    with patch.object(gk.GroupKMeans, "_relaxing_pays", lambda self, *rest: True):
        if guarded:
            yield
            return
        with patch.object(Folds, "solved", from_all_rows):
            yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=["glosses", "photosift", "mnist"], default="glosses")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=96)
    options = parser.parse_args()
    warnings.simplefilter("ignore", gk.DataWarning)
    print(machine())
    learn, base = learn_and_base(options.dataset, None, None)
    print(f"{options.dataset}, {options.bits} bits, relaxed training of {options.iterations} iterations")
    errors = []
    for guarded in (True, False):
        start = time.perf_counter()
        with relaxed(guarded):
            est = gk.GroupKMeans(options.bits // 8, max_iter=options.iterations + 2, random_state=0).fit(learn)
        seconds = time.perf_counter() - start
        errors.append(est.relative_distortion(base))
        name = "with folds and shrinkage" if guarded else "without"
        print(
            f"{name:26} {100 * errors[-1]:.3f} of base, {100 * est.history_[-1]:.3f} of learn, {seconds:.0f} s",
            flush=True,
        )
    print(f"{100 * (errors[0] / errors[1] - 1):+.1f} % on base by them")


if __name__ == "__main__":
    main()

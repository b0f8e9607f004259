"""What the guards against overfitting are worth: relaxed training with and without folds and shrinkage, on new rows.

python benchmarks/overfit.py [--dataset glosses] [--bits 64] [--iterations 96] [--points 0 2 8 32] [--folds 2 8]
                             [--rows 10000 20000]

Without them every fold is assigned by dictionaries solved from all rows, and codewords are drawn to nothing: the noise,
the perturbed rounds and the start are the same. Neither is compared with plain training. Distortion is on base, encoded
afresh, and on learn, by the codes of training. --points and --folds add a sweep: trainings that keep to so many points
of shrinkage instead of learning them, and trainings of so many folds. --rows trains on so many rows of learn alone:
what more rows would be worth.
"""

from __future__ import annotations

import argparse
import time
import warnings
from contextlib import ExitStack
from functools import reduce
from operator import add
from typing import Any
from unittest.mock import patch

import numpy as np

import gkmeans as gk
from common import learn_and_base, machine
from gkmeans import folds, relaxation
from gkmeans.folds import Folds
from gkmeans.shrinkage import Shrinkage


def kept_at(points: float) -> list[Any]:
    """Changes that keep the shrinkage at so many points."""
    return [
        patch.object(relaxation, "judge", lambda iteration: None),
        patch.object(Shrinkage.__init__, "__defaults__", (points, Shrinkage().factor)),
    ]


def guards(options: argparse.Namespace) -> dict[str, list[Any]]:
    """What is changed in each training, by its name."""
    from_all_rows = patch.object(Folds, "seen_by", lambda self, f, parts: reduce(add, parts))
    rows = {"with folds and shrinkage": [], "without": [from_all_rows, *kept_at(0.0)]}
    for points in options.points:
        rows[f"{points:g} points of shrinkage"] = kept_at(points)
    for count in options.folds:
        rows[f"{count} folds"] = [patch.object(module, "FOLDS", count) for module in (folds, relaxation)]
    return rows


def fitted(name: str, changes: list[Any], learn: np.ndarray, base: np.ndarray, options: argparse.Namespace) -> float:
    """Relative distortion of base by a training with these changes, whatever its trial says."""
    start = time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(patch.object(gk.GroupKMeans, "_relaxing_pays", lambda self, *rest: True))
        for change in changes:
            stack.enter_context(change)
        est = gk.GroupKMeans(options.bits // 8, max_iter=options.iterations + 2, random_state=0).fit(learn)
    seconds, error = time.perf_counter() - start, est.relative_distortion(base)
    print(f"{name:26} {100 * error:.3f} of base, {100 * est.history_[-1]:.3f} of learn, {seconds:.0f} s", flush=True)
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=["glosses", "photosift", "mnist"], default="glosses")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=96)
    parser.add_argument("--points", type=float, nargs="+", default=[])
    parser.add_argument("--folds", type=int, nargs="+", default=[])
    parser.add_argument("--rows", type=int, nargs="+", default=[])
    options = parser.parse_args()
    warnings.simplefilter("ignore", gk.DataWarning)
    print(machine())
    learn, base = learn_and_base(options.dataset, None, None)
    print(f"{options.dataset}, {options.bits} bits, relaxed training of {options.iterations} iterations")
    errors: dict[str, float] = {}
    for name, changes in guards(options).items():
        errors[name] = fitted(name, changes, learn, base, options)
    for count in options.rows:
        some = np.sort(np.random.default_rng(0).choice(len(learn), count, replace=False))
        fitted(f"{count:,} rows", [], learn[some], base, options)
    guarded, without, *swept = errors.values()
    print(f"{100 * (guarded / without - 1):+.1f} % on base by folds and shrinkage")
    if swept:
        print(f"{100 * (min(swept) / guarded - 1):+.2f} % by the best of the sweep")


if __name__ == "__main__":
    main()

"""Our defaults against our plain method on made-up data of many kinds: relative distortion of new rows, equal effort.

python benchmarks/kinds.py [--kind uniform heavy …] [--rows 1500 12000] [--dictionaries 4] [--bits 6]

Nothing here comes from the sets of the other benchmarks. "plain" is ``relaxation=0`` with the encoder of the defaults,
"paper" is ``relaxation=0`` with that of the paper. A default that loses by more than 0.1 % is marked. Beside them
Faiss's LSQ with its defaults, and its RQ with a beam of 30.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import faiss
import numpy as np

import gkmeans as gk
from common import machine
from gkmeans.estimators.group import plain
from gkmeans.metrics import relative_distortion

NEW_ROWS = 3000
Maker = Callable[[np.random.Generator, np.random.Generator, int], np.ndarray]


def patches(rng: np.random.Generator, fixed: np.random.Generator, n: int) -> np.ndarray:
    """Raw patches, 8 × 8, of pictures made of random edges and gradients."""
    y, x = np.mgrid[0:8, 0:8] - 3.5
    angle, offset, width, slope = (
        rng.uniform(0, 2 * np.pi, n),
        rng.normal(0, 3, n),
        rng.uniform(0.3, 2, n),
        rng.random(n),
    )
    across = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y - offset[:, None, None]
    edge = np.tanh(across / width[:, None, None]) * rng.uniform(10, 100, (n, 1, 1))
    light = 128 + edge + slope[:, None, None] * 5 * y + rng.normal(0, 3, (n, 8, 8))
    return np.clip(light, 0, 255).astype(np.uint8).reshape(n, 64)


def decaying(rng: np.random.Generator, fixed: np.random.Generator, n: int) -> np.ndarray:
    """Gaussian, the spectrum k^-1.6, rotated."""
    rotation = np.linalg.qr(fixed.standard_normal((96, 96)))[0]
    return ((rng.standard_normal((n, 96)) * np.arange(1, 97) ** -0.8) @ rotation).astype(np.float32)


def clustered(rng: np.random.Generator, fixed: np.random.Generator, n: int) -> np.ndarray:
    """300 tight clusters."""
    centres = 5 * fixed.standard_normal((300, 48))
    return (centres[rng.integers(300, size=n)] + 0.3 * rng.standard_normal((n, 48))).astype(np.float32)


def wide(rng: np.random.Generator, fixed: np.random.Generator, n: int) -> np.ndarray:
    """1,000 numbers of which 40 are free."""
    mixing = fixed.standard_normal((40, 1000))
    return (rng.standard_normal((n, 40)) @ mixing + 0.1 * rng.standard_normal((n, 1000))).astype(np.float32)


KINDS: dict[str, Maker] = {
    "uniform": lambda rng, fixed, n: rng.random((n, 32), dtype=np.float32),
    "heavy": lambda rng, fixed, n: rng.standard_t(2.5, size=(n, 64)).astype(np.float32),
    "decaying": decaying,
    "clustered": clustered,
    "patches": patches,
    "wide": wide,
}


def of_faiss(learn: np.ndarray, new: np.ndarray, C: int, bits: int) -> list[float]:
    """Relative distortion × 10⁻² of new rows by Faiss's LSQ and RQ."""
    errors = []
    for kind in (faiss.LocalSearchQuantizer, faiss.ResidualQuantizer):
        quantizer = kind(learn.shape[1], C, bits)
        quantizer.train(learn.astype(np.float32))
        if kind is faiss.ResidualQuantizer:
            quantizer.max_beam_size = 30
        errors.append(100 * relative_distortion(new, quantizer.decode(quantizer.compute_codes(new.astype(np.float32)))))
    return errors


def compare(name: str, n: int, C: int, bits: int) -> bool:
    """Prints one line; whether the defaults are no worse."""
    rng, fixed = np.random.default_rng(1), 5
    learn, new = (KINDS[name](rng, np.random.default_rng(fixed), rows) for rows in (n, NEW_ROWS))
    errors, seconds = [], []
    for options in (plain(2), {"relaxation": 0}, {}):
        start = time.perf_counter()
        est = gk.GroupKMeans(C, 1 << bits, random_state=0, **options).fit(learn)
        errors.append(100 * est.relative_distortion(new))
        seconds.append(time.perf_counter() - start)
    met = errors[2] <= 1.001 * errors[1]
    lsq, rq = of_faiss(learn, new, C, bits)
    print(
        f"{'' if met else 'WORSE ':6}{name:10} {n:6,} × {learn.shape[1]:5,}   paper {errors[0]:7.3f}"
        f"   plain {errors[1]:7.3f}   defaults {errors[2]:7.3f}  {100 * (errors[2] / errors[1] - 1):+6.2f} %"
        f"   {seconds[1]:5.1f} s and {seconds[2]:5.1f} s   Faiss LSQ {lsq:7.3f}   RQ {rq:7.3f}",
        flush=True,
    )
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--rows", nargs="+", type=int, default=[1500, 12000])
    parser.add_argument("--dictionaries", type=int, default=4)
    parser.add_argument("--bits", type=int, default=6, help="of a code of one dictionary")
    options = parser.parse_args()
    warnings.simplefilter("ignore", gk.DataWarning)
    print(machine())
    print(f"{options.dictionaries} dictionaries of {1 << options.bits}; relative distortion × 10⁻² of new rows")
    met = [compare(name, n, options.dictionaries, options.bits) for n in options.rows for name in options.kind]
    print(f"{sum(met)} of {len(met)} no worse than plain")


if __name__ == "__main__":
    main()

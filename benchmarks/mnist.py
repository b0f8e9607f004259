"""Relative distortion of MNIST, all 60,000 training images, raw pixels, K = 256: gk-means (1, h) and (2, h).

python benchmarks/mnist.py [--bits 32 64 128] [--orders 2 1] [--seed 0]
"""

from __future__ import annotations

import argparse
import time
import warnings

import gkmeans as gk
from common import machine, mnist
from gkmeans.estimators.group import plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--orders", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore", gk.DataWarning)  # 67 pixels are always black
    print(machine(), f"seed {options.seed}", flush=True)
    X = mnist()
    print("method   bits   codes of the last iteration   encoded afresh   iterations   fit, s   encode, s", flush=True)
    for order in options.orders:
        for bits in options.bits:
            start = time.perf_counter()
            model = gk.GroupKMeans(
                bits // 8, 256, max_iter=100, init_iter=30, random_state=options.seed, **plain(order)
            )
            model.fit(X)
            fitted = time.perf_counter()
            codes = model.encode(X)
            encoded = time.perf_counter()
            print(
                f"({order}, h)  {bits:5}   {100 * model.relative_distortion(X, model.codes_):27.3f}"
                f"   {100 * model.relative_distortion(X, codes):14.3f}   {len(model.history_):10}"
                f"   {fitted - start:6.1f}   {encoded - fitted:9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""What other dictionaries could gain on new rows with the codes as they are: shrinkages that base chooses itself.

python benchmarks/limits.py [--dataset photosift glosses] [--bits 32] [--only dictionaries|rows]

A default fit on learn gives codes of learn and of base. The normal equations of learn are solved anew with each of
several shrinkages; base chooses one for all numbers, or one for each principal direction of learn: better than any rule
that knows learn alone could choose them. Last, the dictionaries are solved from base itself: no others describe base
better with these codes. With few rows a codeword they fit the noise of base, too. For photo SIFT also a fit on learn
and its mirror image, descriptors of the same photos seen in a mirror: twice the rows, as true as the first.

Then default fits on a quarter, a half and all of the rows. C K codewords that are solved from n rows have an error of
C K / n of what is left, which new rows have too much and the rows learned from too little: what lies between the two is
what unlimited rows would give.
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.sparse

import gkmeans as gk
from common import learn_and_base, machine

POINTS = (0.01, 1, 2, 4, 8, 16, 32, 64, 128)
SHARES = (4, 2, 1)


def chosen(codes: np.ndarray, K: int) -> scipy.sparse.csr_array:
    """A row for each row of ``codes`` (n, C) with a one at each codeword (n, C K)."""
    n, C = codes.shape
    places = (codes.astype(np.int64) + K * np.arange(C)).ravel()
    return scipy.sparse.csr_array((np.ones(n * C), places, np.arange(0, n * C + 1, C)), shape=(n, C * K))


def mirrored(X: np.ndarray) -> np.ndarray:
    """SIFT descriptors (n, 128), 4 rows of 4 cells with 8 directions each, of the mirror images of their patches."""
    cells = X.reshape(-1, 4, 4, 8)
    return cells[:, :, ::-1, -np.arange(8) % 8].reshape(X.shape)


def compare(dataset: str, bits: int) -> None:
    """The figures of one setting, × 10⁻²."""
    learn, base = (X.astype(np.float32) for X in learn_and_base(dataset, None, None))
    est = gk.GroupKMeans(bits // 8, random_state=0).fit(learn)
    A, B = (chosen(codes, est.n_codewords) for codes in (est.codes_, est.encode(base)))
    mean = learn.mean(axis=0)
    directions = np.linalg.eigh(np.cov(learn.T))[1]
    X, Y = ((rows - mean).astype(np.float64) @ directions for rows in (learn, base))
    energy = np.square(base, dtype=np.float64).sum()

    def left(D: np.ndarray) -> np.ndarray:
        """Squared error of base in each direction."""
        return np.square(Y - B @ D).sum(axis=0)

    values, vectors = np.linalg.eigh((A.T @ A).toarray())
    sums = vectors.T @ (A.T @ X)
    errors = np.array([left(vectors @ (sums / (values + points)[:, None])) for points in POINTS])
    own = np.linalg.solve((B.T @ B).toarray() + POINTS[0] * np.eye(B.shape[1]), B.T @ Y)
    figures = {
        "default fit on learn": est.relative_distortion(base) * energy,
        "one shrinkage, chosen by base": errors.sum(axis=1).min(),
        "one for each direction, chosen by base": errors.min(axis=0).sum(),
        "dictionaries solved from base, the same codes": left(own).sum(),
    }
    if dataset == "photosift":
        both = gk.GroupKMeans(bits // 8, random_state=0).fit(np.concatenate([learn, mirrored(learn)]))
        figures["default fit on learn and its mirror image"] = both.relative_distortion(base) * energy
    print(f"\n{dataset}, {bits} bits, {len(learn):,} learn, {len(base):,} base: distortion of base × 10⁻²")
    for name, error in figures.items():
        print(f"  {name:<48}{100 * error / energy:8.3f}", flush=True)


def over_rows(dataset: str, bits: int) -> None:
    """Distortion × 10⁻² of base and of learn by parts of learn, what lies between, and how far base is above it."""
    learn, base = learn_and_base(dataset, None, None)
    C = bits // 8
    print(f"\n{dataset}, {bits} bits, default fits on parts of learn: distortion × 10⁻²")
    print("     rows      base     learn   between   base above it   C K / rows")
    for share in SHARES:
        part = learn[np.sort(np.random.default_rng(0).choice(len(learn), len(learn) // share, replace=False))]
        est = gk.GroupKMeans(C, random_state=0).fit(part)
        new, own = est.relative_distortion(base), est.history_[-1]
        middle = (new + own) / 2
        figures = f"{100 * new:10.3f}{100 * own:10.3f}{100 * middle:10.3f}{new / middle - 1:15.1%}"
        print(f"{len(part):>9,}{figures}{C * est.n_codewords / len(part):13.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", choices=["photosift", "glosses"], default=["photosift", "glosses"])
    parser.add_argument("--bits", nargs="+", type=int, default=[32])
    parser.add_argument("--only", choices=["dictionaries", "rows"])
    options = parser.parse_args()
    print(machine())
    for dataset in options.dataset:
        for bits in options.bits:
            if options.only != "rows":
                compare(dataset, bits)
            if options.only != "dictionaries":
                over_rows(dataset, bits)


if __name__ == "__main__":
    main()

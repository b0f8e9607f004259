"""Make the embedded sample from a folder with photo SIFT in the TEXMEX layout.

python benchmarks/make_sample.py FOLDER src/gkmeans/data/sample.npz
"""

import sys
from pathlib import Path

import numpy as np


def read(path: Path) -> np.ndarray:
    return np.fromfile(path, np.uint8).reshape(-1, 132)[:, 4:]


def spread(X: np.ndarray, count: int) -> np.ndarray:
    return X[np.linspace(0, len(X) - 1, count).astype(int)]


folder, target = Path(sys.argv[1]), Path(sys.argv[2])
learn = spread(read(folder / "learn.bvecs"), 20_000)
base = spread(read(folder / "base.bvecs"), 10_000)
query = spread(read(folder / "query.bvecs"), 500)
b, q = base.astype(np.int64), query.astype(np.int64)
distances = (q**2).sum(1)[:, None] - 2 * q @ b.T + (b**2).sum(1)
groundtruth = np.argsort(distances, axis=1, kind="stable")[:, :100].astype(np.int32)
np.savez_compressed(target, learn=learn, base=base, query=query, groundtruth=groundtruth)
print(f"{target}: {target.stat().st_size / 1e6:.1f} MB")

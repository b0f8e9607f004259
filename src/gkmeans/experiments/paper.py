"""The paper's own numbers: Table 1 and Table 2 of Group K-Means (2015), beside which ours are printed."""

from __future__ import annotations

METHODS = (
    "gk-means(2, h)",
    "gk-means(2, k)",
    "gk-means(2, r)",
    "gk-means(1, h)",
    "gk-means(1, k)",
    "gk-means(1, r)",
    "ock-means",
    "ck-means",
)
"""The columns of Table 1, in its order."""

DATASETS = {"sift1m": "SIFT1M", "gist1m": "GIST1M", "mnist": "MNIST"}

SHAPES = {
    "sift1m": ((100_000, 128), (1_000_000, 128)),
    "gist1m": ((500_000, 960), (1_000_000, 960)),
    "mnist": ((60_000, 784), (60_000, 784)),
}
"""Training set and database as published."""

# relative distortion × 10⁻² of the database: dataset, bits, METHODS
_TABLE1 = {
    "sift1m": {
        32: (19.68, 20.47, 22.22, 20.63, 21.59, 22.48, 21.14, 23.78),
        64: (11.01, 13.19, 19.46, 11.56, 14.10, 16.16, 13.37, 14.45),
        128: (4.54, 7.44, 16.92, 5.08, 8.25, 12.62, 5.85, 6.71),
    },
    "gist1m": {
        32: (40.56, 41.24, 41.58, 42.73, 42.59, 44.32, 41.64, 43.19),
        64: (32.11, 33.86, 35.94, 33.92, 34.75, 36.76, 33.38, 34.32),
        128: (24.48, 26.87, 29.12, 25.93, 27.56, 29.29, 25.18, 25.69),
    },
    "mnist": {
        32: (14.25, 16.52, 17.62, 15.29, 18.18, 22.43, 15.53, 16.76),
        64: (9.44, 14.12, 16.48, 10.36, 14.88, 18.38, 10.83, 11.81),
        128: (5.91, 11.63, 14.28, 6.55, 12.37, 16.11, 7.28, 7.57),
    },
}

# SIFT1M, 10⁶ points, 24 threads at 2.66 GHz: method, dictionaries, (seconds, relative distortion)
TABLE2: dict[str, dict[int, tuple[float, float | None]]] = {
    "gk-means(1, h)": {2: (8.6, 0.30), 4: (20.3, 0.21), 8: (120.4, 0.12)},
    "gk-means(2, h)": {2: (45.2, 0.29), 4: (110.3, 0.20), 8: (392.9, 0.11)},
    "MCMP": {2: (12.2, 0.29), 4: (723.3, 0.19), 8: (10790250.0, None)},
}
TABLE2_VECTORS = 1_000_000


def table1_cell(dataset: str, method: str, bits: int) -> float | None:
    """The paper's relative distortion × 10⁻², or None where it has no such cell."""
    row = _TABLE1.get(dataset.lower(), {}).get(bits)
    return None if row is None or method not in METHODS else row[METHODS.index(method)]

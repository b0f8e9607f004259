"""Native kernels over one block of rows. Codes are uint16 here whatever the user sees."""

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float32]
_Codes = NDArray[np.uint16]

def assign(
    V: _Floats,  # (n, C, Kp) products of the rows, or of their residuals, with the codewords; used up
    T: _Floats,  # (C, C, K, Kp)
    N: _Floats,  # (C, Kp)
    rowmin: _Floats,  # (C, C, Kp)
    groupmin: _Floats,  # (C, C, K, 16)
    codes: _Codes,  # (n, C) in and out
    order: int,  # 0: only the start
    start: bool,  # True: V is of the rows, greedy start; False: of the residuals, from the codes given
    stop: NDArray[np.int32],  # (1,) not 0: return early
    level: str | None = None,
    batch: int = 0,  # rows worked on together; 0 chooses
    rounds: int = 0,  # of perturbed codes assigned anew; the best are kept
    seed: int = 0,
) -> None: ...
def pursue(
    V: _Floats,  # (n, C, Kp) products of the rows with the codewords; used up
    T: _Floats,  # (C, C, K, Kp)
    N: _Floats,  # (C, Kp)
    rowmin: _Floats,  # (C, C, Kp)
    groupmin: _Floats,  # (C, C, K, 16)
    codes: _Codes,  # (n, C) in and out
    n_candidates: int,
    start: bool,  # False: the codes given stay unless a leaf is better
    stop: NDArray[np.int32],  # (1,) not 0: return early
    level: str | None = None,
) -> None: ...
def nearest(V: _Floats, N: _Floats, codes: _Codes, level: str | None = None) -> None: ...
def decode(D: _Floats, codes: _Codes, out: _Floats, level: str | None = None) -> None: ...
def errors(X: _Floats, D: _Floats, codes: _Codes, out: _Floats, level: str | None = None) -> None: ...
def add_rows(X: _Floats, codes: _Codes, W: NDArray[np.float64], level: str | None = None) -> None: ...
def count_pairs(codes: _Codes, b: int, c: int, Z: NDArray[np.int32], level: str | None = None) -> None: ...
def simd_level() -> str: ...
def simd_levels() -> list[str]: ...

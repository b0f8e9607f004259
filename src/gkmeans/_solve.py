"""The normal equations of the update solved: a Cholesky factor by several threads or by one, or conjugate gradients."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.linalg
import scipy.linalg.cython_lapack
import scipy.sparse
from numpy.typing import NDArray

from ._parallel import Workers, spans
from ._sums import Doubles

_PANEL = 192
_ROWS = 512


class Cholesky:
    """Cholesky factor of ``A`` (m, m) in its lower triangle, in place, panel by panel over several threads.

    Only NumPy's products run outside Python's lock, so the corners on the diagonal are inverted and all else is
    products. A panel takes in all panels to its left at once, so each is written only twice.
    """

    def __init__(self, A: NDArray[np.floating], workers: Workers) -> None:
        self.A = A
        self.inverse: list[NDArray[np.floating]] = []
        self.panels = spans(len(A), _PANEL)
        for start, stop in self.panels:
            above = A[start:stop, :start].T

            def downdate(
                rows: tuple[int, int], at: slice = slice(start, stop), above: NDArray[np.floating] = above
            ) -> None:
                A[slice(*rows), at] -= A[slice(*rows), : at.start] @ above

            def divide(rows: tuple[int, int], at: slice = slice(start, stop)) -> None:
                A[slice(*rows), at] = A[slice(*rows), at] @ self.inverse[-1].T

            workers.map(downdate, [(start + a, start + b) for a, b in spans(len(A) - start, _ROWS)])
            corner = scipy.linalg.cholesky(A[start:stop, start:stop], lower=True, check_finite=False)
            self.inverse.append(
                scipy.linalg.solve_triangular(
                    corner, np.eye(len(corner), dtype=A.dtype), lower=True, check_finite=False
                )
            )
            workers.map(divide, [(stop + a, stop + b) for a, b in spans(len(A) - stop, _ROWS)])

    def solve(self, right: Doubles) -> NDArray[np.floating]:
        """``A⁻¹ right`` for (m, q) right-hand sides."""
        x = np.array(right, self.A.dtype, order="C")
        for (start, stop), inverse in zip(self.panels, self.inverse, strict=True):
            x[start:stop] = inverse @ x[start:stop]
            x[stop:] -= self.A[stop:, start:stop] @ x[start:stop]
        for (start, stop), inverse in zip(reversed(self.panels), reversed(self.inverse), strict=True):
            x[start:stop] = inverse.T @ (x[start:stop] - self.A[stop:, start:stop].T @ x[stop:])
        return x


class CholeskyAlone:
    """Cholesky factor of ``A`` (m, m) in its lower triangle, in place, by LAPACK on the calling thread.

    It runs outside Python's lock, where scipy's own functions do not, so that several systems are solved at once.
    """

    def __init__(self, A: NDArray[np.floating]) -> None:
        self.A = A
        failed = ctypes.c_int()
        m, lead = ctypes.c_int(len(A)), ctypes.c_int(max(1, len(A)))
        # what lies row by row is LAPACK's upper triangle
        _lapack("potrf", A.dtype)(b"U", ctypes.byref(m), A.ctypes.data, ctypes.byref(lead), ctypes.byref(failed))
        if failed.value:
            raise scipy.linalg.LinAlgError(f"row {failed.value} of {len(A)} is not positive")

    def solve(self, right: NDArray[np.floating]) -> NDArray[np.floating]:
        """``A⁻¹ right`` for (m, q) right-hand sides."""
        x = np.array(right.T, self.A.dtype, order="C")
        m, lead = ctypes.c_int(len(self.A)), ctypes.c_int(max(1, len(self.A)))
        q, failed, between = ctypes.c_int(len(x)), ctypes.c_int(), ctypes.byref(lead)
        sizes, arrays = (ctypes.byref(m), ctypes.byref(q)), (self.A.ctypes.data, between, x.ctypes.data, between)
        _lapack("potrs", self.A.dtype)(b"U", *sizes, *arrays, ctypes.byref(failed))
        out: NDArray[np.floating] = x.T
        return out


@lru_cache
def _lapack(name: str, dtype: np.dtype[Any]) -> Any:
    """A function of LAPACK for real numbers of this kind; Python's lock is open while it runs."""
    capsule = scipy.linalg.cython_lapack.__pyx_capi__[("s" if dtype == np.float32 else "d") + name]
    of, where = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    of.restype, of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    where.restype, where.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    numbers = {"potrf": 4, "potrs": 7}[name]
    return ctypes.CFUNCTYPE(None, ctypes.c_char_p, *[ctypes.c_void_p] * numbers)(where(capsule, of(capsule)))


def conjugate_gradients(
    A: scipy.sparse.csr_array, diagonal: Doubles, right: Doubles, start: Doubles, stop: NDArray[np.int32]
) -> Doubles:
    """Solve ``A x = right`` for all columns at once, preconditioned by the diagonal, from ``start``."""
    x: Doubles = start.copy()
    r = right - A @ x
    z = r / diagonal[:, None]
    p, rz = z, np.einsum("ij,ij->j", r, z)
    goal = 1e-10 * np.einsum("ij,ij->j", right, right / diagonal[:, None])
    for _ in range(1000):
        if (rz <= goal).all() or stop[0]:
            break
        Ap = A @ p
        curvature = np.einsum("ij,ij->j", p, Ap)
        step = np.divide(rz, curvature, out=np.zeros_like(rz), where=curvature > 0)
        x += step * p
        r -= step * Ap
        z = r / diagonal[:, None]
        before, rz = rz, np.einsum("ij,ij->j", r, z)
        p = z + np.divide(rz, before, out=np.zeros_like(rz), where=before > 0) * p
    return x

"""Shared by the tests: small data, the levels of this CPU, and one seed."""

import numpy as np
import pytest

from gkmeans import _core
from gkmeans._parallel import Workers

LEVELS = _core.simd_levels()


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def workers():
    with Workers(2) as pool:
        yield pool


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


def whole(rng, *shape, low=-8, high=9):
    """Whole numbers as float32: sums and products of them are exact, so kernels and oracle must agree to the bit."""
    return rng.integers(low, high, shape).astype(np.float32)

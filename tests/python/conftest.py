import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def rng():
    return np.random.default_rng(20261115)


@pytest.fixture
def small(rng):
    """q, k, v of [2,4,5,8] with two key/value heads and seven keys."""

    def make(dtype="float32"):
        shapes = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))
        return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)

    return make

"""The taps of the core are those of `kernels.resampling`, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuload import core
from gpuload.kernels import resampling

if core.native is None:
    pytest.skip(core.problem, allow_module_level=True)

SIDE = st.integers(1, 700)


@given(
    n_in=SIDE,
    n_out=SIDE,
    interpolation=st.sampled_from(["linear", "cubic"]),
    antialias=st.booleans(),
)
@example(65500, 1, "linear", True)
@example(65500, 1, "cubic", False)
@example(1, 3000, "cubic", True)
def test_they_equal_the_numpy_form(n_in, n_out, interpolation, antialias):
    places, coefficients = resampling.taps(n_in, n_out, interpolation, antialias)
    first, weights = np.full(n_out, -9, np.int32), np.full(coefficients.shape, 9, np.float32)

    core.native.taps(
        resampling.TABLES[interpolation],
        resampling.WIDTHS[interpolation],
        antialias,
        n_in,
        first,
        weights,
    )

    np.testing.assert_array_equal(first, places)
    np.testing.assert_array_equal(weights.view(np.uint32), coefficients.view(np.uint32))

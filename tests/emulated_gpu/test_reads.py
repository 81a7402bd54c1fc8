"""Rows of values of varying length that DALI makes on a GPU: what is read later is kept until
then."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload import device
from gpuload.executors.dali.program import Reads, _values
from gpuload.spec import Field

pytestmark = pytest.mark.gpu

SPIN = r'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }'


class Rows(list):
    """What DALI hands out where rows differ in length; here the rows lie in CuPy's memory."""

    def is_dense_tensor(self):
        return False


def test_rows_are_kept_until_the_copy_from_them_has_run():
    cupy, reads = device.cupy(), Reads()
    spin = cupy.RawKernel(SPIN, "spin")
    field = Field("tokens", np.dtype(np.int32), (None,))
    rows = [cupy.arange(length, dtype=np.int32) for length in (3, 1, 4)]
    pools = cupy.get_default_memory_pool()

    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.wait_event(cupy.cuda.Stream.null.record())
        spin((1,), (1,), (np.int64(150_000_000),))
        ragged = _values(cupy, field, Rows(rows), reads)
        used = pools.used_bytes()
        del rows
        assert pools.used_bytes() == used  # the rows are still there
        stream.synchronize()
        reads.close()
        assert pools.used_bytes() < used

    assert ragged.payload.get().tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert ragged.offsets.tolist() == [0, 3, 4, 8]

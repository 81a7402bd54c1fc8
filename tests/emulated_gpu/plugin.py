"""Runs gpu tests on the emulated GPU: `python -m pytest -p tests.emulated_gpu.plugin -m gpu
tests/test_lane.py`.

It leaves out, by name, tests of what the emulated GPU does not have (``NOT_HERE``), and fails a
test during which a call was refused that CUDA leaves undefined.

EMULATED_GPU_LATE_US=200   work on streams begins up to that much later
EMULATED_GPU_DEVICES=2     how many GPUs there are
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests import emulated_gpu

NOT_HERE = re.compile("dali|decoded_on_the_gpu|health_is_good_on_a_gpu|nvjpeg", re.IGNORECASE)

emulated_gpu.install_from_environment()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs DALI's kernels."""
    absent = [item for item in items if NOT_HERE.search(item.nodeid)]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    before = emulated_gpu.num_faults()
    yield
    assert emulated_gpu.num_faults() == before, (
        "CUDA was called in a way that it leaves undefined: see stderr"
    )

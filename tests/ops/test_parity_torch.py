"""``gpuload parity`` beside torchvision and timm: every op that has such a row is within its
bound."""

from __future__ import annotations

import pytest
from gpuload_peers import libraries as parity_peers
from gpuload_peers import torch_libraries as parity_torch

from gpuload.cli import parity_ops
from tests.oracle_torchvision import torchvision

pytest.importorskip("timm", reason="needs timm: make test-torch")
CALLS = [
    call
    for call in parity_ops.calls()
    if type(parity_ops.op_of(call)).__name__ in parity_torch.PEERS
]


@pytest.mark.parametrize("call", CALLS)
def test_an_op_is_within_its_bound(call):
    comparisons = [
        c for c in parity_peers.compare_peer(call) if c.against.startswith(("torchvision", "timm"))
    ]

    assert len(comparisons) == 1
    assert comparisons[0].holds, (
        f"{comparisons[0].numbers} beside torchvision {torchvision.__version__}"
    )

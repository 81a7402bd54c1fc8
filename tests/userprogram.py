"""A user's program, which mypy and pyright check against an installed wheel: what gpuload's types
promise.

It is never run. Each ``type: ignore`` stands where a mistake has to be found: without types it
would be unused, which is an error, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuload as gl

source: gl.Source = gl.npy("rows-*.npy", field="rows")
train, held_out = source.split(0.9, seed=0)
ops: list[gl.ops.Op] = [
    gl.ops.RandomCrop(32, 32, pad=4),
    gl.ops.RandomFlip(),
    gl.ops.Normalize(120.0, 64.0),
]
loader: gl.Loader = gl.Loader(
    train, batch_size=256, shuffle=True, seed=7, ops=ops, output=("image", "label")
)
steps: int = len(loader)
for batch in loader:
    records: NDArray[np.int64] = batch.records
    valid: NDArray[np.bool_] = batch.valid
    position: tuple[int, int] = (batch.epoch, batch.step)
state: dict[str, Any] = loader.state_dict()
loader.load_state_dict(state)
first: gl.Batch = loader.peek()
waited_s: float = loader.stats()["wait_s"]
field: gl.Field = source.spec["rows"]
shape: tuple[int | None, ...] | None = field.shape
row: dict[str, Any] = source[0]
joint: gl.Source = gl.concat(train, held_out)
try:
    loader.batch_at(10**9)
except gl.GpuloadError as error:
    remedy: str = error.remedy

gl.Loader(source, batch_size="256")  # type: ignore[arg-type]
gl.Loader(source, 256, shufle=True)  # type: ignore[call-arg]
number = loader.stats().batches  # type: ignore[attr-defined]
gl.ops.RandomCrop("32", 32)  # type: ignore[arg-type]

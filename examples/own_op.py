"""Ops of one's own: a function, and a class that runs in DALI as well and on a GPU.

python examples/own_op.py
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import gpuload as gl


def noisy(x, rng):
    """Add noise; ``rng`` is the record's own generator, so that the batch stays a pure function."""
    return (x + rng.normal(0, 5, x.shape)).clip(0, 255).astype("uint8")


@dataclass(frozen=True)
class RandomInvert(gl.ops.Op):
    """Show some images as negatives.

    Args:
        p: the probability.
    """

    p: float = 0.5

    num_uniforms: ClassVar[int] = 1

    def field_after(self, field: gl.Field) -> gl.Field:
        """The field stays what it is."""
        return field

    def draw(self, u: Any, size: Any) -> dict[str, Any]:
        """Return for each record whether it is inverted: int32, 0 or 1."""
        return {"inverted": (u[:, 0] < self.p).astype(np.int32)}

    def array(self, xp: Any, x: Any, draw: dict[str, Any]) -> Any:
        """What the op means, for one image."""
        return 255 - x if draw["inverted"] else x

    def lower(
        self, dali: Any, x: Any, draw: dict[str, Any], *, field: gl.Field, device: str
    ) -> Any:
        """The same in DALI."""
        inverted = draw["inverted"]
        return dali.fn.cast(inverted * (255 - x) + (1 - inverted) * x, dtype=dali.types.UINT8)


images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), np.uint8)
source = gl.arrays(image=images, number=np.arange(20))

first = gl.Loader(source, batch_size=5, ops=[gl.ops.Python(noisy), gl.ops.Normalize(127.0, 60.0)])
single = gl.Loader(source, batch_size=1, ops=[gl.ops.Python(noisy), gl.ops.Normalize(127.0, 60.0)])
assert np.array_equal(
    first.batch_at(1)["image"][2], single.batch_at(7)["image"][0]
)  # whatever the batch size is

second = gl.Loader(
    source, batch_size=5, seed=4, ops=[RandomInvert(p=0.3)], executor="array", device="cpu"
)
inverted = [
    int(n)
    for batch in second
    for n, x in zip(batch["number"], batch["image"], strict=True)
    if (x != images[n]).any()
]
print(f"negatives in epoch 0: {inverted}")
try:
    in_dali = second.replace(executor="dali")
except gl.GpuloadError as error:  # DALI is not installed
    print(error)
else:
    with in_dali:
        for batch, dali_batch in zip(second.epoch(1), in_dali.epoch(1), strict=True):
            assert np.array_equal(batch["image"], dali_batch["image"])

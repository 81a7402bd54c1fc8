"""What DALI's CPU decoder makes of an image: the meaning that the codecs must have."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest


def by_dali(data, region=None, mode="RGB", dtype="UINT8"):
    """Return the pixels that DALI decodes a file to, or a region of it; None where it refuses the
    file."""
    fields = {"data": [np.frombuffer(data, np.uint8)]}
    if region is not None:
        fields |= {
            "start": [np.array(region[:2], np.int32)],
            "shape": [np.array(region[2:], np.int32)],
        }
    try:
        (images,) = _pipeline(region is not None, mode, dtype).run(**fields)
    except RuntimeError:
        _pipeline.cache_clear()  # it cannot be used after an error
        return None
    return np.array(images[0])


@cache
def _pipeline(has_region, mode, dtype):
    dali = pytest.importorskip("nvidia.dali")
    depth = getattr(dali.types, dtype)

    @dali.pipeline_def(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def decode():
        data = dali.fn.external_source(name="data")
        if has_region:
            start, shape = (
                dali.fn.external_source(name="start"),
                dali.fn.external_source(name="shape"),
            )
            window = {"axis_names": "HW", "normalized_anchor": False, "normalized_shape": False}
            rgb = dali.fn.decoders.image_slice(
                data, start, shape, output_type=dali.types.RGB, dtype=depth, **window
            )
        else:
            rgb = dali.fn.decoders.image(data, output_type=dali.types.RGB, dtype=depth)
        if mode == "RGB":
            return rgb
        return dali.fn.color_space_conversion(
            rgb, image_type=dali.types.RGB, output_type=dali.types.GRAY
        )

    pipeline = decode()
    pipeline.build()
    return pipeline

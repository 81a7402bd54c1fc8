"""JpegArtefacts."""

from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from gpuload.errors import SpecError
from gpuload.ops import JpegArtefacts
from gpuload.testing.ops import OpContract, uniform, varying


class TestJpegArtefacts(OpContract):
    cases = (
        (JpegArtefacts((20, 90)), varying(np.uint8, 3)),
        (JpegArtefacts(30, p=0.5), uniform(np.uint8, 17, 23, 1)),
    )
    neutral = ((JpegArtefacts(1, p=0), varying(np.uint8, 3)),)
    refused = (
        (JpegArtefacts(50), uniform(np.uint8, 8, 9, 4)),
        (JpegArtefacts(50), uniform(np.float32, 8, 9, 3)),
        (JpegArtefacts(50), uniform(np.uint8, 28, 28)),
        (JpegArtefacts(50), uniform(np.uint8, 8, 65501, 3)),
    )


def smooth():
    y, x = np.mgrid[:40, :50]
    return np.stack([x * 5, y * 6, (x + y) * 2], axis=2).astype(np.uint8)


@pytest.mark.parametrize("quality", [5, 50, 95])
def test_it_is_what_a_jpeg_of_the_quality_holds(quality):
    file = io.BytesIO()
    Image.fromarray(smooth()).save(file, "JPEG", quality=quality)

    result = JpegArtefacts(quality).array(np, smooth(), {"quality": np.int32(quality)})

    np.testing.assert_array_equal(result, np.asarray(Image.open(io.BytesIO(file.getvalue()))))
    coded = cv2.imencode(".jpg", smooth()[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    assert np.abs(cv2.imdecode(coded, cv2.IMREAD_COLOR)[..., ::-1].astype(int) - result).mean() < 1


def test_each_quality_is_drawn_and_p_says_how_often():
    u = np.stack([np.tile([0.2, 0.6], 500), np.linspace(0, 1, 1000, endpoint=False)], axis=1)

    quality = JpegArtefacts((40, 43), p=0.5).draw(u, np.zeros((1000, 2), np.int32))["quality"]

    assert np.unique(quality[::2], return_counts=True)[1].tolist() == [125] * 4
    assert set(quality[::2]) == {40, 41, 42, 43}
    assert not quality[1::2].any()


@pytest.mark.parametrize(
    "arguments", [{"quality": 0}, {"quality": 101}, {"quality": (90, 40)}, {"quality": 50, "p": 2}]
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="JpegArtefacts"):
        JpegArtefacts(**arguments)

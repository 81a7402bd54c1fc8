"""Fixtures for the tests of several formats of images."""

from __future__ import annotations

import pytest

from gpuload.images import decode as decoding


@pytest.fixture(params=["nvimgcodec", "Pillow"])
def codec_name(request, monkeypatch):
    """Decode with one of the codecs; gives its name."""
    pytest.importorskip("nvidia.nvimgcodec" if request.param == "nvimgcodec" else "PIL")
    use = decoding._nvimagecodec if request.param == "nvimgcodec" else decoding._pillow
    monkeypatch.setattr(decoding, "_process_codec", use)
    return request.param

"""Fixtures for the tests of several sources."""

from __future__ import annotations

import pytest

from gpuload.sources import maps


@pytest.fixture(params=["compiled", "plain"])
def reader(request, monkeypatch):
    """Read with the compiled kernels, and without."""
    if request.param == "plain":
        monkeypatch.setattr(maps, "supported", lambda: False)
    elif not maps.supported():
        pytest.skip("no compiled kernels on this system")
    return request.param

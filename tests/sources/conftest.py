"""Fixtures for the tests of several sources."""

from __future__ import annotations

import pytest

from gpuload.storage import maps


@pytest.fixture(params=["compiled", "plain"])
def reader(request, monkeypatch):
    """Read from maps, and with positioned reads."""
    if request.param == "plain":
        monkeypatch.setattr(maps, "supported", lambda: False)
    elif not maps.supported():
        pytest.skip("no core on this system")
    return request.param

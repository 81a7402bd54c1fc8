"""Fixtures for the tests of several sources."""

from __future__ import annotations

import pytest

from gpuload.redaction import PROXIES
from gpuload.storage import maps, retries, stores


@pytest.fixture(params=["compiled", "plain"])
def reader(request, monkeypatch):
    """Read from maps, and with positioned reads."""
    if request.param == "plain":
        monkeypatch.setattr(maps, "supported", lambda: False)
    elif not maps.supported():
        pytest.skip("no core on this system")
    return request.param


@pytest.fixture
def unreachable_stores(monkeypatch):
    """Have no object store answer, at once: obstore would ask those of the network, which no audit
    hook sees."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(retries, "MOST_TRIES", 2)
    stores._clients.clear()
    yield
    stores._clients.clear()

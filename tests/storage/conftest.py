"""What tests of storage share: files on a disk; a server, and stores without proxy, credentials or
others' clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuload.redaction import PROXIES
from gpuload.storage import blockcache, retries, stores
from tests import objectserver
from tests.objectserver import ObjectServer

SETTINGS = ("AWS_", "GOOGLE_", "AZURE_")


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """Return a new folder that lies on a disk: `tests.temporary` says why."""
    return disk_path


@pytest.fixture
def clean_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name in PROXIES or name.startswith(SETTINGS):
            monkeypatch.delenv(name)
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(retries, "_gates", {})
    stores._clients.clear()
    yield
    stores._clients.clear()
    blockcache.open_cache.cache_clear()


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with objectserver.running() as running:
        yield running

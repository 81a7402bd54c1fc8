"""DALI itself, imported once; in a thread aside, so that no signal handler breaks off what cannot be begun again."""

from __future__ import annotations

from typing import Any

from gpuload import aside
from gpuload.errors import missing_package

try:
    dali: Any = aside.import_package("nvidia.dali")
except ImportError as error:
    raise missing_package("nvidia-dali", needed_for="gpuload.bridges.dali", extra="cpu", error=error) from error

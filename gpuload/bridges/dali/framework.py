"""DALI itself, imported once; by `signalsafe`: no signal handler may break off an import that
cannot be repeated."""

from __future__ import annotations

from typing import Any

from gpuload import signalsafe
from gpuload.errors import missing_package

try:
    dali: Any = signalsafe.import_package("nvidia.dali")
except ImportError as error:
    raise missing_package(
        "nvidia-dali", needed_for="gpuload.bridges.dali", extra="cpu", error=error
    ) from error

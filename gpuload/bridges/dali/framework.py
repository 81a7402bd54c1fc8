"""DALI itself, imported once; in a thread aside, so that no signal handler breaks off what cannot be begun again."""

from __future__ import annotations

import importlib
from typing import Any

from gpuload.errors import missing_package
from gpuload.kernels import aside

try:
    dali: Any = aside.call(lambda: importlib.import_module("nvidia.dali"))
except ImportError as error:
    raise missing_package("nvidia-dali", needed_for="gpuload.bridges.dali", extra="cpu", error=error) from error

"""Tests of this folder are of the emulated GPU alone: elsewhere, on a real one above all, they are
not collected."""

from __future__ import annotations

from tests import emulated_gpu

collect_ignore_glob = [] if emulated_gpu.is_installed() else ["test_*.py"]

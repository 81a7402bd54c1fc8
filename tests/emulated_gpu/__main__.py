"""All checks on the emulated GPU: `python -m tests.emulated_gpu [--short]` (`make emulated-gpu`).

Parts: the gpu tests that need no kernel of DALI, the counts of calls, and each kernel compiled by NVRTC for every card.

``--short`` is the part that `make test` does: the lane, one chain, and the counts of the works that take little time.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests import emulated_gpu

TESTS = (
    "tests/test_lane.py", "tests/test_device.py", "tests/test_rawdecode.py", "tests/test_gpu_loader.py",
    "tests/pipeline/test_gpu.py", "tests/bridges/test_cupy.py", "tests/executors/test_array.py", "tests/ops",
    "tests/emulated_gpu",
)  # fmt: skip
SHORT = ("tests/test_lane.py", "tests/bridges/test_cupy.py")
SHORT_COUNTS = ("rows", "chain", "Resize", "OneHot")


def main(arguments: list[str]) -> int:
    """Run the parts one after the other; return 0 if all passed."""
    if (why := emulated_gpu.problem()) is not None:
        sys.exit(why)
    is_short = arguments == ["--short"]
    environment = {**os.environ, "GPULOAD_REQUIRE_GPU": "1", "EMULATED_GPU_LATE_US": "200"}
    pytest = ("pytest", "-p", "tests.emulated_gpu.plugin", "-p", "no:cacheprovider", "-q", "-m", "gpu")
    parts = [(*pytest, *(SHORT if is_short else TESTS))]
    parts.append(("tests.emulated_gpu.counts", "--check", *(("--only", *SHORT_COUNTS) if is_short else ())))
    if not is_short:
        parts.append(("tests.emulated_gpu.nvrtc",))
    statuses = []
    for part in parts:
        print(f"\n== python -m {' '.join(part)}", flush=True)
        statuses.append(subprocess.run([sys.executable, "-m", *part], env=environment, check=False).returncode)
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

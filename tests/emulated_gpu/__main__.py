"""All checks on the emulated GPU: `python -m tests.emulated_gpu [--short | --sanitize]`
(`make emulated-gpu`).

Parts: the whole of `make gpu-test` with little data (all gpu tests that need no kernel of DALI,
parity, rates), the tests of this folder, the counts of calls, the time of the host, and each kernel
compiled by NVRTC for every card.

``--short`` is the part that `make test` does: the lane, one chain, and the counts of the works that
take little time. ``--sanitize`` runs the kernels of all ops under sanitizers (`make sanitize-gpu`),
in half an hour; further words are pytest's.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests import emulated_gpu

REPORT = emulated_gpu.HERE.parent.parent / "build" / "emulated-gpu-test"
PLUGIN = "tests.emulated_gpu.plugin"
SHORT = ("tests/test_lane.py", "tests/bridges/test_cupy.py")
SANITIZED = (
    "tests/ops", "tests/executors/test_array.py", "tests/executors/test_cuda_kernels.py", "tests/test_gpu_loader.py",
    "tests/executors/test_gpu_lane.py", "tests/pipeline/test_gpu.py", "tests/test_rawdecode.py",
    "--ignore-glob=*_torch.py", "--timeout", "1800",
)  # fmt: skip
SHORT_COUNTS = ("rows", "chain", "Resize", "OneHot", "the same, Normalize", "images, decoded")
SHORT_OPS = ("ColorJitter", "Erasing", "RandAugment")


def main(arguments: list[str]) -> int:
    """Run the parts one after the other; return 0 if all passed."""
    if (why := emulated_gpu.problem()) is not None:
        sys.exit(why)
    pytest = ("pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", "-m", "gpu")
    counts = ("tests.emulated_gpu.counts", "--check")
    if arguments == ["--short"]:
        parts = [(*pytest, *SHORT), (*counts, "--only", *SHORT_COUNTS, "--ops", *SHORT_OPS)]
    elif arguments[:1] == ["--sanitize"]:
        parts = [(*pytest, *SANITIZED, *arguments[1:])]
    else:
        report = (
            "benchmarks.gpu_report",
            "--short",
            "--fresh",
            "--work",
            str(REPORT),
            "--page",
            f"{REPORT}/gpu.md",
        )
        report = (
            *report,
            "--patience",
            "10",
        )  # g++ compiles each kernel once, which takes longer than NVRTC
        parts = [
            report,
            (*pytest, "tests/emulated_gpu"),
            (*counts, "--ops"),
            ("tests.emulated_gpu.counts", "--host"),
        ]
        parts += [("tests.emulated_gpu.nvrtc",)]
    options = {"GPULOAD_REQUIRE_GPU": "1", "EMULATED_GPU_LATE_US": "200"}
    if arguments[:1] == ["--sanitize"]:
        options |= {**emulated_gpu.sanitized(), "EMULATED_GPU_LATE_US": "0"}
    environment = {**os.environ, **options}
    in_all = {
        **emulated_gpu.environment(),
        **options,
        "PYTEST_PLUGINS": PLUGIN,
    }  # also in what it starts
    statuses = []
    for part in parts:
        print(f"\n== python -m {' '.join(part)}", flush=True)
        variables = in_all if part[0] == "benchmarks.gpu_report" else environment
        statuses.append(
            subprocess.run([sys.executable, "-m", *part], env=variables, check=False).returncode
        )
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

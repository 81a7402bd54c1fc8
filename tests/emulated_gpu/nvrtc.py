"""Compiles every kernel that was met with NVRTC, for every card: `python -m tests.emulated_gpu.nvrtc [sm_80 ...]`.

NVRTC needs no GPU. The sources are those that CuPy made for gpuload on the emulated GPU. CUDA 12 begins with sm_50,
CUDA 13 with sm_75 (Turing). A card that the NVRTC at hand does not know (sm_70, Volta) is named and left out: it needs
the extra cuda12.
"""

from __future__ import annotations

import sys

from tests import emulated_gpu

CARDS = (70, 75, 80, 86, 89, 90, 100, 103, 120)


def main(arguments: list[str] | None = None) -> int:
    """Say what was compiled; return 0, or 1 if something was not."""
    named = sys.argv[1:] if arguments is None else arguments
    if (why := emulated_gpu.problem()) is not None:
        sys.exit(why)
    from cupy_backends.cuda.libs import nvrtc

    version, known = nvrtc.getVersion(), set(nvrtc.getSupportedArchs())
    cards = [int(name.removeprefix("sm_")) for name in named] or CARDS
    for card in sorted(set(cards) - known):
        print(f"sm_{card}: NVRTC {version[0]}.{version[1]} does not compile for it")
    kernels = emulated_gpu.kernel_sources()
    if not kernels:
        sys.exit("no kernel was met yet: run tests on the emulated GPU first")
    failures = [
        f"sm_{card}: {log[:400]}\n{source[:2000]}"
        for card in cards
        if card in known
        for options, source in kernels
        if (log := compile_kernel(source, options, card)) is not None
    ]
    num_cards = len(known.intersection(cards))
    print(f"{len(kernels)} kernels for {num_cards} cards by NVRTC {version[0]}.{version[1]}: {len(failures)} failures")
    print("\n".join(failures), end="")
    return 1 if failures else 0


def compile_kernel(source: str, options: list[str], card: int) -> str | None:
    """Return what NVRTC says against a kernel, None if it compiles."""
    from cupy_backends.cuda.libs import nvrtc

    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*options, f"-arch=sm_{card}", "--device-as-default-execution-space"))
    except nvrtc.NVRTCError:
        return str(nvrtc.getProgramLog(program))
    finally:
        nvrtc.destroyProgram(program)
    return None


if __name__ == "__main__":
    sys.exit(main())

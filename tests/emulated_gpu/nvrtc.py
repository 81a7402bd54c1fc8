"""Compiles every kernel that was met with NVRTC, for every card:
`python -m tests.emulated_gpu.nvrtc [sm_80 ...]`.

NVRTC needs no GPU. The sources are those that CuPy made for gpuload on the emulated GPU. CUDA 12
begins with sm_50, CUDA 13 with sm_75 (Turing). A card that the NVRTC at hand does not know (sm_70,
Volta) is named and left out: it needs the extra cuda12.

Registers  ptxas, which is in NVRTC, says what a thread takes. A kernel that spills registers to
           memory, or takes more than `most_registers`, is a failure.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from tests import emulated_gpu

CARDS = (70, 75, 80, 86, 89, 90, 100, 103, 120)
# An SM has 65536 registers. Before Ampere it takes 1024 threads, all of which may have 64.
AMPERE, MOST_REGISTERS, MOST_BEFORE_AMPERE = 80, 56, 64
# What ptxas says of a kernel, in three lines.
USAGE = re.compile(
    r"Function properties for (\w+)\s+ptxas\s*\.\s+(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\s+ptxas info\s+: Used (\d+) registers"
)


@dataclass(frozen=True)
class Usage:
    """What a thread of a kernel takes on a card.

    Args:
        kernel: its name, and in which file of the cache's folder ``sources`` it is.
        card: the number behind ``sm_``.
        registers: of 32 bits.
        stack_bytes: memory for its arrays.
        spill_bytes: stores and loads of registers that were too many.
    """

    kernel: str
    card: int
    registers: int
    stack_bytes: int
    spill_bytes: int

    def __str__(self) -> str:
        return f"{self.kernel} on sm_{self.card}"

    @property
    def problem(self) -> str | None:
        """Why this is too much; None if it is not."""
        if self.spill_bytes:
            return f"{self}: {self.spill_bytes} bytes of registers are spilled"
        if self.registers > most_registers(self.card):
            return f"{self}: {self.registers} registers, at most {most_registers(self.card)}"
        return None


def most_registers(card: int) -> int:
    """Return how many registers a thread may take on a card, by the number behind ``sm_``."""
    return MOST_REGISTERS if card >= AMPERE else MOST_BEFORE_AMPERE


def main(arguments: list[str] | None = None) -> int:
    """Say what was compiled, and the most that a kernel takes; return 0, or 1 if something is
    wrong."""
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
    failures, usages = [], []
    for card in [card for card in cards if card in known]:
        for options, source in kernels:
            try:
                usages += compile_kernel(source, options, card)
            except CompileError as error:
                failures.append(f"sm_{card}: {str(error)[:400]}\n{source[:2000]}")
    failures += sorted({usage.problem for usage in usages if usage.problem is not None})
    num_cards = len(known.intersection(cards))
    print(
        f"{len(kernels)} kernels for {num_cards} cards by NVRTC {version[0]}.{version[1]}: {len(failures)} failures"
    )
    if usages:
        print(most(usages))
    print("\n".join(failures), end="")
    return 1 if failures else 0


def most(usages: list[Usage]) -> str:
    """Return the most registers and the most memory that a kernel takes, as a line."""
    registers = max(usages, key=lambda usage: usage.registers)
    stack = max(usages, key=lambda usage: usage.stack_bytes)
    spills = sum(usage.spill_bytes > 0 for usage in usages)
    return (
        f"at most {registers.registers} registers a thread ({registers}) and {stack.stack_bytes} bytes of memory "
        f"({stack}); {spills or 'none'} of {len(usages)} spills"
    )


class CompileError(Exception):
    """NVRTC does not compile a kernel; its text is what it says."""


def compile_kernel(source: str, options: list[str], card: int) -> list[Usage]:
    """Return what each kernel of a source takes on a card.

    Raises:
        CompileError: it does not compile.
    """
    from cupy_backends.cuda.libs import nvrtc

    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    flags = (f"-arch=sm_{card}", "--device-as-default-execution-space", "--ptxas-options=-v")
    try:
        nvrtc.compileProgram(program, (*options, *flags))
        return parse(
            str(nvrtc.getProgramLog(program)), emulated_gpu.source_key(source, options), card
        )
    except nvrtc.NVRTCError:
        raise CompileError(str(nvrtc.getProgramLog(program))) from None
    finally:
        nvrtc.destroyProgram(program)


def parse(log: str, key: str, card: int) -> list[Usage]:
    """Return what a log of ptxas says of each kernel of a source."""
    return [
        Usage(f"{name} ({key[:8]}.cu)", card, int(registers), int(stack), int(stores) + int(loads))
        for name, stack, stores, loads, registers in USAGE.findall(log)
    ]


if __name__ == "__main__":
    sys.exit(main())

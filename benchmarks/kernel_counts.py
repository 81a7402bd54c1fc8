"""Instructions and bytes of kernels, counted in what NVRTC makes of them:
`python -m benchmarks.kernel_counts`.

No card is needed, and none was there: a count is no time, and a card decides.
`benchmarks/results/kernel_counts.md` is written with ``--write``. The environment is that of
`make emulated-gpu`.

Instructions  of one thread on the longest and on the shortest way through the kernel that stores a
              result, each loop gone through once; by ``nvdisasm`` (``--nvdisasm PATH``, or of
              PATH), which CUDA and Triton bring along. Without it the instructions in the kernel's
              text alone: 16 bytes each on sm_70 and later.
Loads         of global memory, by their widths in bits, in the kernel's text.
"""

from __future__ import annotations

import argparse
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

RESULT = Path(__file__).parent / "results" / "kernel_counts.md"
INSTRUCTION_BYTES = 16
CARD = "sm_90"
COLUMNS = (
    "instructions",
    "a thread, least",
    "a thread, most",
    "least, a byte",
    "a tap",
    "loads",
    "stores",
)
BEFORE = {
    "walk: uint8 to float32": ("232", "157", "179", "39.2", "", "1 x 8, 8 x 32, 4 x 64", "1 x 32"),
    "walk: uint8 to float16": ("232", "158", "180", "79.0", "", "1 x 8, 8 x 32, 4 x 64", "1 x 16"),
    "walk: uint8 to uint8": ("232", "161", "183", "161.0", "", "1 x 8, 8 x 32, 4 x 64", "1 x 8"),
    "resize: uint8, a tap a loop": (
        "832",
        "150",
        "336",
        "150.0",
        "17.8",
        "28 x 8, 34 x 32, 13 x 64",
        "1 x 8",
    ),
    "edit: 3 channels": ("5160", "131", "3256", "43.7", "", "80 x 8, 39 x 32, 156 x 64", "13 x 8"),
}
OPTIONS = ("--fmad=false", "--std=c++17", "--device-as-default-execution-space")

Block = tuple[list[str], list[int]]  # instructions, and the blocks that may follow


@dataclass(frozen=True)
class KernelText:
    """A kernel that is counted.

    Args:
        name: what the table calls it.
        function: its name in the source.
        source: its text.
        out_bytes: of the result, that a thread makes.
    """

    name: str
    function: str
    source: str
    out_bytes: int


def kernels() -> list[KernelText]:
    """Return the kernels of the page."""
    from gpuload.kernels import colour_cuda, cuda, edits_cuda, pixels

    uint8 = np.dtype(np.uint8)
    return [
        KernelText("walk: uint8 to float32, normalised", "walk", _walk("float32", 3, False), 16),
        KernelText(
            "walk: uint8 to planes of float32, normalised", "walk", _walk("float32", 3, True), 16
        ),
        KernelText("walk: uint8 to float16, normalised", "walk", _walk("float16", 3, False), 16),
        KernelText("walk: uint8 to uint8", "walk", _walk("uint8", 3, False), 16),
        KernelText(
            "walk: uint8 to float32, normalised, 9 channels", "walk", _walk("float32", 9, False), 16
        ),
        KernelText("resize: uint8, a tap a loop", "resize", cuda.resize(uint8, nearest=False), 1),
        KernelText(
            "count of levels: 3 channels", "count", edits_cuda.source("edits_count.cu", 3), 0
        ),
        KernelText("edit: 3 channels", "edit", edits_cuda.source("edits_pixels.cu", 3), 3),
        KernelText("ColorJitter: 3 channels", "change", _change(colour_cuda.STEPS), 3),
        KernelText("crop, flip or turn alone: 3 channels", "change", _change(pixels.MOVE), 3),
    ]


def _walk(after: str, channels: int, planes: bool) -> str:
    from gpuload.kernels import cuda

    return cuda.walk(
        "uint8", after, channels, planes=planes, normalizes=after != "uint8", words=0, wide=False
    )


def _change(pixel: str) -> str:
    from gpuload.kernels import cuda

    return cuda.change("unsigned char", "unsigned char", (3, 3), pixel)


def compile_cubin(source: str, card: str) -> bytes:
    """Return what NVRTC makes of a source for a card."""
    from cupy_backends.cuda.libs import nvrtc

    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*OPTIONS, f"-arch={card}", *_includes()))
        cubin: bytes = nvrtc.getCUBIN(program)
        return cubin + b"\0"  # CuPy 14 takes the last byte for the end of a text
    finally:
        nvrtc.destroyProgram(program)


def _includes() -> list[str]:
    from tests import emulated_gpu

    return [f"-I{folder}" for folder in emulated_gpu._cuda_headers()]


def text_bytes(cubin: bytes, function: str) -> int:
    """Return the bytes of a kernel's instructions: the section ``.text.NAME`` of an ELF file of 64
    bits."""
    (table,), (size, count, names) = (
        struct.unpack_from("<Q", cubin, 40),
        struct.unpack_from("<HHH", cubin, 58),
    )
    sections = [
        struct.unpack_from("<IIQQQQ", cubin, table + size * number) for number in range(count)
    ]
    begin_of_names = sections[names][4]
    for name, _, _, _, _, num_bytes in sections:
        begin = begin_of_names + name
        if cubin[begin : cubin.index(b"\0", begin)] == f".text.{function}".encode():
            return int(num_bytes)
    raise ValueError(f"there is no kernel {function}")


def disassemble(cubin: bytes, function: str, nvdisasm: str) -> list[Block]:
    """Return the blocks of a kernel in order; the first is its entry."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [nvdisasm, "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    part = re.split(r"\.section\s+\.text\.", text)
    body = next(piece for piece in part if re.match(rf"{function}\W", piece))
    lines = re.findall(
        r"^\s*(\.L_x_\w+):|^\s*(?:/\*[0-9a-f]+\*/)?\s*(@?!?U?P?\w*\s*[A-Z][A-Z0-9_.]*[^;\n]*);",
        body,
        re.M,
    )
    return _blocks(lines)


def _blocks(lines: list[tuple[str, str]]) -> list[Block]:
    blocks: list[list[str]] = [[]]
    labels: dict[str, int] = {}
    for label, instruction in lines:
        if label:
            if blocks[-1]:
                blocks.append([])
            labels[label] = len(blocks) - 1
            continue
        blocks[-1].append(instruction.strip())
        if re.search(r"\b(BRA|EXIT|RET)\b", instruction):
            blocks.append([])
    result: list[Block] = []
    for number, block in enumerate(blocks):
        last, following = block[-1] if block else "", []
        target = re.search(r"\bBRA\b.*?(\.L_x_\w+)", last)
        if target and target[1] in labels:
            following.append(labels[target[1]])
        is_end = re.search(r"\b(BRA|EXIT|RET)\b", last) and not last.startswith("@")
        if not is_end and number + 1 < len(blocks):
            following.append(number + 1)
        result.append((block, following))
    return result


def ways(blocks: list[Block]) -> tuple[int, int] | None:
    """Return the instructions of the shortest and of the longest way to an end that stores; None if
    none does.

    Each loop is gone through once.
    """
    order, loops = _order(blocks)
    best: dict[
        int, tuple[int, int] | None
    ] = {}  # from a block to an end, a store somewhere on the way
    rest: dict[int, tuple[int, int]] = {}  # the same, whether there is a store or not
    for number in order:  # ends first
        block, following = blocks[number]
        after = [next_block for next_block in following if (number, next_block) not in loops]
        lengths = [rest[next_block] for next_block in after] or [(0, 0)]
        rest[number] = (
            len(block) + min(least for least, _ in lengths),
            len(block) + max(most for _, most in lengths),
        )
        if any(re.search(r"\b(STG?|RED|ATOMG?)\b", instruction) for instruction in block):
            best[number] = rest[number]
            continue
        storing = [pair for next_block in after if (pair := best[next_block]) is not None]
        best[number] = None
        if storing:
            best[number] = (
                len(block) + min(pair[0] for pair in storing),
                len(block) + max(pair[1] for pair in storing),
            )
    return best[0]


def _order(blocks: list[Block]) -> tuple[list[int], set[tuple[int, int]]]:
    """Return the blocks that can be reached, each behind those that follow it, and the steps that
    lead back."""
    order: list[int] = []
    loops: set[tuple[int, int]] = set()
    is_open: dict[int, bool] = {0: True}
    stack = [(0, iter(blocks[0][1]))]
    while stack:
        number, following = stack[-1]
        after = next(following, None)
        if after is None:
            stack.pop()
            is_open[number] = False
            order.append(number)
        elif after not in is_open:
            is_open[after] = True
            stack.append((after, iter(blocks[after][1])))
        elif is_open[after]:
            loops.add((number, after))
    return order, loops


def tap(blocks: list[Block]) -> str:
    """Return the instructions for each byte that a loop of one block loads, the fewest; "" without
    such a loop."""
    loops = [block for number, (block, following) in enumerate(blocks) if number in following]
    loads = [
        (len(block), sum(bool(re.search(r"\bLDG?\..*U8", line)) for line in block))
        for block in loops
    ]
    counts = [length / number for length, number in loads if number]
    return f"{min(counts):.1f}" if counts else ""


def widths(blocks: list[Block], name: str) -> str:
    """Return how many instructions there are of each width in bits, ``"3 x 8, 1 x 128"``."""
    counts: dict[int, int] = {}
    for block, _ in blocks:
        for instruction in block:
            match = re.search(rf"\b{name}\.([A-Z0-9_.]+)", instruction)
            if match:
                parts = match[1].split(".")
                bits = next(
                    (
                        int(part.lstrip("US"))
                        for part in parts
                        if re.fullmatch(r"[US]?(8|16|64|128)", part)
                    ),
                    32,
                )
                counts[bits] = counts.get(bits, 0) + 1
    return ", ".join(f"{counts[bits]} x {bits}" for bits in sorted(counts)) or "none"


def row(kernel: KernelText, nvdisasm: str | None) -> list[str]:
    """Return the cells of a kernel."""
    cubin = compile_cubin(kernel.source, CARD)
    total = text_bytes(cubin, kernel.function) // INSTRUCTION_BYTES
    cells = [kernel.name, str(total)]
    if nvdisasm is None:
        return [*cells, *[""] * (len(COLUMNS) - 1)]
    blocks = disassemble(cubin, kernel.function, nvdisasm)
    least, most = ways(blocks) or (0, 0)
    a_byte = f"{least / kernel.out_bytes:.1f}" if kernel.out_bytes else ""
    return [
        *cells,
        str(least),
        str(most),
        a_byte,
        tap(blocks),
        widths(blocks, "LDG?"),
        widths(blocks, "STG?"),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernel_counts", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--nvdisasm", default=shutil.which("nvdisasm"), help="the disassembler of CUDA"
    )
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args(arguments)
    lines = [
        ["kernel", *COLUMNS],
        ["---", *["---:"] * 5, "---", "---"],
        *(row(kernel, options.nvdisasm) for kernel in kernels()),
    ]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    print(table, end="")
    if options.write:
        if options.nvdisasm is None:
            parser.error("--write needs nvdisasm: pip install nvidia-cuda-nvdisasm")
        RESULT.write_text(page(table), encoding="utf-8")
    return 0


def page(table: str) -> str:
    """Return the text of the results file."""
    from cupy_backends.cuda.libs import nvrtc

    before = "".join(f"| {name} | {' | '.join(cells)} |\n" for name, cells in BEFORE.items())
    version = ".".join(map(str, nvrtc.getVersion()))
    return f"""# Instructions of kernels

`python -m benchmarks.kernel_counts --write`, for {CARD}, by NVRTC {version} and nvdisasm. Counts are no times: no card
was there, and a card decides. A thread of `walk` makes 16 bytes; "least" is the way of pixels that lie inside the
image, for which nothing is clipped. A byte is one of the result; of a loop, as that over taps, one turn is counted.

{table}
In 771a91a, where a thread of `walk` made one number, and levels were counted by an atomic addition to global memory for
each value (now 8192 pixels are counted in shared memory, and each level that is there is added once):

| kernel | {" | ".join(COLUMNS)} |
|---|{"---:|" * 5}---|---|
{before}"""


if __name__ == "__main__":
    sys.exit(main())

"""How far is a GPU from what each op means: `python -m benchmarks.gpu_parity WHAT --result FILE`
(`make gpu-test`).

arrays    every case of every op's contract (tests/ops) by CuPy, beside its array form in NumPy
dali      the same cases by DALI on the GPU
decoders  JPEGs decoded by DALI on the GPU, for each share of the hardware decoder, beside
          libjpeg-turbo: the largest and the mean difference, and whether pixels depend on the batch
          size. gpuload decodes with a share of 0 or 1: there pixels that depend on the batch, or a
          mean above ``gpuload_demo.parity.MEAN_ON_GPU``, are a failure
regions   a region of a JPEG decoded alone on the GPU, beside the same cut of the whole image.
          gpuload does not do that (``gpuload.ops.value.decode.REGIONS_ON_GPU``): here it is tried,
          in a process of its own
"""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import gpu

ROOT = Path(__file__).resolve().parent.parent
ABOUT = (
    "Differences are in units of the values: levels of 255 for images. Ops are compared over all cases of their "
    "contracts, decoders over JPEGs of 4:2:0, 4:4:4 and 4:2:2."
)
COLUMNS = ("what", "beside", "values that differ", "largest", "mean", "")

LOADS = (0.0, 0.65, 1.0)  # the share of images for the hardware decoder; DALI's default is 0.65
LOADS_OF_GPULOAD = (0.0, 1.0)  # with these an image's decoder depends on the image alone
BATCH_SIZES = (64, 7, 1)
NUM_JPEGS = 96
HEIGHT, WIDTH = 375, 500
REGION = (37, 51, 180, 240)  # top, left, height, width
REGION_S = 60.0
SUBSAMPLINGS = ("4:2:0", "4:4:4", "4:2:2")


@dataclass
class Difference:
    """How far values are from others, summed up over several comparisons."""

    largest: float = 0.0
    total: float = 0.0
    num_different: int = 0
    num_values: int = 0

    def add(self, values: Any, expected: Any) -> None:
        """Compare two arrays; NaN equals NaN.

        Raises:
            ValueError: they differ in dtype or shape.
        """
        if values.dtype != expected.dtype or values.shape != expected.shape:
            raise ValueError(
                f"{values.dtype} {values.shape} in place of {expected.dtype} {expected.shape}"
            )
        differs = ~((values == expected) | ((values != values) & (expected != expected)))
        if differs.any():
            difference = np.abs(
                values[differs].astype(np.float64) - expected[differs].astype(np.float64)
            )
            self.largest, self.total = (
                max(self.largest, float(difference.max())),
                self.total + float(difference.sum()),
            )
        self.num_different, self.num_values = (
            self.num_different + int(differs.sum()),
            self.num_values + values.size,
        )

    @property
    def mean(self) -> float:
        """The mean over all values."""
        return self.total / max(self.num_values, 1)

    def row(self, subject: str, beside: str, note: str = "") -> list[str]:
        """Return a row of the table."""
        share = self.num_different / max(self.num_values, 1)
        return [subject, beside, f"{share:.4%}", f"{self.largest:.4g}", f"{self.mean:.4g}", note]


Result = tuple[list[list[str]], list[str]]  # rows, and what is wrong


def main(arguments: list[str] | None = None) -> int:
    """Write the rows; the exit status is 1 if something is wrong."""
    options = gpu.part_options("gpu_parity", "what", WHATS, arguments)
    num_jpegs = 6 if options.smoke else NUM_JPEGS
    rows, problems = WHATS[options.what](num_jpegs)
    gpu.write_rows(options.result, rows, problems)
    print(*problems, sep="\n")
    return 1 if problems else 0


def cases() -> Iterator[tuple[Any, Any, Any]]:
    """Return each case of each contract of an op: contract, op, field."""
    from gpuload.testing.ops import OpContract

    sys.path.insert(0, str(ROOT))
    for path in sorted((ROOT / "tests" / "ops").glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "OpContract" not in text:
            continue
        module = importlib.import_module(f"tests.ops.{path.stem}")
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, OpContract)
                and value.__module__ == module.__name__
            ):
                yield from ((value(), op, field) for op, field in getattr(value, "cases", ()))


def compare_ops(beside: str, form: Callable[[Any, Any, Any], Any], *, codecs: bool) -> Result:
    """Compare a form on the GPU, of (graph, values, draws), with the array form, case by case."""
    from gpuload.testing import ops as testing

    differences: dict[str, Difference] = {}
    problems = []
    num_cases = 0
    for contract, op, field in cases():
        if op.traits.execution.needs_numpy or (op.traits.codec and not codecs):
            continue
        graph, values, draws = contract._batch(op, field)
        num_cases += 1
        try:
            on_gpu = form(graph, values if field.encoded else testing._upload(values), draws)
            expected = testing.array_form(graph, values, draws)
            difference = differences.setdefault(
                f"{type(op).__name__} to {expected[0].dtype}", Difference()
            )
            for value, meaning in zip(on_gpu, expected, strict=True):
                difference.add(value.get(), meaning)
        except Exception as error:  # the page names it, and the others go on
            problems.append(
                f"{op} on {field}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            )
    rows = [
        difference.row(name, beside)
        for name, difference in differences.items()
        if difference.num_different
    ]
    equal = {
        name: difference for name, difference in differences.items() if not difference.num_different
    }
    total = Difference(num_values=sum(difference.num_values for difference in equal.values()))
    ops = ", ".join(sorted({name.partition(" ")[0] for name in equal}))
    rows.append(total.row(f"all others of {num_cases} cases", beside, ops))
    return rows, problems


def arrays(num_jpegs: int) -> Result:
    """Compare CuPy with NumPy."""
    from gpuload.testing.ops import batch_form

    return compare_ops("CuPy, NumPy", lambda *case: batch_form(*case, "gpu:0"), codecs=False)


def dali(num_jpegs: int) -> Result:
    """Compare DALI on the GPU with the array form."""
    from gpuload.testing.ops import dali_form

    return compare_ops(
        "DALI on the GPU, array form", lambda *case: dali_form(*case, "gpu:0"), codecs=True
    )


def decoders(num_jpegs: int) -> Result:
    """Compare DALI's decoders on the GPU with libjpeg-turbo."""
    from gpuload_demo.parity import MEAN_ON_GPU

    files = [jpeg(number) for number in range(num_jpegs)]
    expected, rows, problems = decode(files, "cpu", 0.0, BATCH_SIZES[0]), [], []
    for load in LOADS:
        pixels = [decode(files, "mixed", load, size) for size in BATCH_SIZES]
        difference, is_same = (
            Difference(),
            all(np.array_equal(pixels[0], again) for again in pixels[1:]),
        )
        difference.add(pixels[0], expected)
        sizes = ", ".join(map(str, BATCH_SIZES))
        note = f"pixels {'are the same' if is_same else 'DIFFER'} in batches of {sizes}"
        rows.append(difference.row(f"nvJPEG, hw_decoder_load={load}", "libjpeg-turbo", note))
        if load in LOADS_OF_GPULOAD and not is_same:
            problems.append(
                f"hw_decoder_load={load}: {note}, and gpuload promises that they do not depend on it"
            )
        if load in LOADS_OF_GPULOAD and difference.mean > MEAN_ON_GPU:
            problems.append(
                f"hw_decoder_load={load}: the mean is {difference.mean:.3f} levels, the bound {MEAN_ON_GPU}"
            )
    return rows, problems


def regions(num_jpegs: int) -> Result:
    """Compare a region that is decoded alone with the cut of the whole image, in a process that it
    may end."""
    subject, beside = "a region decoded alone on the GPU", "the cut of the whole image"
    try:
        process = subprocess.run(
            [sys.executable, "-c", f"from benchmarks import gpu_parity; gpu_parity.print_regions({num_jpegs})"],
            cwd=ROOT, capture_output=True, text=True, timeout=REGION_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [
            [subject, beside, "-", "-", "-", f"NO RESULT after {REGION_S:.0f} s: regions stay off"]
        ], []
    if process.returncode:
        last = " ".join(process.stderr.split())[-200:].replace("|", "/")
        return [
            [
                subject,
                beside,
                "-",
                "-",
                "-",
                f"ENDED with status {process.returncode}: regions stay off ({last})",
            ]
        ], []
    return [json.loads(process.stdout.splitlines()[-1])], []


def print_regions(num_jpegs: int) -> None:
    """Print the row of ``regions``; this may end the process."""
    files, difference = [jpeg(number) for number in range(num_jpegs)], Difference()
    top, left, height, width = REGION
    whole = decode(files, "mixed", 0.0, BATCH_SIZES[0])[:, top : top + height, left : left + width]
    difference.add(
        decode(files, "mixed", 0.0, BATCH_SIZES[0], region=REGION), np.ascontiguousarray(whole)
    )
    print(
        json.dumps(
            difference.row(
                "a region decoded alone on the GPU", "the cut of the whole image", "no error"
            )
        )
    )


def decode(
    files: list[NDArray[np.uint8]],
    device: str,
    load: float,
    size: int,
    region: tuple[int, int, int, int] | None = None,
) -> NDArray[np.uint8]:
    """Return the pixels of JPEGs of one size by a decoder of DALI, ``[number, height, width, 3]``.

    Args:
        files: the coded images.
        device: ``"cpu"`` or ``"mixed"``.
        load: the share of images for the hardware decoder.
        size: of a batch.
        region: top, left, height, width; None for whole images.
    """
    from nvidia.dali import fn, pipeline_def

    settings: dict[str, Any] = {"device": device, "jpeg_fancy_upsampling": True}
    if device == "mixed":
        settings["hw_decoder_load"] = load

    pipeline_settings = {
        "batch_size": size,
        "num_threads": 4,
        "prefetch_queue_depth": 1,
    }  # fed a batch at a time

    @pipeline_def(device_id=0 if device == "mixed" else None, **pipeline_settings)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        files = fn.external_source(name="coded")
        if region is None:
            return fn.decoders.image(files, **settings)
        top, left, height, width = region
        return fn.decoders.image_slice(
            files, start=[top, left], shape=[height, width], axes=[0, 1], **settings
        )

    pipe = pipeline()
    pipe.build()
    images = []
    for start in range(0, len(files), size):
        pipe.feed_input("coded", files[start : start + size])
        (output,) = pipe.run()
        output = output if device == "cpu" else output.as_cpu()
        images += [np.array(output.at(row)) for row in range(len(output))]
    return np.stack(images)


def jpeg(number: int, height: int = HEIGHT, width: int = WIDTH) -> NDArray[np.uint8]:
    """Return a JPEG of smooth shapes and some noise, coded."""
    from PIL import Image

    rng = np.random.default_rng(number)
    image: Any = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    noisy = (np.asarray(image) + rng.normal(0, 4, (height, width, 3))).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(
        file, "JPEG", quality=90, subsampling=SUBSAMPLINGS[number % len(SUBSAMPLINGS)]
    )
    return np.frombuffer(file.getvalue(), np.uint8)


WHATS: dict[str, Callable[[int], Result]] = {
    "arrays": arrays,
    "dali": dali,
    "decoders": decoders,
    "regions": regions,
}


if __name__ == "__main__":
    sys.exit(main())

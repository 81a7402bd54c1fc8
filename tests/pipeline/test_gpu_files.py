"""Files of images on the way to a GPU: what the host decodes is uploaded once a batch, and batches
are the CPU's."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload.pipeline import joining
from tests import emulated_gpu

pytestmark = pytest.mark.gpu

NUM_FILES, BATCH_SIZE = 44, 4
RANDOM = np.random.default_rng(7)


def jpeg(row: int) -> bytes:
    file = io.BytesIO()
    levels = RANDOM.integers(0, 256, (4, 5, 3), np.uint8)
    Image.fromarray(levels).resize((26 + row % 5, 20 + row % 3)).save(file, "JPEG")
    return file.getvalue()


CROP = (gl.ops.Decode(), gl.ops.RandomResizedCrop(12, 16), gl.ops.RandomFlip())
NORMALIZE_GRAY = gl.ops.Normalize(90.0, 40.0)
NORMALIZE = gl.ops.Normalize((120.0, 110.0, 100.0), (60.0, 50.0, 40.0))
MORE_UPLOADS = ("mixed", "checked", "a function of CuPy between kernels")
LISTS = {
    "bytes": CROP,
    "normalised": (*CROP, NORMALIZE),
    "colours": (*CROP, gl.ops.ColorJitter(0.4, 0.4, 0.4), NORMALIZE),
    "policies": (*CROP, gl.ops.RandAugment(), gl.ops.AugMix(), NORMALIZE),
    "covered": (*CROP, NORMALIZE, gl.ops.Erasing(1.0)),
    "channels first": (*CROP, NORMALIZE, gl.ops.Transpose("CHW")),
    "checked": (*CROP, NORMALIZE, gl.ops.OneHot(4, on="label")),
    "mixed": (*CROP, NORMALIZE, gl.ops.MixUp(0.2, on="image")),
    "a function of CuPy between kernels": (
        *CROP, gl.ops.ColorJitter(0.4), gl.ops.Python(lambda image: 255 - image, on_device=True), NORMALIZE,
    ),
    "sizes of their own": (gl.ops.Decode(),),
    "sizes of their own, colours": (gl.ops.Decode(), gl.ops.ColorJitter(0.4, 0.4)),
    "sizes of their own, Normalize": (gl.ops.Decode(), NORMALIZE),
}  # fmt: skip


def write_files(folder: Path, files: list[bytes]) -> Path:
    """Write files into four folders, which are classes."""
    for row, data in enumerate(files):
        (folder / str(row % 4)).mkdir(parents=True, exist_ok=True)
        (folder / str(row % 4) / f"{row:03}.png").write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("images"), [jpeg(row) for row in range(NUM_FILES)])


def make_loader(
    folder: Path, ops: Any, on: str = "gpu", batch_size: int = BATCH_SIZE, **options: Any
) -> gl.Loader:
    executor = {"executor": "array"} if on == "gpu" else {}
    arguments: dict[str, Any] = {"shuffle": True, "seed": 3, "num_threads": 2, **options}
    return gl.Loader(gl.images(folder), batch_size, ops=ops, device=on, **executor, **arguments)


def on_host(values: Any) -> list[Any]:
    """Return the rows of a field."""
    return [row if isinstance(row, (np.ndarray, np.generic)) else row.get() for row in values]


def contents(batch: gl.Batch) -> dict[str, Any]:
    labels = [np.asarray(label).tolist() for label in on_host(batch["label"])]
    fields = {"image": on_host(batch["image"]), "label": labels}
    return {
        **fields,
        "records": batch.records.tolist(),
        "valid": batch.valid.tolist(),
        "step": batch.step,
    }


def is_equal(batch: dict[str, Any], meaning: dict[str, Any]) -> bool:
    """Return True if two batches are alike to the last bit."""
    are_alike = [
        image.dtype == right.dtype and np.array_equal(image, right)
        for image, right in zip(batch["image"], meaning["image"], strict=True)
    ]
    rest = [
        {name: value for name, value in each.items() if name != "image"}
        for each in (batch, meaning)
    ]
    return all(are_alike) and str(rest[0]) == str(rest[1])


def run(loader: gl.Loader, num_epochs: int = 2) -> list[dict[str, Any]]:
    with loader:
        return [contents(batch) for _ in range(num_epochs) for batch in loader]


@pytest.fixture(autouse=True)
def long_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have steps joined however long they take on a busy machine."""
    monkeypatch.setattr(joining, "GROUP_S", 60.0)


@pytest.mark.parametrize("name", LISTS)
def test_the_batches_are_those_of_the_cpu(folder, name):
    batches, right = (
        run(make_loader(folder, LISTS[name], on, prefetch=8)) for on in ("gpu", "cpu")
    )

    assert len(batches) == 2 * NUM_FILES // BATCH_SIZE
    assert all(is_equal(*pair) for pair in zip(batches, right, strict=True))


@pytest.mark.parametrize(
    "name", [name for name in LISTS if name not in ("mixed", "checked") and "function" not in name]
)
def test_a_batch_is_one_upload(folder, name):
    with make_loader(folder, LISTS[name], prefetch=1) as loader:  # one step at a time
        for _ in range(2):  # slots learn how much room is needed behind their arrays
            list(loader)
        before = emulated_gpu.calls()
        num_batches = sum(1 for _ in loader)
        since = emulated_gpu.since(before)

    assert since["uploads"] == num_batches
    assert "pageable uploads" not in since


def test_short_steps_have_launches_and_uploads_together(folder):
    with make_loader(folder, LISTS["normalised"], prefetch=8, output=("image",)) as loader:
        for _ in range(2):
            list(loader)
        before = emulated_gpu.calls()
        num_batches = sum(1 for _ in loader)
        since = emulated_gpu.since(before)

    assert (
        num_batches == 11
    )  # two by themselves, whose time is measured, and three groups of up to four
    assert since["uploads"] <= 5
    assert since["cuLaunchKernel"] <= 5


def test_steps_that_take_long_are_not_done_together(folder, monkeypatch):
    monkeypatch.setattr(joining, "GROUP_S", 1e-6)

    with make_loader(folder, LISTS["normalised"], prefetch=8) as loader:
        list(loader)
        before = emulated_gpu.calls()
        num_batches = sum(1 for _ in loader)

    assert emulated_gpu.since(before)["cuLaunchKernel"] == num_batches


def test_a_group_goes_on_where_the_loop_was_left_and_where_a_state_was_saved(folder):
    right = run(make_loader(folder, LISTS["normalised"], "cpu"), 1)
    with make_loader(folder, LISTS["normalised"], prefetch=8) as loader:
        first = []
        for batch in loader:
            first.append(contents(batch))
            if len(first) == 5:  # amid a group of four
                break
        state = loader.state_dict()
        rest = [contents(batch) for batch in loader]
    with make_loader(folder, LISTS["normalised"], "cpu") as loader:
        loader.load_state_dict(state)
        rest_on_cpu = [contents(batch) for batch in loader]

    assert all(is_equal(*pair) for pair in zip(first + rest, right, strict=True))
    assert all(is_equal(*pair) for pair in zip(rest_on_cpu, right[5:], strict=True))


@pytest.mark.parametrize("name", ["normalised", "sizes of their own"])
@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_damaged_files_are_replaced_as_on_a_cpu(tmp_path, name, on_error):
    files = [jpeg(row) for row in range(NUM_FILES)]
    for row in (3, 17, 30):
        files[row] = files[row][:60]
    write_files(tmp_path, files)

    batches, right = (
        run(make_loader(tmp_path, LISTS[name], on, on_error=on_error, max_bad=1.0, prefetch=8))
        for on in ("gpu", "cpu")
    )

    assert all(is_equal(*pair) for pair in zip(batches, right, strict=True))


def test_a_damaged_file_of_a_group_is_an_error_of_its_own_step_alone(tmp_path):
    files = [jpeg(row) for row in range(NUM_FILES)]
    files[21] = files[21][:60]
    write_files(tmp_path, files)
    outcomes: dict[str, list[Any]] = {"gpu": [], "cpu": []}

    for on, outcome in outcomes.items():
        with make_loader(tmp_path, LISTS["normalised"], on, prefetch=8) as loader:
            try:
                for batch in loader:
                    outcome.append(batch.records.tolist())
            except gl.GpuloadError as error:
                outcome.append(str(error))

    assert outcomes["gpu"] == outcomes["cpu"]
    assert "021.png" in outcomes["gpu"][-1]


def png16(row: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(RANDOM.integers(0, 65536, (20 + row % 3, 26), np.uint16)).save(file, "PNG")
    return file.getvalue()


def png(mode: str, row: int, *, is_alike: bool = False) -> bytes:
    file, channels = io.BytesIO(), len(mode)
    sides = (20, 26) if is_alike else (20 + row % 3, 26)
    levels = RANDOM.integers(0, 256, (*sides, channels), np.uint8)
    Image.fromarray(levels.squeeze(), mode).save(file, "PNG")
    return file.getvalue()


KINDS = {
    "16 bits": (png16, (gl.ops.Decode("GRAY", dtype="uint16"),)),
    "16 bits, cut": (png16, (gl.ops.Decode("GRAY", dtype="uint16"), gl.ops.CenterCrop(16), gl.ops.RandomFlip())),
    "16 bits, floats": (
        png16, (gl.ops.Decode("GRAY", dtype="uint16"), gl.ops.CenterCrop(16), gl.ops.Cast("float32")),
    ),
    "numbers": (png16, (gl.ops.Decode("ANY", dtype="float32", channels=1), gl.ops.Resize(16, 16), NORMALIZE_GRAY)),
    "grey": (lambda row: png("L", row), (gl.ops.Decode("GRAY"), gl.ops.RandomResizedCrop(12, 16), NORMALIZE_GRAY)),
    "grey, sizes of their own": (lambda row: png("L", row), (gl.ops.Decode("GRAY"),)),
    "alpha": (lambda row: png("RGBA", row), (gl.ops.Decode("RGBA"), gl.ops.CenterCrop(16), gl.ops.RandomFlip())),
    "alpha, sizes of their own": (lambda row: png("RGBA", row), (gl.ops.Decode("RGBA"),)),
    "one size": (lambda row: png("RGB", row, is_alike=True), (gl.ops.Decode(size=(20, 26)), gl.ops.ColorJitter(0.4))),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_other_kinds_are_those_of_the_cpu(tmp_path, kind):
    make, ops = KINDS[kind]
    write_files(tmp_path, [make(row) for row in range(12)])

    batches, right = (run(make_loader(tmp_path, ops, on, prefetch=4), 1) for on in ("gpu", "cpu"))

    assert all(is_equal(*pair) for pair in zip(batches, right, strict=True))

"""Images decoded on the host for a GPU: its batches are those of the CPU, and a state keeps where
they are decoded."""

from __future__ import annotations

import dataclasses
import gc
import io
import logging
import pickle
from collections import deque
from functools import partial
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload import device, ops, threads
from gpuload.cli.parity_ops import to_host
from gpuload.errors import RecordError, SpecError, StateError
from gpuload.executors import choose, trials
from gpuload.executors.array import ArrayRowExecutor
from gpuload.ragged import Ragged
from tests import imagefiles, simdevice
from tests.opexamples import NAMES, beside_boxes, example

Image = pytest.importorskip("PIL.Image")
COUNT = 10
# Behind kernels a compiler may round once where NumPy rounds twice: of values up to 4 that is the
# last bit of float32.
FLOAT_BOUND = 2e-6
LARGE = gl.ops.ScaleJitter(24, scale=(0.5, 1.5))  # its example makes images of megapixels
# Views of one image that has a size, an op each. Those that are left out act on files, boxes,
# labels and texts.
PLACES = {
    "Decode": "image",
    "OneHot": "label",
    "RandomIoUCrop": "image",
    "CleanBoxes": "boxes",
    "PadTo": "boxes",
}
VIEWS = tuple(name for name in NAMES if name not in ("Copy", "Dali", *PLACES))
QUICK_VIEWS = tuple(
    name for name in VIEWS if name not in ("AugMix", "Elastic")
)  # which take seconds there


def mask(height: int, width: int) -> bytes:
    """Return a PNG of labels 0 to 3."""
    numbers = np.add.outer(np.arange(height) // 5, np.arange(width) // 7).astype(np.uint8) % 4
    file = io.BytesIO()
    Image.fromarray(numbers).save(file, "PNG")
    return file.getvalue()


def array(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


def source(cut: tuple[int, ...] = (), *, boxes: bool = False) -> gl.Source:
    """Return images of sizes of their own, a mask and a second image of each, and labels.

    Args:
        cut: the records whose image ends early.
        boxes: have boxes beside them, too.
    """
    sizes = [(40 + 3 * n, 52 - 2 * n) for n in range(COUNT)]
    files = [array(imagefiles.jpeg(*size)) for size in sizes]
    for number in cut:
        files[number] = files[number][: len(files[number]) // 2]
    masks = [array(mask(*size)) for size in sizes]
    views = [array(imagefiles.png(*size[::-1])) for size in sizes]

    columns = {"image": files, "mask": masks, "second": views}
    encoded = gl.records(
        COUNT, partial(read_columns, columns), fields=dict.fromkeys(columns, ("u1", (None,)))
    )
    labels = gl.arrays(label=np.arange(COUNT) % 5)
    records = gl.zip(encoded.mark(image="encoded", mask="encoded", second="encoded"), labels)
    return beside_boxes(records) if boxes else records


def read_columns(columns: dict[str, list[Any]], numbers: Any) -> dict[str, Any]:
    return {name: [column[n] for n in numbers] for name, column in columns.items()}


def upside_down(image: Any) -> Any:
    return image[::-1].copy()


def mirror_image(image: Any) -> Any:
    return image[:, ::-1].copy()


DECODE, CROP = ops.Decode(), ops.RandomResizedCrop(24, 20)
FLIP, NORMALIZE = ops.RandomFlip(), ops.Normalize(120.0, 60.0)
BORDER, SHIFT = ops.Pad(margin=3, fill=9), ops.RandomCrop(28, 28, pad=3, fill=(9, 80, 200))
BOTH = ("image", "mask")
LISTS: dict[str, tuple[list[Any], Any]] = {  # ops, output
    "a crop": ([DECODE, CROP], "image"),
    "a crop and a flip": ([DECODE, CROP, FLIP], ("image", "label")),
    "normalised": ([DECODE, CROP, FLIP, NORMALIZE, ops.Transpose("CHW")], "image"),
    "colours": ([DECODE, CROP, ops.ColorJitter(0.4, 0.4, 0.4, 0.1), NORMALIZE], "image"),
    "a policy": ([DECODE, CROP, FLIP, ops.RandAugment(), NORMALIZE], "image"),
    "a policy before the size": ([DECODE, ops.TrivialAugmentWide(), CROP], "image"),
    "resized and cut": ([DECODE, ops.Resize(shorter=32), ops.CenterCrop(24, 24), NORMALIZE], "image"),
    "padded and cut": ([DECODE, ops.Resize(30, 30), ops.RandomCrop(28, 28, pad=4), FLIP], "image"),
    "padded": ([DECODE, ops.Resize(20, 20), ops.Pad(margin=2), FLIP], "image"),
    "padded, then cut": ([DECODE, ops.Resize(28, 28), BORDER, ops.RandomCrop(28, 28), FLIP, NORMALIZE], "image"),
    "a border of a colour in a crop": ([DECODE, ops.Resize(28, 28), SHIFT, NORMALIZE], "image"),
    "moved with its mask": (
        [DECODE, ops.Decode("LABELS", on="mask"), ops.Resize(28, 28), BORDER, ops.RandomCrop(24, 24), FLIP, NORMALIZE],
        BOTH,
    ),
    "moved with its boxes": ([DECODE, ops.Resize(28, 28), BORDER, ops.RandomCrop(26, 26), FLIP], ("image", "boxes")),
    "a flip before the crop": ([DECODE, FLIP, CROP], "image"),
    "gray": ([ops.Decode("GRAY"), CROP, NORMALIZE], "image"),
    "16 bits": ([ops.Decode(dtype="uint16"), ops.RandomCrop(20, 20, pad_if_needed=True), FLIP], "image"),
    "another field": ([ops.Decode(on="second"), ops.Resize(24, 24, on="second")], ("second", "label")),
    "no size": ([DECODE], "image"),
    "colours without a size": ([DECODE, ops.ColorJitter(0.4)], "image"),
    "floats without a size": ([DECODE, NORMALIZE], "image"),
    "Python in the middle": ([DECODE, CROP, ops.Python(upside_down, out={}), NORMALIZE], "image"),
    "Python on the device": ([DECODE, CROP, ops.Python(upside_down, out={}, on_device=True)], "image"),
    "mixed": ([DECODE, CROP, NORMALIZE, ops.OneHot(5), ops.MixUp(0.4)], ("image", "label")),
    "cut and mixed": ([DECODE, CROP, ops.OneHot(5), ops.CutMix(1.0), NORMALIZE], ("image", "label")),
    "a mosaic": ([DECODE, ops.Mosaic(32, fill=114)], "image"),
    "copies": ([DECODE, CROP, ops.Copy("image", to="view"), ops.RandomFlip(on="view")], ("image", "view")),
    "copies of whole images": (
        [DECODE, ops.Copy("image", to="view"), CROP, ops.Resize(9, 9, on="view")], ("image", "view"),
    ),
    "copies of files": (
        [ops.Copy("image", to="view"), ops.Decode(on=("image", "view")), CROP, ops.Resize(9, 9, on="view")],
        ("image", "view"),
    ),
    "two images": (
        [ops.Decode(on=("image", "second")), CROP, ops.Resize(16, 16, on="second"), NORMALIZE], ("image", "second"),
    ),
    "two images, one without a size": ([ops.Decode(on=("image", "second")), CROP], ("image", "second")),
    "a mask by name": (
        [DECODE, ops.Decode("GRAY", on="mask"), ops.RandomResizedCrop(24, 20, on=BOTH), NORMALIZE], BOTH,
    ),
    "a mask of labels": ([DECODE, ops.Decode("LABELS", on="mask"), CROP, FLIP, ops.ColorJitter(0.4), NORMALIZE], BOTH),
    "boxes": ([DECODE, ops.RandomIoUCrop(), ops.Resize(24, 24), FLIP, ops.CleanBoxes(), NORMALIZE], ("image", "boxes")),
    "boxes in a window": ([DECODE, LARGE, ops.Pad(40, 40, fill=9), ops.CleanBoxes()], ("image", "boxes")),
    "boxes in rows": ([DECODE, CROP, ops.CleanBoxes(min_size=2), ops.PadTo(4, on="boxes")], ("image", "boxes")),
}  # fmt: skip
QUICK = (
    "normalised",
    "no size",
    "a mosaic",
    "a mask of labels",
    "boxes",
    "Python in the middle",
    "two images",
)
QUICK += ("moved with its mask",)


def loaders(name: str, **settings: Any) -> list[gl.Loader]:
    """Return a loader on the CPU, and one whose images are decoded on the host for the GPU."""
    chain, output = LISTS[name]
    records = settings.pop("records", None) or source(boxes="boxes" in output)
    words = {
        "batch_size": 4,
        "ops": chain,
        "output": output,
        "shuffle": True,
        "seed": 3,
        "drawn": True,
        **settings,
    }
    return [
        gl.Loader(records, **{**words, "device": "cpu"}),
        gl.Loader(records, **{"device": "gpu", "executor": "array", **words}),
    ]


def assert_same(result: Any, expected: Any) -> None:
    """Assert that two batches have the same records, values and draws."""
    assert result.records.tolist() == expected.records.tolist()
    assert result.valid.tolist() == expected.valid.tolist()
    assert result.keys() == expected.keys()
    for name in expected.keys():  # noqa: SIM118  a batch is iterated as its output says
        values, other = to_host(result[name]), expected[name]
        if isinstance(other, Ragged):
            assert values.offsets.tolist() == other.offsets.tolist()
        assert type(values) is type(other)
        assert len(values) == len(other)
        for row, other_row in zip(values, other, strict=True):
            assert (row.dtype, row.shape) == (other_row.dtype, other_row.shape), name
            bound = FLOAT_BOUND if other_row.dtype.kind == "f" else 0
            np.testing.assert_allclose(row, other_row, rtol=0, atol=bound, err_msg=name)
    for op, draws in (expected.drawn or {}).items():
        for key, values in draws.items():
            np.testing.assert_array_equal(result.drawn[op][key], values, err_msg=f"{op} {key}")


def check_equal(pair: list[gl.Loader], num_epochs: int = 2) -> None:
    cpu, gpu = pair
    with cpu, gpu:
        assert "on the host" in gpu.describe()
        for epoch in range(num_epochs):
            for result, expected in zip(gpu.epoch(epoch), cpu.epoch(epoch), strict=True):
                assert_same(result, expected)
        assert_same(gpu.batch_at(len(cpu) - 1, 5), cpu.batch_at(len(cpu) - 1, 5))


# --- equal


@pytest.mark.parametrize("name", ["normalised", "no size", "a mask of labels", "boxes"])
def test_on_a_simulated_gpu_its_batches_are_those_of_the_cpu(name, monkeypatch):
    sim = simdevice.install(monkeypatch, seed=1)

    check_equal(loaders(name), 1)

    gc.collect()
    sim.finish()


@pytest.mark.gpu
@pytest.mark.parametrize("name", QUICK)
def test_its_batches_are_those_of_the_cpu(name):
    check_equal(loaders(name), 1)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
def test_the_batches_of_each_list_of_ops_are_those_of_the_cpu(name):
    check_equal(loaders(name))


def views_of(names: tuple[str, ...]) -> list[Any]:
    """Return ops that decode, make images of 32 x 32 pixels, and give each op a view of its own."""
    views = [
        dataclasses.replace(LARGE if name == "ScaleJitter" else example(name), on=name)
        for name in names
    ]
    rest = [
        dataclasses.replace(example(name), on=PLACES[name]) for name in PLACES if name != "Decode"
    ]
    return [DECODE, ops.Resize(32, 32), ops.Copy("image", to=names), *views, *rest]


def check_views(names: tuple[str, ...]) -> None:
    records, chain = source(boxes=True), views_of(names)
    output = (*names, "image", "label", "boxes")
    words = {
        "batch_size": 4,
        "ops": chain,
        "output": output,
        "seed": 3,
        "shuffle": True,
        "drawn": True,
    }
    pair = [
        gl.Loader(records, **words, device="cpu"),
        gl.Loader(records, **words, device="gpu", executor="array"),
    ]
    check_equal(pair, 1)


@pytest.mark.gpu
def test_every_op_behind_images_of_the_host_does_as_on_the_cpu():
    assert {*QUICK_VIEWS, "AugMix", "Elastic", "Copy", "Dali", *PLACES} == set(NAMES)

    check_views(QUICK_VIEWS)


@pytest.mark.gpu
@pytest.mark.slow
def test_the_ops_of_many_kernels_do_as_on_the_cpu():
    check_views(("AugMix", "Elastic"))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", VIEWS)
def test_every_op_before_the_size_does_as_on_the_cpu(name):
    op = {"ScaleJitter": LARGE, "Pad": ops.Pad(70, 60)}.get(name, example(name))
    words = {"batch_size": 4, "output": "image", "seed": 3, "drawn": True, "device": "cpu"}
    labels = ops.OneHot(5)  # which some ops mix
    try:
        cpu = gl.Loader(source(), ops=[DECODE, labels, op, ops.Resize(24, 24)], **words)
    except SpecError:  # it takes images of one size alone, or makes what cannot be resized
        cpu = gl.Loader(source(), ops=[DECODE, labels, ops.Resize(32, 32), op], **words)

    check_equal([cpu, cpu.replace(device="gpu", executor="array")], 1)


@pytest.mark.gpu
@pytest.mark.parametrize("last_batch", ["partial", "pad", "drop"])
def test_a_short_last_batch_is_that_of_the_cpu(last_batch):
    check_equal(
        loaders("normalised", last_batch=last_batch, batch_size=3, shard_id=1, num_shards=2), 1
    )


@pytest.mark.gpu
@pytest.mark.parametrize("on_error", ["replace", "skip"])
@pytest.mark.parametrize("name", ["normalised", "no size", "mixed"])
def test_for_damaged_images_the_same_records_stand(name, on_error):
    check_equal(loaders(name, records=source(cut=(2, 5, 6)), on_error=on_error, max_bad=0.5))


@pytest.mark.gpu
def test_a_damaged_image_is_the_error_of_the_cpu():
    texts = []
    for loader in loaders("normalised", records=source(cut=(4,))):
        with loader, pytest.raises(RecordError, match="record 4") as caught:
            list(loader)
        texts.append(str(caught.value))

    assert texts[0] == texts[1]


@pytest.mark.gpu
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["to the GPU", "to the CPU"])
def test_a_run_goes_on_on_the_other_device_with_the_same_batches(order, caplog):
    pair = loaders("colours")
    first, second = (pair[place] for place in order)
    batches = iter(first)
    next(batches)

    with caplog.at_level(logging.WARNING, "gpuload"):
        second.load_state_dict(first.state_dict())

    assert caplog.messages == []
    for result, expected in zip(second, batches, strict=True):
        for name in ("image",):
            np.testing.assert_allclose(
                to_host(result[name]), to_host(expected[name]), rtol=0, atol=FLOAT_BOUND
            )
    for loader in pair:
        loader.close()


@pytest.mark.gpu
def test_regions_that_doctor_found_bad_on_a_cpu_are_cut_from_whole_images_for_a_gpu_too(
    monkeypatch,
):
    failure = trials.Failure("array", "cpu", "JPEG", True, "largest 9")
    monkeypatch.setattr(
        trials, "load", lambda name, place: (failure,) if (name, place) == ("array", "cpu") else ()
    )

    cpu, gpu = loaders("normalised")

    assert all(crop is None for crop in gpu.port.graph.crops)
    assert (
        "whole images are decoded and cut: gpuload doctor found that array on cpu" in gpu.describe()
    )
    check_equal([cpu, gpu], 1)


# --- DALI behind it


TURN, MIRROR = ops.Python(upside_down, out={}), ops.Python(mirror_image, out={})


@pytest.mark.parametrize(
    ("chain", "array_chain", "number"),
    [
        ([DECODE, CROP, FLIP, NORMALIZE], [DECODE, CROP, FLIP, NORMALIZE], 3),
        ([DECODE, CROP, ops.Dali("flip"), NORMALIZE], [DECODE, CROP, MIRROR, NORMALIZE], 2),
        ([DECODE, ops.Dali("flip"), CROP, NORMALIZE], [DECODE, MIRROR, CROP, NORMALIZE], 1),
        ([DECODE, CROP, TURN, ops.Dali("flip")], [DECODE, CROP, TURN, MIRROR], 3),
    ],
    ids=["ops", "an operator behind the size", "an operator before the size", "a function between"],
)
def test_dali_goes_on_behind_images_that_the_core_has_decoded(chain, array_chain, number):
    pytest.importorskip("nvidia.dali")

    with (
        cpu_loader(ops=chain, executor="dali", decode="host") as loader,
        cpu_loader(ops=array_chain) as other,
    ):
        results, expected = images_of(loader), images_of(other)
        place, executor = line_of(loader, "decoding"), line_of(loader, "executor")

    for result, image in zip(results, expected, strict=True):
        np.testing.assert_allclose(
            result, image, rtol=0, atol=1.1 / 60
        )  # a level, where DALI resizes
    assert place.startswith("on the host, by ")
    assert f": {' '.join(type(op).__name__ for op in chain[:number])};" in place
    assert place.endswith("for DALI (asked for)")
    assert executor.startswith("dali ")


# --- the place of decoding: arguments, describe() and states


class DeviceDecoder:
    """Stands for DALI: pixels that differ from those of the host by one; on a GPU they are there.

    It runs what DALI would run by NumPy, whose results a test can tell from those of the core by
    their last bit.
    """

    kind, name, any_length, bundles = "batches", "dali", False, False

    def __init__(self, graph: Any, place: str) -> None:
        self.graph, self.device = graph, place
        self._pending: deque[Any] = deque()

    def start(self, fields: Any, draws: Any) -> None:
        """See ``BatchExecutor``."""
        results = ArrayRowExecutor(self.graph).run(
            {name: to_host(fields[name]) for name in fields}, draws, {}
        )
        to_device = np.asarray if self.device == "cpu" else device.cupy().asarray
        self._pending.append(
            {name: to_device(values + (name == "image")) for name, values in results.items()}
        )

    def finish(self) -> Any:
        """See ``BatchExecutor``."""
        return self._pending.popleft()

    def reset(self) -> None:
        """See ``BatchExecutor``."""
        self._pending.clear()

    def describe(self) -> dict[str, str]:
        """See ``BatchExecutor``."""
        return {"executor": "stands for DALI"}

    def close(self) -> None:
        """See ``BatchExecutor``."""


@pytest.fixture(params=["sim", pytest.param("cupy", marks=pytest.mark.gpu)])
def dali(request, monkeypatch):
    """Have a DALI that a test can tell from the core; returns a function that sets the cores for
    each GPU."""
    sim, make = None, choose.make
    if request.param == "sim":
        sim = simdevice.install(monkeypatch, seed=1)
    monkeypatch.setattr(choose, "_has_dali", lambda: True)
    monkeypatch.setenv(
        "GPULOAD_DOCTOR", "0"
    )  # nothing is audited: its pixels are others on purpose
    monkeypatch.setattr(choose.ArrayRowExecutor, "decoder", "core")
    monkeypatch.setattr(
        choose,
        "make",
        lambda name, graph, **words: (
            DeviceDecoder(graph, words["device"]) if name == "dali" else make(name, graph, **words)
        ),
    )
    yield lambda count: monkeypatch.setattr(threads, "num_cores_for_gpu", lambda num_gpus: count)
    gc.collect()
    if sim is not None:
        sim.finish()


def line_of(loader: gl.Loader, name: str) -> str:
    """Return a line of ``describe()`` without its name."""
    return (
        next(line for line in loader.describe().splitlines() if line.startswith(f"{name}:"))
        .split(":", 1)[1]
        .strip()
    )


def auto_loader(**words: Any) -> gl.Loader:
    """Return a loader for the GPU that decides by itself where images are decoded."""
    settings = {
        "batch_size": 3,
        "ops": [DECODE, CROP, FLIP, ops.ColorJitter(0.4)],
        "output": "image",
        "seed": 3,
    }
    # No audit: it would find that this device decodes wrongly.
    return gl.Loader(source(), **{**settings, "device": "gpu", "audit": 0, **words})


def images_of(loader: gl.Loader) -> list[Any]:
    return [to_host(batch["image"]) for batch in loader]


def test_describe_says_where_images_are_decoded_by_whom_and_what_is_uploaded(dali):
    dali(16)
    with auto_loader() as loader:
        place, stages, executor = (
            line_of(loader, name) for name in ("decoding", "stages", "executor")
        )
    dali(2)
    with auto_loader() as loader:
        on_device = line_of(loader, "decoding")

    assert place.startswith("on the host, by the core (")
    assert place.endswith(
        "): Decode RandomResizedCrop RandomFlip; 1,440 bytes an image uploaded (there are 16 cores for each GPU)"
    )
    assert stages == "image: array of ColorJitter"
    assert executor == "array, cupy (images are decoded on the host)"
    assert (
        on_device
        == "on gpu:0, by DALI (2 of the 3 cores for each GPU that the host needs to decode)"
    )


def test_where_the_host_does_all_ops_describe_says_that_none_is_left(dali):
    dali(16)
    with auto_loader(ops=[DECODE, CROP, FLIP]) as loader:
        assert line_of(loader, "stages") == "none: no op runs on whole batches"


def test_images_that_the_host_gives_another_shape_are_counted(dali):
    chain = [
        DECODE,
        CROP,
        ops.Copy("image", to="view"),
        ops.Python(np.ravel, out={"shape": (1440,)}),
    ]

    with auto_loader(ops=chain, output=("image", "view")) as loader:
        assert ": Decode RandomResizedCrop Copy Python; 2,880 bytes an image uploaded" in line_of(
            loader, "decoding"
        )


TWO_VIEWS = [
    DECODE,
    ops.Copy("image", to=("a", "b")),
    ops.RandomResizedCrop(24, on="a"),
    ops.Resize(8, 9, on="b"),
]


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            ("a", "b"),
            "Decode Copy RandomResizedCrop Resize; 1,944 bytes an image uploaded",
        ),  # 3 * (24 * 24 + 8 * 9)
        (("a", "image"), "on gpu:0, by DALI (no op behind Decode gives the images one size)"),
    ],
)
def test_only_images_that_are_handed_out_need_one_size_and_are_counted(dali, output, line):
    dali(16)
    with auto_loader(ops=TWO_VIEWS, output=output) as loader:
        assert line in line_of(loader, "decoding")


@pytest.mark.gpu
def test_where_only_cupy_is_a_loader_for_a_gpu_decodes_on_the_host(monkeypatch):
    monkeypatch.setattr(choose, "_has_dali", lambda: False)

    with auto_loader() as loader, auto_loader(device="cpu") as cpu:
        assert line_of(loader, "decoding").endswith("(DALI is not installed)")
        for result, expected in zip(images_of(loader), images_of(cpu), strict=True):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("before", "after", "place"), [(2, 16, "device"), (16, 2, "host")])
def test_a_run_stays_where_its_images_are_decoded(dali, before, after, place, caplog):
    dali(before)
    with auto_loader() as loader:
        expected = images_of(loader)
        state = loader.state_dict(epoch=0, step=1)
    dali(after)

    with auto_loader() as other, caplog.at_level(logging.INFO, "gpuload"):
        batches = iter(other)  # it began before the state was loaded, and goes on from there
        other.load_state_dict(state)
        results = [to_host(batch["image"]) for batch in batches]
        again = [to_host(batch["image"]) for batch in other.epoch(0)][1:]
        at_step, line = to_host(other.batch_at(1)["image"]), line_of(other, "decoding")
        pickled = pickle.loads(pickle.dumps(other))
    with pickled:
        pickled_line = line_of(pickled, "decoding")

    assert state["decode"] == place
    for images in (results, again):
        for result, image in zip(images, expected[1:], strict=True):
            np.testing.assert_array_equal(result, image)
    np.testing.assert_array_equal(at_step, expected[1])
    assert line == pickled_line
    assert line.endswith("(as in the run of the state that was loaded)")
    assert (
        f"images are decoded on the {place} from here on, as in the run of the state"
        in caplog.messages
    )


def test_the_pixels_of_both_places_differ_here_so_that_these_tests_see_them(dali):
    with auto_loader(decode="host") as host, auto_loader(decode="device") as on_device:
        pairs = list(zip(images_of(host), images_of(on_device), strict=True))

    assert all((image != other).any() for image, other in pairs)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (
            {"executor": "array"},
            "executor= or decode= says so; remedy: write decode='device', and leave executor= out",
        ),
        (
            {"decode": "host"},
            "executor= or decode= says so; remedy: write decode='device', and leave executor= out",
        ),
    ],
)
def test_where_the_user_says_where_a_state_of_elsewhere_is_told(dali, words, cause, caplog):
    with auto_loader(decode="device") as loader:
        state = loader.state_dict(epoch=0, step=2)

    with auto_loader(**words) as other, caplog.at_level(logging.WARNING, "gpuload"):
        other.load_state_dict(state)
        position = other.position

    (message,) = caplog.messages
    assert "decoded on the device, and here they are decoded on the host" in message
    assert cause in message
    assert position.step == 2


def test_where_only_cupy_is_a_state_of_images_of_the_device_is_told(dali, monkeypatch, caplog):
    with auto_loader(decode="device") as loader:
        state = loader.state_dict()
    monkeypatch.setattr(choose, "_has_dali", lambda: False)

    with auto_loader() as other, caplog.at_level(logging.WARNING, "gpuload"):
        other.load_state_dict(state)

    (message,) = caplog.messages
    assert "needs the package 'nvidia-dali'" in message
    assert "pip install" in message


def cpu_loader(**words: Any) -> gl.Loader:
    return auto_loader(**{"device": "cpu", **words})


@pytest.mark.parametrize("words", [{}, {"decode": "host"}, {"executor": "array"}])
def test_on_a_cpu_a_state_of_a_gpus_images_is_told_and_one_of_the_hosts_is_not(words, caplog):
    with cpu_loader(**words) as loader, caplog.at_level(logging.WARNING, "gpuload"):
        state = loader.state_dict(epoch=1, step=1)
        loader.load_state_dict(state)
        assert (state["decode"], caplog.messages) == ("host", [])
        loader.load_state_dict({**state, "decode": "device"})
        position = loader.position

    (message,) = caplog.messages
    assert (
        "a CPU is the host; remedy: write device='gpu' and decode='device', and leave executor= out"
        in message
    )
    assert (position.epoch, position.step) == (1, 1)


def test_states_without_images_or_of_earlier_versions_say_nothing_of_them(caplog):
    with (
        cpu_loader(output="label") as labels,
        cpu_loader() as loader,
        caplog.at_level(logging.WARNING, "gpuload"),
    ):
        assert "decode" not in labels.state_dict()
        state = loader.state_dict(epoch=0, step=2)
        del state["decode"]
        loader.load_state_dict(state)
        labels.load_state_dict(labels.state_dict() | {"decode": "device"})

        assert loader.position.step == 2
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("cores", "chain", "is_told"),
    [
        (16, [DECODE, CROP, FLIP], True),
        (2, [DECODE, CROP], False),
        (16, [DECODE, CROP, MIRROR], False),
    ],
    ids=["the host by the rule", "the device", "the host as in earlier versions"],
)
def test_a_gpu_that_decodes_elsewhere_than_earlier_versions_says_so_of_their_states(
    dali, cores, chain, is_told, caplog
):
    dali(cores)
    with auto_loader(ops=chain) as loader, caplog.at_level(logging.WARNING, "gpuload"):
        state = loader.state_dict(epoch=0, step=2)
        loader.load_state_dict(state)
        assert caplog.messages == []
        del state["decode"]
        loader.load_state_dict(state)

        assert loader.position.step == 2
    assert ["decode='device' if that run was on a GPU" in text for text in caplog.messages] == [
        True
    ] * is_told


@pytest.mark.parametrize("place", ["gpu", 3, None, ["host"]])
def test_a_state_of_an_unknown_place_is_refused(place):
    with cpu_loader() as loader:
        state = loader.state_dict()

        with pytest.raises(StateError, match="decode = "):
            loader.load_state_dict({**state, "decode": place})


def test_a_cache_has_images_of_the_host_and_its_state_says_so(caplog):
    with (
        cpu_loader(ops=[DECODE, ops.Resize(24, 24), FLIP]) as loader,
        loader.cache(memory="9MB") as cached,
    ):
        state = cached.state_dict()
        loader.load_state_dict(state)
        cached.load_state_dict(loader.state_dict())
        assert (state["decode"], caplog.messages) == ("host", [])
        cached.load_state_dict({**state, "decode": "device"})

    (message,) = caplog.messages
    assert "the source has kept images that were decoded" in message


@pytest.mark.parametrize("words", [{"decode": "gpu"}, {"decode": None}, {"decode": True}])
def test_a_place_that_is_not_known_is_refused(words):
    with pytest.raises(SpecError, match="decode = "):
        cpu_loader(**words)


def test_it_is_an_argument_of_replace_and_of_a_pickle():
    with (
        cpu_loader() as loader,
        loader.replace(decode="host") as other,
        pickle.loads(pickle.dumps(other)) as arrived,
    ):
        assert arrived._arguments["decode"] == "host"

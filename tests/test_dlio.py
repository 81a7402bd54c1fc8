"""DLIO with gpuload as its data loader (`benchmarks/dlio`): each record of an epoch once, and the
table's arithmetic.

The loader's tests need dlio-benchmark, which `make dlio` installs into an environment of its own,
and runs them there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.dlio import __main__ as program
from benchmarks.dlio import page, search, workloads
from benchmarks.dlio.workloads import FULL

NEEDED = "make dlio brings dlio-benchmark, and runs this test"


@pytest.mark.parametrize(("most", "expected"), [(3.0, 2.8531), (1.0, 1.0), (0.05, 0.0472)])
@pytest.mark.parametrize("start", [0.6, 0.9, 1.0, 1.05, 4.0])
def test_the_search_ends_between_a_number_that_is_fed_and_the_next(
    most: float, expected: float, start: float
) -> None:
    tries: list[float] = []

    def utilisation(accelerators: float) -> float:
        tries.append(accelerators)
        return min(1.0, 0.9 * most * 1.0000001 / accelerators)

    accelerators = search.most_accelerators(utilisation, start * most, 0.9)

    # Powers of 1.1: 1.1^11 = 2.8531 and 1.1^12 = 3.1384; 1; 1.1^-32 = 0.0474 and 1.1^-31 = 0.0521.
    assert accelerators == pytest.approx(expected, rel=0.005)
    assert len(tries) == len(set(tries)) <= 8


def test_a_utilisation_that_never_suffices_has_no_number() -> None:
    assert search.most_accelerators(lambda accelerators: 0.5, 1.0, 0.9) is None


def test_a_loader_at_the_rate_that_an_accelerator_needs_is_estimated_to_feed_it_at_full_use() -> (
    None
):
    # 7 records a step of 0.323 s are 21.67 records/s for an accelerator that never waits; at 0.9 of
    # that it still has enough.
    assert search.estimate(21.671827, 7, 0.323, 1.0) == pytest.approx(1.0)
    assert search.estimate(21.671827, 7, 0.323, 0.9) == pytest.approx(1 / 0.9)


def test_a_small_accelerator_asks_for_as_many_bytes_a_second_as_a_full_one() -> None:
    for workload in workloads.WORKLOADS:
        rates = [
            workload.record_length
            * size.record_share
            * workload.batch(size)
            / workload.step_s(size)
            for size in (FULL, workload.small)
        ]
        assert rates[0] == pytest.approx(rates[1])
    assert workloads.find("unet3d").step_s(workloads.find("unet3d").small) == pytest.approx(
        0.323 / 30
    )
    assert workloads.find("resnet50").step_s(workloads.find("resnet50").small) == pytest.approx(
        0.0112
    )


def sample(
    loader: str, number: int, accelerators: float | None, rate: float = 100.0
) -> dict[str, Any]:
    return {
        "loader": loader, "round": number, "accelerators": accelerators, "free": {"records_per_s_mean": rate},
        "tries": [{"core_s": 3.0, "records": 500}, {"core_s": 1.0, "records": 300}],
    }  # fmt: skip


WORK = {
    "title": "UNet3D, NPZ", "origin": "somewhere", "required": 0.9, "files": 1680, "batch_size": 7, "step_s": 0.0107,
    "absent": {"native_dali": "DALI reads no NPZ"},
    "date": "2026-11-26T01:00:00", "command": "python -m benchmarks.dlio", "took_s": 125,
    "versions": {"python": "3.11"},
    "machine": {
        "cpu": "EPYC", "cores": 2, "memory_gib": 23.5, "load_at_start": [1.5, 1, 1], "load_at_end": [2.5, 2, 2],
    },
    "settings": {"rounds": 2, "epochs": 1, "ranks": 1},
    "samples": [
        sample("pytorch", 0, 0.5), sample("gpuload", 0, 1.0, 300), sample("synthetic", 0, 80.0, 90_000),
        sample("pytorch", 1, 0.8), sample("gpuload", 1, 2.0, 500), sample("synthetic", 1, 80.0, 90_000),
        {"loader": "dali", "round": 0, "tries": [], "failed": "exit status 1: no such thing"},
        sample("tensorflow", 0, None),
    ],
}  # fmt: skip


def test_a_ratio_is_taken_within_a_round() -> None:
    assert page.ratios(WORK["samples"], "pytorch") == [2.0, 2.5]
    assert page.ratios(WORK["samples"], "dali") == []


def test_the_table_is_per_core_with_the_median_and_the_range() -> None:
    lines = page.table(WORK)

    assert lines[0] == "## UNet3D, NPZ: AU of 0.90"
    assert (
        lines[2] == "1,680 files, batches of 7, a step of one accelerator takes 10.7 ms. somewhere."
    )
    assert lines[6:] == [
        "| **gpuload** | 0.75 (0.5 to 1) | - | 400 | 5 | `benchmarks.dlio.loader` |",
        "| dali | - | - | - | - | failed: exit status 1: no such thing |",
        "| pytorch | 0.325 (0.25 to 0.4) | 2.25 (2 to 2.5) x | 100 | 5 | torch's DataLoader, a worker process a core |",
        "| tensorflow | - | - | - | - | the utilisation did not settle |",
        "| synthetic | 40 (40 to 40) | - | 90,000 | 5 | no file is read: what DLIO itself can do here |",
        "| native_dali | - | - | - | - | DALI reads no NPZ |",
        "",
        "`python -m benchmarks.dlio`, 2026-11-26, 2 minutes: 2 rounds, 1 rank. EPYC, 2 cores, 23.5 GiB; load at the "
        "start 1.5, at the end 2.5. python 3.11.",
    ]


def test_a_new_result_stands_beside_those_of_other_workloads(tmp_path: Path) -> None:
    program.write_results("cosmoflow", WORK | {"title": "CosmoFlow"}, tmp_path)
    program.write_results("unet3d", WORK | {"title": "UNet3D"}, tmp_path)
    program.write_results("cosmoflow", WORK | {"title": "CosmoFlow again"}, tmp_path)

    headings = [
        line for line in (tmp_path / "dlio.md").read_text().splitlines() if line.startswith("## ")
    ]
    assert headings == ["## UNet3D: AU of 0.90", "## CosmoFlow again: AU of 0.90"]


# What follows runs DLIO's own classes: its configuration, its base class of loaders, its readers.

NUM_FILES, SIDE = 11, 24


def write_files(folder: Path, format_name: str) -> list[str]:
    """Write files as DLIO's generators lay them out, whose record i is i times 20 everywhere;
    return their paths."""
    from PIL import Image

    paths = [
        str(folder / f"img_{number:02d}_of_{NUM_FILES}.{format_name}")
        for number in range(NUM_FILES)
    ]
    for number, path in enumerate(paths):
        pixels = np.full((SIDE, SIDE), 20 * number, np.uint8)
        if format_name == "jpeg":
            Image.fromarray(pixels).save(path, format="JPEG")
        elif format_name == "npz":
            np.savez(
                path, x=np.repeat(pixels, number + 1, axis=1)[..., None], y=[0]
            )  # its sides differ
        else:
            write_tfrecord(path, pixels)
    return paths


def write_tfrecord(path: str, pixels: Any) -> None:
    tf = pytest.importorskip("tensorflow", reason="TensorFlow writes the TFRecords")
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[pixels.tobytes()])),
        "size": tf.train.Feature(int64_list=tf.train.Int64List(value=[SIDE])),
    }
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(
            tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
        )


def dlio_loader(
    paths: list[str], format_name: str, rank: int = 0, ranks: int = 1, *, batch_size: int = 2, dataset: str = "train",
    **reader: Any,
) -> Any:  # fmt: skip
    """Return the loader that DLIO makes of a configuration, on one of several ranks.

    The one thing that is not DLIO's own is the rank: it would be that of an MPI process, and is
    told as DLIO tells it to the worker processes of a rank.
    """
    from dlio_benchmark.common.enumerations import DatasetType, FormatType
    from dlio_benchmark.utils.config import ConfigArguments, LoadConfig
    from dlio_benchmark.utils.utility import DLIOMPI
    from omegaconf import OmegaConf

    DLIOMPI.reset()
    ConfigArguments.reset()
    DLIOMPI.get_instance().set_parent_values(rank, ranks)
    args = ConfigArguments.get_instance()
    train = {"seed_change_epoch": reader.pop("seed_change_epoch", True), "seed": 7, "epochs": 2}
    config = {
        "framework": "pytorch", "workflow": {"train": True}, "train": train,
        "dataset": {"format": format_name, "record_length": SIDE * SIDE, "num_samples_per_file": 1},
        "reader": {
            "data_loader": "custom", "data_loader_classname": workloads.LOADER_CLASS, "data_loader_sampler": "none",
            "batch_size": batch_size, "batch_size_eval": 3, "read_threads": 2, **reader,
        },
    }  # fmt: skip
    LoadConfig(args, OmegaConf.create(config))
    args.derive_configurations(*((paths, []) if dataset == "train" else ([], paths)))
    assert args.data_loader_class is not None, "DLIO did not find the class"
    loader = args.data_loader_class(FormatType(format_name), DatasetType(dataset), 1)
    loader.read()
    return loader


def records(batch: Any) -> list[int]:
    """Return the numbers of the records in a batch."""
    return [round(float(np.mean(image)) / 20) for image in batch]


@pytest.fixture
def dlio() -> Any:
    return pytest.importorskip("dlio_benchmark", reason=NEEDED)


@pytest.mark.parametrize("format_name", ["npz", "jpeg", "tfrecord"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_ranks_of_an_epoch_have_every_record_of_whole_batches_once(
    dlio: Any, tmp_path: Path, format_name: str, ranks: int
) -> None:
    paths = write_files(tmp_path, format_name)
    loaders = [
        dlio_loader(paths, format_name, rank, ranks, sample_shuffle="seed") for rank in range(ranks)
    ]

    epochs = [[[records(batch) for batch in loader.next()] for loader in loaders] for _ in range(2)]

    num_steps = NUM_FILES // (
        2 * ranks
    )  # as DLIO computes its steps; an incomplete one is left out
    orders = [[number for rank in epoch for batch in rank for number in batch] for epoch in epochs]
    assert all(len(batch) == 2 for epoch in epochs for rank in epoch for batch in rank)
    assert all(len(rank) == num_steps for epoch in epochs for rank in epoch)
    assert all(len(set(order)) == len(order) == num_steps * 2 * ranks for order in orders)
    assert orders[0] != orders[1]
    assert all(order != sorted(order) for order in orders)


def test_the_order_is_that_of_the_seed_and_the_epoch_on_any_number_of_ranks(
    dlio: Any, tmp_path: Path
) -> None:
    paths = write_files(tmp_path, "npz")

    whole = [
        records(batch)
        for batch in dlio_loader(paths, "npz", batch_size=4, sample_shuffle="seed").next()
    ]
    parts = [
        [
            records(batch)
            for batch in dlio_loader(paths, "npz", rank, 2, sample_shuffle="seed").next()
        ]
        for rank in range(2)
    ]

    assert [first + second for first, second in zip(*parts, strict=True)] == whole


def test_without_a_shuffle_the_records_come_in_the_order_of_the_files(
    dlio: Any, tmp_path: Path
) -> None:
    loader = dlio_loader(write_files(tmp_path, "jpeg"), "jpeg", batch_size=5)

    assert [records(batch) for batch in loader.next()] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_the_shuffle_of_files_is_one_of_records_too(dlio: Any, tmp_path: Path) -> None:
    loader = dlio_loader(write_files(tmp_path, "jpeg"), "jpeg", batch_size=11, file_shuffle="seed")

    (batch,) = [records(batch) for batch in loader.next()]

    assert batch != sorted(batch) == list(range(NUM_FILES))


def test_a_seed_that_stays_gives_every_epoch_the_same_order(dlio: Any, tmp_path: Path) -> None:
    paths = write_files(tmp_path, "npz")
    loader = dlio_loader(paths, "npz", sample_shuffle="seed", seed_change_epoch=False)

    first, second = ([records(batch) for batch in loader.next()] for _ in range(2))

    assert first == second


def test_an_epoch_that_is_left_at_its_last_batch_is_followed_by_the_next_one(
    dlio: Any, tmp_path: Path
) -> None:
    """DLIO leaves its loop so, and what stands behind the last ``yield`` is never run."""
    paths = write_files(tmp_path, "npz")
    loader, whole = (dlio_loader(paths, "npz", sample_shuffle="seed") for _ in range(2))

    left = [
        [records(next(batches)) for _ in range(5)] for batches in (loader.next(), loader.next())
    ]

    assert left == [[records(batch) for batch in whole.next()] for _ in range(2)]


def test_evaluation_has_its_own_files_and_batch_size(dlio: Any, tmp_path: Path) -> None:
    loader = dlio_loader(write_files(tmp_path, "npz"), "npz", dataset="valid")

    assert [records(batch) for batch in loader.next()] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_the_decoded_records_are_those_that_dlios_readers_decode(dlio: Any, tmp_path: Path) -> None:
    from dlio_benchmark.common.enumerations import DatasetType
    from dlio_benchmark.reader.image_reader import ImageReader
    from dlio_benchmark.reader.npz_reader import NPZReader
    from PIL import Image

    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (SIDE, SIDE), np.uint8)).save(tmp_path / "noise.jpeg")
    np.savez(tmp_path / "noise.npz", x=rng.integers(0, 255, (30, 20, 1), np.uint8), y=[0])

    for name, reader in (("jpeg", ImageReader), ("npz", NPZReader)):
        path = str(tmp_path / f"noise.{name}")
        (batch,) = dlio_loader([path], name, batch_size=1).next()
        expected = reader(DatasetType.TRAIN, 0, 1).open(path)
        assert batch[0].dtype == expected.dtype == np.uint8
        assert batch[0].shape == ((SIDE, SIDE, 3) if name == "jpeg" else (30, 20, 1))
        for channel in range(batch[0].shape[2]):  # those of a gray JPEG are equal
            np.testing.assert_array_equal(batch[0][..., channel], np.squeeze(expected))


def test_images_of_several_sizes_come_as_they_are(dlio: Any, tmp_path: Path) -> None:
    from dlio_benchmark.common.enumerations import FormatType
    from dlio_benchmark.utils.config import ConfigArguments
    from PIL import Image

    sides = [16, 24, 40]
    paths = [str(tmp_path / f"{side}.jpeg") for side in sides]
    for side, path in zip(sides, paths, strict=True):
        Image.fromarray(np.full((side, SIDE), 40, np.uint8)).save(path)
    loader = dlio_loader(paths, "jpeg", batch_size=3)
    ConfigArguments.get_instance().record_length_stdev = 100
    loader.read()

    (batch,) = loader.next()

    assert loader.format_type is FormatType.JPEG
    assert [image.shape for image in batch] == [(side, SIDE, 3) for side in sides]


@pytest.mark.parametrize(
    ("reader", "format_name", "words"),
    [
        ({"preprocess_time": 0.1}, "npz", "DLIO's readers sleep for that"),
        ({}, "csv", "GpuloadDataLoader reads npz, jpeg and tfrecord"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_an_error(
    dlio: Any, tmp_path: Path, reader: dict[str, Any], format_name: str, words: str
) -> None:
    from gpuload.errors import SpecError

    with pytest.raises(SpecError, match=words):
        dlio_loader(write_files(tmp_path, "npz"), format_name, **reader)

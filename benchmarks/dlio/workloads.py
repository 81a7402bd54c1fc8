"""The emulated trainings and their loaders, as configurations of DLIO.

Sizes    `FULL` is the workload as its origin describes it. `SMALL` has smaller records (UNet3D) or
         smaller batches (ResNet-50), and fewer files, so that all files take 2 GB; the time of a
         training step shrinks with the bytes of a batch, so that an accelerator asks for as many
         bytes a second as in `FULL`
Content  DLIO writes noise: JPEGs of gray noise take about as many bytes as they have pixels
Files    one record in each: DLIO's configuration of ResNet-50 has TFRecords of 1,251 images; here
         each is a JPEG
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFETCH = 2  # DLIO's default
SEED = 123  # DLIO's default
LOADER_CLASS = "benchmarks.dlio.loader.GpuloadDataLoader"
OWN_LOADERS = ("pytorch", "tensorflow", "dali", "native_dali")
SYNTHETIC = "synthetic"  # DLIO's loader that reads nothing
LOADERS = ("gpuload", *OWN_LOADERS, SYNTHETIC)
# Why DLIO has no such loader; the texts of its exceptions are longer and say the same.
NO_TFRECORD = "DLIO has none: its reader of TFRecords is tf.data"
NO_NPZ = "DLIO has none: DALI reads no NPZ"


@dataclass(frozen=True)
class Size:
    """How much of a workload is done.

    Attributes:
        record_share: the size of a record, as a share of that in the workload's description.
        batch_share: the same of a batch.
        num_files: how many files there are; None for as many as the workload has.
        epochs: of a training. With DALI's own readers DLIO makes a new pipeline in the second,
            which DALI 2.4 refuses.
    """

    record_share: float = 1.0
    batch_share: float = 1.0
    num_files: int | None = None
    epochs: int = 1


FULL = Size()


@dataclass(frozen=True)
class Workload:
    """A training of DLIO.

    Attributes:
        origin: whose configuration the numbers are from.
        record_length: bytes of an array or a TFRecord; pixels of a JPEG.
        record_length_stdev: DLIO draws both sides of a record from it.
        record_length_resize: bytes of what DLIO's own loaders hand out for a record; 0 for those of
            an average record.
        computation_s: seconds of a training step of one accelerator.
        required: the utilisation that an accelerator has to have.
        small: the size of a short run.
        absent: the loaders that DLIO does not have for this format, with the reason.
        shuffle_size: records of the buffer in which TensorFlow's and DALI's own readers shuffle.
    """

    name: str
    title: str
    origin: str
    framework: str
    format: str
    num_files: int
    record_length: float
    record_length_stdev: float
    record_length_resize: int
    batch_size: int
    computation_s: float
    required: float
    small: Size
    absent: dict[str, str]
    shuffle_size: int = 1024  # DLIO's default

    def files(self, size: Size) -> int:
        """Return the number of files."""
        return size.num_files or self.num_files

    def batch(self, size: Size) -> int:
        """Return the batch size."""
        return max(1, round(self.batch_size * size.batch_share))

    def step_s(self, size: Size) -> float:
        """Return the seconds of a training step of one accelerator."""
        return self.computation_s * size.record_share * self.batch(size) / self.batch_size

    def framework_of(self, loader: str) -> str:
        """Return the framework that DLIO is told: TensorFlow's loader needs its own, the others run
        beside either."""
        return loader if loader in ("pytorch", "tensorflow") else self.framework


WORKLOADS = (
    Workload(
        name="unet3d",
        title="UNet3D, NPZ",
        origin="unet3d_h100.yaml of dlio-benchmark 2.0.0",
        framework="pytorch",
        format="npz",
        num_files=168,
        record_length=146_600_628,
        record_length_stdev=68_341_808,
        record_length_resize=2_097_152,
        batch_size=7,
        computation_s=0.323,
        required=0.90,
        small=Size(record_share=1 / 30, epochs=4),  # its 168 files are read in a fifth of a second
        absent={"native_dali": NO_NPZ},
    ),
    Workload(
        name="retinanet",
        title="RetinaNet, JPEG",
        origin="retinanet_h100.yaml as published elsewhere: dlio-benchmark 2.0.0 has none",
        framework="pytorch",
        format="jpeg",
        num_files=1_743_042,
        record_length=153_600,
        record_length_stdev=51_200,
        record_length_resize=0,
        batch_size=16,
        computation_s=0.180,
        required=0.90,
        small=Size(num_files=800),
        absent={},
    ),
    Workload(
        name="resnet50",
        title="ResNet-50, JPEG",
        origin="resnet50_h100.yaml of dlio-benchmark 2.0.0, each record in a file of its own",
        framework="pytorch",
        format="jpeg",
        num_files=1_281_024,
        record_length=114_660,
        record_length_stdev=0,
        record_length_resize=150_528,
        batch_size=400,
        computation_s=0.224,
        required=0.90,
        small=Size(batch_share=1 / 20, num_files=800),
        absent={},
    ),
    Workload(
        name="cosmoflow",
        title="CosmoFlow, TFRecord",
        origin="cosmoflow_h100.yaml of dlio-benchmark 2.0.0",
        framework="tensorflow",
        format="tfrecord",
        num_files=524_288,
        record_length=2_828_486,
        record_length_stdev=71_311,
        record_length_resize=0,
        batch_size=1,
        computation_s=0.0035,
        required=0.70,
        small=Size(num_files=256),
        absent={"pytorch": NO_TFRECORD, "dali": NO_TFRECORD},
        shuffle_size=2,
    ),
)
NAMES = tuple(workload.name for workload in WORKLOADS)


def find(name: str) -> Workload:
    """Return the workload of a name."""
    return WORKLOADS[NAMES.index(name)]


def generation(workload: Workload, size: Size, data: Path, out: Path) -> dict[str, Any]:
    """Return DLIO's configuration for writing the files of a workload."""
    return {
        "model": workload.name,
        "framework": workload.framework,
        "workflow": {"generate_data": True, "train": False},
        "dataset": _dataset(workload, size, data),
        "output": {"folder": str(out)},
    }


def training(
    workload: Workload,
    size: Size,
    data: Path,
    out: Path,
    *,
    loader: str,
    step_s: float,
    num_threads: int,
) -> dict[str, Any]:
    """Return DLIO's configuration for a training.

    Args:
        workload: what is trained.
        size: how much of it.
        data: the folder of the files.
        out: the folder for DLIO's results.
        loader: one of `LOADERS`.
        step_s: seconds of a training step; 0 for a training that computes nothing.
        num_threads: threads or worker processes of the loader.
    """
    reader = {
        "data_loader": loader,
        "batch_size": workload.batch(size),
        "read_threads": num_threads,
        "computation_threads": num_threads,
        "prefetch_size": PREFETCH,
        "file_shuffle": "seed",
        "sample_shuffle": "seed",
        "shuffle_size": workload.shuffle_size,
    }
    if (loader, workload.format) == ("native_dali", "jpeg"):
        reader |= {
            "file_shuffle": "off",
            "sample_shuffle": "off",
        }  # DLIO asks DALI for two shuffles, which it refuses
    if loader == "gpuload":
        reader |= {
            "data_loader": "custom",
            "data_loader_classname": LOADER_CLASS,
            "data_loader_sampler": "none",
        }
    return {
        "model": workload.name,
        "framework": workload.framework_of(loader),
        "workflow": {"generate_data": False, "train": True},
        "dataset": _dataset(workload, size, data),
        "reader": reader,
        "train": {"epochs": size.epochs, "computation_time": step_s, "seed": SEED},
        "metric": {"au": workload.required},
        "output": {"folder": str(out)},
    }


def _dataset(workload: Workload, size: Size, data: Path) -> dict[str, Any]:
    return {
        "data_folder": str(data),
        "format": workload.format,
        "num_files_train": workload.files(size),
        "num_samples_per_file": 1,
        "record_length": workload.record_length * size.record_share,
        "record_length_stdev": workload.record_length_stdev * size.record_share,
        "record_length_resize": round(workload.record_length_resize * size.record_share),
    }

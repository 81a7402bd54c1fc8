"""The guides by what people have (docs/guides) run, with real files of tests/golden under names of
their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests import codeblocks

GUIDES = codeblocks.ROOT / "docs" / "guides"
GOLDEN = codeblocks.ROOT / "tests" / "golden"


def cifar(path):
    records = np.random.default_rng(0).integers(0, 256, (200, 3073), np.uint8)
    records[:, 0] %= 10
    records.tofile(path)


def png(path, source):
    image = pytest.importorskip("PIL.Image")
    with image.open(GOLDEN / source) as photo:
        photo.save(path)


def mask(path, source):
    """A mask for a photograph: class 7 in its left half."""
    image = pytest.importorskip("PIL.Image")
    with image.open(GOLDEN / source) as photo:
        width, height = photo.size
    image.fromarray(
        np.where(np.arange(width) < width // 2, 7, 0).astype(np.uint8)[None].repeat(height, 0)
    ).save(path)


IDX = "idx/JPG-PNG-to-MNIST-NN-Format/train-"
HOPPER, FLOWER = "images/Pillow/hopper.jpg", "image_formats/webp/Pillow/flower.webp"
FILES = {  # of a guide: the name there, and the file of tests/golden, or a function that writes it and its argument
    "npy": {
        "rows/c.npy": "npy/npyio/data_int32_2x3_corder.npy",
        "rows/fortran.npy": "npy/npyio/data_int32_2x3_forder.npy",
        "clips/a.npy": "npy/npyjs/10-float16.npy",
        "clips/b.npy": lambda path: np.save(path, np.zeros(7, np.float16)),
    },
    "fixed": {
        "cifar-10/data_batch_1.bin": cifar,
        "digits-images": IDX + "images-idx3-ubyte",
        "digits-images.gz": IDX + "images-idx3-ubyte.gz",
        "digits-labels.gz": IDX + "labels-idx1-ubyte.gz",
    },
    "webdataset": {"hopper.jpg": HOPPER},
    "images": {
        "photos/flower/flower.webp": FLOWER,
        "photos/person/hopper.jpg": HOPPER,
        "photos/person/hopper.bmp": "image_formats/bmp/Pillow/hopper_rle8.bmp",
        "photos/animal/cat.webp": "image_formats/webp/nvImageCodec/cat-lossy-2184682_640_no_orientation.webp",
        "all/flower.webp": FLOWER,
        "all/hopper.jpg": HOPPER,
        "all/hopper.png": lambda path: png(path, HOPPER),
    },
    "tfrecord": {
        "penguins-0.tfrecord.gz": "tfrecord/tfx/data_tfrecord-00000-of-00001.gz",
        "squad.tfrecord": "tfrecord/trax/squad-train.tfrecord-00000-of-00001",
    },
    "csv": {"tips.csv": "csv/datasets/tips.csv"},
    "hdf5": {
        "train.h5": "hdf5/h5py-latest.h5",
        "train.zarr": "zarr/zarr-3.zarr",
        "t2m.nc": lambda path: dataset(
            path, "t2m", PACKED, scale_factor=0.01, add_offset=273.15, _FillValue=PACKED[2]
        ),
        "samples.mat": lambda path: dataset(
            path, "X", np.zeros((4, 100)), MATLAB_class=np.bytes_("double")
        ),
    },
    "parquet": {"days.parquet": "parquet/polars.parquet"},
    "masks-and-boxes": {
        "photos/a.jpg": HOPPER,
        "photos/b.jpg": "images/Pillow/hopper_gray.jpg",
        "masks/a.png": lambda path: mask(path, HOPPER),
        "masks/b.png": lambda path: mask(path, "images/Pillow/hopper_gray.jpg"),
    },
    "text": {
        "licence.txt": "../../LICENSE",
        "de-en.tfrecord": "tfrecord/trax/para_crawl-train.tfrecord-00000-of-00001",
    },
    "series": {
        "sine.npy": "npy/npy-matlab/matlab_sine_int16.npy",
        "airline.csv": "csv/io/airline-passengers.csv",
    },
}
PACKED = np.array([100, 200, -32767], np.int16)
NEEDS = {
    "images": "PIL",
    "masks-and-boxes": "PIL",
    "csv": "pyarrow",
    "hdf5": "zarr",
    "series": "pyarrow",
}


def dataset(path, name, values, **attributes):
    """Write a file of HDF5 of one dataset."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=values).attrs.update(attributes)


def prepare(guide):
    """Put the files of a guide into the working folder."""
    for name, origin in FILES[guide].items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        if callable(origin):
            origin(name)
        else:
            (shutil.copytree if (GOLDEN / origin).is_dir() else shutil.copy)(GOLDEN / origin, name)


@pytest.mark.parametrize("guide", FILES)
def test_a_guide_runs_and_prints_what_it_says(guide, tmp_path, monkeypatch):
    if guide in NEEDS:
        pytest.importorskip(NEEDS[guide])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    prepare(guide)
    page = GUIDES / f"{guide}.md"

    codeblocks.run(page, codeblocks.blocks_of(page), {}, tmp_path)


def test_each_guide_is_run():
    assert {page.stem for page in GUIDES.glob("*.md")} == set(FILES)
    assert [page.name for page in GUIDES.glob("*.md") if codeblocks.without_comment(page)] == []

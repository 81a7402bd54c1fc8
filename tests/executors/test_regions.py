"""Where a crop follows a decode, only its region is decoded, and the pixels are those of the whole
image."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpuload import ops
from gpuload.executors.array import ArrayRowExecutor
from gpuload.executors.dali.executor import load, regions
from gpuload.executors.dali.program import Program
from gpuload.graph.graph import compile_ops, image_sizes
from gpuload.images import decode, head
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from gpuload.testing.ops import assert_identical, dali_form

FILES = Spec((Field("image", np.dtype(np.uint8), (None,), encoded=True),))
GOLDEN = Path(__file__).parents[1] / "golden" / "images"
CHAINS = {
    "crop": [ops.Decode(), ops.RandomCrop(1, 2, pad=1)],
    "crop beyond the image": [
        ops.Decode(),
        ops.RandomCrop(40, 50, pad=40, fill=9),
        ops.RandomFlip(),
    ],
    "one pixel": [ops.Decode(), ops.RandomCrop(1)],
    "gray crop": [ops.Decode("GRAY"), ops.RandomCrop(3, 3, pad=2)],
    "box": [ops.Decode(), ops.RandomResizedCrop(9, 11), ops.RandomFlip(), ops.Normalize(1, 2)],
}


def readable(path):
    """Return True if the file is an image that is decoded."""
    data = np.fromfile(path, np.uint8)
    try:
        decode.decode(data, head.read(data), "RGB")
    except (head.HeadError, decode.ImageError):
        return False
    return True


IMAGES = sorted(
    path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix != ".md" and readable(path)
)


def cases(chain, path):
    """Return a graph, the same graph without regions, some copies of a file, and the draws of both
    graphs."""
    graph = compile_ops(FILES, chain)
    plain = replace(graph, crops=(None,) * len(chain))
    files = [np.fromfile(path, np.uint8)] * 4
    sizes = {"image": image_sizes(FILES["image"], files, 4)}
    return (
        graph,
        plain,
        files,
        *(
            variant.draw(seed=7, epoch=0, records=np.arange(4), sizes=sizes)
            for variant in (graph, plain)
        ),
    )


def by_rows(graph, files, draws):
    return ArrayRowExecutor(graph).run({"image": files}, draws, {})["image"]


def test_there_are_images_of_both_kinds():
    assert {head.read(np.fromfile(path, np.uint8)).kind for path in IMAGES} == {"jpeg", "png"}
    assert len(IMAGES) > 30


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_a_region_has_the_pixels_of_the_whole_image_in_both_executors(chain, path):
    graph, plain, files, draws, plain_draws = cases(chain, path)

    regions, whole = by_rows(graph, files, draws), by_rows(plain, files, plain_draws)
    dali_regions, dali_whole = (
        dali_form(graph, files, draws, "cpu"),
        dali_form(plain, files, plain_draws, "cpu"),
    )

    assert graph.crops[0] == 1
    assert_identical(regions, whole)
    assert_identical(dali_regions, dali_whole)
    if isinstance(chain[1], ops.RandomCrop):
        assert_identical(regions, dali_regions)
    else:  # DALI's CPU rounds exact halves of resized bytes away from zero in the last pixels of a row: 1 level, by 2
        assert np.abs(regions - dali_regions).max() <= 0.5


@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_single_columns_and_rows_have_the_colours_of_the_whole_image(sampling, orientation):
    exif = Image.Exif()
    exif[0x112] = orientation
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (17, 19, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "JPEG", subsampling=sampling, exif=exif)
    files = [np.frombuffer(file.getvalue(), np.uint8)] * 60
    graph = compile_ops(FILES, [ops.Decode(), ops.RandomCrop(1)])
    draws = graph.draw(
        seed=0,
        epoch=0,
        records=np.arange(60),
        sizes={"image": image_sizes(FILES["image"], files, 60)},
    )
    whole = decode.decode(files[0], head.read(files[0]), "RGB")

    images = by_rows(graph, files, draws)

    top, left = (draws[0]["start"] + draws[1]["start"]).T
    assert (left == 0).any()
    np.testing.assert_array_equal(images[:, 0, 0], whole[top, left])
    assert_identical(images, dali_form(graph, files, draws, "cpu"))


def operators(graph, device_id):
    """Return the names of the operators between the inputs and the outputs of a graph in DALI; no
    GPU is needed."""
    dali = load("cpu")
    program = Program(dali, graph, device_id)
    pipeline = dali.pipeline.Pipeline(1, 1, device_id, exec_dynamic=True, prefetch_queue_depth=1)
    with pipeline:
        left = list(
            program.nodes({source.name: source.node(dali) for source in program.inputs}).values()
        )
    names = set()
    while left:
        operator = left.pop().source
        names.add(operator.name.strip("_").rpartition("_")[0])
        left += operator.inputs
    return names


def test_on_a_gpu_whole_images_are_decoded_and_cut_there_which_describe_says():
    graph = compile_ops(FILES, CHAINS["box"])

    assert "ImageSlice" in operators(graph, None)
    assert "ImageSlice" not in operators(graph, 0)
    assert {"Image", "Slice"} <= operators(graph, 0)
    assert regions(graph, "cpu") == {"regions": "decoded alone"}
    assert "nvImageCodec 0.9.0" in regions(graph, "gpu:1")["regions"]
    assert regions(compile_ops(FILES, [ops.Decode()]), "gpu:0") == {}


def test_only_the_region_is_decoded(monkeypatch):
    graph, _, files, draws, _ = cases(
        CHAINS["box"], next(path for path in IMAGES if path.name == "hopper.jpg")
    )
    decoder_regions = []
    decoded = decode.decode

    def noted(data, header, mode, region=None, **options):
        decoder_regions.append(region)
        return decoded(data, header, mode, region, **options)

    monkeypatch.setattr(decode, "decode", noted)

    by_rows(graph, files, draws)

    starts, shapes = draws[0]["start"].tolist(), draws[0]["shape"].tolist()
    assert decoder_regions == [
        (*start, *shape) for start, shape in zip(starts, shapes, strict=True)
    ]
    assert all(height * width < 128 * 128 for height, width in shapes)


def test_a_mask_is_cut_at_the_same_place_as_its_image():
    spec = Spec((FILES["image"], FILES["image"].with_(name="mask")))
    both = ("image", "mask")
    graph = compile_ops(
        spec, [ops.Decode(), ops.Decode("GRAY", on="mask"), ops.RandomCrop(20, on=both)]
    )
    files = Ragged.of(
        [np.fromfile(GOLDEN / "Pillow" / "hopper_gray.jpg", np.uint8)] * 5, np.dtype(np.uint8)
    )
    sizes = dict.fromkeys(both, image_sizes(spec["image"], files, 5))

    results = ArrayRowExecutor(graph).run(
        dict.fromkeys(both, files),
        graph.draw(seed=0, epoch=0, records=np.arange(5), sizes=sizes),
        {},
    )

    assert_identical(results["image"][..., :1], results["mask"])

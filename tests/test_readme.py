"""The code of the README, and of the pages to which its parts go, runs; their tables name what is
there."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from tests import codeblocks, figures, opexamples

README = codeblocks.ROOT / "README.md"
TRAINING = codeblocks.ROOT / "docs" / "training.md"
PAGES = [
    README,
    *(codeblocks.ROOT / "docs" / name for name in ("sources.md", "ops.md", "training.md")),
]
GROUPS = sorted({(page.stem, block.name) for page in PAGES for block in codeblocks.blocks_of(page)})


def cifar(folder):
    """Two files in CIFAR-10's binary layout, a model and a train_step."""
    tf = pytest.importorskip("tensorflow")
    random = np.random.default_rng(0)
    (folder / "cifar-10").mkdir()
    for number in (1, 2):
        records = random.integers(0, 256, (400, 3073), np.uint8)
        records[:, 0] %= 10
        (folder / f"cifar-10/data_batch_{number}.bin").write_bytes(records.tobytes())
    model = tf.keras.Sequential(
        [tf.keras.Input((32, 32, 3)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)]
    )
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def train_step(images, labels):
        assert images.dtype == tf.float32
        assert images.shape[1:] == (32, 32, 3)
        assert labels.dtype == tf.uint8
        model.train_on_batch(images, labels)

    return {"model": model, "train_step": train_step}


def keras(folder):
    """What the blocks above leave behind: a loader and a model."""
    names = cifar(folder)
    blocks = [block for block in codeblocks.blocks_of(TRAINING) if block.name == "cifar"]
    return codeblocks.run(TRAINING, blocks, names, folder)


def photos(folder):
    """Two classes of JPEG files."""
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(33):
            pixels = random.integers(0, 256, (12, 16, 3), np.uint8)
            image.fromarray(pixels).resize((160, 120)).save(
                folder / "photos" / name / f"{number}.jpg"
            )
    return {}


def frameworks(folder):
    """A small loader and a train_step for torch."""
    torch = pytest.importorskip("torch")
    source = gl.arrays(x=np.arange(40, dtype=np.float32).reshape(20, 2), y=np.arange(20))

    def train_step(features, labels):
        assert (type(features), labels.dtype) == (torch.Tensor, torch.int64)

    return {
        "loader": gl.Loader(source, 6, output=("x", "y"), device="cpu"),
        "train_step": train_step,
    }


def rows(folder):
    """Three NPY shards and the labels of their rows."""
    (folder / "shards").mkdir()
    for number in range(3):
        np.save(
            folder / f"shards/{number}.npy",
            np.random.default_rng(number).random((50, 8), np.float32),
        )
    return {"labels": np.arange(150) % 10}


def labels(folder):
    """The photos, and JPEG files in one file of fixed records."""
    photos(folder)
    paths = sorted((folder / "photos").glob("*/*.jpg"))
    for path in paths[2:]:
        path.unlink()
    for number, name in enumerate(("cat", "dog")):
        paths[number].rename(folder / "photos" / name / "0.jpg")
    data = [path.read_bytes() for path in sorted((folder / "photos").glob("*/*.jpg")) * 4]
    np.array([*enumerate(data)], [("label", "<i4"), ("image", "S8192")]).tofile(
        folder / "jpegs.bin"
    )
    (folder / "train.csv").write_text("path,age\ndog/0.jpg,3\ncat/0.jpg,5\ndog/0.jpg,4\n")
    return {}


def names(folder):
    """Folders for scans and masks of organs."""
    (folder / "scans").mkdir()
    (folder / "organs").mkdir()
    return {}


def masks(folder):
    """Photos and masks in memory."""
    random = np.random.default_rng(0)
    return {
        "photos": random.integers(0, 256, (8, 240, 320, 3), np.uint8),
        "masks": random.integers(0, 2, (8, 240, 320, 1), np.uint8) * np.uint8(7),
    }


def formats(folder):
    """Two CSV files, and three of tf.Examples with images."""
    tf, image = pytest.importorskip("tensorflow"), pytest.importorskip("PIL.Image")
    (folder / "people-0.csv").write_text('id,name,age\n7,"Braund, Owen",22\n8,Jane,\n')
    (folder / "people-1.csv").write_text("id,name,age\n9,Anna,38.5\n")
    for name in ("photos-0", "photos-1", "drawings"):
        with tf.io.TFRecordWriter(str(folder / f"{name}.tfrecord")) as writer:
            for number in range(4):
                file = io.BytesIO()
                image.new("RGB", (16, 12), (number, 0, 0)).save(file, "PNG")
                feature = {
                    "image": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[file.getvalue()])
                    ),
                    "label": tf.train.Feature(
                        int64_list=tf.train.Int64List(value=[number + 10 * (name == "drawings")])
                    ),
                    "boxes": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5] * number)),
                }
                writer.write(
                    tf.train.Example(
                        features=tf.train.Features(feature=feature)
                    ).SerializeToString()
                )
    return {}


def volumes(folder):
    """The block makes its own arrays."""
    return {}


PREPARE = {
    "first": volumes,
    "cifar": cifar, "keras": keras, "photos": photos, "frameworks": frameworks, "rows": rows, "labels": labels,
    "names": names, "masks": masks, "formats": formats, "volumes": volumes,
}  # fmt: skip


@pytest.mark.parametrize(("page", "group"), GROUPS, ids=["-".join(pair) for pair in GROUPS])
def test_the_code_of_the_pages_runs(page, group, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = next(path for path in PAGES if path.stem == page)
    names = {"gl": gl, **PREPARE[group](tmp_path)}
    blocks = [block for block in codeblocks.blocks_of(path) if block.name == group]

    codeblocks.run(path, blocks, names, tmp_path)

    if group == "photos":
        assert names["images"].shape == (64, 224, 224, 3)
        assert "device:" in capsys.readouterr().out
    if group == "cifar":
        assert names["again"].step == 3
        assert len(names["loader"]) == 6
    if group == "rows":
        assert len(names["pairs"]) == len(names["more"]) == 150
        assert len(names["low"]) == 75
    if group == "labels":
        assert [names["by_file"][number]["label"] for number in range(2)] == [3, 5]
        assert next(iter(names["images"]))["image"].shape == (4, 64, 64, 3)
        assert names["pairs"].read(range(3), "age")["age"].tolist() == [3, 5, 4]
    if group == "names":
        scans = names["pairs"].read(range(11))
        assert (
            scans["scan"][:, 0, 0].tolist()
            == scans["organ"][:, 0, 0].tolist()
            == [1, 10, 11, 12, 2, 3, 4, 5, 6, 8, 9]
        )
    if group == "formats":
        assert names["kept"].read([2, 0, 1])["age"].tolist() == [38.5, 22, 0]
        loader = gl.Loader(names["mixed"], 8, output="label")
        labels = [label for _ in range(8) for (labels,) in loader for label in labels]
        assert sum(label >= 10 for label in labels) == len(labels) // 4 == 24
    if group == "masks":
        image, mask = next(iter(names["loader"]))
        assert (image.shape, image.dtype) == ((4, 224, 224, 3), np.float32)
        assert set(np.unique(mask)) == {0, 7}


def test_every_block_of_python_is_run():
    assert [page.stem for page in PAGES if codeblocks.without_comment(page)] == []
    assert {group for _, group in GROUPS} == set(PREPARE)


def test_the_table_of_ops_is_what_their_docstrings_say():
    page = opexamples.PAGE.read_text(encoding="utf-8")
    assert opexamples.table() in page, "write it anew: python -m tests.opexamples"


def test_the_pages_name_every_source():
    pages = [README, *(codeblocks.ROOT / "docs").rglob("*.md")]
    text = "".join(page.read_text() for page in pages if "api" not in page.parts)
    for name in set(gl.__all__) - {"GpuloadError", "ops"}:
        assert re.search(rf"gl\.{name}\b", text), f"no page mentions gl.{name}"


def test_the_first_screen_installs_loads_and_prints():
    line, words = figures.readme()
    assert line <= 25
    assert words <= 700


def test_the_figures_are_those_of_the_results():
    folder = Path(__file__).parent.parent / "benchmarks"
    tables = "".join(
        path.read_text() for path in sorted((folder / "results").rglob("*.md"))
    ).replace("*", "")
    page = (folder / "README.md").read_text()
    quoted = re.findall(r"^\| (?:\*\*)?gpuload.*$", page, re.MULTILINE)
    assert quoted
    for line in quoted:
        assert line.replace("*", "") in tables, f"no results file holds the line {line}"
    results = "".join(
        path.read_text() for path in sorted((folder / "results" / "xeon").glob("*.md"))
    )
    shares = {
        f"{float(share):.2f}"
        for share in re.findall(r"^\| \S+ \| (\d\.\d{3}) \(", results, re.MULTILINE)
    }
    lines = re.findall(r"^\| .* \| (?:\*\*)?\d\.\d\d(?:\*\*)? \| .*$", page, re.MULTILINE)
    assert len(lines) > 10
    for share in re.findall(r"\d\.\d\d", "".join(lines)):
        assert share in shares, f"no results file holds the share {share}"
    text = README.read_text()
    figures = text[text.index("## Measured") : text.index("## More")]
    for rate in re.findall(r"\d+,\d{3}(?:,\d{3})?", figures):
        assert f"| {rate} |" in tables, f"no results file holds the rate {rate}"


def test_the_tests_that_the_promises_name_are_there():
    root = Path(__file__).parent
    defined = {
        name
        for path in (*root.rglob("*.py"), *(root.parent / "gpuload" / "testing").glob("*.py"))
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    names = re.findall(r"`(test_\w+)`", (root.parent / "docs" / "promises.md").read_text())
    assert len(names) > 25
    assert [name for name in names if name not in defined] == []

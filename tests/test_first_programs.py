"""The programs of docs/first-programs run as they stand there, in a folder with files like those
that they name."""

from __future__ import annotations

import gzip
import re
import sqlite3
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests import codeblocks

TABLE = codeblocks.ROOT / "docs" / "first-programs.md"
PAGES = sorted((codeblocks.ROOT / "docs" / "first-programs").glob("*.md"))
PROGRAMS = {block.name: (page, block) for page in PAGES for block in codeblocks.blocks_of(page)}
NEEDS = {
    "cifar": "tensorflow", "convert": "tensorflow", "dali": "nvidia.dali", "hdf5": "h5py", "jax": "jax",
    "layers": "tensorflow", "mnist": "tensorflow", "npz": "tensorflow", "several": "tensorflow", "split": "tensorflow",
    "torch": "torch", "lines": "tensorflow", "steps": "tensorflow", "words": "tensorflow", "photos": "tensorflow",
    "resume": "tensorflow", "workers": "tensorflow", "bfloat": "tensorflow", "tftext": "tensorflow",
    "varying": "tensorflow",
}  # fmt: skip


def write_photos(folder, number_of=4):
    image = pytest.importorskip("PIL.Image")
    for number in range(number_of):
        name = "cat" if number < number_of // 2 else "dog"
        (folder / name).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3), np.uint8)
        image.fromarray(pixels).save(folder / name / f"{number}.jpg")


def write_idx(path, array):
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def samples():
    Path("clips").mkdir()
    for number in range(50):
        np.save(f"clips/{number:03}.npy", np.full((20, 4), number, np.float32))
    Path("labels.txt").write_text("\n".join(map(str, range(50))))


def npz():
    Path("samples").mkdir()
    for number in range(10):
        np.savez(
            f"samples/{number}.npz",
            image=np.full((8, 8, 3), number, np.float32),
            label=np.int64(number),
        )


def pickled():
    Path("samples").mkdir()
    for number in range(6):
        record = {
            "features": np.full((4, 5), number, np.float32),
            "mask": np.zeros((4, 2)),
            "label": number,
        }
        np.save(f"samples/{number}.npy", record, allow_pickle=True)


def windows():
    np.save("series.npy", np.arange(3000, dtype=np.float32).reshape(1000, 3))


def mnist():
    for part, length in (("train", 128), ("t10k", 64)):
        write_idx(Path(f"{part}-images-idx3-ubyte.gz"), np.zeros((length, 28, 28), np.uint8))
        write_idx(Path(f"{part}-labels-idx1-ubyte.gz"), np.arange(length, dtype=np.uint8) % 10)


def cifar():
    Path("cifar-10-batches-bin").mkdir()
    for number in (1, 2):
        records = np.random.default_rng(number).integers(0, 10, (100, 3073), np.uint8)
        records.tofile(f"cifar-10-batches-bin/data_batch_{number}.bin")


def csv():
    lines = ["survived,sex,age,fare", "0,male,22,7.25", "1,female,38,71.28", "1,female,26,7.92", "1,female,35,53.1",
             "0,male,35,8.05", "0,male,,8.46", "0,male,54,51.86", "1,male,,"]  # fmt: skip
    Path("titanic.csv").write_text("\n".join(lines) + "\n")


def masks():
    image = pytest.importorskip("PIL.Image")
    Path("photos").mkdir()
    Path("masks").mkdir()
    for number in range(6):
        random = np.random.default_rng(number)
        image.fromarray(random.integers(0, 256, (80, 100, 3), np.uint8)).save(
            f"photos/{number}.jpg"
        )
        image.fromarray(random.integers(0, 2, (80, 100), np.uint8) * np.uint8(7)).save(
            f"masks/{number}.png"
        )
    np.savetxt("tags.csv", np.eye(6, 3), delimiter=",")


def moments():
    np.random.default_rng(0).integers(0, 256, (300, 193), np.uint8).tofile("pixels.bin")


def words():
    Path("pets.csv").write_text("kind,age\ncat,3\ndog,5\ncat,1\ncat,9\n")


def photos():
    write_photos(Path("photos"))


def more_photos():
    write_photos(Path("photos"), number_of=8)


def damaged():
    more_photos()
    Path("photos/cat/1.jpg").write_bytes(Path("photos/cat/1.jpg").read_bytes()[:300])


def feature(tf, value):
    if isinstance(value[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
    if isinstance(value[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
    return tf.train.Feature(float_list=tf.train.FloatList(value=value))


def features(tf, **values):
    return tf.train.Features(feature={name: feature(tf, value) for name, value in values.items()})


def tftext():
    tf = pytest.importorskip("tensorflow")
    goods = [[(b"lamp", 9.5, 1), (b"a chair, red", 20.0, 2)], [(b"table", 99.0, 3)]]
    for number, rows in enumerate(goods):
        with tf.io.TFRecordWriter(f"goods-{number}.tfrecord") as writer:
            for name, price, count in rows:
                values = features(tf, name=[name], price=[price], count=[count], size=[1.0, 2.0])
                writer.write(tf.train.Example(features=values).SerializeToString())


def varying():
    tf = pytest.importorskip("tensorflow")
    with tf.io.TFRecordWriter("words.tfrecord") as writer:
        for words, places, weights in (([b"to", b"be"], [1, 4], [0.5, 2.0]), ([b"or"], [0], [1.0])):
            values = features(tf, words=words, place=places, value=weights)
            writer.write(tf.train.Example(features=values).SerializeToString())
    with tf.io.TFRecordWriter("frames.tfrecord") as writer:
        for label in range(2):
            steps = [feature(tf, [float(step), 1.0]) for step in range(label + 1)]
            lists = tf.train.FeatureLists(
                feature_list={"frame": tf.train.FeatureList(feature=steps)}
            )
            example = tf.train.SequenceExample(
                context=features(tf, label=[label]), feature_lists=lists
            )
            writer.write(example.SerializeToString())


def lines():
    Path("tweets-0.txt").write_text("the first line\na second line, of any length\n")
    Path("tweets-1.txt").write_text("x" * 349 + "\n\n")


def sequences():
    Path("songs").mkdir()
    for number in range(8):
        np.save(f"songs/{number}.npy", np.full((number + 2, 3), number, np.float32))


def sixteen():
    image = pytest.importorskip("PIL.Image")
    Path("scans").mkdir()
    for number in range(2):
        image.fromarray(np.random.default_rng(number).integers(0, 65536, (20, 24), np.uint16)).save(
            f"scans/{number}.png"
        )


def labels():
    image = pytest.importorskip("PIL.Image")
    Path("train").mkdir()
    for number in range(4):
        image.fromarray(np.full((30, 40, 3), number, np.uint8)).save(f"train/img_{number}.jpg")
    names = ("cat", "dog", "cat", "dog")
    Path("labels.csv").write_text(
        "id,label\n" + "".join(f"img_{n},{names[n]}\n" for n in (2, 0, 3, 1))
    )
    Path("train.csv").write_text(
        "id,breed,x,y\n" + "".join(f"img_{n},b,{n + 0.5},{n + 8}\n" for n in (1, 3, 0, 2))
    )


def bfloat_npy():
    types = pytest.importorskip("ml_dtypes")
    np.save("rows.npy", np.repeat(np.arange(8), 4).reshape(8, 4).astype(types.bfloat16))


def bfloat():
    pytest.importorskip("ml_dtypes")
    np.zeros((8, 17), np.uint8).tofile("rows.bin")


def convert():
    Path("points.csv").write_text("x,label\n0.5,0\n1.5,1\n2.5,0\n")


def hdf5():
    h5py = pytest.importorskip("h5py")
    with h5py.File("data.h5", "w") as file:
        file["x"], file["y"] = np.arange(10)[:, None] * [1, 1, 1], np.arange(10)


def database():
    with sqlite3.connect("data.sqlite") as file:
        file.execute("CREATE TABLE points (id INTEGER PRIMARY KEY, x REAL, y INTEGER)")
        file.executemany("INSERT INTO points VALUES (?, ?, ?)", [(i, i / 2, i) for i in range(10)])


def parquet():
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(
        arrow.table({"x": np.arange(3.0), "y": np.arange(3)}), "data.parquet"
    )


def tar():
    write_photos(Path("in"))
    with tarfile.open("photos.tar", "w") as archive:
        for name in ("cat", "dog"):
            archive.add(f"in/{name}", name)


PREPARE = {
    "samples": samples, "npz": npz, "windows": windows, "mnist": mnist, "cifar": cifar, "csv": csv, "masks": masks,
    "moments": moments, "dali": photos, "convert": convert, "hdf5": hdf5, "parquet": parquet, "tar": tar,
    "database": database,
    "pickled": pickled, "sequences": sequences, "cached": more_photos, "lines": lines,
    "tftext": tftext, "varying": varying,
    "words": words, "photos": more_photos, "damaged": damaged, "sixteen": sixteen, "bfloat": bfloat,
    "untyped": bfloat_npy, "labels": labels,
}  # fmt: skip


def run_program(name, folder, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(folder)
    PREPARE.get(name, lambda: None)()

    page, block = PROGRAMS[name]
    codeblocks.run(page, [block], {}, folder)


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
)  # of h5py
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "photos" else ())
        for name in sorted(PROGRAMS)
    ],
)
def test_a_first_program_runs_and_prints_what_the_page_says(name, tmp_path, monkeypatch):
    run_program(name, tmp_path, monkeypatch)


def test_the_program_with_a_pretrained_network_runs_with_a_small_one(tmp_path, monkeypatch):
    keras = pytest.importorskip("keras")

    def small(shape, *, alpha, include_top, pooling, weights):
        return keras.Sequential([keras.Input(shape), keras.layers.GlobalAveragePooling2D()])

    monkeypatch.setattr(keras.applications, "MobileNetV2", small)

    run_program("photos", tmp_path, monkeypatch)


def test_each_program_stands_alone():
    assert sum(len(codeblocks.blocks_of(page)) for page in PAGES) == len(
        PROGRAMS
    )  # no two have one name
    assert set(PREPARE) | set(NEEDS) <= set(PROGRAMS)
    assert [
        name for name, (_, block) in PROGRAMS.items() if "import gpuload as gl\n" not in block.code
    ] == []


def test_every_program_is_in_the_table():
    links = re.findall(r"\]\(first-programs/([^)]+)\)", TABLE.read_text(encoding="utf-8"))
    anchors = [f"{page.name}#{anchor}" for page in PAGES for anchor in _anchors(page)]
    assert sorted(links) == sorted(anchors)


def _anchors(page):
    titles = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [title.lower().replace(",", "").replace(" ", "-") for title in titles]

"""What the user says of fields that files do not say: encoded images, which axis is which."""

from __future__ import annotations

import gc
import io
import pickle

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload.errors import RecordError, SpecError, UnknownFieldError
from gpuload.formats.fixed.source import fixed
from gpuload.formats.npy.source import npy
from gpuload.sources.arrays import arrays
from gpuload.testing.sources import SourceContract
from tests import imagefiles, simdevice

FILES = [
    imagefiles.png(3 + number, 4) if number % 2 else imagefiles.jpeg(8, 8 + number)
    for number in range(6)
]
LONGEST = max(map(len, FILES))
VECTORS = np.array([np.frombuffer(file.ljust(LONGEST, b"\0"), np.uint8) for file in FILES])
LABELS = np.arange(6) * 2
PIXELS = [np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in FILES]
IMAGES = [np.frombuffer(file, np.uint8) for file in FILES]


class TestBytesOfOneLength(SourceContract):
    """With fields of one length before and behind them in the record."""

    def table(self):
        dtype = [
            ("label", ">i4"),
            ("image", f"S{LONGEST}"),
            ("weight", "<f4"),
            ("small", "u1", (LONGEST,)),
        ]
        table = np.zeros(6, dtype)
        table["label"], table["image"], table["weight"], table["small"] = (
            LABELS,
            FILES,
            LABELS / 4,
            VECTORS,
        )
        return table

    def open(self, folder):
        (folder / "all.bin").write_bytes(self.table().tobytes())
        return fixed(folder / "all.bin", self.table().dtype).mark(image="encoded", small="encoded")

    def open_other(self, folder):
        (folder / "all.bin").write_bytes(self.table().tobytes())
        return fixed(folder / "all.bin", self.table().dtype).mark(image="encoded")

    def expected(self):
        weights = (LABELS / 4).astype("f4")
        return {"label": LABELS.astype("i4"), "image": IMAGES, "weight": weights, "small": IMAGES}


class TestVectorsInMemoryOfWhichSomeWereChosen(SourceContract):
    def open(self, folder):
        return arrays(image=VECTORS, label=LABELS)[::-1].mark(image="encoded").select([1, 0, 4, 3])

    def open_other(self, folder):
        return arrays(image=VECTORS, label=LABELS)[::-1].mark(image="encoded").select([1, 0, 4, 2])

    def expected(self):
        return {"image": [IMAGES[i] for i in (4, 5, 1, 2)], "label": LABELS[[4, 5, 1, 2]]}


class TestMarkedOfDifferentGroups(SourceContract):
    """Parts of a concatenation in which each field is a group of its own, of one leaf with picks
    and one without."""

    def open(self, folder):
        table = np.zeros(2, [("image", f"S{LONGEST}"), ("label", "i8")])
        table["image"], table["label"] = FILES[:2], LABELS[:2]
        apart = arrays(image=np.array(FILES[2:], f"S{LONGEST}"), label=LABELS[2:])
        return gl.concat(arrays(table=table), apart).mark(image="encoded")

    def open_other(self, folder):
        return self.open(folder)[1:]

    def expected(self):
        return {"image": IMAGES, "label": LABELS}


class TestElementsApart(SourceContract):
    """The bytes of a vector are one field of an array of structures."""

    def open(self, folder):
        table = np.zeros((6, LONGEST), [("other", "u1"), ("byte", "u1")])
        table["byte"] = VECTORS
        np.save(folder / "a.npy", table)
        return npy(folder / "a.npy").mark(byte="encoded")

    def open_other(self, folder):
        return self.open(folder)[1:]

    def expected(self):
        return {"other": np.zeros_like(VECTORS), "byte": IMAGES}


class TestFilesOfVectors(SourceContract):
    def open(self, folder):
        for number, image in enumerate(IMAGES):
            np.save(folder / f"{number}.npy", image)
        return npy(f"{folder}/*.npy", field="image", record="file").mark(image="encoded")

    def open_other(self, folder):
        self.open(folder)
        return npy(f"{folder}/*.npy", field="image", record="file")

    def expected(self):
        return {"image": IMAGES}


class TestAxes(SourceContract):
    images = np.arange(6 * 3 * 5 * 7).reshape(6, 3, 5, 7)

    def open(self, folder):
        return arrays(image=self.images, label=LABELS).mark(image="HWC")

    def open_other(self, folder):
        return arrays(image=self.images, label=LABELS).mark(image="CHW")

    def expected(self):
        return {"image": self.images, "label": LABELS}


def sources(folder):
    """Give the same images in every form that can be marked."""
    for number, image in enumerate(IMAGES):
        np.save(folder / f"{number}.npy", image)
    np.save(folder / "S.npy", np.array(FILES, f"S{LONGEST}"))
    table = np.zeros(6, [("label", "<i8"), ("image", f"V{LONGEST + 9}")])
    table["image"] = [file.ljust(LONGEST + 9, b"\0") for file in FILES]
    (folder / "table.bin").write_bytes(table.tobytes())
    yield npy(f"{folder}/[0-9].npy", field="image", record="file")
    yield npy(folder / "S.npy", field="image")
    yield fixed(folder / "table.bin", table.dtype)
    yield arrays(image=VECTORS)
    yield gl.records(6, lambda indices: {"image": [FILES[i] for i in indices]})


@pytest.mark.parametrize("executor", ["array", "dali"])
@pytest.mark.parametrize("form", range(5))
def test_decode_takes_what_is_marked_and_makes_the_pixels_of_the_files(tmp_path, executor, form):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    source = list(sources(tmp_path))[form].mark(image="encoded")

    with gl.Loader(
        source, batch_size=4, shuffle=True, seed=1, ops=[gl.ops.Decode()], output="image", device="cpu",
        executor=executor,
    ) as loader:  # fmt: skip
        batches = list(loader)

    assert sorted(record for batch in batches for record in batch.records.tolist()) == list(
        range(6)
    )
    for batch in batches:
        for record, pixels in zip(batch.records.tolist(), batch["image"], strict=True):
            assert np.array_equal(pixels, PIXELS[record])


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_marked_fixed_records_come_with_their_other_fields_and_resume(executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    train, _ = arrays(image=VECTORS, label=LABELS).mark(image="encoded").split(0.8, seed=1)
    arguments = {
        "batch_size": 2, "shuffle": True, "seed": 1, "device": "cpu", "executor": executor,
        "ops": [gl.ops.Decode(), gl.ops.Resize(8, 8)],
    }  # fmt: skip
    loader = gl.Loader(train, **arguments)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again = gl.Loader(pickle.loads(pickle.dumps(train)), **arguments)
    again.load_state_dict(state)

    rest = list(batches)

    assert len(rest) > 0
    for item, two in zip(rest, again, strict=True):
        assert item["label"].tolist() == two["label"].tolist()
        assert np.array_equal(item["image"], two["image"])


def test_without_the_mark_decode_refuses_the_field():
    with pytest.raises(SpecError, match="it is no encoded image file"):
        gl.Loader(arrays(image=VECTORS), batch_size=2, ops=[gl.ops.Decode()], device="cpu")


def test_a_marked_record_that_is_no_image_is_an_error_that_names_it():
    source = arrays(image=np.zeros((3, 50), np.uint8)).mark(image="encoded")

    with (
        gl.Loader(
            source, batch_size=3, ops=[gl.ops.Decode()], device="cpu", executor="array"
        ) as loader,
        pytest.raises(RecordError, match="arrays, record 0"),
    ):
        list(loader)


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_axes_that_were_said_go_before_what_the_shape_looks_like(executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 6, 5), np.uint8)
    arguments = {
        "batch_size": 4,
        "ops": [gl.ops.RandomFlip(p=1)],
        "device": "cpu",
        "executor": executor,
    }
    with pytest.raises(SpecError, match="channels first"):
        gl.Loader(arrays(image=images), **arguments)

    with gl.Loader(arrays(image=images).mark(image="HWC"), **arguments) as loader:
        (batch,) = loader

    assert np.array_equal(batch["image"], images[:, :, ::-1])


def test_what_is_said_to_be_chw_must_be_transposed():
    source = arrays(image=np.zeros((4, 8, 8, 8), np.uint8)).mark(image="CHW")

    with pytest.raises(SpecError, match=r"(?s)channels first.*Transpose\('HWC'"):
        gl.Loader(source, batch_size=4, ops=[gl.ops.RandomFlip()], device="cpu")
    with gl.Loader(
        source, batch_size=4, ops=[gl.ops.Transpose("HWC"), gl.ops.RandomFlip()], device="cpu"
    ) as loader:
        assert loader.spec_out["image"].axes == "HWC"


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({"image": "jpeg"}, r"mark\(image='jpeg'\)"),
        ({"image": True}, r"mark\(image=True\)"),
        ({"image": None}, "a mark is 'encoded', 'HWC', 'CHW'"),
        ({"image": {"encoded": True}}, "a mark is 'encoded'"),
        ({"label": "encoded"}, r"the field is label: int64 \(\)"),
        ({"label": "HWC"}, "it has not the 3 axes"),
        ({"image": "CHW"}, "it has not the 3 axes"),
        ({"text": "encoded"}, "one axis of uint8"),
    ],
)
def test_a_mark_that_does_not_fit_is_refused(marks, message):
    source = arrays(image=VECTORS, label=LABELS, text=np.array(["a"] * 6))

    with pytest.raises(SpecError, match=message) as caught:
        source.mark(**marks)
    assert caught.value.remedy


def test_a_mark_of_an_unknown_field_is_refused():
    with pytest.raises(UnknownFieldError, match="no field 'picture'"):
        arrays(image=VECTORS).mark(picture="encoded")


def test_marks_follow_the_field_through_names_and_parts():
    source = arrays(x=VECTORS).mark(x="encoded").rename(x="image")[1:]

    assert str(source.spec) == "image: encoded image"
    assert (
        gl.concat(source, source.mark(image="encoded")).read([7])["image"][0].tobytes() == FILES[3]
    )


def test_marked_images_stay_on_the_host_beside_fields_on_a_simulated_gpu(monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    table = np.zeros(6, [("label", "i4"), ("image", f"S{LONGEST}")])
    table["label"], table["image"] = LABELS, FILES
    source = arrays(table=table).mark(image="encoded")

    with gl.Loader(source, batch_size=4, shuffle=True, device="gpu", executor="array") as loader:
        for batch in loader:
            assert batch["label"].get().tolist() == LABELS[batch.records].tolist()
            assert [item.tobytes() for item in batch["image"]] == [FILES[i] for i in batch.records]
    del batch, loader
    gc.collect()
    sim.finish()

"""A notebook shows sources, loaders and batches as tables: whole, escaped, bounded in size, and
never as an error."""

from __future__ import annotations

import base64
import html
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import gpuload as gl
from gpuload.display import markup, values
from gpuload.spec import Field
from gpuload.stats import MEANING, Stats
from tests import simdevice

Image = pytest.importorskip("PIL.Image")
PHOTOS = np.random.default_rng(0).integers(0, 200, (9, 40, 60, 3), np.uint8)
SCRIPT = "<script>alert('x')</script>"


class Page(HTMLParser):
    """Checks that each tag is closed, and that nothing is loaded or run; has cells as texts,
    pictures as arrays."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open_tags, self.cells, self.pictures = [], [], []
        self.feed(page)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag, attrs):
        assert tag in {
            "style",
            "div",
            "p",
            "table",
            "tr",
            "th",
            "td",
            "img",
            "br",
            "ol",
            "li",
            "code",
        }
        assert {name for name, _ in attrs} <= {"class", "alt", "src"}
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "img":
            source = dict(attrs)["src"].removeprefix("data:image/png;base64,")
            self.pictures.append(
                np.asarray(Image.open(io.BytesIO(base64.b64decode(source, validate=True))))
            )
        elif tag != "br":
            self.open_tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open_tags):
            self.cells[-1] += data


def page(thing):
    return Page(thing._repr_html_())


def weight(selector):
    """Return how a browser weighs a selector without ids: by its classes, then by its names of
    elements."""
    name = r"(?<![.\w-])[a-z]+(?![\w(-])"
    return len(re.findall(r"\.[\w-]+", selector)), len(
        re.findall(name, selector.replace("(td,th)", " td"))
    )


def test_texts_are_on_the_left_though_jupyterlab_aligns_the_cells_of_all_tables_at_the_right():
    rules = re.findall(r"([^{}]+)\{([^}]*)\}", markup.STYLE)
    selectors = [
        selector
        for selector, style in rules
        if "text-align:left" in style and "vertical-align:top" in style
    ]

    assert [
        weight(selector) > weight(".jp-RenderedHTMLCommon:not(.jp-RenderedMarkdown) td")
        for selector in selectors
    ] == [True]


def batch_of(**fields):
    return gl.Loader(gl.arrays(**fields), 9, device="cpu").peek()


def test_a_batch_is_its_first_records_with_small_pictures():
    batch = batch_of(image=PHOTOS, label=np.arange(9) * 11)

    shown = page(batch)

    assert shown.cells == [
        "record", "imageuint8 (9, 40, 60, 3)", "labelint64 (9,)",
        *(text for row in range(6) for text in (str(row), "", str(row * 11))),
    ]  # fmt: skip
    assert "3 more records" in batch._repr_html_()
    assert len(shown.pictures) == 6
    for picture, photo in zip(shown.pictures, PHOTOS, strict=False):
        np.testing.assert_array_equal(picture, photo.repeat(2, 0).repeat(2, 1))


def test_a_large_image_is_a_small_picture_of_all_of_it():
    photo = np.zeros((1, 2000, 1000, 3), np.uint8)
    photo[:, 1000:] = 255

    (picture,) = page(batch_of(image=photo)).pictures

    assert max(picture.shape) <= values.MOST_SIDE
    assert picture.shape[0] // picture.shape[1] == 2
    assert not picture[: picture.shape[0] // 2 - 1].any()
    assert (picture[picture.shape[0] // 2 + 1 :] == 255).all()


def test_the_table_of_ten_thousand_large_images_is_small():
    image = np.broadcast_to(
        np.random.default_rng(0).integers(0, 255, (2160, 3840, 3), np.uint8), (10000, 2160, 3840, 3)
    )
    fields = {f"x{number}": image for number in range(100)}
    batch = gl.Batch(
        fields, None, records=np.arange(10000), valid=np.ones(10000, bool), epoch=0, step=0
    )

    text = batch._repr_html_()

    assert len(text) < 4_000_000
    assert "9994 more records, 88 more fields" in text


@pytest.mark.parametrize("text", [SCRIPT, "</td>", '" onload="x', "&lt;", "a\nb"])
def test_texts_are_escaped(text, tmp_path):
    batch = batch_of(**{text: np.arange(1)}, text=np.array([text]), data=np.array([text.encode()]))
    (tmp_path / "<b>.bin").write_bytes(bytes(8))
    source = gl.fixed(tmp_path / "<b>.bin", [(text, "u1")])

    for thing in (batch, source, gl.Loader(source, 2, device="cpu")):
        shown = page(thing)  # which refuses other tags and attributes
        assert any("".join(text.splitlines()) in cell for cell in shown.cells)
    assert repr(text)[:-1] in "".join(page(batch).cells)


def test_a_name_of_a_file_that_is_no_utf_8_can_be_sent_to_a_browser(tmp_path):
    name = b"\xff.npy".decode("utf-8", "surrogateescape")
    np.save(tmp_path / name, np.zeros((3, 2)))

    source = gl.npy(tmp_path / name)

    assert source._repr_html_().encode("utf-8")
    assert any("udcff" in cell for cell in page(source).cells)


EXOTIC = {
    "half": (np.linspace(-1, 1, 9 * 64 * 64 * 3).reshape(9, 64, 64, 3).astype("f2"), True),
    "not a number": (np.full((9, 64, 64, 1), np.nan, "f4"), True),
    "infinite": (np.full((9, 64, 64, 3), np.inf), True),
    "flags": (np.ones((9, 64, 64, 1), bool), True),
    "channels first": (np.zeros((9, 3, 64, 64), "i8"), True),
    "gray": (np.zeros((9, 28, 28), "u2"), True),
    "slices": (np.zeros((9, 5, 64, 64, 1), "u1"), True),
    "flat": (np.zeros((9, 0, 64, 3), "u1"), False),
    "no channels": (np.zeros((9, 64, 64, 0), "u1"), False),
    "vector": (np.zeros((9, 1000)), False),
    "many axes": (np.zeros((9, 2, 2, 2, 2, 2)), False),
    "complex": (np.zeros((9, 64, 64, 3), "c8"), False),
    "long double": (np.zeros((9, 4), np.longdouble), False),
    "datetime": (np.zeros(9, "M8[ns]"), False),
    "timedelta": (np.zeros((9, 2), "m8[s]"), False),
    "text": (np.array(["é"] * 9), False),
    "bytes": (np.array([b"\xff"] * 9), False),
    "raw": (np.zeros(9, "V5"), False),
}


@pytest.mark.parametrize("name", EXOTIC)
def test_each_dtype_and_shape_is_shown(name):
    field, is_picture = EXOTIC[name]

    shown = page(batch_of(x=field))

    assert len(shown.pictures) == 6 * is_picture
    assert not any("cannot be shown" in cell for cell in shown.cells)
    assert is_picture or all(shown.cells)


def test_values_of_varying_length_and_texts_are_shown_by_their_beginning():
    tokens = gl.Ragged(np.arange(1000), np.array([0, 2, 2, 1000]))
    texts = gl.Ragged(np.array(["a", "b" * 500, "c"], object), np.array([0, 1, 2, 3]))
    fields = {
        "tokens": tokens,
        "texts": texts,
        "image": [np.zeros((50, 30 + n, 3), np.uint8) for n in range(3)],
    }
    batch = gl.Batch(
        fields, None, records=np.arange(3), valid=np.array([True, True, False]), epoch=1, step=3
    )

    shown = page(batch)

    assert shown.cells[:4] == ["record", "tokensint64 (3, None), 1000 elements", "textsobject (3, None), 3 elements",
                               "imagelist of 3 arrays"]  # fmt: skip
    assert [shown.cells[5], shown.cells[9], shown.cells[13]] == [
        "[0, 1]",
        "empty (0,)",
        "[2, 3, 4, 5, 6, 7, ...] (998,)",
    ]
    assert max(map(len, shown.cells)) < 200
    assert shown.cells[12] == "2, not valid"
    assert [picture.shape for picture in shown.pictures] == [
        (100, 2 * (30 + n), 3) for n in range(3)
    ]


def test_encoded_images_are_decoded_and_damage_is_named(tmp_path):
    for number in range(2):
        Image.fromarray(PHOTOS[number]).save(tmp_path / f"{number}.png")
    (tmp_path / "2.png").write_bytes((tmp_path / "0.png").read_bytes()[:200])

    shown = page(gl.Loader(gl.images(tmp_path, labels=None), 3, device="cpu").peek())

    np.testing.assert_array_equal(shown.pictures[1], PHOTOS[1].repeat(2, 0).repeat(2, 1))
    assert len(shown.pictures) == 2
    assert shown.cells[3] == "PNG, 40 x 60"
    assert shown.cells[-1].startswith("cannot be shown: ")


def test_an_encoded_image_that_takes_long_to_decode_is_not_decoded():
    header = np.frombuffer(b"P6 60000 60000 255\n", np.uint8)
    huge = np.broadcast_to(np.uint8(0), values.MOST_FILE + 1)
    field = Field("image", np.dtype("u1"), (None,), encoded=True)

    assert values.cell([huge], 0, field) == "image file of 33,554,433 bytes"
    assert "cannot be shown" in values.cell([header], 0, field)


def test_masks_are_colours():
    masks = np.zeros((9, 40, 60, 1), np.uint8)
    masks[:, :20] = 7
    source = gl.arrays(image=PHOTOS, mask=masks).mark(mask="mask")

    _, mask = page(gl.Loader(source, 1, device="cpu").peek()).pictures

    assert not mask[40:].any()
    assert len(np.unique(mask[:40].reshape(-1, 3), axis=0)) == 1


def test_a_value_that_raises_is_shown_as_its_error():
    class Broken:
        shape, dtype = (1, 2), np.dtype("f4")

        def __getitem__(self, key):
            raise RuntimeError("<gone>")

    batch = gl.Batch(
        {"x": Broken()}, None, records=np.arange(1), valid=np.ones(1, bool), epoch=0, step=0
    )

    assert page(batch).cells[-1] == "cannot be shown: RuntimeError: <gone>"


def test_a_source_is_shown_without_reading_a_record():
    calls = []

    def read(indices):
        calls.append(indices)
        return {"x": np.zeros((len(indices), 2))}

    source = gl.records(5, read)
    calls.clear()  # of the look at the first record, when it was opened

    shown = page(source)
    shown_loader = page(gl.Loader(source, 2, ops=[gl.ops.Cast("float16", on="x")], device="cpu"))

    assert calls == []
    assert shown.cells[5:10] == ["x", "float64", "(2,)", "", ""]
    assert shown_loader.cells[5:10] == ["x", "float16", "(2,)", "", ""]
    assert any("source[0]" in cell for cell in shown.cells)
    assert any("loader.peek()" in cell for cell in shown_loader.cells)


def test_what_is_closed_or_empty_is_shown():
    source, empty = gl.arrays(x=np.zeros((3, 2))), gl.arrays(x=np.zeros((0, 2)))
    load = gl.Loader(source, 2, device="cpu")
    batch = load.peek()
    load.close()
    source.close()

    assert "closed" in page(source).cells
    assert "closed" in repr(source)
    assert repr(load).endswith("epoch 0, step 0 of 2, closed>")
    assert "epoch 0, step 0 of 2, closed" in page(load).cells
    assert page(batch).cells[-1] == "[0., 0.]"
    assert "closed" in page(source[1:]).cells
    assert "0 records" in repr(empty)
    assert "gl.arrays: 0 records" in empty._repr_html_()
    page(gl.Loader(empty, 2, device="cpu"))
    none = gl.Batch(
        {"x": np.zeros((0, 2))}, None, records=np.arange(0), valid=np.ones(0, bool), epoch=0, step=0
    )
    assert page(none).cells == ["record", "xfloat64 (0, 2)"]


def test_a_source_of_many_fields_is_shown_in_part():
    source = gl.arrays(**{f"x{number}": np.zeros(3) for number in range(200)})

    assert "136 more fields" in source._repr_html_()
    assert len(source._repr_html_()) < 20_000


def test_of_a_batch_on_a_gpu_only_what_is_shown_is_copied(monkeypatch):
    sim = simdevice.install(monkeypatch, seed=3)
    source = gl.arrays(
        image=np.random.default_rng(0).integers(0, 255, (8, 1000, 800, 3), np.uint8),
        label=np.arange(8),
    )
    copies = []
    get = simdevice.Array.get
    monkeypatch.setattr(
        simdevice.Array, "get", lambda array: copies.append(array.nbytes) or get(array)
    )

    with gl.Loader(source, 8, device="gpu", executor="array") as load:
        batch = next(iter(load))
        shown = page(batch)
        expected = page(gl.Loader(source, 8, device="cpu").peek())

        assert [picture.tolist() for picture in shown.pictures] == [
            picture.tolist() for picture in expected.pictures
        ]
        assert shown.cells[-1] == "5"
        assert re.search(
            r"image: \w+ uint8 \(8, 1000, 800, 3\)", repr(batch)
        )  # behind the name of the library
        assert 0 < sum(copies) < 6 * 4 * values.MOST_SIDE**2 * 3 * 2
    del batch
    sim.finish()


@pytest.mark.parametrize(
    ("library", "convert"),
    [("jax.numpy", "asarray"), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in
     (("tensorflow", "convert_to_tensor"), ("torch", "as_tensor")))],
)  # fmt: skip
def test_tensors_of_frameworks_are_shown_as_arrays_are(library, convert, caplog):
    module = pytest.importorskip(library)
    batch = batch_of(
        image=PHOTOS, label=np.arange(9, dtype=np.int32), half=np.zeros((9, 300), np.float16)
    )

    tensors = batch.with_fields(getattr(module, convert))

    shown, expected = page(tensors), page(batch)
    assert [picture.tolist() for picture in shown.pictures] == [
        picture.tolist() for picture in expected.pictures
    ]
    assert shown.cells[4:] == expected.cells[4:]
    name = library.partition(".")[0]
    assert f"label: {name} int32 (9,)" in repr(tensors)
    assert not caplog.records


def test_repr_has_dtype_shape_and_axes():
    batch = gl.Loader(
        gl.arrays(image=PHOTOS, t=np.zeros((9, 4))), 2, ops=[gl.ops.RandomFlip()], device="cpu"
    ).peek()

    assert repr(batch) == (
        "<gl.Batch: 2 records, epoch 0, step 0;\n  image: uint8 (2, 40, 60, 3) NHWC;\n  t: float64 (2, 4)>"
    )
    assert html.escape(repr(batch).strip("<>").partition(";")[0]) in batch._repr_html_()
    assert re.fullmatch(r"<gl\.arrays: 1 record, x: float64 \(\)>", repr(gl.arrays(x=np.zeros(1))))


def test_stats_are_tables_below_the_sentence():
    with gl.Loader(
        gl.arrays(x=np.zeros((64, 4), np.float32)), 8, ops=[gl.ops.Cast("float64")], device="cpu"
    ) as loader:
        before = loader.stats()
        list(loader)
        for stats in (loader.stats(), loader.stats() - before):
            cells = page(stats).cells
            assert html.escape(str(stats.bottleneck())) in stats._repr_html_()
            assert [cells[cells.index("batches") + i] for i in (0, 1, 2)] == [
                "batches",
                "8",
                MEANING["batches"],
            ]
            assert {"ops", "idle", "training", "waiting", "hand-over"} <= set(cells)
            text = "".join(str(stats).split())
            assert all(
                "".join(cell.split()) in text for cell in set(cells) - {"counter", "meaning"}
            )


def test_stats_without_a_loader_are_text():
    assert Stats({"batches": 1})._repr_html_() is None


@pytest.mark.slow
def test_a_kernel_of_jupyter_shows_them():
    """Where nbclient and ipykernel are installed, which the extra ``test`` does not bring."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    sources = [
        "import numpy as np, gpuload as gl\nloader = gl.Loader(gl.arrays(image=np.zeros((4, 8, 8, 3), 'u1')), 2)",
        "loader.source", "loader", "loader.peek()", "gl.preview(loader, records=1)", "loader.stats()",
        "loader.close(); loader",
    ]  # fmt: skip
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])

    nbclient.NotebookClient(book, timeout=60).execute()

    results = [
        output.data
        for cell in book.cells
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    assert len(results) == len(sources) - 1
    for result in results:
        assert "<table>" in result["text/html"]
        assert result["text/plain"].startswith(("<gl.", "Stats("))

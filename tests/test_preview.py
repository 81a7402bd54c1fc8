"""gl.preview: records before and behind ops, as a page and as a picture."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest

import gpuload as gl
from gpuload import cli, ops
from gpuload.errors import DeviceError, RecordIndexError, SpecError
from gpuload.preview.pictures import LARGEST_SIDE

Image = pytest.importorskip("PIL.Image")
PHOTOS = np.random.default_rng(0).integers(0, 200, (6, 40, 60, 3), np.uint8)
BOXES = np.tile(np.array([[10, 5, 40, 30]], np.float32), (6, 1, 1))
MIX = gl.mix({gl.arrays(image=PHOTOS): 0.5, gl.arrays(image=PHOTOS): 0.5})


def loader_of(chain, source=None, **words):
    source = source or gl.arrays(image=PHOTOS, boxes=BOXES, label=np.arange(6)).mark(boxes="xyxy")
    return gl.Loader(source, 2, ops=chain, device="cpu", seed=4, **words)


def pictures(page):
    """Return the pictures of a page, read by Pillow."""
    files = re.findall(r"data:image/png;base64,([^\"]+)", page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in files]


def test_a_page_has_records_as_stored_and_behind_the_ops_of_each_epoch(tmp_path):
    source = gl.arrays(image=PHOTOS, label=np.arange(6))
    load = loader_of([ops.RandomCrop(20, 30), ops.RandomFlip()], source)

    gl.preview(load, records=[2, 5], epochs=3).save(tmp_path / "page.html")

    page = (tmp_path / "page.html").read_text()
    assert [re.sub("<.*?>", "", head) for head in re.findall("<th>.*?</th>", page)] == [
        "record", "as stored", "epoch 0", "epoch 1", "epoch 2",
    ]  # fmt: skip
    assert re.findall(r"<tr><td>(\d)</td>", page) == ["2", "5"]
    assert "label: 5" in page
    assert "RandomCrop(" in page
    assert "http" not in page  # nothing is loaded from elsewhere
    shown = pictures(page)
    assert [picture.shape for picture in shown] == [(120, 180, 3), *[(120, 180, 3)] * 3] * 2
    np.testing.assert_array_equal(
        shown[0], PHOTOS[2].repeat(3, 0).repeat(3, 1)
    )  # 3 pixels for each one
    for epoch in range(3):
        (place,) = np.flatnonzero(
            np.concatenate([load.batch_at(step, epoch).records for step in range(3)]) == 2
        )
        crop = load.batch_at(place // 2, epoch)["image"][place % 2]
        np.testing.assert_array_equal(shown[1 + epoch], crop.repeat(6, 0).repeat(6, 1))


def test_marked_boxes_are_drawn_where_they_are():
    pixels = pictures(gl.preview(loader_of([]), records=1).to_html())[0]

    is_drawn = (pixels == (255, 64, 32)).all(axis=2)
    rows, columns = np.nonzero(is_drawn)
    assert (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1) == (
        15,
        90,
        30,
        120,
    )  # 3 pixels for each one
    assert not is_drawn[17:88, 32:118].any()


def test_files_masks_and_floats_are_shown(tmp_path):
    for n in range(3):
        Image.fromarray(PHOTOS[n]).save(tmp_path / f"{n}.png")
    masks = np.zeros((3, 40, 60, 1), np.uint8)
    masks[:, :10] = 7
    source = gl.zip(gl.images(tmp_path, labels=None), gl.arrays(mask=masks)).mark(mask="mask")

    page = gl.preview(loader_of([ops.Decode(), ops.Cast("float32")], source), records=1)

    assert page.titles == ("as stored", "behind the ops")  # nothing is random
    stored, mask, floats, _ = pictures(page.to_html())
    np.testing.assert_array_equal(stored, PHOTOS[0].repeat(3, 0).repeat(3, 1))
    assert len(np.unique(mask.reshape(-1, 3), axis=0)) == 2
    assert (mask[30:] == 0).all()
    np.testing.assert_allclose(floats, (stored - stored.min()) / np.ptp(stored) * 255, atol=1.01)
    assert "labels 0, 7" in page.to_html()
    assert page._repr_html_() in page.to_html()


@pytest.mark.parametrize(
    "chain",
    [
        [ops.Normalize((120.0, 100.0, 80.0), (50.0, 60.0, 70.0))],
        [ops.Normalize(100.0, 50.0, dtype="float16"), ops.Transpose("CHW")],
        [
            ops.Normalize((120.0, 100.0, 80.0), 50.0),
            ops.Copy("image", to="view"),
            ops.Transpose("CHW", on="view"),
        ],
    ],
    ids=["HWC", "CHW", "view"],
)
def test_behind_normalize_the_pixels_are_shown_that_went_in(chain):
    page = gl.preview(loader_of(chain, gl.arrays(image=PHOTOS)), records=1).to_html()

    stored, *shown = pictures(page)
    assert len(shown) == 1 + (len(chain) > 2)
    for picture in shown:
        np.testing.assert_allclose(picture.astype(int), stored, atol=1)
    assert "shown without Normalize" in page


@pytest.mark.parametrize(
    "chain",
    [
        [ops.Cast("float32"), ops.Normalize(0.5, 2.0)],
        [ops.Normalize((120.0, 100.0, 80.0), 50.0), ops.Python(lambda x: x[..., :2])],
    ],
)
def test_floats_whose_pixels_are_not_known_are_stretched(chain):
    page = gl.preview(loader_of(chain, gl.arrays(image=PHOTOS)), records=1).to_html()

    _, shown = pictures(page)
    assert (shown.min(), shown.max()) == (0, 255)
    assert "shown without Normalize" not in page


def test_a_picture_has_records_below_one_another_and_epochs_side_by_side(tmp_path):
    gl.preview(loader_of([ops.RandomFlip()]), records=3, epochs=2).save(tmp_path / "page.png")

    picture = np.asarray(Image.open(tmp_path / "page.png"))
    rows, columns = places_of(picture, PHOTOS[1].repeat(3, 0).repeat(3, 1)[20:80, 50:100])
    assert (len(rows), len(columns)) == (1, 1)
    first, _ = places_of(picture, PHOTOS[0].repeat(3, 0).repeat(3, 1)[20:80, 50:100])
    assert first[0] + 120 < rows[0]


def places_of(picture, part):
    """Return the rows and columns where a picture has a part that occurs in it, in its first column
    of cells."""
    corner = (picture[:, :240] == part[0, 0]).all(axis=2)
    hits = [
        (y, x)
        for y, x in zip(*np.nonzero(corner), strict=True)
        if np.array_equal(picture[y : y + part.shape[0], x : x + part.shape[1]], part)
    ]
    return [y for y, _ in hits], [x for _, x in hits]


def test_the_page_says_what_was_drawn():
    load = loader_of(
        [ops.RandomCrop(20, 30), ops.Sometimes(0.5, [ops.Brightness(0.5, 1.5)])], shuffle=True
    )

    page = gl.preview(load, records=[4], epochs=[3])

    batch = load.replace(drawn=True, batch_size=1, shuffle=False).batch_at(4, 3)
    start = batch.drawn["RandomCrop/0"]["start"][0].tolist()
    assert page.rows[0][0].draws == ()
    assert page.rows[0][1].draws[0] == f"RandomCrop/0: start {start}"
    assert (
        page.rows[0][1]
        .draws[1]
        .startswith(f"Sometimes/0: choice {batch.drawn['Sometimes/0']['choice'][0]}, ")
    )
    assert f"RandomCrop/0: start {start}" in page.to_html()


def test_pairs_are_those_of_the_loader_with_their_partners_and_soft_labels():
    source = gl.arrays(image=PHOTOS, label=np.arange(6))
    load = loader_of([ops.OneHot(10), ops.MixUp(1.0)], source, shuffle=True)

    page = gl.preview(load, records=range(6), epochs=[2])

    batches = [load.batch_at(step, 2) for step in range(3)]  # of two records each, which are a pair
    for batch in batches:
        for row, (record, partner) in enumerate((batch.records, batch.records[::-1])):
            cell = page.rows[record][1]
            np.testing.assert_array_equal(
                cell.pictures[0][1], batch["image"][row].repeat(3, 0).repeat(3, 1)
            )
            assert cell.draws[0] == f"partner: record {partner}"
            weight = batch["label"][row, record]
            assert f"{weight:.4g} of {record}" in cell.texts[0]
            assert cell.texts[0].endswith("(10 classes)")


def test_each_view_is_shown():
    views = ("large", "small")
    chain = [
        ops.Copy("image", to=views),
        ops.RandomCrop(30, 40, on="large"),
        ops.RandomCrop(8, 8, on="small"),
    ]

    cell = gl.preview(
        loader_of(chain, gl.arrays(image=PHOTOS), output=views), records=1, epochs=1
    ).rows[0][1]

    assert [(name, pixels.shape) for name, pixels, _ in cell.pictures] == [
        ("large", (120, 160, 3)), ("small", (160, 160, 3)),
    ]  # fmt: skip


VOLUME = np.random.default_rng(1).integers(0, 256, (2, 20, 32, 40), np.uint8)


@pytest.mark.parametrize(
    ("axes", "volume"), [("DHW", VOLUME), ("DHWC", np.stack([VOLUME] * 3, axis=-1))]
)
def test_of_a_volume_the_middle_slice_is_shown(axes, volume):
    source = gl.arrays(scan=volume).mark(scan=axes)
    cells = gl.preview(
        loader_of([ops.RandomCrop(16, 20, depth=6)], source), records=1, epochs=1
    ).rows[0]

    (name, pixels, note), (_, _, crop_note) = (cell.pictures[0] for cell in cells)
    middle = VOLUME[0, 10].repeat(4, 0).repeat(4, 1)
    np.testing.assert_array_equal(pixels, np.stack([middle] * 3, axis=-1))
    assert (name, note) == ("scan", f"uint8 20 x 32 x 40{' x 3' * (axes == 'DHWC')}, slice 10")
    assert crop_note == f"uint8 6 x 16 x 20{' x 3' * (axes == 'DHWC')}, slice 3"


def test_images_without_channels_are_shown():
    (cell,) = gl.preview(loader_of([], gl.arrays(image=PHOTOS[..., 0])), records=1).rows[0][:1]

    ((name, pixels, _),) = cell.pictures
    np.testing.assert_array_equal(pixels[..., 0], PHOTOS[0, :, :, 0].repeat(3, 0).repeat(3, 1))
    assert name == "image"


def test_an_image_without_masks_of_objects_shows_that():
    masks = np.zeros((2, 0, 9, 12), np.uint8)
    source = gl.arrays(image=PHOTOS[:2, :9, :12], masks=masks).mark(masks="masks")

    (cell,) = gl.preview(loader_of([], source), records=1).rows[0][:1]

    assert [(name, note) for name, _, note in cell.pictures][1] == ("masks", "0 masks, 9 x 12")


def test_records_without_images_are_texts(tmp_path):
    source = gl.arrays(x=np.arange(6) / 4, name=np.array(["ann", "bob"] * 3))

    page = gl.preview(loader_of([], source), records=[3])

    assert page.rows[0][0].texts == ("x: 0.75", "name: bob")
    assert "name: bob" in page.to_html()
    page.save(tmp_path / "texts.png")
    assert (np.asarray(Image.open(tmp_path / "texts.png")) < 128).any()


def test_large_images_are_means_of_squares():
    image = np.zeros((2, 1300, 8, 3), np.uint8)
    image[:, ::3] = 255

    pixels = gl.preview(loader_of([], gl.arrays(image=image)), records=1).rows[0][0].pictures[0][1]

    assert pixels.shape == (433, 2, 3)
    assert (pixels == 85).all()


def test_a_box_has_its_label():
    source = gl.arrays(image=PHOTOS, boxes=BOXES, name=np.array([["8"]] * 6)).mark(boxes="xyxy")

    marked = source.mark(name="with boxes")
    pages = [gl.preview(loader_of([], part), records=1) for part in (source, marked)]
    plain, labelled = (page.rows[0][0].pictures[0][1] for page in pages)

    differs = (plain != labelled).any(axis=2)
    rows, columns = np.nonzero(differs)
    assert 17 <= rows.min() < rows.max() < 17 + 10
    assert 32 <= columns.min() < columns.max() < 32 + 6
    ink = (labelled[18:25, 32:37] == 255).all(axis=2)
    assert ink.tolist() == [[letter == "#" for letter in line] for line in EIGHT]


EIGHT = (".###.", "#...#", "#...#", ".###.", "#...#", "#...#", ".###.")  # 8 in 5 x 7 pixels


def test_the_loader_does_not_move():
    load = loader_of([ops.RandomFlip()])
    next(iter(load))

    gl.preview(load)

    assert (load.position.epoch, load.position.step) == (0, 1)


@pytest.mark.parametrize(
    ("call", "error", "what"),
    [
        (lambda: gl.preview(PHOTOS), SpecError, "gl.preview"),
        (lambda: gl.preview(loader_of([]), records=0), SpecError, "records"),
        (lambda: gl.preview(loader_of([]), records=[7]), RecordIndexError, "7"),
        (lambda: gl.preview(loader_of([ops.RandomFlip()]), epochs="2"), SpecError, "epochs"),
        (lambda: gl.preview(loader_of([ops.RandomFlip()], MIX)), SpecError, "epochs"),
        (lambda: gl.preview(loader_of([ops.RandomFlip()], MIX), epochs=[1]), SpecError, "epochs"),
        (lambda: gl.preview(loader_of([])).save("page.jpg"), SpecError, "page.jpg"),
    ],
)
def test_what_cannot_be_shown_is_refused(call, error, what):
    with pytest.raises(error, match=what):
        call()


def test_an_operator_of_dali_is_refused_by_name():
    pytest.importorskip("nvidia.dali")
    load = gl.Loader(
        gl.arrays(image=PHOTOS), 2, ops=[ops.Dali("gaussian_blur", sigma=1.5)], device="cpu"
    )
    with pytest.raises(DeviceError, match="Dali"):
        gl.preview(load)


def test_the_command_shows_the_ops_of_a_module(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for n in range(3):
        Image.fromarray(PHOTOS[n]).save(tmp_path / "photos" / f"{n}.png")
    (tmp_path / "augment_of_preview.py").write_text(
        "import gpuload as gl\nsize = 4\ntrain = [gl.ops.Decode(), gl.ops.RandomCrop(20)]\n"
        "def made():\n    return train\n"
    )

    assert (
        cli.main(["preview", "photos", "--ops", "augment_of_preview:train", "--records", "2"]) == 0
    )
    assert (
        capsys.readouterr().out
        == "wrote preview.html: 2 records; columns: as stored, epoch 0, epoch 1\n"
    )
    assert len(pictures((tmp_path / "preview.html").read_text())) == 6
    assert (
        cli.main(["preview", "photos", "--ops", "augment_of_preview:made", "--out", "page.png"])
        == 0
    )
    for name, cause in (
        ("train", "colon"),
        ("augment_of_preview:trane", "trane"),
        ("augment_of_preview:size", "int"),
    ):
        assert cli.main(["preview", "photos", "--ops", name]) == 2
        assert cause in capsys.readouterr().err


def test_the_widest_picture_fits_into_its_cell_where_a_browser_would_draw_it_over_the_next():
    source = gl.arrays(image=np.zeros((1, 8, 2000, 3), np.uint8))

    page = gl.preview(
        gl.Loader(source, 1, ops=[ops.RandomFlip()], device="cpu"), records=1, epochs=1
    ).to_html()

    width = pictures(page)[0].shape[1]
    cell = int(re.search(r"td,[^{]*{[^}]*max-width:(\d+)px", page)[1])
    assert 480 < width <= LARGEST_SIDE
    assert width + 6 <= cell  # the margin of a figure


def test_a_page_that_cannot_be_written_is_an_error_and_leaves_no_part(tmp_path):
    page = gl.preview(loader_of([]), records=1)
    (tmp_path / "folder.html").mkdir()

    for path in (tmp_path / "folder.html", tmp_path / "none" / "page.html"):
        with pytest.raises(gl.GpuloadError, match="is not written"):
            page.save(path)

    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]

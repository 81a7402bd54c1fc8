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

Image = pytest.importorskip("PIL.Image")
PHOTOS = np.random.default_rng(0).integers(0, 200, (6, 40, 60, 3), np.uint8)
BOXES = np.tile(np.array([[10, 5, 40, 30]], np.float32), (6, 1, 1))


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
    np.testing.assert_array_equal(shown[0], PHOTOS[2].repeat(3, 0).repeat(3, 1))  # 3 pixels for each one
    for epoch in range(3):
        (place,) = np.flatnonzero(np.concatenate([load.batch_at(step, epoch).records for step in range(3)]) == 2)
        crop = load.batch_at(place // 2, epoch)["image"][place % 2]
        np.testing.assert_array_equal(shown[1 + epoch], crop.repeat(6, 0).repeat(6, 1))


def test_marked_boxes_are_drawn_where_they_are():
    pixels = pictures(gl.preview(loader_of([]), records=1).to_html())[0]

    is_drawn = (pixels == (255, 64, 32)).all(axis=2)
    rows, columns = np.nonzero(is_drawn)
    assert (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1) == (15, 90, 30, 120)  # 3 pixels for each one
    assert not is_drawn[17:88, 32:118].any()


def test_files_masks_and_floats_are_shown(tmp_path):
    for n in range(3):
        Image.fromarray(PHOTOS[n]).save(tmp_path / f"{n}.png")
    masks = np.zeros((3, 40, 60, 1), np.uint8)
    masks[:, :10] = 7
    source = gl.zip(gl.images(tmp_path, labels=None), gl.arrays(mask=masks)).mark(mask="mask")

    page = gl.preview(loader_of([ops.Decode(), ops.Normalize(100.0, 50.0)], source), records=1)

    assert page.titles == ("as stored", "behind the ops")  # nothing is random
    stored, mask, floats, _ = pictures(page.to_html())
    np.testing.assert_array_equal(stored, PHOTOS[0].repeat(3, 0).repeat(3, 1))
    assert len(np.unique(mask.reshape(-1, 3), axis=0)) == 2
    assert (mask[30:] == 0).all()
    np.testing.assert_allclose(floats, (stored - stored.min()) / np.ptp(stored) * 255, atol=1.01)
    assert "labels 0, 7" in page.to_html()
    assert page._repr_html_() in page.to_html()


def test_a_picture_has_all_records_below_one_another(tmp_path):
    gl.preview(loader_of([ops.RandomFlip()]), records=3, epochs=2).save(tmp_path / "page.png")

    picture = np.asarray(Image.open(tmp_path / "page.png"))
    frame = 12  # around each
    assert picture.shape == (3 * (120 + frame + 6), 3 * (180 + frame) + 6, 3)
    assert (picture[138 : 138 + 120, :180][20:80, 50:100] == PHOTOS[1].repeat(3, 0).repeat(3, 1)[20:80, 50:100]).all()


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
        (lambda: gl.preview(loader_of([], gl.arrays(x=np.arange(9)))), SpecError, "holds images|gl.preview"),
        (lambda: gl.preview(loader_of([])).save("page.jpg"), SpecError, "page.jpg"),
    ],
)
def test_what_cannot_be_shown_is_refused(call, error, what):
    with pytest.raises(error, match=what):
        call()


def test_an_operator_of_dali_is_refused_by_name():
    pytest.importorskip("nvidia.dali")
    load = gl.Loader(gl.arrays(image=PHOTOS), 2, ops=[ops.Dali("gaussian_blur", sigma=1.5)], device="cpu")
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

    assert cli.main(["preview", "photos", "--ops", "augment_of_preview:train", "--records", "2"]) == 0
    assert capsys.readouterr().out == "preview.html: 2 records, as stored, epoch 0, epoch 1\n"
    assert len(pictures((tmp_path / "preview.html").read_text())) == 6
    assert cli.main(["preview", "photos", "--ops", "augment_of_preview:made", "--out", "page.png"]) == 0
    for name, cause in (("train", "colon"), ("augment_of_preview:trane", "trane"), ("augment_of_preview:size", "int")):
        assert cli.main(["preview", "photos", "--ops", name]) == 2
        assert cause in capsys.readouterr().err

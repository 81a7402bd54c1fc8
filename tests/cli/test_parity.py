"""gpuload parity: each op and image format on each executor, beside what it means and beside other
libraries."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gpuload_peers import libraries as parity_peers
from gpuload_peers import torch_libraries as parity_torch

import gpuload as gl
from gpuload import cli
from gpuload.cli import parity, parity_images, parity_ops
from gpuload.errors import DeviceError
from gpuload.ops import bounds
from gpuload.ops.forms import Forms
from tests import opexamples


def test_the_example_of_each_op_is_compared_or_it_is_said_why_not():
    ops = {type(op).__name__: op for op in map(parity_ops.op_of, parity_ops.calls())}

    examples = {
        name: opexamples.example(name)
        for name in opexamples.NAMES
        if name not in parity_ops.ELSEWHERE
    }
    assert [
        name for name in opexamples.NAMES if name not in ops.keys() | parity_ops.ELSEWHERE.keys()
    ] == []
    calls = [parity_ops.op_of(call) for call in parity_ops.calls()]
    assert [name for name, op in examples.items() if op not in calls] == []


def test_independent_libraries_and_reasons_against_them_are_of_ops_that_there_are():
    names = {type(parity_ops.op_of(call)).__name__ for call in parity_ops.calls()}

    assert parity_peers.PEERS.keys() | parity_peers.NO_PEER.keys() <= names
    assert parity_peers.PEERS.keys() & parity_peers.NO_PEER.keys() == set()


@pytest.mark.slow
def test_all_ops_and_formats_are_within_their_bounds_on_this_machine(capsys):
    assert cli.main(["parity"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("comparisons, none broken")
    assert sum("array on cpu beside array form" in line for line in lines) == len(
        list(parity_ops.calls())
    )


@pytest.mark.parametrize(
    "call",
    [
        "gl.ops.RandomFlip(p=0.5)",
        "gl.ops.Hue(-0.1, 0.1)",
        'gl.ops.MixUp(alpha=0.2, on="image")',
        "gl.ops.RandomIoUCrop()",
    ],
)
def test_some_ops_are_within_their_bounds(call):
    comparisons = [
        *parity_ops.compare_executors(call, [("array", "cpu")]),
        *parity_peers.compare_peer(call),
    ]

    assert [comparison for comparison in comparisons if not comparison.holds] == []
    libraries = [comparison.against.partition(" ")[0] for comparison in comparisons[1:]]
    assert comparisons[0].party == "array on cpu"
    assert libraries[:1] == [parity_peers.PEERS[call.removeprefix("gl.ops.").partition("(")[0]][0]]


def test_libraries_that_cannot_be_called_are_named_with_the_cause(monkeypatch):
    def load():
        raise OSError("libpaint.so is for another system")

    libraries = {
        "Painter": ("painter", lambda: __import__("no_such_painter")),
        "Paint": ("paint", load),
    }
    monkeypatch.setattr(parity_peers, "LIBRARIES", libraries)

    assert list(parity_peers.missing_libraries()) == [
        "Painter is not compared: pip install painter",
        "Paint is not compared: OSError: libpaint.so is for another system",
    ]
    assert parity_peers.version_of("Painter") == parity_peers.version_of("Paint") == ""


def test_torchvision_and_timm_are_compared_with_ops_that_there_are():
    assert parity_torch.PEERS.keys() <= {*gl.ops.__all__}
    assert {library for library, _ in parity_torch.PEERS.values()} <= parity_peers.LIBRARIES.keys()


class Wrong(gl.ops.Brightness):
    """Brightness whose compiled forms make something else."""

    def array_batch(self, xp, x, draw):
        return super().array_batch(xp, x, draw) ^ 1

    def forms(self, field):
        return Forms()


def test_an_executor_that_makes_something_else_is_broken(capsys, monkeypatch):
    monkeypatch.setattr(gl.ops, "Wrong", Wrong, raising=False)
    monkeypatch.setattr(
        parity_ops, "calls", lambda: ["gl.ops.Wrong(0.5, 1.5)", "gl.ops.RandomFlip()"]
    )
    monkeypatch.setattr(parity_images, "samples", lambda: iter(()))

    assert cli.main(["parity"]) == 1

    out = capsys.readouterr().out
    assert (
        "BROKEN  Wrong(0.5, 1.5)\n        array on cpu beside array form: largest 1, mean 1, on 100.0000%"
        in out
    )
    assert "ok      RandomFlip()\n        array on cpu beside array form: equal" in out
    assert out.splitlines()[-1].endswith("comparisons, 1 broken")


def test_a_meaning_that_is_not_that_of_the_library_is_broken(monkeypatch):
    pytest.importorskip("PIL")
    monkeypatch.setattr(gl.ops.Invert, "array", lambda self, xp, x, draw: 254 - x)

    comparison, *_ = parity_peers.compare_peer("gl.ops.Invert(p=1)")

    assert comparison.verdict == "BROKEN"
    assert (comparison.largest, comparison.bound) == (
        255,
        bounds.EXACT,
    )  # 254 - 255 is 255 in bytes


def test_resizing_by_dali_is_bounded_by_one_level():
    pytest.importorskip("nvidia.dali")

    by_array, by_dali = parity_ops.compare_executors(
        "gl.ops.Resize(16, 16)", [("array", "cpu"), ("dali", "cpu")]
    )

    assert (by_array.largest, by_dali.largest) == (0, 1)
    assert 0.001 < by_dali.share <= bounds.HALVES.share


def test_a_file_of_each_format_is_decoded_whole_and_by_region():
    pytest.importorskip("PIL")
    titles = [title for title, _ in parity_images.samples()]
    assert {"JPEG 4:2:0", "PNG", "BMP", "PNM", "TIFF LZW", "GIF"} <= set(titles)

    comparisons = list(parity_images.compare_files([], [("array", "cpu")]))

    assert [comparison for comparison in comparisons if not comparison.holds] == []
    assert [
        c.subject for c in comparisons if c.party == "array on cpu" and c.subject.endswith("region")
    ] == [f"file {title}, a region" for title in titles]
    assert any(c.subject == "file PNG" and c.against.startswith("Pillow ") for c in comparisons)


def test_files_are_decoded_by_each_executor(tmp_path, capsys):
    image_module = pytest.importorskip("PIL.Image")
    pytest.importorskip("nvidia.dali")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    paths = [str(tmp_path / name) for name in ("a.jpg", "b.png", "c.bmp")]
    for path in paths:
        image_module.fromarray(pixels).save(path)

    assert cli.main(["parity", *paths]) == 0
    out = capsys.readouterr().out
    for name in ("a.jpg", "b.png", "c.bmp"):
        assert f"ok      file {name}\n        dali on cpu beside array on cpu: equal\n" in out
    assert "Affine" not in out
    assert cli.main(["parity", str(tmp_path / "none.jpg")]) == 2


def test_a_damaged_file_is_broken_and_named(tmp_path, capsys):
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))

    assert cli.main(["parity", str(tmp_path / "bad.png")]) == 1
    assert "BROKEN  file bad.png" in capsys.readouterr().out


def test_json_has_each_comparison(tmp_path, capsys):
    image_module = pytest.importorskip("PIL.Image")
    image_module.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "a.png")

    assert cli.main(["parity", str(tmp_path / "a.png"), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    rows = document["comparisons"]
    assert {"subject", "party", "against", "largest", "mean", "share", "verdict", "bound"} <= rows[
        0
    ].keys()
    assert {row["verdict"] for row in rows} == {"ok"}
    assert (document["num_broken"], document["machine"]) == (0, parity.machine())


def test_a_bound_holds_for_largest_share_and_mean():
    from gpuload.cli.parity_rows import measure

    bound = bounds.Bound(2, 0.5, "a reason", mean=0.9)

    def verdict(*differences):
        zeros = np.zeros(4, np.uint8)
        return measure("x", "a", "b", bound, [np.array(differences, np.uint8)], [zeros]).verdict

    assert [verdict(2, 0, 0, 0), verdict(3, 0, 0, 0), verdict(1, 1, 1, 0), verdict(2, 2, 0, 0)] == [
        "ok", "BROKEN", "BROKEN", "BROKEN",
    ]  # fmt: skip


def test_a_gpu_that_is_not_there_is_an_error(capsys):
    try:
        gl.Loader(gl.arrays(x=np.zeros(3)), 1, device="gpu")
    except DeviceError:
        assert cli.main(["parity", "--device", "gpu"]) == 2
        assert "DeviceError" in capsys.readouterr().err


def test_the_page_has_a_row_for_each_op_and_format():
    pytest.importorskip("PIL")
    from tests import paritypage

    page = paritypage.PAGE.read_text(encoding="utf-8")
    tables = page.partition(paritypage.BEGIN)[2].partition(paritypage.END)[0]

    rows = [
        line.split(" | ")[0].removeprefix("| ")
        for line in tables.splitlines()
        if line.startswith("| ")
    ]
    calls = [f"`{call.removeprefix('gl.ops.')}`" for call in parity_ops.calls()]
    assert [call for call in calls if call not in rows] == [], (
        "python -m tests.paritypage writes them"
    )
    assert [title for title, _, _ in parity_images.SAMPLES if title not in rows] == []
    assert [row for row in paritypage.bound_rows() if row not in tables] == []
    assert "BROKEN" not in tables

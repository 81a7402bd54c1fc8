"""gpuload inspect: format, records, fields, a record, and lines of Python that load the files."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

import gpuload as gl
from gpuload import cli
from tests.codeblocks import ROOT

GOLDEN = ROOT / "tests" / "golden"
Image = pytest.importorskip("PIL.Image")
SMOOTH = np.stack(np.broadcast_arrays(*np.mgrid[:40, :60], 0), axis=2).astype(np.uint8) * 4


@pytest.fixture
def files(tmp_path):
    """Return a file, or folder, of each kind, by name."""
    for number, name in enumerate(("cat", "dog", "dog")):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(SMOOTH[: 40 - number]).save(
            folder / f"{number}.{('jpg', 'png', 'png')[number]}"
        )
    np.save(tmp_path / "rows.npy", np.arange(24, dtype=np.float32).reshape(8, 3))
    np.savez(tmp_path / "pairs.npz", image=np.zeros((5, 8, 9, 3), np.uint8), label=np.arange(5))
    (tmp_path / "table.csv").write_text("name,age\nann,3\nbob,44\n")
    gl.convert(
        gl.arrays(x=np.arange(6), text=np.array(["a", "bcd"] * 3)), tmp_path / "some.tfrecord"
    )
    with gzip.open(tmp_path / "images.gz", "wb") as file:
        file.write(b"\0\0\x08\x03" + np.array([2, 4, 5], ">u4").tobytes() + bytes(40))
    gl.convert(gl.arrays(x=np.zeros((4, 3), np.uint8)), tmp_path / "fixed.bin", format="fixed")
    return tmp_path


NAMES = ["photos", "rows.npy", "pairs.npz", "table.csv", "some.tfrecord", "images.gz", "fixed.bin"]


def inspect(*arguments):
    return cli.main(["inspect", *map(str, arguments)])


@pytest.mark.parametrize("name", NAMES)
def test_the_lines_of_python_load_the_files_and_no_other_line_is_wider_than_a_terminal(
    name, files, capsys
):
    assert inspect(files / name) == 0

    text, _, code = capsys.readouterr().out.partition("In Python:\n")
    assert max(map(len, text.splitlines())) <= 80
    defined: dict[str, object] = {}
    exec("\n".join(line.removeprefix("    ") for line in code.splitlines()), defined)
    assert isinstance(defined["batch"], gl.Batch)


@pytest.mark.parametrize("name", NAMES)
def test_json_has_the_fields_of_the_source(name, files, capsys):
    assert inspect(files / name, "--json") == 0

    report = json.loads(capsys.readouterr().out)
    source = gl.open(files / name)
    paths = set(source.files.paths)
    assert (report["num_records"], report["num_files"]) == (len(source), len(paths))
    assert report["num_bytes"] == sum(map(os.path.getsize, paths))
    assert [field["name"] for field in report["fields"]] == list(source.spec.names)
    assert [field["dtype"] for field in report["fields"]] == [
        field.text or str(field.dtype) for field in source.spec
    ]


def test_a_folder_of_images(files, capsys):
    assert inspect(files / "photos", "--record", 1) == 0

    out = capsys.readouterr().out
    assert "a folder of images, opened by gl.images\n3 records in 3 files, " in out
    assert "JPEG, PNG; 38 to 40 x 60 pixels" in out
    assert "0 to 1; 2 classes: cat, dog; 1 to 2 records of each" in out
    assert "Record 1, " in out
    assert "PNG, 39 x 60 pixels, 3 x 8 bits" in out
    assert "gl.ops.Decode()" in out


@pytest.mark.parametrize(
    ("shape", "dtype", "form"),
    [
        ((8, 9), np.uint16, "gl.ops.Decode(dtype='uint16')"), ((8, 9, 4), np.uint8, "gl.ops.Decode('RGBA')"),
        ((8, 9, 3), np.uint8, "gl.ops.Decode()"), ((8, 9), np.uint8, "gl.ops.Decode()"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_the_form_to_decode_keeps_bits_and_alpha(shape, dtype, form, suffix, tmp_path, capsys):
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    folder = tmp_path / "images"
    folder.mkdir()
    Image.fromarray(values).save(folder / f"0.{suffix}")

    assert inspect(folder, "--json") == 0

    code = json.loads(capsys.readouterr().out)["code"]
    assert f"    {form},\n" in code
    names: dict = {}
    exec(code, names)
    assert names["batch"]["image"].dtype == ("uint8" if dtype == np.uint8 else "float32")


def test_of_opaque_alpha_nothing_is_lost_without_it(tmp_path, capsys):
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGBA", (8, 9), (1, 2, 3, 255)).save(folder / "0.png")

    assert inspect(folder, "--json") == 0

    assert "    gl.ops.Decode(),\n" in json.loads(capsys.readouterr().out)["code"]


def test_parts_of_a_data_set_are_refused_with_the_lines_of_python(files, capsys):
    shutil.copytree(files / "photos", files / "data" / "train")
    shutil.copytree(files / "photos", files / "data" / "val")

    assert inspect(files / "data") == 2

    text = " ".join(capsys.readouterr().err.split())
    train, val = files / "data" / "train", files / "data" / "val"
    assert f'train = gl.images({str(train)!r}, labels="folder"); ' in text
    assert f'gl.images({str(val)!r}, labels="folder", classes=train)' in text
    assert "manifest" not in text
    assert inspect(train) == 0


def test_a_folder_of_npy_files_is_opened_by_rows_and_the_other_way_is_named(files, capsys):
    (files / "series").mkdir()
    for number in range(3):
        np.save(files / "series" / f"{number}.npy", np.zeros((4, 2)))

    assert inspect(files / "series") == 0

    out = capsys.readouterr().out
    assert "NPY, opened by gl.npy\n12 records in 3 files, " in out
    assert f"    source = gl.open('{files}/series')  # a record is a row\n" in out
    line = next(line for line in out.splitlines() if "a record is a file" in line)
    assert len(eval(line.strip().removeprefix("# ").partition(": a record")[0], {"gl": gl})) == 3

    gl.open(files / "series").index(files / "series.manifest")
    assert inspect(files / "series.manifest") == 0
    assert "a record is a" not in capsys.readouterr().out


def test_an_archive_of_several_arrays_is_one_file(files, capsys):
    assert inspect(files / "pairs.npz") == 0
    assert "5 records in 1 file, " in capsys.readouterr().out


def test_values_of_the_sample_and_of_the_record(files, capsys):
    assert inspect(files / "rows.npy", "--record", 7) == 0
    out = capsys.readouterr().out
    assert "NPY, opened by gl.npy\n8 records in 1 file, 224 bytes\n" in out
    assert "0 to 23\n" in out
    assert "[21., 22., 23.]" in out

    assert inspect(files / "table.csv") == 0
    out = capsys.readouterr().out
    assert "3 characters" in out
    assert "'ann'" in out

    (files / "gaps.csv").write_text("height,weight,sign\n1.5,7,a\n,7,b\n0.5,7,c\n,7,d\n")
    assert inspect(files / "gaps.csv") == 0
    out = capsys.readouterr().out
    assert "  0.5 to 1.5; 2 NaN\n" in out
    assert "  all 7\n" in out
    assert "  1 character\n" in out


def test_an_image_is_shown_as_blocks_from_dark_to_bright(tmp_path, capsys):
    half = np.zeros((40, 80, 3), np.uint8)
    half[:, 40:] = 255
    Image.fromarray(half).save(tmp_path / "half.png")

    assert inspect(tmp_path / "half.png", "--picture", tmp_path / "shown.png") == 0

    lines = [line for line in capsys.readouterr().out.splitlines() if "@@" in line]
    assert len(lines) == 12
    assert {line.strip() for line in lines} == {"@" * 24}
    shown = np.asarray(Image.open(tmp_path / "shown.png"))
    np.testing.assert_array_equal(shown, half.repeat(2, 0).repeat(2, 1))


def test_colours_on_a_terminal(tmp_path, capsys, monkeypatch):
    Image.new("RGB", (6, 4), (10, 20, 30)).save(tmp_path / "plain.png")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "COLUMNS": "80",
    }.items():
        monkeypatch.setenv(name, value)

    assert inspect(tmp_path / "plain.png") == 0

    block = "\x1b[38;2;10;20;30;48;2;10;20;30m\u2580\x1b[0m"
    assert f"  {block * 48}\n" * 16 in capsys.readouterr().out

    monkeypatch.setenv("NO_COLOR", "1")
    assert inspect(tmp_path / "plain.png") == 0
    out = capsys.readouterr().out
    assert "38;2" not in out
    assert "\u2580" not in out


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_are_no_wider_than_the_terminal(columns, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setenv("COLUMNS", str(columns))

    lengths = []
    for name in ("photos", "pairs.npz", "some.tfrecord"):
        assert inspect(name) == 0
        text, _, _ = capsys.readouterr().out.partition("In Python:\n")
        lengths += map(len, text.splitlines())

    assert columns // 2 < max(lengths) <= columns


def test_a_damaged_record_of_the_sample_is_named_and_is_status_1(files, capsys):
    (files / "photos" / "dog" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(30))

    assert inspect(files / "photos", "--record", 0) == 1

    out = capsys.readouterr().out
    assert "record 1: " in out
    assert "gpuload check" in out
    assert "JPEG, 40 x 60 pixels" in out


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["none.npy"], "none.npy"),
        (["empty"], "empty"),
        (["rows.npy", "--record", "8"], "8"),
        (["rows.npy", "--record", "-1"], "-1"),
        (["rows.npy", "--picture", "x.png"], "--picture x.png"),
        (["photos", "--picture", "no/folder/x.png"], "no/folder"),
        (["unknown.bin"], "no format that is known"),
    ],
)
def test_slips_are_messages_and_status_2(arguments, cause, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    (files / "empty").mkdir()
    (files / "unknown.bin").write_bytes(bytes(range(200, 230)))

    assert inspect(*arguments) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert cause in captured.err
    assert "Traceback" not in captured.err


def test_a_pipe_that_nobody_reads_any_more_is_no_error(files):
    command = [sys.executable, "-m", "gpuload", "inspect", str(files / "rows.npy")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        process.stdout.close()
        errors = process.stderr.read()

    assert (errors, process.returncode) == (b"", 141)


def test_where_nothing_decodes_images_the_missing_picture_is_explained(files):
    """Without a codec, in a process of its own: the codec is chosen once."""
    program = """
import sys
sys.modules["nvidia.nvimgcodec"] = sys.modules["PIL.Image"] = None
from gpuload.cli import main
print(main(["inspect", "photos"]), main(["inspect", "photos", "--picture", "x.png"]), flush=True)
"""
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=files, timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GPULOAD_CORE": "0"},
    )  # fmt: skip

    assert process.stdout.splitlines()[-1] == "0 2"
    problem = (
        "gl.ops.Decode on the host needs the package 'pillow'; pip install \"gpuload[images]\""
    )
    assert f"No picture: {problem}" in " ".join(process.stdout.split())
    assert f"--picture x.png\n  cause:  {problem}\n" in process.stderr
    assert not (files / "x.png").exists()


def write_npz(folder):
    for number in (3, 4):
        np.savez_compressed(
            folder / f"{number}.npz",
            image=np.zeros((5, number)),
            mask=np.ones((5, number), np.int8),
        )
    return str(folder)


def write_text(folder):
    (folder / "a.txt").write_text("one\ntwo\n")
    return str(folder / "a.txt")


def write_csv(folder):
    (folder / "it's.csv").write_text("id,x\n1,2\n3\n" + "4,5\n" * 20)
    return str(folder / "*.csv")


def write_latin_1(folder):
    (folder / "a.csv").write_text("name;x\nM\xfcller;1\nB\xe4r;2\n", encoding="latin-1")
    return str(folder / "a.csv")


def write_parquet(folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = sys.modules["pyarrow"].table({"x": [1, None], "name": ["a", "b"]})
    parquet.write_table(table, folder / "a.parquet")
    return str(folder)


@pytest.mark.parametrize(
    ("verb", "write"),
    [
        *itertools.product(
            ["inspect", "convert"], [write_npz, write_text, write_csv, write_latin_1, write_parquet]
        ),
        *itertools.product(["index"], [write_npz, write_text, write_csv, write_latin_1]),
    ],
)
def test_the_lines_to_type_for_a_remedy_in_python_do_it(write, verb, tmp_path, monkeypatch, capsys):
    path = write(tmp_path)
    monkeypatch.chdir(tmp_path)
    tensors = ["--tensor", "image", "--tensor", "mask"] if write is write_npz else []
    options = {"inspect": [], "convert": ["out.tfrecord", *tensors], "index": ["-o", "y.manifest"]}

    assert cli.main([verb, path, *options[verb]]) == 2
    message = capsys.readouterr().err

    assert cli.IN_PYTHON in message
    in_python, *in_shell = [
        shlex.split(line) for line in message.splitlines() if line.startswith(cli.COMMAND)
    ]
    assert in_python[:2] == ["python", "-c"]
    assert "'" not in in_python[2]  # those of the shell stand around it
    exec(in_python[2], {})
    assert (tmp_path / ("y.manifest" if verb == "index" else cli.MANIFEST)).exists()
    assert [line[:2] for line in in_shell] == ([] if verb == "index" else [["gpuload", verb]])
    statuses = [cli.main(line[1:]) for line in in_shell]
    assert set(statuses) <= (
        {1, 2} if write is write_csv else {0}
    )  # its wrong line is a damaged record now
    assert "has no option" not in capsys.readouterr().err


def test_calls_of_which_there_is_no_manifest_are_no_lines_to_type(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.array([1], np.int32))
    np.save(tmp_path / "b.npy", np.array([1], np.int64))

    assert cli.main(["inspect", f"{tmp_path}/*.npy"]) == 2
    message = " ".join(capsys.readouterr().err.split())

    assert "gl.concat(gl.npy(first), gl.npy(second), promote=True)" in message
    assert cli.IN_PYTHON not in message


def test_raw_records_are_inspected_by_a_manifest(tmp_path, capsys):
    path = tmp_path / "raw.bin"
    path.write_bytes(bytes(range(248, 256)) * 2)

    assert cli.main(["inspect", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    for text in (json.loads(captured.out)["error"]["remedy"], captured.err):
        assert f'gl.fixed("{path}", dtype).index("{cli.MANIFEST}")' in text

    manifest = gl.fixed(path, [("x", "u1", 8)]).index(tmp_path / cli.MANIFEST)
    assert cli.main(["inspect", manifest]) == 0
    assert "2 records in 1 file" in capsys.readouterr().out


def test_files_of_one_length_are_shown_with_one_length(tmp_path, capsys):
    Image.fromarray(SMOOTH).save(tmp_path / "0.bmp")
    assert inspect(tmp_path) == 0

    assert (
        "BMP; 40 x 60 pixels; 7.25 kB\n" in capsys.readouterr().out
    )  # 54 bytes of header, 3 bytes a pixel

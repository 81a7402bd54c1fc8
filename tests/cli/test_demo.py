"""gpuload demo."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload import cli

for package in ("sklearn", "PIL", "rich"):
    pytest.importorskip(package)

from gpuload_demo import command as demo  # noqa: E402
from gpuload_demo import data as demo_data  # noqa: E402
from gpuload_demo import parity as demo_parity  # noqa: E402
from gpuload_demo import rates as demo_rates  # noqa: E402
from gpuload_demo import report as demo_report  # noqa: E402
from gpuload_demo import resume as demo_resume  # noqa: E402
from gpuload_demo import sheet as demo_sheet  # noqa: E402
from gpuload_demo import train as demo_train  # noqa: E402
from rich.console import Console  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo's data, written once, with fewer rows, records and pieces of photographs for its
    rates."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_data, "NUM_BENCHMARK", 2_000)
        patch.setattr(demo_data, "NUM_PIECES", 64)
        demo_data.write(folder, demo_data.load_digits())
        yield folder


# its command line


def test_the_sheet_needs_a_folder_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "is_installed", lambda package: True)

    assert cli.main(["demo", "--output", str(tmp_path / "none" / "sheet.png")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_the_sheet_cannot_be_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--output", str(tmp_path)]) == 2
    assert "it is a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("--seconds", "nan"),
        ("--seconds", "-1"),
        ("--seconds", "x"),
        ("--epochs", "0"),
        ("--epochs", "1.5"),
    ],
)
def test_a_number_that_is_none_is_refused_in_words(
    argument: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", argument, value]) == 2
    message = capsys.readouterr().err
    assert f"Invalid value for '{argument}': " in message
    assert value in message


def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "is_installed", lambda package: package != "sklearn")

    assert cli.main(["demo"]) == 2
    assert 'pip install "gpuload[demo]"' in capsys.readouterr().err


def test_one_command_installs_all_packages_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "is_installed", lambda package: package == "PIL")

    assert cli.main(["demo"]) == 2
    assert 'pip install "gpuload[demo,cpu]"' in capsys.readouterr().err


# its data


def test_the_shards_have_different_headers_and_together_hold_all_digits(folder: Path) -> None:
    digits = demo_data.load_digits()
    paths = sorted((folder / "npy").glob("images-*.npy"))

    heads = {path.read_bytes()[6:128].split(b"}")[0] for path in paths}
    rows = np.concatenate([np.load(path) for path in paths])

    assert len(heads) == len(paths) == 5
    np.testing.assert_array_equal(rows, digits.images)


def test_shards_and_fixed_records_are_the_same_digits(folder: Path) -> None:
    with demo_data.npy(folder) as npy, demo_data.fixed(folder) as fixed:
        rows, records = npy.read(range(1797)), fixed.read(range(1797))

    np.testing.assert_array_equal(rows["image"], records["image"][..., 0])
    np.testing.assert_array_equal(rows["label"], records["label"])


# its parts


def test_another_process_resumes_with_the_batches_of_a_run_that_never_stopped(folder: Path) -> None:
    outcome = demo_resume.resume(folder, device="cpu")

    assert outcome.equal
    assert outcome.resumed_lines[0].startswith(f"epoch 0 step {demo_resume.STOP_AFTER} ")
    assert outcome.resumed_lines[-1].startswith("epoch 1 step 28 ")
    assert (
        len(set(outcome.resumed_lines))
        == len(outcome.resumed_lines)
        == 2 * 29 - demo_resume.STOP_AFTER
    )


def test_a_state_of_another_step_resumes_with_other_batches(folder: Path) -> None:
    with demo_resume.loader(folder, device="cpu") as whole:
        state = whole.state_dict()
    (folder / "state.json").write_text(json.dumps(state))

    lines = demo_resume._in_a_new_process(folder, "cpu")

    assert lines[0].startswith("epoch 0 step 0 ")
    assert len(lines) == 2 * 29


def test_the_digest_of_a_batch_is_of_all_its_bytes(folder: Path) -> None:
    with demo_resume.loader(folder, device="cpu") as loader:
        batch = loader.batch_at(3)
    expected = hashlib.sha256(
        batch.records.tobytes() + batch["image"].tobytes() + batch["label"].tobytes()
    ).hexdigest()

    assert demo_resume.digest(batch) == f"epoch 0 step 3 {expected[:16]}"


def test_the_contact_sheet_shows_the_photographs_their_views_and_some_digits(
    folder: Path, tmp_path: Path
) -> None:
    from PIL import Image

    size = demo_sheet.save(folder, tmp_path / "sheet.png", seed=0)

    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (size[1], size[0], 3)
    stored, views = demo_sheet.photographs(folder, seed=0)[0]
    top, left = demo_sheet.MARGIN + demo_sheet.TITLE + demo_sheet.CAPTION, demo_sheet.MARGIN
    shown = sheet[top : top + stored.shape[0], left : left + stored.shape[1]]
    assert (shown == stored).all(axis=2).mean() > 0.8  # but for the boxes
    left += stored.shape[1] + 2 * demo_sheet.GAP
    inner = slice(1, demo_sheet.VIEW - 1)
    for view in views[: demo_sheet.NUM_COLUMNS]:
        shown = sheet[top : top + demo_sheet.VIEW, left : left + demo_sheet.VIEW]
        np.testing.assert_array_equal(shown[inner, inner], view.pixels[inner, inner])
        left += demo_sheet.VIEW + demo_sheet.GAP
    digit = (
        demo_data.load_digits().images[demo_sheet.DIGITS[-1]].repeat(14, axis=0).repeat(14, axis=1)
    )
    bottom, left = size[1] - demo_sheet.MARGIN - demo_sheet.GAP, demo_sheet.MARGIN
    np.testing.assert_array_equal(sheet[bottom - 112 : bottom, left : left + 112, 0], digit)


def test_a_view_shows_what_is_in_its_box(folder: Path) -> None:
    from PIL import Image

    def likeness(first: Any, second: Any) -> float:
        return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])

    for stored, views in demo_sheet.photographs(folder, seed=0):
        assert (
            len({(view.top, view.left, view.bottom, view.right) for view in views})
            == demo_sheet.NUM_EPOCHS
        )
        likenesses = []
        for view in views:
            box = Image.fromarray(stored[view.top : view.bottom, view.left : view.right])
            resized = np.asarray(
                box.resize((demo_sheet.VIEW, demo_sheet.VIEW), Image.Resampling.BILINEAR)
            )
            expected, turned = (
                (resized[:, ::-1], resized) if view.is_mirrored else (resized, resized[:, ::-1])
            )
            likenesses.append(likeness(expected, view.pixels))
            assert likenesses[-1] > likeness(turned, view.pixels) + 0.1
        assert min(likenesses) > 0.85  # bright pixels are cut off at 255
        assert np.median(likenesses) > 0.99


@pytest.mark.slow
def test_augmentation_is_worth_something(folder: Path) -> None:
    pytest.importorskip("tensorflow")

    worth = demo_train.worth(folder, seed=0, device="cpu", say=lambda text: None)

    assert worth.num_held_out == 1797 - demo_train.NUM_FEWER
    assert 0 < worth.wrong_with < worth.wrong_without < 0.15 * worth.num_held_out


# its rates are of the works that the benchmarks have


def test_the_photographs_are_the_first_ones_of_the_benchmark(folder: Path) -> None:
    from sklearn.datasets import load_sample_images

    from benchmarks import data

    rng, photographs = np.random.default_rng(data.SEED), load_sample_images().images
    written = sorted((folder / "photos").glob("*/*.jpg"), key=lambda path: path.name)

    assert len(written) == demo_data.NUM_PIECES
    for number, path in enumerate(written[:8]):
        photograph = photographs[number % 2]
        assert path.read_bytes() == data.draw_piece(rng, photograph).encoded(photograph)


WORKS = ("npy_rows", "fixed_images", "jpeg_training")


def asked_of(folder: Path, name: str, variant: str, flat: Path) -> tuple[Any, Any]:
    """Return the question of a benchmark, and its work on the demo's data."""
    from benchmarks import question

    benchmark = question.find(name)
    if name == "jpeg_training":
        for path in (folder / "photos").glob("*/*.jpg"):
            shutil.copy(path, flat)
        return benchmark, question.Work(variant, flat, demo_data.NUM_PIECES, benchmark.batch_size)
    path = folder / "measured" / {"npy_rows": "rows.npy", "fixed_images": "records.bin"}[name]
    return benchmark, question.Work(variant, path, demo_data.NUM_BENCHMARK, benchmark.batch_size)


@pytest.mark.parametrize("name", WORKS)
def test_a_work_of_the_rates_has_the_records_ops_and_batches_of_its_benchmark(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    loaders: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(gl, "Loader", lambda source, **options: loaders.append((source, options)))
    benchmark, work = asked_of(folder, name, "shuffled", tmp_path)

    works = demo_rates.works(folder, device="cpu")
    benchmark.peer("gpuload").build(work)

    assert tuple(entry.table for entry in works) == WORKS
    (source, settings), (_, reference) = loaders[WORKS.index(name)], loaders[-1]
    assert list(settings["ops"]) == list(reference.get("ops", ()))
    assert settings["batch_size"] == reference["batch_size"] == benchmark.batch_size
    assert settings["shuffle"] is reference["shuffle"] is True
    assert len(source) <= benchmark.num_records[0]


@pytest.mark.parametrize("name", WORKS)
def test_tf_data_makes_the_batches_that_it_makes_in_the_benchmark(
    folder: Path, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("tensorflow")
    benchmark, work = asked_of(folder, name, "shuffled-tf", tmp_path)
    rate = demo_rates.works(folder, device="cpu")[WORKS.index(name)]

    tensors = next(
        benchmark.peer("tfdata_gather" if name == "npy_rows" else "tfdata").build(work)()
    )
    batch = next(iter(rate.tf_data()))

    tensors = tensors if isinstance(tensors, tuple) else (tensors,)
    assert [(tensor.shape, tensor.dtype) for tensor in batch] == [
        (tensor.shape, tensor.dtype) for tensor in tensors
    ]
    means = [
        float(images[-1].numpy().mean()) for images in (batch, tensors)
    ]  # of other records, of the same pictures
    assert abs(means[0] - means[1]) < 0.5 * float(tensors[-1].numpy().std())


def test_on_a_gpu_it_is_said_that_the_tables_are_of_cpus() -> None:
    assert demo_rates.notes("cpu") == list(demo_rates.NOTES)
    assert "those tables are of CPUs" in demo_rates.notes("gpu:0")[-1]


# what it says at the end


def test_a_check_that_fails_is_named_at_the_end_and_is_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = demo_report.Report()
    report.check(True, "it holds", otherwise="it does not")
    report.check(False, "it holds", otherwise="accuracy is 12 %")

    status = report.end(1.0)

    assert status == 1
    assert capsys.readouterr().out.count("accuracy is 12 %") == 2


def test_the_demo_ends_with_status_1_if_the_network_learns_too_little(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "is_installed", lambda package: True)
    monkeypatch.setattr(demo, "_write", lambda *arguments: None)
    monkeypatch.setenv("GPULOAD_PROGRESS", "0")  # as the demo sets it; here it is undone
    for part in ("_augment", "_resume", "_compare", "_measure"):
        monkeypatch.setattr(demo, part, lambda *arguments: None)
    learnt = demo_train.Training(
        after_fit=100, right=170, num_held_out=180, num_epochs=1, num_shared=0, num_copied=0
    )
    monkeypatch.setattr(demo_train, "train", lambda *arguments, **options: learnt)
    pytest.importorskip("tensorflow")

    assert cli.main(["demo", "--device", "cpu"]) == 1
    assert "accuracy on held-out digits is 94.4%, below 95%" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_whole_demo_holds(tmp_path: Path) -> None:
    for package in ("tensorflow", "nvidia.dali", "cv2"):
        pytest.importorskip(package)
    command = [
        sys.executable,
        "-m",
        "gpuload",
        "demo",
        "--output",
        "sheet.png",
        "--seconds",
        "0.2",
        "--device",
        "cpu",
    ]
    surroundings = {**os.environ, "PYTHONPATH": str(Path(gl.__file__).parents[1]), "COLUMNS": "120"}

    process = subprocess.run(
        command,
        cwd=tmp_path,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert process.returncode == 0, process.stdout + process.stderr
    assert "All of it held" in process.stdout
    for fact in (
        "held-out digits right",
        "never stopped",
        "largest difference",
        "digits alone is wrong",
        "same work",
    ):
        assert fact in process.stdout
    assert (tmp_path / "sheet.png").stat().st_size > 10_000


def test_parity_bounds_the_largest_difference_on_a_cpu_and_the_mean_on_a_gpu():
    images = np.zeros((4, 2, 2, 3), np.uint8)
    other = images.copy()
    other[0, 0, 0] = 9, 0, 0  # 9 of 48 values: a mean of 0.1875

    def apart(tolerance, changed):
        loaders = (
            gl.Loader(gl.arrays(image=values), 2, device="cpu") for values in (images, changed)
        )
        return demo_parity._compare_loaders("squares", tolerance, *loaders)

    assert apart(0, images).holds
    assert not apart(1, other).holds
    assert apart(None, other).holds
    assert not apart(None, images + 2).holds
    assert str(apart(None, other)) == (
        "4 squares: largest difference 9 of 255 levels, mean 0.188, on 2.0833% of the values"
    )
    assert apart(None, other).bound == "mean 1"


@pytest.mark.parametrize("width", [60, 80])
def test_in_a_narrow_terminal_the_table_of_rates_is_folded_and_nothing_cut(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    rate = demo_report.Rate(
        "JPEGs of 500 x 375: crop, resize, flip, normalise", "jpeg_training", 1_653_104, 633_515
    )

    demo_report.Report(console).rates([rate], [])

    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert any("1,653,104   633,515   2.6 x   jpeg_training" in line for line in lines)

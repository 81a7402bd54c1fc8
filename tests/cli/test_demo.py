"""The command line, and the demo on it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload import cli
from gpuload.errors import SpecError

for package in ("sklearn", "PIL", "rich"):
    pytest.importorskip(package)

from gpuload.cli import demo, demo_data, demo_report, demo_resume, demo_sheet, demo_train  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's data, written once."""
    folder = tmp_path_factory.mktemp("demo")
    demo_data.write(folder, demo_data.load_digits())
    return folder


# the command line


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("gpuload ")


def test_no_verb_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([])

    assert ended.value.code == 2
    assert "VERB" in capsys.readouterr().err


def test_an_error_of_gpuload_is_its_message_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(arguments: Any) -> int:
        raise SpecError("what", cause="because", remedy="do this")

    monkeypatch.setattr(demo, "run", fails)

    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == "SpecError: what\n  cause:  because\n  remedy: do this\n"


def test_a_folder_that_is_not_there_is_an_error_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "_is_installed", lambda package: True)

    assert cli.main(["demo", "--output", str(tmp_path / "none" / "sheet.png")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_is_installed", lambda package: package != "sklearn")

    assert cli.main(["demo"]) == 2
    assert 'pip install ".[demo]"' in capsys.readouterr().err


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
    done = demo_resume.resume(folder, device="cpu")

    assert done.equal
    assert done.resumed[0].startswith(f"epoch 0 step {demo_resume.STOP_AFTER} ")
    assert done.resumed[-1].startswith("epoch 1 step 28 ")
    assert len(set(done.resumed)) == len(done.resumed) == 2 * 29 - demo_resume.STOP_AFTER


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
    expected = hashlib.sha256(batch.records.tobytes() + batch["image"].tobytes() + batch["label"].tobytes()).hexdigest()

    assert demo_resume.digest(batch) == f"epoch 0 step 3 {expected[:16]}"


def test_the_contact_sheet_shows_what_is_stored_in_its_first_column(folder: Path, tmp_path: Path) -> None:
    from PIL import Image

    size = demo_sheet.save(folder, tmp_path / "sheet.png", seed=0)

    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    first = demo_data.load_digits().images[0].repeat(14, axis=0).repeat(14, axis=1)
    top = demo_sheet.MARGIN + demo_sheet.TITLE + demo_sheet.HEADING
    left = demo_sheet.MARGIN
    assert sheet.shape == (size[1], size[0], 3)
    np.testing.assert_array_equal(sheet[top : top + 112, left : left + 112, 0], first)


def test_a_check_that_fails_is_named_at_the_end_and_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    report = demo_report.Report()
    report.check(True, "it holds", otherwise="it does not")
    report.check(False, "it holds", otherwise="accuracy is 12 %")

    status = report.end(1.0)

    assert status == 1
    assert capsys.readouterr().out.count("accuracy is 12 %") == 2


def test_the_demo_ends_with_status_1_if_the_network_learns_too_little(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_is_installed", lambda package: True)
    monkeypatch.setattr(demo, "_write", lambda *arguments: None)
    for part in ("_resume", "_compare", "_measure", "_sheet"):
        monkeypatch.setattr(demo, part, lambda *arguments: None)
    learnt = demo_train.Trained(after_fit=100, right=170, num_held_out=180, num_epochs=1, shared=0, copied=0)
    monkeypatch.setattr(demo_train, "train", lambda *arguments, **options: learnt)
    pytest.importorskip("tensorflow")

    assert cli.main(["demo", "--device", "cpu"]) == 1
    assert "accuracy on held-out digits is 94.4%, below 95%" in capsys.readouterr().out


def test_the_whole_demo_holds(tmp_path: Path) -> None:
    for package in ("tensorflow", "nvidia.dali", "cv2"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "gpuload", "demo", "--output", "sheet.png", "--seconds", "0.2", "--device", "cpu"]
    surroundings = {**os.environ, "PYTHONPATH": str(Path(gl.__file__).parents[1]), "COLUMNS": "120"}

    done = subprocess.run(
        command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=240, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for fact in ("All of it held", "held-out digits right", "never stopped", "largest difference", "plain tf.data"):
        assert fact in done.stdout
    assert (tmp_path / "sheet.png").stat().st_size > 10_000

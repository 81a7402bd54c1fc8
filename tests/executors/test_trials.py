"""What gpuload doctor found is heeded by executor="auto" and by the decoding of regions, and is
named."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.executors import choose, trials
from gpuload.executors.trials import Failure
from gpuload.graph.graph import compile_ops
from gpuload.storage import derivedfiles
from tests.codeblocks import ROOT

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Have a cache folder of its own, and each warning anew."""
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(trials.SWITCH, raising=False)
    choose._warn.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def loader_of(photos, **words):
    ops = [gl.ops.Decode(), gl.ops.RandomCrop(20, 20)]
    return gl.Loader(gl.images(photos, labels=None), 2, ops=ops, seed=3, device="cpu", **words)


WHOLE = Failure("array", "cpu", "PNG", False, "it ended the process (SIGSEGV)")
REGION = Failure("array", "cpu", "PNG", True, "largest 9")


def test_what_is_stored_is_loaded_for_its_executor_and_device_alone(cache):
    on_gpu = Failure("dali", "gpu", "WebP", False, "it took more than 120 s")
    trials.save([WHOLE, REGION, on_gpu])

    assert trials.load("array", "cpu") == (WHOLE, REGION)
    assert trials.load("dali", "gpu:1") == (on_gpu,)
    assert trials.load("dali", "cpu") == ()
    (path,) = (cache / "doctor").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_a_failure_nothing_is_stored_and_what_was_stored_is_removed(cache):
    trials.save([])
    assert not cache.exists()

    trials.save([WHOLE])
    trials.save([])

    assert trials.load("array", "cpu") == ()
    assert list((cache / "doctor").iterdir()) == []


def test_another_version_of_a_codec_knows_nothing(monkeypatch):
    trials.save([WHOLE])
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99.0")

    assert trials.load("array", "cpu") == ()


@pytest.mark.parametrize("damage", ["short", "other bytes", "of others"])
def test_a_file_that_is_damaged_or_that_others_may_write_is_not_believed(damage, cache):
    path = Path(trials.save([WHOLE]))
    content = path.read_bytes()
    if damage == "of others":
        path.chmod(0o666)
    else:
        path.write_bytes(
            content[:-9] if damage == "short" else content.replace(b"SIGSEGV", b"SIGSEGX")
        )

    assert trials.load("array", "cpu") == ()


def test_a_cache_folder_that_cannot_be_written_is_an_error_with_its_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "file"))

    with pytest.raises(gl.GpuloadError, match="is not written") as refusal:
        trials.save([WHOLE])

    assert derivedfiles.FOLDER in refusal.value.remedy
    assert trials.load("array", "cpu") == ()


def test_regions_that_fail_are_cut_from_whole_images_with_the_same_pixels(photos, caplog):
    with loader_of(photos) as loader:
        expected = [batch["image"].copy() for batch in loader]
        assert "doctor" not in loader.describe()
    trials.save([REGION])

    with caplog.at_level(logging.WARNING, "gpuload"), loader_of(photos) as loader:
        batches = [batch["image"].copy() for batch in loader]

    text = "whole images are decoded and cut: gpuload doctor found that array on cpu fails at PNG, a region: largest 9"
    assert f"doctor:    {text}" in loader.describe().splitlines()
    assert [message for message in caplog.messages if "doctor" in message] == [text]
    assert all(crop is None for crop in loader.port.graph.crops)
    for batch, other in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(batch, other)


def test_no_region_is_decoded_where_regions_fail(photos, monkeypatch):
    pytest.importorskip("nvidia.nvimgcodec")
    regions = []
    decode_file = gl.ops.Decode.decode_file
    monkeypatch.setattr(choose.trials, "load", lambda name, device: (REGION,))
    monkeypatch.setattr(
        gl.ops.Decode, "decode_file",
        lambda self, x, region=None, *words, **extra: (
            regions.append(region), decode_file(self, x, region, *words, **extra)
        )[1],
    )  # fmt: skip

    with loader_of(photos) as loader:
        sum(1 for _ in loader)

    assert [region for region in regions if region is not None] == []


@pytest.mark.parametrize(("decode", "is_cut"), [("host", True), ("device", False)])
def test_for_a_gpu_regions_of_the_cpu_count_where_the_host_decodes(decode, is_cut):
    trials.save([REGION])
    spec = gl.Spec((gl.Field("image", np.dtype(np.uint8), (None,), encoded=True),))
    graph = compile_ops(spec, [gl.ops.Decode(), gl.ops.RandomCrop(20, 20)])

    changed_graph, text = choose.heed_failures(graph, choose.Choice("array", decode, ""), "gpu:0")

    assert (changed_graph.crops == (None, None)) == is_cut
    assert bool(text) == is_cut


def test_auto_leaves_an_executor_that_fails_where_the_other_does_not(photos, caplog):
    pytest.importorskip("nvidia.dali")
    trials.save([WHOLE])

    with caplog.at_level(logging.WARNING, "gpuload"), loader_of(photos) as loader:
        description = loader.describe()
    with loader_of(photos, executor="array") as array_loader:
        array_description = array_loader.describe()

    (line,) = (line for line in description.splitlines() if line.startswith("executor:"))
    assert line.startswith("executor:  dali")
    assert line.endswith(f"({WHOLE})")
    assert f"DALI decodes images: {WHOLE}" in caplog.messages
    assert "executor:  array" in array_description
    assert f"doctor:    {WHOLE}" in array_description.splitlines()


def test_where_both_fail_auto_is_as_ever_and_names_the_failure(photos):
    pytest.importorskip("nvidia.dali")
    trials.save([WHOLE, Failure("dali", "cpu", "PNG", False, "it ended the process (SIGABRT)")])

    with loader_of(photos) as loader:
        assert "executor:  array" in loader.describe()
        assert f"doctor:    {WHOLE}" in loader.describe().splitlines()


def test_loaders_without_images_and_those_that_are_told_so_heed_nothing(photos, monkeypatch):
    trials.save([WHOLE, REGION])

    with gl.Loader(
        gl.arrays(x=np.zeros((4, 8, 8, 3), np.uint8)), 2, ops=[gl.ops.RandomFlip(on="x")]
    ) as loader:
        assert "doctor" not in loader.describe()
    monkeypatch.setenv(trials.SWITCH, "0")
    with loader_of(photos) as loader:
        assert "doctor" not in loader.describe()


def test_a_loader_that_is_sent_to_another_process_heeds_what_is_stored_there(photos):
    loader = loader_of(photos)
    text = pickle.dumps(loader)
    loader.close()
    trials.save([REGION])

    with pickle.loads(text) as arrived:
        assert "doctor:" in arrived.describe()


def test_doctor_stores_what_failed_and_removes_it_when_it_is_mended(cache, monkeypatch):
    from gpuload.cli import doctor_images
    from gpuload.cli.parity_images import samples

    works = [f"{title}, {part}" for title, _ in samples() for part in ("whole", "region")]
    program = (
        "import json, os, sys\n"
        f"works = {works}\n"
        "for number, work in list(enumerate(works))[int(sys.argv[3]):]:\n"
        "    if work == 'PNG, region' and sys.argv[1] == 'array': os.abort()\n"
        "    print(json.dumps([work, 'ok', '']), flush=True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with monkeypatch.context() as patch:
        patch.setattr(doctor_images, "TRY_IMAGES", program)
        findings = {finding.subject: finding for finding in doctor_images.diagnose_images()}

    assert findings["PNG, a region, array on cpu"].about == "it ended the process (SIGABRT)"
    assert findings["findings"].state == "ok"
    failure = Failure("array", "cpu", "PNG", True, "it ended the process (SIGABRT)")
    assert trials.load("array", "cpu") == (failure,)

    monkeypatch.setattr(doctor_images, "TRY_IMAGES", program.replace("os.abort()", "pass"))
    assert [finding.state for finding in doctor_images.diagnose_images()] == ["ok"] * (
        1 + bool(importlib.metadata.version("nvidia-dali-cuda130"))
    )
    assert trials.load("array", "cpu") == ()


def test_the_trials_themselves_heed_nothing(photos, cache):
    """A region that is tried while an old failure is stored is decoded as a region."""
    trials.save([REGION])
    code = "import sys; from gpuload.cli.doctor_base import run_child; print(run_child(sys.argv[1])[1])"
    program = "from gpuload.executors import trials; print(trials.load('array', 'cpu'))"

    process = subprocess.run(
        [sys.executable, "-c", code, program], capture_output=True, text=True, timeout=100, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert process.stdout.strip() == "()"
    assert trials.load("array", "cpu") == (REGION,)

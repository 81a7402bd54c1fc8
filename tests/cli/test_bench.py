"""``gpuload bench``: figures of a loop, limits of the machine, peers, and the sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gpuload_peers import loaders as bench_peers

import gpuload as gl
from gpuload import cli
from gpuload.cli.bench import limit_lines, measure_loop
from gpuload.cli.bench_limits import measure_limits
from gpuload.stats import Limits, StageLimit
from gpuload.stats.bottleneck import RULES
from tests.imagefiles import jpeg

QUICK = ["--seconds", "0.2"]


@pytest.fixture
def rows(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(64_000, dtype=np.float32).reshape(1000, 64))
    return tmp_path / "rows.npy"


def test_the_document_has_rates_limits_stages_and_the_sentence(rows, capsys):
    assert cli.main(["bench", str(rows), "--batch-size", "10", *QUICK, "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["records_per_s"] == pytest.approx(10 * document["batches_per_s"])
    assert document["bytes_per_s"] == pytest.approx(256 * document["records_per_s"])
    assert (
        min(document["limits"][name] for name in ("sequential_bytes", "random_bytes", "copy_bytes"))
        > 0
    )
    stages = {stage["name"]: stage for stage in document["stages"]}
    assert set(stages) == {"draw", "read"}
    assert 0 <= stages["read"]["fill"] <= 1
    beside = {limit["name"]: limit for limit in stages["read"]["limits"]}
    assert {name: limit["limit"] for name, limit in beside.items()} == {
        name: document["limits"][name]
        for name in ("copy_bytes", "random_bytes", "sequential_bytes")
    }
    assert beside["copy_bytes"]["rate"] == pytest.approx(stages["read"]["bytes_per_s"])
    assert beside["random_bytes"]["share"] == pytest.approx(
        stages["read"]["bytes"] / document["counts"]["loop_s"] / document["limits"]["random_bytes"]
    )
    assert (
        document["bottleneck"]["sentence"]
        .lower()
        .startswith(document["bottleneck"]["cause"].lower())
    )


@pytest.mark.parametrize("columns", [80, 60, 200])
def test_lines_fit_the_terminal_and_80_columns_and_end_with_the_sentence(
    columns, rows, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(["bench", str(rows), "--step-ms", "20", "--seconds", "0.2"]) == 0

    text = capsys.readouterr().out
    lines = [line for line in text.splitlines() if str(rows) not in line]  # a path is not broken
    rates = [line for line in lines if "records/s" in line]  # wrapped where stdout is a terminal
    assert max(len(line) for line in lines if line not in rates) <= min(columns, 80)
    sentence = " ".join(text.split("\n\n")[-1].split())
    assert sentence.partition(":")[0].lower() in {rule.cause.lower() for rule in RULES}


def test_damaged_images_are_told_or_replaced(tmp_path, capsys):
    for number in range(20):
        (tmp_path / f"{number:02}.jpg").write_bytes(jpeg(40, 40 + number))
    (tmp_path / "11.jpg").write_bytes((tmp_path / "11.jpg").read_bytes()[:300])
    call = ["bench", str(tmp_path), "--batch-size", "5", "--device", "cpu", *QUICK]

    assert cli.main(call) == 2
    error = capsys.readouterr().err
    assert "11.jpg" in error
    assert "a fault of gpuload" not in error
    assert "remedy: repair it, or train without it: --on-error replace; `gpuload check" in " ".join(
        error.split()
    )

    assert cli.main([*call, "--on-error", "replace"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1 damaged record, the first: " in text
    assert "11.jpg" in text
    assert cli.main([*call, "--on-error", "skip", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_bad_records"] == 1
    assert document["limits"]["decode_images"] > 0


def test_steps_that_take_long_are_the_loop(rows):
    with gl.Loader(gl.npy(rows), 10, device="cpu") as loader:
        run = measure_loop(loader, 0.2, 0.01)
    assert run.stats.training_s > 0.0099 * run.stats["batches"] > 0
    assert run.rate("batches") < 101


def test_images_are_decoded_and_resized_where_no_ops_are_given(tmp_path, capsys):
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(64, 96))
    assert cli.main(["bench", str(tmp_path / "*.jpg"), "--batch-size", "2", *QUICK, "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["limits"]["decode_images"] > 0
    assert document["bytes_per_s"] > 0.99 * 224 * 224 * 3 * document["records_per_s"]


def test_ops_are_those_of_a_file(rows, tmp_path, capsys):
    (tmp_path / "ops_of_bench.py").write_text(
        "import gpuload as gl\ntrain = [gl.ops.Cast('float64')]\n"
    )
    words = ["bench", str(rows), "--ops", f"{tmp_path / 'ops_of_bench.py'}:train", *QUICK, "--json"]
    assert cli.main(words) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["bytes_per_s"] == pytest.approx(512 * document["records_per_s"])


@pytest.mark.parametrize("peer", ["tfdata", "torch"])
def test_a_peer_reads_the_same_files(peer, rows):
    rate = bench_peers.measure_peer(peer, gl.npy(rows), 10, True, 0.1)
    if isinstance(rate, str):
        assert rate.startswith("is not installed: ")
    else:
        assert rate > 0


def test_files_that_a_peer_does_not_read_are_said(tmp_path):
    pytest.importorskip("tensorflow")
    (tmp_path / "x.bin").write_bytes(bytes(100))
    rate = bench_peers.measure_peer("tfdata", gl.fixed(tmp_path / "x.bin", "u1"), 10, True, 0.1)
    assert rate == "has no plain loader for these files here"


def test_a_peer_that_is_unknown_is_refused(rows, capsys):
    assert cli.main(["bench", str(rows), "--against", "tfdata,grain"]) == 2
    assert "grain is no peer that it knows" in capsys.readouterr().err


def test_limits_of_records_in_memory_are_those_of_memory():
    limits = measure_limits(gl.arrays(x=np.zeros(10)), on_gpu=False, seconds=0.01)
    assert (limits.sequential_bytes, limits.decode_images, limits.pinned_bytes) == (0, 0, 0)
    assert limits.copy_bytes > 0


def test_limits_that_stand_beside_no_stage_are_lines_of_their_own():
    assert limit_lines(Limits(), []) == []
    assert limit_lines(Limits(copy_bytes=2e9, decode_images=100), [()]) == [
        "memory copy                     2,000 MB/s",
        "decoding alone, one thread        100 images/s",
    ]
    beside = [(StageLimit("copy_bytes", "bytes", 1e9, 2e9),)]
    assert [
        line[:11] for line in limit_lines(Limits(copy_bytes=2e9, decode_images=100), beside)
    ] == [
        "memory copy",
        "decoding al",
    ]

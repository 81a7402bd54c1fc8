"""``Loader(trace=...)`` writes what each thread did when, as Perfetto reads it."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload import core
from gpuload.errors import FileError, SpecError
from gpuload.stats import stages, trace


def events(path: Path, kind: str = "X") -> list[dict]:
    """Return the events of a kind in a file."""
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == kind]


def test_each_stage_of_each_step_is_an_event_of_its_thread(tmp_path: Path):
    path = tmp_path / "trace.json"
    ops = [gl.ops.Python(lambda x: x + 1, out={})]
    with gl.Loader(gl.arrays(x=np.zeros((64, 4))), 16, ops=ops, device="cpu", trace=path) as loader:
        list(loader)

    calls = [event["args"] for event in events(path) if event["name"] == "python ops"]
    assert {call["step"] + i for call in calls for i in range(call["num_steps"])} == {0, 1, 2, 3}
    assert [e["args"]["step"] for e in events(path) if e["name"] == "hand-over"] == [0, 1, 2, 3]
    names = {event["tid"]: event["args"]["name"] for event in events(path, "M")}
    assert all(
        names[event["tid"]].startswith("gpuload-")
        for event in events(path)
        if event["name"] == "python ops"
    )
    assert names[threading.get_native_id()] == threading.current_thread().name


@pytest.mark.skipif(core.native is None, reason=f"no core: {core.problem}")
def test_copies_of_the_core_are_events_within_the_loop(tmp_path: Path):
    path = tmp_path / "trace.json"
    np.save(tmp_path / "x.npy", np.zeros((512, 64), np.float32))
    loader = gl.Loader(gl.npy(tmp_path / "x.npy"), 16, device="cpu", trace=path)
    for _ in loader:
        pass

    reads = [event for event in events(path) if event["name"] == "read"]
    loop = [event for event in events(path) if event["name"] in ("waiting", "hand-over")]
    assert {event["args"]["step"] for event in reads} == set(range(32))
    end = max(event["ts"] + event["dur"] for event in loop)
    assert all(event["ts"] + event["dur"] <= end for event in reads)


def test_events_of_a_thread_do_not_overlap(tmp_path: Path):
    path = tmp_path / "trace.json"
    ops = [gl.ops.Cast("float64")]
    with gl.Loader(
        gl.arrays(x=np.zeros((640, 4), np.float32)), 16, ops=ops, device="cpu", trace=path
    ) as loader:
        list(loader)

    for thread in {event["tid"] for event in events(path)}:
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events(path) if e["tid"] == thread)
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in itertools.pairwise(spans))


def test_the_number_of_events_is_bounded_and_the_file_says_how_many_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trace, "MOST_EVENTS", 10)
    path = tmp_path / "trace.json"
    with gl.Loader(gl.arrays(x=np.zeros((640, 4))), 16, device="cpu", trace=path) as loader:
        list(loader)

    assert len(events(path)) == 10
    assert json.loads(path.read_text())["otherData"]["events left out"] > 100


def test_batches_are_the_same_with_a_trace(tmp_path: Path):
    source = gl.arrays(x=np.arange(640).reshape(64, 10))
    plain = gl.Loader(source, 16, shuffle=True, device="cpu")
    traced = plain.replace(trace=tmp_path / "trace.json")
    for batch, other in zip(plain, traced, strict=True):
        np.testing.assert_array_equal(batch["x"], other["x"])


@pytest.mark.parametrize(
    ("path", "error"), [(3, SpecError), ("", SpecError), (".", FileError), ("no/x.json", FileError)]
)
def test_a_wrong_path_is_an_error_when_the_loader_is_made(path, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match="trace = "):
        gl.Loader(gl.arrays(x=np.zeros(4)), 2, device="cpu", trace=path)


def test_what_cannot_be_written_leaves_no_file_and_names_the_cause(tmp_path: Path):
    folder = tmp_path / "gone"
    folder.mkdir()
    loader = gl.Loader(gl.arrays(x=np.zeros(4)), 2, device="cpu", trace=folder / "trace.json")
    folder.rmdir()
    with pytest.raises(FileError, match="is not written"):
        loader.close()


def test_stages_are_ranges_of_a_profiler(monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    monkeypatch.setattr(stages, "_ranges", [])
    stages.mark_ranges(calls.append, lambda: calls.append("end"))
    with stages.Watch() as watch:
        watch.enter("read")
        watch.enter("ops")
    assert calls == ["gpuload read", "end", "gpuload ops", "end"]


def test_without_cupy_ranges_that_are_asked_for_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog
):
    monkeypatch.setenv("GPULOAD_NVTX", "1")
    monkeypatch.setattr(stages, "_ranges", [])
    monkeypatch.setattr(gl.device, "nvtx_ranges", lambda: None)
    gl.Loader(gl.arrays(x=np.zeros(4)), 2, device="cpu")
    assert "GPULOAD_NVTX is set, but stages are not marked" in caplog.text

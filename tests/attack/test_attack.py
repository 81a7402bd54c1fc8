"""The attack finds nothing, tries much, and would find what is planted; its long form is
`make attack`."""

from __future__ import annotations

import dataclasses
import importlib
import os
import signal
import sys
from functools import partial

import numpy as np
import pytest

from gpuload import state as states_module
from gpuload.formats import columnar
from gpuload.formats.csv import parse, rows
from gpuload.formats.hdf5.chunks import Grid
from gpuload.formats.npy import npyheader
from gpuload.formats.npz import source as npz_source
from gpuload.formats.tfrecord import wire
from gpuload.formats.tfrecord.leaf import TFRecordLeaf
from gpuload.formats.webdataset import grouping, tar
from gpuload.formats.zarr import arrays as zarr_arrays
from gpuload.formats.zarr import source as zarr_source
from gpuload.images import decode, head
from gpuload.pipeline.damage import Damage
from gpuload.pipeline.epoch import Epoch
from gpuload.storage import keptfile, wildcards
from tests.attack import (
    archives,
    arrowtypes,
    bridges,
    changes,
    columns,
    damage,
    derived,
    endings,
    fixed,
    forks,
    formats,
    hdf5,
    heads,
    hunt,
    idx,
    interrupts,
    kills,
    lanes,
    natives,
    npy,
    npz,
    options,
    parsers,
    paths,
    pixels,
    planted,
    states,
    tables,
    tars,
    tfrecord,
    zarr,
)
from tests.attack.__main__ import PARTS, main, run_part
from tests.attack.children import ENDED, TOO_LONG, in_child
from tests.core.fuzz import run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="forks, /proc and limits of Linux"),
    pytest.mark.timeout(
        120
    ),  # `hunt` sets the timer of faulthandler, too, so that each test needs a new one
]
SECONDS = 100  # for all parts together, which with imports are more than two minutes
SHORT_S = 0.2  # for each part, and at least one trial
LONG = {
    "forks",
    "parsers",
    "natives",
}  # they start many processes, the last one compiles what they run
ALONE = {
    "interrupts",
    "endings",
}  # signals and threads of other tests would disturb them: a process of their own
SEED = 20_000  # always the same: new ones are for `make attack`


@pytest.fixture
def findings_folder(tmp_path, monkeypatch):
    """Keep what is found with the test, and not where findings lie that somebody has to look at;
    end with the first."""
    monkeypatch.setattr(hunt, "FINDINGS_FOLDER", tmp_path)
    monkeypatch.setattr(hunt, "MOST_FINDINGS", 1)
    monkeypatch.setenv("GPULOAD_ATTACK_KEPT", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("part", [part for part in PARTS if part not in LONG])
def test_a_short_attack_finds_nothing(findings_folder, part):
    attack = (
        partial(run_part, part)
        if part in ALONE
        else importlib.import_module(f"tests.attack.{part}").attack
    )

    report = attack(SHORT_S, SEED)

    if "all of it" in report.without:
        pytest.skip(report.without)
    assert report.findings == []
    assert report.tried > 0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("part", PARTS)
def test_an_attack_of_some_seconds_finds_nothing(part):
    report = run_part(part, SECONDS * PARTS[part] / sum(PARTS.values()), SEED)

    if "all of it" in report.without:
        pytest.skip(report.without)
    assert report.findings == []
    assert report.tried > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("error", "KeyError"),
        ("crash", "SIGSEGV"),
        ("hang", "Timeout"),
        ("memory", "memory grew by"),
    ],
)
def test_whatever_a_trial_does_is_a_finding_with_its_seed_and_the_attack_goes_on(
    monkeypatch, findings_folder, fault, message
):
    monkeypatch.setenv(planted.FAULT, fault)

    report = run_part("planted", 4, 100)

    first = report.findings[0]
    assert message in first
    assert "SEED=105," in first
    assert [path.read_text() for path in findings_folder.glob("seed-105-*/input")] == [fault]
    assert report.tried > 5


def test_the_status_of_the_command_says_whether_anything_was_found(
    monkeypatch, findings_folder, capsys
):
    monkeypatch.setenv(planted.FAULT, "error")

    status = main(["--only", "planted", "--seconds", "0.2", "--seed", "7"])

    printed = capsys.readouterr().out
    assert status == 1
    assert "seed 7" in printed
    assert "PART=planted SEED=12," in printed
    assert printed.splitlines()[-1].split()[0] == "planted"


def _key_error(*_):
    raise KeyError("planted")


def _with_one_less(real):
    return lambda *arguments: real(*arguments)[:-1]


def _repeating(real):
    """Return ``Epoch.__next__`` that delivers every tenth step twice."""
    latest = {}

    def deliver(run):
        batch = latest.get(id(run))
        if batch is None or batch.step % 10 != 9 or latest.get((id(run), batch.step)):
            batch = latest[id(run)] = real(run)
        else:
            latest[id(run), batch.step] = True
        return batch

    return deliver


Header = importlib.import_module(
    "gpuload.formats.idx"
).IdxHeader  # the package has a function of that name

# What is put in the place of what, for which part; each must be found in three seconds.
FAULTS = {
    "a parser that raises KeyError": (npy, npyheader, "_shape", lambda real: _key_error),
    "rows that begin one byte too late": (
        npy,
        npyheader,
        "_header_text",
        lambda real: _later(real),
    ),
    "a file that is cut without a word": (
        fixed,
        importlib.import_module("gpuload.formats.fixed.source"),
        "_num_records",
        lambda real: _whole,
    ),
    "a head that is one pixel too wide": (heads, head, "read", lambda real: _wider(real)),
    "samples of a TIFF that are turned around": (
        formats,
        decode.tiffs,
        "from_pillow",
        lambda real: lambda *arguments: real(*arguments)[::-1, ::-1],
    ),
    "a state that begins anew": (states, states_module, "_count", lambda real: lambda *_: 0),
    "a wildcard that leaves out a file": (paths, wildcards, "_wildcard", _with_one_less),
    "a record said to be one byte too late": (
        tfrecord,
        TFRecordLeaf,
        "origin",
        lambda real: _one_late(real),
    ),
    "an IDX file read from one byte too late": (
        idx,
        Header,
        "offset_bytes",
        lambda real: _one_more(real),
    ),
    "an array of an archive that is the other one": (
        npz,
        npz_source,
        "_by_name",
        lambda real: _swapped(real),
    ),
    "a table whose rows are turned around": (
        tables,
        rows,
        "_fill_missing",
        lambda real: lambda *passed_arguments: real(*passed_arguments)[::-1],
    ),
    "an integer that a float rounds": (
        tables,
        parse,
        "is_rounded",
        lambda real: lambda text: False,
    ),
    "a member of a tar archive that begins one byte too late": (
        tars,
        tar,
        "walk",
        lambda real: _members_later(real),
    ),
    "a link that has the bytes of the first member": (
        archives,
        grouping,
        "_target_of",
        lambda real: _first_member,
    ),
    "a column of Parquet or Arrow whose rows are turned around": (
        columns,
        columnar,
        "values_of",
        lambda real: lambda *arguments: _turned(real(*arguments)),
    ),
    "values of dictionaries and runs that are turned around": (
        arrowtypes,
        columnar,
        "plain_values",
        lambda real: lambda array, room: _turned_if_encoded(array, real(array, room)),
    ),
    "chunks of HDF5 whose rows are turned around": (
        hdf5,
        Grid,
        "decode",
        lambda real: lambda *arguments: _turned(real(*arguments)),
    ),
    "chunks of Zarr whose rows are turned around": (
        zarr,
        zarr_arrays.ChunkedPlace,
        "decode",
        lambda real: lambda *arguments: _turned(real(*arguments)),
    ),
    "a chunk of Zarr that is passed over": (
        options,
        zarr_source,
        "chunk_places",
        lambda real: lambda *arguments: real(*arguments)[:-1],
    ),
    "a substitute that is drawn anew each time": (
        damage,
        Damage,
        "substitute",
        lambda real: _by_chance,
    ),
    "a kept file that is believed": (derived, keptfile, "compare", lambda real: lambda *_: None),
    "an interrupted conversion that counts as one that failed": (
        bridges,
        Epoch,
        "_is_error_of_finish",
        lambda real: lambda *_: True,
    ),
    "an iterator that repeats a step": (interrupts, Epoch, "__next__", _repeating),
    "an iterator that gives a step twice": (endings, Epoch, "__next__", _repeating),
}


def _later(real):
    def header_text(*arguments):
        text, version, offset = real(*arguments)
        return text, version, offset + 1

    return header_text


def _members_later(real):
    def walk(*arguments):
        for member in real(*arguments):
            yield member._replace(offset=member.offset + 1)

    return walk


def _first_member(members, by_name, number):
    return members[0] if members[number].kind else members[number]


def _turned(values):
    return values[::-1] if isinstance(values, np.ndarray) else values


def _turned_if_encoded(array, values):
    is_encoded = str(array.type).startswith(("dictionary<", "run_end_encoded<"))
    return (
        values.take(list(range(len(values)))[::-1])
        if is_encoded and "view" not in str(values.type)
        else values
    )


def _one_late(real):
    def origin(*arguments):
        file, offset = real(*arguments)
        return file, offset + 1

    return origin


def _one_more(real):
    return property(lambda header: real.fget(header) + 1)


def _swapped(real):
    def by_name(*arguments):
        there = real(*arguments)
        return dict(zip(there, reversed(there.values()), strict=True))

    return by_name


def _by_chance(self, record, epoch, attempt):
    return int(np.random.default_rng().integers(len(self._source)))


def _whole(path, size_bytes, around_bytes, record_bytes):
    return max(size_bytes - around_bytes, 0) // record_bytes


def _wider(real):
    return lambda data: dataclasses.replace(result := real(data), width=result.width + 1)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch, findings_folder, fault):
    part, place, name, make = FAULTS[fault]
    monkeypatch.setattr(place, name, make(getattr(place, name)))

    assert part.attack(3, SEED).findings != []


def test_sixty_archives_and_arrays_of_any_option_are_read_as_their_libraries_read_them(tmp_path):
    for seed in range(60):
        (tmp_path / str(seed)).mkdir()
        archives.trial(np.random.default_rng(seed), tmp_path / str(seed))


def test_whatever_becomes_of_a_child_is_told():
    assert in_child(lambda: "read") == "read"
    assert in_child(lambda: os.kill(os.getpid(), signal.SIGSEGV)) == f"{ENDED}SIGSEGV"
    assert in_child(signal.pause, most_s=0.2) == TOO_LONG
    assert in_child(os._exit, 0) == TOO_LONG
    with pytest.raises(AssertionError, match="KeyError: 'planted'"):
        in_child(_key_error)


def test_pixels_that_differ_between_executors_are_found(monkeypatch, findings_folder):
    pytest.importorskip("nvidia.dali")
    real = decode.decode
    monkeypatch.setattr(decode, "decode", lambda *arguments: real(*arguments) ^ 1)

    assert pixels.attack(2, SEED).findings != []


@pytest.mark.parametrize(
    ("check", "place", "name"),
    [
        (parsers._check_npy, npyheader, "_parse"),
        (parsers._check_head, head, "kind_of"),
        (parsers._check_message, wire, "_field"),
        (parsers._check_idx, importlib.import_module("gpuload.formats.idx"), "IdxHeader"),
    ],
)
def test_what_no_parser_may_raise_reaches_atheris(monkeypatch, check, place, name):
    monkeypatch.setattr(place, name, _key_error)
    begun = next(begin for checks, begin, _ in parsers.TARGETS.values() if checks is check)

    with pytest.raises(KeyError, match="planted"):
        check(begun()[0])


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.slow  # it compiles
def test_a_byte_that_the_core_reads_beyond_its_input_is_found_and_repeated(monkeypatch, tmp_path):
    if run.engine() is None:
        pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(natives, "FINDINGS_FOLDER", tmp_path)
    monkeypatch.setattr(run, "NAMES", [run.PLANTED])

    findings = natives.attack(10, SEED).findings

    (path,) = tmp_path.iterdir()
    assert len(findings) == 1
    assert "heap-buffer-overflow" in findings[0]
    assert f"make fuzz TARGET=planted INPUT={path}" in findings[0]
    assert run.repeat(run.PLANTED, path) != 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_run_that_begins_anew_after_each_kill_is_found(monkeypatch, findings_folder):
    def forgetful(lane, folder):
        load = lanes.loader(lane, folder, batch_size=kills.BATCH)
        load.load_state_dict = lambda state: None
        return load

    def attacked(most_s):  # a process has to live until it delivers, and not until it is done
        monkeypatch.setattr(kills, "MOST_S", most_s)
        return kills.attack(1, SEED).findings

    monkeypatch.setattr(kills, "_loader", forgetful)
    assert any(attacked(most_s) for most_s in (0.1, 0.3, 1, 3))


@pytest.mark.slow
def test_a_child_of_fork_whose_batches_are_others_is_found(tmp_path, monkeypatch):
    second = "import os; from tests.attack import lanes; real = lanes.digest; "
    second += "lanes.digest = lambda batch: (*real(batch), os.getpid()); "
    monkeypatch.setattr(forks, "PROGRAM", second + forks.PROGRAM)

    with pytest.raises(AssertionError, match="its own loader gives other batches"):
        forks.trial(np.random.default_rng(0), tmp_path)


def test_a_row_that_no_version_of_a_file_had_is_found(tmp_path, monkeypatch):
    def mixed(batch):
        return [np.where(np.arange(changes.COLUMNS) == 9, value + 1, value) for value in batch["x"]]

    with pytest.raises(AssertionError, match="version"):
        changes.trial(np.random.default_rng(0), tmp_path, mixed)

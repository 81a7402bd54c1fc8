"""Threads come and go while they work, and steps ahead too; no batch changes by that, and what was
measured decides."""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading

import numpy as np
import pytest

import gpuload as gl
from gpuload import threads as threads_module
from gpuload.errors import ClosedError, GpuloadError
from gpuload.pipeline import tuning as tuning_module
from gpuload.pipeline import workers as workers_module
from gpuload.pipeline.settings import Setting
from gpuload.pipeline.tuning import Tuning
from gpuload.pipeline.workers import Workers
from gpuload.stats import Counters
from tests import simdevice
from tests.attack import interrupts, lanes
from tests.interrupts import Alarm
from tests.pipeline.test_workers import Fake
from tests.threads import none_left, until

SCHEDULE = [(1, 1), (6, 9), (3, 2), (1, 4), (8, 1), (2, 12), (2, 2)]
LANES = ["rows", "ops", "jpeg", "texts", "ragged", *(["dali"] if lanes.HAS_DALI else [])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    lines = "".join(f"{number},{'x' * (number % 5)}{number}\n" for number in range(300))
    (folder / "texts.csv").write_text("number,text\n" + lines)
    (folder / "ragged").mkdir()
    for number in range(60):
        np.save(
            folder / "ragged" / f"{number:02}.npy", np.full((1 + number % 7, 3), number, np.int16)
        )
    return folder


def loader(lane: str, folder, **changes) -> gl.Loader:
    """Return a loader that chooses its setting."""
    changes = {"num_threads": None, **changes}
    if lane in ("texts", "ragged"):
        files = gl.npy(folder / "ragged" / "*.npy", record="file")
        source = gl.csv(folder / "texts.csv") if lane == "texts" else files
        return gl.Loader(
            source, **{"batch_size": 8, "shuffle": True, "seed": 5, "device": "cpu", **changes}
        )
    return lanes.loader(
        lane, folder, **{"batch_size": 8 if lane in ("jpeg", "dali") else 40, **changes}
    )


def fixed(lane: str, folder, **changes) -> gl.Loader:
    """Return the same loader with one thread and one step ahead."""
    return loader(lane, folder, **{**changes, "num_threads": 1, "prefetch": 1})


def digests(batches) -> list[tuple[int, int, str]]:
    """Return epoch, step and what they hold, of batches that may be ragged."""
    results = []
    for batch in batches:
        columns = [values for values in batch.values() if isinstance(values, gl.Ragged)]
        ragged = [np.asarray(value).tolist() for values in columns for value in values]
        results.append(
            (batch.epoch, batch.step, f"{batch.records} {ragged}")
            if ragged
            else lanes.digest(batch)
        )
    return results


def num_alive(work: Workers) -> int:
    """Return how many threads of workers have not ended."""
    return sum(thread.is_alive() for thread in (*work._threads, *work._board.later))


@pytest.fixture
def changing(monkeypatch):
    """Have each worker that looks at the setting find another one; returns the settings that were
    used."""
    numbers, used = itertools.count(), []

    def look(self) -> Setting:
        setting = Setting(*SCHEDULE[next(numbers) % len(SCHEDULE)])
        used.append(setting)
        self.use(setting)
        return setting

    monkeypatch.setattr(Tuning, "look", look)
    return used


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("shuffle", [False, True, gl.Blocks(16, 2)])
def test_batches_are_the_same_whatever_threads_come_and_go(changing, folder, lane, shuffle):
    with fixed(lane, folder, shuffle=shuffle) as load:
        expected = [digests(load.epoch(epoch)) for epoch in range(2)]
    changing.clear()

    with none_left(), loader(lane, folder, shuffle=shuffle) as load:
        assert [digests(load) for _ in range(2)] == expected
    assert len(set(changing)) > 1


def test_batches_of_a_gpu_are_the_same_whatever_threads_come_and_go(changing, folder, monkeypatch):
    with fixed("ops", folder) as load:
        expected = lanes.digests(load)
    sim = simdevice.install(monkeypatch, seed=3)
    with loader("ops", folder, device="gpu", executor="auto") as load:
        for batch, (_, step, _) in zip(load, expected, strict=True):
            assert batch.step == step
            np.testing.assert_array_equal(batch["label"].get(), batch.records)
    assert len(set(changing)) > 1
    del batch
    sim.finish()


@pytest.mark.parametrize("lane", ["rows", "ops", "jpeg", "texts"])
def test_a_state_goes_on_where_a_loop_was_left(changing, folder, lane):
    with fixed(lane, folder) as load:
        expected = lanes.digests(load)
    results: list[tuple[int, int, str]] = []
    state = None
    with none_left():
        while len(results) < len(expected):
            load = loader(lane, folder)
            if state is not None:
                load.load_state_dict(json.loads(state))
            for batch in load:
                results.append(lanes.digest(batch))
                if len(results) % 3 == 0 and len(results) < len(expected):
                    break
            state = json.dumps(load.state_dict())
            del load, batch
    assert results == expected


@pytest.mark.parametrize("leave", ["close", "drop"])
@pytest.mark.parametrize("lane", ["rows", "ops", "jpeg"])
def test_threads_that_were_just_started_end_too(changing, folder, lane, leave):
    with none_left():
        for num_batches in range(5):
            load = loader(lane, folder)
            run = iter(load)
            for _ in range(num_batches):
                next(run)
            if leave == "close":
                load.close()
                assert not num_alive(run._run.batches)
            del load, run


def test_an_error_comes_at_its_step_and_the_others_are_as_they_were(changing):
    def fail(x, y):
        if y == 37:
            raise ValueError("37 is not wanted")
        return x, y

    def outcomes(**changes):
        source = gl.arrays(x=np.arange(200.0), y=np.arange(200))
        ops = [gl.ops.Python(fail, on=("x", "y"), out={})]
        run, results = (
            iter(gl.Loader(source, 4, ops=ops, shuffle=True, device="cpu", **changes)),
            [],
        )
        while True:
            try:
                results.append(next(run)["x"].tolist())
            except StopIteration:
                return results
            except ValueError as error:
                results.append(f"{error} {getattr(error, '__notes__', '')}")

    expected = outcomes(num_threads=1, prefetch=1)
    changing.clear()
    assert outcomes() == expected
    assert sum(isinstance(result, str) for result in expected) == 1
    assert len(set(changing)) > 1


def test_damaged_records_have_the_same_substitutes(changing, tmp_path):
    for number in range(40):
        content = b"no image" if number % 9 == 4 else (lanes.imagefiles.jpeg(8 + number % 3, 8))
        (tmp_path / f"{number:02}.jpg").write_bytes(content)

    def outcome(**changes):
        ops = [gl.ops.Decode(), gl.ops.Resize(8, 8)]
        source = gl.images(tmp_path, labels=None)
        load = gl.Loader(
            source,
            4,
            ops=ops,
            shuffle=True,
            on_error="replace",
            max_bad=1.0,
            device="cpu",
            **changes,
        )
        with load:
            return lanes.digests(load), sorted(bad.record for bad in load.bad_records())

    assert outcome() == outcome(num_threads=1, prefetch=1)
    assert len(set(changing)) > 1


@pytest.mark.parametrize("lane", ["rows", "ops", "jpeg"])
def test_interrupts_lose_no_batch_while_threads_come_and_go(changing, folder, lane):
    with fixed(lane, folder) as load:
        expected = lanes.digests(load)
    results: list[gl.batch.Batch] = []
    with loader(lane, folder) as load, Alarm() as alarm:
        while len(results) < len(expected):
            interrupts.take(load, alarm, results, len(expected))
    assert lanes.digests(results) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_in_between_changes_nothing_for_the_parent(changing, folder):
    with fixed("ops", folder) as load:
        expected = lanes.digests(load)
    load = loader("ops", folder)
    results = []
    for batch in load:
        results.append(lanes.digest(batch))
        if batch.step % 50 == 7:
            child = os.fork()
            if child == 0:
                try:
                    load.peek()
                except ClosedError:
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert results == expected


# Workers


class Settings:
    """A setting that tests change."""

    def __init__(self, num_threads: int, num_ahead: int = 3) -> None:
        self.now = Setting(num_threads, num_ahead)

    def __call__(self) -> Setting:
        return self.now


def crew(settings: Settings, num_steps: int = 100_000, **arguments) -> Workers:
    return Workers(
        Fake,
        num_steps=num_steps,
        setting=settings(),
        look=settings,
        counters=Counters(),
        **arguments,
    )


def take_until(work: Workers, first: int, condition) -> int:
    """Take steps until a condition holds; returns the number of the next step."""
    for number in range(first, 100_000):
        if condition():
            return number
        assert work.take(number).number == number
        work.forget(number)
    raise AssertionError("the condition never held")


def test_there_are_as_many_threads_as_the_setting_says():
    settings, number, ends = Settings(2), 0, []
    with none_left():
        work = crew(settings, on_end=lambda: ends.append(threading.current_thread()))
        for count in (2, 7, 3, 12, 1, 4):
            settings.now = Setting(count, 3)
            number = take_until(work, number, lambda count=count: num_alive(work) == count)
        assert not ends
        work.close()
        assert num_alive(work) == 0
    assert len(ends) == 1


def test_each_thread_that_ends_says_that_it_does_not_come_back():
    settings, leaves = Settings(5), []
    work = crew(settings)
    work._board.calls.leave = lambda: leaves.append(threading.get_ident())
    settings.now = Setting(2, 3)

    number = take_until(work, 0, lambda: num_alive(work) == 2)
    settings.now = Setting(3, 3)
    take_until(work, number, lambda: num_alive(work) == 3)

    assert len(leaves) == 3
    work.close()
    assert len(leaves) == 3  # nobody waits for those that end with all


def test_threads_that_should_end_are_used_again_if_they_have_not_yet():
    gate, numbers = threading.Event(), []

    class Gated(Fake):
        def work(self, part):
            assert gate.wait(60)
            return super().work(part)

    settings = Settings(4, 8)
    work = Workers(Gated, num_steps=500, setting=settings(), look=settings, counters=Counters())
    board = work._board
    settings.now = Setting(1, 8)
    assert until(
        lambda: board._setting is settings.now or work._allow(work._horizon + 1)
    )  # a worker that is called looks
    assert board._num_surplus == 3
    settings.now = Setting(3, 8)
    gate.set()
    for number in range(500):
        numbers.append(work.take(number).number)
        work.forget(number)
    assert numbers == list(range(500))
    assert board.num_threads == 3
    assert board._num_alive - board._num_surplus == 3
    work.close()
    assert board._num_alive == 0


def test_more_steps_are_begun_when_more_are_allowed():
    settings = Settings(2, 1)
    work = crew(settings)
    settings.now = Setting(2, 40)
    number = take_until(work, 0, lambda: work._board.num_ahead == 40)
    work.take(number)
    assert until(lambda: work._board._next == number + 41)
    work.close()


def test_where_the_system_gives_no_more_threads_the_others_do_the_work(monkeypatch, caplog):
    settings = Settings(2)
    work = crew(settings)
    start = threads_module.start
    left = [None] * 3

    def start_some(*arguments, **names):
        if not left:
            raise GpuloadError(
                "1 threads 'gpuload' cannot start", cause="can't start new thread", remedy="fewer"
            )
        left.pop()
        return start(*arguments, **names)

    monkeypatch.setattr(workers_module.threads, "start", start_some)
    settings.now = Setting(9, 3)
    take_until(work, 0, lambda: "3 of 7 threads more were started; cause: 1 threads" in caplog.text)
    assert until(lambda: work._board._num_alive == 5)
    work.close()


def test_a_thread_that_cannot_start_stops_no_others(monkeypatch):
    stops = []
    monkeypatch.setattr(
        threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no thread"))
    )
    with pytest.raises(GpuloadError, match="no thread"):
        threads_module.start(1, print, stop=lambda: stops.append(None))
    assert not stops


# Measuring


@pytest.fixture
def at_once(monkeypatch):
    """Have windows end as soon as there are enough steps in them."""
    monkeypatch.setattr(tuning_module, "LOOK_S", 0.0)
    monkeypatch.setattr(tuning_module, "WINDOW_S", 0.0)


def measure(tuning: Tuning, counters: Counters, condition) -> None:
    """Count what steps take that wait for storage, and come the faster the more threads there are,
    until it holds."""
    for _ in range(100):
        if condition():
            return
        step_s, num_steps = 1.0 / tuning.setting.num_threads, 4 * (sum(tuning.setting) + 1)
        tuning.num_begun += num_steps
        counters.add(
            batches=num_steps,
            bytes=1000 * num_steps,
            loop_s=num_steps * step_s,
            wait_s=num_steps * step_s,
        )
        counters.add(
            **{"read.sampled": 1.0, "read.blocked": 0.9, "ops.sampled": 0.1, "ops.starved": 0.1}
        )
        tuning.look()
    raise AssertionError("the setting never came")


def tuner(folder, **changes) -> tuple[gl.Loader, Tuning, Counters]:
    load = loader("ops", folder, **changes)
    return load, load._session.tuning, load._setup.counters


def test_a_loader_says_what_it_chose_and_why(at_once, folder, caplog, monkeypatch):
    monkeypatch.setattr("gpuload.threads.num_cores", lambda: 2)
    load, tuning, counters = tuner(folder)
    joined, prefetch = load._session.recipe.num_joined, load.prefetch
    assert (load.stats()["num_threads"], load.stats()["prefetch"]) == (2, prefetch)
    assert "tuning:" not in load.describe()

    with caplog.at_level(logging.INFO, "gpuload"):
        measure(tuning, counters, lambda: tuning.setting.num_threads == 16)

    tried = [
        message.split(" are tried")[0] for message in caplog.messages if " are tried" in message
    ]
    assert tried == [
        f"{count} threads and {(count + 1) * joined} steps ahead" for count in (4, 8, 16)
    ]
    assert tuning.finding in caplog.messages
    counters.add(**{"read.seconds": 1.0})
    stats, lines = load.stats(), dict(line.split(":", 1) for line in load.describe().splitlines())
    assert stats["num_threads"] == tuning.setting.num_threads
    assert (stats - stats)["num_threads"] == stats["num_threads"]
    assert stats["prefetch"] == tuning.setting.num_ahead * joined
    assert lines["threads"].strip().startswith(f"{tuning.setting.num_threads}; ")
    assert lines["prefetch"].strip() == f"{tuning.setting.num_ahead * joined} steps are made ahead"
    assert "where the first setting was 2 threads and" in lines["tuning"]
    assert "90% of the threads' work is waiting for storage" in lines["tuning"]
    assert stats.tuning == stats.as_dict()["tuning"] == tuning.finding
    assert f"Tuning: {tuning.finding}." in " ".join(str(stats).split())
    assert (
        load._session.ring.idle_bytes > tuning.setting.num_ahead * load._session.recipe.slot_bytes
    )


def test_a_number_of_threads_that_was_passed_stays(at_once, folder):
    _, tuning, counters = tuner(folder, num_threads=2)
    counters.add(idle_s=1e9)
    num_ahead = tuning.setting.num_ahead
    with pytest.raises(AssertionError, match="never"):
        measure(tuning, counters, lambda: tuning.setting.num_threads != 2)
    assert num_ahead == 3


def test_a_number_of_steps_ahead_that_was_passed_stays(at_once, folder, monkeypatch):
    monkeypatch.setattr("gpuload.threads.num_cores", lambda: 2)
    _, tuning, counters = tuner(folder, prefetch=3)
    num_ahead = tuning.setting.num_ahead
    measure(tuning, counters, lambda: tuning.setting.num_threads == 32)
    assert tuning.setting.num_ahead == num_ahead


def test_where_both_numbers_were_passed_nothing_is_measured(folder):
    _, tuning, _ = tuner(folder, num_threads=2, prefetch=3)
    assert not tuning._tunes


def test_steps_that_were_begun_with_the_setting_before_are_in_no_window(
    at_once, folder, monkeypatch
):
    _, tuning, counters = tuner(folder)
    windows = []
    monkeypatch.setattr(
        tuning._chooser, "next", lambda window: windows.append(window.step_s) or tuning.setting
    )
    for number in range(100):  # the first steps take long: files are opened, code is loaded
        tuning.num_begun += 1
        step_s = 100.0 if number <= tuning.setting.num_ahead else 1.0
        counters.add(batches=1, loop_s=step_s, wait_s=0.5)
        tuning.look()

    assert set(windows) == {1.0}


def windows_of(tuning: Tuning, counters: Counters, monkeypatch, training_s) -> list[float]:
    """Return the time of a step in each window of 200 steps, which take 0.5 s and what training
    takes besides."""
    windows: list[float] = []
    monkeypatch.setattr(
        tuning._chooser, "next", lambda window: windows.append(window.step_s) or tuning.setting
    )
    for number in range(200):
        tuning.num_begun += 1
        counters.add(batches=1, loop_s=0.5 + training_s(number), wait_s=0.5)
        tuning.look()
    return windows


def test_windows_in_which_training_pauses_are_begun_anew(at_once, folder, monkeypatch):
    _, tuning, counters = tuner(folder)
    windows = windows_of(
        tuning, counters, monkeypatch, lambda number: 4.0 if number % 20 == 19 else 0.5
    )

    assert set(windows) == {1.0}
    assert len(windows) > 10


def test_a_training_of_which_each_step_differs_is_measured_as_it_is(at_once, folder, monkeypatch):
    _, tuning, counters = tuner(folder)
    windows = windows_of(
        tuning, counters, monkeypatch, lambda number: 4.0 if number % 4 == 3 else 0.1
    )

    assert len(windows) > 2
    assert max(windows) > 1.2


def test_where_reading_waits_there_are_soon_more_threads(at_once, monkeypatch):
    """Real threads, and a storage that takes 10 ms for each read; however loaded the machine is, a
    trial succeeds."""
    monkeypatch.setattr("gpuload.threads.num_cores", lambda: 1)
    monkeypatch.setattr(tuning_module, "WINDOW_S", 0.05)

    def read(indices):
        threading.Event().wait(0.01)
        return {"x": np.asarray(indices)}

    with gl.Loader(gl.records(400, read), 4, device="cpu") as load:
        while load._session.tuning.finding == "":
            for batch in load:
                np.testing.assert_array_equal(batch["x"], batch.records)
        assert load.stats()["num_threads"] > 1

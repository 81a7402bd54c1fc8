"""Settings are chosen by windows of measurements; here machines are simulated that have one cause
of waiting each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import nan

import numpy as np
import pytest

from gpuload.pipeline.settings import (
    MOST_DEPTH,
    MOST_REFUSALS,
    MOST_REST,
    MOST_TRIALS,
    Bounds,
    Chooser,
    LoopWindow,
    Setting,
)
from gpuload.pipeline.tuning import MANY_THREADS, THREADS_PER_CORE

CORES = [1, 2, 4, 16, 64]
STEP_BYTES = 8 << 20


@dataclass(frozen=True)
class Machine:
    """A loop on a machine; all times are seconds of a step.

    Attributes:
        cores: of the machine.
        cpu_s: on a core.
        storage_s: until storage has answered.
        disk_s: between two steps that the storage can deliver at most.
        lock_s: with Python's lock.
        fight: by which part each thread more makes the time with the lock longer.
        train_s: of the training.
        is_shared: True if all threads work on the same step.
    """

    cores: int
    cpu_s: float = 0.001
    storage_s: float = 0.0
    disk_s: float = 0.0
    lock_s: float = 0.0
    fight: float = 0.0
    train_s: float = 0.0
    is_shared: bool = False

    def window(self, setting: Setting) -> LoopWindow:
        """Return what is measured of a long loop: the slowest of all that it needs decides."""
        threads, ahead = setting
        alone_s = self.cpu_s + self.storage_s + self.lock_s
        lock_s = self.lock_s * (1 + self.fight * (threads - 1))
        limits = {
            "training": self.train_s,
            "threads": alone_s / threads,
            "cores": (self.cpu_s + self.lock_s) / self.cores,
            "ahead": alone_s / (ahead + 1) if not self.is_shared else 0.0,
            "disk": self.disk_s,
            "lock": lock_s,
        }
        limit = max(limits, key=lambda name: limits[name])
        step_s = limits[limit]
        queue_s = max(0.0, threads * step_s - alone_s)  # of all threads, for what decides
        reading_s = self.storage_s + queue_s * (limit == "disk")
        other_s = queue_s * (limit == "lock")
        work_s = self.cpu_s + self.lock_s + reading_s + other_s
        return LoopWindow(
            step_s=step_s,
            wait_s=step_s - self.train_s,
            idle_share=queue_s / (threads * step_s) if limit in ("training", "ahead") else 0.0,
            read_share=reading_s / work_s,
            lock_share=other_s / work_s,
            ahead_bytes=STEP_BYTES,
        )


def jitter_window(setting: Setting, seed: int = 1) -> LoopWindow:
    """Return what is measured where one step in ten takes ten times as long; there are cores for
    all threads."""
    generator = np.random.default_rng(seed)
    work_s, train_s, num_steps = np.where(generator.random(1000) < 0.1, 0.1, 0.01), 0.02, 1000
    threads, end_s, taken_s = [0.0] * setting.num_threads, np.zeros(num_steps), np.zeros(num_steps)
    wait_s = now = 0.0
    for step in range(num_steps):
        allowed_s = taken_s[step - setting.num_ahead - 1] if step > setting.num_ahead else 0.0
        thread = min(range(len(threads)), key=lambda number: threads[number])
        end_s[step] = threads[thread] = max(threads[thread], allowed_s) + work_s[step]
        ready_s = max(now, end_s[step])
        wait_s += ready_s - now
        taken_s[step] = ready_s
        now = ready_s + train_s
    idle = 1 - work_s.sum() / (now * setting.num_threads)
    return LoopWindow(
        now / num_steps,
        wait_s / num_steps,
        idle,
        read_share=0.9,
        lock_share=0.0,
        ahead_bytes=STEP_BYTES,
    )


CAUSES = {
    "storage with latency": {"storage_s": 0.02},
    "storage with latency, a step for all threads": {"storage_s": 0.02, "is_shared": True},
    "storage with latency, and a training": {"storage_s": 0.05, "train_s": 0.004},
    "saturated disk": {"storage_s": 0.004, "disk_s": 0.01},
    "disk that is soon saturated": {"storage_s": 0.02, "disk_s": 0.004},
    "processor": {"cpu_s": 0.02},
    "processor, and files in memory": {"cpu_s": 0.02, "storage_s": 0.001},
    "Python's lock": {"lock_s": 0.01},
    "Python's lock, for which threads fight": {"lock_s": 0.01, "fight": 0.05},
    "training": {"train_s": 0.5, "storage_s": 0.02},
}


def bounds(cores: int, *, is_shared: bool = False, most_bytes: int = 1 << 30) -> Bounds:
    return Bounds(cores, max(THREADS_PER_CORE * cores, MANY_THREADS), most_bytes, is_shared)


def first(cores: int, *, is_shared: bool = False) -> Setting:
    return Setting(cores, 2 if is_shared else cores + 1)


def settings_of(chooser: Chooser, machine, num_windows: int) -> list[Setting]:
    """Return the setting of each window."""
    settings = []
    for _ in range(num_windows):
        settings.append(chooser.setting)
        chooser.next(machine(chooser.setting))
    return settings


@pytest.mark.every_case
@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("cause", CAUSES)
def test_after_16_windows_batches_come_nearly_as_fast_as_with_the_best_setting(
    cause: str, cores: int
):
    machine = Machine(cores, **CAUSES[cause])
    limits = bounds(cores, is_shared=machine.is_shared)
    chooser = Chooser(first(cores, is_shared=machine.is_shared), limits)
    settings = settings_of(chooser, machine.window, 400)

    best_s = min(
        machine.window(Setting(threads, 128)).step_s
        for threads in range(1, limits.most_threads + 1)
    )
    middle = max(set(settings[16:]), key=settings[16:].count)
    assert machine.window(middle).step_s <= 1.2 * best_s
    assert machine.window(middle).step_s <= machine.window(settings[0]).step_s
    assert settings[16:].count(middle) >= 0.95 * len(settings[16:])  # the others are trials
    assert all(
        num_ahead * STEP_BYTES <= max(limits.most_bytes, settings[0].num_ahead * STEP_BYTES)
        for _, num_ahead in settings
    )


@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("cause", ["processor", "processor, and files in memory", "training"])
def test_where_more_threads_could_gain_nothing_none_are_tried(cause: str, cores: int):
    machine = Machine(cores, **CAUSES[cause])

    assert set(settings_of(Chooser(first(cores), bounds(cores)), machine.window, 50)) == {
        first(cores)
    }


@pytest.mark.parametrize("cores", CORES)
def test_trials_become_rare_where_they_fail(cores: int):
    machine = Machine(cores, storage_s=0.004, disk_s=0.01 if cores == 1 else 0.005)
    settings = settings_of(Chooser(first(cores), bounds(cores)), machine.window, 1000)

    changes = [place for place in range(1, 1000) if settings[place] != settings[place - 1]]
    assert settings[-1] == settings[20]
    assert len(changes) <= 2 * MOST_REFUSALS + 4


def test_more_steps_are_made_ahead_where_batches_take_different_times():
    chooser = Chooser(Setting(4, 2), bounds(64, is_shared=True))
    settings = settings_of(chooser, jitter_window, 40)

    best_s = min(
        jitter_window(Setting(threads, 1 << power)).step_s
        for threads in (4, 8, 16, 64)
        for power in range(8)
    )
    assert jitter_window(settings[-1]).step_s <= 1.15 * best_s
    assert jitter_window(settings[-1]).step_s < 0.9 * jitter_window(settings[0]).step_s
    assert settings[-1].num_ahead > 2


def test_steps_ahead_never_take_more_memory_than_is_allowed():
    chooser = Chooser(Setting(2, 3), bounds(2, most_bytes=10 * STEP_BYTES))
    settings = settings_of(chooser, Machine(2, storage_s=0.1).window, 100)

    assert max(num_ahead for _, num_ahead in settings) == 10
    assert max(threads for threads, _ in settings) == MANY_THREADS  # they share steps then


def test_the_first_setting_is_allowed_whatever_memory_it_takes():
    chooser = Chooser(Setting(2, 3), bounds(2, most_bytes=STEP_BYTES))

    assert {
        num_ahead for _, num_ahead in settings_of(chooser, Machine(2, storage_s=0.1).window, 100)
    } == {3}


def test_numbers_that_were_passed_stay():
    machine = Machine(2, storage_s=0.1)
    threads_pass = Chooser(Setting(2, 3), Bounds(2, 0, 1 << 30, is_shared=False))
    ahead_passes = Chooser(Setting(2, 3), Bounds(2, 32, 0, is_shared=False))

    assert {setting.num_threads for setting in settings_of(threads_pass, machine.window, 50)} == {2}
    settings = settings_of(ahead_passes, machine.window, 50)
    assert {setting.num_ahead for setting in settings} == {3}
    assert (
        max(setting.num_threads for setting in settings) == 8
    )  # more threads than steps are no faster here


def test_when_the_files_are_in_memory_there_is_a_thread_for_each_core_again():
    chooser = Chooser(first(2), bounds(2))
    cold = settings_of(chooser, Machine(2, storage_s=0.05).window, 30)
    warm = settings_of(chooser, Machine(2).window, MANY_THREADS * 3)
    again = settings_of(chooser, Machine(2, storage_s=0.05).window, 30)

    assert (cold[-1].num_threads, warm[-1], again[-1]) == (32, first(2), cold[-1])


def test_when_there_is_less_python_there_is_a_thread_for_each_core_again():
    chooser = Chooser(first(16), bounds(16))
    locked = settings_of(chooser, Machine(16, lock_s=0.01, fight=0.1).window, 30)
    compiled = settings_of(chooser, Machine(16, cpu_s=0.01).window, 100)

    assert locked[-1].num_threads <= 4
    assert compiled[-1].num_threads == 16


def test_on_a_machine_where_nothing_is_steady_steps_ahead_have_a_limit():
    generator, chooser = np.random.default_rng(0), Chooser(Setting(4, 2), bounds(4, is_shared=True))
    for _ in range(1000):
        step_s = generator.uniform(0.5, 2.0)
        chooser.next(
            LoopWindow(
                step_s, step_s, idle_share=0.3, read_share=0.0, lock_share=0.0, ahead_bytes=1
            )
        )

    assert chooser.setting.num_ahead <= 2 * MOST_DEPTH


def test_where_fewer_threads_are_slower_after_all_they_are_not_taken():
    """The system does not say of all waiting that it is waiting: some are many threads for a
    reason."""
    machine = Machine(2, storage_s=0.05)
    chooser = Chooser(first(2), bounds(2))
    settings_of(chooser, machine.window, 30)

    def unknown(setting: Setting) -> LoopWindow:
        window = machine.window(setting)
        return LoopWindow(
            window.step_s,
            window.wait_s,
            window.idle_share,
            read_share=0.1,
            lock_share=0.0,
            ahead_bytes=STEP_BYTES,
        )

    settings = settings_of(chooser, unknown, 100)
    assert settings.count(Setting(32, 33)) > 90


def test_without_samples_nothing_is_tried():
    window = LoopWindow(
        1.0, 1.0, idle_share=0.0, read_share=nan, lock_share=nan, ahead_bytes=STEP_BYTES
    )
    chooser = Chooser(Setting(8, 9), bounds(2))

    assert {chooser.next(window) for _ in range(20)} == {Setting(8, 9)}


@pytest.mark.parametrize("seed", range(5))
def test_noise_drives_no_setting_away(seed: int):
    """Each window is up to a tenth faster or slower, at random."""
    generator, machine = np.random.default_rng(seed), Machine(4, storage_s=0.02)

    def noisy(setting: Setting) -> LoopWindow:
        window, factor = machine.window(setting), generator.uniform(0.9, 1.1)
        wait_s = window.wait_s * factor
        return LoopWindow(
            window.step_s * factor,
            wait_s,
            window.idle_share,
            window.read_share,
            window.lock_share,
            window.ahead_bytes,
        )

    settings = settings_of(Chooser(first(4), bounds(4)), noisy, 300)
    best_s = machine.window(Setting(32, 128)).step_s
    assert (
        np.mean([machine.window(setting).step_s <= 1.2 * best_s for setting in settings[20:]]) > 0.9
    )


def test_each_change_is_told_and_the_one_that_stays_is_remembered():
    chooser, machine = Chooser(first(2), bounds(2)), Machine(2, storage_s=0.019)
    assert (chooser.event, chooser.finding) == ("", "")

    chooser.next(machine.window(chooser.setting))
    assert chooser.event == (
        "4 threads and 5 steps ahead are tried in place of 2 threads and 3 steps ahead: 95% of the threads' work is "
        "waiting for storage"
    )
    chooser.next(machine.window(chooser.setting))
    assert chooser.event == (
        "2 threads and 3 steps ahead once more, to compare: with 4 threads and 5 steps ahead a batch came in 5 ms"
    )
    chooser.next(machine.window(chooser.setting))
    assert chooser.event == (
        "4 threads and 5 steps ahead once more, to compare: with 2 threads and 3 steps ahead a batch came in 10 ms"
    )
    assert chooser.finding == ""
    chooser.next(machine.window(chooser.setting))
    assert chooser.finding == (
        "4 threads and 5 steps ahead, where the first setting was 2 threads and 3 steps ahead: 95% of the threads' "
        "work is waiting for storage; 2 times in turns a batch came in 5 ms in place of 10 ms"
    )
    chooser.next(Machine(2, storage_s=0.019, disk_s=0.005).window(chooser.setting))
    assert chooser.event == (
        "4 threads and 5 steps ahead again: with 8 threads and 9 steps ahead a batch came in 5 ms, without in 5 ms"
    )


@pytest.mark.parametrize("cores", [4, 8, 64])
def test_a_python_reader_that_computes_gets_fewer_threads_and_one_that_sleeps_more(cores: int):
    """What a reader waits for is not known: so both are tried."""

    def window(setting: Setting, lock_s: float, sleep_s: float, fight: float) -> LoopWindow:
        machine = Machine(
            cores, cpu_s=0.0001, storage_s=sleep_s, lock_s=lock_s, fight=fight
        ).window(setting)
        return replace(machine, read_share=machine.read_share + machine.lock_share, lock_share=0.0)

    def settled(**costs: float) -> list[Setting]:
        limits = replace(bounds(cores), reads_in_python=True)
        return settings_of(
            Chooser(first(cores), limits), lambda setting: window(setting, **costs), 60
        )

    computing, sleeping = (
        settled(lock_s=0.01, sleep_s=0.0, fight=0.1),
        settled(lock_s=0.0, sleep_s=0.05, fight=0.0),
    )

    assert computing[-1].num_threads < cores
    assert sleeping[-1].num_threads >= 2 * cores
    assert min(setting.num_threads for setting in sleeping) == cores


def test_the_first_setting_that_comes_again_is_called_so():
    chooser = Chooser(first(2), bounds(2))
    settings_of(chooser, Machine(2, storage_s=0.05).window, 30)
    settings_of(chooser, Machine(2).window, 100)

    assert chooser.finding.startswith(
        "2 threads and 3 steps ahead, again: the threads do not wait for storage any more;"
    )


# Machines on which windows differ without a reason: other programs take turns with the loop, cores
# are only shown.

SEEDS = 40
MOST_WINDOWS = 1 + MOST_REFUSALS * (MOST_REST + 4)  # from the last setting that is new to the end


def factors(kind: str, generator: np.random.Generator) -> Iterator[float]:
    """Yield by how much each window is slower than it should be."""
    level = 0.0
    while True:
        if kind == "each window by itself":
            yield generator.lognormal(0, 0.2)
        elif kind == "neighbours come and go":
            for slow in (1.0, generator.uniform(1.3, 3.0)):
                for _ in range(generator.geometric(0.25)):
                    yield slow * generator.lognormal(0, 0.05)
        else:
            level = 0.9 * level + generator.normal(0, 0.15)
            yield float(np.exp(level))


def noisy_run(
    machine: Machine, cores: int, kind: str, seed: int, num_windows: int
) -> tuple[Chooser, list[Setting]]:
    """Return a chooser, and the setting of each window, where what is said of the threads is
    chance, too."""
    generator, chooser = np.random.default_rng(seed), Chooser(first(cores), bounds(cores))
    noise = factors(kind, generator)

    def window(setting: Setting) -> LoopWindow:
        true, factor, (read, other, idle) = (
            machine.window(setting),
            next(noise),
            generator.random(3),
        )
        return replace(
            true, step_s=true.step_s * factor, wait_s=true.wait_s * factor,
            idle_share=idle, read_share=read, lock_share=other * (1 - read),
        )  # fmt: skip

    return chooser, settings_of(chooser, window, num_windows)


NOISE = ["each window by itself", "neighbours come and go", "a level that drifts"]


@pytest.mark.every_case
@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("cores", [8, 16])
def test_on_a_noisy_machine_that_pretends_cores_tuning_ends_and_believes_hardly_any_trial(
    cores: int, kind: str
):
    """Two cores are there, whatever is shown: no setting is faster than another."""
    runs = [noisy_run(Machine(2, cpu_s=0.02), cores, kind, seed, 2000) for seed in range(SEEDS)]

    assert all(chooser.is_over for chooser, _ in runs)
    assert np.mean([chooser.num_changes for chooser, _ in runs]) <= 1.5
    for chooser, settings in runs:
        last_change = max(
            place for place in range(1, 2000) if settings[place] != settings[place - 1]
        )
        assert last_change <= (1 + chooser.num_changes) * MOST_WINDOWS
        assert all(num_ahead * STEP_BYTES <= 1 << 30 for _, num_ahead in settings)


@pytest.mark.parametrize("kind", NOISE)
def test_on_a_noisy_machine_no_setting_stays_that_is_much_slower_than_the_first(kind: str):
    """Fewer threads are slower here, and nothing is faster than the first setting."""
    machine = Machine(8, cpu_s=0.02)
    runs = [noisy_run(machine, 8, kind, seed, 1000) for seed in range(SEEDS)]

    slow = [
        machine.window(settings[-1]).step_s > 1.2 * machine.window(first(8)).step_s
        for _, settings in runs
    ]
    assert np.mean(slow) <= 0.05


@pytest.mark.parametrize("kind", NOISE)
def test_on_a_noisy_machine_a_setting_that_is_twice_as_fast_is_found(kind: str):
    machine = Machine(4, storage_s=0.05)

    def rate(seed: int) -> float:
        noise = factors(kind, np.random.default_rng(seed))

        def window(setting: Setting) -> LoopWindow:
            true, factor = machine.window(setting), next(noise)
            return replace(true, step_s=true.step_s * factor, wait_s=true.wait_s * factor)

        settings = settings_of(Chooser(first(4), bounds(4)), window, 200)
        return machine.window(first(4)).step_s / machine.window(settings[-1]).step_s

    assert np.mean([rate(seed) >= 6 for seed in range(SEEDS)]) >= 0.95


def test_a_neighbour_who_leaves_during_a_trial_does_not_decide():
    """The first window was slow by him; with the trial he was gone, and with the first setting it
    is as fast again."""
    chooser = Chooser(first(2), bounds(2))
    slow = LoopWindow(0.03, 0.03, read_share=0.9, lock_share=0.0, ahead_bytes=STEP_BYTES)
    assert chooser.next(slow) == Setting(4, 5)
    assert chooser.next(replace(slow, step_s=0.01, wait_s=0.01)) == first(2)
    assert chooser.next(replace(slow, step_s=0.01, wait_s=0.01)) == first(2)
    assert (chooser.num_trials, chooser.num_changes) == (1, 0)
    assert chooser.event == (
        "2 threads and 3 steps ahead again: with 4 threads and 5 steps ahead a batch came in 10 ms, "
        "without in 10 ms to 30 ms"
    )


@pytest.mark.parametrize("seed", range(4))
def test_however_windows_answer_tuning_ends(seed: int):
    """Windows that confirm or refuse trials as a coin falls, or all of them: two settings take
    turns, too."""
    generator, chooser, steps_s = np.random.default_rng(seed), Chooser(first(2), bounds(2)), 1.0
    settings = []
    for _ in range(2 * MOST_TRIALS * (MOST_REST + 4)):
        settings.append(chooser.setting)
        is_kept = seed == 0 or generator.random() < 0.5 * seed
        steps_s = 1.0 if (chooser.setting in (settings[0], *settings[-2:-1])) != is_kept else 0.1
        shares = generator.random(2) if seed else (0.9, 0.0)
        chooser.next(
            LoopWindow(steps_s, steps_s, 0.5, shares[0], shares[1], ahead_bytes=STEP_BYTES)
        )

    assert chooser.is_over
    assert chooser.num_trials <= MOST_TRIALS
    assert set(settings[-100:]) == {chooser.setting}
    assert " they stay, as of " in chooser.finding


def test_two_settings_of_which_each_is_faster_when_it_is_tried_do_not_take_turns_for_ever():
    chooser, num_windows = Chooser(first(2), bounds(2)), 0
    while not chooser.is_over:
        is_trial = chooser.setting != chooser._base
        share = 0.0 if chooser.setting.num_threads > 2 else 0.9
        step_s = 0.8**chooser.num_trials if is_trial else 1.0
        chooser.next(
            LoopWindow(step_s, step_s, read_share=share, lock_share=0.0, ahead_bytes=STEP_BYTES)
        )
        num_windows += 1
        assert num_windows <= 4 * MOST_TRIALS

    assert chooser.num_trials == chooser.num_changes == MOST_TRIALS


def test_a_setting_that_stays_has_fewer_steps_ahead_when_they_grow():
    chooser = Chooser(first(2), bounds(2, most_bytes=40 * STEP_BYTES))
    settings_of(chooser, Machine(2, storage_s=0.1).window, 100)
    assert chooser.setting == Setting(32, 33)

    chooser.next(
        replace(Machine(2, storage_s=0.1).window(chooser.setting), ahead_bytes=4 * STEP_BYTES)
    )

    assert chooser.setting == Setting(32, 10)
    assert (
        chooser.event
        == "32 threads and 10 steps ahead from now on: a step takes more memory than those before"
    )


def test_a_first_setting_that_stays_is_told_with_what_was_tried():
    chooser = Chooser(first(4), bounds(4))
    settings_of(chooser, Machine(4, storage_s=0.004, disk_s=0.01).window, 1000)

    assert chooser.finding == (
        "4 threads and 5 steps ahead, as at first; they stay, as of 10 trials of other settings none showed clearly "
        "faster batches"
    )

"""No thread of gpuload runs when Python's end freezes what is left; a process uses the cores that
it was given."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from queue import SimpleQueue

import pytest

from gpuload import threads
from gpuload.errors import GpuloadError
from tests import forkserver
from tests.interrupts import Alarm
from tests.threads import until


def started(count=1, target=None):
    """Threads that do what they are told to, until they are told None; and the queue that tells
    them."""
    tasks = SimpleQueue()

    def work():
        while (task := tasks.get()) is not None:
            task()

    def stop():
        for _ in range(count):
            tasks.put(None)

    return threads.start(count, target or work, stop=stop), tasks, stop


# --- starting and joining


def test_threads_are_named_daemons_that_call_the_target_with_its_arguments():
    process = SimpleQueue()

    workers = threads.start(
        2,
        lambda item, second: process.put((item, second)),
        3,
        "x",
        name="reader",
        stop=lambda: None,
    )

    threads.join(workers)
    assert [process.get(timeout=60) for _ in workers] == [(3, "x")] * 2
    assert [worker.name for worker in workers] == ["reader-0", "reader-1"]
    assert all(worker.daemon for worker in workers)


def test_a_thread_is_known_as_long_as_it_lives_and_forgotten_when_it_has_ended():
    workers, _, stop = started(3)
    assert set(workers) <= set(threads._running)

    stop()
    threads.join(workers)

    assert not set(workers) & set(threads._running)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_failed_is_forgotten_too():
    def fail():
        raise ValueError("of the test")

    workers = threads.start(1, fail, stop=lambda: None)

    threads.join(workers)
    assert not set(workers) & set(threads._running)


def test_a_thread_that_joins_its_own_group_does_not_wait_for_itself():
    workers, tasks, stop = started(2)
    whole = threading.Event()
    tasks.put(lambda: (stop(), threads.join(workers), whole.set()))

    assert whole.wait(60)
    threads.join(workers)


def test_stop_may_come_from_a_finalizer_in_one_of_the_threads():
    class Owner:
        pass

    owner = Owner()
    workers, tasks, stop = started(2)
    weakref.finalize(owner, stop).atexit = False
    owner.itself = owner
    del owner

    tasks.put(gc.collect)

    threads.join(workers)  # or the test hangs, and is stopped


@pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="this system has no SIGBUS")
def test_a_thread_can_receive_sigbus_although_it_was_started_with_it_blocked():
    masks = SimpleQueue()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGBUS, signal.SIGUSR1})
    try:
        threads.join(
            threads.start(
                1,
                lambda: masks.put(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
                stop=lambda: None,
            )
        )
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    mask = masks.get(timeout=60)
    assert signal.SIGBUS not in mask
    assert signal.SIGUSR1 in mask  # what else is blocked stays so
    assert signal.SIGBUS in old_mask


@pytest.mark.parametrize("name", ["SIGBUS", "pthread_sigmask"])
def test_threads_start_on_systems_without_these_signals(monkeypatch, name):
    monkeypatch.delattr(signal, name)
    process = SimpleQueue()

    threads.start(1, process.put, "done", stop=lambda: None)

    assert process.get(timeout=60) == "done"


def test_where_the_system_gives_no_more_threads_those_that_started_end_and_the_error_says_what_to_do(
    monkeypatch,
):
    begin, begun = threading.Thread.start, []

    def start_two(thread):
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    before = set(threads._running)

    with pytest.raises(GpuloadError, match="5 threads 'gpuload' cannot start") as raised:
        started(5)

    threads.join(begun)
    assert raised.value.cause == "can't start new thread"
    assert "num_threads" in raised.value.remedy
    assert set(threads._running) == before


def test_a_start_that_ctrl_c_interrupts_leaves_no_thread_behind(monkeypatch):
    begin, begun = threading.Thread.start, []

    def interrupted(thread):
        begun.append(thread)
        begin(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)

    with pytest.raises(KeyboardInterrupt):
        started(2)

    threads.join(begun)
    assert len(begun) == 1


def test_threads_of_the_main_thread_are_started_where_no_signal_handler_runs(monkeypatch):
    begin, used = threading.Thread.start, []

    def start(thread):
        used.append(threading.get_ident())
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    workers, _, stop = started(2)
    stop()
    threads.join(workers)

    assert len(used) == 2
    assert threading.get_ident() not in used


@pytest.mark.parametrize("python_raises", [KeyError, RuntimeError])
def test_what_broke_off_a_start_comes_as_itself_and_not_as_what_python_makes_of_it(
    monkeypatch, python_raises
):
    def start(thread):
        try:
            raise KeyboardInterrupt
        except BaseException:
            raise python_raises(thread)  # noqa: B904  # as CPython 3.11: del _limbo[self]; a lock that is not locked

    monkeypatch.setattr(threading.Thread, "start", start)

    with pytest.raises(KeyboardInterrupt):
        started(2)


def test_a_start_that_takes_long_is_waited_for(monkeypatch):
    begin, process, looks, looked = threading.Thread.start, os.getpid(), [], threading.Event()

    def start(thread):
        looked.wait(60)
        begin(thread)

    def look():
        looks.append(1)
        if len(looks) >= 3:  # the first is before the wait
            looked.set()
        return process

    monkeypatch.setattr(threads, "LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(threads.os, "getpid", look)
    workers, _, stop = started()
    stop()

    assert threads.join(workers, limit_s=60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_that_a_signal_handler_forks_in_the_middle_of_a_start_waits_for_no_thread_of_its_parent():
    script = run_script("""
import os, sys, warnings
from gpuload import threads
from gpuload.errors import GpuloadError
warnings.simplefilter("ignore")
threads.LOOK_AGAIN_S = 0.01
begin, children = threads._thread.start_new_thread, []

def start_and_fork(target, arguments):
    children.append(os.fork())
    if children[0]:
        begin(target, arguments)

threads._thread.start_new_thread = start_and_fork
try:
    threads.start(1, print, "ran", stop=print)
except GpuloadError as error:
    os._exit(3 if children[0] == 0 and "forked" in str(error) else 4)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
""")
    assert script.returncode == 3, script.stderr


@pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timers that send signals"
)
def test_a_start_that_is_interrupted_at_any_moment_leaves_no_thread():
    before, interrupted, stops = set(threads._running), 0, []
    with Alarm(0.0001) as alarm:
        for _ in range(300):
            try:
                alarm.arm()
                _, _, stop = started(3)
                alarm.disarm()
            except Alarm.Rang:
                interrupted += 1
            else:
                stops.append(stop)
    for stop in stops:
        stop()
    threads.join(list(set(threads._running) - before))

    assert interrupted > 20
    assert set(threads._running) == before


def test_a_thread_that_ended_before_it_ran_is_not_waited_for():
    script = """
import threading
from gpuload import threads

begin = threading.Thread.start

class Limbo(dict):
    def __delitem__(self, thread):
        dict.__delitem__(self, thread)
        if threading.current_thread() is not threading.main_thread():
            raise KeyError(thread)  # as where an interrupted start() has deleted it

def interrupted(thread):
    begin(thread)
    raise KeyboardInterrupt

threading._limbo = Limbo()
threading.Thread.start = interrupted
try:
    threads.start(1, print, "it ran", stop=lambda: None)
except KeyboardInterrupt:
    print(threads._running)
"""
    process = run_script(script)

    assert (process.returncode, process.stdout) == (0, "{}\n"), process.stderr
    assert "KeyError" in process.stderr


# --- each


@pytest.mark.parametrize("num_threads", [-1, 0, 1, 2, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_each_returns_the_results_in_the_order_of_the_items(num_threads, count):
    assert threads.parallel_map(lambda x: x * x, range(count), num_threads) == [
        x * x for x in range(count)
    ]


@pytest.mark.parametrize(("count", "num_threads"), [(1, 8), (5, 1)])
def test_each_starts_no_thread_for_one_item_or_one_thread(count, num_threads):
    used = set(
        threads.parallel_map(lambda _: threading.current_thread(), range(count), num_threads)
    )
    assert used == {threading.current_thread()}


def test_each_works_on_several_items_at_a_time():
    group = threading.Barrier(3)
    threads.parallel_map(lambda _: group.wait(60), range(3), 3)  # or the barrier is broken


def test_each_raises_the_first_error_in_the_order_of_the_items_whichever_came_first():
    later_failures = threading.Event()

    def work(number):
        if number == 1:
            later_failures.wait(60)
            raise ValueError("item 1")
        if number == 2:
            later_failures.set()
            raise ValueError("item 2")
        return number

    with pytest.raises(ValueError, match="item 1"):
        threads.parallel_map(work, range(3), 3)


def test_each_begins_nothing_after_an_error_and_waits_for_what_it_began():
    begun, result = SimpleQueue(), SimpleQueue()
    failing = []

    def work(number):
        begun.put(number)
        if number == 0:
            failing.append(threading.current_thread())
            raise ValueError("item 0")
        assert until(lambda: failing)
        failing[0].join(60)  # it has noted its error
        result.put(number)

    with pytest.raises(ValueError, match="item 0"):
        threads.parallel_map(work, range(1000), 2)

    assert begun.qsize() - 1 == result.qsize() <= 1


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration])
def test_each_hands_on_every_kind_of_error(kind):
    def work(number):
        if number == 3:
            raise kind
        return number

    with pytest.raises(kind):
        threads.parallel_map(work, range(9), 2)


def test_an_error_of_each_keeps_nothing_alive():
    class Held:
        pass

    held = []

    def work(number):
        part = Held()
        held.append(weakref.ref(part))
        raise ValueError

    gc.disable()
    try:
        with pytest.raises(ValueError, match=r"^$"):
            threads.parallel_map(work, range(4), 2)
        assert [item() for item in held] == [None] * len(held)
    finally:
        gc.enable()


@pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timers that send signals"
)
def test_each_ends_when_a_signal_handler_raises():
    begun, process = SimpleQueue(), SimpleQueue()

    def work(number):
        begun.put(number)
        time.sleep(0.02)
        process.put(number)

    def ring(*_):
        raise TimeoutError("alarm")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(TimeoutError, match="alarm"):
            threads.parallel_map(work, range(500), 2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert begun.qsize() == process.qsize() < 500


# --- the end of a script, in processes of their own: the hooks of this one have been registered
# long ago

SCRIPT = """
import os, signal, sys, threading, time
from queue import SimpleQueue
{before}
from gpuload import threads

tasks = SimpleQueue()

def work(number):
    while (seconds := tasks.get()) is not None:
        time.sleep(seconds)
    os.write(1, b"ended\\n")

def stop():
    for _ in range(3):
        tasks.put(None)

workers = threads.start(3, work, 0, stop=stop)
{after}
{ending}
"""
FINALIZE = """
import weakref
class Owner: pass
owner = Owner()
weakref.finalize(owner, {call})
"""
ENDINGS = {
    "the last line": ("", 0),
    "sys.exit": ("sys.exit(0)", 0),
    "sys.exit(3)": ("sys.exit(3)", 3),
    "an exception": ("raise ValueError('of the test')", 1),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT),
    "Ctrl-C that was caught": (
        "try: os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\nexcept KeyboardInterrupt: pass", 0
    ),
    "work is being done": ("for _ in range(9): tasks.put(0.1)\ntime.sleep(0.05)", 0),
    "another thread works on": (
        "threading.Thread(target=lambda: [tasks.put(0.01) for _ in range(9)], daemon=True).start()", 0
    ),
    "a thread that is no daemon ends last": ("threading.Thread(target=time.sleep, args=(0.1,)).start()", 0),
}  # fmt: skip
FINALIZERS = {
    "no finalizer": ("", ""),
    "a finalizer before": (FINALIZE.format(call="int"), ""),
    "a finalizer after": ("", FINALIZE.format(call="stop")),
}


def run_script(text, *, imported=True):
    """Run a script in a process that has imported gpuload, or in a new one."""
    if imported:
        return forkserver.run(text, timeout=60)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("finalizer", FINALIZERS)
def test_every_thread_has_ended_before_the_script_has(ending, finalizer):
    line, status = ENDINGS[ending]
    before, after = FINALIZERS[finalizer]

    script = run_script(SCRIPT.format(before=before, after=after, ending=line), imported=not before)

    assert script.returncode == status, script.stderr
    assert script.stdout == "ended\n" * 3
    assert "Fatal" not in script.stderr


def test_python_does_not_wait_for_ever_for_a_thread_that_does_not_end():
    script = run_script("""
import threading
from gpuload import threads
threads.END_S = 0.3
threads.start(1, threading.Event().wait, name="stubborn", stop=lambda: None)
""")
    assert script.returncode == 0
    assert (
        "without waiting for the threads stubborn-0; cause: they have not ended within"
        in script.stderr
    )


def test_a_message_about_many_threads_names_some_of_them():
    script = run_script("""
import threading
from gpuload import threads
threads.END_S = 0.3
threads.start(30, threading.Event().wait, name="stubborn", stop=lambda: None)
""")
    assert "stubborn-6, stubborn-7 and 22 more; cause: they have not ended within" in script.stderr
    assert "stubborn-8" not in script.stderr


@pytest.mark.timeout(60)
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="the lock of imports is CPython's")
@pytest.mark.parametrize(
    "how", ["threads.join(threads.start(1, use, stop=int))", "signalsafe.call(use)", "pass"]
)
def test_nobody_waits_for_an_import_lock_that_an_interrupt_left_locked(how):
    script = run_script(f"""
import _imp, sys
from gpuload.errors import GpuloadError
from gpuload import signalsafe, threads

def use():
    import colorsys

_imp.acquire_lock()  # as an exception of a signal handler leaves it
try:
    {how}
except GpuloadError as error:
    print(error.cause)
else:
    threads.start(1, use, stop=int)
""")
    assert script.returncode == 0, script.stderr
    assert "broke off an import and left Python's lock locked" in (
        script.stderr if how == "pass" else script.stdout
    )


def test_a_thread_that_would_start_when_python_has_ended_is_refused():
    script = run_script(
        "import atexit\n"
        "atexit.register(lambda: threads.start(1, print, 'started', stop=lambda: None))\n"
        "from gpuload import threads",
        imported=False,
    )
    assert "Python is ending" in script.stderr
    assert "started" not in script.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_made_by_fork_ends_without_the_threads_of_its_parent_and_may_have_its_own():
    script = run_script(
        SCRIPT.format(
            before="import warnings; warnings.simplefilter('ignore')",
            after="",
            ending="""
child = os.fork()
if child == 0:
    assert not threads._running
    threads.start(1, work, 1, stop=stop)
    sys.exit(0)
assert len(threads._running) == 3
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
""",
        )
    )
    assert script.returncode == 0, script.stderr
    assert script.stdout == "ended\n" * 4


# --- cores


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Write what a system tells; returns a function of the cores by affinity, the process's groups
    and their limits."""

    def tell(allowed, groups="", limits=None, requests=None):
        (tmp_path / "cgroup").write_text(groups)
        for name, text in (limits or {}).items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)
        if requests is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", requests)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "OWN_GROUPS", str(tmp_path / "cgroup"))
    monkeypatch.setattr(threads, "GROUPS", str(tmp_path / "groups"))
    return tell


def test_the_cores_that_the_process_may_run_on(system):
    system(12)
    assert threads.num_cores() == 12


def test_all_cores_where_the_system_has_no_affinity(system, monkeypatch):
    system(12)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert threads.num_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert threads.num_cores() == 1


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        ("0::/\n", {"cpu.max": "300000 100000\n"}),
        ("0::/a/b\n", {"a/b/cpu.max": "300000 100000\n", "a/cpu.max": "max 100000\n"}),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 50000\n"}),
        ("0::/a/b\n", {"a/b/cpu.max": "900000 100000\n", "cpu.max": "300000 100000\n"}),
        ("0::/a/b\n", {"a/b/cpu.max": "201000 100000\n"}),
        ("0::/not/seen/here\n", {"cpu.max": "300000 100000\n"}),
        (
            "4:cpu,cpuacct:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "300000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
        ),
        (
            "4:cpu:/not/seen\n",
            {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"},
        ),
        ("1:name=systemd:/a:b\n0::/a:b\n", {"a:b/cpu.max": "300000 100000\n"}),
    ],
)
def test_no_more_than_the_least_quota_of_a_group_rounded_up(system, groups, limits):
    system(12, groups, limits)
    assert threads.num_cores() == 3


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}),
        ("0::/\n", {"cpu.max": "nonsense\n"}),
        ("0::/\n", {"cpu.max": "100000 0\n"}),
        (
            "3:cpuset:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "100000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
        ),
        ("4:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}),
        ("4:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "100000\n"}),
        ("nonsense\n", {"cpu.max": "100000 100000\n"}),
        ("", {"cpu.max": "100000 100000\n"}),
    ],
)
def test_groups_without_a_quota_allow_all(system, groups, limits):
    system(12, groups, limits)
    assert threads.num_cores() == 12


def test_a_tenth_of_a_core_is_one_thread(system):
    system(12, "0::/\n", {"cpu.max": "10000 100000\n"})
    assert threads.num_cores() == 1


def test_more_processor_time_than_there_are_cores_allows_the_cores(system):
    system(2, "0::/\n", {"cpu.max": "800000 100000\n"})
    assert threads.num_cores() == 2


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ("1", 1),
        ("5", 5),
        ("12", 12),
        ("99", 12),
        (" 4 ", 4),
        ("4,2", 4),
        ("0", 12),
        ("-3", 12),
        ("", 12),
        ("all", 12),
    ],
)
def test_omp_num_threads_is_heeded_where_it_asks_for_less(system, requests, expected):
    system(12, requests=requests)
    assert threads.num_cores() == expected


@pytest.mark.parametrize(
    ("machine", "environment", "num_gpus", "expected"),
    [
        (96, {}, 1, 96),
        (96, {}, 8, 12),
        (96, {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "8"}, 8, 12),
        (192, {"LOCAL_WORLD_SIZE": "8"}, 8, 12),  # a container: torchrun binds no process
        (96, {"LOCAL_WORLD_SIZE": "1"}, 8, 96),
        (96, {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 4, 24),  # not bound: all cores are everybody's
        (192, {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 4, 96),  # bound
        (192, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2, 96),
        (96, {"MPI_LOCALNRANKS": "2"}, 1, 48),
        (96, {"LOCAL_WORLD_SIZE": "many"}, 4, 24),
        (96, {"LOCAL_WORLD_SIZE": "0"}, 0, 96),
        (96, {"LOCAL_WORLD_SIZE": "1000"}, 1, 1),
    ],
)
def test_the_cores_for_a_gpu_are_those_that_no_other_process_of_the_training_has(
    system, monkeypatch, machine, environment, num_gpus, expected
):
    system(96)
    for name in ("LOCAL_WORLD_SIZE", *threads.RANKS_OF_BINDERS):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(os, "cpu_count", lambda: machine)

    assert threads.num_cores_for_gpu(num_gpus) == expected


def test_this_system_gives_at_least_one_core():
    assert 1 <= threads.num_cores() <= (os.cpu_count() or 1)

"""The sentence about a slow loop names the cause that was planted, and its remedy.

Each cause is real: a library in front of libc makes the disk slow, files are small, images large,
the process may run on one core alone. It takes ten times as long as all else, or waits until it has
taken most of the loop, or is measured in processor time, so that a loaded machine changes nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload import device as devices
from gpuload import threads
from gpuload.cli.bench import measure_loop
from gpuload.pipeline import epoch
from gpuload.stats.bottleneck import RULES, Bottleneck, Facts, Limits, find_bottleneck
from tests import simdevice
from tests.imagefiles import jpeg

# In front of libc: each read of a file waits, and so does each request for pages of a map.
SLOW_DISK = """
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
extern "C" {
static void wait_for_disk() { usleep(4000); }
ssize_t pread64(int file, void* to, size_t size, off_t offset) {
    static auto next = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
    wait_for_disk();
    return next(file, to, size, offset);
}
ssize_t pread(int file, void* to, size_t size, off_t offset) { return pread64(file, to, size, offset); }
ssize_t preadv64(int file, const iovec* to, int count, off_t offset) {
    static auto next = (ssize_t(*)(int, const iovec*, int, off_t))dlsym(RTLD_NEXT, "preadv64");
    wait_for_disk();
    return next(file, to, count, offset);
}
ssize_t preadv(int file, const iovec* to, int count, off_t offset) { return preadv64(file, to, count, offset); }
int madvise(void* begin, size_t size, int advice) {
    static auto next = (int (*)(void*, size_t, int))dlsym(RTLD_NEXT, "madvise");
    if (advice == MADV_WILLNEED) wait_for_disk();
    return next(begin, size, advice);
}
}
"""
LOOP = """
import os, sys
if sys.argv[2:]:
    os.sched_setaffinity(0, {int(sys.argv[2])})
import numpy as np
import gpuload as gl
FILES = sys.argv[1]
%s
for batch in loader:
    pass
print(loader.stats().bottleneck())
"""


def bottleneck(loader: gl.Loader) -> Bottleneck:
    """Return what holds up a loop that does nothing with its batches."""
    for _ in loader:
        pass
    return loader.stats().bottleneck()


def run(program: str, *arguments: object, **environment: str) -> str:
    """Return what a process prints that makes a loader and goes through it."""
    command = [sys.executable, "-c", LOOP % program, *map(str, arguments)]
    result = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def slow_disk(folder: Path) -> str:
    """Return the library that makes reading slow."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no compiler of C++ for Linux")
    (folder / "slow.cpp").write_text(SLOW_DISK)
    library = str(folder / "slow.so")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, str(folder / "slow.cpp"), "-ldl"], check=True
    )
    return library


def busy(x):
    """Work in Python, without the help of NumPy."""
    total = 0
    for number in range(20_000):
        total += number
    return x


def test_a_slow_disk_is_named_where_rows_are_mapped(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.zeros((1000, 4096), np.uint8))
    program = """
from gpuload.storage import maps
maps.cache_bytes = lambda: 0  # as on a machine with less memory than files, which asks for pages before it copies them
loader = gl.Loader(gl.npy(FILES), batch_size=20, shuffle=True, device="cpu")
"""
    sentence = run(program, tmp_path / "x.npy", LD_PRELOAD=slow_disk(tmp_path))

    assert sentence.startswith("Slow disk: training waited "), sentence
    assert "faster disk" in sentence
    assert "gl.Blocks" in sentence


def test_a_slow_disk_is_named_where_files_are_read(tmp_path: Path):
    for number in range(60):
        np.save(tmp_path / f"{number}.npy", np.zeros(1 << 19, np.uint8))
    program = 'loader = gl.Loader(gl.npy(FILES, record="file"), batch_size=4, device="cpu")'
    sentence = run(program, tmp_path / "*.npy", LD_PRELOAD=slow_disk(tmp_path))

    assert sentence.startswith("Slow disk: training waited "), sentence
    assert "source.cache(memory=" in sentence


@pytest.mark.parametrize("num_cores", [1, 2, 8, 64])
def test_for_a_slow_disk_more_threads_are_named_until_there_are_four_for_each_core(num_cores: int):
    counts = {"loop_s": 10.0, "wait_s": 9.0, "batches": 100, "bytes": 1e9, "read.seconds": 18.0}
    counts |= {"read.sampled": 9.0, "read.blocked": 8.0}

    few, many = (
        find_bottleneck(
            counts, Facts(num_threads=number * num_cores, num_cores=num_cores), Limits()
        )
        for number in (1, 4)
    )

    assert few.cause == many.cause == "slow disk"
    assert few.remedy.startswith(
        f"num_threads={4 * num_cores} where the storage answers many reads at a time"
    )
    assert many.remedy.startswith("files on a faster disk")


def test_to_a_loader_that_chooses_the_number_of_threads_none_is_named():
    counts = {"loop_s": 10.0, "wait_s": 9.0, "batches": 100, "bytes": 1e9}
    disk = {"read.seconds": 18.0, "read.sampled": 9.0, "read.blocked": 8.0}
    facts = Facts(num_threads=2, tunes_threads=True, num_cores=8)

    assert find_bottleneck({**counts, **disk}, facts).remedy.startswith("files on a faster disk")
    assert find_bottleneck({**counts, "ops.seconds": 18.0}, facts).cause == "too few cores"


def test_the_time_in_which_threads_had_no_core_hides_no_cause():
    """Another program has the cores: each thread that wakes up waits for one, far longer than for
    the disk."""
    counts = {
        "loop_s": 10.0,
        "wait_s": 9.0,
        "batches": 100,
        "bytes": 1e9,
        "read.seconds": 10.0,
        "ops.seconds": 8.0,
    }
    counts |= {
        "read.sampled": 5.0,
        "read.blocked": 1.8,
        "read.starved": 3.0,
        "ops.sampled": 4.0,
        "ops.starved": 3.6,
    }
    slowest = find_bottleneck(counts, Facts(num_threads=2, num_cores=2), Limits())

    assert slowest.cause == "slow disk"
    assert (
        "83% of the threads' work was reading, 90% of which waits for storage, at"
        in slowest.finding
    )


def test_where_the_system_does_not_say_why_a_thread_did_not_run_the_sentence_says_so():
    counts = {"loop_s": 10.0, "wait_s": 9.0, "batches": 100, "bytes": 1e9, "read.seconds": 10.0}
    counts |= {"read.sampled": 5.0, "read.off_core": 4.0}
    slowest = find_bottleneck(counts, Facts(num_threads=2, num_cores=2), Limits())

    assert slowest.cause == "slow disk"
    assert (
        "80% of which waits for storage or for a core, which this system does not tell apart, at"
        in slowest.finding
    )


@pytest.mark.parametrize("batch", [False, True])
def test_a_slow_python_op_is_named(batch: bool):
    function = (lambda x: [busy(x) for _ in x] and x) if batch else busy
    source = gl.arrays(x=np.zeros((640, 8), np.float32))
    slowest = bottleneck(
        gl.Loader(source, 16, ops=[gl.ops.Python(function, batch=batch, out={})], device="cpu")
    )

    assert slowest.cause == "slow Python op"
    assert "(Python)" in slowest.finding
    assert "op of gl.ops" in slowest.remedy


def test_an_op_of_the_users_own_is_a_python_op():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Slow(gl.ops.Op):
        def field_after(self, field):
            return field

        def array(self, xp, x, draw):
            return busy(x)

    slowest = bottleneck(
        gl.Loader(gl.arrays(x=np.zeros((640, 8), np.float32)), 16, ops=[Slow(on="x")], device="cpu")
    )

    assert (slowest.cause, "(Slow)" in slowest.finding) == ("slow Python op", True)


def test_a_python_reader_is_named():
    def read(indices):
        return {"x": np.stack([busy(np.full(8, i)) for i in indices])}

    slowest = bottleneck(gl.Loader(gl.records(640, read), 16, device="cpu"))

    assert slowest.cause == "Python reader"
    assert "gl.convert" in slowest.remedy


def test_a_python_reader_that_waits_for_storage_is_told_from_one_that_computes():
    counts = {
        "loop_s": 10.0,
        "wait_s": 9.0,
        "batches": 100,
        "bytes": 1e9,
        "read.seconds": 20.0,
        "read.sampled": 10.0,
    }
    facts = Facts(num_threads=2, num_cores=2, reads_in_python=True)

    waits = find_bottleneck({**counts, "read.blocked": 9.5}, facts)
    computes = find_bottleneck({**counts, "read.blocked": 5.1}, facts)
    computes_on_a_busy_machine = find_bottleneck(
        {**counts, "read.blocked": 5.1, "read.starved": 4.5}, facts
    )

    assert waits.cause == computes.cause == "Python reader"
    assert waits.finding.endswith("95% of which is waiting, for storage or a network perhaps")
    assert waits.remedy.startswith(
        "num_threads=8, or leave num_threads= out: calls can wait side by side; or write"
    )
    assert computes.finding.endswith("Python runs one thread at a time")
    assert computes == computes_on_a_busy_machine
    assert computes.remedy.startswith("write the records once with gl.convert")


def test_a_reader_that_sleeps_waits():
    def read(indices):
        threading.Event().wait(0.05)
        return {"x": np.asarray(indices)}

    slowest = bottleneck(
        gl.Loader(gl.records(400, read), 16, device="cpu", num_threads=1, prefetch=1)
    )

    assert "is waiting, for storage or a network perhaps" in slowest.finding


def blurred(**changes) -> gl.Loader:
    """A loader whose time goes to compiled ops."""
    images = gl.arrays(image=np.zeros((256, 64, 64, 3), np.uint8))
    ops = [gl.ops.GaussianBlur(15) for _ in range(3)]
    return gl.Loader(images, 16, ops=ops, device="cpu", **changes)


def test_one_thread_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "num_cores", lambda: 8)
    slowest = bottleneck(blurred(num_threads=1))

    assert slowest.cause == "one thread"
    assert slowest.remedy == "num_threads=8, or leave num_threads= out"


def test_too_few_cores_are_named():
    core = (
        min(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else pytest.skip("no affinity here")
    )
    program = """
images = gl.arrays(image=np.zeros((256, 64, 64, 3), np.uint8))
loader = gl.Loader(images, 16, ops=[gl.ops.GaussianBlur(15) for _ in range(3)], device="cpu")
"""
    sentence = run(program, "none", core)

    assert sentence.startswith("Too few cores: training waited"), sentence
    assert f"one thread on 1 of {os.cpu_count()} cores" in sentence
    assert (
        "more of the machine's cores" if (os.cpu_count() or 1) > 1 else "more cores"
    ) in sentence


def test_small_files_are_named(tmp_path: Path):
    for number in range(1500):
        np.save(tmp_path / f"{number}.npy", np.zeros(256, np.float32))
    slowest = bottleneck(
        gl.Loader(gl.npy(str(tmp_path / "*.npy"), record="file"), 50, device="cpu")
    )

    assert slowest.cause == "small files"
    assert "files of 1.2 kB" in slowest.finding
    assert "few large files" in slowest.remedy


def test_large_images_are_named(tmp_path: Path):
    data = jpeg(1200, 1600)
    for number in range(24):
        (tmp_path / f"{number}.jpg").write_bytes(data)
    ops = [gl.ops.Decode(), gl.ops.Resize(32, 32, interpolation="nearest")]
    slowest = bottleneck(gl.Loader(gl.images(str(tmp_path / "*.jpg")), 4, ops=ops, device="cpu"))

    assert slowest.cause == "large images"
    assert "1.9 million pixels each, where batches have 0.001" in slowest.finding
    assert "smaller once" in slowest.remedy


def test_tiny_batches_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        epoch, "perf_counter", time.thread_time
    )  # as if no other program ever had the core
    np.save(tmp_path / "x.npy", np.zeros((3000, 16), np.float32))
    slowest = bottleneck(gl.Loader(gl.npy(tmp_path / "x.npy"), 1, device="cpu"))

    assert slowest.cause == "tiny batches"
    assert slowest.remedy == "a larger batch_size than 1"


def test_an_audit_that_takes_most_of_the_time_is_named():
    images = gl.arrays(image=np.zeros((200, 32, 32, 3), np.uint8))
    ops = [gl.ops.GaussianBlur(5, (0.1, 2.0)), gl.ops.Normalize(127.0, 60.0)]
    with gl.Loader(images, 20, ops=ops, device="cpu", audit=1.0, num_threads=1) as loader:
        list(loader)
        bottleneck = loader.stats().bottleneck()

    assert bottleneck.cause == "audit"
    assert "made 200 of 200 records again" in bottleneck.finding


def test_a_slow_consumer_is_named():
    loader = gl.Loader(gl.arrays(x=np.zeros((640, 8))), 16, device="cpu")
    while (
        loader.stats()["batches"] < 20
        or loader.stats().training_s < 0.95 * loader.stats()["loop_s"]
    ):
        for _ in loader:
            threading.Event().wait(0.02)
    slowest = loader.stats().bottleneck()

    assert slowest.cause == "slow consumer"
    assert "the loader needs no change" in slowest.remedy


def test_memory_that_is_not_page_locked_is_named(monkeypatch: pytest.MonkeyPatch):
    """The loader works on the CPU of a machine with a GPU, where a copy from ordinary memory is
    slow."""
    sim = simdevice.install(monkeypatch, seed=1)
    upload = devices.upload

    def upload_slowly(host, device):
        threading.Event().wait(0.03)
        return upload(host, device)

    monkeypatch.setattr(devices, "upload", upload_slowly)
    with gl.Loader(
        gl.arrays(x=np.zeros((6400, 8), np.float32)), 16, device="cpu"
    ) as loader:  # more than are taken
        run = measure_loop(loader, 0.5, 0.0)
    sim.finish()

    slowest = run.stats.bottleneck(Limits(pageable_bytes=3e9, pinned_bytes=24e9))
    assert slowest.cause == "pageable memory"
    assert "at 3.0 GB/s where page-locked memory gives 24.0" in slowest.finding
    assert 'device="gpu"' in slowest.remedy


@pytest.mark.parametrize(
    ("name", "cause"), [("gpu_upload_s", "slow link to the GPU"), ("gpu_ops_s", "slow GPU ops")]
)
def test_a_gpu_that_is_busy_all_the_time_is_named(name: str, cause: str):
    counts = {"batches": 100, "loop_s": 10.0, "wait_s": 9.0, "bytes": 1e9, name: 9.5}
    slowest = find_bottleneck(counts, Facts(device="gpu:0"), Limits(pinned_bytes=24e9))

    assert slowest.cause == cause
    assert "training waited 90% of the time" in slowest.finding


def test_before_a_loop_the_sentence_says_what_to_do():
    assert str(gl.Loader(gl.arrays(x=np.zeros(64)), 16, device="cpu").stats().bottleneck()) == (
        "Too little was measured: 0 batches were taken in a loop; what helps most: take some hundred batches with `for "
        "batch in loader`, and ask again."
    )


def test_the_last_rule_is_true_of_anything():
    assert RULES[-1].test(None) is True  # type: ignore[arg-type]
    assert len({rule.cause for rule in RULES}) == len(RULES)

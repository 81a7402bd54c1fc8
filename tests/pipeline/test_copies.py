"""Steps that the threads of the core copy: the same batches as without it, and every promise of
endings and errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload import core
from gpuload.errors import ChangedFileError, ClosedError
from gpuload.order import Position
from gpuload.pipeline import session
from gpuload.pipeline.recipe import Recipe
from gpuload.pipeline.stretch import Stretch
from gpuload.sources.leaf import Leaf
from gpuload.sources.rows import RowLeaf
from tests import forkserver

pytestmark = pytest.mark.skipif(core.native is None, reason=f"no core: {core.problem}")
RNG = np.random.default_rng(0)


def shards(folder: Path, num_files: int = 3, num_rows: int = 700, dtype: str = "<f4") -> list[Path]:
    paths = [folder / f"{number}.npy" for number in range(num_files)]
    for path in paths:
        np.save(path, RNG.integers(0, 100, (num_rows, 33)).astype(dtype))
    return paths


def is_copied(loader: gl.Loader) -> bool:
    return loader._session.recipe.is_copied


SOURCES = {
    "one file": lambda paths: gl.npy(paths[0]),
    "files": gl.npy,
    "a slice": lambda paths: gl.npy(paths)[5:1500:3],
    "zipped": lambda paths: gl.zip(gl.npy(paths[0], field="a"), gl.npy(paths[1], field="b")),
    "concatenated": lambda paths: gl.concat(gl.npy(paths[0]), gl.npy(paths[2]), gl.npy(paths[1])),
    "mixed": lambda paths: gl.mix({gl.npy(paths[0]): 0.7, gl.npy(paths[1]): 0.3}),
    "repeated": lambda paths: gl.npy(paths).select([3, 3, 1999, 0, 3] * 50),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_batches_are_the_records_in_their_order(name: str, shuffle: bool, tmp_path: Path):
    source = SOURCES[name](shards(tmp_path))
    for batch_size in (1, 16, 100, 4096):
        loader = gl.Loader(source, batch_size=batch_size, shuffle=shuffle, seed=3, device="cpu")
        assert is_copied(loader)
        for number, batch in enumerate(loader):
            expected = source.read(batch.records)
            for field, values in batch.items():
                np.testing.assert_array_equal(values, expected[field])
            if number > 30:
                break
        loader.close()


def test_what_is_not_stored_as_it_is_handed_out_is_read_as_ever(tmp_path: Path):
    rows = RNG.integers(0, 100, (300, 33)).astype(np.float32)
    for number, dtype in enumerate(("<f4", ">f4")):
        np.save(tmp_path / f"{number}.npy", rows.astype(dtype))
    np.save(tmp_path / "fortran.npy", np.asfortranarray(rows))
    for number in range(20):
        noise = RNG.integers(0, 256, 5000, np.uint8)
        np.savez_compressed(tmp_path / f"{number}.npz", noise=noise, row=rows[number])
    for source, name in (
        (gl.npy([tmp_path / "0.npy", tmp_path / "1.npy"], field="x"), "x"),
        (gl.npy(tmp_path / "fortran.npy", field="x"), "x"),
        (
            gl.npz(
                [tmp_path / f"{number}.npz" for number in range(20)], record="file", fields=["row"]
            ),
            "row",
        ),
        (gl.arrays(x=rows), "x"),
    ):
        for batch in gl.Loader(source, batch_size=16, shuffle=True, device="cpu"):
            np.testing.assert_array_equal(batch[name], rows[batch.records % 300])


def test_a_source_without_records_has_no_batches(tmp_path: Path):
    np.save(tmp_path / "empty.npy", np.zeros((0, 33), np.float32))
    assert list(gl.Loader(gl.npy(tmp_path / "empty.npy"), batch_size=16, device="cpu")) == []


def test_a_class_that_reads_otherwise_is_not_copied_as_its_base_is():
    """``read`` and ``add_to`` have the same meaning, so they come from the same class."""
    classes = [Leaf]
    for leaf in classes:
        classes += leaf.__subclasses__()
        names = [
            next(base for base in leaf.__mro__ if name in vars(base))
            for name in ("_read", "add_to", "is_mapped")
        ]
        assert names[1] is names[2]
        assert names[1] in (names[0], Leaf), leaf
    assert RowLeaf in classes


def test_only_what_is_mapped_and_has_to_be_sound_is_copied(tmp_path: Path):
    (path,) = shards(tmp_path, 1)
    assert is_copied(gl.Loader(gl.npy(path), batch_size=16, device="cpu"))
    assert not is_copied(gl.Loader(gl.npy(path), batch_size=16, device="cpu", on_error="replace"))
    assert not is_copied(
        gl.Loader(gl.npy(path), batch_size=16, device="cpu", ops=[gl.ops.Cast("float64")])
    )
    assert not is_copied(gl.Loader(gl.arrays(x=np.zeros((90, 33))), batch_size=16, device="cpu"))


def images(folder: Path, num_files: int = 2) -> list[Path]:
    """Write files of images of 20 x 24 in three channels, in records as those of CIFAR-10 are: a
    label, then planes."""
    paths = [folder / f"{number}.bin" for number in range(num_files)]
    for path in paths:
        path.write_bytes(RNG.integers(0, 256, 300 * np.dtype(RECORDS).itemsize, np.uint8).tobytes())
    return paths


def npy_images(folder: Path, dtype: str = "u1", shape: tuple[int, ...] = (20, 24, 3)) -> Path:
    np.save(folder / "images.npy", RNG.integers(0, 256, (300, *shape)).astype(dtype))
    return folder / "images.npy"


RECORDS = [("label", "u1"), ("image", "u1", (3, 20, 24)), ("weight", "<f4")]
CROP, FLIP = gl.ops.RandomCrop(16, 16, pad=4), gl.ops.RandomFlip(vertical=True)
HWC = gl.ops.Transpose("HWC")
NORMALIZE = gl.ops.Normalize([120.0, 110.0, 100.0], [60.0, 61.0, 62.0])
WITH_OPS: dict[str, tuple[Any, list[Any]]] = {
    "a walk of planes": (lambda folder: gl.fixed(images(folder), RECORDS), [HWC, CROP, FLIP, NORMALIZE]),
    "a walk that makes planes": (
        lambda folder: gl.npy(npy_images(folder), field="image"), [CROP, NORMALIZE, gl.ops.Transpose("CHW")],
    ),
    "a walk of bytes": (lambda folder: gl.npy(npy_images(folder), field="image"), [CROP, FLIP]),
    "a walk of floats": (lambda folder: gl.npy(npy_images(folder, "<f4"), field="image"), [FLIP, NORMALIZE]),
    "edits": (
        lambda folder: gl.npy(npy_images(folder), field="image"),
        [gl.ops.ColorJitter(0.4, 0.4, 0.4), gl.ops.Solarize(99)],
    ),
    "a policy": (lambda folder: gl.npy(npy_images(folder), field="image"), [gl.ops.TrivialAugmentWide()]),
    "crop, edits and a walk in one call": (
        lambda folder: gl.npy(npy_images(folder), field="image"),
        [CROP, FLIP, gl.ops.ColorJitter(0.4, 0.4, 0.4, 0.1), NORMALIZE, gl.ops.Transpose("CHW")],
    ),
    "a box of each resized": (
        lambda folder: gl.npy(npy_images(folder), field="image"), [gl.ops.RandomResizedCrop(13, 15), FLIP],
    ),
    "resized, edited, and a walk": (
        lambda folder: gl.npy(npy_images(folder), field="image"),
        [gl.ops.RandomResizedCrop(13, 15), FLIP, gl.ops.AutoContrast(p=0.5), gl.ops.RandAugment(2, 9), NORMALIZE],
    ),
    "two fields": (
        lambda folder: gl.zip(
            gl.fixed(images(folder), RECORDS)[:300], gl.npy(npy_images(folder, shape=(5, 6)), field="small"),
        ),
        [HWC, gl.ops.Normalize(1.0, 2.0, on="small")],
    ),
    "sources one behind another": (
        lambda folder: gl.concat(
            gl.fixed(images(folder), ("u1", (3, 20, 24)), field="image", footer_bytes=300 * 5),
            gl.npy(npy_images(folder, shape=(3, 20, 24)), field="image"),
        ),
        [HWC, CROP, FLIP],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_OPS)
def test_ops_are_done_while_records_are_read(name: str, tmp_path: Path):
    """The batches are those of a loader that reads first: one for which other records may stand for
    damaged ones."""
    make, ops = WITH_OPS[name]
    source = make(tmp_path)
    for batch_size, last_batch in ((1, "partial"), (16, "pad"), (100, "partial"), (512, "partial")):
        loader = gl.Loader(
            source, batch_size, ops=ops, shuffle=True, seed=4, device="cpu", last_batch=last_batch
        )
        plain = loader.replace(on_error="replace")
        assert is_copied(loader)
        assert not is_copied(plain)
        for epoch in range(2):
            num_batches = 0
            for batch, expected in zip(loader.epoch(epoch), plain.epoch(epoch), strict=True):
                np.testing.assert_array_equal(batch.records, expected.records)
                assert dict(batch.items()).keys() == dict(expected.items()).keys()
                for field, values in batch.items():
                    np.testing.assert_array_equal(values, expected[field], strict=True)
                if (num_batches := num_batches + 1) > 40:
                    break
        loader.close()
        plain.close()


def test_ops_that_need_more_than_the_bytes_of_a_record_come_behind_reading(tmp_path: Path):
    source = gl.npy(npy_images(tmp_path), field="image")
    for ops in (
        [gl.ops.Normalize(1.0, 2.0, dtype="float16")],
        [gl.ops.Python(lambda image: image, on="image")],
        [gl.ops.MixUp(alpha=1.0)],
        [gl.ops.Copy("image", to=("a", "b")), gl.ops.RandomFlip(on="a")],
    ):
        loader = gl.Loader(source, 16, ops=ops, device="cpu")
        assert not is_copied(loader), ops
        assert len(next(iter(loader)).records) == 16
    flip = gl.Loader(source, 16, ops=[FLIP], device="cpu", drawn=True)
    assert not is_copied(flip)  # what was drawn is handed out
    assert next(iter(flip)).drawn


def test_short_steps_whose_ops_read_are_done_together_from_the_first_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of the first ones alone it is drawn, while they are waited for."""
    stretches, draw_stretch = list[int](), session.Stretch

    def note(recipe: Recipe, position: Position, num_steps: int) -> Stretch:
        stretches.extend(
            [num_steps] * (recipe.source is loader.source)
        )  # threads of an earlier test may still draw
        return draw_stretch(recipe, position, num_steps)

    monkeypatch.setattr(session, "Stretch", note)
    np.save(tmp_path / "images.npy", np.zeros((9000, 8, 8, 3), np.uint8))
    loader = gl.Loader(gl.npy(tmp_path / "images.npy", field="image"), 20, ops=[FLIP], device="cpu")
    recipe = loader._session.recipe
    assert is_copied(loader)
    assert (recipe.num_joined, recipe.num_stretched) == (64, 3)
    assert sum(1 for _ in loader) == 450
    assert stretches == [64, 192, 192, 2]
    stats = loader.stats()
    assert stats["slots_made"] + stats["slots_reused"] == 8  # groups


def test_a_thread_reads_few_large_records_at_a_time_however_small_their_results_are(tmp_path: Path):
    path = npy_images(tmp_path, shape=(100, 120, 3))
    loader = gl.Loader(gl.npy(path, field="image"), 64, ops=[gl.ops.RandomCrop(4, 4)], device="cpu")
    assert is_copied(loader)
    assert loader._session.recipe.piece_rows == (1 << 18) // 36000


def test_a_file_that_changes_is_an_error_of_the_steps_whose_ops_read_it(tmp_path: Path):
    paths = images(tmp_path)
    loader = gl.Loader(gl.fixed(paths, RECORDS), 30, ops=[HWC], device="cpu", prefetch=1)
    assert is_copied(loader)
    status = paths[1].stat()
    os.utime(paths[1], ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    epoch = iter(loader)
    assert [next(epoch).step for _ in range(10)] == list(range(10))
    with pytest.raises(ChangedFileError, match=paths[1].name):
        next(epoch)


@pytest.mark.parametrize("change", ["touched", "cut"])
def test_a_file_that_changes_after_it_was_mapped_is_an_error_of_the_steps_whose_ops_read_it(
    change: str, tmp_path: Path
) -> None:
    paths = images(tmp_path)
    loader = gl.Loader(gl.fixed(paths, RECORDS), 30, ops=[HWC], device="cpu")
    assert sum(1 for _ in loader) == 20
    if change == "touched":
        status = paths[1].stat()
        os.utime(paths[1], ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    else:
        os.truncate(paths[1], 5000)
    epoch = iter(loader)
    assert [next(epoch).step for _ in range(10)] == list(range(10))
    with pytest.raises(ChangedFileError, match=paths[1].name):
        next(epoch)


def test_ops_that_read_are_counted_as_ops_and_their_bytes_as_read(tmp_path: Path):
    loader = gl.Loader(gl.fixed(images(tmp_path), RECORDS), 32, ops=[HWC, NORMALIZE], device="cpu")
    for _ in loader:
        pass
    for _ in loader:  # the first steps of an epoch are counted when those behind them are prepared
        pass
    stages = {stage.name: stage for stage in loader.stats().stages}
    stats = loader.stats()
    assert stats["ops_s"] > 0
    assert stages["ops"].seconds > 10 * (stages["read"].seconds if "read" in stages else 0.0)
    assert stats["read.bytes"] == 2 * 600 * np.dtype(RECORDS).itemsize
    assert stats["ops.bytes"] == 2 * 600 * (5 + 4 * 1440)


def test_threads_that_copy_are_counted_as_reading(tmp_path: Path):
    loader = gl.Loader(gl.npy(shards(tmp_path)), batch_size=64, device="cpu")
    for _ in loader:
        pass
    assert loader.stats()["read_s"] > 0


def test_a_loop_that_drops_its_batches_has_two_groups_of_steps_in_memory(tmp_path: Path):
    loader = gl.Loader(gl.npy(shards(tmp_path, 2, 12000)), batch_size=64, device="cpu")
    assert loader._session.recipe.num_joined > 1
    for batch in loader:  # noqa: B007  the variable keeps the last batch of a group when the next group is begun
        pass
    assert loader.stats()["slots_made"] == 2


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_steps_are_made_ahead_however_few_may_be(prefetch: int, tmp_path: Path):
    loader = gl.Loader(gl.npy(shards(tmp_path)), batch_size=64, device="cpu", prefetch=prefetch)
    assert is_copied(loader)
    assert [batch.step for batch in loader] == list(range(len(loader)))


def test_a_file_that_changes_is_an_error_of_the_steps_that_read_it(tmp_path: Path):
    paths = shards(tmp_path, 2, 400)
    loader = gl.Loader(gl.npy(paths), batch_size=40, device="cpu", prefetch=1)
    status = paths[1].stat()
    os.utime(paths[1], ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    epoch = iter(loader)
    assert [next(epoch).step for _ in range(10)] == list(range(10))
    for _ in range(10):
        with pytest.raises(ChangedFileError, match=paths[1].name):
            next(epoch)
    assert next(epoch, None) is None


def test_the_steps_of_a_group_whose_file_changed_are_errors_though_all_of_it_is_copied(
    tmp_path: Path,
):
    paths = shards(tmp_path, 2, 400)
    loader = gl.Loader(gl.npy(paths), batch_size=20, device="cpu")
    assert loader._session.recipe.num_joined == 40
    status = paths[1].stat()
    os.utime(paths[1], ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    epoch = iter(loader)
    assert next(epoch).step == 0
    _, _, copies = epoch._run.latest
    while any(copies.wait(step) == 0 for step in range(40)):
        pass
    assert [next(epoch).step for _ in range(19)] == list(range(1, 20))
    with pytest.raises(ChangedFileError, match=paths[1].name):
        next(epoch)


def test_a_loader_that_is_closed_while_batches_are_copied(tmp_path: Path):
    loader = gl.Loader(gl.npy(shards(tmp_path)), batch_size=64, device="cpu")
    epoch = iter(loader)
    held_batches = next(epoch)
    before = np.array(held_batches[0])
    loader.close()
    with pytest.raises(ClosedError):
        for _ in epoch:
            pass
    np.testing.assert_array_equal(held_batches[0], before)


def run(code: str, *arguments: Any, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a process; with settings for ``subprocess`` in one of a new Python."""
    if not settings:
        return forkserver.run(code, *arguments)
    call = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        call, capture_output=True, text=True, timeout=100, check=False, **settings
    )


LEAVE = """
import sys, gpuload as gl
loaders = [gl.Loader(gl.npy(sys.argv[1]), batch_size=256, shuffle=True, device="cpu") for _ in range(4)]
epochs = [iter(loader) for loader in loaders]
kept = [[next(epoch) for _ in range(number)] for number, epoch in enumerate(epochs)]
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("count", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_python_may_end_in_the_middle_of_an_epoch(tmp_path: Path, count: int):
    """Threads write to memory and read from maps that the end of Python takes away."""
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((20_000, 784), np.float32))
    for _ in range(count):
        process = run(LEAVE, path)
        assert (process.returncode, process.stderr) == (0, "")


HANDLER = """
import signal, sys, time, numpy as np, gpuload as gl
loader = gl.Loader(gl.npy(sys.argv[1]), batch_size=256, shuffle=True, seed=1, device="cpu")
expected = [batch.records.copy() for batch in loader]

class Interrupt(Exception):
    pass

def handler(number, frame):
    if frame is not None and frame.f_globals.get("__name__", "").startswith("gpuload"):
        raise Interrupt
signal.signal(signal.SIGALRM, handler)
seen, until, interrupts = [], time.monotonic() + 60, 0
epoch = loader.epoch(0)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
while len(seen) < len(expected) and time.monotonic() < until:
    try:
        batch = next(epoch)
        seen.append(batch.step)
        assert np.array_equal(batch.records, expected[batch.step])
        assert np.array_equal(batch[0][:, 0], batch.records), batch.step
    except Interrupt:
        interrupts += 1
signal.setitimer(signal.ITIMER_REAL, 0)
assert interrupts > 3, interrupts
assert seen == list(range(len(expected))), seen
"""


@pytest.mark.timeout(150)
def test_what_a_signal_handler_raises_loses_no_step(tmp_path: Path):
    path = tmp_path / "rows.npy"
    rows = np.zeros((20_000, 784), np.float32)
    rows[:, 0] = np.arange(20_000)
    np.save(path, rows)
    process = run(HANDLER, path)
    assert process.returncode == 0, process.stderr


def test_ctrl_c_ends_a_loop_at_once(tmp_path: Path):
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((20_000, 784), np.float32))
    code = """
import sys, gpuload as gl
loader = gl.Loader(gl.npy(sys.argv[1]), batch_size=256, shuffle=True, device="cpu")
print("begun", flush=True)
while True:
    for batch in loader: pass
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_the_same_batches_without_the_core(tmp_path: Path):
    paths = shards(tmp_path)
    code = """
import sys, hashlib, gpuload as gl
digest = hashlib.sha256()
for batch in gl.Loader(gl.npy(sys.argv[1:]), batch_size=48, shuffle=True, seed=5, device="cpu"):
    digest.update(batch[0].tobytes())
print(digest.hexdigest())
"""
    digests = {
        run(code, *paths, env={**os.environ, "GPULOAD_CORE": switch}).stdout for switch in ("0", "1")
    }  # fmt: skip
    assert len(digests) == 1
    assert len(digests.pop()) == 65

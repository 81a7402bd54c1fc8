"""Contracts: the promises of every bridge; a test class subclasses one and hands batches over.

`BridgeContract` is for all that hands out the batches of a loader, `TensorsContract` for bridges
with loops that yield a `Batch` of a framework's tensors (``common.Tensors``).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuload.batch import Batch
from gpuload.bridges import common
from gpuload.errors import MissingPackageError, RecordError, SpecError, StateError
from gpuload.formats.images.source import images
from gpuload.formats.text import text
from gpuload.loader import Loader
from gpuload.ops.value.python import Python
from gpuload.sources.arrays import arrays
from gpuload.sources.base import Source
from gpuload.sources.records import records

IMAGES = np.arange(10 * 6, dtype=np.float32).reshape(10, 3, 2)
LABELS = np.arange(10, dtype=np.int32)
WAIT_S = 60  # for threads to end, at most
PNG = bytes.fromhex(  # one white pixel
    "89504e470d0a1a0a0000000d4948445200000001000000010800000000"
    "3a7e9b550000000a49444154789c63f80f00010101001bb6ee560000000049454e44ae426082"
)


class ModelError(Exception):
    """An error of a model, within a loop over batches."""


class BridgeContract:
    """The promises of every bridge. A subclass gives ``batches``, and says by attributes where it
    differs.

    Attributes:
        device: of the loaders.
        module: the bridge, by its dotted name; "" where no package has to be there.
        package: the package that it imports.
        extra: of gpuload, which installs that package.
        takes: kinds of fields of ``REFUSED`` for which the framework has a form.
        nests: True if ``output=`` may be any nest, False if fields come one after the other.
        begins_anew: True if the loop behind one that was left begins its epoch again.
        ends_with_error: True if a loop ends with the first error that it raises.
        errors: classes of errors in which a loop raises those of ops and readers.
    """

    device = "cpu"
    module = package = extra = ""
    takes: ClassVar[frozenset[str]] = frozenset()
    nests, begins_anew, ends_with_error = True, False, False
    errors: tuple[type[BaseException], ...] = (KeyError, RecordError)

    def batches(self, loader: Loader) -> Iterable[Any]:
        """Return the batches of a loader as the bridge hands them out; each loop over them is one
        epoch's rest."""
        raise NotImplementedError

    def output(self, batch: Any) -> Any:
        """Return a batch of a loop as ``output=`` of the loader arranges it."""
        return batch

    def numpy(self, tensor: Any) -> NDArray[Any]:
        """Return the content of a tensor as an array of NumPy."""
        return np.asarray(tensor)

    def loader(self, output: Any = ("image", "label"), **arguments: Any) -> Loader:
        """Return a loader of 10 records, 4 a batch, in order."""
        source = arrays(image=IMAGES, label=LABELS)
        return Loader(
            source, **{"batch_size": 4, "output": output, "device": self.device, **arguments}
        )

    def labels(self, batches: Iterable[Any]) -> list[list[int]]:
        """Return the labels of batches that are pairs."""
        return [self.numpy(self.output(batch)[1]).tolist() for batch in batches]

    def values(self, batch: Any) -> list[Any]:
        """Return the values of a batch that is one field."""
        output = self.output(batch)
        values: list[Any] = self.numpy(
            output[0] if isinstance(output, (tuple, list)) else output
        ).tolist()
        return values

    def labels_of_epoch(self, number: int, **arguments: Any) -> list[list[int]]:
        """Return the labels of an epoch, as a loader on the CPU has them."""
        with self.loader(**{"shuffle": True, **arguments, "device": "cpu"}) as loader:
            return [batch["label"].tolist() for batch in loader.epoch(number)]

    # batches, in order

    def test_batches_come_in_order_as_output_arranges_them(self) -> None:
        outputs = [self.output(batch) for batch in self.batches(self.loader())]

        pixels = np.concatenate([self.numpy(image) for image, _ in outputs])
        np.testing.assert_array_equal(pixels, IMAGES)
        assert [self.numpy(labels).tolist() for _, labels in outputs] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
            [8, 9],
        ]

    def test_a_nest_keeps_its_lists_and_dicts(self) -> None:
        if not self.nests:
            pytest.skip("not promised: fields come one after the other")
        loader = self.loader({"inputs": {"again": "image"}, "target": "label"})

        output = self.output(next(iter(self.batches(loader))))

        np.testing.assert_array_equal(self.numpy(output["inputs"]["again"]), IMAGES[:4])
        np.testing.assert_array_equal(self.numpy(output["target"]), LABELS[:4])

    def test_shards_together_have_every_record_once(self) -> None:
        labels = [
            label
            for shard_id in range(3)
            for step in self.labels(
                self.batches(self.loader(shuffle=True, num_shards=3, shard_id=shard_id))
            )
            for label in step
        ]

        assert sorted(labels) == LABELS.tolist()

    def test_each_loop_is_the_next_epoch(self) -> None:
        loader = self.loader(shuffle=True)
        batches = self.batches(loader)

        epochs = [self.labels(batches) for _ in range(3)]

        assert epochs == [self.labels_of_epoch(number) for number in range(3)]
        assert (loader.position.epoch, loader.position.step) == (3, 0)

    def test_behind_a_loop_that_was_left_the_next_one_goes_on(self) -> None:
        batches = self.batches(self.loader(shuffle=True, batch_size=2))

        begin = self.labels(itertools.islice(iter(batches), 2))
        gc.collect()
        rest = self.labels(batches)

        whole = self.labels_of_epoch(0, batch_size=2)
        assert begin == whole[:2]
        assert rest == (whole if self.begins_anew else whole[2:])

    def test_a_loader_goes_on_from_a_state_of_any_step(self) -> None:
        state = json.loads(json.dumps(self.loader(shuffle=True).state_dict(3, 1)))
        later = self.loader(shuffle=True)
        later.load_state_dict(state)

        assert self.labels(self.batches(later)) == self.labels_of_epoch(3)[1:]

    def test_a_batch_that_is_kept_stays_what_it_was(self) -> None:
        loader = self.loader(shuffle=True, batch_size=1)
        batches = self.batches(loader)
        outputs = [self.output(batch) for _ in range(10) for batch in batches]
        for _ in range(
            3
        ):  # more batches, which would be written over memory that came back too early
            for _ in batches:
                pass
        loader.close()
        del loader, batches
        gc.collect()

        with self.loader(shuffle=True, batch_size=1, device="cpu") as again:
            expected = [batch for _ in range(10) for batch in again]
        for (image, label), batch in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(self.numpy(image), batch["image"])
            np.testing.assert_array_equal(self.numpy(label), batch["label"])

    # errors

    def test_an_error_of_an_op_comes_at_its_step_and_the_next_call_goes_on_behind_it(self) -> None:
        loader = self.loader("label", batch_size=2, ops=[Python(_fails_at_six, on="label")])

        self._check_error_at_six(loader, "the user's error")

    def test_an_error_of_a_reader_comes_at_its_step_and_the_next_call_goes_on_behind_it(
        self,
    ) -> None:
        loader = Loader(records(10, _read_damage), batch_size=2, output="x", device=self.device)

        self._check_error_at_six(loader, r"numbers\.bin, record 6")

    def _check_error_at_six(self, loader: Loader, pattern: str) -> None:
        with _no_threads_left(), loader:
            batches = iter(self.batches(loader))
            values = [self.values(next(batches)) for _ in range(3)]

            with pytest.raises(self.errors, match=pattern):
                next(batches)

            assert values == [[0, 1], [2, 3], [4, 5]]
            assert [self.values(batch) for batch in batches] == (
                [] if self.ends_with_error else [[8, 9]]
            )
            del batches

    @pytest.mark.parametrize(
        "ending",
        [
            "it is dropped",
            "an error of the model",
            "the loader is closed",
            "the iterator is closed",
        ],
    )
    def test_a_loop_that_is_left_leaves_no_thread(self, ending: str) -> None:
        with _no_threads_left():
            self._leave_loop(ending)

    def _leave_loop(self, ending: str) -> None:
        loader = self.loader(shuffle=True, batch_size=1)
        batches = self.batches(loader)
        loop = iter(batches)
        next(loop)
        if ending == "an error of the model":
            with contextlib.suppress(ModelError):
                for _ in batches:
                    raise ModelError
        elif ending == "the loader is closed":
            loader.close()
        elif ending == "the iterator is closed" and hasattr(loop, "close"):
            loop.close()

    @pytest.mark.skipif(
        not Path("/proc/self/fd").exists(), reason="open files are counted in /proc"
    )
    def test_no_thread_and_no_file_stays_behind_after_some_epochs(self) -> None:
        def count_after(num_epochs: int) -> tuple[int, int]:
            loader = self.loader()
            for _ in range(num_epochs):
                list(self.batches(loader))
            del loader
            gc.collect()
            return len(_threads()), len(os.listdir("/proc/self/fd"))

        before = count_after(3)  # modules that are loaded once in a process stay

        assert _until(
            lambda: all(now <= then for now, then in zip(count_after(20), before, strict=True))
        )

    # refusals

    @pytest.mark.parametrize("item", [arrays(x=LABELS), None, [1, 2]])
    def test_anything_but_a_loader_is_refused_with_the_call_to_write(self, item: Any) -> None:
        with pytest.raises(SpecError, match=r"gl\.Loader\(source, batch_size=256\)"):
            self.batches(item)

    @pytest.mark.parametrize(
        "kind", ["dates", "long doubles", "axes that vary", "encoded images", "text", "long text"]
    )
    def test_a_field_without_a_form_is_refused_by_name_before_the_first_batch(
        self, kind: str, tmp_path: Path
    ) -> None:
        if kind in self.takes:
            pytest.skip(f"not promised: the framework has {kind}")
        loader = Loader(_source_of(kind, tmp_path), batch_size=2, device="cpu", output="x")
        if self.device != "cpu":  # a field that has no dtype on a GPU stays on the host
            loader = loader.replace(device=self.device)

        with pytest.raises(SpecError, match=r"field 'x' .* cannot be "):
            self.batches(loader)

    def test_a_field_that_is_not_handed_out_may_be_anything(self) -> None:
        source = arrays(x=LABELS, day=LABELS.astype("M8[D]"))

        assert (
            len(list(self.batches(Loader(source, batch_size=5, output="x", device=self.device))))
            == 2
        )

    def test_a_package_that_is_missing_is_named_with_its_extra(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not self.module:
            pytest.skip("not promised: it imports no package")
        module = sys.modules[self.module]
        for name in [name for name in sys.modules if name.startswith(f"{self.module}.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, self.package, None)

        with pytest.raises(
            MissingPackageError, match=rf"needs the package '[\w.-]+'[\s\S]*\[{self.extra}\]"
        ):
            importlib.reload(module)


class TensorsContract(BridgeContract):
    """The promises of a bridge that returns ``common.Tensors``: loops that yield a `Batch` of
    tensors.

    Attributes:
        shares: True if a tensor is the memory of the batch, where it can be.
        align_bytes: a multiple at which shared memory has to begin.
    """

    shares, align_bytes = True, 1

    def batches(self, loader: Loader) -> common.Tensors:
        """Return the bridge's ``tensors(loader)``."""
        raise NotImplementedError

    def address(self, tensor: Any) -> int:
        """Return where the memory of a tensor begins."""
        return int(np.asarray(tensor).ctypes.data)

    def output(self, batch: Any) -> Any:
        """Return the nest of a batch."""
        return batch.output

    def test_a_field_in_two_places_is_one_tensor(self) -> None:
        batch = next(
            iter(self.batches(self.loader({"inputs": ["image", {"again": "image"}]})))
        ).output

        assert batch["inputs"][1]["again"] is batch["inputs"][0]

    def test_a_batch_is_that_of_the_loader(self) -> None:
        words = {"batch_size": 2, "num_shards": 3, "last_batch": "pad"}
        shards = [self.loader(None, shard_id=shard_id, **words) for shard_id in range(3)]
        batches = [batch for shard in shards for batch in self.batches(shard)]

        valid = [record for batch in batches for record in batch.records[batch.valid].tolist()]
        assert sorted(valid) == list(range(10))
        assert [(batch.epoch, batch.step) for batch in batches] == [(0, 0), (0, 1)] * 3
        assert all(
            self.numpy(batch["label"]).tolist() == batch.records.tolist() for batch in batches
        )
        assert sorted(batches[0].keys()) == ["image", "label"]
        assert len(self.batches(shards[0])) == 2

    def test_the_state_of_the_batches_goes_on_in_another_loop(self) -> None:
        first_part = self.batches(self.loader(shuffle=True))
        next(iter(first_part))
        state = json.loads(json.dumps(first_part.state_dict()))

        later = self.batches(self.loader(shuffle=True))
        later.load_state_dict(state)

        assert self.labels(later) == self.labels_of_epoch(0)[1:]
        with pytest.raises(StateError, match="the seed"):
            self.batches(self.loader(shuffle=True, seed=1)).load_state_dict(state)

    @pytest.mark.parametrize("num_taken", [0, 2])
    def test_a_loop_that_began_before_a_state_was_loaded_goes_on_there(
        self, num_taken: int
    ) -> None:
        batches = self.batches(self.loader(shuffle=True))
        loop = iter(batches)
        for _ in range(num_taken):
            next(loop)

        batches.load_state_dict(batches.loader.state_dict(3, 1))

        assert self.labels(loop) == self.labels_of_epoch(3)[1:]
        assert (batches.loader.position.epoch, batches.loader.position.step) == (4, 0)

    def test_to_peek_gives_the_next_batch_and_moves_nothing(self) -> None:
        batches, whole = self.batches(self.loader(shuffle=True)), self.labels_of_epoch(0)
        next(iter(batches))
        state = batches.state_dict()

        peeks = [batches.peek() for _ in range(2)]

        assert self.labels(peeks) == [whole[1]] * 2
        assert type(peeks[0]["label"]).__name__ == type(next(iter(batches))["label"]).__name__
        assert state["step"] == 1
        assert self.labels(batches) == whole[2:]

    # memory

    def test_a_tensor_is_the_memory_of_the_batch(self) -> None:
        self._needs_shared_memory()
        batches = self.batches(self.loader())
        array = batches.loader.batch_at(0)["image"]

        tensor = batches._convert(array)

        assert self.address(tensor) == array.ctypes.data
        assert self._counts(batches.loader) == (1, 0)

    def test_of_all_batches_every_tensor_is_shared(self) -> None:
        self._needs_shared_memory()
        loader = self.loader(shuffle=True, batch_size=3)

        list(self.batches(loader))

        assert self._counts(loader) == (8, 0)

    @pytest.mark.parametrize(
        "kind", ["strided", "backwards", "columns first", "read-only", "empty", "not aligned"]
    )
    def test_an_array_that_cannot_be_shared_is_copied_and_counted(self, kind: str) -> None:
        self._needs_shared_memory()
        batches, array = self.batches(self.loader()), _unshareable(kind)

        tensor = batches._convert(array)

        np.testing.assert_array_equal(self.numpy(tensor), array)
        shared = kind == "not aligned" and self.align_bytes == 1
        assert self._counts(batches.loader) == (shared, not shared)

    def _needs_shared_memory(self) -> None:
        if not self.shares or self.device != "cpu":
            pytest.skip("not promised: the framework shares no memory of the host")

    def _counts(self, loader: Loader) -> tuple[float, float]:
        stats = loader.stats()
        return stats["tensors_shared"], stats["tensors_copied"]

    # exceptions while a batch is converted

    @pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
    def test_a_conversion_that_is_broken_off_loses_no_step_of_a_state(
        self, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether a signal handler raised it or memory was short: the next call makes the same
        batch again."""
        loader, with_fields, steps = (
            self.loader("label", batch_size=2),
            Batch.with_fields,
            list[int](),
        )

        def broken_off(batch: Batch, convert: Any) -> Batch:
            steps.append(batch.step)
            if len(steps) == 3:
                raise error
            return with_fields(batch, convert)

        monkeypatch.setattr(Batch, "with_fields", broken_off)
        batches = iter(self.batches(loader))
        values = [self.values(next(batches)) for _ in range(2)]
        with pytest.raises(error):
            next(batches)
        assert (loader.position.epoch, loader.position.step) == (0, 2)
        values += [self.values(batch) for batch in batches]

        assert values == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]

    def test_a_conversion_that_fails_is_an_error_once_and_the_next_call_goes_on_behind_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loader, with_fields, steps = (
            self.loader("label", batch_size=2),
            Batch.with_fields,
            list[int](),
        )

        def fails_at_two(batch: Batch, convert: Any) -> Batch:
            steps.append(batch.step)
            if batch.step == 2:
                raise MemoryError
            return with_fields(batch, convert)

        monkeypatch.setattr(Batch, "with_fields", fails_at_two)
        batches = iter(self.batches(loader))
        values = [self.values(next(batches)) for _ in range(2)]
        with pytest.raises(MemoryError):
            next(batches)
        assert (loader.position.epoch, loader.position.step) == (
            0,
            2,
        )  # a state begins with the failed step again
        values += [self.values(batch) for batch in batches]

        assert values == [[0, 1], [2, 3], [6, 7], [8, 9]]
        assert steps == [0, 1, 2, 2, 3, 4]

    @pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="this system has no such signal")
    @pytest.mark.parametrize("shows", [True, False])
    def test_an_exception_of_a_signal_handler_while_tensors_are_made_loses_no_step(
        self, shows: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Again and again if the traceback shows the handler; once a call of ``next`` if it does
        not."""
        loader, with_fields, rings = (
            self.loader("label", batch_size=2),
            Batch.with_fields,
            list[int](),
        )

        def ring(number: int, frame: Any) -> None:
            if not shows:
                del frame
            raise TimeoutError("of a watchdog")

        def interrupted(batch: Batch, convert: Any) -> Batch:
            if batch.step == 2 and len(rings) < (5 if shows else 1):
                rings.append(batch.step)
                signal.raise_signal(signal.SIGALRM)
            return with_fields(batch, convert)

        before = signal.signal(signal.SIGALRM, ring)
        monkeypatch.setattr(Batch, "with_fields", interrupted)
        try:
            batches, values, num_interrupts = iter(self.batches(loader)), list[Any](), 0
            for _ in range(11):
                try:
                    values += [self.values(batch) for batch in itertools.islice(batches, 1)]
                except TimeoutError:
                    num_interrupts += 1
                    assert (loader.position.epoch, loader.position.step) == (0, 2)
        finally:
            signal.signal(signal.SIGALRM, before)

        assert values == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
        assert num_interrupts == len(rings) == (5 if shows else 1)


def _fails_at_six(label: Any) -> Any:
    if label == 6:
        raise KeyError("the user's error")
    return label


def _read_damage(numbers: Any) -> dict[str, Any]:
    if 6 in numbers:
        raise RecordError(
            "numbers.bin, record 6: it is damaged", cause="a flipped bit", remedy="copy it again"
        )
    return {"x": np.asarray(numbers, np.int32)}


def _source_of(kind: str, folder: Path) -> Source:
    """Return a source of a field ``x`` of a kind for which most frameworks have no tensor."""
    columns = {
        "dates": LABELS.astype("M8[D]"),
        "long doubles": LABELS.astype("g"),
        "text": LABELS.astype("U3"),
    }
    if kind in columns:
        return arrays(x=columns[kind])
    if kind == "axes that vary":
        fields = {"x": ("float32", (None, None))}
        return records(
            4, lambda numbers: {"x": [np.zeros((n, n), "f4") for n in numbers]}, fields=fields
        )
    if kind == "long text":
        (folder / "lines.txt").write_text("one\ntwo\n")
        return text(folder / "lines.txt").rename(text="x")
    for number in range(4):
        (folder / f"{number}.png").write_bytes(PNG)
    return images(folder, labels=None).rename(image="x")


def _unshareable(kind: str) -> NDArray[Any]:
    """Return an int32 array that frameworks cannot take as it lies in memory."""
    whole = _aligned(17)
    whole[...] = np.arange(17)
    views = {
        "strided": whole[:16:2],
        "backwards": whole[::-1],
        "columns first": whole[:16].reshape(4, 4).T,
        "read-only": whole[:16],
        "empty": whole[:0],
        "not aligned": whole[1:],
    }
    array = views[kind]
    array.flags.writeable = kind != "read-only"
    return array


def _aligned(size: int) -> NDArray[np.int32]:
    raw = np.zeros(4 * size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + 4 * size].view(np.int32)


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("gpuload")]


def _until(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds, and return whether it does."""
    deadline = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


@contextlib.contextmanager
def _no_threads_left() -> Iterator[None]:
    """Assert that each thread that begins in here ends, at the latest with a collection of
    garbage."""
    before = set(_threads())

    def new_threads() -> list[threading.Thread]:
        gc.collect()
        return [thread for thread in _threads() if thread not in before]

    yield
    assert _until(lambda: not new_threads()), f"threads are left: {new_threads()}"

"""Audited pixels: which records are chosen, what a difference does, and that sound loaders have
none.

Faults are planted behind the real parts: in what the stages of the core make, in what DALI gives,
in the results of kernels on a GPU.
"""

from __future__ import annotations

import gc
import pickle
import re
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import gpuload as gl
from gpuload import device as devices
from gpuload import rng
from gpuload.cli import parity_ops
from gpuload.errors import RowError
from gpuload.executors import trials
from gpuload.executors.array import ArrayBatchExecutor, ArrayRowExecutor
from gpuload.graph.graph import compile_ops
from gpuload.order import Position
from gpuload.pipeline import audit
from tests.ops.test_every_op import all_ops, png
from tests.ops.test_every_op import source as source_of_all
from tests.threads import until

COUNT, SIDE = 24, 12
PHOTOS = np.random.default_rng(5).integers(0, 256, (COUNT, SIDE, SIDE, 3), np.uint8)
BAD = 7  # the record that faults are planted in
OPS = (gl.ops.RandomFlip(), gl.ops.Normalize(127.0, 60.0))


def source():
    return gl.arrays(image=PHOTOS, label=np.arange(COUNT))


def loader(*, ops=OPS, device="cpu", audit=1.0, batch_size=5, seed=3, **settings):
    words = {"shuffle": True, "num_threads": 2, **settings}
    return gl.Loader(
        source(), batch_size, ops=list(ops), seed=seed, device=device, audit=audit, **words
    )


def audited(**settings):
    """Return the (epoch, record) pairs that a loader audits in two epochs."""
    pairs = []
    compare = audit.Auditor._compare

    def noting(self, step, row):
        pairs.append((step.position.epoch, int(step.records[row.row])))
        return compare(self, step, row)

    with pytest.MonkeyPatch.context() as patch, loader(**settings) as with_audit:
        patch.setattr(audit.Auditor, "_compare", noting)
        for epoch in range(2):
            list(with_audit.epoch(epoch))
    return sorted(pairs)


def chosen(share, seed=3):
    """Return the same by the definition."""
    records = np.arange(COUNT)
    words = [
        rng._bits(1, seed=seed, epoch=epoch, records=records, stream=audit.STREAM)
        for epoch in range(2)
    ]
    numbers = [(word[:, 0] >> np.uint64(11)).astype(float) * 2.0**-53 for word in words]
    return [
        (epoch, record)
        for epoch in range(2)
        for record in records.tolist()
        if numbers[epoch][record] < share
    ]


class TestTheChoice:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"batch_size": 3},
            {"num_threads": 1},
            {"ops": ()},
            {"last_batch": "pad", "batch_size": 7},
        ],
        ids=["", "batch_size", "num_threads", "ops", "padded"],
    )
    def test_is_that_of_seed_epoch_and_record(self, settings):
        pairs = audited(audit=0.3, **settings)

        assert pairs == chosen(0.3)
        assert 0 < len(pairs) < 2 * COUNT

    def test_is_the_same_on_shards_together(self):
        pairs = audited(audit=0.3, num_shards=3, shard_id=0)
        pairs += audited(audit=0.3, num_shards=3, shard_id=1) + audited(
            audit=0.3, num_shards=3, shard_id=2
        )

        assert sorted(pairs) == chosen(0.3)

    def test_is_the_same_where_a_run_goes_on(self):
        with loader(audit=0.3) as first:
            next(iter(first))
            state, before = first.state_dict(), first.stats()["records_audited"]
        with loader(audit=0.3, batch_size=4, num_threads=1) as second:
            second.load_state_dict(state)
            list(second)
            behind = second.stats()["records_audited"]

        assert behind == len(
            [record for epoch, record in chosen(0.3) if epoch == 0]
        ) - _in_first_batch(0.3)
        assert before >= _in_first_batch(0.3)  # it is ahead

    def test_has_the_share_that_was_asked_for(self):
        with gl.Loader(
            gl.arrays(x=np.zeros(20_000, np.uint8)), 512, seed=1, device="cpu", audit=0.01
        ) as with_audit:
            list(with_audit)

            assert 150 < with_audit.stats()["records_audited"] < 250

    @pytest.mark.parametrize("share", [None, 0, 0.0, False or 0])
    def test_is_nothing_without_a_share(self, share):
        with loader(audit=share) as without:
            list(without)

            assert without.stats()["records_audited"] == 0
            assert "audit" not in without.describe()


def _in_first_batch(share):
    with loader(audit=None) as plain:
        records = plain.batch_at(0).records.tolist()
    return sum((0, record) in chosen(share) for record in records)


@pytest.mark.parametrize(
    "value",
    [-0.1, 1.5, float("nan"), "raise", "all", True, (0.1,), (0.1, "stop"), ("count", 1), []],
)
def test_what_is_no_share_is_refused(value):
    with pytest.raises(gl.GpuloadError, match="audit") as caught:
        loader(audit=value)

    assert "audit=0.001" in caught.value.remedy


def test_batches_whose_ops_run_elsewhere_are_refused_and_zero_is_no_audit():
    with (
        loader(audit=0.1) as with_audit,
        pytest.raises(gl.GpuloadError, match=r"audit=0\.1") as caught,
    ):
        with_audit.port.feed(lambda: None, ("image",))

    assert 'via="generator"' in caught.value.remedy
    with loader(ops=(), audit=0) as without:
        without.port.feed(lambda: None, ("image",))


def test_it_says_what_it_does():
    with (
        loader(audit=1e-3) as raising,
        loader(audit="count") as counting,
        loader(audit=(0.01, "count")) as more,
    ):
        assert (
            "audit:     0.1 % of the records are made again on the CPU and compared; a difference is a Pixel"
            in (raising.describe())
        )
        assert "0.1 % of the records" in counting.describe()
        assert (
            "1 % of the records are made again on the CPU and compared; a difference is counted"
            in more.describe()
        )


def test_a_pickled_loader_audits_too():
    with pickle.loads(pickle.dumps(loader(audit=0.3))) as again:
        list(again)

        assert again.stats()["records_audited"] == len(
            [pair for pair in chosen(0.3) if pair[0] == 0]
        )


# Planted faults


def shift_channel(values):
    """Shift the first channel of an image by a pixel, in place."""
    values[..., 0] = np.roll(np.asarray(values[..., 0]), 1, axis=-1)


@pytest.fixture
def core_fault(monkeypatch):
    """Have the executor on rows shift a channel of the record BAD."""
    run = ArrayRowExecutor.run

    def faulty(self, fields, draws, out, *words):
        results = run(self, fields, draws, out, *words)
        for row in np.flatnonzero((np.asarray(fields["image"]) == PHOTOS[BAD]).all(axis=(1, 2, 3))):
            shift_channel(results["image"][row])
        return results

    monkeypatch.setattr(ArrayRowExecutor, "run", faulty)
    monkeypatch.setattr(ArrayRowExecutor, "has_makers", False)


def epoch_of(with_audit):
    """Return the steps that came and the errors of an epoch, by step."""
    steps, errors = [], {}
    batches = with_audit.epoch(0)
    for step in range(len(with_audit)):
        try:
            steps.append(next(batches).step)
        except gl.PixelError as error:
            errors[step] = error
    return steps, errors


def step_of_bad(**settings):
    with loader(audit=None, **settings) as plain:
        return plain.steps_of([BAD])[0]


class TestARecordThatDiffers:
    def test_is_an_error_at_its_step_that_names_record_ops_and_both_values(self, core_fault):
        with loader() as with_audit:
            steps, errors = epoch_of(with_audit)
            state_step = with_audit.stats()["records_differing"]
        step = step_of_bad()

        assert list(errors) == [step]
        assert steps == [n for n in range(5) if n != step]
        error = errors[step]
        assert re.search(rf"record {BAD}, epoch 0, step {step}: field 'image' on cpu: ", error.what)
        assert re.search(
            r"\d+ of 432 values differ: the one at \[\d+, \d+, 0\] is -?[\d.]+, and should be",
            error.what,
        )
        assert "executor 'array' on cpu made it by RandomFlip Normalize" in error.cause
        assert f"loader.replace(audit=0).batch_at({step}, 0)" in error.remedy
        assert state_step == 1
        again = pickle.loads(pickle.dumps(error))
        assert (again.record, again.epoch, again.step, again.field) == (BAD, 0, step, "image")
        assert (again.ops, again.device, again.executor) == (
            ("RandomFlip", "Normalize"),
            "cpu",
            "array",
        )
        with loader(audit=None, last_batch="pad") as plain:
            batch = plain.batch_at(step)
        assert np.array_equal(again.value, batch["image"][batch.records.tolist().index(BAD)])
        shift_channel(again.expected)
        np.testing.assert_allclose(again.value, again.expected, atol=1e-5)

    def test_of_a_row_that_nobody_wrote_shows_the_pattern(self, monkeypatch):
        run = ArrayRowExecutor.run

        def skip(self, fields, draws, out, names=None, *words):
            results = run(self, fields, draws, {}, {*out, *(names or ())}, *words)
            is_bad = (np.asarray(fields["image"]) == PHOTOS[BAD]).all(axis=(1, 2, 3))
            for name, values in out.items():
                values[~is_bad] = results[name][~is_bad]
            return results | out

        monkeypatch.setattr(ArrayRowExecutor, "run", skip)
        monkeypatch.setattr(ArrayRowExecutor, "has_makers", False)
        with loader(ops=[gl.ops.RandomFlip()], batch_size=COUNT) as with_audit:
            errors = epoch_of(with_audit)[1]

        assert f"the one at [0, 0, 0] is {audit.PATTERN}, and should be" in errors[0].what

    def test_is_of_the_batch_that_is_made_anew(self, core_fault):
        with loader() as with_audit, pytest.raises(gl.PixelError):
            with_audit.batch_at(step_of_bad())
        with loader(audit=None) as plain:
            plain.batch_at(step_of_bad())  # as the remedy says

    def test_is_counted_where_that_is_asked_for(self, core_fault, caplog):
        with loader(audit=(1.0, "count")) as with_audit:
            assert len(list(with_audit)) == 5

            assert with_audit.stats()["records_audited"] == COUNT
            assert with_audit.stats()["records_differing"] == 1
        assert f"record {BAD}, epoch 0" in caplog.text

    def test_is_not_looked_for_in_rows_that_pad(self, core_fault):
        """The record is in the last batch twice: as itself, and as one that fills it up."""
        with loader(
            batch_size=16, last_batch="pad", shuffle=False, audit=(1.0, "count")
        ) as with_audit:
            batches = list(with_audit)

            assert not batches[-1].valid.all()
            assert with_audit.stats()["records_audited"] == COUNT

    def test_in_short_steps_that_are_done_together_is_of_one_of_them(self, core_fault):
        with loader(batch_size=1, prefetch=16) as with_audit:
            steps, errors = epoch_of(with_audit)

        assert list(errors) == [step_of_bad(batch_size=1)]
        assert len(steps) == COUNT - 1

    def test_stops_no_state_from_being_loaded(self, core_fault):
        with loader() as with_audit:
            step = step_of_bad()
            with pytest.raises(gl.PixelError):
                for _ in with_audit:
                    pass
            state = with_audit.state_dict()
        with loader(audit=None) as behind:
            behind.load_state_dict(state)

            assert next(iter(behind)).step == step


def test_the_consumer_gets_what_was_compared(core_fault):
    """A batch that is handed out may be written to: the comparison is over by then."""
    with loader(audit=(1.0, "count")) as with_audit:
        for batch in with_audit:
            batch["image"][...] = 0

        assert with_audit.stats()["records_differing"] == 1


def test_other_seeds_choose_other_records():
    assert chosen(0.3, seed=3) != chosen(0.3, seed=4)
    assert audited(audit=0.3, seed=4) == chosen(0.3, seed=4)


def test_an_iterator_that_is_dropped_ends_the_thread_that_audits():
    with loader(batch_size=2) as with_audit:
        batches = iter(with_audit)
        next(batches)
        assert any(thread.name.startswith("gpuload-audit") for thread in threading.enumerate())
        del batches
        gc.collect()

        assert until(
            lambda: (
                not any(thread.name.startswith("gpuload-audit") for thread in threading.enumerate())
            )
        )


def test_a_loader_that_is_closed_in_mid_epoch_says_so():
    with loader(batch_size=1) as with_audit:
        batches = iter(with_audit)
        next(batches)
        with_audit.close()

        with pytest.raises(gl.GpuloadError, match="closed"):
            next(batches)


# Planted on a GPU, and in DALI


def with_fault(monkeypatch, plant):
    """Have the array executor on a GPU hand its images of a batch, and those that it got, to a
    function."""
    run = ArrayBatchExecutor._run

    def faulty(self, fields, draws):
        results, checks = run(self, fields, draws)
        return results | {"image": plant(fields["image"], results["image"])}, checks

    monkeypatch.setattr(ArrayBatchExecutor, "_run", faulty)


def row_of_bad(images):
    """Return the row of BAD among images on a GPU, whose first pixel no other record has; None if
    it is not there."""
    rows = [row for row in range(len(images)) if (images[row].get() == PHOTOS[BAD]).all()]
    return rows[0] if rows else None


def skip_image(images, results):
    """Leave the memory of one image unwritten, as a decoder does that passes over it."""
    memory = devices.cupy().empty(results.shape, results.dtype)
    bad = row_of_bad(images)
    for row in range(len(results)):
        if row != bad:
            memory[row] = results[row]
    return memory


def shift_channel_on_gpu(images, results):
    if (row := row_of_bad(images)) is not None:
        results[row, ..., 1] = devices.cupy().roll(results[row, ..., 1], 1, axis=-1)
    return results


class Late:
    """Writes one image on a stream of its own, which nothing waits for, half a second later than
    the others."""

    def __init__(self):
        self.cupy = devices.cupy()
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        source = r'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }'
        self.spin = self.cupy.RawKernel(source, "spin")

    def __call__(self, images, results):
        row = row_of_bad(images)
        if row is None:
            return results
        memory = results.copy()
        memory[row] = 0
        event = self.cupy.cuda.get_current_stream().record()
        with self.stream:
            self.stream.wait_event(event)
            self.spin((1,), (1,), (np.int64(900_000_000),))
            memory[row] = results[row]
        self.memory = memory, results
        return memory


@pytest.mark.gpu
class TestAFaultOnAGpu:
    @pytest.mark.parametrize(
        "plant", [skip_image, shift_channel_on_gpu, Late], ids=["skipped", "shifted", "late"]
    )
    def test_is_seen_and_the_record_is_named(self, plant, monkeypatch):
        plant = plant() if plant is Late else plant
        with_fault(monkeypatch, plant)
        with loader(device="gpu") as with_audit:
            steps, errors = epoch_of(with_audit)
            devices.cupy().cuda.Device(0).synchronize()  # what is late comes before the next test
        step = step_of_bad()

        assert list(errors) == [step]
        assert len(steps) == 4
        assert f"record {BAD}, epoch 0, step {step}: field 'image' on gpu:0: " in errors[step].what
        assert "executor 'array' on gpu:0 made it by RandomFlip Normalize" in errors[step].cause

    def test_where_the_host_decodes_is_seen(self, monkeypatch):
        with_fault(monkeypatch, lambda images, results: _swapped(results))
        ops = [gl.ops.Decode(), gl.ops.RandomResizedCrop(8), gl.ops.Normalize(127.0, 60.0)]
        words = {"device": "gpu", "executor": "array", "num_threads": 2}
        expected = r"record 0, epoch 0, step 0: field 'image' on gpu:0"
        with gl.Loader(files(), 4, ops=ops, audit=1.0, **words) as with_audit:
            batches = iter(with_audit)
            with pytest.raises(gl.PixelError, match=expected):
                next(batches)

    def test_memory_that_was_not_written_has_the_pattern(self):
        cupy = devices.cupy()
        devices.empty_pool("gpu:0")  # of lanes of other tests
        lane, sizes = devices.Lane("gpu:0"), [5000, 70_000, 5000]
        with lane:
            before = [cupy.full(size, 7, np.uint8) for size in sizes]
            del before

        lane.fill_free_memory(sizes, audit.PATTERN)

        with lane:
            memory = [cupy.empty(size, np.uint8) for size in sizes]
            assert all((array.get() == audit.PATTERN).all() for array in memory)
        lane.close()

    def test_has_the_memory_of_the_first_batches_filled_once(self, monkeypatch):
        calls = []
        fill = devices.Lane.fill_free_memory
        monkeypatch.setattr(
            devices.Lane,
            "fill_free_memory",
            lambda lane, sizes, byte: (calls.append(sizes), fill(lane, sizes, byte)),
        )
        with loader(device="gpu", ops=[gl.ops.RandomFlip()], batch_size=COUNT) as with_audit:
            list(with_audit)
            list(with_audit)
        with loader(device="gpu", audit=None) as without:
            list(without)

        assert len(calls) == 1
        assert PHOTOS.nbytes in calls[0]

    def test_is_found_in_steps_that_are_done_together(self, monkeypatch):
        with_fault(monkeypatch, shift_channel_on_gpu)
        with loader(device="gpu", batch_size=1, prefetch=16) as with_audit:
            steps, errors = epoch_of(with_audit)

        assert list(errors) == [step_of_bad(batch_size=1)]
        assert len(steps) == COUNT - 1

    def test_is_found_where_few_rows_of_a_batch_are_audited(self, monkeypatch):
        with loader(device="gpu", audit=0.3) as with_audit:
            list(with_audit)

            assert with_audit.stats()["records_audited"] == len(
                [pair for pair in chosen(0.3) if pair[0] == 0]
            )

    def test_of_rows_that_lie_on_the_gpu_is_seen(self, monkeypatch):
        """The audit reads the source, and not the GPU's memory."""
        words = {"ops": list(OPS), "shuffle": True, "device": "gpu", "num_threads": 1, "audit": 1.0}
        with gl.Loader(source().cache(device=True), 5, **words) as with_audit:
            for _ in range(3):
                list(with_audit)
            assert with_audit.stats()["records_audited"] == 3 * COUNT

            with_fault(monkeypatch, lambda images, results: _swapped(results))
            with pytest.raises(gl.PixelError, match="epoch 3, step 0: field 'image' on gpu:0"):
                list(with_audit)

    def test_costs_the_consumer_no_wait_for_the_device(self):
        with loader(device="gpu", batch_size=4) as with_audit:
            for batch in with_audit:
                assert (batch["label"].get() == batch.records).all()

            assert with_audit.stats()["records_audited"] == COUNT


def _swapped(results):
    return results[..., ::-1].copy()


def files():
    encoded = [png(photo) for photo in PHOTOS]
    read = {"image": ("u1", (None,))}
    return gl.records(COUNT, lambda rows: {"image": [encoded[n] for n in rows]}, fields=read).mark(
        image="encoded"
    )


class TestAFaultOfDali:
    @pytest.mark.parametrize("way", ["skipped", "shifted"])
    def test_is_seen_and_the_record_is_named(self, way, monkeypatch):
        pytest.importorskip("nvidia.dali")
        from gpuload.executors.dali import DaliExecutor

        finish = DaliExecutor.finish
        sizes = []

        def faulty(self):
            results = finish(self)
            images = np.array(results["image"])
            sizes.append(len(images))
            if len(sizes) == 2:
                if way == "skipped":
                    images[2] = images[1]  # its memory holds what was there before
                else:
                    images[2, ..., 0] = np.roll(images[2, ..., 0], 1, axis=1)
            return results | {"image": images}

        monkeypatch.setattr(DaliExecutor, "finish", faulty)
        ops = [gl.ops.Decode(), gl.ops.RandomResizedCrop(8), gl.ops.RandomFlip()]
        with gl.Loader(
            files(), 4, ops=ops, executor="dali", device="cpu", audit=1.0, num_threads=1
        ) as with_audit:
            errors = epoch_of(with_audit)[1]

        assert list(errors) == [1]
        assert "record 6, epoch 0, step 1: field 'image' on cpu: " in errors[1].what
        assert (
            "executor 'dali' on cpu made it by Decode RandomResizedCrop RandomFlip"
            in errors[1].cause
        )
        assert 'executor="array"' in errors[1].remedy

    def test_an_operator_of_dali_is_not_audited_and_that_is_said(self):
        pytest.importorskip("nvidia.dali")
        ops = [gl.ops.Dali("flip", horizontal=1)]
        with gl.Loader(source(), 4, ops=ops, device="cpu", audit=1.0) as with_audit:
            assert "image is not, for Dali has no array form" in with_audit.describe()
            list(with_audit)
        with pytest.raises(gl.GpuloadError, match="nothing else makes its values"):
            gl.Loader(source(), 4, ops=ops, output="image", device="cpu", audit=1.0)


class TestRowsOfManyKinds:
    def test_a_record_in_the_place_of_a_damaged_one_is_audited_as_itself(self):
        def read(rows):
            if BAD in rows:
                raise gl.errors.RecordError("record 7", cause="planted")
            return {"x": np.asarray(rows, np.float32)}

        broken = gl.records(COUNT, read, fields={"x": ("float32", ())})
        for on_error, count in (("replace", COUNT), ("skip", COUNT - 1)):
            with gl.Loader(
                broken, 5, device="cpu", on_error=on_error, max_bad=0.5, audit=1.0, num_threads=1
            ) as with_audit:
                list(with_audit)

                assert with_audit.stats()["records_audited"] == count

    @pytest.mark.parametrize(
        "ops", [[gl.ops.MixUp(alpha=0.4)], [gl.ops.Mosaic(16), gl.ops.CutMix(alpha=1.0)]]
    )
    def test_mixed_records_are_made_of_the_same_partners(self, ops):
        images = gl.arrays(image=PHOTOS, label=np.arange(COUNT) % 10)
        for batch_size in (3, 5, 24):
            with gl.Loader(
                images,
                batch_size,
                ops=[gl.ops.OneHot(10), *ops],
                shuffle=True,
                audit=1.0,
                device="cpu",
            ) as with_audit:
                list(with_audit)

                assert with_audit.stats()["records_audited"] == COUNT

    def test_records_of_a_mix_are_those_of_their_epoch(self):
        mix = gl.mix({source()[:10]: 0.5, source()[10:]: 0.5})
        with gl.Loader(mix, 5, ops=OPS, shuffle=True, audit=1.0, device="cpu") as with_audit:
            for _ in range(2):
                list(with_audit)

            assert with_audit.stats()["records_audited"] == with_audit.stats()["records"]

    @pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
    def test_texts_rows_and_drawn_parameters_stand_beside(self, device):
        def read(rows):
            return {
                "text": [f"n{n}" for n in rows],
                "rows": [np.full((n % 4, 2), n, np.float32) for n in rows],
            }

        beside = gl.records(COUNT, read, fields={"text": (str, ()), "rows": ("float32", (None, 2))})
        with gl.Loader(
            gl.zip(source(), beside), 5, ops=OPS, audit=1.0, drawn=True, device=device, shuffle=True
        ) as with_audit:
            batches = list(with_audit)

            assert with_audit.stats()["records_audited"] == COUNT
        assert "RandomFlip/0" in batches[0].drawn

    def test_what_a_cache_holds_is_the_input_of_the_ops_behind_it(self):
        with (
            gl.Loader(
                files(),
                5,
                ops=[gl.ops.Decode(), gl.ops.Resize(8, 8), gl.ops.RandomFlip()],
                device="cpu",
                audit=1.0,
            ) as first,
            first.cache(memory="1MB") as with_audit,
        ):
            list(with_audit)

            assert with_audit.stats()["records_audited"] == COUNT

    def test_a_function_that_makes_something_else_each_time_is_a_difference(self):
        calls = []

        def count(x):
            calls.append(len(calls))
            return x + np.uint8(len(calls))

        with (
            loader(ops=[gl.ops.Python(count)]) as with_audit,
            pytest.raises(gl.PixelError) as caught,
        ):
            list(with_audit)

        assert re.match(
            r"Python\(.*count\) calls a function of yours, which gave other values",
            caught.value.cause,
        )
        assert "write def f(x, rng)" in caught.value.remedy

    def test_of_a_function_that_is_sound_does_not_say_that_it_changes(self, core_fault):
        with (
            loader(ops=[gl.ops.Python(np.copy), *OPS]) as with_audit,
            pytest.raises(gl.PixelError) as caught,
        ):
            list(with_audit)

        assert (
            "executor 'array' on cpu made it by Python RandomFlip Normalize" in caught.value.cause
        )
        assert "Python(copy) calls a function of yours: it must make the same" in caught.value.cause

    def test_a_file_that_is_gone_is_that_error(self, monkeypatch):
        def read(rows):
            if reads:
                raise gl.errors.MissingFileError(
                    "x.bin", cause="it is gone", remedy="bring it back"
                )
            return {"x": np.asarray(rows, np.float32)}

        reads = []
        once = gl.records(4, read, fields={"x": ("float32", ())})
        with gl.Loader(once, 4, device="cpu", audit=1.0) as with_audit:
            fetch = audit.Auditor._fetch

            def then_gone(self, outcome, rows):
                reads.append(1)
                fetch(self, outcome, rows)

            monkeypatch.setattr(audit.Auditor, "_fetch", then_gone)
            with pytest.raises(gl.errors.MissingFileError):
                next(iter(with_audit))


# Decoders that are not known

CARD, DECODER = (
    "NVIDIA H100",
    "nvJPEG in DALI's mixed decoder, without the hardware decoder, whose pixels differ",
)
IMAGE_OPS = [gl.ops.Decode(), gl.ops.Resize(8, 8)]


@pytest.fixture
def verdicts(tmp_path, monkeypatch):
    """Have a cache folder of its own, and a GPU of which the name is CARD."""
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(trials.SWITCH, raising=False)
    monkeypatch.setattr(devices, "card_name", lambda device: CARD)
    return lambda: trials.load_verdict(DECODER, CARD)


def recipe_on_gpu():
    """Return what the choice of a trial looks at: ops that decode behind the upload, on a GPU."""
    return SimpleNamespace(device="gpu:0", rest=compile_ops(files().spec, IMAGE_OPS))


def trial_loader(share=None, **settings):
    """Return a loader of images, and its auditor, as if it decoded on a GPU by a decoder that is
    not known."""
    plain = gl.Loader(files(), 4, ops=IMAGE_OPS, device="cpu", num_threads=1, **settings)
    words = {"executor": "array", "num_threads": 1, "counters": plain._setup.counters}
    setting = None if share is None else audit.AuditSetting(share, counts=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "_trial_of", lambda recipe, setting: audit.DecoderTrial(DECODER, CARD))
        auditor = audit.auditor_of(plain._session.recipe, plain.spec_out.names, setting, **words)
    return plain, auditor


def outcome_at(plain, step):
    """Return the outcome of a step of epoch 0."""
    return plain._session.at(plain._setup.plan.at(Position(0), step))


class TestADecoderThatIsNotKnown:
    def test_has_its_first_batches_audited_whole_and_is_known_then(self, verdicts):
        assert audit._trial_of(recipe_on_gpu(), None) is not None
        plain, auditor = trial_loader()
        for step in range(4):
            assert auditor.audit(outcome_at(plain, step)).error is None

        assert plain.stats()["records_audited"] == 2 * 4
        assert not auditor.is_active
        assert verdicts() == trials.Verdict(True, "8 images had the pixels of the CPU")
        assert audit._trial_of(recipe_on_gpu(), None) is None

    def test_is_known_to_be_bad_where_one_differs(self, verdicts, monkeypatch):
        plain, auditor = trial_loader()
        outcome = outcome_at(plain, 1)
        outcome.fields["image"][2, ..., 0] += 1

        error = auditor.audit(outcome).error

        assert isinstance(error, gl.PixelError)
        assert "record 6, epoch 0, step 1" in error.what
        assert not verdicts().is_good
        assert "record 6: 64 of 192 values differ" in verdicts().about
        with pytest.raises(gl.errors.DeviceError, match=CARD) as caught:
            audit._trial_of(recipe_on_gpu(), None)
        assert 'decode="host"' in caught.value.remedy
        assert "audit=0" in caught.value.remedy

    def test_that_is_bad_is_logged_alone_where_differences_are_counted(self, verdicts, caplog):
        trials.save_verdict(DECODER, CARD, trials.Verdict(False, "record 6 differs"))

        assert audit._trial_of(recipe_on_gpu(), audit.AuditSetting(0.1, counts=True)) is None
        assert "record 6 differs" in caplog.text

    @pytest.mark.parametrize("change", ["card", "decoder", "driver"])
    def test_stays_so_for_another_card_decoder_or_driver(self, change, verdicts, monkeypatch):
        trials.save_verdict(DECODER, CARD, trials.Verdict(True, "8 images"))
        assert audit._trial_of(recipe_on_gpu(), None) is None
        if change == "card":
            monkeypatch.setattr(devices, "card_name", lambda device: "NVIDIA A100")
        elif change == "decoder":
            monkeypatch.setattr(audit, "decoder_on_gpu", lambda ops: "the hardware decoder")
        else:
            stamp = trials.stamp()
            monkeypatch.setattr(trials, "stamp", lambda: stamp | {"driver": "999.1"})

        assert audit._trial_of(recipe_on_gpu(), None) is not None

    def test_is_not_tried_where_that_is_switched_off(self, verdicts, monkeypatch):
        recipe = recipe_on_gpu()
        assert audit.auditor_of(recipe, ("image",), audit.AuditSetting(0.0, counts=False)) is None
        monkeypatch.setenv(trials.SWITCH, "0")
        assert audit._trial_of(recipe, None) is None

    def test_is_not_condemned_for_a_file_that_the_cpu_refuses(self, verdicts, monkeypatch):
        """DALI makes the rest of a JPEG that ends early gray."""
        plain, auditor = trial_loader()
        outcome = outcome_at(plain, 0)

        def refuse(self, step, row):
            raise RowError(0, "its data ends early")

        monkeypatch.setattr(audit.Auditor, "_make", refuse)
        assert auditor.audit(outcome).error is None
        _, asked_for = trial_loader(1.0)
        assert "the CPU refuses it: its data ends early" in asked_for.audit(outcome).error.what
        assert verdicts() is None  # one batch more is to come

    def test_that_cannot_be_tried_is_no_error_where_nobody_asked(
        self, verdicts, monkeypatch, caplog
    ):
        plain, auditor = trial_loader()
        outcome = outcome_at(plain, 0)

        def fail(self, step, row):
            raise gl.errors.MissingPackageError("pillow", cause="it is not installed")

        monkeypatch.setattr(audit.Auditor, "_make", fail)
        assert auditor.audit(outcome).error is None
        assert "could not be tried; cause: pillow" in caplog.text
        assert not auditor.is_active
        assert verdicts() is None

    def test_whose_verdict_cannot_be_stored_is_tried_again_by_the_next_run(
        self, verdicts, tmp_path, monkeypatch, caplog
    ):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "file"))
        plain, auditor = trial_loader()
        for step in range(2):
            assert auditor.audit(outcome_at(plain, step)).error is None

        assert "the next run audits its first batches again" in caplog.text


class TestASoundLoader:
    def test_of_all_ops_has_no_difference(self):
        assert differences(device="cpu") == (6, 0)

    def test_of_images_has_no_difference_behind_dali(self):
        pytest.importorskip("nvidia.dali")
        ops = [
            gl.ops.Decode(),
            gl.ops.RandomResizedCrop(8),
            gl.ops.RandomFlip(),
            gl.ops.Normalize(127.0, 60.0),
        ]
        with gl.Loader(
            files(), 5, ops=ops, executor="dali", device="cpu", audit=1.0, num_threads=1
        ) as with_audit:
            list(with_audit)

            assert with_audit.stats()["records_audited"] == COUNT

    @pytest.mark.slow
    def test_of_all_ops_has_no_difference_behind_dali(self):
        pytest.importorskip("nvidia.dali")

        assert differences(device="cpu", executor="dali") == (6, 0)

    @pytest.mark.gpu
    def test_of_all_ops_has_no_difference_on_a_gpu(self):
        assert differences(device="gpu", executor="array") == (6, 0)


SIZES = (
    gl.ops.RandomResizedCrop(40, 40),
    gl.ops.Resize(16, 16),
)  # the last one halves the sides: many sums are halves
PLACES = [("array", "cpu"), ("dali", "cpu"), pytest.param("array", "gpu", marks=pytest.mark.gpu)]


@pytest.mark.slow  # some 300 loaders, each for a second of processor time or less
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("executor", "device"), PLACES)
def test_sound_loaders_of_each_op_by_itself_and_behind_a_resize_have_no_difference(
    executor, device
):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    num_audited, wrong = 0, []
    for call in parity_ops.calls():
        op = parity_ops.op_of(call)
        images = parity_ops.source_for(op)
        chains = [[op]]
        if "image" in images.spec and "boxes" not in images.spec:
            chains += [
                [size, op, *more]
                for size in SIZES
                for more in ([], [gl.ops.Normalize(120.0, 60.0)])
            ]
        for ops in chains:
            try:
                words = {
                    "executor": executor,
                    "device": device,
                    "num_threads": 2,
                    "audit": (1.0, "count"),
                }
                with_audit = gl.Loader(images, 16, ops=ops, seed=3, shuffle=True, **words)
            except (
                gl.GpuloadError
            ):  # the ops do not fit one another, or none of them has a form in DALI
                continue
            with with_audit:
                list(with_audit)
                stats = with_audit.stats()
            num_audited += stats["records_audited"]
            wrong += [ops] * (stats["records_differing"] > 0)

    assert wrong == []
    assert num_audited > 10_000


def differences(**settings):
    ops, images = all_ops(), source_of_all()
    with gl.Loader(
        images, 4, ops=ops, seed=1, shuffle=True, audit=1.0, num_threads=2, **settings
    ) as with_audit:
        list(with_audit)
        stats = with_audit.stats()
    return stats["records_audited"], stats["records_differing"]

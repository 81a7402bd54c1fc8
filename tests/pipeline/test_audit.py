"""Audited pixels: which records are chosen, what a difference does, and that sound loaders have none.

Faults are planted behind the real parts: in what the stages of the core make, in what DALI gives, in the results of
kernels on a GPU.
"""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import gpuload as gl
from gpuload import rng
from gpuload.executors.array import ArrayRowExecutor
from gpuload.pipeline import audit
from tests.ops.test_every_op import all_ops
from tests.ops.test_every_op import source as source_of_all

COUNT, SIDE = 24, 12
PHOTOS = np.random.default_rng(5).integers(0, 256, (COUNT, SIDE, SIDE, 3), np.uint8)
BAD = 7  # the record that faults are planted in
OPS = (gl.ops.RandomFlip(), gl.ops.Normalize(127.0, 60.0))


def source():
    return gl.arrays(image=PHOTOS, label=np.arange(COUNT))


def loader(*, ops=OPS, device="cpu", audit=1.0, batch_size=5, seed=3, **settings):
    words = {"shuffle": True, "num_threads": 2, **settings}
    return gl.Loader(source(), batch_size, ops=list(ops), seed=seed, device=device, audit=audit, **words)


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
    words = [rng._bits(1, seed=seed, epoch=epoch, records=records, stream=audit.STREAM) for epoch in range(2)]
    numbers = [(word[:, 0] >> np.uint64(11)).astype(float) * 2.0**-53 for word in words]
    return [(epoch, record) for epoch in range(2) for record in records.tolist() if numbers[epoch][record] < share]


class TestTheChoice:
    @pytest.mark.parametrize(
        "settings",
        [{}, {"batch_size": 3}, {"num_threads": 1}, {"ops": ()}, {"last_batch": "pad", "batch_size": 7}],
        ids=["", "batch_size", "num_threads", "ops", "padded"],
    )
    def test_is_that_of_seed_epoch_and_record(self, settings):
        pairs = audited(audit=0.3, **settings)

        assert pairs == chosen(0.3)
        assert 0 < len(pairs) < 2 * COUNT

    def test_is_the_same_on_shards_together(self):
        pairs = audited(audit=0.3, num_shards=3, shard_id=0)
        pairs += audited(audit=0.3, num_shards=3, shard_id=1) + audited(audit=0.3, num_shards=3, shard_id=2)

        assert sorted(pairs) == chosen(0.3)

    def test_is_the_same_where_a_run_goes_on(self):
        with loader(audit=0.3) as first:
            next(iter(first))
            state, before = first.state_dict(), first.stats()["records_audited"]
        with loader(audit=0.3, batch_size=4, num_threads=1) as second:
            second.load_state_dict(state)
            list(second)
            behind = second.stats()["records_audited"]

        assert behind == len([record for epoch, record in chosen(0.3) if epoch == 0]) - _in_first_batch(0.3)
        assert before >= _in_first_batch(0.3)  # it is ahead

    def test_has_the_share_that_was_asked_for(self):
        with gl.Loader(gl.arrays(x=np.zeros(20_000, np.uint8)), 512, seed=1, device="cpu", audit=0.01) as with_audit:
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
    "value", [-0.1, 1.5, float("nan"), "raise", "all", True, (0.1,), (0.1, "stop"), ("count", 1), []]
)
def test_what_is_no_share_is_refused(value):
    with pytest.raises(gl.GpuloadError, match="audit") as caught:
        loader(audit=value)

    assert "audit=0.001" in caught.value.remedy


def test_it_says_what_it_does():
    with loader(audit=1e-3) as raising, loader(audit="count") as counting, loader(audit=(0.01, "count")) as more:
        assert "audit:     0.1 % of the records are made again on the CPU and compared; a difference is a Pixel" in (
            raising.describe()
        )
        assert "0.1 % of the records" in counting.describe()
        assert "1 % of the records are made again on the CPU and compared; a difference is counted" in more.describe()


def test_a_pickled_loader_audits_too():
    with pickle.loads(pickle.dumps(loader(audit=0.3))) as again:
        list(again)

        assert again.stats()["records_audited"] == len([pair for pair in chosen(0.3) if pair[0] == 0])


# Planted faults


def shift_channel(values):
    """Shift the first channel of an image by a pixel, in place."""
    values[..., 0] = np.roll(np.asarray(values[..., 0]), 1, axis=-1)


@pytest.fixture
def core_fault(monkeypatch):
    """Have the executor on rows shift a channel of the record BAD."""
    run = ArrayRowExecutor.run

    def faulty(self, fields, draws, out, names=None):
        results = run(self, fields, draws, out, names)
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


class TestADifference:
    def test_is_an_error_at_its_step_that_names_record_ops_and_both_values(self, core_fault):
        with loader() as with_audit:
            steps, errors = epoch_of(with_audit)
            state_step = with_audit.stats()["records_differing"]
        step = step_of_bad()

        assert list(errors) == [step]
        assert steps == [n for n in range(5) if n != step]
        error = errors[step]
        assert re.search(rf"record {BAD}, epoch 0, step {step}: field 'image' on cpu: ", error.what)
        assert re.search(r"\d+ of 432 values differ: the one at \[\d+, \d+, 0\] is -?[\d.]+, and should be", error.what)
        assert "executor 'array' on cpu made it by RandomFlip Normalize" in error.cause
        assert f"loader.replace(audit=None).batch_at({step}, 0)" in error.remedy
        assert state_step == 1

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
        with loader(batch_size=16, last_batch="pad", shuffle=False, audit=(1.0, "count")) as with_audit:
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


def test_a_loader_that_is_dropped_or_closed_in_mid_epoch_ends_its_threads():
    with loader(batch_size=1) as with_audit:
        batches = iter(with_audit)
        next(batches)
        with_audit.close()

        with pytest.raises(gl.GpuloadError, match="closed"):
            next(batches)


class TestASoundLoader:
    def test_of_all_ops_has_no_difference(self):
        assert differences(device="cpu") == (6, 0)

    def test_of_all_ops_has_no_difference_behind_dali(self):
        pytest.importorskip("nvidia.dali")

        assert differences(device="cpu", executor="dali") == (6, 0)

    @pytest.mark.gpu
    def test_of_all_ops_has_no_difference_on_a_gpu(self):
        assert differences(device="gpu", executor="array") == (6, 0)


def differences(**settings):
    ops, images = all_ops(), source_of_all()
    with gl.Loader(images, 4, ops=ops, seed=1, shuffle=True, audit=1.0, num_threads=2, **settings) as with_audit:
        list(with_audit)
        stats = with_audit.stats()
    return stats["records_audited"], stats["records_differing"]

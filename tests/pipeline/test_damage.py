"""Damaged records: another record stands in their place, the same one in every run, and all that is
wrong is listed."""

from __future__ import annotations

import gc
import importlib
import json
import pickle
import subprocess
import sys
import traceback

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import DamagedSourceError, FileError, RecordError, SpecError
from gpuload.pipeline import damage as damage_module
from gpuload.pipeline.damage import STREAM
from tests import imagefiles, simdevice
from tests.attack.mutate import sealed_png
from tests.sources.tfrecordfiles import example, frame

DAMAGED = {7, 20, 33, 34, 35}
NUM_IMAGES, NUM_ROWS = 48, 120
IMAGE_OPS = (gl.ops.Decode(), gl.ops.RandomResizedCrop(12, 16), gl.ops.RandomFlip())


def png(number, *, damaged=False):
    """Return an image whose pixels say which it is; a damaged one has a right head and right
    checksums."""
    data = imagefiles.png(24 + number % 5, 30 + number % 3, imagefiles.RGB, 8)
    if not damaged:
        return data
    place = data.index(b"IDAT") + 30
    return sealed_png(data[:place] + b"\x55" * 20 + data[place + 20 :])


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Image files, some of which no decoder takes; what is wrong with three of them only a decoder
    sees."""
    folder = tmp_path_factory.mktemp("images")
    whole = imagefiles.jpeg(24, 30)
    broken = {7: whole[: len(whole) // 2], 20: b"not an image"}
    for number in range(NUM_IMAGES):
        data = broken.get(number) or png(number, damaged=number in DAMAGED)
        (folder / f"{number:02}.{'jpg' if number in (7, 20) else 'png'}").write_bytes(data)
    return gl.images(sorted(folder.iterdir(), key=lambda path: path.name[:2]), labels=None)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of a file with a text, which is none in some of them."""
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    table = np.zeros(NUM_ROWS, [("x", "<f4", (3,)), ("name", "<U4")])
    table["x"] = np.arange(NUM_ROWS)[:, None]
    table["name"] = [f"n{number}" for number in range(NUM_ROWS)]
    for number in DAMAGED:
        table["name"][number : number + 1].view(np.uint32)[0] = 0x110000
    np.save(path, table)
    return gl.npy(path)


@pytest.fixture(scope="module")
def labels():
    """Labels, some of which are no class."""
    table = np.arange(NUM_ROWS) % 10
    table[sorted(DAMAGED)] = 77
    return gl.arrays(x=np.arange(NUM_ROWS, dtype=np.float32), label=table)


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Examples, some of which have other bytes than their checksums say."""
    path = tmp_path_factory.mktemp("examples") / "a.tfrecord"
    frames = [frame(example(x=float(number), name=b"n%03d" % number)) for number in range(NUM_ROWS)]
    for number in DAMAGED:
        frames[number] = frames[number][:-6] + b"??" + frames[number][-4:]
    path.write_bytes(b"".join(frames))
    return gl.tfrecord(path, {"x": "f4", "name": gl.Raw("u1", (4,))})


LANES = ["rows", "array", "dali", "labels", "labels-dali", "examples"]


@pytest.fixture(params=LANES)
def lane(request, images, rows, labels, examples):
    """Return what makes loaders of a source with damaged records."""
    if "dali" in request.param:
        pytest.importorskip("nvidia.dali")
    source, ops, executor = {
        "rows": (rows, (), "array"),
        "examples": (examples, (gl.ops.Cast("float16", on="x"),), "array"),
        "array": (images, IMAGE_OPS, "array"),
        "dali": (images, IMAGE_OPS, "dali"),
        "labels": (labels, (gl.ops.OneHot(10), gl.ops.Cast("float16", on="x")), "array"),
        "labels-dali": (labels, (gl.ops.OneHot(10), gl.ops.Cast("float16", on="x")), "dali"),
    }[request.param]

    def loader(**changes):
        arguments = {
            "batch_size": 8,
            "shuffle": True,
            "seed": 5,
            "device": "cpu",
            "on_error": "replace",
        }
        return gl.Loader(
            source, **{**arguments, "ops": ops, "executor": executor, "max_bad": 0.2, **changes}
        )

    return loader


def delivered(batches):
    """Return record, validity and values of each row."""
    return [
        (
            int(record),
            bool(valid),
            *(np.asarray(values[row]).tobytes() for values in batch.values()),
        )
        for batch in batches
        for row, (record, valid) in enumerate(zip(batch.records, batch.valid, strict=True))
    ]


def planned(load, epoch):
    """Return the records that the order says, from a loader of as many sound ones."""
    order = gl.Loader(
        gl.arrays(x=np.arange(len(load.source))), batch_size=8, shuffle=True, seed=5, device="cpu"
    )
    return np.concatenate([batch.records for batch in order.epoch(epoch)]).tolist()


def by_the_rule(record, *, seed, epoch, length):
    """Return what stands for a damaged record, by NumPy's own generator."""
    words = np.random.Philox(
        counter=np.array([0, record, epoch, 0], np.uint64), key=np.array([seed, STREAM], np.uint64)
    )
    for word in words.random_raw(64).tolist():
        if (number := word * length >> 64) not in DAMAGED:
            return number
    raise AssertionError


def test_a_damaged_record_is_replaced_by_the_rule_and_all_others_are_delivered(lane):
    with lane() as load:
        for epoch in range(3):
            result = delivered(load)
            expected = [
                by_the_rule(record, seed=5, epoch=epoch, length=len(load.source))
                if record in DAMAGED
                else record
                for record in planned(load, epoch)
            ]
            assert [row[0] for row in result] == expected
            assert all(row[1] for row in result)
        assert {bad.record for bad in load.bad_records()} == DAMAGED
        assert len(load.bad_records()) == len(DAMAGED)
        assert load.stats()["records_replaced"] == 3 * len(DAMAGED)
        assert load.stats()["records"] == 3 * len(load.source)


def test_a_row_of_another_record_holds_what_that_record_alone_would(lane):
    with lane() as load:
        results = {row[0]: row for row in delivered(load)}
        again = load.replace(batch_size=1, shuffle=False)
        for record, row in results.items():
            (single,) = delivered([again.batch_at(record)])
            assert single == row


@pytest.mark.parametrize(
    "changes", [{"batch_size": 5}, {"num_threads": 1}, {"num_threads": 5, "prefetch": 1}]
)
def test_batch_size_and_threads_change_nothing(lane, changes):
    with lane() as load, lane(**changes) as second:
        for _ in range(2):
            assert delivered(second) == delivered(load)


def test_shards_share_the_order_and_the_substitutes(lane):
    with lane(batch_size=6) as load:
        whole = delivered(load)
    parts = [list(lane(batch_size=2, shard_id=shard, num_shards=3)) for shard in range(3)]
    assert len({len(part) for part in parts}) == 1
    assert delivered(batch for step in zip(*parts, strict=True) for batch in step) == whole


def test_a_run_that_goes_on_gives_what_a_whole_one_gives(lane):
    with lane() as load:
        whole = [delivered([batch]) for _ in range(2) for batch in load]
    first, rest = lane(), []
    for batch in first:
        rest.append(delivered([batch]))
        if len(rest) == 4:
            break
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    second = lane()
    second.load_state_dict(state)
    rest += [delivered([batch]) for batch in second]
    third = lane()
    third.load_state_dict(second.state_dict())
    rest += [delivered([batch]) for batch in third]
    assert rest == whole
    assert [
        delivered([load.batch_at(step, 1)]) for load in (second,) for step in range(3)
    ] == whole[len(second) :][:3]
    fresh = lane(on_error="skip")  # a state does not ask what becomes of damaged records
    fresh.load_state_dict(state)


def test_a_skipped_row_is_not_valid_and_holds_what_would_replace_it(lane):
    with lane() as load, lane(on_error="skip") as skipping:
        for result, reference in zip(skipping, load, strict=True):
            assert np.array_equal(result.records, reference.records)
            assert [row[2:] for row in delivered([result])] == [
                row[2:] for row in delivered([reference])
            ]
            in_order = planned(load, 0)[8 * result.step : 8 * result.step + 8]
            assert result.valid.tolist() == [record not in DAMAGED for record in in_order]
        assert skipping.stats()["records_skipped"] == len(DAMAGED)
        assert skipping.stats()["records"] == len(load.source) - len(DAMAGED)


def test_padding_stays_padding(lane):
    with lane(batch_size=7, last_batch="pad", on_error="skip") as load:
        batches = list(load)
    assert {batch.records.size for batch in batches} == {7}
    assert sum(int(batch.valid.sum()) for batch in batches) == len(load.source) - len(DAMAGED)


def test_without_it_the_step_raises_and_names_the_record(lane):
    with lane(on_error="raise") as load:
        run, raised = iter(load), []
        for _ in range(len(load)):
            try:
                next(run)
            except RecordError as error:
                raised.append(str(error))
        assert 0 < len(raised) <= len(DAMAGED)
        names = [f"record {record}" for record in DAMAGED] + [f"{record:02}." for record in DAMAGED]
        assert all(any(name in message for name in names) for message in raised)
        assert load.bad_records() == []


def test_an_image_whose_end_is_missing_is_replaced_in_the_epochs_that_need_its_end(tmp_path):
    whole = imagefiles.jpeg(160, 160)
    for number in range(12):
        (tmp_path / f"{number:02}.jpg").write_bytes(whole)
    (tmp_path / "05.jpg").write_bytes(whole[: 2 * len(whole) // 3] + b"\xff\xd9")
    ops = [gl.ops.Decode(), gl.ops.RandomCrop(40, 40)]
    about = {
        "ops": ops,
        "on_error": "replace",
        "max_bad": 0.1,
        "device": "cpu",
        "executor": "array",
        "seed": 1,
    }
    with gl.Loader(gl.images(tmp_path, labels=None), batch_size=4, **about) as load:
        epochs = [delivered(load) for _ in range(16)]
        is_there = [5 in [row[0] for row in rows] for rows in epochs]
        assert {*is_there} == {True, False}
        assert (
            True in is_there[is_there.index(False) :]
        )  # what is known of it from before makes no difference
        for epoch, rows in enumerate(epochs):
            with load.replace() as fresh:
                assert delivered(fresh.epoch(epoch)) == rows


def test_a_record_that_failed_before_costs_others_no_second_attempt(rows, monkeypatch):
    from gpuload.pipeline.part import StepPart

    tried, make_rows = [], StepPart.make_rows

    def counted(self, begin, end, *extra):
        tried.append(end - begin)
        make_rows(self, begin, end, *extra)

    monkeypatch.setattr(StepPart, "make_rows", counted)
    with gl.Loader(
        rows, batch_size=NUM_ROWS, on_error="replace", max_bad=0.2, device="cpu", num_threads=1
    ) as load:
        list(load)
        first, tried[:] = list(tried), []
        list(load)
    assert sum(tried) < 2 * NUM_ROWS < sum(first)
    assert [count for count in tried if count > 1] == [
        NUM_ROWS
    ]  # each of the bad ones alone, then all at once


def test_what_dali_refused_before_fails_no_batch_again(images, monkeypatch):
    pytest.importorskip("nvidia.dali")
    executor = importlib.import_module("gpuload.executors.dali.executor").DaliExecutor
    searched, search = [], executor._damaged_row
    monkeypatch.setattr(
        executor, "_damaged_row", lambda self, batch: (searched.append(1), search(self, batch))[1]
    )
    about = {
        "ops": IMAGE_OPS,
        "on_error": "replace",
        "max_bad": 0.2,
        "device": "cpu",
        "executor": "dali",
    }
    with gl.Loader(images, batch_size=8, **about) as load:
        list(load)
        assert (
            3 <= len(searched) <= 6
        )  # for what heads do not show, and for such a record that stood for another one
        searched.clear()
        list(load)
        assert searched == []
        assert load.stats()["records_replaced"] == 2 * len(DAMAGED)


def test_where_a_record_is_and_what_is_wrong_is_listed(rows, tmp_path):
    path = tmp_path / "bad.jsonl"
    with gl.Loader(
        rows,
        batch_size=8,
        on_error="replace",
        max_bad=0.2,
        quarantine=path,
        device="cpu",
        num_threads=1,
    ) as load:
        list(load)
        list(load)
        entries = load.bad_records()
    bad = next(bad for bad in entries if bad.record == 20)
    data = np.load(rows._files.paths[0], mmap_mode="r")
    assert (bad.epoch, bad.step, bad.file) == (0, 2, rows._files.paths[0])
    assert bad.offset_bytes == data.offset + 20 * data.itemsize
    assert bad.where.endswith("rows.npy, record 20")
    assert bad.cause.startswith(
        "its text holds a number that is no Unicode character; characters are numbered"
    )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [
        {name: getattr(item, name) for name in item.__dataclass_fields__} for item in entries
    ]
    assert {line["record"] for line in lines} == DAMAGED


def test_a_line_that_the_disk_takes_a_part_of_is_an_error_and_leaves_nothing(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"{}\n")
    code = f"""
import resource
from gpuload.errors import FileError
from gpuload.pipeline import damage
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
damage._append({str(path)!r}, b"x" * 50 + b"\\n")
try:
    damage._append({str(path)!r}, b"y" * 50 + b"\\n")
except FileError as error:
    print(error)
"""
    process = subprocess.run(
        [sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert "bad.jsonl: the line of a damaged record cannot be written" in process.stdout
    assert "quarantine=" in process.stdout
    assert path.read_bytes() == b"{}\n" + b"x" * 50 + b"\n"


def test_lines_are_appended_behind_those_of_another_run(rows, tmp_path):
    path = tmp_path / "bad.jsonl"
    for _ in range(2):
        with gl.Loader(
            rows, batch_size=8, on_error="skip", max_bad=0.2, quarantine=path, device="cpu"
        ) as load:
            list(load)
    assert [json.loads(line)["record"] for line in path.read_text().splitlines()].count(20) == 2


def test_more_damage_than_allowed_stops_the_loader_and_says_what_would_allow_it(lane):
    with lane(max_bad=0.01) as load, pytest.raises(DamagedSourceError) as caught:
        list(load)
    message = str(caught.value)
    assert (
        f"of the {len(load.source)} records are damaged, more than max_bad=0.01 allows" in message
    )
    assert "max_bad=0.0" in caught.value.remedy
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


def test_the_share_that_the_error_names_allows_that_many():
    for length in (1, 7, 57, 1000, 12_345):
        for num_bad in {*range(1, min(length, 300) + 1), length}:
            assert (
                num_bad
                <= damage_module._allowing(num_bad, length) * length
                <= max(1.2 * num_bad, 1)
            )


def test_the_error_for_a_damaged_image_names_the_argument_that_goes_on_without_it(images):
    with (
        gl.Loader(images, batch_size=8, ops=IMAGE_OPS, device="cpu") as load,
        pytest.raises(RecordError, match=r"07\.jpg") as caught,
    ):
        list(load)

    assert 'on_error="replace"' in caught.value.remedy


def test_as_much_damage_as_allowed_is_allowed(rows):
    for share, is_enough in ((5 / 120, True), (4.99 / 120, False)):
        with gl.Loader(rows, batch_size=8, on_error="replace", max_bad=share, device="cpu") as load:
            if is_enough:
                assert len(list(load)) == 15
            else:
                with pytest.raises(DamagedSourceError, match=r"5 of the 120 records|rows\.npy"):
                    list(load)


def test_where_all_is_damaged_the_search_for_another_record_ends():
    source = gl.arrays(label=np.full(30, 9))
    ops = [gl.ops.OneHot(3, on="label")]
    load = gl.Loader(source, batch_size=4, ops=ops, on_error="replace", max_bad=1, device="cpu")
    with load, pytest.raises(DamagedSourceError, match="and so are 64 others"):
        next(iter(load))


def test_fields_of_varying_length_are_replaced_as_well(images):
    with gl.Loader(images, batch_size=8, on_error="replace", max_bad=0.2, device="cpu") as load:
        records = [int(record) for batch in load for record in batch.records]
        held = [bytes(item) for batch in load.epoch(0) for item in batch["image"]]
    assert {7, 20}.isdisjoint(records)  # of files that nobody decodes the heads are looked at
    assert {33, 34, 35} <= set(records)
    assert held == [images[record]["image"].tobytes() for record in records]


def test_what_the_users_own_functions_raise_is_not_damage():
    def strict(x):
        if x == 3:
            raise ValueError("three")
        return x

    source = gl.arrays(x=np.arange(10, dtype=np.float32))
    ops = [gl.ops.Python(strict, out={"dtype": "float32"})]
    load = gl.Loader(source, batch_size=4, ops=ops, on_error="replace", max_bad=1, device="cpu")
    with load, pytest.raises(ValueError, match="three") as caught:
        list(load)
    assert "record 3" in caught.value.__notes__[0]
    assert len(caught.value.__notes__) == 1


@pytest.mark.parametrize("batch", [False, True])
def test_a_function_may_say_that_a_record_is_damaged(batch):
    def strict(x):
        if (x == 3).any():
            raise RecordError("it is three", cause="three is no number")
        return x

    source = gl.arrays(x=np.arange(10, dtype=np.float32))
    ops = [gl.ops.Python(strict, out={"dtype": "float32"}, batch=batch)]
    with gl.Loader(
        source, batch_size=5, ops=ops, on_error="replace", max_bad=0.1, device="cpu"
    ) as load:
        for batch in load:
            assert np.array_equal(batch["x"], batch.records)
        assert [(bad.record, bad.cause) for bad in load.bad_records()] == [
            (3, "it is three; three is no number")
        ]


def test_a_reader_of_the_users_may_say_so_too():
    def read(indices):
        if 6 in indices:
            raise RecordError("table, row 6: it is torn")
        return {"x": indices.astype(np.float32)}

    with gl.Loader(
        gl.records(20, read), batch_size=6, on_error="skip", max_bad=0.1, device="cpu"
    ) as load:
        batches = list(load)
    assert [row for batch in batches for row in batch.valid].index(False) == 6
    assert [(bad.record, bad.where, bad.file) for bad in load.bad_records()] == [
        (6, "gl.records, record 6", None)
    ]


def test_a_file_that_is_gone_is_an_error_all_the_same(tmp_path):
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    source = gl.images(tmp_path, labels=None)
    (tmp_path / "5.png").unlink()
    load = gl.Loader(source, batch_size=4, on_error="replace", max_bad=1, device="cpu")
    with load, pytest.raises(FileError, match=r"5\.png"):
        list(load)


def test_an_unknown_policy_share_or_file_is_refused(tmp_path):
    source = gl.arrays(x=np.arange(3))
    for wrong, message in (
        ({"on_error": "ignore"}, "on_error = 'ignore'"),
        ({"max_bad": 2}, "max_bad = 2"),
        ({"max_bad": True}, "max_bad = True"),
        ({"quarantine": 3, "on_error": "skip"}, "quarantine = 3"),
        ({"quarantine": "a\0b", "on_error": "skip"}, "the character NUL"),
        ({"quarantine": tmp_path / "bad.jsonl"}, "with on_error='raise'"),
    ):
        with pytest.raises(SpecError, match=message):
            gl.Loader(source, batch_size=2, **wrong)
    with pytest.raises(FileError, match="nowhere"):
        gl.Loader(
            source, batch_size=2, on_error="skip", quarantine=tmp_path / "nowhere" / "bad.jsonl"
        )


def test_a_loader_that_was_pickled_still_replaces(rows):
    load = gl.Loader(
        rows, batch_size=8, on_error="replace", max_bad=0.2, device="cpu", shuffle=True
    )
    again = pickle.loads(pickle.dumps(load))
    assert delivered(again) == delivered(load)
    assert again.on_error == "replace"
    assert "damaged:   records are replaced" in again.describe()


def test_a_record_of_a_mix_is_listed_once_whatever_its_number(rows):
    sound = gl.arrays(x=np.zeros((60, 3), np.float32), name=np.full(60, "n", "U4"))
    mixture = gl.mix({rows: 2, sound: 1})
    with gl.Loader(mixture, batch_size=9, on_error="replace", max_bad=0.1, device="cpu") as load:
        for epoch in range(4):
            numbers = np.concatenate([batch.records for batch in load])
            assert (numbers // len(mixture) == epoch).all()
        assert len(load.bad_records()) == len(DAMAGED)
        assert load.stats()["records_replaced"] > 3 * len(DAMAGED)
        again = load.replace(batch_size=4)
        assert delivered(again.epoch(2)) == delivered(load.epoch(2))


def test_the_rule_that_is_written_down_is_the_one_that_is_used(rows):
    damage = damage_module.Damage(rows, seed=9, skips=False, max_bad=1, path=None)
    for record in (0, 7, 119):
        words = np.random.Philox(
            counter=np.array([0, record, 4, 0], np.uint64), key=np.array([9, STREAM], np.uint64)
        ).random_raw(64)
        assert [damage.substitute(record, 4, attempt) for attempt in range(64)] == [
            int(word) * NUM_ROWS >> 64 for word in words
        ]


# on a GPU, simulated


@pytest.mark.parametrize("kind", ["rows", "labels"])
@pytest.mark.parametrize("seed", [3, 11])
def test_on_a_gpu_the_same_records_are_replaced(monkeypatch, request, kind, seed):
    source = request.getfixturevalue(kind)
    ops = (gl.ops.OneHot(10), gl.ops.Cast("float16", on="x")) if kind == "labels" else ()
    arguments = {
        "ops": ops,
        "shuffle": True,
        "seed": 5,
        "on_error": "replace",
        "max_bad": 0.2,
        "executor": "array",
    }
    with gl.Loader(source, batch_size=8, device="cpu", **arguments) as load:
        expected = [delivered(load) for _ in range(3)]
    sim = simdevice.install(monkeypatch, seed=seed)
    with gl.Loader(source, batch_size=8, device="gpu", prefetch=3, **arguments) as load:
        for epoch in range(3):
            results = []
            for batch in load:
                fields = {
                    name: v if isinstance(v, np.ndarray) else v.get() for name, v in batch.items()
                }
                results += delivered(
                    [
                        gl.Batch(
                            fields, None, records=batch.records, valid=batch.valid, epoch=0, step=0
                        )
                    ]
                )
            assert results == expected[epoch]
        again = load.batch_at(2, 1)
        assert again.records.tolist() == [row[0] for row in expected[1][16:24]]
        assert load.stats()["records_replaced"] == 3 * len(DAMAGED) + sum(
            record in DAMAGED for record in planned(load, 1)[16:24]
        )
        del batch, again
    gc.collect()
    sim.finish()


@pytest.mark.gpu
def test_on_a_real_gpu_dali_replaces_the_images_that_the_cpu_replaces(images):
    pytest.importorskip("nvidia.dali")
    about = {
        "ops": IMAGE_OPS,
        "shuffle": True,
        "seed": 5,
        "on_error": "replace",
        "max_bad": 0.2,
        "executor": "dali",
    }
    with (
        gl.Loader(images, batch_size=8, device="cpu", **about) as cpu,
        gl.Loader(images, batch_size=8, device="gpu", **about) as gpu,
    ):
        for _ in range(3):
            for result, reference in zip(gpu, cpu, strict=True):
                assert np.array_equal(result.records, reference.records)
                assert result["image"].shape == reference["image"].shape
        assert np.array_equal(gpu.batch_at(2, 1).records, cpu.batch_at(2, 1).records)
        assert {bad.record for bad in gpu.bad_records()} == DAMAGED

"""States: a text of every value that stays the same, and every state that was ever saved is
loaded."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload import state
from gpuload.errors import ChangedFileError, StateError
from gpuload.ops.base import Op
from tests import opexamples

GOLDEN = Path(__file__).parent / "golden"
EARLIER_EXAMPLES = {  # of ops whose state was written with another example than that of today
    "CutMix": gl.ops.CutMix(alpha=1.0, on="image"),
    "MixUp": gl.ops.MixUp(alpha=0.2, on="image"),
}
OTHER_MEANINGS = {  # states that are refused, and the op that came to mean something else
    "2_masks": "Brightness", "2_op_AutoAugment": "AutoAugment", "2_op_TrivialAugmentWide": "TrivialAugmentWide",
}  # fmt: skip
STATES = sorted((GOLDEN / "states").glob("*.json"))


@dataclass(frozen=True)
class Old(Op):
    """An op as it was."""

    size: int
    weights: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Later(Op):
    """``Old`` after a release that gave it more arguments."""

    size: int
    weights: tuple[float, ...] = (1.0,)
    rounding: str = "even"
    factor: float = 1
    range: tuple[float, float] = (0, 1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", float(self.factor))
        object.__setattr__(self, "range", tuple(map(float, self.range)))


Later.__name__ = Old.__name__


def test_an_argument_that_an_op_gets_later_with_a_default_changes_nothing():
    assert state.canonical_text(Later(3)) == state.canonical_text(Old(3)) == "Old(size=3)"
    assert state.canonical_text(Later(3, (2.0, 3.0))) == state.canonical_text(Old(3, (2.0, 3.0)))
    assert state.canonical_text(Later(3, rounding="up")) != state.canonical_text(Old(3))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((2.0,), "Old(size=3, weights=(2.0))"),
        ((1.0, 1.0), "Old(size=3, weights=(1.0, 1.0))"),
        ((1,), "Old(size=3)"),
    ],
)
def test_numbers_of_a_tuple_are_left_out_only_if_all_of_them_are_the_defaults(weights, expected):
    assert state.canonical_text(Old(3, weights)) == expected


def function(x):
    return x


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (gl.ops.Resize(224, 224), "Resize(height=224, width=224)"),
        (gl.ops.Resize(shorter=256, antialias=False), "Resize(shorter=256, antialias=False)"),
        (gl.ops.RandomFlip(), "RandomFlip()"),
        (gl.ops.Cast("float16", on=["a", "b"]), "Cast(on=('a', 'b'), dtype='float16')"),
        (gl.Blocks(), "Blocks()"),
        (gl.Blocks(64, lanes=4, chunk=8), "Blocks(block_records=64, lanes=4, chunk=8)"),
        (True, "True"),
        ([1, (2.5, "a")], "(1, (2.5, 'a'))"),
        ({"b": 1, "a": None}, "{'a': None, 'b': 1}"),
        (np.float32(1.5), "1.5"),
        (np.dtype("f4"), "'<f4'"),
        (function, f"{__name__}.function"),
        (functools.partial(function, 1), "functools.partial"),
        (np.ndarray, "numpy.ndarray"),
    ],
)
def test_what_is_told_of_a_value(value, expected):
    assert state.canonical_text(value) == expected


def test_arrays_are_told_by_their_values():
    long = np.arange(10_000.0)
    second = long.copy()
    second[5000] = -1
    assert state.canonical_text(long) == state.canonical_text(long.copy())
    assert (
        len(
            {
                state.canonical_text(long),
                state.canonical_text(second),
                state.canonical_text(long.astype("f4")),
                state.canonical_text(long[:, None]),
            }
        )
        == 4
    )


def test_what_is_told_is_the_same_in_another_process():
    value = "[{'x', 'y', 'z'}, {'k': np.arange(9)}, object()]"
    code = f"import numpy as np\nfrom gpuload import state\nprint(state.canonical_text({value}))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1
    assert "0x" not in texts.pop()


def test_a_state_stays_short_whatever_the_ops_hold():
    load = gl.Loader(
        gl.arrays(image=np.zeros((4, 9, 9, 300), np.uint8)),
        batch_size=2,
        ops=[gl.ops.Normalize(mean=tuple(range(300)), std=tuple(range(1, 301)))],
        device="cpu",
    )
    assert len(json.dumps(load.state_dict())) < 600
    second = load.replace(ops=[gl.ops.Normalize(mean=tuple(range(300)), std=tuple(range(2, 302)))])
    with pytest.raises(StateError, match="the ops"):
        second.load_state_dict(load.state_dict())


def test_files_of_equal_name_and_size_with_other_content_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((100, 50)))
    with gl.Loader(gl.npy(path), batch_size=4, device="cpu") as load:
        state = load.state_dict()
    np.save(path, np.ones((100, 50)))
    with (
        gl.Loader(gl.npy(path), batch_size=4, device="cpu") as load,
        pytest.raises(StateError, match="files, lengths, fields, classes or bytes"),
    ):
        load.load_state_dict(state)


def test_a_loader_looks_into_its_files_once_and_only_for_a_state(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.zeros((100, 50)))
    source, calls = gl.npy(tmp_path / "a.npy"), []
    digest = type(source)._digest
    monkeypatch.setattr(type(source), "_digest", lambda self: calls.append(self) or digest(self))
    with gl.Loader(source[10:], batch_size=4, device="cpu") as load:
        sum(1 for _ in load.replace(batch_size=5))
        load.batch_at(3)
        assert not calls
        state = load.state_dict()
        load.load_state_dict(state)
        load.replace(batch_size=6).load_state_dict(state)
        assert len(calls) == 1


def test_a_state_of_files_that_changed_is_not_saved(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((100, 50)))
    load = gl.Loader(gl.npy(tmp_path / "a.npy"), batch_size=4, device="cpu")
    np.save(tmp_path / "a.npy", np.zeros((101, 50)))
    with pytest.raises(ChangedFileError):
        load.state_dict()


# The states below were saved by the version that their names say; none is ever changed, and every
# op is in one of them.


def ops_of_states(paths):
    """Return the names of the ops in some states."""
    states = [json.loads(path.read_text())["state"] for path in paths]
    return {text.partition("(")[0] for saved_state in states for text in saved_state["ops"]} - {
        "mark"
    }


def golden_loaders(folder):
    """Return functions that return the loaders whose states are kept, by name."""
    records = np.arange(40 * 7, dtype=np.uint8).reshape(40, 7)
    (folder / "records.bin").write_bytes(records.tobytes())
    np.save(folder / "rows.npy", np.arange(60, dtype=">f4").reshape(20, 3))
    np.save(folder / "more.npy", np.asfortranarray(np.arange(30, dtype="<f4").reshape(10, 3)))
    photos = sorted((GOLDEN / "images" / "Pillow").glob("hopper*.jpg"))
    rows = gl.npy([folder / "rows.npy", folder / "more.npy"])
    fixed = gl.fixed(folder / "records.bin", [("label", "u1"), ("image", "u1", (1, 2, 3))])
    pixels = gl.arrays(
        image=np.arange(12 * 6 * 5 * 3, dtype=np.uint8).reshape(12, 6, 5, 3),
        label=np.arange(12) % 4,
    )
    decode = [gl.ops.Decode(), gl.ops.RandomResizedCrop(32, 32), gl.ops.RandomFlip(p=0.25)]
    loaders = {
        "rows": lambda: gl.Loader(rows, batch_size=4, shuffle=True, seed=2**63, device="cpu"),
        "file_records": lambda: gl.Loader(
            gl.npy([folder / "rows.npy"], record="file"), batch_size=1, device="cpu"
        ),
        "fixed": lambda: gl.Loader(
            fixed,
            batch_size=6,
            shuffle=gl.Blocks(4, 2),
            ops=[gl.ops.Reshape((2, 3)), gl.ops.Cast("float32"), gl.ops.OneHot(256, on="label")],
            device="cpu",
        ),
        "images": lambda: gl.Loader(
            gl.images(photos, labels=None),
            batch_size=2,
            shuffle=True,
            seed=5,
            ops=decode,
            device="cpu",
        ),
        "arrays": lambda: gl.Loader(
            gl.zip(pixels.split(0.5, seed=1)[0].rename(label="kind"), rows[3:9]),
            batch_size=2,
            ops=[
                gl.ops.RandomCrop(4, 4, pad=1),
                gl.ops.Resize(8, 8, interpolation="nearest"),
                gl.ops.Normalize(mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 6.0)),
                gl.ops.Transpose("CHW"),
            ],
            device="cpu",
        ),
        "masks": lambda: gl.Loader(
            pixels.rename(label="kind"),
            batch_size=5,
            shuffle=True,
            ops=[
                gl.ops.Python(np.flipud),
                gl.ops.Pad(9, 8, fill=7),
                gl.ops.CenterCrop(7, 8),
                gl.ops.RandomResizedCrop(4, 4, interpolation={"image": "nearest"}),
                gl.ops.Brightness(0.5, 1.5),
                gl.ops.Contrast(0.5, 1.5, center=100),
                gl.ops.PerImageStandardization(),
            ],
            device="cpu",
        ),
        "padded": lambda: gl.Loader(
            rows, batch_size=4, shuffle=True, ops=[gl.ops.PadTo(5, value=-1)], device="cpu"
        ),
        "concat": lambda: gl.Loader(
            gl.concat(rows, rows.select([1, 5, 5])), batch_size=4, shuffle=True, device="cpu"
        ),
    }
    blur = functools.partial(gl.ops.Dali, "gaussian_blur", sigma=1.5, window_size=3)
    loaders["dali"] = lambda: gl.Loader(
        pixels, batch_size=5, shuffle=True, ops=[blur()], device="cpu"
    )
    images = gl.arrays(
        image=np.arange(12 * 32 * 32 * 3, dtype=np.uint8).reshape(12, 32, 32, 3),
        label=np.arange(12) % 4,
    )
    group = ops_of_states(
        path for path in STATES if "_op_" not in path.stem and path.stem not in OTHER_MEANINGS
    )
    for name in set(opexamples.NAMES) - group:  # an op that came later has a state of its example
        op = EARLIER_EXAMPLES.get(name) or opexamples.example(name)
        source = opexamples.beside_boxes(images) if op.traits.marks.are_read else images
        loaders[f"op_{name}"] = functools.partial(
            gl.Loader, source, batch_size=5, shuffle=True, ops=[op], device="cpu"
        )
    return loaders


@pytest.mark.parametrize("path", STATES, ids=lambda path: path.stem)
def test_a_state_of_every_version_goes_on_where_it_was(path, tmp_path):
    name = path.stem.partition("_")[2]
    if name == "dali":
        pytest.importorskip("nvidia.dali")
    with golden_loaders(tmp_path)[name]() as load:
        golden_state = json.loads(path.read_text())
        if path.stem in OTHER_MEANINGS:
            with pytest.raises(
                StateError,
                match=rf"saved when {OTHER_MEANINGS[path.stem]}\(.*\) had another meaning\n",
            ):
                load.load_state_dict(golden_state["state"])
            golden_state["state"]["ops"] = load.state_dict()[
                "ops"
            ]  # and for nothing else it is refused
        load.load_state_dict(golden_state["state"])
        batch = next(iter(load))
    assert batch.records.tolist() == golden_state["next records"]
    assert (batch.epoch, batch.step) == (
        golden_state["state"]["epoch"],
        golden_state["state"]["step"],
    )


def test_each_loader_and_each_op_is_in_a_kept_state_of_this_version(tmp_path):
    current = [path for path in STATES if path.stem.startswith(f"{state.VERSION}_")]
    loaders = golden_loaders(tmp_path)
    assert {path.stem for path in STATES} >= {f"{state.VERSION}_{name}" for name in loaders}
    assert ops_of_states(current) == set(opexamples.NAMES)


def write_states(folder):
    """Write the states of this version; `python -m tests.test_state` does it, for names that are
    not there yet."""
    with tempfile.TemporaryDirectory() as data:
        for name, loader in golden_loaders(Path(data)).items():
            path = folder / f"{state.VERSION}_{name}.json"
            if path.exists():
                continue
            load = loader()
            for _ in load:
                pass
            run = iter(load)
            if len(load) > 1:
                next(run)
            saved_state = load.state_dict()
            upcoming = next(run).records.tolist()
            path.write_text(
                json.dumps({"state": saved_state, "next records": upcoming}, indent=1) + "\n"
            )
            load.close()


def test_the_epoch_of_a_state_is_any_number_of_64_bits():
    loader = gl.Loader(gl.arrays(x=np.arange(8)), batch_size=2, shuffle=True, seed=0, device="cpu")
    saved = loader.state_dict()

    loader.load_state_dict({**saved, "epoch": 2**64 - 1})

    assert loader.state_dict()["epoch"] == 2**64 - 1
    with pytest.raises(StateError, match="epoch = 18446744073709551616"):
        loader.load_state_dict({**saved, "epoch": 2**64})


@pytest.mark.parametrize("name", ["version", "epoch", "position", "seed", "records"])
def test_a_state_with_an_integer_of_too_many_digits_is_refused_as_any_other(name):
    loader = gl.Loader(gl.arrays(x=np.arange(9)), batch_size=2, device="cpu")

    with pytest.raises(StateError):
        loader.load_state_dict({**loader.state_dict(), name: 10**5000})


@pytest.mark.parametrize("name", ["ops", "source", "seed", "epoch", "position"])
def test_a_state_without_one_of_its_entries_is_refused(name):
    with gl.Loader(gl.arrays(x=np.arange(23)), batch_size=3, device="cpu") as loader:
        state = loader.state_dict()
        del state[name]
        with pytest.raises(StateError, match="None"):
            loader.load_state_dict(state)


if __name__ == "__main__":
    write_states(GOLDEN / "states")


SOLARIZE = [
    2,
    4,
    6,
    8,
    16,
    18,
    20,
    22,
    24,
    26,
    28,
]  # where 255 times the float32 level is a whole number and a millionth


@pytest.mark.parametrize("magnitude", range(31))
def test_policies_whose_threshold_changed_have_another_meaning_and_the_others_do_not(magnitude):
    op = gl.ops.RandAugment(1, magnitude)
    assert [op.traits.meaning, gl.ops.Sometimes(0.5, [op]).inner[0].traits.meaning] == [
        2 if magnitude in SOLARIZE else 1
    ] * 2
    assert ("meaning=2" in state.canonical_text(gl.ops.OneOf([op]))) == (magnitude in SOLARIZE)


@pytest.mark.parametrize("name", ["cls", "label"])
@pytest.mark.parametrize("op", [gl.ops.MixUp(), gl.ops.CutMix(0.5), gl.ops.OneOf([gl.ops.MixUp(), gl.ops.CutMix()])],
                         ids=lambda op: type(op).__name__)  # fmt: skip
def test_a_state_of_labels_that_were_left_when_it_was_saved_is_refused(name, op):
    images = gl.arrays(image=np.zeros((8, 4, 4, 3), np.uint8), **{name: np.arange(8)})
    chain = [gl.ops.OneHot(8, on=name), op]
    loader = gl.Loader(images, 2, ops=chain, device="cpu")
    saved = {
        **loader.state_dict(),
        "ops": [state.canonical_text(op) for op in chain],
    }  # as it was written then

    if name == "label":  # which was mixed then, too
        loader.load_state_dict(saved)
    else:
        with pytest.raises(
            StateError, match=rf"saved when {type(op).__name__}\(.*\) had another meaning"
        ):
            loader.load_state_dict(saved)
    loader.load_state_dict(loader.state_dict())
    behind = gl.Loader(loader.replace(ops=chain[:1]).to_source(), 2, ops=chain[1:], device="cpu")
    behind.load_state_dict(behind.state_dict())
    named = loader.replace(ops=[chain[0], replace(op, on=("image", name))])
    assert "meaning" not in str(named.state_dict()["ops"])

"""State: the position of a run as a small JSON, and the check that a saved one belongs to this
loader.

A state is the position behind the batches that were *delivered*, not behind those that were read
ahead, so a run that was killed goes on with the next batch. It holds a position in the global
order, so it fits any number of shards and any batch size; everything else that decides about the
content of a batch must be the same, and is compared.

    {"version": 2, "epoch": 3, "step": 120, "position": 30720, "source": "5a6bf0a9cdd6de1d",
     "records": 50000, "seed": 7, "shuffle": "True", "ops": ["RandomCrop(height=32, width=32,
     pad=4)", "RandomFlip()"]}

Decode      Where ops decode images, ``"decode"`` says where the run has them decoded: ``"host"`` or
            ``"device"``, with pixels that differ a little. It is not compared: a loader that
            chooses goes on there, another one says so.
Versions    2: the text of an op has the arguments that differ from their defaults. So an op may get
            another argument in a later version: if its default changes nothing, states saved before
            are still accepted. The fingerprint of a source depends on the data. Version 1 had the
            ``repr`` of ops, and names and sizes for sources; it was never released.
Golden      states of each version lie in tests/golden/states for ever: this module must load all of
            them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gpuload.errors import StateError, short_repr
from gpuload.ops.base import Op
from gpuload.order import Plan, Position

VERSION = 2
DECODE = "decode"  # the key
MAX_CHARACTERS = 10_000  # of a value in an error
MEANING = re.compile(r"(, )?meaning=\d+")  # of an op, in its text
LONG = 160  # characters; of a longer text a state holds the beginning and a digest
IDENTITY = {
    "source": "the source's files, lengths, fields, classes or bytes",
    "records": "the number of records",
    "seed": "the seed",
    "shuffle": "the kind of shuffle",
    "ops": "the ops",
}


def identity(
    fingerprint: str,
    ops: Sequence[object],
    plan: Plan,
    marks: str = "",
    changed: Collection[int] = (),
) -> dict[str, Any]:
    """Return the values that must be the same for a state to be taken up again.

    Args:
        fingerprint: of the source.
        ops: the ops.
        plan: the order.
        marks: of fields that ops act on for that reason, ``"boxes='xyxy'"``; "" where there are
            none.
        changed: the places of ops that have another meaning than in earlier versions, and only for
            some fields, so that the op itself does not say it.
    """
    texts = [canonical_text(op) for op in ops]
    for place in changed:
        texts[place] = _with_meaning(texts[place])
    if marks:
        texts.append(f"mark({marks})")
    return {
        "source": fingerprint,
        "records": plan.length,
        "seed": plan.seed,
        "shuffle": canonical_text(plan.shuffle),
        "ops": list(map(_shortened, texts)),
    }


def save(
    plan: Plan, position: Position, identity_fields: Mapping[str, Any], decode: str = ""
) -> dict[str, Any]:
    """Return the state in which a position is the next to be delivered.

    Args:
        plan: the order.
        position: of the next batch.
        identity_fields: of ``identity``.
        decode: where images are decoded, ``"host"`` or ``"device"``; "" where none are.
    """
    position = plan.normalize(position)
    return {
        "version": VERSION,
        "epoch": position.epoch,
        "step": position.step,
        "position": position.offset,
        **identity_fields,
        **({DECODE: decode} if decode else {}),
    }


def place_of_run(state: Mapping[str, Any]) -> str:
    """Return where the run of a state has images decoded, ``"host"`` or ``"device"``; "" where it
    does not say.

    Raises:
        StateError: the state names another place.
    """
    place = _plain(state.get(DECODE, ""))
    if place in ("", "host", "device"):
        return str(place)
    raise StateError(
        f"{DECODE} = {short_repr(place)}",
        cause="images are decoded on the host or on the device",
        remedy="pass the result of state_dict() unchanged",
    )


def load(state: object, plan: Plan, identity_fields: Mapping[str, Any]) -> Position:
    """Return the position at which a state goes on under this plan.

    Raises:
        StateError: it is no state, of another version, or of other data, seed or ops; the message
            shows the difference.
    """
    fields = _of_this_version(state)
    differing = [name for name in IDENTITY if fields.get(name) != identity_fields[name]]
    if differing == ["ops"] and (ops := _changed_ops(fields.get("ops"), identity_fields["ops"])):
        raise StateError(
            f"the state was saved when {MEANING.sub('', ' and '.join(ops))} had another meaning",
            cause="the op makes other pixels or labels of the same records since then; its "
            "docstring has the formula of today",
            remedy="end that run with the version of gpuload that it began with, or begin a new "
            "run",
        )
    if differing:
        lines = "; ".join(
            f"{IDENTITY[name]}: saved {short_repr(fields.get(name), MAX_CHARACTERS)}, here "
            f"{identity_fields[name]!r}"
            for name in differing
        )
        raise StateError(
            "the state belongs to another run",
            cause=lines,
            remedy="load it into a loader of the same data, ops, shuffle and seed; batch size and "
            "shards may differ",
        )
    return plan.start_at(
        _count(fields, "epoch", 2**64 - 1), _count(fields, "position", plan.length)
    )


def canonical_text(value: object) -> str:
    """Return a text of a value that is the same in every process, and for equal values the same.

    The text of a dataclass (ops, `Blocks`) has the arguments that differ from their defaults, and
    the ``meaning`` of an op from 2 on. The text of a function has its module and its name, not its
    code; that of an object of any other kind has the class.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(canonical_text, value))})"
    if isinstance(value, Mapping):
        items = [f"{canonical_text(key)}: {canonical_text(item)}" for key, item in value.items()]
        return "{" + ", ".join(sorted(items)) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(canonical_text, value))) + "}"
    if isinstance(value, np.dtype):
        return repr(value.str)
    if isinstance(value, np.ndarray):
        if not value.dtype.hasobject:
            raw = value.tobytes()
        else:
            raw = canonical_text(value.tolist()).encode()
        return f"array({value.dtype.str}, {value.shape}, {hashlib.sha256(raw).hexdigest()[:16]})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({', '.join(_argument_texts(value))})"
    owner: Any = type(value)
    if hasattr(value, "__qualname__"):
        owner = value
    # Methods of built-in types, str.upper say, have no module.
    module = getattr(owner, "__module__", None) or "builtins"
    return f"{module}.{owner.__qualname__}"


def _argument_texts(value: Any) -> list[str]:
    """Return the arguments of a dataclass that differ from their defaults, as texts."""
    fields = [field.name for field in dataclasses.fields(value) if field.init]
    arguments, defaults = {name: getattr(value, name) for name in fields}, _defaults(value)
    texts = [
        f"{name}={canonical_text(argument)}"
        for name, argument in arguments.items()
        if name not in defaults or not _is_default(argument, defaults[name])
    ]
    if isinstance(value, Op) and value.traits.meaning > 1:
        texts.append(f"meaning={value.traits.meaning}")
    return texts


def _with_meaning(text: str) -> str:
    """Return the text of an op with ``meaning=2``, as `canonical_text` writes it."""
    separator = "" if text.endswith("()") else ", "
    return f"{text[:-1]}{separator}meaning=2)"


def _defaults(instance: Any) -> dict[str, object]:
    """Return the arguments of a dataclass that have defaults."""
    defaults = {}
    for field in dataclasses.fields(instance):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
    return defaults


def _is_default(value: object, default: object) -> bool:
    """Return True if a value is the default; ops keep the default 0 of a number as 0.0."""
    if isinstance(value, (int, float)) and isinstance(default, (int, float)):
        return value == default
    if isinstance(value, tuple) and isinstance(default, tuple):
        return len(value) == len(default) and all(map(_is_default, value, default))
    return canonical_text(value) == canonical_text(default)


def _changed_ops(saved_ops: object, ops: Sequence[str]) -> list[str]:
    """Return the ops with other meanings than in a saved state, where nothing else differs: their
    texts of today."""
    if not isinstance(saved_ops, list) or [str(text) for text in saved_ops] != [
        MEANING.sub("", text) for text in ops
    ]:
        return []
    return [text for before, text in zip(saved_ops, ops, strict=True) if before != text]


def _shortened(text: str) -> str:
    if len(text) <= LONG:
        return text
    return f"{text[:LONG]}... sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _of_this_version(state: object) -> dict[str, Any]:
    if not isinstance(state, Mapping):
        raise StateError(
            f"the state is a {type(state).__name__}",
            cause="a state is the dict that loader.state_dict() returned",
            remedy="read a state that was saved as JSON first: "
            "loader.load_state_dict(json.load(open(path)))",
        )
    plain = {str(name): _plain(value) for name, value in state.items()}
    if plain.get("version") == VERSION:
        return plain
    raise StateError(
        f"no state of this version: {short_repr(plain.get('version'))}",
        cause=f"this is version {VERSION}, as loader.state_dict() returns it",
        remedy="pass the whole result of state_dict()",
    )


def _plain(value: object) -> object:
    """Return a value as JSON has it: a checkpoint may turn numbers and lists into NumPy values and
    tuples."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, tuple):
        return list(value)
    return value


def _count(state: Mapping[str, Any], name: str, maximum: int) -> int:
    """Return an entry of a state; raises ``StateError`` if it is no whole number from 0 to
    ``maximum``."""
    value = state.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum:
        return value
    raise StateError(
        f"{name} = {short_repr(value)}",
        cause=f"it is a whole number from 0 to {maximum}",
        remedy="pass the result of state_dict() unchanged",
    )

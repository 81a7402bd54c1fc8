"""RandAugment, TrivialAugmentWide, AutoAugment, AugMix and timm's RandAugment: operations drawn for
each image.

Meaning  Pillow's, as torchvision's references and timm apply them to images of Pillow: every value
         is that of Pillow for the same operations and magnitudes (`kernels.pillow`,
         `kernels.colour_pillow`). torchvision's functions on tensors differ from these at borders
         and by rounding.
Draw     ``op``, int32 ``[N, K]``: which of `OPERATIONS` each layer applies; ``level``, float32
         ``[N, K]``: how strongly, with its sign. The draws are gpuload's own, with the
         probabilities of the original.
Levels   torchvision's are its magnitudes: factors minus 1, degrees, parts, pixels, bits, thresholds
         from 0 to 1. timm's go from 0 to 10. Solarize's thresholds are those of
         ``torchvision.transforms``, 255 to 0. Its ``v2`` multiplies a float32 part of 1 by 255,
         which is a millionth too large at 11 of 31 steps: there it leaves the pixels that are at
         the threshold as they are.
Devices  The operations are drawn for each image, so images are done one by one: on a CPU as edits
         (`kernels.edits`) in one call of the core for a batch, on a GPU by three kernels for each
         layer.
Others   Keras' RandAugment has other ranges. Albumentations has no policies, Kornia's are on
         tensors, DALI's (its ``auto_aug``) draw by the place in the batch.
Source   torchvision 0.28, ``transforms/v2/_auto_augment.py``; timm 1.0, ``data/auto_augment.py``;
         Cubuk et al., "RandAugment" (2019) and "AutoAugment" (CVPR 2019); Mueller and Hutter,
         "TrivialAugment" (ICCV 2021)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload import core, device
from gpuload.errors import SpecError
from gpuload.kernels import blur_pillow, colour, colour_pillow, edits, edits_cuda, pillow, tables
from gpuload.kernels.edits import Edits
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, Op, Sizes
from gpuload.ops.colour.adjust import RGB_OR_GRAY
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Geometric, Traits, once
from gpuload.spec import Field

Levels = NDArray[np.float32]
Array = NDArray[Any]
Values = NDArray[np.float64]
OPERATIONS = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
    "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert", "SolarizeAdd",
    "Desaturate", "GaussianBlur",
)  # fmt: skip
SIGNED = frozenset(OPERATIONS[1:10])  # their level has a sign
NO_LEVEL = frozenset(("Identity", "AutoContrast", "Equalize", "Invert"))
HAS_SIGN = np.array([name in SIGNED for name in OPERATIONS])
IS_SHIFT = np.array([name.startswith("Translate") for name in OPERATIONS])
TRANSLATE_X = OPERATIONS.index("TranslateX")
INTERPOLATIONS = ("nearest", "linear", "cubic")
WIDEST_SHIFT = 150 / 331  # of the image's side, RandAugment's and AutoAugment's
TIMM_LARGEST = 10.0  # timm's largest level, if mmax is not given
MOST_BINS = 1000  # of magnitudes; a draw makes a table of them
THRESHOLD_DIGITS = (
    4  # of Solarize's threshold: with MOST_BINS others lie 0.001 from a whole number, or more
)
MOST_DEPTH = 3  # operations of a chain of AugMix
TIMM_SHIFT = 0.45  # of the image's side


@dataclass(frozen=True)
class _Policy(Op):
    """The base of all policies: they act on uint8 images of 1 or 3 channels and keep their size."""

    interpolation: str = field(default="nearest", kw_only=True)
    fill: float | tuple[float, ...] = field(default=0.0, kw_only=True)

    @property
    @once
    def traits(self) -> Traits:
        """It moves pixels, and does not say where points go."""
        return Traits(geometric=Geometric(masks=self._refuse_masks))

    def forms(self, field: Field) -> Forms:
        """It is edits."""
        return Forms(edits=self._edits)

    def field_after(self, field: Field) -> Field:
        """The shape and the dtype stay."""
        shape = images.image(self, field)
        if field.dtype != np.uint8 or shape[2] not in RGB_OR_GRAY:
            remedy = f"put {type(self).__name__} behind gl.ops.Decode() and before what changes the dtype"
            if field.dtype == np.uint8:
                remedy = images.without_alpha(field, remedy)
            raise SpecError(
                f"{self}: field {field.name!r} has dtype {field.dtype} and shape {field.shape}",
                cause="policies act on uint8 images of 1 or 3 channels, as Pillow has them",
                remedy=remedy,
            )
        return field.with_(shape=shape, axes="HWC")

    def _refuse_masks(self, masks: tuple[str, ...], targets: tuple[str, ...]) -> Op:
        """Refuse masks: the operations change colours, too, and the labels of a mask are no
        colours; as in torchvision.

        Raises:
            SpecError: always.
        """
        raise SpecError(
            f"{self} beside the mask {masks[0]!r}",
            cause="its operations change colours, too, and would change labels",
            remedy="move both by gl.ops.RandomFlip, Rotate or Affine, and change colours by gl.ops.ColorJitter",
        )

    def rule(self, name: str) -> LevelRule:
        """Return the rule for the level of an operation, one of `OPERATIONS`."""
        raise NotImplementedError

    @cached_property
    def _rules(self) -> Values:
        """The rules of all operations as the core takes them, float64 ``[M, 5]``."""
        rules = [(_code(name), *self.rule(name), PLACES.get(name, 0)) for name in OPERATIONS]
        return np.array(
            [(code, FORMS.index(form), *numbers) for code, form, *numbers in rules], np.float64
        )

    def filter_of(self, by_cubic: int) -> str:
        """Return the interpolation of an operation; ``by_cubic`` is drawn for it."""
        return self.interpolation

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image behind its operations."""
        size = np.array([x.shape[:2]], np.int32)
        by_cubic = draw.get("cubic", np.zeros_like(draw["op"]))
        for number, level, cubic in zip(
            draw["op"].tolist(), draw["level"], by_cubic.tolist(), strict=True
        ):
            name = OPERATIONS[number]
            value = values_of(self.rule(name), np.array([level], np.float64), size)[0].item()
            x = operate(xp, x, name, value, self.filter_of(cubic), self.fill)
        return x

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch, on a GPU as edits: the first operations of all images together,
        then the second."""
        result = edits_cuda.edit_batch(
            xp, x, lambda size, channels: self._edits(draw, size, channels)
        )
        if result is None:
            return super().array_batch(xp, x, draw)
        return result

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return an edit for each operation."""
        return self.operations_as_edits(draw, size, channels)

    def operations_as_edits(self, draw: Draw, size: Sizes, channels: int) -> Edits:
        """Return edits for the operations ``op``, ``level`` and ``cubic``, ``[N, K]``, of
        images."""
        numbers, levels = draw["op"], draw["level"]
        filters = (edits.FILTERS.index(self.filter_of(by_cubic)) for by_cubic in (0, 1))
        if isinstance(self.fill, tuple):
            colors = self.fill * 3
        else:
            colors = (self.fill,) * 3
        moves = np.array([*filters, *colors[:3]], np.float64)
        slots = np.empty((*numbers.shape, 2 + edits.TABLE_NUMBERS))  # as long as the longest edit
        cubic = draw.get("cubic", NO_CUBIC)
        if core.native is None:
            self._write_slots(slots, numbers, levels, cubic, size, moves)
        else:
            numbers, cubic, size = (
                np.ascontiguousarray(array, np.int32) for array in (numbers, cubic, size)
            )
            levels = np.ascontiguousarray(levels, np.float32)
            rules = core.native.PolicyRules(self._rules, moves)
            rules.write_edits(numbers, levels, cubic, size, slots)
        return slots.reshape(len(slots), numbers.shape[1] * slots.shape[2])

    def _write_slots(
        self, out: Edits, numbers: Array, levels: Array, cubic: Array, size: Sizes, moves: Values
    ) -> None:  # fmt: skip
        """Write operations as edits, in NumPy: the same as `core.face.PolicyRules`."""
        slots = out.reshape(-1, out.shape[2])
        # Also of slots that are skipped: the core finds the next edit of an image by this length.
        slots[:, 0], slots[:, 1], slots[:, 2:] = edits.SKIP, edits.TABLE_NUMBERS, 0
        for number in np.unique(numbers).tolist():
            name, places = OPERATIONS[number], np.flatnonzero(numbers == number)
            if name == "Identity":
                continue
            sizes = size[places // numbers.shape[1]]
            values = values_of(
                self.rule(name), levels.reshape(-1)[places].astype(np.float64), sizes
            )
            slots[places, 0] = code = _code(name)
            if code == edits.TABLE:
                slots[places, 2:] = [_table(name, value) for value in values.tolist()]
            elif code == edits.PIL_BLUR:
                slots[places, 2:5] = np.stack(blur_pillow.boxes(values), axis=1)
            elif code == edits.PIL_AFFINE:
                if cubic.size == 0:
                    slots[places, 2] = moves[0]
                else:
                    slots[places, 2] = moves[cubic.reshape(-1)[places]]
                slots[places, 3:9] = (1, 0, 0, 0, 1, 0)
                if name == "Rotate":
                    slots[places, 3:9] = pillow.rotations(values, sizes)
                slots[places, 9:12] = moves[2:]
            else:
                slots[places, 2] = values
            if name in MATRICES:
                slots[places, 3 + PLACES[name]] = values
            if name == "Rotate":
                are_turns = pillow.are_quarters(values, sizes)
                turns, quarters = places[are_turns], np.mod(values[are_turns], 360) // 90
                slots[turns, 2:] = 0
                slots[turns, 0], slots[turns, 2] = (
                    np.where(quarters == 0, edits.SKIP, edits.PIL_TURN),
                    quarters,
                )


@dataclass(frozen=True)
class _Torchvision(_Policy):
    """The base of torchvision's policies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.choice(self, "interpolation", self.interpolation, INTERPOLATIONS)
        arguments.keep(self, fill=_checked_fill(self, self.fill))

    @property
    @once
    def traits(self) -> Traits:
        """Saved states hold which thresholds of Solarize they mean."""
        return super().traits._replace(meaning=self._meaning())

    def _meaning(self) -> int:
        """Return 2 where a threshold of Solarize was another one before `THRESHOLD_DIGITS`."""
        levels = self._solarize_levels().astype(np.float64)
        thresholds = values_of(self.rule("Solarize"), levels, np.zeros((levels.size, 2), np.int32))
        if (thresholds == np.ceil(255.0 * levels)).all():
            return 1
        return 2

    def _solarize_levels(self) -> Levels:
        """Return the levels of Solarize that may be drawn."""
        raise NotImplementedError

    def rule(self, name: str) -> LevelRule:
        """Return how a level becomes the number of an operation."""
        if name in ("TranslateX", "TranslateY"):
            # The matrix leads from the result to the image: an image that moves right is read
            # further left.
            return LevelRule("shift")
        if name in ("ShearX", "ShearY", "Solarize"):
            return LevelRule({"ShearX": "shear x", "ShearY": "shear y"}.get(name, "threshold"))
        if name in SIGNED and name != "Rotate":
            return LevelRule("factor")
        return LevelRule("level")


def _shear_x(level: float) -> float:
    return math.tan(_shear_angle(level))


def _shear_y(level: float) -> float:
    angle = _shear_angle(level)
    return math.sin(angle) / math.cos(angle)


def _shear_angle(level: float) -> float:
    # torchvision goes by degrees, and rounds at each step: Pillow's pixels depend on the last bit
    # of the matrix.
    return math.radians(math.degrees(math.atan(level)))


def _threshold(level: float) -> float:
    # A whole number of the scale comes a millionth too large from float32, and would be the next
    # level.
    return math.ceil(round(255.0 * level, THRESHOLD_DIGITS))


@dataclass(frozen=True)
class RandAugment(_Torchvision):
    """Apply some operations, drawn for each image with replacement, at one magnitude; uint8, HWC.

    As ``torchvision.transforms.RandAugment`` on images of Pillow: 14 operations, one of which does
    nothing. An operation's direction is drawn where it has one. Its magnitude is step ``magnitude``
    of ``num_magnitude_bins`` steps, of which step 0 does nothing. timm's RandAugment is
    ``TimmAugment``. Keras' has other operations and ranges; DALI's draws by the place in the batch;
    Albumentations has none.

    Example:
        ``gl.ops.RandAugment(num_ops=2, magnitude=9)``

    Args:
        num_ops: operations for each image, one after the other.
        magnitude: from 0 to ``num_magnitude_bins - 1``.
        num_magnitude_bins: the number of steps of each operation's range.
        interpolation: ``"nearest"``, ``"linear"`` or ``"cubic"``, of the operations that move
            pixels.
        fill: the value of pixels from outside of the image: a number, or one for each channel.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31

    def __post_init__(self) -> None:
        super().__post_init__()
        bins = arguments.whole(
            self, "num_magnitude_bins", self.num_magnitude_bins, least=2, largest=MOST_BINS
        )
        magnitude = arguments.whole(self, "magnitude", self.magnitude, least=0)
        if magnitude >= bins:
            raise arguments.refuse(
                self, "magnitude", magnitude, f"less than num_magnitude_bins, which is {bins}"
            )
        num_ops = arguments.whole(self, "num_ops", self.num_ops)
        if num_ops > len(OPERATIONS):
            raise arguments.refuse(self, "num_ops", num_ops, f"at most {len(OPERATIONS)}")
        arguments.keep(self, num_ops=num_ops, magnitude=magnitude, num_magnitude_bins=bins)

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]  # a constant of other ops
        """Two for each layer."""
        return 2 * self.num_ops

    def _solarize_levels(self) -> Levels:
        return linspace(1.0, 0.0, self.num_magnitude_bins)[[self.magnitude]]

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``op`` and ``level``; see the module."""
        number = np.floor(u[:, : self.num_ops] * 14).astype(np.int32)
        index = np.full(number.shape, self.magnitude)
        levels = _levels(number, index, self.num_magnitude_bins, size, _ranges)
        return {"op": number, "level": _with_sign(levels, number, u[:, self.num_ops :])}


@dataclass(frozen=True)
class TrivialAugmentWide(_Torchvision):
    """Apply one operation to each image; the operation and its magnitude are drawn; uint8, HWC.

    As ``torchvision.transforms.TrivialAugmentWide`` on images of Pillow.
    DALI's draws by the place in the batch; timm, Keras and Albumentations have none.

    Example:
        ``gl.ops.TrivialAugmentWide()``

    Args:
        num_magnitude_bins: the number of steps of each operation's range.
        interpolation: ``"nearest"``, ``"linear"`` or ``"cubic"``, of the operations that move
            pixels.
        fill: the value of pixels from outside of the image: a number, or one for each channel.
    """

    num_magnitude_bins: int = 31

    num_uniforms: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        bins = arguments.whole(
            self, "num_magnitude_bins", self.num_magnitude_bins, least=2, largest=MOST_BINS
        )
        arguments.keep(self, num_magnitude_bins=bins)

    def _solarize_levels(self) -> Levels:
        return linspace(1.0, 0.0, self.num_magnitude_bins)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``op`` and ``level``; see the module."""
        number = np.floor(u[:, :1] * 14).astype(np.int32)
        index = np.floor(u[:, 1:2] * self.num_magnitude_bins).astype(np.int64)
        levels = _levels(number, index, self.num_magnitude_bins, size, _wide_ranges)
        return {"op": number, "level": _with_sign(levels, number, u[:, 2:])}


@dataclass(frozen=True)
class AutoAugment(_Torchvision):
    """Apply one of 25 learned pairs of operations to each image, each of the two with its
    probability; uint8, HWC.

    As ``torchvision.transforms.AutoAugment`` on images of Pillow. timm's is
    ``TimmAugment("original")``, with other ranges; DALI's draws by the place in the batch; Keras
    and Albumentations have none.

    Example:
        ``gl.ops.AutoAugment("imagenet")``

    Args:
        policy: ``"imagenet"``, ``"cifar10"`` or ``"svhn"``.
        interpolation: ``"nearest"``, ``"linear"`` or ``"cubic"``, of the operations that move
            pixels.
        fill: the value of pixels from outside of the image: a number, or one for each channel.
    """

    policy: str = "imagenet"

    num_uniforms: ClassVar[int] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.policy, str) and self.policy in TIMM_POLICIES:
            demand, remedy = (
                "a policy of torchvision's",
                f"write gl.ops.TimmAugment({self.policy!r}), which has timm's",
            )
            raise arguments.refuse(self, "policy", self.policy, demand, remedy)
        arguments.choice(self, "policy", self.policy, AUTO_AUGMENT)

    def _solarize_levels(self) -> Levels:
        numbers, _, indices = _policy(self.policy)
        steps: Levels = linspace(1.0, 0.0, 10)[indices[numbers == OPERATIONS.index("Solarize")]]
        return steps

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``op`` and ``level``; see the module."""
        numbers, probabilities, indices = _policy(self.policy)
        pair = np.floor(u[:, 0] * len(numbers)).astype(np.int64)
        # As in torchvision, with <=: a probability of 1 always applies.
        number = np.where(u[:, 1:3] <= probabilities[pair], numbers[pair], 0).astype(np.int32)
        levels = _levels(number, indices[pair], 10, size, _ranges)
        return {"op": number, "level": _with_sign(levels, number, u[:, 3:])}


@dataclass(frozen=True)
class _Timm(_Policy):
    """The base of timm's policies."""

    interpolation: str = field(default="random", kw_only=True)
    fill: float | tuple[float, ...] = field(default=128.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.choice(self, "interpolation", self.interpolation, (*INTERPOLATIONS, "random"))
        arguments.keep(self, fill=_checked_fill(self, self.fill))

    @property
    def increases(self) -> bool:
        """True if all operations become stronger with the level."""
        return True

    def rule(self, name: str) -> LevelRule:
        """Return how a level becomes the number of an operation."""
        if name in TIMM_RULES:
            return TIMM_RULES[name]
        if name in SIGNED and self.increases:
            return LevelRule("part about 1", 0.9, 0.1)
        if name in SIGNED:
            return LevelRule("part as factor", 1.8, 0.1)
        if name == "Posterize":
            if self.increases:
                return LevelRule("bits", 4, -1)
            return LevelRule("bits", 0, 1)
        if name == "Solarize":
            if self.increases:
                first, second = (256, -1)
            else:
                first, second = (0, 1)
            return LevelRule("part of levels", first, second)
        return LevelRule("addend")

    def filter_of(self, by_cubic: int) -> str:
        """Return the interpolation of an operation; ``by_cubic`` is drawn for it."""
        if by_cubic:
            return "cubic"
        if self.interpolation == "random":
            return "linear"
        return self.interpolation

    def by_cubic(self, u: NDArray[np.float64]) -> NDArray[np.int32]:
        """Return 1 where pixels are taken by cubic interpolation, else 0."""
        if self.interpolation == "random":
            is_cubic = u < 0.5
        else:
            is_cubic = np.full(u.shape, self.interpolation == "cubic")
        return is_cubic.astype(np.int32)


@dataclass(frozen=True)
class TimmAugment(_Timm):
    """Apply timm's RandAugment or AutoAugment, by timm's string ``"rand-m9-mstd0.5-inc1"``; uint8,
    HWC.

    As timm's ``--aa``, on images of Pillow. ``"v0"``, ``"v0r"``, ``"original"``, ``"originalr"``
    are AutoAugment's policies for ImageNet: one of their 25 pairs of operations is drawn; ``"3a"``
    draws one of DeiT III's three operations; ``-mstd0.5`` is the standard deviation of their
    magnitudes.

    ``"rand"`` is RandAugment. The parts of its string, in any order: ``m`` magnitude (10), ``n``
    layers (2), ``p`` probability of each (0.5), ``mstd`` standard deviation of the magnitude (0;
    more than 100: uniform from 0 to the magnitude), ``mmax`` the largest magnitude (10), ``inc1``
    operations that become stronger with it; ``t3a``, ``t3aw`` or ``tweights`` another set of
    operations, which do so in any case: DeiT III's three (solarize, desaturate, blur), these and
    others by weights, or all by weights. Those with weights are not repeated. torchvision's are
    ``RandAugment`` and ``AutoAugment``; Keras' RandAugment has other operations and ranges, DALI's
    draws by the place in the batch, and Albumentations has none.

    Example:
        ``gl.ops.TimmAugment("rand-m9-mstd0.5-inc1")``

    Args:
        config: the string.
        interpolation: ``"linear"``, ``"cubic"`` or ``"nearest"``; ``"random"`` draws one of the
            first two for each operation, as timm's training script does by default.
        fill: the value of pixels from outside of the image: a number, or one for each channel.
            timm's training scripts have the mean of the data set, ``(124, 116, 104)`` for ImageNet.
    """

    config: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.config, str):
            raise self._refusal()
        self._parts  # noqa: B018  # raises the error of a string that is none

    def _refusal(self) -> SpecError:
        """Return the error of a string that names no policy; that of AugMix has an op of its
        own."""
        remedy = "write gl.ops.TimmAugment('rand-m9-mstd0.5-inc1'), say"
        if isinstance(self.config, str) and self.config.startswith("augmix"):
            numbers = dict(re.findall(r"-([mwd])(\d+)", self.config))
            if numbers.get("d", "0") > "0":
                depth = f", depth={numbers['d']}"
            else:
                depth = ""
            remedy = f"write gl.ops.AugMix(severity={numbers.get('m', 3)}, width={numbers.get('w', 3)}{depth})"
        return arguments.refuse(self, "config", self.config, _TIMM_FORM, remedy)

    @property
    def _policy(self) -> str:
        """The name of a policy of pairs; "" for RandAugment."""
        kind = self.config.partition("-")[0]
        return kind if kind in TIMM_POLICIES else ""

    @cached_property
    def _parts(self) -> dict[str, float]:
        """The numbers in the string by name."""
        kind, *texts = self.config.split("-")
        if self._policy:
            return self._parts_of_policy(texts)
        parts = {"m": TIMM_LARGEST, "n": 2.0, "p": 0.5}
        parts |= {"mstd": 0.0, "mmax": TIMM_LARGEST, "inc": 0.0}
        sets = [text.removeprefix("t") for text in texts if text.startswith("t")]
        texts = [text for text in texts if not text.startswith("t")]
        matches = [
            re.fullmatch(r"(mstd|mmax|inc|m|n|p)(\d+(?:\.\d+)?|inf)", text) for text in texts
        ]
        if kind != "rand" or None in matches or not set(sets) <= set(TIMM_SETS) or len(sets) > 1:
            raise self._refusal()
        parts |= {match[1]: float(match[2]) for match in matches if match}
        weights = [choices for choices in map(TIMM_SETS.get, sets) if isinstance(choices, dict)]
        is_long = any(parts["n"] > len(choices) for choices in weights)
        if is_long or not _are_in_range(parts):
            raise self._refusal()
        return parts

    def _parts_of_policy(self, texts: Sequence[str]) -> dict[str, float]:
        """Return the only number of a policy of pairs, ``mstd``."""
        deviations = [re.fullmatch(r"mstd(\d+(?:\.\d+)?)", text) for text in texts]
        if None in deviations or len(texts) > 1:
            raise self._refusal()
        return {"mstd": max((float(match[1]) for match in deviations if match), default=0.0)}

    @property
    def _choices(self) -> tuple[str, ...] | dict[str, float]:
        """The operations; where they have weights, an image does not get one of them twice."""
        if self._policy:
            return tuple(
                OPERATIONS[number]
                for number in np.unique(_policy(TIMM_POLICIES[self._policy][0])[0])
            )
        sets = [text.removeprefix("t") for text in self.config.split("-") if text.startswith("t")]
        if sets:
            return TIMM_SETS[sets[0]]
        return TIMM_OPERATIONS

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]  # a constant of other ops
        """Six for each layer; of a policy one for the pair and six for each of its operations."""
        if self._policy:
            return 1 + 6 * int(_policy(TIMM_POLICIES[self._policy][0])[0].shape[1])
        return 6 * int(self._parts["n"])

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``op``, ``level`` and ``cubic``, int32 ``[N, K]``: 1 where pixels are taken by
        cubic interpolation."""
        parts = self._parts
        if self._policy:
            return self._draw_pairs(u, parts["mstd"])
        choice, applied, normal, turn, sign, cubic = np.split(u, 6, axis=1)
        choices = self._choices
        numbers = np.array([OPERATIONS.index(name) for name in choices], np.int32)
        if isinstance(choices, dict):
            number = numbers[_places(choice, np.array(list(choices.values())))]
        else:
            number = numbers[np.floor(choice * len(numbers)).astype(np.int64)]
        number = np.where(applied <= parts["p"], number, 0).astype(np.int32)
        level = np.full(number.shape, parts["m"])
        if parts["mstd"] > 100:
            level = level * normal
        elif parts["mstd"]:
            level += parts["mstd"] * _normal(normal, turn)
        level = level.clip(0, parts["mmax"]).astype(np.float32)
        return {
            "op": number,
            "level": np.where(sign > 0.5, -level, level),
            "cubic": self.by_cubic(cubic),
        }

    def _draw_pairs(self, u: NDArray[np.float64], deviation: float) -> Draw:
        """Return the same of a policy of pairs; the level of GaussianBlur is its radius there,
        pixels."""
        numbers, probabilities, magnitudes = _policy(TIMM_POLICIES[self._policy][0])
        pair = np.floor(u[:, 0] * len(numbers)).astype(np.int64)
        applied, normal, turn, sign, cubic, radius = np.split(u[:, 1:], 6, axis=1)
        number = np.where(applied <= probabilities[pair], numbers[pair], 0).astype(np.int32)
        level = (magnitudes[pair] + deviation * _normal(normal, turn)).clip(0, TIMM_LARGEST)
        radii = 0.1 + radius * (2 * level / TIMM_LARGEST - 0.1)
        level = np.where(
            number == OPERATIONS.index("GaussianBlur"), radii, np.where(sign > 0.5, -level, level)
        )
        return {"op": number, "level": level.astype(np.float32), "cubic": self.by_cubic(cubic)}

    def rule(self, name: str) -> LevelRule:
        """Return how a level becomes the number of an operation."""
        if self._policy and name == "GaussianBlur":
            return LevelRule("level")
        if self._policy and name == "Posterize":  # of which timm has three forms
            return LevelRule("bits", *TIMM_POLICIES[self._policy][1:])
        return super().rule(name)

    @property
    def increases(self) -> bool:
        """Return True if the strength of an operation grows with its level."""
        return not self._policy and (
            bool(self._parts["inc"]) or self._choices is not TIMM_OPERATIONS
        )


@dataclass(frozen=True)
class AugMix(_Timm):
    """Mix each image with chains of operations on it; uint8, HWC.

    As timm's ``augmix-m3-w3`` (``AugMixAugment``) on images of Pillow, with alpha 1: ``width``
    chains of one to three operations, each at a level from 0 to ``severity``, are added up with
    random weights (Dirichlet), and the image is blended with the sum by a uniform share.
    torchvision's AugMix works on tensors, with ranges of its own. Keras' applies the same chains to
    all images of a batch; DALI and Albumentations have none.

    Example:
        ``gl.ops.AugMix(severity=3)``

    Args:
        severity: the largest level, from 1 to 10.
        width: chains.
        depth: operations of each chain; drawn from 1 to 3 for each if left out.
        interpolation: ``"linear"``, ``"cubic"`` or ``"nearest"``; ``"random"`` draws one of the
            first two for each operation.
        fill: the value of pixels from outside of the image: a number, or one for each channel.
    """

    severity: int = 3
    width: int = 3
    depth: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        severity, width = (
            arguments.whole(self, name, getattr(self, name)) for name in ("severity", "width")
        )
        for name, value in (("severity", severity), ("width", width)):
            if value > 10:
                raise arguments.refuse(self, name, value, "a whole number from 1 to 10")
        if self.depth is None:
            depth = None
        else:
            depth = arguments.whole(self, "depth", self.depth)
        if depth is not None and depth > 10:
            raise arguments.refuse(self, "depth", depth, "a whole number from 1 to 10, or None")
        arguments.keep(self, severity=severity, width=width, depth=depth)

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]  # a constant of other ops
        """Four for each operation, two for each chain, one for the image."""
        return (4 * (self.depth or MOST_DEPTH) + 2) * self.width + 1

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``op``, ``level`` and ``cubic``, ``[N, width, depth]``; ``weight``,
        ``[N, width]``; ``share``."""
        depth = self.depth or MOST_DEPTH
        of_operations, of_chains, share = np.split(
            u, [4 * depth * self.width, u.shape[1] - 1], axis=1
        )
        choice, strength, sign, cubic = of_operations.reshape(
            len(u), 4, self.width, depth
        ).swapaxes(0, 1)
        ends, weights = of_chains.reshape(len(u), 2, self.width).swapaxes(0, 1)
        numbers = np.array([OPERATIONS.index(name) for name in AUGMIX_OPERATIONS], np.int32)
        number = numbers[np.floor(choice * len(numbers)).astype(np.int64)]
        if self.depth is None:
            number = np.where(
                np.arange(depth) <= np.floor(ends * MOST_DEPTH)[..., None], number, 0
            ).astype(np.int32)
        level = (strength * self.severity).astype(np.float32)
        # Dirichlet's weights with alpha 1: exponential numbers, divided by their sum.
        exponential = -np.log1p(-weights)
        weight = exponential / np.maximum(
            exponential.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny
        )
        return {
            "op": number, "level": np.where(sign > 0.5, -level, level), "cubic": self.by_cubic(cubic),
            "weight": weight.astype(np.float32), "share": share[:, 0].astype(np.float32),
        }  # fmt: skip

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, blended with its chains."""
        total = xp.zeros(x.shape, xp.float32)
        for chain, weight in enumerate(draw["weight"]):
            steps = {name: draw[name][chain] for name in ("op", "level", "cubic")}
            total = total + super().array(xp, x, steps).astype(xp.float32) * weight
        return colour_pillow.blend(xp, x, total.clip(0, 255).astype(xp.uint8), draw["share"])

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return one edit, with those of the chains in it."""
        count, chains, depth = draw["op"].shape
        steps = {
            name: draw[name].reshape(count, chains * depth) for name in ("op", "level", "cubic")
        }
        operations = self.operations_as_edits(steps, size, channels)
        operations = operations.reshape(count, chains, operations.shape[1] // chains)
        result = np.empty((count, 4 + chains * (2 + operations.shape[2])))
        result[:, 0], result[:, 1], result[:, 2], result[:, 3] = (
            edits.PIL_MIX,
            result.shape[1] - 2,
            draw["share"],
            chains,
        )
        parts = result[:, 4:].reshape(count, chains, 2 + operations.shape[2])
        parts[..., 0], parts[..., 1], parts[..., 2:] = (
            draw["weight"],
            operations.shape[2],
            operations,
        )
        return result


class LevelRule(NamedTuple):
    """The use of an operation's level: the argument that ``operate`` takes.

    Attributes:
        form: one of `FORMS`.
        first, second: its numbers.
    """

    form: str
    first: float = 0.0
    second: float = 0.0


def values_of(rule: LevelRule, levels: Values, size: Sizes) -> Values:
    """Return the arguments of an operation as ``operate`` takes them, float64 ``[M]``.

    Args:
        rule: of the operation.
        levels: how strongly, float64 ``[M]``.
        size: height and width of each image, ``[M, 2]``.
    """
    form, first, second = rule
    if form in CALLS:  # functions of Python's `math`: NumPy's have other last bits
        return np.array([CALLS[form](level) for level in levels.tolist()], np.float64)
    part, sign = np.abs(levels) / TIMM_LARGEST, np.copysign(1.0, levels)
    results: dict[str, Callable[[], Any]] = {
        "level": lambda: levels,
        "factor": lambda: 1.0 + levels,
        "shift": lambda: 0.0 - np.trunc(levels),
        "part": lambda: sign * (part * first),
        "part of side": lambda: sign * (part * first) * size[:, int(second)],
        "part about 1": lambda: np.maximum(second, 1.0 + sign * (part * first)),
        "part as factor": lambda: part * first + second,
        "saturation": lambda: 1.0 - np.minimum(1.0, 0.5 + 0.5 * part),
        "sigma": lambda: np.minimum(2.0, 0.1 + 1.9 * part),
        "bits": lambda: first + second * np.trunc(part * 4),
        "part of levels": lambda: first + second * np.minimum(256.0, np.trunc(part * 256)),
        "addend": lambda: np.minimum(128.0, np.trunc(part * 110)),
    }
    return np.asarray(results[form](), np.float64)


def operate(
    xp: ModuleType,
    x: Any,
    name: str,
    value: float,
    interpolation: str,
    fill: float | tuple[float, ...],
) -> Any:
    """Return an image behind an operation, as Pillow makes it.

    Args:
        xp: NumPy or CuPy.
        x: uint8 ``[H, W, C]``.
        name: one of `OPERATIONS`.
        value: its argument: a factor, degrees, a number of the matrix, bits, a threshold, or a
            sum's second part.
        interpolation: of the operations that move pixels.
        fill: of pixels from outside.
    """
    if name in MATRICES:
        return pillow.affine(xp, x, MATRICES[name](value), interpolation, fill)
    if name == "Rotate":
        return pillow.rotate(xp, x, value, interpolation, fill)
    if name == "GaussianBlur":
        return blur_pillow.gaussian_blur(xp, x, value)
    if name in FACTORS:
        return FACTORS[name](xp, x, value)
    if name == "Posterize":
        if value >= 8:
            return x
        return colour.posterize(xp, x, int(value))
    if name == "Solarize":
        return colour.solarize(xp, x, value)
    if name == "SolarizeAdd":
        levels = np.arange(256)
        table = np.where(levels < 128, np.minimum(levels + int(value), 255), levels).astype(
            np.uint8
        )
        return tables.look_up(xp, x, table)
    return TONES[name](xp, x) if name in TONES else x


def _code(name: str) -> int:
    return edits.code(EDITS.get(name, "PIL_AFFINE"))


@lru_cache(maxsize=1024)
def _table(name: str, value: float) -> Edits:
    """Return the arguments of a look-up: the table of an operation that changes each value by
    itself."""
    levels = tables.BYTES.reshape(1, 256, 1)
    return edits.of_tables(operate(np, levels, name, value, "nearest", 0).reshape(1, 256))[0, 2:]


MATRICES: dict[str, Callable[[float], pillow.Matrix]] = {
    "ShearX": lambda value: (1, value, 0, 0, 1, 0), "ShearY": lambda value: (1, 0, 0, value, 1, 0),
    "TranslateX": lambda value: (1, 0, value, 0, 1, 0), "TranslateY": lambda value: (1, 0, 0, 0, 1, value),
}  # fmt: skip
TABLES = ("Posterize", "Solarize", "SolarizeAdd", "Invert")
# Which number of the matrix an operation's argument is, or which table; as in policies.cpp.
PLACES = {
    "ShearX": 1, "TranslateX": 2, "ShearY": 3, "TranslateY": 5, "Rotate": -1, "Posterize": 0, "Solarize": 1,
    "SolarizeAdd": 2, "Invert": 3,
}  # fmt: skip
NO_CUBIC: Array = np.empty((0, 0), np.int32)
EDITS = {
    "Identity": "SKIP", "Brightness": "BRIGHTNESS", "Color": "PIL_SATURATION",
    "Desaturate": "PIL_SATURATION", "Contrast": "PIL_CONTRAST", "Sharpness": "PIL_SHARPNESS",
    "AutoContrast": "PIL_AUTOCONTRAST", "Equalize": "EQUALIZE", "GaussianBlur": "PIL_BLUR",
    **dict.fromkeys(TABLES, "TABLE"),
}  # fmt: skip
FACTORS: dict[str, Callable[[ModuleType, Any, Any], Any]] = {
    "Brightness": colour_pillow.brightness, "Color": colour_pillow.saturation, "Contrast": colour_pillow.contrast,
    "Sharpness": colour_pillow.sharpness, "Desaturate": colour_pillow.saturation,
}  # fmt: skip
TONES: dict[str, Callable[[ModuleType, Any], Any]] = {
    "AutoContrast": colour_pillow.autocontrast, "Equalize": colour.equalize, "Invert": colour.invert,
}  # fmt: skip
TIMM_OPERATIONS = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast",
    "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY",
)  # fmt: skip
TIMM_SETS: dict[str, tuple[str, ...] | dict[str, float]] = {
    "3a": ("Solarize", "Desaturate", "GaussianBlur"),
    "3aw": {
        "Solarize": 6.0, "Desaturate": 6.0, "GaussianBlur": 6.0, "Rotate": 3.0, "ShearX": 2.0, "ShearY": 2.0,
        "Posterize": 1.0, "AutoContrast": 1.0, "Color": 1.0, "Sharpness": 1.0, "Contrast": 1.0, "Brightness": 1.0,
        "Equalize": 1.0, "Invert": 1.0,
    },
    "weights": {
        "Rotate": 3.0, "ShearX": 2.0, "ShearY": 2.0, "TranslateX": 1.0, "TranslateY": 1.0, "Color": 0.25,
        "Sharpness": 0.25, "AutoContrast": 0.25, "Solarize": 0.05, "SolarizeAdd": 0.05, "Contrast": 0.05,
        "Brightness": 0.05, "Equalize": 0.05, "Posterize": 0.05, "Invert": 0.05,
    },
}  # fmt: skip
AUGMIX_OPERATIONS = tuple(name for name in TIMM_OPERATIONS if name not in ("Invert", "SolarizeAdd"))
TIMM_POLICIES = {  # timm's policies: ours of these pairs, and the bits of Posterize: at level 0, and more for each 2.5
    "v0": ("v0", 0, 1), "v0r": ("v0", 4, -1), "original": ("imagenet", 4, 1), "originalr": ("imagenet", 4, -1),
    "3a": ("3a", 0, 1),
}  # fmt: skip
_TIMM_FORM = (
    "timm's words: 'v0', 'v0r', 'original', 'originalr' or '3a' and '-mstd0.5'; or 'rand', then '-m9', '-n2', '-p0.5', "
    "'-mstd0.5', '-mmax10', '-inc1', '-t3a', '-t3aw' or '-tweights'"
)


def _are_in_range(parts: Mapping[str, float]) -> bool:
    """Return True if the numbers of a RandAugment of timm are those that it takes."""
    finite = [parts[name] for name in ("m", "n", "inc", "mmax") if math.isfinite(parts[name])]
    is_layered = 1 <= parts["n"] <= 16 and parts["p"] <= 1 and parts["inc"] <= 1
    has_levels = 0 < parts["mmax"] < 1000 and parts["m"] < 1000
    return is_layered and has_levels and not any(number % 1 for number in finite)


def _places(u: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return K different places for each row, drawn by weights, without replacement: int64
    ``[N, K]``, 0 to M - 1.

    Args:
        u: float64 ``[N, K]`` in [0, 1).
        weights: float64 ``[M]``, M at least K.
    """
    left = np.tile(weights, (len(u), 1))
    places = np.zeros(u.shape, np.int64)
    for layer in range(u.shape[1]):
        ends = left.cumsum(axis=1)
        places[:, layer] = (
            (u[:, layer, None] * ends[:, -1:] >= ends).sum(axis=1).clip(0, len(weights) - 1)
        )
        np.put_along_axis(left, places[:, layer, None], 0.0, axis=1)
    return places


def _normal(u: NDArray[np.float64], turn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a normal number for each pair of uniform ones (Box and Muller)."""
    return np.asarray(np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * turn))


def _levels(
    number: NDArray[np.int32],
    index: NDArray[np.int64],
    bins: int,
    size: Sizes,
    ranges: Callable[..., Any],
) -> Levels:
    """Return torchvision's magnitudes, float32 ``[N, K]``, without a sign.

    Args:
        number: which operations.
        index: which step of the range of each.
        bins: how many steps there are.
        size: of the images.
        ranges: returns the steps of an operation, float32 ``[bins]`` or ``[N, bins]``.
    """
    levels = _steps(ranges, bins)[number, index]
    if ranges is _ranges:  # of which those of moves are parts of an image's side
        rows, layers = np.nonzero(IS_SHIFT[number])
        side = size[rows, (number[rows, layers] == TRANSLATE_X).astype(np.int64)]
        levels[rows, layers] = _steps_at(0.0, WIDEST_SHIFT * side, bins, index[rows, layers])
    return levels


@lru_cache(maxsize=64)
def _steps(ranges: Callable[..., Levels], bins: int) -> Levels:
    """Return the steps of all operations, float32 ``[len(OPERATIONS), bins]``; 0 where they depend
    on the size."""
    steps, no_size = np.zeros((len(OPERATIONS), bins), np.float32), np.zeros((1, 2), np.int32)
    for number, name in enumerate(OPERATIONS):
        if name not in NO_LEVEL:
            steps[number] = ranges(name, bins, no_size).reshape(bins)
    return steps


def _ranges(name: str, bins: int, size: Sizes) -> Levels:
    """Return the steps of an operation of RandAugment and AutoAugment."""
    if name.startswith("Translate"):
        return linspace(0.0, WIDEST_SHIFT * size[:, int(name == "TranslateX")], bins)
    if name == "Posterize":
        return _bits(bins, 4)
    ends = {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0}
    if name == "Solarize":
        return linspace(1.0, 0.0, bins)
    return linspace(0.0, ends.get(name, 0.9), bins)


def _wide_ranges(name: str, bins: int, size: Sizes) -> Levels:
    """Return the steps of an operation of TrivialAugmentWide."""
    if name == "Posterize":
        return _bits(bins, 6)
    ends = {"TranslateX": 32.0, "TranslateY": 32.0, "Rotate": 135.0}
    if name == "Solarize":
        return linspace(1.0, 0.0, bins)
    return linspace(0.0, ends.get(name, 0.99), bins)


def _bits(bins: int, num_bits: int) -> Levels:
    """Return how many bits Posterize keeps at each step, from 8 on, halves rounded to even."""
    # float32 at each step, as torch computes it: a half more or less is another number of bits.
    divisor = np.float32((bins - 1) / num_bits)
    return np.round(np.float32(8) - np.arange(bins, dtype=np.float32) / divisor).astype(np.float32)


def linspace(begin: float, end: Any, count: int) -> Levels:
    """Return the numbers of ``torch.linspace(begin, end, count)``, float32 ``[count]``, or
    ``[N, count]`` for N ends.

    It goes up from the begin and, in its second half, down from the end, each in one rounding.
    """
    return _steps_at(begin, np.asarray(end)[..., None], count, np.arange(count))


def _steps_at(begin: float, end: Any, count: int, places: NDArray[np.int64]) -> Levels:
    """Return numbers of ``linspace`` at some places."""
    # Products of two float32 are exact in float64, so that the sum is rounded once, as torch's
    # fused one is.
    first, last = np.float64(np.float32(begin)), np.asarray(end, np.float32).astype(np.float64)
    step = ((last - first).astype(np.float32) / np.float32(count - 1)).astype(np.float64)
    up, down = first + step * places, last - step * (count - 1 - places)
    return np.where(places < count // 2, up, down).astype(np.float32)


def _with_sign(levels: Levels, number: NDArray[np.int32], u: NDArray[np.float64]) -> Levels:
    """Return levels, of which half of those that have a direction are negative."""
    return np.where(HAS_SIGN[number] & (u <= 0.5), -levels, levels)


def _checked_fill(op: Op, value: Any) -> float | tuple[float, ...]:
    fill = arguments.numbers(op, "fill", value)
    if isinstance(fill, tuple):
        channels = fill
    else:
        channels = (fill,)
    if len(channels) not in RGB_OR_GRAY or not all(
        0 <= level <= 255 and level % 1 == 0 for level in channels
    ):
        raise arguments.refuse(
            op, "fill", value, "a whole number from 0 to 255, or one for each channel"
        )
    return fill


@lru_cache(maxsize=8)
def _policy(name: str) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Return a policy: operations, probabilities and steps of its pairs, ``[25, 2]`` each
    (``[3, 1]`` of timm's 3a)."""
    pairs = [
        re.findall(r"(\w+) ([\d.]+) (\d+)", line) for line in POLICIES[name].strip().splitlines()
    ]
    numbers = np.array([[OPERATIONS.index(word) for word, _, _ in pair] for pair in pairs])
    probabilities = np.array([[float(p) for _, p, _ in pair] for pair in pairs])
    return numbers, probabilities, np.array([[int(step) for _, _, step in pair] for pair in pairs])


FORMS = (  # as in policies.cpp
    "level", "factor", "shift", "shear x", "shear y", "threshold", "part", "part of side", "part about 1",
    "part as factor", "saturation", "sigma", "bits", "part of levels", "addend",
)  # fmt: skip
CALLS = {"shear x": _shear_x, "shear y": _shear_y, "threshold": _threshold}
TIMM_RULES = {
    "ShearX": LevelRule("part", 0.3), "ShearY": LevelRule("part", 0.3), "Rotate": LevelRule("part", 30.0),
    "TranslateX": LevelRule("part of side", TIMM_SHIFT, 1), "TranslateY": LevelRule("part of side", TIMM_SHIFT, 0),
    "Desaturate": LevelRule("saturation"), "GaussianBlur": LevelRule("sigma"),
}  # fmt: skip
AUTO_AUGMENT = ("imagenet", "cifar10", "svhn")  # torchvision's
# Each line is a pair: operation, probability, step of its range from 0 to 9; of timm's its level
# from 0 to 10.
POLICIES = {
    "imagenet": """
        Posterize 0.4 8, Rotate 0.6 9
        Solarize 0.6 5, AutoContrast 0.6 0
        Equalize 0.8 0, Equalize 0.6 0
        Posterize 0.6 7, Posterize 0.6 6
        Equalize 0.4 0, Solarize 0.2 4
        Equalize 0.4 0, Rotate 0.8 8
        Solarize 0.6 3, Equalize 0.6 0
        Posterize 0.8 5, Equalize 1.0 0
        Rotate 0.2 3, Solarize 0.6 8
        Equalize 0.6 0, Posterize 0.4 6
        Rotate 0.8 8, Color 0.4 0
        Rotate 0.4 9, Equalize 0.6 0
        Equalize 0.0 0, Equalize 0.8 0
        Invert 0.6 0, Equalize 1.0 0
        Color 0.6 4, Contrast 1.0 8
        Rotate 0.8 8, Color 1.0 2
        Color 0.8 8, Solarize 0.8 7
        Sharpness 0.4 7, Invert 0.6 0
        ShearX 0.6 5, Equalize 1.0 0
        Color 0.4 0, Equalize 0.6 0
        Equalize 0.4 0, Solarize 0.2 4
        Solarize 0.6 5, AutoContrast 0.6 0
        Invert 0.6 0, Equalize 1.0 0
        Color 0.6 4, Contrast 1.0 8
        Equalize 0.8 0, Equalize 0.6 0
""",
    "cifar10": """
        Invert 0.1 0, Contrast 0.2 6
        Rotate 0.7 2, TranslateX 0.3 9
        Sharpness 0.8 1, Sharpness 0.9 3
        ShearY 0.5 8, TranslateY 0.7 9
        AutoContrast 0.5 0, Equalize 0.9 0
        ShearY 0.2 7, Posterize 0.3 7
        Color 0.4 3, Brightness 0.6 7
        Sharpness 0.3 9, Brightness 0.7 9
        Equalize 0.6 0, Equalize 0.5 0
        Contrast 0.6 7, Sharpness 0.6 5
        Color 0.7 7, TranslateX 0.5 8
        Equalize 0.3 0, AutoContrast 0.4 0
        TranslateY 0.4 3, Sharpness 0.2 6
        Brightness 0.9 6, Color 0.2 8
        Solarize 0.5 2, Invert 0.0 0
        Equalize 0.2 0, AutoContrast 0.6 0
        Equalize 0.2 0, Equalize 0.6 0
        Color 0.9 9, Equalize 0.6 0
        AutoContrast 0.8 0, Solarize 0.2 8
        Brightness 0.1 3, Color 0.7 0
        Solarize 0.4 5, AutoContrast 0.9 0
        TranslateY 0.9 9, TranslateY 0.7 9
        AutoContrast 0.9 0, Solarize 0.8 3
        Equalize 0.8 0, Invert 0.1 0
        TranslateY 0.7 9, AutoContrast 0.9 0
""",
    "svhn": """
        ShearX 0.9 4, Invert 0.2 0
        ShearY 0.9 8, Invert 0.7 0
        Equalize 0.6 0, Solarize 0.6 6
        Invert 0.9 0, Equalize 0.6 0
        Equalize 0.6 0, Rotate 0.9 3
        ShearX 0.9 4, AutoContrast 0.8 0
        ShearY 0.9 8, Invert 0.4 0
        ShearY 0.9 5, Solarize 0.2 6
        Invert 0.9 0, AutoContrast 0.8 0
        Equalize 0.6 0, Rotate 0.9 3
        ShearX 0.9 4, Solarize 0.3 3
        ShearY 0.8 8, Invert 0.7 0
        Equalize 0.9 0, TranslateY 0.6 6
        Invert 0.9 0, Equalize 0.6 0
        Contrast 0.3 3, Rotate 0.8 4
        Invert 0.8 0, TranslateY 0.0 2
        ShearY 0.7 6, Solarize 0.4 8
        Invert 0.6 0, Rotate 0.8 4
        ShearY 0.3 7, TranslateX 0.9 3
        ShearX 0.1 6, Invert 0.6 0
        Solarize 0.7 2, TranslateY 0.6 7
        ShearY 0.8 4, Invert 0.8 0
        ShearX 0.7 9, TranslateY 0.8 3
        ShearY 0.8 5, AutoContrast 0.7 0
        ShearX 0.7 2, Invert 0.1 0
""",
    "v0": """
        Equalize 0.8 1, ShearY 0.8 4
        Color 0.4 9, Equalize 0.6 3
        Color 0.4 1, Rotate 0.6 8
        Solarize 0.8 3, Equalize 0.4 7
        Solarize 0.4 2, Solarize 0.6 2
        Color 0.2 0, Equalize 0.8 8
        Equalize 0.4 8, SolarizeAdd 0.8 3
        ShearX 0.2 9, Rotate 0.6 8
        Color 0.6 1, Equalize 1.0 2
        Invert 0.4 9, Rotate 0.6 0
        Equalize 1.0 9, ShearY 0.6 3
        Color 0.4 7, Equalize 0.6 0
        Posterize 0.4 6, AutoContrast 0.4 7
        Solarize 0.6 8, Color 0.6 9
        Solarize 0.2 4, Rotate 0.8 9
        Rotate 1.0 7, TranslateY 0.8 9
        ShearX 0.0 0, Solarize 0.8 4
        ShearY 0.8 0, Color 0.6 4
        Color 1.0 0, Rotate 0.6 2
        Equalize 0.8 4, Equalize 0.0 8
        Equalize 1.0 4, AutoContrast 0.6 2
        ShearY 0.4 7, SolarizeAdd 0.6 7
        Posterize 0.8 2, Solarize 0.6 10
        Solarize 0.6 8, Equalize 0.6 1
        Color 0.8 6, Rotate 0.4 5
""",
    "3a": """
        Solarize 1.0 5
        Desaturate 1.0 10
        GaussianBlur 1.0 10
""",
}

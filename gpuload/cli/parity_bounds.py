"""Tolerances: how far results may be from an op's meaning, or a file's pixels, each with its
reason.

A bound belongs to a subject (an op, a kind of file) and a party: an executor (``"dali on cpu"``,
``"array on gpu"``) or an independent library (``"Pillow"``, ``"OpenCV"``). Of executors the ops
themselves state it (`ops.bounds`), of libraries the table here does. Results that neither names are
exact.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from gpuload.ops.base import Op
from gpuload.ops.bounds import EXACT, Bound, stated_bound

EDGES = Bound(
    24,
    0.5,
    "DALI repeats the edge where its filter reaches beyond the image, Pillow and torchvision leave that out. In the "
    "middle it is one level, as both round to bytes between the passes. `antialias=pil` makes Pillow's values",
    mean=1,
)
TIES = Bound(
    255,
    0.001,
    "points that lie between two pixels: Pillow has fixed-point numbers of 1/65536, torchvision float32",
)
TIES_OF_RESIZE = Bound(
    255, 0.3, "points that lie between two pixels: DALI adds up float32 numbers, others multiply"
)
PASSES = Bound(
    1, 0.1, "torchvision has weights of 16 bits between the passes of a resize, Pillow of 22"
)
WINDOW = Bound(1, 0.001, "torchvision sums the window of a blur at once, in another order")
UNFUSED = Bound(
    1,
    0.001,
    "on some processors, those of AMD, torch rounds between a product and its sum where it computes places",
)
UNFUSED_TIES = Bound(
    255, 0.001, "the same: of pixels that are equally near another one is taken then"
)
BORDERS = Bound(
    255,
    0.6,
    "Pillow cuts fractions off, and takes the edge at the border, where torchvision blends with the fill",
    3,
)
GRAY = Bound(
    1,
    0.2,
    "Pillow rounds the gray of a pixel and the mean, torchvision cuts off the first, keeps the second",
)
SCALE = Bound(
    1, 0.05, "Pillow scales in float64, torchvision in float32, and both cut fractions off"
)
ORDER = Bound(1e-6, 1, "float32 in another order")
HUE = Bound(
    1, 0.001, "OpenCV's float32 formula of HSV divides elsewhere, and fractions are cut off"
)
INK = Bound(1, 1, "OpenCV has another formula for ink, which rounds up")

# Subject, party, bound; each is a pattern, and the first that fits counts.
TABLE: tuple[tuple[str, str, Bound], ...] = (
    ("Resize*nearest*", "Pillow", TIES_OF_RESIZE),
    ("Resize*pil*", "Pillow", EXACT),
    ("RandomResize*", "Pillow", EDGES),
    ("Resize*", "Pillow", EDGES),
    ("ScaleJitter*", "Pillow", EDGES),
    ("Resize*nearest*", "torchvision", TIES_OF_RESIZE),
    ("Resize*pil*", "torchvision", PASSES),
    ("RandomResize*", "torchvision", EDGES),
    ("Resize*", "torchvision", EDGES),
    ("ScaleJitter*", "torchvision", EDGES),
    ("GaussianBlur*", "torchvision", WINDOW),
    ("Normalize*", "torchvision", ORDER),
    ("*linear*", "torchvision", UNFUSED),
    ("Perspective*", "torchvision", UNFUSED),
    ("Affine*", "torchvision", UNFUSED_TIES),
    ("Rotate(*", "torchvision", UNFUSED_TIES),
    ("Shear*", "torchvision", UNFUSED_TIES),
    ("*linear*", "Pillow", BORDERS),
    ("Perspective*", "Pillow", BORDERS),
    ("Affine*", "Pillow", TIES),
    ("Rotate(*", "Pillow", TIES),
    ("AutoContrast*", "Pillow", SCALE),
    ("Contrast*", "Pillow", GRAY),
    ("Grayscale*", "Pillow", GRAY),
    ("Saturation*", "Pillow", GRAY),
    ("Hue*", "OpenCV", HUE),
    ("Normalize*", "OpenCV", ORDER),
    ("PerImageStandardization*", "OpenCV", ORDER),
    ("file *CMYK", "OpenCV", INK),
)


def bound_of(subject: str, party: str) -> Bound:
    """Return the tolerance of a subject, an op as text or ``"file ..."``, beside a library."""
    fits = (
        bound
        for name, pattern, bound in TABLE
        if fnmatchcase(subject, name) and fnmatchcase(party, pattern)
    )
    return next(fits, EXACT)


def bound_of_executor(op: Op, executor: str) -> Bound:
    """Return the tolerance of an op on an executor, ``"array on cpu"`` say.

    An op that is made of other ops is held to equal pixels: each of these is compared by itself.
    """
    if op.traits.ways:
        return EXACT
    return stated_bound(op.traits.bounds, executor)

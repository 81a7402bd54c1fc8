"""How fast are images augmented (512 of 224 x 224 x 3 bytes in one NPY file, batches of 64), op by
op?

Work        one op with random parameters for each image; uint8 in, uint8 out
Limit       a copy of the same bytes by all cores torchvision v2 on uint8 tensors, an image at a
            time: in a DataLoader of two workers, and in one process by torch's own
            threads; the meaning of gpuload's ops
Pillow      a thread pool, an image a task; the ops that policies use
Albument.   Albumentations (OpenCV), a thread pool, an image a task; its formulas differ a little
DALI        its operator on a CPU, where it has one; its formulas differ, too
Shuffle     gpuload takes the images in a new order in each pass, the others in the order of the
            file
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, forms
from benchmarks.limits import on_all_cores, share
from benchmarks.machine import cores
from benchmarks.question import Epoch, Peer, Question, Work

SIDE = 224
NUM_WORKERS = 2

Image = NDArray[np.uint8]
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Forms:
    """The forms of one op, each made by a function of the package that it needs; None where the
    package has none.

    Args:
        gpuload: from ``gpuload.ops`` to a list of ops.
        torchvision: from ``torchvision.transforms.v2`` to a transform.
        pillow: from the package ``PIL``'s modules, by name, and a random generator to a function of
            an image.
        albumentations: from the package to a transform.
        dali: from ``nvidia.dali.fn`` to a function of a batch of images.
        views: the fields that gpuload's ops make of an image; of more than one, torchvision's
            transform returns a list.
    """

    gpuload: Callable[[Any], list[Any]]
    torchvision: Callable[[Any], Change]
    pillow: Callable[[Any, np.random.Generator], Change] | None = None
    albumentations: Callable[[Any], Any] | None = None
    dali: Callable[[Any], Change] | None = None
    views: tuple[str, ...] = ("image",)


def _enhanced(name: str) -> Callable[[Any, np.random.Generator], Change]:
    """Return Pillow's enhancer of a name with a random factor from 0.6 to 1.4."""
    return lambda pillow, rng: (
        lambda image: getattr(pillow["ImageEnhance"], name)(image).enhance(rng.uniform(0.6, 1.4))
    )


def _operated(name: str, *arguments: Any) -> Callable[[Any, np.random.Generator], Change]:
    """Return Pillow's function of a name in ImageOps."""
    return lambda pillow, rng: lambda image: getattr(pillow["ImageOps"], name)(image, *arguments)


def _torchvision(name: str) -> Callable[[Any, np.random.Generator], Change]:
    """Return torchvision's transform of a name, on images of Pillow: the meaning of gpuload's
    policies."""
    return lambda pillow, rng: getattr(_v2(), name)()


GLOBAL, LOCAL = (
    ("global_0", "global_1"),
    tuple(f"local_{n}" for n in range(8)),
)  # DINO's views of an image
BLUR = {"global_0": 1.0, "global_1": 0.1}  # how many images of a view; half of the others
INVERTED = {"global_1": 0.2}


def _dino(ops: Any) -> list[Any]:
    """Return DINO's two global and eight local crops, as ``gl.recipes.dino`` has them."""
    chain = [ops.Copy("image", to=(*GLOBAL, *LOCAL))]
    for view in (*GLOBAL, *LOCAL):
        side, scale = (SIDE, (0.4, 1.0)) if view in GLOBAL else (96, (0.05, 0.4))
        chain += ops.repeat([
            ops.RandomResizedCrop(side, scale=scale, interpolation="cubic"), ops.RandomFlip(),
            ops.Sometimes(0.8, [ops.ColorJitter(0.4, 0.4, 0.2, 0.1)]), ops.Grayscale(p=0.2),
            ops.GaussianBlur(9, (0.1, 2.0), p=BLUR.get(view, 0.5)),
            *([ops.Solarize(128, p=INVERTED[view])] if view in INVERTED else []),
        ], on=(view,))  # fmt: skip
    return chain


def _dino_of_torchvision(v2: Any) -> Change:
    """Return the same by torchvision: a function from an image to its views."""
    changes = []
    for view in (*GLOBAL, *LOCAL):
        side, scale = (SIDE, (0.4, 1.0)) if view in GLOBAL else (96, (0.05, 0.4))
        changes.append(v2.Compose([
            v2.RandomResizedCrop(side, scale, interpolation=v2.InterpolationMode.BICUBIC, antialias=True),
            v2.RandomHorizontalFlip(), v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            v2.RandomGrayscale(0.2), v2.RandomApply([v2.GaussianBlur(9, (0.1, 2.0))], BLUR.get(view, 0.5)),
            v2.RandomSolarize(128, INVERTED.get(view, 0.0)),
        ]))  # fmt: skip
    return lambda image: [change(image) for change in changes]


OPS: dict[str, Forms] = {
    "RandomFlip": Forms(
        lambda ops: [ops.RandomFlip()],
        lambda v2: v2.RandomHorizontalFlip(),
        lambda pillow, rng: lambda image: pillow["ImageOps"].mirror(image) if rng.random() < 0.5 else image,
        lambda package: package.HorizontalFlip(),
        lambda fn: lambda images: fn.flip(images, horizontal=fn.random.coin_flip()),
    ),
    "RandomResizedCrop": Forms(
        lambda ops: [ops.RandomResizedCrop(SIDE, SIDE)],
        lambda v2: v2.RandomResizedCrop(SIDE, antialias=True),
        None,
        lambda package: package.RandomResizedCrop((SIDE, SIDE)),
        lambda fn: lambda images: fn.random_resized_crop(images, size=(SIDE, SIDE)),
    ),
    "Brightness": Forms(
        lambda ops: [ops.Brightness(0.6, 1.4)],
        lambda v2: v2.ColorJitter(brightness=(0.6, 1.4)),
        _enhanced("Brightness"),
        lambda package: package.ColorJitter((0.6, 1.4), (1, 1), (1, 1), (0, 0), p=1),
        lambda fn: lambda images: fn.brightness(images, brightness=fn.random.uniform(range=(0.6, 1.4))),
    ),
    "Contrast": Forms(
        lambda ops: [ops.Contrast(0.6, 1.4)],
        lambda v2: v2.ColorJitter(contrast=(0.6, 1.4)),
        _enhanced("Contrast"),
        lambda package: package.ColorJitter((1, 1), (0.6, 1.4), (1, 1), (0, 0), p=1),
        lambda fn: lambda images: fn.contrast(images, contrast=fn.random.uniform(range=(0.6, 1.4))),
    ),
    "Saturation": Forms(
        lambda ops: [ops.Saturation(0.6, 1.4)],
        lambda v2: v2.ColorJitter(saturation=(0.6, 1.4)),
        _enhanced("Color"),
        lambda package: package.ColorJitter((1, 1), (1, 1), (0.6, 1.4), (0, 0), p=1),
        lambda fn: lambda images: fn.saturation(images, saturation=fn.random.uniform(range=(0.6, 1.4))),
    ),
    "Hue": Forms(
        lambda ops: [ops.Hue(-0.1, 0.1)],
        lambda v2: v2.ColorJitter(hue=(-0.1, 0.1)),
        None,
        lambda package: package.ColorJitter((1, 1), (1, 1), (1, 1), (-0.1, 0.1), p=1),
        lambda fn: lambda images: fn.hue(images, hue=fn.random.uniform(range=(-36.0, 36.0))),
    ),
    "ColorJitter": Forms(
        lambda ops: [ops.ColorJitter(0.4, 0.4, 0.4, 0.1)],
        lambda v2: v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
        None,
        lambda package: package.ColorJitter(0.4, 0.4, 0.4, 0.1, p=1),
    ),
    "Sharpness": Forms(
        lambda ops: [ops.Sharpness(0.1, 1.9)],
        lambda v2: v2.RandomAdjustSharpness(1.7, p=1),
        _enhanced("Sharpness"),
    ),
    "AutoContrast": Forms(
        lambda ops: [ops.AutoContrast(p=1)], lambda v2: v2.RandomAutocontrast(p=1), _operated("autocontrast")
    ),
    "Equalize": Forms(
        lambda ops: [ops.Equalize(p=1)], lambda v2: v2.RandomEqualize(p=1), _operated("equalize"),
        lambda package: package.Equalize(p=1),
    ),
    "Posterize": Forms(
        lambda ops: [ops.Posterize(4, p=1)], lambda v2: v2.RandomPosterize(4, p=1), _operated("posterize", 4),
        lambda package: package.Posterize(4, p=1),
    ),
    "Solarize": Forms(
        lambda ops: [ops.Solarize(128, p=1)], lambda v2: v2.RandomSolarize(128, p=1), _operated("solarize", 128),
        lambda package: package.Solarize(0.5, p=1),
    ),
    "Rotate": Forms(
        lambda ops: [ops.Rotate(30)],
        lambda v2: v2.RandomRotation(30),
        lambda pillow, rng: lambda image: image.rotate(rng.uniform(-30, 30)),
        lambda package: package.Rotate((-30, 30), interpolation=0, border_mode=0, p=1),
        lambda fn: lambda images: fn.rotate(
            images, angle=fn.random.uniform(range=(-30.0, 30.0)), keep_size=True, fill_value=0
        ),
    ),
    "Rotate, linear": Forms(
        lambda ops: [ops.Rotate(30, interpolation="linear")],
        lambda v2: v2.RandomRotation(30, interpolation=v2.InterpolationMode.BILINEAR),
        lambda pillow, rng: lambda image: image.rotate(rng.uniform(-30, 30), resample=2),
        lambda package: package.Rotate((-30, 30), interpolation=1, border_mode=0, p=1),
    ),
    "Affine": Forms(
        lambda ops: [ops.Affine(10, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=5)],
        lambda v2: v2.RandomAffine(10, (0.1, 0.1), (0.9, 1.1), 5),
    ),
    "Perspective": Forms(
        lambda ops: [ops.Perspective(0.5, p=1)],
        lambda v2: v2.RandomPerspective(0.5, p=1),
        None,
        lambda package: package.Perspective(p=1),
    ),
    "GaussianBlur": Forms(
        lambda ops: [ops.GaussianBlur(23, (0.1, 2.0))],
        lambda v2: v2.GaussianBlur(23, (0.1, 2.0)),
        lambda pillow, rng: lambda image: image.filter(pillow["ImageFilter"].GaussianBlur(rng.uniform(0.1, 2))),
        lambda package: package.GaussianBlur((23, 23), (0.1, 2.0), p=1),
        lambda fn: lambda images: fn.gaussian_blur(
            images, sigma=fn.random.uniform(range=(0.1, 2.0)), window_size=23
        ),
    ),
    "Erasing": Forms(lambda ops: [ops.Erasing(p=1)], lambda v2: v2.RandomErasing(p=1)),
    "RandAugment": Forms(lambda ops: [ops.RandAugment()], lambda v2: v2.RandAugment(), _torchvision("RandAugment")),
    "TrivialAugmentWide": Forms(
        lambda ops: [ops.TrivialAugmentWide()], lambda v2: v2.TrivialAugmentWide(), _torchvision("TrivialAugmentWide")
    ),
    "ResNet-50": Forms(
        lambda ops: [ops.RandomResizedCrop(176, 176), ops.RandomFlip(), ops.TrivialAugmentWide(), ops.Erasing(p=0.1)],
        lambda v2: v2.Compose([
            v2.RandomResizedCrop(176, antialias=True), v2.RandomHorizontalFlip(), v2.TrivialAugmentWide(),
            v2.RandomErasing(0.1),
        ]),
    ),
    "SimCLR view": Forms(
        lambda ops: [
            ops.RandomResizedCrop(SIDE, SIDE), ops.RandomFlip(),
            ops.Sometimes(0.8, [ops.ColorJitter(0.8, 0.8, 0.8, 0.2)]), ops.Grayscale(p=0.2),
            ops.Sometimes(0.5, [ops.GaussianBlur(23, (0.1, 2.0))]),
        ],
        lambda v2: v2.Compose([
            v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8), v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], 0.5),
        ]),
    ),
    "DINO": Forms(_dino, _dino_of_torchvision, views=(*GLOBAL, *LOCAL)),
}  # fmt: skip


def prepare(folder: Path, num_records: int) -> Path:
    """Return one NPY file of pieces of scikit-learn's two sample photographs, uint8 [N, 224, 224,
    3]."""
    return data.once(folder / f"pieces-{num_records}.npy", lambda path: _write(path, num_records))


def _write(path: Path, num_records: int) -> None:
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(data.SEED)
    photographs = [np.asarray(image) for image in load_sample_images().images]
    pieces = np.empty((num_records, SIDE, SIDE, 3), np.uint8)
    for number, piece in enumerate(pieces):
        photograph = photographs[number % len(photographs)]
        top, left = (rng.integers(length - SIDE + 1) for length in photograph.shape[:2])
        piece[:] = photograph[top : top + SIDE, left : left + SIDE]
    with open(path, "wb") as file:
        np.save(file, pieces)


def limit(work: Work) -> Epoch:
    """Every byte, an image at a time into one buffer a core."""

    def part(core: int, num_cores: int) -> Callable[[], None]:
        images = np.load(work.path, mmap_mode="r")
        numbers, buffer = (
            share(work.num_records, core, num_cores),
            np.empty((SIDE, SIDE, 3), np.uint8),
        )

        def once() -> None:
            for number in numbers:
                np.copyto(buffer, images[number])

        return once

    return on_all_cores(work, part)


def gpuload(work: Work) -> Epoch:
    """The package measured, on the array executor."""
    import gpuload as gl

    source = gl.npy(work.path, field="image")
    form = OPS[work.variant]
    loader = gl.Loader(
        source, work.batch_size, ops=form.gpuload(gl.ops), output=form.views, shuffle=True, seed=0, device="cpu",
        executor="array",
    )  # fmt: skip
    return forms.own_form(work, loader, *form.views)


def torchvision_workers(work: Work) -> Epoch:
    """A DataLoader of two workers; each makes a whole batch, an image at a time."""
    make = _batches_of(work, _transform(work), _planes(work))
    loader = forms.torch_loader(work, make, NUM_WORKERS)
    return lambda: map(_to_numpy, loader)


def torchvision_threads(work: Work) -> Epoch:
    """One process, an image at a time, by torch's threads."""
    import torch

    make, rng = _batches_of(work, _transform(work), _planes(work)), np.random.default_rng(0)
    torch.set_num_threads(cores())
    return lambda: (_to_numpy(make(batch)) for batch in forms.batches(work, rng))


def _batches_of(work: Work, change: Change, images: Any) -> Callable[[forms.Records], Any]:
    """Return the function that makes a batch of record numbers: a tensor, or one of each view."""
    import torch

    def make(batch: forms.Records) -> Any:
        changed = [change(images[record]) for record in batch]
        if len(OPS[work.variant].views) == 1:
            return torch.stack(changed)
        return tuple(torch.stack(views) for views in zip(*changed, strict=True))

    return make


def _to_numpy(batch: Any) -> Any:
    return tuple(view.numpy() for view in batch) if isinstance(batch, tuple) else batch.numpy()


def _planes(work: Work) -> Any:
    """Return the images in memory as torchvision's transforms take them, a tensor [N, 3, 224,
    224]."""
    import torch

    return torch.from_numpy(np.load(work.path)).permute(0, 3, 1, 2).contiguous()


def _transform(work: Work) -> Change:
    return OPS[work.variant].torchvision(_v2())


def _v2() -> Any:
    """Return torchvision's module of transforms."""
    importlib.import_module("benchmarks.vision")  # before torchvision
    from torchvision.transforms import v2

    return v2


def pillow(work: Work) -> Epoch:
    """A thread pool, an image a task."""
    from PIL import Image, ImageEnhance, ImageFilter, ImageOps

    make = OPS[work.variant].pillow
    if make is None:
        raise RuntimeError("Pillow takes no part in this variant")
    modules = {"ImageEnhance": ImageEnhance, "ImageFilter": ImageFilter, "ImageOps": ImageOps}
    change = make(modules, np.random.default_rng(0))
    return _pooled(work, lambda image: np.asarray(change(Image.fromarray(image))))


def albumentations(work: Work) -> Epoch:
    """A thread pool, an image a task; OpenCV's own threads are off."""
    import albumentations as package
    import cv2

    make = OPS[work.variant].albumentations
    if make is None:
        raise RuntimeError("Albumentations takes no part in this variant")
    cv2.setNumThreads(1)
    change = make(package)
    return _pooled(work, lambda image: change(image=image)["image"])


def _pooled(work: Work, change: Change) -> Epoch:
    images, pool, rng = np.load(work.path), ThreadPoolExecutor(cores()), np.random.default_rng(0)

    def epoch() -> Iterator[Any]:
        for batch in forms.batches(work, rng):
            yield np.stack(list(pool.map(change, images[batch])))

    return epoch


def dali(work: Work) -> Epoch:
    """external_source of whole batches and the operator."""
    from nvidia.dali import fn, pipeline_def, types

    make = OPS[work.variant].dali
    if make is None:
        raise RuntimeError("DALI takes no part in this variant")
    images, rng = np.load(work.path), np.random.default_rng(0)
    change = make(fn)

    def source() -> Any:
        for batch in forms.batches(work, rng):
            yield images[batch]

    @pipeline_def(batch_size=work.batch_size, num_threads=cores(), device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        return change(
            fn.external_source(
                source=source, cycle="raise", dtype=types.UINT8, layout="HWC", no_copy=True
            )
        )

    return forms.dali_fed(pipeline(), forms.dense)


def _with(name: str) -> tuple[str, ...]:
    return tuple(op for op, each in OPS.items() if getattr(each, name) is not None)


_TORCH = ("torch", "torch.utils.data", "benchmarks.vision", "torchvision")
QUESTION = Question(
    name="augment",
    asks="512 images of 224 x 224 x 3 bytes, each changed by one op with parameters of its own, in batches of 64: how "
    "fast do they come?",
    limit="a copy of the same bytes by all cores",
    prepare=prepare,
    num_records=(512, 64),
    batch_size=64,
    variants=tuple(OPS),
    peers=(
        Peer("limit", limit, "a copy of the bytes", role="limit"),
        Peer("gpuload", gpuload, "array executor", ("gpuload",), role="ours"),
        Peer("torchvision", torchvision_workers, "v2, an image at a time in a DataLoader of 2 workers", _TORCH),
        Peer("torchvision_threads", torchvision_threads, "v2, an image at a time by torch's threads", _TORCH),
        Peer("pillow", pillow, "a thread pool, an image a task", ("PIL",), variants=_with("pillow")),
        Peer("albumentations", albumentations, "a thread pool, an image a task", ("albumentations", "cv2"),
             variants=_with("albumentations")),
        Peer("dali", dali, "external_source and DALI's operator", ("nvidia.dali", "nvidia.dali.fn"),
             variants=_with("dali")),
    ),
)  # fmt: skip

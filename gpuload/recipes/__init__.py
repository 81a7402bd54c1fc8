"""Recipes: the ops of well-known trainings, each in one call, made of public ops and printed as
their code."""

from typing import TYPE_CHECKING

from gpuload import lazy

if TYPE_CHECKING:
    from gpuload.recipes.classification import (
        cifar10,
        deit,
        resnet50,
        resnet50_a1,
        resnet50_a2,
        resnet50_a3,
        resnet50_v2,
    )
    from gpuload.recipes.code import Ops
    from gpuload.recipes.dense import lsj, segmentation, ssd, ssdlite
    from gpuload.recipes.views import dino, mae, simclr

__all__ = [
    "Ops",
    "cifar10",
    "deit",
    "dino",
    "lsj",
    "mae",
    "resnet50",
    "resnet50_a1",
    "resnet50_a2",
    "resnet50_a3",
    "resnet50_v2",
    "segmentation",
    "simclr",
    "ssd",
    "ssdlite",
]
lazy.attach(
    __name__,
    {
        "classification": (
            "cifar10",
            "deit",
            "resnet50",
            "resnet50_a1",
            "resnet50_a2",
            "resnet50_a3",
            "resnet50_v2",
        ),
        "code": ("Ops",),
        "dense": ("lsj", "segmentation", "ssd", "ssdlite"),
        "views": ("dino", "mae", "simclr"),
    },
)

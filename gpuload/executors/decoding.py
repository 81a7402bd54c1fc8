"""Decoding: where images are decoded for a GPU, by a rule that says the same in each run of a
program on a machine.

Host    The core decodes in the workers, up to the op that gives images one size, and bytes are
        uploaded: 0.75 to 0.95 ms of one core for a JPEG of 500 x 375 pixels, with the pixels of a
        CPU.
Device  DALI decodes on the GPU, whole images: 3.7 ms of its threads for one on an H100, with pixels
        of its own.
Rule    The ops, the formats of the files, the packages, the cores for each GPU, and the findings of
        `gpuload doctor` decide; no measurement does, so that a program has the same pixels
        when it is started again.
"""

from __future__ import annotations

from typing import NamedTuple

HOST, DEVICE = "host", "device"
# A ResNet-50 takes some 3,000 images/s on an H100, and a core makes 1,050 to 1,330: with fewer
# cores the GPU helps.
MIN_CORES = 3
# Endings of files that DALI decodes on the CPU, as whole images, or not at all.
CPU_ENDINGS = frozenset(
    (
        ".png",
        ".webp",
        ".bmp",
        ".tif",
        ".tiff",
        ".pnm",
        ".ppm",
        ".pgm",
        ".pbm",
        ".gif",
        ".avif",
        ".apng",
    )
)


class Conditions(NamedTuple):
    """The conditions of the rule.

    Attributes:
        has_dali: DALI is installed.
        codec: ``"core"``: the core decodes for these ops; ``"Python"``: Python does, more slowly;
            "": no codec.
        has_one_size: the ops on the host give all images one size.
        wants_hardware: an op asks for the GPU's hardware decoder.
        num_cores: for each GPU.
        endings: of the names of files, in lower case, ``".jpg"``; empty where no file is an image.
        host_fault, device_fault: the findings of `gpuload doctor` about them; "" for no
            fault.
    """

    has_dali: bool = True
    codec: str = "core"
    has_one_size: bool = True
    wants_hardware: bool = False
    num_cores: int = MIN_CORES
    endings: frozenset[str] = frozenset()
    host_fault: str = ""
    device_fault: str = ""


def place_by_rule(conditions: Conditions) -> tuple[str, str]:
    """Return where images are decoded, `HOST` or `DEVICE`, and why; the first line that holds
    decides.

    One of ``has_dali`` and ``codec`` must be there.
    """
    cores, endings = conditions.num_cores, ", ".join(sorted(conditions.endings))
    cases = (
        (not conditions.has_dali, HOST, "DALI is not installed"),
        (
            not conditions.codec,
            DEVICE,
            "neither nvImageCodec nor Pillow is installed, which decode on the host",
        ),
        (conditions.wants_hardware, DEVICE, "the op asks for the hardware decoder"),
        (
            bool(conditions.device_fault) and not conditions.host_fault,
            HOST,
            conditions.device_fault,
        ),
        (
            bool(conditions.host_fault) and not conditions.device_fault,
            DEVICE,
            conditions.host_fault,
        ),
        (not conditions.has_one_size, DEVICE, "no op behind Decode gives the images one size"),
        (
            conditions.codec != "core",
            DEVICE,
            "the core does not decode for these ops, and Python is slower",
        ),
        (
            bool(conditions.endings) and conditions.endings <= CPU_ENDINGS,
            HOST,
            f"DALI has no decoder on a GPU for files named {endings}",
        ),
        (
            cores < MIN_CORES,
            DEVICE,
            f"{cores} of the {MIN_CORES} cores for each GPU that the host needs to decode",
        ),
    )
    return next(
        ((place, reason) for holds, place, reason in cases if holds),
        (HOST, f"there are {cores} cores for each GPU"),
    )

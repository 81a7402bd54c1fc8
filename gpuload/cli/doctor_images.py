"""Whether each image format is decoded as it should be, and the place where a loader decodes images."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gpuload as gl
from gpuload import device, driver, signalsafe, threads
from gpuload.cli import parity_images
from gpuload.cli.doctor_base import ABSENT, OK, PROBLEM, Diagnosis, read_fault, run_child
from gpuload.cli.doctor_packages import versions
from gpuload.errors import FileError, install_command
from gpuload.executors import decoding, trials
from gpuload.images import decode, native
from gpuload.ops.value.decode import decoder_on_gpu
from gpuload.progress import Progress

ON_HOST, ON_DEVICE = ("array", "cpu"), ("dali", "gpu")  # the executors that decode, and where
TRY_IMAGES = (
    "import sys; from gpuload.cli.doctor_images import try_images; "
    "try_images(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
)
TRY_DECODER = (
    "import sys; from gpuload.cli.doctor_images import try_decoder; try_decoder(sys.argv[1])"
)
NUM_JPEGS, JPEG_BATCH, JPEG_SIDES = 96, 32, (48, 640)  # of a trial of a decoder; pixels


def diagnose_images() -> Iterator[Diagnosis]:
    """Give a finding for each executor, and one for each format that it does not decode as the
    others do; store these.

    Loaders heed these stored failures: see `executors.trials`.
    """
    titles = [title for title, _ in parity_images.samples()]
    if not titles:
        yield Diagnosis(
            "images", "formats", ABSENT, "Pillow, which makes the files to decode, is not installed"
        )
        return
    places = [("array", "cpu")]
    if versions(("nvidia-dali-cuda120", "nvidia-dali-cuda130")):
        places.append(("dali", "cpu"))
        if device.gpu_problem(0) is None:
            places.append(("dali", "gpu:0"))
    works = [f"{title}, {part}" for title in titles for part in parity_images.PARTS]
    failures = []
    with Progress("decoding images") as progress:
        for number, (name, place) in enumerate(places):
            results = {}
            for work, *result in decode_samples(name, place, works):
                results[work] = result
                num_done = number * len(works) + len(results)
                progress.show(num_done, len(places) * len(works), "images")
            for title, part, finding in _judge(titles, results, name, place):
                yield finding
                if finding.state == PROBLEM:
                    kind = place.partition(":")[0]
                    is_region = part == "region"
                    failures.append(trials.Failure(name, kind, title, is_region, finding.about))
    yield from _store(failures)
    if ("dali", "gpu:0") in places:
        for number in range(device.num_gpus()):
            yield try_card(f"gpu:{number}")


def _judge(
    titles: Sequence[str], results: Mapping[str, Sequence[str]], name: str, place: str
) -> Iterator[tuple[str, str, Diagnosis]]:
    """Yield format, part and finding: first one of all formats that an executor decodes, then one
    of each part of a format that it does not.

    Args:
        titles: of the formats.
        results: state and description by format and part: ``"PNG, region"``.
        name: of the executor.
        place: its device.
    """
    good = [
        title
        for title in titles
        if all(results[f"{title}, {part}"][0] == OK for part in parity_images.PARTS)
    ]
    if good:
        about = f"{', '.join(good)}; whole and by region"
        yield "", "", Diagnosis("images", f"{name} on {place}", OK, about)
    for title, part in itertools.product(titles, parity_images.PARTS):
        state, about = results[f"{title}, {part}"]
        is_region = part == "region"
        # A format that is not decoded at all is one line; a region of it says nothing more.
        if state == OK or (is_region and results[f"{title}, whole"][0] != OK):
            continue
        subject = f"{title}{', a region' * is_region}, {name} on {place}"
        remedy = _image_remedy(state, name)
        yield title, part, Diagnosis("images", subject, state, about, remedy)


def diagnose_decoding() -> Iterator[Diagnosis]:
    """Give where images can be decoded, and which of these places ``executor="auto"`` takes for
    JPEGs of one size."""
    section, name = "decoding", decode.codec()
    host_fault, device_fault = (
        str(trials.whole_failure(*place) or "") for place in (ON_HOST, ON_DEVICE)
    )
    if name is None:
        about = "neither nvImageCodec nor Pillow is installed"
        yield Diagnosis(section, "decoding on the host", ABSENT, about, install_command("images"))
    else:
        yield _place("decoding on the host", native.how(), host_fault, 'write executor="dali"')
    if device.gpu_problem(0) is not None:
        return
    has_dali = signalsafe.is_installed("nvidia.dali")
    if has_dali:
        yield _place("decoding on a GPU", "by DALI", device_fault, 'write decode="host"')
    else:
        yield Diagnosis(
            section, "decoding on a GPU", ABSENT, "DALI is not installed", driver.install_packages()
        )
    if name is None and not has_dali:
        return
    codec = ""
    if name is not None:
        codec = "core" if native.codec() else "Python"
    conditions = decoding.Conditions(
        has_dali=has_dali,
        codec=codec,
        num_cores=threads.num_cores_for_gpu(device.num_gpus()),
        host_fault=host_fault,
        device_fault=device_fault,
    )
    place, reason = decoding.place_by_rule(conditions)
    images = "JPEGs that an op gives one size" if has_dali and codec else "images"
    yield Diagnosis(
        section, 'executor="auto" on a GPU', OK, f"has {images} decoded on the {place}: {reason}"
    )


def _place(subject: str, about: str, fault: str, remedy: str) -> Diagnosis:
    """Return the line of a place where images can be decoded; a remedy goes around its fault."""
    if fault:
        return Diagnosis("decoding", subject, PROBLEM, f"{about}, but {fault}", remedy)
    return Diagnosis("decoding", subject, OK, about)


def _store(failures: Sequence[trials.Failure]) -> Iterator[Diagnosis]:
    """Store the failures, and yield a finding that names their file and their effect."""
    section, subject = "images", "findings"
    try:
        path = trials.save(failures)
    except FileError as error:
        about = f"{error.what}: {error.cause}"
        if failures:
            remedy = f"{error.remedy}; until then loaders do not know of the failures"
            yield Diagnosis(section, subject, PROBLEM, about, remedy)
        else:
            yield Diagnosis(section, subject, ABSENT, about)
        return
    if failures:
        about = (
            f'stored in {path}: executor="auto" and decoding of regions heed them, '
            "until gpuload doctor runs again"
        )
        yield Diagnosis(section, subject, OK, about)


def _image_remedy(state: str, name: str) -> str:
    if state != PROBLEM:
        return ""
    alternative = "dali" if name == "array" else "array"
    return (
        f'install the versions of constraints.txt, or use executor="{alternative}"; '
        "gpuload parity has figures"
    )


def decode_samples(name: str, place: str, titles: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Give the title, state and description of each part of each sample, as processes of their own
    decode them.

    A process does one after the other. Where it ends, another one goes on behind the part that
    ended it.
    """
    first = 0
    while first < len(titles):
        status, out, errors = run_child(TRY_IMAGES, name, place, str(first))
        # Libraries print to stdout, too. The lines before a crash are there, as each was flushed.
        results = [(*json.loads(line),) for line in out.splitlines() if line.startswith('["')]
        yield from results
        first += len(results)
        if first < len(titles):
            yield titles[first], PROBLEM, read_fault(status, errors) or "it was not tried"
            first += 1


def try_card(place: str) -> Diagnosis:
    """Return the finding on the decoder of a GPU, by batches that a process of its own compares;
    store the verdict."""
    name, decoder = device.card_name(place), decoder_on_gpu([gl.ops.Decode()])
    status, out, errors = run_child(TRY_DECODER, place)
    # Libraries print to stdout, too.
    results = [json.loads(line) for line in out.splitlines() if line.startswith('["')]
    state, about = PROBLEM, read_fault(status, errors) or "it was not tried"
    if results:
        state, about = results[-1]
    remedy = ""
    if state != OK:
        remedy = 'use decode="host", which decodes on the host; or install another driver or DALI'
    try:
        trials.save_verdict(decoder, name, trials.Verdict(state == OK, about))
    except FileError as error:
        parts = (remedy, error.remedy, "until then loaders do not know of it")
        remedy = "; ".join(filter(None, parts))
    return Diagnosis("images", f"batches of JPEGs, dali on {place}, {name}", state, about, remedy)


def try_decoder(place: str) -> None:
    """Audit batches of JPEGs that DALI decodes on a GPU, and print a line of JSON: state and
    description."""
    jpegs = parity_images.jpegs(NUM_JPEGS, JPEG_SIDES)

    def read(numbers: Any) -> dict[str, Any]:
        return {"image": [jpegs[number] for number in numbers]}

    source = gl.records(len(jpegs), read, fields={"image": ("uint8", (None,))}).mark(
        image="encoded"
    )
    state, about = OK, f"{len(jpegs)} JPEGs, {JPEG_BATCH} at a time, have the pixels of the CPU"
    words: dict[str, Any] = {"executor": "dali", "device": place, "shuffle": True, "audit": 1.0}
    with gl.Loader(source, JPEG_BATCH, ops=[gl.ops.Decode()], **words) as loader:
        try:
            for epoch in range(2):
                for _ in loader.epoch(epoch):
                    pass
        except gl.PixelError as error:
            state, about = PROBLEM, error.what
    print(json.dumps([state, about]), flush=True)


def try_images(name: str, place: str, first: int) -> None:
    """Decode samples by an executor, and print a line of JSON for each part that is done: title,
    state, description."""
    works = (
        (title, data, part)
        for title, data in parity_images.samples()
        for part in parity_images.PARTS
    )
    for title, data, part in itertools.islice(works, first, None):
        state, about = OK, ""
        for comparison in parity_images.compare_bytes(title, data, [(name, place)], [part]):
            if comparison.verdict == "ok" or not comparison.party.startswith(name):
                continue
            # If Pillow or OpenCV cannot read the format, that says nothing about the executor.
            if comparison.is_refusal and comparison.against != "array on cpu":
                continue
            state, about = PROBLEM, comparison.numbers
            if comparison.is_refusal:
                cause = re.search(r"cause: (.*?) remedy:", about)
                state = ABSENT
                if cause:
                    about = cause[1]
        print(json.dumps([f"{title}, {part}", state, about]), flush=True)

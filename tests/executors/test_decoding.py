"""The rule by which images are decoded on the host or on the GPU."""

from __future__ import annotations

import pytest

from gpuload.executors.decoding import CPU_ENDINGS, MIN_CORES, Conditions, place_by_rule


@pytest.mark.parametrize(
    ("place", "reason", "words"),
    [
        ("host", "DALI is not installed", {"has_dali": False, "codec": "Python", "num_cores": 1}),
        ("device", "neither nvImageCodec nor Pillow", {"codec": ""}),
        ("device", "the hardware decoder", {"wants_hardware": True}),
        ("host", "found of DALI", {"device_fault": "found of DALI", "num_cores": 1}),
        ("device", "found of the core", {"host_fault": "found of the core"}),
        (
            "host",
            "3 cores for each GPU",
            {"host_fault": "found of the core", "device_fault": "found of DALI"},
        ),
        ("device", "no op behind Decode gives the images one size", {"has_one_size": False}),
        ("device", "Python is slower", {"codec": "Python"}),
        ("host", "files named .png", {"endings": frozenset((".png",)), "num_cores": 1}),
        (
            "host",
            "files named .gif, .png",
            {"endings": frozenset((".png", ".gif")), "num_cores": 1},
        ),
        ("device", "1 of the 3 cores", {"endings": frozenset((".png", ".jpg")), "num_cores": 1}),
        ("device", "1 of the 3 cores", {"endings": frozenset((".tar",)), "num_cores": 1}),
        ("device", "2 of the 3 cores", {"num_cores": 2}),
        ("host", "3 cores for each GPU", {"num_cores": 3}),
        ("host", "64 cores for each GPU", {"num_cores": 64}),
    ],
)
def test_the_first_line_that_holds_decides(place, reason, words):
    chosen, why = place_by_rule(Conditions(**words))

    assert chosen == place
    assert reason in why


def test_the_conditions_by_themselves_are_those_of_the_host_lane():
    assert place_by_rule(Conditions()) == ("host", f"there are {MIN_CORES} cores for each GPU")
    assert all(ending.startswith(".") and ending == ending.lower() for ending in CPU_ENDINGS)

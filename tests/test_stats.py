"""Counters count, from any thread, and say what they mean."""

from __future__ import annotations

import threading

from gpuload.stats import MEANING, Counters, Stats


def test_counts_from_many_threads_add_up():
    counters = Counters()
    threads = [
        threading.Thread(target=lambda: [counters.add(batches=1, wait_s=0.5) for _ in range(1000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.stats()["batches"] == 4000
    assert counters.stats()["wait_s"] == 2000


def test_every_counter_is_shown_with_its_meaning():
    text = str(Counters().stats())
    words = " ".join(text.split())
    assert all(name in words and meaning in words for name, meaning in MEANING.items())
    assert max(map(len, text.splitlines())) <= 80


def test_seconds_and_shares_are_shown_with_three_decimals_and_counts_without():
    stats = Stats({"batches": 12, "wait_s": 1.25, "fill": 0.5})

    numbers = [line.split()[1] for line in str(stats).splitlines() if not line.startswith(" ")]
    assert numbers == ["12", "1.250", "0.500"]


def test_stats_are_those_of_the_moment():
    counters = Counters()
    before = counters.stats()
    counters.add(batches=1)
    assert before["batches"] == 0


def test_batches_that_are_handed_out_are_counted_when_somebody_looks():
    counters = Counters()
    for number in range(3):
        counters.deliver(number, 100)
        assert (counters.stats()["batches"], counters.stats()["bytes"]) == (number + 1, 100 * (number + 1))
    assert counters.stats()["records"] == 3

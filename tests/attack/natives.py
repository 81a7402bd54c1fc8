"""The C++ of the core under sanitizers and a fuzzer; see `tests.core.fuzz`."""

from __future__ import annotations

import resource
from collections import Counter

from tests.attack.hunt import FINDINGS_FOLDER, Report
from tests.core.fuzz import run

LEAST_S = 1  # for a target: what is started for less starts for nothing


def attack(seconds: float, seed: int) -> Report:
    """Run each target for its part of the time, two at a time."""
    if run.engine() is None:
        return Report(without="all of it: there is no C++ compiler")
    _, limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (limit, limit)
    )  # AddressSanitizer reserves terabytes of addresses
    report = Report()
    for name, outcome in run.run(
        run.NAMES, max(LEAST_S, 2 * seconds / len(run.NAMES)), seed, FINDINGS_FOLDER, width=2
    ).items():
        report.outcomes += Counter({f"inputs to {name}": outcome.executions})
        if outcome.finding:
            report.findings.append(f"SEED={seed}, {name}: {outcome.finding}")
    return report

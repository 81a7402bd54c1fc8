"""``gl.shard``: the rank that a launcher says, by name or by the agreement of all; never a
guess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpuload as gl
from gpuload.bridges import ranks
from gpuload.errors import SpecError

ROOT = Path(__file__).parents[2]
CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1", "d:1"], "ps": ["e:1"]}
# As the launchers set them for the process that they count as 2 of 4.
ENVIRONMENTS = {
    "torch": {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
    },
    "slurm": {
        "SLURM_PROCID": "2",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_NTASKS": "4",
        "SLURM_LOCALID": "0",
    },
    "jobset": {"JOB_COMPLETION_INDEX": "2", "JOB_COMPLETIONS": "4"},
    "mpi": {
        "OMPI_COMM_WORLD_RANK": "2",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    },
    "tf": {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}})},
}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start from a process that no launcher started, and that has imported no framework."""
    for name in {name for environment in ENVIRONMENTS.values() for name in environment} | {
        *(
            "PMI_RANK",
            "PMI_SIZE",
            "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_SIZE",
            "JOB_INDEX",
            "REPLICATED_JOB_REPLICAS",
        ),
    }:
        monkeypatch.delenv(name, raising=False)
    for name in ("torch", "jax", "ray"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def put(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("launcher", ENVIRONMENTS)
@pytest.mark.parametrize("name", ["auto", "itself"])
def test_a_launcher_says_the_rank_by_its_variables(
    launcher: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, **ENVIRONMENTS[launcher])

    assert gl.shard("auto" if name == "auto" else launcher) == {"shard_id": 2, "num_shards": 4}


@pytest.mark.parametrize(
    "variables", [("PMI_RANK", "PMI_SIZE"), ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE")]
)
def test_other_mpis_have_other_variables(
    variables: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, **dict(zip(variables, ("0", "3"), strict=True)))

    assert gl.shard("mpi") == gl.shard() == {"shard_id": 0, "num_shards": 3}


def test_the_loader_takes_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, RANK="1", WORLD_SIZE="3")

    with gl.Loader(gl.arrays(x=list(range(9))), 1, device="cpu", **gl.shard("torch")) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[1], [4], [7]]


def test_launchers_that_agree_are_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for environment in ENVIRONMENTS.values():
        put(monkeypatch, **environment)

    assert gl.shard() == {"shard_id": 2, "num_shards": 4}


def test_launchers_that_disagree_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm starts one torchrun on each of two nodes, and each of these eight workers."""
    put(monkeypatch, RANK="11", WORLD_SIZE="16", SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2")

    with pytest.raises(SpecError) as error:
        gl.shard()

    assert str(error.value).splitlines()[0] == (
        "torch and slurm disagree about the rank of this process: 11 of 16 (RANK and WORLD_SIZE), "
        "1 of 2 (SLURM_PROCID and SLURM_STEP_NUM_TASKS)"
    )
    assert 'gl.shard("torch") or gl.shard("slurm")' in str(error.value)
    assert gl.shard("torch") == {"shard_id": 11, "num_shards": 16}
    assert gl.shard("slurm") == {"shard_id": 1, "num_shards": 2}


def test_two_variables_of_one_launcher_that_disagree_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(monkeypatch, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2", PMI_RANK="0", PMI_SIZE="1")

    with pytest.raises(
        SpecError, match=r"variables of mpi disagree.*OMPI_COMM_WORLD_RANK.*PMI_RANK"
    ):
        gl.shard("mpi")


def test_without_a_launcher_nothing_is_guessed() -> None:
    with pytest.raises(
        SpecError, match=r"none of the launchers torch, tf, [\s\S]*shard_id= and num_shards="
    ):
        gl.shard()


@pytest.mark.parametrize("launcher", ENVIRONMENTS)
def test_the_launcher_that_was_named_must_have_started_the_process(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, **ENVIRONMENTS["mpi" if launcher == "slurm" else "slurm"])

    with pytest.raises(SpecError, match=f"shard\\('{launcher}'\\)"):
        gl.shard(launcher)


def test_a_batch_script_of_slurm_is_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, SLURM_PROCID="0", SLURM_NTASKS="8")

    for launcher in ("auto", "slurm"):
        with pytest.raises(
            SpecError, match=r"without SLURM_STEP_NUM_TASKS[\s\S]*srun python train\.py"
        ):
            gl.shard(launcher)


def test_a_pod_needs_the_number_of_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, JOB_COMPLETION_INDEX="1")

    for launcher in ("auto", "jobset"):
        with pytest.raises(SpecError, match=r"without JOB_COMPLETIONS[\s\S]*in the manifest"):
            gl.shard(launcher)
    put(monkeypatch, RANK="1", WORLD_SIZE="2")  # torchrun in a pod
    assert gl.shard() == {"shard_id": 1, "num_shards": 2}


def test_replicas_of_a_jobset_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    for job in range(3):
        for pod in range(2):
            put(monkeypatch, JOB_COMPLETION_INDEX=str(pod), JOB_COMPLETIONS="2")
            put(monkeypatch, JOB_INDEX=str(job), REPLICATED_JOB_REPLICAS="3")
            places.append(gl.shard("jobset"))

    assert places == [{"shard_id": number, "num_shards": 6} for number in range(6)]


@pytest.mark.parametrize(
    ("kind", "index", "number"), [("chief", 0, 0), ("worker", 0, 1), ("worker", 2, 3)]
)
def test_the_chief_of_tf_config_comes_first(
    kind: str, index: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(
        monkeypatch,
        TF_CONFIG=json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}}),
    )

    assert gl.shard("tf") == {"shard_id": number, "num_shards": 4}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "names no cluster and task"),
        ("[1]", "names no cluster and task"),
        (json.dumps({"cluster": CLUSTER}), "names no cluster and task"),
        (
            json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": "x"}}),
            "names no cluster and task",
        ),
        (
            json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 3}}),
            "task 3 of 3 tasks 'worker'",
        ),
        (
            json.dumps({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}),
            "without gl.shard",
        ),
        (json.dumps({"cluster": {}, "task": {"type": "worker", "index": 0}}), "names no cluster"),
    ],
)
def test_a_wrong_tf_config_is_refused(
    config: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, TF_CONFIG=config)

    with pytest.raises(SpecError, match=words):
        gl.shard("tf")


@pytest.mark.parametrize(
    ("number", "count", "words"),
    [
        ("x", "2", "RANK is 'x'"),
        ("", "2", "RANK is ''"),
        ("-1", "2", "RANK is '-1'"),
        ("1.0", "2", "RANK is '1.0'"),
        ("9" * 20, "2", "RANK is '9999"),
        ("0", "two", "WORLD_SIZE is 'two'"),
        ("2", "2", "ranks of 2 processes are 0 to 1"),
        ("0", "0", "rank 0 of 0"),
    ],
)
def test_variables_that_hold_no_rank_are_named(
    number: str, count: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, RANK=number, WORLD_SIZE=count)

    for launcher in ("auto", "torch"):
        with pytest.raises(SpecError, match=words):
            gl.shard(launcher)


@pytest.mark.parametrize("launcher", ["horovod", "", None, 3, ("torch",)])
def test_an_unknown_launcher_is_refused(launcher: object) -> None:
    with pytest.raises(
        SpecError,
        match=r"use one of 'torch', 'tf', 'jax', 'slurm', 'jobset', 'ray', 'mpi', or \"auto\"",
    ):
        gl.shard(launcher)  # type: ignore[arg-type]


def test_a_framework_that_runs_is_a_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework that this program has imported, and that knows of other processes, has to
    agree."""
    entry = ranks.LAUNCHERS["jax"]
    monkeypatch.setitem(sys.modules, "jax", sys)
    monkeypatch.setitem(
        ranks.LAUNCHERS,
        "jax",
        ranks.Launcher(entry.absence, entry.remedy, None, "jax", lambda: (1, 2)),
    )

    assert gl.shard() == gl.shard("jax") == {"shard_id": 1, "num_shards": 2}
    put(monkeypatch, SLURM_PROCID="2", SLURM_STEP_NUM_TASKS="4")
    with pytest.raises(SpecError, match=r"jax and slurm disagree.*1 of 2 \(jax itself\), 2 of 4"):
        gl.shard()


RANK = """
import json, os, signal, sys
import gpuload as gl
folder, launcher, fate = sys.argv[1:]
shard = gl.shard(launcher)
source, size = gl.arrays(y=list(range(46))), 6 // shard["num_shards"]
loader = gl.Loader(source, size, shuffle=True, seed=5, device="cpu", **shard)
state = os.path.join(folder, "state.json")
if fate != "kill":
    loader.load_state_dict(json.load(open(state)))
with open(os.path.join(folder, f"{fate}-{shard['shard_id']}.jsonl"), "w") as log:
    for batch in loader:
        print(json.dumps([batch.step, batch.records.tolist()]), file=log, flush=True)
        if fate == "kill" and batch.step == 2:
            if shard["shard_id"] == 0:
                with open(state, "w") as file:
                    json.dump(loader.state_dict(), file)
            os.kill(os.getpid(), signal.SIGKILL)
"""


def run_ranks(code: str, folder: Path, launcher: str, count: int, fate: str) -> list[int]:
    """Run so many processes as a launcher starts them; return their exit statuses."""
    names = {
        "slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        "jobset": ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),
    }
    names |= {"mpi": ("PMI_RANK", "PMI_SIZE"), "torch": ("RANK", "WORLD_SIZE")}
    number_name, count_name = names[launcher]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder), launcher, fate],
            env={**os.environ, number_name: str(rank), count_name: str(count)}, cwd=ROOT,
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        return [child.wait(timeout=110) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "before", "after"), [("slurm", 2, 3), ("jobset", 3, 1), ("mpi", 1, 2)]
)
def test_ranks_that_were_killed_go_on_as_another_number_of_ranks(
    launcher: str, before: int, after: int, tmp_path: Path
) -> None:
    assert run_ranks(RANK, tmp_path, launcher, before, "kill") == [-9] * before
    assert run_ranks(RANK, tmp_path, launcher, after, "go on") == [0] * after

    lines = [
        json.loads(line)
        for path in tmp_path.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sorted(record for _, records in lines for record in records) == list(range(46))

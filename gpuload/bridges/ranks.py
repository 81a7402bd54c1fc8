"""Ranks: which of the processes of a training this is, as the launcher or the framework that
started them says it.

    loader = gl.Loader(source, batch_size=256, shuffle=True, seed=7, **gl.shard("slurm"))

Name       Launcher                                               Where it stands
"torch"    torch.distributed, once it is initialised              ``get_rank()``, ``get_world_size()``
           torchrun, and all that set the same                    ``RANK``, ``WORLD_SIZE``
"jax"      JAX, once ``jax.distributed`` is initialised           ``process_index()``, ``process_count()``
"ray"      Ray Train, in the function that its workers run        ``ray.train.get_context()``
"tf"       the program of tf.distribute                           ``TF_CONFIG``: the chief first, then the workers
"slurm"    srun                                                   ``SLURM_PROCID``, ``SLURM_STEP_NUM_TASKS``
"jobset"   indexed Jobs and JobSets of Kubernetes                 ``JOB_COMPLETION_INDEX``, ``JOB_COMPLETIONS``
"mpi"      mpirun of Open MPI, MPICH, Intel MPI and MVAPICH       ``OMPI_COMM_WORLD_RANK``, ``PMI_RANK``, ``MV2_...``

Auto       ``"auto"`` asks all of them. If two of them disagree, an error names both: a node's
           torchrun is one task of Slurm, and its workers are several. If none of them answers, that
           is an error, too: eight processes of which each takes itself for the only one would train
           on every record eight times.
Slurm      A batch script has ``SLURM_PROCID=0`` and ``SLURM_NTASKS``, too. So the number of tasks
           of the step counts, which srun sets alone.
Jobs       Kubernetes tells a pod its index, and not how many pods there are: the manifest sets
           ``JOB_COMPLETIONS``. Of several replicas of a JobSet it also sets ``JOB_INDEX`` and
           ``REPLICATED_JOB_REPLICAS``.
Frameworks A framework is asked by ``"auto"`` if the program has imported it; nothing is imported
for the question.
Sources    srun(1), torchrun (PyTorch, elastic/run),
           tensorflow/python/distribute/multi_worker_util.py (id_in_cluster), kubernetes.io: Indexed
           Job, mpirun(1) of Open MPI, the process management interface PMI-1 of MPICH.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuload.errors import SpecError, short_repr
from gpuload.lazy import function
from gpuload.tracebacks import public

Environment = Mapping[str, str]
NUMBER = re.compile("[0-9]{1,9}")
MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
)
TRAINING_TASKS = ("chief", "master", "worker")  # of tf.distribute; the others are ps and evaluator
torch_rank = function("gpuload.bridges.torch", "process_rank")
jax_rank = function("gpuload.bridges.jax", "process_rank")
ray_rank = function("gpuload.bridges.ray", "process_rank")


@dataclass(frozen=True)
class Rank:
    """The number of a process among those that train together, as one witness says it.

    Attributes:
        place: where it stands, ``"RANK and WORLD_SIZE"``.
        number: 0 is the first.
        count: of all processes.
    """

    place: str
    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number} of {self.count} ({self.place})"


@public
def shard(launcher: str = "auto") -> dict[str, int]:
    """Return the arguments of a loader that say which share of the records this process reads.

    Args:
        launcher: that started this process: ``"torch"``, ``"tf"``, ``"jax"``, ``"slurm"``,
            ``"jobset"``, ``"ray"`` or ``"mpi"``. ``"auto"`` asks all of them, and they must agree.

    Returns:
        ``{"shard_id": rank, "num_shards": number of processes}``, for
        ``gl.Loader(..., **gl.shard("torch"))``.

    Raises:
        SpecError: the launcher is unknown, did not start this process, names no rank, or
            disagrees with another one.
    """
    if not isinstance(launcher, str) or launcher not in ("auto", *LAUNCHERS):
        raise SpecError(
            f"shard({short_repr(launcher)})",
            cause="it is the name of the launcher that starts the processes",
            remedy=f'use one of {", ".join(map(repr, LAUNCHERS))}, or "auto"',
        )
    environment: Environment = os.environ
    if launcher == "auto":
        rank = _agreed_rank(environment)
    else:
        entry = LAUNCHERS[launcher]
        answers = entry.ranks(environment, is_named=True)
        if not answers:
            raise SpecError(f"shard({launcher!r})", cause=entry.absence, remedy=entry.remedy)
        rank = _check_agreement({launcher: answers})
    return {"shard_id": rank.number, "num_shards": rank.count}


def _agreed_rank(environment: Environment) -> Rank:
    """Return the rank on which all launchers agree that started this process."""
    answers: dict[str, list[Rank]] = {}
    problems: list[SpecError] = []
    for name, entry in LAUNCHERS.items():
        try:
            if ranks := entry.ranks(environment, is_named=False):
                answers[name] = ranks
        except _PartError as error:
            problems.append(error.error)
    if answers:
        return _check_agreement(answers)
    if problems:
        raise problems[0]
    raise SpecError(
        'shard("auto")',
        cause=f"none of the launchers {', '.join(LAUNCHERS)} started this process, as far as it "
        "can be seen",
        remedy="pass shard_id= and num_shards= to the loader; a process that trains alone needs "
        "neither",
    )


def _check_agreement(answers: Mapping[str, list[Rank]]) -> Rank:
    """Return the rank that all witnesses name; raises ``SpecError`` that names two that
    disagree."""
    witnesses = [(name, rank) for name, ranks in answers.items() for rank in ranks]
    first_name, first = witnesses[0]
    for name, rank in witnesses[1:]:
        if (rank.number, rank.count) != (first.number, first.count):
            names, cause = (
                f"{first_name} and {name}",
                "one of them started the processes that train, ",
            )
            cause += "the other one something around them"
            remedy = f'name the one that counts: gl.shard("{first_name}") or gl.shard("{name}")'
            if name == first_name:
                names, cause = (
                    f"the variables of {name}",
                    "they are of two launches, one inside the other",
                )
                remedy = "pass shard_id= and num_shards= to the loader, or remove the variables of "
                remedy += "the outer one"
            subject = f"{names} disagree about the rank of this process: {first}, {rank}"
            raise SpecError(subject, cause=cause, remedy=remedy)
    return first


class _PartError(Exception):
    """A launcher set a part of its variables; with another launcher this does not matter."""

    def __init__(self, error: SpecError) -> None:
        super().__init__(str(error))
        self.error = error


# --- the launchers


@dataclass(frozen=True)
class Launcher:
    """A launcher, or a framework that knows the processes.

    Attributes:
        absence: the cause of an error if it was named and answers nothing.
        remedy: of that error.
        variables: returns the ranks that the environment names, none if the launcher did not start
            this process; raises ``_PartError`` if something is missing. None: it sets no variables.
        framework: the package that ``framework_rank`` asks; no text: there is none.
        framework_rank: returns rank and number of processes, or None if the framework knows of
            none.
    """

    absence: str
    remedy: str
    variables: Callable[[Environment], list[Rank]] | None = None
    framework: str = ""
    framework_rank: Callable[[], tuple[int, int] | None] | None = None

    def ranks(self, environment: Environment, *, is_named: bool) -> list[Rank]:
        """Return the ranks that it names; raises ``_PartError`` if a part is missing, of a named
        one ``SpecError``."""
        answers: list[Rank] = []
        # A framework that is not imported knows of no ranks, and its import would take seconds.
        if self.framework_rank and (
            self.framework in sys.modules or (is_named and not self.variables)
        ):
            pair = self.framework_rank()
            if pair is not None:
                answers = [Rank(f"{self.framework} itself", *pair)]
        try:
            if self.variables:
                answers = answers + self.variables(environment)
            return answers
        except _PartError as error:
            if answers:
                return answers
            raise error.error if is_named else error from None


def _pair(
    environment: Environment, number_name: str, count_name: str, part_remedy: str
) -> list[Rank]:
    """Return the rank that two variables have; none if the first one is not set.

    Raises:
        _PartError: the second one is missing.
        SpecError: they hold no rank.
    """
    if number_name not in environment:
        return []
    if count_name not in environment:
        raise _PartError(
            SpecError(
                f"{number_name} = {environment[number_name][:50]!r} without {count_name}",
                cause="a rank without the number of processes says nothing",
                remedy=part_remedy,
            )
        )
    number, count = _parse_number(environment, number_name), _parse_number(environment, count_name)
    return [_check_rank(Rank(f"{number_name} and {count_name}", number, count))]


def _parse_number(environment: Environment, name: str) -> int:
    text = environment[name].strip()
    if not NUMBER.fullmatch(text):
        raise SpecError(
            f"the environment variable {name} is {text[:50]!r}",
            cause="it is no whole number",
            remedy="set it as the launcher does, or remove it",
        )
    return int(text)


def _check_rank(rank: Rank) -> Rank:
    if not rank.number < rank.count:
        raise SpecError(
            f"rank {rank}",
            cause=f"ranks of {rank.count} processes are 0 to {rank.count - 1}",
            remedy="set the variables as the launcher does, or pass shard_id= and num_shards= to "
            "the loader",
        )
    return rank


def _torchrun(environment: Environment) -> list[Rank]:
    return _pair(environment, "RANK", "WORLD_SIZE", "start the program by torchrun, or set both")


def _slurm(environment: Environment) -> list[Rank]:
    return _pair(
        environment,
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "a batch script starts its tasks by srun: write `srun python train.py`",
    )


def _mpi(environment: Environment) -> list[Rank]:
    return [
        rank
        for names in MPI_VARIABLES
        for rank in _pair(environment, *names, "start the program by mpirun, or set both")
    ]


def _jobset(environment: Environment) -> list[Rank]:
    """Return the rank of a pod: the pods of the first replica of its Job come first."""
    remedy = "set JOB_COMPLETIONS in the pod's env to the number of `completions:`, beside it in the manifest"
    pods = _pair(environment, "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", remedy)
    remedy = "set it in the pod's env from the label jobset.sigs.k8s.io/replicatedjob-replicas"
    if pods:
        jobs = _pair(environment, "JOB_INDEX", "REPLICATED_JOB_REPLICAS", remedy)
    else:
        jobs = []
    if not jobs:
        return pods
    [pod], [job] = pods, jobs
    return [
        Rank(
            f"{pod.place}, {job.place}", job.number * pod.count + pod.number, job.count * pod.count
        )
    ]


def _tf_config(environment: Environment) -> list[Rank]:
    """Return the rank of a task of tf.distribute: the chief is the first one, the workers
    follow."""
    text = environment.get("TF_CONFIG", "")
    if not text.strip():
        return []
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        if not cluster:
            return []  # as TensorFlow has it: one process
        kind, number = task["type"], int(task["index"])
        counts = {name: len(cluster.get(name, ())) for name in TRAINING_TASKS}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SpecError(
            f"the environment variable TF_CONFIG is {text[:200]!r}",
            cause="it names no cluster and task",
            remedy='write {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", '
            '"index": 0}}',
        ) from None
    if kind not in TRAINING_TASKS:
        raise SpecError(
            f"TF_CONFIG: the task is {short_repr(kind, 50)}",
            cause="only the chief and the workers have a share of the records to train on",
            remedy="make the loader of an evaluator without gl.shard: it reads all of its records",
        )
    before = sum(counts[name] for name in TRAINING_TASKS[: TRAINING_TASKS.index(kind)])
    if not 0 <= number < counts[kind]:
        raise SpecError(
            f"TF_CONFIG: task {number} of {counts[kind]} tasks {kind!r}",
            cause="the cluster has no such task",
            remedy="count the tasks of each type from 0",
        )
    return [Rank("TF_CONFIG", before + number, sum(counts.values()))]


LAUNCHERS: dict[str, Launcher] = {
    "torch": Launcher(
        "torch.distributed is not initialised in this process, and RANK is not set",
        "start the program by torchrun, or call torch.distributed.init_process_group() before",
        _torchrun,
        "torch",
        torch_rank,
    ),
    "tf": Launcher(
        "TF_CONFIG is not set, or names no cluster", "set it as tf.distribute needs it", _tf_config
    ),
    "jax": Launcher(
        "jax.distributed is not initialised in this process",
        "call jax.distributed.initialize() before, or leave gl.shard out in a process that trains "
        "alone",
        framework="jax",
        framework_rank=jax_rank,
    ),
    "slurm": Launcher(
        "srun did not start this process, or its variables were removed",
        "write `srun python train.py` in the batch script",
        _slurm,
    ),
    "jobset": Launcher(
        "JOB_COMPLETION_INDEX is not set",
        'give the Job completionMode: "Indexed" (a JobSet does so)',
        _jobset,
    ),
    "ray": Launcher(
        "this is no worker of Ray Train",
        "call gl.shard in the function that the trainer runs on its workers",
        framework="ray",
        framework_rank=ray_rank,
    ),
    "mpi": Launcher(
        "mpirun did not start this process, or its variables were removed",
        "write `mpirun -n 4 python train.py`",
        _mpi,
    ),
}

"""The example programs under their launchers: a rank is killed, and each record of each epoch was
trained on once.

The programs count how often a record was trained on in the checkpoint that holds the model, so that
steps that are lost with the model do not count. ``make test-launchers`` brings torch and two kinds
of mpirun.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

import gpuload as gl
from tests.launchers import slurm as slurm_here

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DYING = ROOT / "tests" / "launchers" / "dying.py"
MPIRUNS = [Path(path) for path in os.environ.get("GPULOAD_MPIRUNS", "").split(":") if path]
LAUNCHERS = ("RANK", "WORLD_SIZE", "TF_CONFIG")  # variables that a test must not inherit
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in LAUNCHERS},
    "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3",
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}  # fmt: skip

slow = [pytest.mark.slow, pytest.mark.timeout(1200)]
Command = tuple[list[str], dict[str, str]]  # and its variables


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not find_spec(name), reason=f"{name} is not installed; make test-launchers brings it"
    )


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


def program(name: str, folder: Path, mark: str, rank: int, batch: int) -> list[str]:
    """Return a program and its arguments; the rank is killed as it takes that batch, unless the
    mark is there."""
    return [
        str(DYING),
        str(folder / mark),
        str(rank),
        str(batch),
        str(EXAMPLES / name),
        str(folder / "run"),
    ]


def run(commands: Sequence[Command], folder: Path) -> tuple[bool, str]:
    """Run processes side by side; if one of them fails, the others are killed, as a job manager
    does it.

    Returns:
        Whether all came to their ends, and what they printed.
    """
    logs = [folder / f"{number}.log" for number in range(len(commands))]
    children = []
    try:
        for (command, variables), log in zip(commands, logs, strict=True):
            with log.open("w") as out:
                environment = {**ENVIRONMENT, **variables}
                children.append(
                    subprocess.Popen(
                        command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT
                    )
                )
        waiting = {os.pidfd_open(child.pid): child for child in children}
        while waiting:
            for descriptor in select.select([*waiting], [], [])[0]:
                if waiting.pop(descriptor).wait() != 0:
                    for child in children:
                        child.kill()
                os.close(descriptor)
    finally:
        for child in children:
            child.kill()
            child.wait()
    return all(child.returncode == 0 for child in children), "".join(
        log.read_text() for log in logs
    )


def check(outcome: tuple[bool, str], num_ranks: int) -> None:
    """Check that a training came to its end, with each record in each of its two epochs once."""
    has_ended, output = outcome
    assert has_ended, output[-5000:]
    assert f"{num_ranks} ranks; each record was trained on [2] times" in output


def torchrun(folder: Path, num_ranks: int, num_restarts: int, mark: str, batch: int) -> Command:
    options = [
        "--standalone",
        "--nproc-per-node",
        str(num_ranks),
        "--max-restarts",
        str(num_restarts),
    ]
    command = [sys.executable, "-m", "torch.distributed.run", *options]
    variables = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"
    }  # https://github.com/pytorch/pytorch/issues/135712
    return [*command, *program("launch_torch.py", folder, mark, num_ranks - 1, batch)], variables


@needs("torch")
class TestTorchrun:
    pytestmark = slow

    def test_starts_a_killed_rank_again_and_another_number_of_ranks_goes_on(
        self, tmp_path: Path
    ) -> None:
        has_ended, output = run([torchrun(tmp_path, 2, 0, "first", 18)], tmp_path)
        assert not has_ended
        assert "SIGKILL" in output
        assert (tmp_path / "first").exists()

        check(run([torchrun(tmp_path, 3, 1, "second", 20)], tmp_path), 3)

        assert (tmp_path / "second").exists()

    def test_leaves_no_thread_of_gloo_that_could_abort_pythons_end(self, tmp_path: Path) -> None:
        text = (
            "import contextlib, os, runpy, sys\n"
            "sys.argv = sys.argv[1:]\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')\n"
            "for thread in os.listdir('/proc/self/task'):\n"
            "    with contextlib.suppress(OSError):  # it has ended just now\n"
            "        print(open(f'/proc/self/task/{thread}/comm').read())\n"
        )
        ranks = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_ports(1)[0]),
        }
        command = [
            sys.executable,
            "-c",
            text,
            str(EXAMPLES / "launch_torch.py"),
            str(tmp_path / "run"),
        ]

        has_ended, output = run([(command, ranks)], tmp_path)

        check((has_ended, output), 1)
        assert "python" in output
        assert "gloo" not in output


@needs("torch")
@pytest.mark.skipif(not MPIRUNS, reason="no mpirun; make test-launchers brings two")
class TestMpirun:
    pytestmark = slow

    @pytest.mark.parametrize("mpirun", MPIRUNS, ids=lambda path: path.parts[-3])
    def test_ranks_go_on_as_another_number_of_ranks(self, mpirun: Path, tmp_path: Path) -> None:
        def command(num_ranks: int) -> Command:
            variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
            ranks = [str(mpirun), "-n", str(num_ranks), sys.executable]
            if mpirun.parts[-3] == "openmpi":
                ranks[1:1] = ["--oversubscribe"]
            return [*ranks, *program("launch_torch.py", tmp_path, "mark", 1, 18)], variables

        has_ended, output = run([command(2)], tmp_path)
        assert not has_ended, output
        assert (tmp_path / "mark").exists(), output

        check(run([command(3)], tmp_path), 3)


@needs("jax")
class TestJax:
    pytestmark = slow

    def test_processes_go_on_as_another_number_of_processes(self, tmp_path: Path) -> None:
        def commands(count: int) -> list[Command]:
            address = f"127.0.0.1:{free_ports(1)[0]}"
            ranked = program("launch_jax.py", tmp_path, "mark", 1, 18)
            return [
                ([sys.executable, *ranked, address, str(count), str(rank)], {})
                for rank in range(count)
            ]

        has_ended, output = run(commands(2), tmp_path)
        assert not has_ended
        assert (tmp_path / "mark").exists(), output

        check(run(commands(3), tmp_path), 3)


@needs("tensorflow")
class TestMultiWorkerMirroredStrategy:
    pytestmark = slow

    def test_workers_go_on_as_another_number_of_workers(self, tmp_path: Path) -> None:
        def commands(count: int) -> list[Command]:
            workers = [f"127.0.0.1:{port}" for port in free_ports(count)]
            configs = [
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
                for rank in range(count)
            ]
            command = [sys.executable, *program("launch_mwms.py", tmp_path, "mark", 1, 18)]
            return [(command, {"TF_CONFIG": json.dumps(config)}) for config in configs]

        has_ended, output = run(commands(2), tmp_path)
        assert not has_ended
        assert (tmp_path / "mark").exists(), output

        check(run(commands(3), tmp_path), 3)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A Slurm of this machine: the variables by which its programs find it."""
    if reason := slurm_here.missing():
        pytest.skip(reason)
    with slurm_here.running(tmp_path_factory.mktemp("slurm"), free_ports(2)) as variables:
        yield variables


class TestSlurm:
    pytestmark = slow

    def test_each_task_of_srun_has_its_shard(self, slurm: dict[str, str], tmp_path: Path) -> None:
        text = "import gpuload as gl; print(gl.shard('slurm'), gl.shard() == gl.shard('slurm'))"
        has_ended, output = run(
            [(["srun", "-n", "3", sys.executable, "-c", text], slurm)], tmp_path
        )
        assert has_ended, output
        expected = [f"{{'shard_id': {rank}, 'num_shards': 3}} True" for rank in range(3)]
        assert sorted(output.splitlines()) == expected

    def test_a_batch_script_by_itself_is_no_rank(
        self, slurm: dict[str, str], tmp_path: Path
    ) -> None:
        script = tmp_path / "job.sh"
        ask = "import gpuload as gl; gl.shard('slurm')"
        script.write_text(f'#!/bin/bash\n#SBATCH --ntasks=2\n{sys.executable} -c "{ask}"\n')
        has_ended, output = sbatch(slurm, tmp_path, script)
        assert not has_ended
        assert "srun" in output, output

    @needs("torch")
    def test_a_killed_rank_ends_the_job_and_another_number_of_ranks_goes_on(
        self, slurm: dict[str, str], tmp_path: Path
    ) -> None:
        """The script of the example, in which the program is killed by what Python imports at its
        start."""
        dying = tmp_path / "dying"
        dying.mkdir()
        (dying / "sitecustomize.py").write_text(
            "import sys\n"
            "if any(word.endswith('launch_torch.py') for word in sys.orig_argv):\n"
            "    from pathlib import Path\n"
            "    from tests.launchers.dying import die_at\n"
            f"    die_at(Path({str(tmp_path / 'mark')!r}), 1, 18)\n"
        )
        variables = {
            **slurm,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{dying}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}",
        }
        script = [EXAMPLES / "launch_slurm.sh", tmp_path / "run"]
        has_ended, output = sbatch(
            variables, tmp_path, *script, options=["--nodes=1", "--ntasks-per-node=2"]
        )
        assert not has_ended, output
        assert (tmp_path / "mark").exists(), output

        check(sbatch(variables, tmp_path, *script, options=["--nodes=1", "--ntasks-per-node=3"]), 3)


def sbatch(
    variables: dict[str, str], folder: Path, *script: Path, options: Sequence[str] = ()
) -> tuple[bool, str]:
    """Run a batch script and wait for its end; return whether it came to it, and what it
    printed."""
    log = folder / "job.log"
    log.unlink(missing_ok=True)
    words = ["sbatch", "--wait", f"--output={log}", *options, *map(str, script)]
    has_ended, output = run([(words, variables)], folder)
    return has_ended, output + (log.read_text() if log.exists() else "")


# --- launchers that do not run on one machine


def test_the_manifest_of_a_jobset_says_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    jobset = yaml.safe_load((EXAMPLES / "launch_jobset.yaml").read_text(encoding="utf-8"))
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    for item in container["env"]:
        monkeypatch.setenv(item["name"], item["value"])

    ranks = []
    for index in range(spec["completions"]):
        monkeypatch.setenv("JOB_COMPLETION_INDEX", str(index))  # as Kubernetes sets it
        ranks.append(gl.shard("jobset"))

    assert ranks == [{"shard_id": index, "num_shards": 4} for index in range(4)]
    first_pod = f"{jobset['metadata']['name']}-{job['name']}-0-0"
    assert os.environ["MASTER_ADDR"] == f"{first_pod}.{jobset['metadata']['name']}"
    assert (ROOT / container["command"][1]).exists()


def test_the_batch_script_of_slurm_is_sound() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("shellcheck is not installed")

    subprocess.run([shellcheck, EXAMPLES / "launch_slurm.sh"], check=True)


def test_the_batch_script_of_slurm_starts_the_program_with_a_place_to_meet(tmp_path: Path) -> None:
    """With programs in place of Slurm's: what the script passes on."""
    for name, text in {
        "scontrol": 'echo "$3-0"; echo "$3-1"',
        "srun": 'echo "srun $*"; echo "$MASTER_ADDR $MASTER_PORT"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "n",
        "SLURM_JOB_ID": "1234567",
    }

    has_ended, output = run(
        [([str(EXAMPLES / "launch_slurm.sh"), "/shared/run"], variables)], tmp_path
    )

    assert has_ended, output
    assert output.splitlines() == [
        "srun --kill-on-bad-exit=1 python examples/launch_torch.py /shared/run",
        "n-0 24567",
    ]

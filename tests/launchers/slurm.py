"""A Slurm of this machine alone, with all that it writes in one folder: one node that pretends to
have NUM_CPUS cores.

Debian, Ubuntu: ``apt install slurmctld slurmd slurm-client munge``. Its daemons run here only as
root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
NUM_CPUS = 8
START_S = 60
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/linear
SlurmdParameters=config_overrides
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={num_cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why no Slurm can be started here; an empty text if one can."""
    if absent := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"no {', '.join(absent)}: apt install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "the daemons of Slurm run as root"


@contextmanager
def running(folder: Path, ports: list[int]) -> Iterator[dict[str, str]]:
    """Start the daemons, and yield the variables by which Slurm's programs find them.

    Args:
        folder: for all that they write; nobody else may write to a folder above it.
        ports: two that are free.
    """
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)  # munged refuses a folder that its clients cannot look into
    key = folder / "munge.key"
    key.touch(0o400)
    key.write_bytes(secrets.token_bytes(128))
    host = socket.gethostname().partition(".")[0]
    names = {
        "host": host,
        "folder": folder,
        "controller_port": ports[0],
        "node_port": ports[1],
        "num_cpus": NUM_CPUS,
    }
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**names))
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    munged = [
        f"--{option}={folder / name}"
        for option, name in {
            "key-file": "munge.key",
            "socket": "munge.socket",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munge.seed",
        }.items()
    ]
    with ExitStack() as stack:
        for command in (
            ["munged", "--foreground", "--force", *munged],
            ["slurmctld", "-D"],
            ["slurmd", "-D"],
        ):
            log = stack.enter_context((folder / f"{command[0]}.out").open("w"))
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                cwd=folder,
            )
            stack.callback(_end, process)
        _wait_for_node(folder, {**os.environ, **variables})
        yield variables


def _wait_for_node(folder: Path, environment: dict[str, str]) -> None:
    end_s = time.monotonic() + START_S
    while True:
        answer = subprocess.run(
            ["sinfo", "-h", "-o", "%T"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.stdout.strip() == "idle":
            return
        if time.monotonic() > end_s:
            logs = "".join(path.read_text() for path in folder.glob("*.out"))
            raise RuntimeError(f"Slurm did not start in {START_S} s: {answer}\n{logs}")
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

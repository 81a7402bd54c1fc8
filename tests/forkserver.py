"""Programs in processes of their own that begin fast: each is forked from a process that has
imported gpuload.

    done = forkserver.run(code, *arguments)     as subprocess.run([sys.executable, "-c", code,
                                                *arguments], ...)

To start Python and to import gpuload takes ten times as long as to fork. The program runs as
``__main__`` in a process of one thread, and ends as each Python ends. A program about what is done
before gpuload is imported says ``has_gpuload=False``. What is about the start of Python or about
memory needs ``subprocess``. Where Linux is not the system, this is ``subprocess``, too.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run(
    code: str,
    *arguments: object,
    timeout: float = 100,
    warnings: str = "default",
    stdout: int | None = None,
    stderr: int | None = None,
    environment: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    has_gpuload: bool = True,
    before: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Return the status of a program and what it wrote, when it has ended.

    Args:
        code: the program.
        arguments: of the program, as texts in ``sys.argv``.
        timeout: seconds, after which it is killed.
        warnings: what becomes of them, as of ``python -W``.
        stdout: a descriptor that the program writes to, in place of the result's ``stdout``.
        stderr: the same for its errors.
        environment: of the program; without it that of this process.
        folder: in which it runs; without it that of this process.
        has_gpuload: False: gpuload is not imported before the program begins; NumPy is.
        before: a command that starts the command behind it, with fewer rights (setpriv).

    Raises:
        TimeoutExpired: it did not end.
    """
    command = ["-c", *map(str, arguments)]
    if sys.platform != "linux":
        python = [*before, sys.executable, "-W", warnings, "-c", code, *command[1:]]
        streams = {
            "stdout": subprocess.PIPE if stdout is None else stdout,
            "stderr": subprocess.PIPE if stderr is None else stderr,
        }
        return subprocess.run(
            python, **streams, text=True, timeout=timeout, env=environment, cwd=folder, check=False
        )  # fmt: skip
    message = {
        "argv": command,
        "environment": dict(environment or os.environ),
        "folder": os.fspath(folder or os.getcwd()),
        "warnings": warnings,
    }
    with (
        tempfile.TemporaryFile() as program,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as errors,
    ):
        program.write(code.encode())
        program.seek(0)
        connection = _server("gpuload" if has_gpuload else "numpy", before)
        descriptors = [program.fileno(), stdout or out.fileno(), stderr or errors.fileno()]
        socket.send_fds(connection, [json.dumps(message).encode()], descriptors)
        child = int(connection.recv(100))
        connection.settimeout(timeout)
        try:
            status = int(connection.recv(100))
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            connection.settimeout(None)
            connection.recv(100)
            raise subprocess.TimeoutExpired(command, timeout) from None
        finally:
            connection.settimeout(None)
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(command, status, *texts)


@cache
def _server(package: str, before: tuple[str, ...]) -> socket.socket:
    """Return a connection to the process that forks, and has imported a package; it ends when that
    is closed."""
    connection, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # More threads than one, of a library that multiplies matrices, would not be in what is forked.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [*before, sys.executable, __file__, str(server_end.fileno()), package]
    server = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[server_end.fileno()])
    server_end.close()

    def end() -> None:
        connection.close()
        server.wait()

    atexit.register(end)
    return connection


def _serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each message, and return in the child: what it says, and descriptors of program,
    output and errors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    while True:
        message, descriptors, *_ = socket.recv_fds(connection, 1 << 17, 3)
        if not message:
            os._exit(0)
        child = os.fork()
        if child == 0:
            return json.loads(message), descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(child).encode())
        status = os.waitpid(child, 0)[1]
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _main() -> None:
    sys.path[0] = ""  # as of `python -c`
    package = importlib.import_module(sys.argv[2])
    if sys.argv[2] == "gpuload":
        for name in package.__all__:
            getattr(package, name)  # imports it, once for all programs
    gc.freeze()  # a collection in a child would copy the memory of everything that was imported
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        message, (program, out, errors) = _serve(connection)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(out, 1)
    os.dup2(errors, 2)
    with open(program, encoding="utf-8") as file:
        code = file.read()
    os.environ.clear()
    os.environ.update(message["environment"])
    os.chdir(message["folder"])
    sys.argv[:] = message["argv"]
    if message["warnings"] != "default":
        warnings.simplefilter(message["warnings"])
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), vars(module))


if __name__ == "__main__":
    _main()

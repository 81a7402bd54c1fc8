"""The images: what the Dockerfile, the script that installs and the Compose file say, do and
refuse.

No container is built here, and nothing is downloaded. The script runs in virtual environments that
see the packages of this one, or packages that are made up; pip may ask no index.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import gpuload as gl
from gpuload import cli
from gpuload import device as devices
from gpuload.cli import health
from gpuload.cli.base import Output
from tests.environments import INSTALL, NEEDED, ROOT, Environment, environment, skip_without

DOCKER = ROOT / "docker"
DOCS = (ROOT / "docs" / "containers.md").read_text()
IMAGES = ("cpu", "cuda12", "tensorflow", "pytorch")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="images are for Linux")


# --- what the files say


class Stage(NamedTuple):
    """A stage of the Dockerfile: what it is built on, and its instructions in order."""

    base: str
    steps: list[tuple[str, str]]

    def values(self, instruction: str) -> list[str]:
        return [value for name, value in self.steps if name == instruction]


def read_dockerfile() -> tuple[dict[str, str], dict[str, Stage]]:
    """Return the arguments before the first stage, and the stages by name."""
    text = re.sub(r"^\s*#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        instruction, _, value = line.strip().partition(" ")
        if instruction == "FROM":
            base, name = value.split(" AS ")
            stages[name] = stage = Stage(base, [])
        elif instruction and not stages:
            arguments.update([value.split("=", 1)])
        elif instruction:
            stage.steps.append((instruction, value.strip()))
    return arguments, stages


ARGUMENTS, STAGES = read_dockerfile()


def own_and_inherited(name: str) -> list[Stage]:
    """Return a stage behind those that it is built on."""
    stage = STAGES[name]
    return [*(own_and_inherited(stage.base) if stage.base in STAGES else []), stage]


def tool(name: str) -> str:
    """Return a linter that is installed for this Python, or anywhere."""
    beside = Path(sys.executable).parent / name
    message = str(beside) if beside.exists() else shutil.which(name)
    if message is None:
        pytest.skip(f"{name} is not installed")
    return message


def finds_nothing(*command: str | Path) -> None:
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stdout + process.stderr


def test_the_linter_finds_nothing_in_the_dockerfile():
    finds_nothing(tool("hadolint"), DOCKER / "Dockerfile")


def test_the_linter_finds_nothing_in_the_script():
    finds_nothing(tool("shellcheck"), INSTALL)


def test_bash_understands_the_script():
    finds_nothing("bash", "-n", INSTALL)


def test_the_compose_file_is_one_by_its_specification():
    finds_nothing(
        tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml"
    )


def test_the_images_are_those_that_the_docs_name():
    assert set(IMAGES) <= set(STAGES)
    for name in IMAGES:
        assert re.search(rf"^\| `{name}` \|", DOCS, re.MULTILINE), (
            f"docs/containers.md has no image {name}"
        )
    for image in ARGUMENTS.values():
        assert image in DOCS


def test_every_image_from_elsewhere_has_a_tag():
    for name, stage in STAGES.items():
        base = re.sub(r"\$\{(\w+)\}", lambda match: ARGUMENTS[match[1]], stage.base)
        tag = base.rpartition(":")[2]
        assert base == "scratch" or base in STAGES or re.match(r"[\d.]+-\S", tag), (
            f"{name} is built on {base}"
        )


@pytest.mark.parametrize("name", IMAGES)
def test_programs_in_an_image_run_as_a_user_who_is_not_root(name):
    steps = STAGES[name].steps

    instructions = [instruction for instruction, _ in steps]
    (user,) = STAGES[name].values("USER")

    assert re.fullmatch(
        r"[1-9]\d*:[1-9]\d*", user
    )  # numbers: Kubernetes looks at them (runAsNonRoot)
    assert "RUN" not in instructions[instructions.index("USER") :]
    assert f"user_id={user.partition(':')[0]}" in INSTALL.read_text()


@pytest.mark.parametrize("name", STAGES)
def test_every_run_is_one_call_of_the_script_and_nothing_is_added(name):
    stage = STAGES[name]
    assert stage.values("ADD") == []
    for command in stage.values("RUN"):
        called, *_ = json.loads(re.sub(r"^(--mount=\S+ +)*", "", command))
        assert called.endswith("/install.sh"), command


@pytest.mark.parametrize("name", IMAGES)
def test_packages_lie_in_layers_that_do_not_depend_on_the_source(name):
    runs = [run for stage in own_and_inherited(name) for run in stage.values("RUN")]
    packages = next(number for number, run in enumerate(runs) if '"packages"' in run)

    for run in runs[: packages + 1]:
        assert re.findall(r"from=(\w+)", run) == ["steps"]
    assert "from=wheel" in runs[-1]
    assert not any(
        "gpuload" in re.split(r"[ /]", value) for value in STAGES["steps"].values("COPY")
    )


def is_in_context(path: str) -> bool:
    """Return True if a file of the checkout is sent to the builder; the last pattern that fits says
    so."""
    is_ignored = True
    for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        parts = path.split("/")
        begins = ["/".join(parts[: number + 1]) for number in range(len(parts))]
        if pattern and not pattern.startswith("#"):
            anywhere = pattern.removeprefix("**/")
            names = parts if pattern.startswith("**/") else begins
            is_ignored = (
                line.startswith("!")
                if any(fnmatch(name, anywhere) for name in names)
                else is_ignored
            )
    return is_ignored


def test_what_is_copied_and_mounted_is_there():
    for stage in STAGES.values():
        for value in stage.values("COPY"):
            *sources, _ = value.split()
            for source in sources:
                assert (ROOT / source).exists(), source
                assert source == "." or is_in_context(source), source
        for value in stage.values("RUN"):
            for second in re.findall(r"from=([\w-]+)", value):
                assert second in STAGES


def test_only_what_is_needed_is_sent_to_the_builder():
    for needs in (
        "pyproject.toml",
        "constraints.txt",
        "setup.py",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "gpuload/core/cpp/maps.cpp",
        "gpuload_command.py",
    ):
        assert is_in_context(needs), needs
    for second in (
        ".git/config",
        ".venv/bin/python",
        "tests/test_containers.py",
        "build/bench-data/a.npy",
        "state.json",
    ):
        assert not is_in_context(second), second
    assert not is_in_context("gpuload/core/_native.abi3.so")  # compiled for the machine that builds


def parse(verb, options):
    """Return the values of a verb's options."""
    return cli.group.get_command(None, verb).make_context(verb, list(options), obj=Output()).params


@pytest.mark.parametrize("name", IMAGES)
def test_the_commands_of_an_image_are_gpuload_s(name):
    (check,) = STAGES[name].values("HEALTHCHECK")
    commands = [check.partition("CMD ")[2], *STAGES[name].values("CMD")]

    for command in commands:
        program, *arguments = json.loads(command)
        assert program == "gpuload"
        assert arguments[0] == "health"
        parse("health", arguments[1:])
    assert json.loads(commands[0])[2:4] == [
        "--device",
        "cpu",
    ]  # beside a training it must take nothing of the GPU


@pytest.mark.parametrize("name", IMAGES)
def test_the_caches_of_an_image_can_be_written_where_the_root_cannot(name):
    environment = dict(re.findall(r'(\w+)="?([^" ]*)"?', " ".join(STAGES[name].values("ENV"))))

    assert environment["GPULOAD_CACHE"].startswith("/tmp/")
    if name != "cpu":
        assert environment["CUPY_CACHE_DIR"].startswith("/tmp/")
        assert environment["CUDA_CACHE_PATH"].startswith("/tmp/")


def test_the_services_of_compose_are_locked_up_and_built_from_the_dockerfile():
    services = pytest.importorskip("yaml").safe_load((DOCKER / "compose.yaml").read_text())[
        "services"
    ]

    assert set(services) == {"cpu", "gpu"}
    for service in services.values():
        assert service["image"] == f"gpuload:{service['build']['target']}"
        assert service["build"]["target"] in IMAGES
        assert (
            DOCKER / service["build"]["context"] / service["build"]["dockerfile"]
        ).resolve() == DOCKER / "Dockerfile"
        assert service["read_only"] is service["init"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["tmpfs"][0].startswith("/tmp:")
        assert "privileged" not in service
    assert services["gpu"]["ulimits"] == {"memlock": -1}
    (device,) = services["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def block(name: str, language: str) -> str:
    (result,) = re.findall(rf"<!-- test: {name} -->\n```{language}\n(.*?)```", DOCS, re.DOTALL)
    return result


def test_the_pod_of_the_docs_is_locked_up_and_checked_before_it_trains():
    pod = pytest.importorskip("yaml").safe_load(block("kubernetes", "yaml"))["spec"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"{pod['securityContext']['runAsUser']}:" in STAGES["cuda12"].values("USER")[0]
    names = {volume["name"] for volume in pod["volumes"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {mount["name"] for mount in container["volumeMounts"]} <= names
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
    (check,) = pod["initContainers"]
    program, verb, *options = check["command"]
    assert (program, verb) == ("gpuload", "health")
    assert parse(verb, options)["device"] == "gpu"


def test_ranks_of_slurm_read_all_records_together(tmp_path, monkeypatch):
    (tmp_path / "shards").mkdir()
    np.save(tmp_path / "shards" / "0.npy", np.arange(1000))
    monkeypatch.chdir(tmp_path)
    values: list[int] = []

    for rank in range(3):
        monkeypatch.setenv("SLURM_PROCID", str(rank))
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
        names: dict[str, Any] = {}
        exec(compile(block("slurm", "python"), "containers.md, slurm", "exec"), names)
        values += [record for batch in names["loader"] for record in batch.records.tolist()]

    assert sorted(values) == list(range(1000))


def test_the_docs_know_each_variable_that_an_image_sets():
    for name in IMAGES:
        for variable in re.findall(r"(\w+)=", " ".join(STAGES[name].values("ENV"))):
            assert variable == "NVIDIA_DRIVER_CAPABILITIES" or variable in DOCS, variable


# --- gpuload health


def test_health_is_good_and_says_what_ran_it(capsys):
    assert cli.main(["health", "--device", "cpu", "--num-threads", "1"]) == 0

    message = capsys.readouterr().out
    assert message.count("right, 64 records in 8 steps") == (2 if decodes() else 1)
    assert "device:    cpu (asked for)" in message
    assert "executor:  array" in message
    assert "threads:   1" in message


def decodes() -> bool:
    from gpuload.images.decode import codec

    return codec() is not None


def test_health_is_good_with_dali(capsys):
    pytest.importorskip("nvidia.dali")

    assert cli.main(["health", "--device", "cpu", "--executor", "dali"]) == 0

    assert capsys.readouterr().out.count("executor:  dali") == 2


def test_health_without_a_codec_says_what_was_left_out(capsys, monkeypatch):
    def no_codec() -> None:
        return None

    monkeypatch.setattr("gpuload.executors.choose.codec", no_codec)
    monkeypatch.setattr("gpuload.executors.choose._has_dali", lambda: False)

    assert cli.main(["health", "--device", "cpu"]) == 0

    assert "images: left out, as nothing decodes them here" in capsys.readouterr().out


def test_health_of_a_device_that_is_not_there_is_an_error(capsys):
    if devices.gpu_problem(0) is None:
        pytest.skip("there is a GPU")

    assert cli.main(["health", "--device", "gpu"]) == 2

    assert "DeviceError: device = 'gpu'" in capsys.readouterr().err


@pytest.mark.gpu
def test_health_is_good_on_a_gpu(capsys):
    assert cli.main(["health", "--device", "gpu"]) == 0

    assert capsys.readouterr().out.count("device:    gpu:0") == 2


def test_a_wrong_value_is_no_health(capsys, monkeypatch):
    pixels = health._pixels()
    wrong = pixels.copy()
    wrong[7, 3, 5, 1] += 1
    pair = iter([pixels])
    monkeypatch.setattr(health, "_pixels", lambda: next(pair))
    monkeypatch.setattr(
        gl,
        "arrays",
        lambda image, arrays=gl.arrays: arrays(image=wrong if image is pixels else image),
    )

    assert cli.main(["health", "--device", "cpu"]) == 1

    message = capsys.readouterr().out
    assert "rows: WRONG" in message
    assert "1 records have other values than they should have: [7]" in message
    assert "not healthy" in message


def test_a_lost_record_is_no_health(capsys, monkeypatch):
    loader = gl.Loader
    monkeypatch.setattr(
        gl, "Loader", lambda *arguments, **extra: loader(*arguments, **{**extra, "num_shards": 3})
    )

    assert cli.main(["health", "--device", "cpu"]) == 1

    assert "of 64 records 22 came, and 22 in all" in capsys.readouterr().out


# --- what the script does


NOT_GPULOAD = r"(?!gpuload|__editable__|_gpuload|distutils-precedence|_virtualenv|.*\.pth)[^-.]+"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gpuload_is_added_to_a_container_nothing_there_is_changed_and_nobody_writes_to_it_then(
    gpuload_wheel, tmp_path
):
    container = environment(tmp_path / "python", *NEEDED)
    for name, version in {
        "tensorflow": "2.17.0+nv25.2",
        "cupy-cuda12x": "13.6.0",
        "nvidia-dali-cuda120": "1.46.0",
        "isal": "1.9.1",
    }.items():
        container.make_up(name, version)

    process = container.install("tensorflow", "packages", CUDA_VERSION="12.8.0.038")

    assert process.returncode == 0, process.stdout + process.stderr
    assert (
        "nvidia-dali-cuda120 1.46.0 is left as it is; gpuload is tested with nvidia-dali-cuda120==2.4.*"
        in process.stderr
    )
    assert re.search(r"none of the \d+ packages that were there has changed", process.stdout)

    process = container.install("tensorflow", "gpuload", gpuload_wheel.parent)

    assert process.returncode == 0, process.stdout + process.stderr
    assert re.search(r"none of the \d+ packages that were there has changed", process.stdout)
    assert "images: right" in process.stdout
    assert container.version("gpuload") == gl.__version__
    assert container.version("tensorflow") == "2.17.0+nv25.2"
    assert "core:      compiled" in process.stdout

    before, temporary = files(container.folder), tmp_path / "tmp"
    temporary.mkdir()
    with nobody_can_write(container.folder):
        process = container.run(
            *powerless(),
            *(container.folder / "bin" / "gpuload", "health", "--device", "cpu"),
            HOME=str(container.folder / "no home"),
            TMPDIR=str(temporary),
        )

    assert process.returncode == 0, process.stdout + process.stderr
    assert "core:      compiled" in process.stdout
    assert files(container.folder) == before
    assert files(temporary) == {}


def files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of all files, not of those behind links."""
    paths = [Path(place) / name for place, _, names in os.walk(folder) for name in names]
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths}


@contextlib.contextmanager
def nobody_can_write(folder: Path) -> Iterator[None]:
    places = [Path(place) for place, _, _ in os.walk(folder)]
    for place in places:
        place.chmod(0o555)
    try:
        yield
    finally:
        for place in places:
            place.chmod(0o755)


def powerless() -> list[str]:
    """Return what a command begins with, so that root, who may write everywhere, may not."""
    if os.geteuid() != 0:
        return []
    return [tool("setpriv"), "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_packages_of_the_image_for_cpus_are_those_of_the_extra(tmp_path):
    machine = environment(tmp_path / "python", NOT_GPULOAD)
    requests = machine.run(
        machine.python, DOCKER / "packages.py", "requirements", "cpu"
    ).stdout.split()
    assert {"pillow", "pyarrow", "numpy"} < {re.split(r"[<>=]", line)[0] for line in requests}
    skip_without(machine, *(re.split(r"[<>=]", line)[0] for line in requests))

    process = machine.install("cpu", "packages")

    assert process.returncode == 0, process.stdout + process.stderr
    for line in requests:
        assert f"Requirement already satisfied: {line}" in process.stdout


def test_what_is_missing_is_installed_and_what_is_there_stays(tmp_path):
    container, shop = made_up_container(tmp_path), tmp_path / "shop"
    make_wheel(shop, "cupy-cuda12x", "14.0.0", needs="numpy>=2.2")  # not beside this NumPy
    make_wheel(shop, "cupy-cuda12x", "13.6.0", needs="numpy>=2.0")
    make_wheel(shop, "numpy", "2.3.0")

    process = container.install(
        "tensorflow", "packages", CUDA_VERSION="12.8.0.038", PIP_FIND_LINKS=str(shop)
    )

    assert process.returncode == 0, process.stdout + process.stderr
    assert container.version("cupy-cuda12x") == "13.6.0"
    assert container.version("numpy") == "2.1.3"
    assert (
        json.loads((container.folder / "share/gpuload/installed.json").read_text())["numpy"][
            "version"
        ]
        == "2.1.3"
    )


def test_beside_numpy_1_comes_what_goes_with_it(tmp_path):
    container, shop = made_up_container(tmp_path, numpy="1.26.4", but="pyarrow"), tmp_path / "shop"
    make_wheel(shop, "cupy-cuda12x", "14.0.0", needs="numpy>=2.0")
    make_wheel(shop, "cupy-cuda12x", "13.6.0", needs="numpy>=1.22")
    make_wheel(shop, "pyarrow", "26.0.0")  # it says nothing, and cannot be imported there
    make_wheel(shop, "pyarrow", "25.0.1")

    process = container.install(
        "tensorflow", "packages", CUDA_VERSION="12.8.0.038", PIP_FIND_LINKS=str(shop)
    )

    assert process.returncode == 0, process.stdout + process.stderr
    results = {name: container.version(name) for name in ("numpy", "cupy-cuda12x", "pyarrow")}
    assert results == {"numpy": "1.26.4", "cupy-cuda12x": "13.6.0", "pyarrow": "25.0.1"}


def test_what_is_missing_and_does_not_go_with_what_is_there_is_refused(tmp_path):
    container, shop = made_up_container(tmp_path), tmp_path / "shop"
    make_wheel(shop, "cupy-cuda12x", "14.0.0", needs="numpy>=2.2")
    make_wheel(shop, "numpy", "2.3.0")

    process = container.install(
        "tensorflow", "packages", CUDA_VERSION="12.8.0.038", PIP_FIND_LINKS=str(shop)
    )

    assert process.returncode != 0
    assert "numpy==2.1.3" in process.stdout + process.stderr
    assert container.version("numpy") == "2.1.3"
    assert container.version("cupy-cuda12x") == ""


def made_up_container(folder: Path, but: str = "", **versions: str) -> Environment:
    """All is made up here, so that pip may change what it wants to."""
    container = environment(folder / "python")
    there = {
        "tensorflow": "2.18.0",
        "numpy": "2.1.3",
        "click": "8.1.8",
        "rich": "13.9.4",
        "pillow": "11.0.0",
        "pyarrow": "22.0.0",
        "isal": "1.9.1",
        "nvidia-dali-cuda120": "2.4.0",
    }
    for name, version in {**there, **versions}.items():
        if name != but:
            container.make_up(name, version)
    return container


def make_wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    folder.mkdir(exist_ok=True)
    module = name.replace("-", "_")
    about = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {needs}\n" if needs else ""
    )
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as file:
        parts = {
            f"{module}/__init__.py": "",
            f"{about}/METADATA": metadata,
            f"{about}/WHEEL": wheel,
        }
        for path, text in parts.items():
            file.writestr(path, text)
        file.writestr(
            f"{about}/RECORD", "".join(f"{path},,\n" for path in [*parts, f"{about}/RECORD"])
        )


@pytest.mark.parametrize(
    ("mode", "framework"), [("tensorflow", "tensorflow"), ("pytorch", "torch")]
)
def test_a_container_without_the_framework_is_refused(mode, framework, tmp_path):
    empty = environment(tmp_path / "python")

    process = empty.install(mode, "packages", CUDA_VERSION="12.8.0")

    assert process.returncode == 1
    assert f"{framework} is not installed" in process.stderr
    assert "remedy: build FROM one of NVIDIA's containers" in process.stderr


@pytest.mark.parametrize("variables", [{}, {"CUDA_VERSION": "11.8.0"}], ids=["none", "11.8"])
def test_a_container_of_another_cuda_is_refused(variables, tmp_path):
    container = made_up_container(tmp_path)

    process = container.install("tensorflow", "packages", **variables)

    assert process.returncode == 1
    assert f"CUDA_VERSION is {variables.get('CUDA_VERSION')!r}" in process.stderr


def test_a_numpy_that_gpuload_cannot_work_with_is_refused_and_stays(tmp_path):
    container, shop = made_up_container(tmp_path, numpy="1.20.0"), tmp_path / "shop"
    make_wheel(shop, "numpy", "2.3.0")

    message = container.install(
        "tensorflow", "packages", CUDA_VERSION="12.8.0", PIP_FIND_LINKS=str(shop)
    )

    assert message.returncode == 1
    assert "numpy 1.20.0 is installed" in message.stderr
    assert "cause:  gpuload needs numpy>=" in message.stderr
    assert container.version("numpy") == "1.20.0"


def change_the_version(container: Environment, module: Path) -> None:
    about = container.packages / "pyarrow-22.0.0.dist-info"
    about.rename(about.with_name("pyarrow-23.0.0.dist-info"))
    metadata = container.packages / "pyarrow-23.0.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("22.0.0", "23.0.0"))


def remove_it(container: Environment, module: Path) -> None:
    shutil.rmtree(container.packages / "pyarrow-22.0.0.dist-info")


def put_another_package_on_top(container: Environment, module: Path) -> None:
    module.write_text("from somewhere import else\n")


def remove_a_file(container: Environment, module: Path) -> None:
    module.unlink()


def put_a_copy_in_front(container: Environment, module: Path) -> None:
    container.make_up("pyarrow", "23.0.0", at=container.folder / "in front")
    (container.packages / "a.pth").write_text(
        f"import sys; sys.path.insert(1, {str(container.folder / 'in front')!r})\n"
    )


CHANGES = {
    change_the_version: "pyarrow 22.0.0 is 23.0.0 now",
    remove_it: "pyarrow 22.0.0 is gone",
    put_another_package_on_top: "pyarrow 22.0.0 has other files than before",
    remove_a_file: "pyarrow 22.0.0 has other files than before",
    put_a_copy_in_front: "pyarrow 22.0.0 is 23.0.0 now",
}


def test_a_package_that_was_changed_is_found(tmp_path):
    container = environment(tmp_path / "python")
    container.make_up("tensorflow", "2.18.0")
    module = container.make_up("pyarrow", "22.0.0")
    note, unchanged = tmp_path / "installed.json", tmp_path / "unchanged"
    packages = (container.python, DOCKER / "packages.py")
    assert container.run(*packages, "record", "tensorflow", note).returncode == 0
    shutil.copytree(container.packages, unchanged, symlinks=True)

    for change, expected in {None: "", **CHANGES}.items():
        shutil.rmtree(container.packages)
        shutil.copytree(unchanged, container.packages, symlinks=True)
        if change is not None:
            change(container, module)
        process = container.run(*packages, "unchanged", note)

        assert process.returncode == (change is not None), change
        assert change is None or f"packages.py unchanged: {expected}\n" in process.stderr, change
        assert "tensorflow" not in process.stderr


@pytest.mark.slow  # the wheel is compiled
@pytest.mark.timeout(600)
def test_a_script_that_finds_a_change_ends_with_an_error(gpuload_wheel, tmp_path):
    container = made_up_container(tmp_path)
    container.make_up("cupy-cuda12x", "13.6.0")
    assert container.install("tensorflow", "packages", CUDA_VERSION="12.8.0").returncode == 0

    (container.packages / "tensorflow" / "__init__.py").write_text("")
    process = container.install("tensorflow", "gpuload", gpuload_wheel.parent)

    assert process.returncode == 1
    assert "tensorflow 2.18.0 has other files than before" in process.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("cpu",),
        ("cpu", "everything"),
        ("cuda13", "packages"),
        ("pytorch", "plugin", "x"),
        ("user", "root"),
        ("wheel",),
    ],
    ids=" ".join,
)
def test_the_script_refuses_what_it_does_not_know(arguments, tmp_path):
    process = subprocess.run(
        [INSTALL, *arguments], capture_output=True, text=True, timeout=60, env={"PATH": os.defpath}
    )

    assert process.returncode == 1
    assert f"install.sh: it does not know '{' '.join(arguments)}'" in process.stderr

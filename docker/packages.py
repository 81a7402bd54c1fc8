"""Which packages an image needs, and which it must leave as they are; for install.sh, with Python
and pip alone.

    packages.py requirements EXTRA ...       what extras of pyproject.toml ask for, a line each;
                                             EXTRA may be "build"
    packages.py record FRAMEWORK FILE        notes what is installed; refused where FRAMEWORK is not
    packages.py constraints FILE             what was noted, and what it needs beside it, as
                                             constraints for pip
    packages.py missing FILE                 what gpuload needs and is not there, for the CUDA of
                                             CUDA_VERSION
    packages.py unchanged FILE               refused where anything that was noted is not what it
                                             was

Changed  is a package that is gone, that has another version, that another copy stands in front of,
         or that has a file which is gone or has another size or time. So a package of another name
         that is put on top of an installed one (tensorflow-cpu on tensorflow) is found, too.
Left out is code that Python compiled (`*.pyc`): who runs a package as root writes it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# NVIDIA's containers may lack the package `packaging`, and tomllib begins with Python 3.11; pip
# brings its own of both.
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

FOLDER = Path(__file__).resolve().parent
FRAMEWORKS = (
    "tensorflow",
    "tensorflow-cpu",
)  # never added to a container, which has a framework of its own


class RefusedError(Exception):
    """What is wrong, its cause and its remedy."""


def project() -> dict[str, Any]:
    """Return pyproject.toml, which lies beside this file or in the folder above."""
    file_path = next(
        file for folder in (FOLDER, FOLDER.parent) if (file := folder / "pyproject.toml").is_file()
    )
    return tomllib.loads(file_path.read_text(encoding="utf-8"))


def requirements(extra: str) -> list[Requirement]:
    """Return what an extra asks for on this machine, the extras that it consists of written out."""
    if extra == "build":
        return [Requirement(line) for line in project()["build-system"]["requires"]]
    about = project()["project"]
    if extra not in about["optional-dependencies"]:
        raise RefusedError(f"there is no extra {extra!r} in pyproject.toml")
    result: list[Requirement] = [Requirement(line) for line in about["dependencies"]]
    extras, visited_extras = [extra], set()
    while extras:
        visited_extras.add(name := extras.pop())
        for requirement in map(Requirement, about["optional-dependencies"][name]):
            if requirement.name == about["name"]:
                extras += sorted(requirement.extras - visited_extras)
            elif requirement.marker is None or requirement.marker.evaluate():
                result.append(requirement)
    return result


def installed() -> dict[str, dict[str, str]]:
    """Return version and digest of the files of each package; of two copies the one that Python
    takes."""
    versions: dict[str, dict[str, str]] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name and canonicalize_name(name) not in versions:
            versions[canonicalize_name(name)] = {
                "version": distribution.version,
                "files": _digest(distribution),
            }
    return versions


def _digest(distribution: importlib.metadata.Distribution) -> str:
    digest = hashlib.sha256()
    for file in sorted(
        distribution.files or (), key=str
    ):  # Debian's packages have no list of their files
        if file.suffix == ".pyc":
            continue
        try:
            status = os.stat(str(file.locate()))
            digest.update(f"{file} {status.st_size} {int(status.st_mtime)}\n".encode())
        except OSError:
            digest.update(f"{file} is not there\n".encode())
    return digest.hexdigest()


def record(framework: str, file: str) -> None:
    """Note what is installed."""
    if importlib.util.find_spec(framework) is None:
        raise RefusedError(
            f"{framework} is not installed for {sys.executable}\n"
            f"  cause:  this mode adds gpuload to a container that brings {framework}, and this is none\n"
            f"  remedy: build FROM one of NVIDIA's containers, or use the mode cpu or cuda12"
        )
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(json.dumps(installed(), indent=1, sort_keys=True), encoding="utf-8")


def constraints(file: str) -> None:
    """Print the versions that were noted, and what goes with NumPy 1 without telling pip so."""
    packages = _read_packages(file)
    for name, package in sorted(packages.items()):
        print(f"{name}=={package['version']}")
    if packages.get("numpy", {}).get("version", "").startswith("1."):
        print("pyarrow<26")  # from 26.0 on it cannot be imported beside NumPy 1


def missing(file: str) -> None:
    """Print what is not there; refuse a version that gpuload cannot work with, name one that it was
    not tested with."""
    packages, cuda = _read_packages(file), os.environ.get("CUDA_VERSION", "").partition(".")[0]
    if f"cuda{cuda}" not in project()["project"]["optional-dependencies"]:
        raise RefusedError(
            f"CUDA_VERSION is {os.environ.get('CUDA_VERSION')!r}\n"
            "  cause:  NVIDIA's containers set it, and gpuload has CuPy and DALI for CUDA 12 and 13\n"
            "  remedy: build FROM one of NVIDIA's containers, or set CUDA_VERSION to the CUDA that is installed"
        )
    demanded = {Requirement(line).name for line in project()["project"]["dependencies"]}
    for requirement in requirements(f"cuda{cuda}"):
        name = canonicalize_name(requirement.name)
        version = packages.get(name, {}).get("version")
        if version is None:
            if name not in FRAMEWORKS:
                print(requirement)
        elif not requirement.specifier.contains(version, prereleases=True):
            if requirement.name in demanded:
                raise RefusedError(
                    f"{name} {version} is installed\n"
                    f"  cause:  gpuload needs {requirement}, and what the container brings is left as it is\n"
                    f"  remedy: build FROM a container with another {name}"
                )
            print(
                f"{name} {version} is left as it is; gpuload is tested with {requirement}",
                file=sys.stderr,
            )


def unchanged(file: str) -> None:
    """Refuse where anything that was noted is not what it was."""
    now, changes = installed(), []
    for name, was in sorted(_read_packages(file).items()):
        if name not in now:
            changes.append(f"{name} {was['version']} is gone")
        elif now[name]["version"] != was["version"]:
            changes.append(f"{name} {was['version']} is {now[name]['version']} now")
        elif now[name] != was:
            changes.append(f"{name} {was['version']} has other files than before")
    if changes:
        raise RefusedError(
            "\n".join(changes) + "\n"
            "  cause:  something that was installed has changed them\n"
            "  remedy: install it without its dependencies, or in another image"
        )
    print(f"none of the {len(_read_packages(file))} packages that were there has changed")


def _read_packages(file: str) -> dict[str, dict[str, str]]:
    packages: dict[str, dict[str, str]] = json.loads(Path(file).read_text(encoding="utf-8"))
    packages.pop(project()["project"]["name"], None)
    return packages


def _printed(*extras: str) -> None:
    lines = [
        str(requirement).partition(";")[0].strip()
        for extra in extras
        for requirement in requirements(extra)
    ]
    print(*dict.fromkeys(lines), sep="\n")


VERBS: dict[str, Callable[..., None]] = {
    "requirements": _printed,
    "record": record,
    "constraints": constraints,
    "missing": missing,
    "unchanged": unchanged,
}


def main(verb: str, *arguments: str) -> int:
    """Do what the command line says; 1 if it is refused."""
    try:
        VERBS[verb](*arguments)
    except RefusedError as error:
        print(f"packages.py {verb}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

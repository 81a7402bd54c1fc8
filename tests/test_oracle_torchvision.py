"""The oracle of torchvision, beside stand-ins of torch and torchvision: which operators it
declares."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu_report

TORCHVISION = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
FUNCTIONAL = "torchvision.transforms.v2.functional"
# As torchvision does: it loads its library if it can, and then uses an operator.
AT_IMPORT = """
import contextlib, torch
with contextlib.suppress(OSError):
    torch.ops.load_library({library!r})
assert "nms" in torch.operators
"""


class Torch(SimpleNamespace):
    """torch, as far as the oracle asks: a second registration of an operator is an error, in place
    of the end."""

    def __init__(self, *, loads: bool) -> None:
        super().__init__(
            ops=self,
            library=self,
            operators=[],
            libraries=[],
            loads=loads,
            set_num_threads=lambda number: None,
        )

    def load_library(self, path: str) -> None:
        if not self.loads:
            raise OSError(f"Could not load this library: {path}")
        if path not in self.libraries:  # the system runs what registers operators once
            self.libraries.append(path)
            self.define("nms()")
            self.define("qnms()")

    def Library(self, name: str, kind: str) -> Torch:
        return self

    def define(self, schema: str) -> None:
        name = schema.partition("(")[0]
        assert name not in self.operators, f"{name} is registered a second time"
        self.operators.append(name)


@pytest.mark.parametrize("loads", [True, False])
def test_operators_are_declared_where_torchvisions_library_does_not_load(
    loads, tmp_path, monkeypatch
):
    for name in TORCHVISION:
        folder = tmp_path / name.replace(".", "/")
        folder.mkdir()
        (folder / "__init__.py").touch()
    (tmp_path / f"{FUNCTIONAL.replace('.', '/')}.py").touch()
    library = tmp_path / "torchvision" / "_C.so"
    library.touch()
    (tmp_path / "torchvision" / "__init__.py").write_text(AT_IMPORT.format(library=str(library)))
    torch = Torch(loads=loads)
    monkeypatch.syspath_prepend(tmp_path)
    for name in (*TORCHVISION, FUNCTIONAL, "tests.oracle_torchvision"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", torch)

    importlib.import_module("tests.oracle_torchvision")

    assert sorted(torch.operators) == ["nms", "qnms"]


def test_the_parts_on_a_gpu_leave_out_what_compares_with_torchvision_on_a_cpu():
    files = [
        path for path in Path(__file__).parent.glob("ops/*.py") if path.name.endswith("_torch.py")
    ]
    parts = [part for part in gpu_report.PARTS if "tests/ops" in part.command]

    assert len(parts) == 2
    assert all("--ignore-glob=*_torch.py" in part.command for part in parts)
    assert files
    assert not any("mark.gpu" in path.read_text(encoding="utf-8") for path in files)

"""The text of kernels: files that include others, and what Python takes from headers of the core."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuload.core.source import SHARED
from gpuload.kernels import cuda, edits, edits_cuda, lab, sources

HEADERS = sorted(Path(SHARED).glob("*.hpp"))
KERNELS = sorted(sources.FOLDER.iterdir())


def first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0]


def test_a_kernel_has_each_file_that_it_includes_once_in_front_of_what_uses_it():
    source = edits_cuda.source("edits_pixels.cu", 3)

    names = ("numbers.hpp", "edits.hpp", "lab.hpp", "colour.hpp", "tiles.hpp", "pillow.hpp")
    assert [source.count(first_line(Path(SHARED) / name)) for name in names] == [1] * len(names)
    assert '#include "' not in source
    assert "#pragma once" not in source
    assert source.index("SHARED float bounded(") < source.index("float within(")


def test_no_file_of_kernels_begins_as_another_and_each_says_what_it_is():
    lines = [first_line(path) for path in (*HEADERS, *KERNELS)]

    assert len(set(lines)) == len(lines)
    assert all(line.startswith("// ") for line in lines)


def test_files_include_what_is_there():
    for path in (*HEADERS, *KERNELS):
        for name in re.findall(r'^\s*#include "(.+)"', path.read_text(encoding="utf-8"), re.M):
            assert (path.parent / name).is_file(), f"{path.name} includes {name}"


def test_types_and_constants_stand_in_front_of_a_text():
    source = cuda.compose("extern text\n", {"Number": "float"}, SIDE=7, IS_SMALL=True)

    end = "typedef float Number;\n#define SIDE 7\n#define IS_SMALL 1\nextern text\n"
    assert source.endswith(end)


def test_codes_of_edits_are_those_of_the_header_which_count_from_0():
    names = re.findall(r"^    ([A-Z_]+),", (Path(SHARED) / "edits.hpp").read_text(), re.M)

    assert names[:3] == ["SKIP", "TABLE", "BRIGHTNESS"]
    assert [getattr(edits, name) for name in names] == list(range(len(names)))
    assert edits.code("PIL_BLUR") == edits.PIL_BLUR
    with pytest.raises(AttributeError, match=r"'gpuload\.kernels\.edits' has no attribute 'NONE'"):
        _ = edits.NONE


def test_tables_of_lab_lie_as_the_header_has_them():
    text = (Path(SHARED) / "lab.hpp").read_text().partition("struct LabTables {")[2]
    names = re.findall(r"(\w+)\[", text.partition("};")[0])

    assert tuple(names) == lab.Tables._fields


def test_ops_are_imported_without_reading_a_file_of_kernels():
    program = """
import gpuload as gl
from gpuload.kernels import sources
for name in gl.ops.__all__:
    getattr(gl.ops, name)
print(sources._read.cache_info().currsize)
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert process.stdout == "0\n", process.stderr

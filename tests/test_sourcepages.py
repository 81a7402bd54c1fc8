"""The pages that list formats are those that the formats say of themselves."""

from __future__ import annotations

import re

import pytest

import gpuload as gl
from gpuload.formats import FORMATS
from tests import sourcepages

COMMAND = "python -m tests.sourcepages writes it"


def test_the_table_of_files_is_what_the_command_writes():
    assert sourcepages.table() in sourcepages.PAGE.read_text(encoding="utf-8"), COMMAND


def test_the_calls_of_the_reference_are_those_that_the_command_writes():
    text = sourcepages.API.read_text(encoding="utf-8")
    assert f"::: gpuload.open.open\n{sourcepages.calls()}\n## What is no file" in text, COMMAND


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_format_says_what_its_records_are(form):
    names = [re.match(r"gl\.(\w+)\(", call)[1] for call in form.records]
    assert names[:1] == [form.name]
    assert all(callable(getattr(gl, name)) for name in names)

"""The core is built wherever it can be, and what is built is what is there in source."""

from __future__ import annotations

import shutil

from gpuload import core


def test_the_core_is_there_where_there_is_a_compiler():
    """Without it nearly everything passes, in NumPy; so a build that fails has to fail here."""
    assert core.native is not None or shutil.which("g++") is None, f"{core.problem}; make core builds it"


def test_all_that_the_face_promises_is_there_and_nothing_else():
    if core.native is None:
        return
    offered = {name for name in dir(core.native) if not name.startswith("_")}
    promised = {name for name in {*vars(core.face.Native), "Maps"} if not name.startswith("_")}
    assert offered == promised
    methods = {name for name in dir(core.native.Maps) if not name.startswith("_")}
    assert methods == {name for name in {*vars(core.face.Maps), "any_refused"} if not name.startswith("_")}

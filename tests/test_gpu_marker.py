"""A gpu test runs where a GPU is, is skipped with a reason where none is, and fails there if a GPU
is required."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.gpu
def test_on_a_gpu(): pass

@pytest.mark.gpu
def test_on_a_gpu_with_something_else(): pytest.importorskip("no_such_package")

def test_elsewhere(): pytest.skip("for a reason of its own")
"""
FILE_THAT_SKIPS_ITSELF = """
import pytest

pytest.importorskip("no_such_package")
pytestmark = pytest.mark.gpu
"""
CUPY = """
class cuda:
    class runtime:
        CUDARuntimeError = RuntimeError

        def getDeviceCount():
            {body}
"""
ONE_GPU, NO_DRIVER = (
    CUPY.format(body="return 1"),
    CUPY.format(body="raise RuntimeError('no driver')"),
)


@pytest.fixture
def run(pytester, monkeypatch):
    """Run the tests above beside our conftest.py, with a stand-in for CuPy."""

    def run(cupy: str, *, required: bool) -> pytest.RunResult:
        conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
        pytester.makepyfile(
            conftest=conftest, cupy=cupy, test_a=TESTS, test_b=FILE_THAT_SKIPS_ITSELF
        )
        pytester.makeini(f"[pytest]\nmarkers = gpu\npythonpath = {Path(__file__).parents[1]}")
        monkeypatch.setenv("GPULOAD_REQUIRE_GPU", str(int(required)))
        return pytester.runpytest_inprocess(
            "-p", "no:cacheprovider", "--continue-on-collection-errors"
        )

    return run


def test_without_a_gpu_gpu_tests_are_skipped(run):
    result = run(NO_DRIVER, required=False)

    assert result.parseoutcomes() == {"skipped": 4}
    assert "CuPy cannot use a GPU: no driver" in result.stdout.str()


def test_without_a_gpu_that_is_required_gpu_tests_fail(run):
    result = run(NO_DRIVER, required=True)

    assert result.parseoutcomes() == {"errors": 3, "skipped": 1}
    assert (
        "under GPULOAD_REQUIRE_GPU=1: Skipped: CuPy cannot use a GPU: no driver"
        in result.stdout.str()
    )


def test_on_a_gpu_they_run(run):
    assert run(ONE_GPU, required=False).parseoutcomes() == {"passed": 1, "skipped": 3}


def test_on_a_gpu_that_is_required_no_other_reason_excuses_them(run):
    result = run(ONE_GPU, required=True)

    assert result.parseoutcomes() == {"passed": 1, "failed": 1, "errors": 1, "skipped": 1}
    assert "could not import 'no_such_package'" in result.stdout.str()

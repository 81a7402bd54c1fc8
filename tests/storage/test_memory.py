"""How much of files stays in memory: what the system has, and what the process's control groups
allow."""

from pathlib import Path

import pytest

from gpuload.storage import memory


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Write what a system tells; returns a function of MemAvailable in kB, the process's groups and
    their limits."""

    def tell(available, groups="", limits=None):
        (tmp_path / "meminfo").write_text(
            f"MemTotal: 99999999 kB\nMemAvailable:   {available} kB\n"
        )
        (tmp_path / "cgroup").write_text(groups)
        for name, text in (limits or {}).items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(memory, "MEMINFO", str(tmp_path / "meminfo"))
    monkeypatch.setattr(memory, "OWN_GROUPS", str(tmp_path / "cgroup"))
    monkeypatch.setattr(memory, "GROUPS", str(tmp_path / "groups"))
    return tell


def test_half_of_what_is_available(system):
    system(4000)
    assert memory.cache_bytes() == 4000 * 1024 // 2


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        ("0::/\n", {"memory.max": "1000\n"}),
        ("0::/a/b\n", {"a/b/memory.max": "1000\n", "a/memory.max": "max\n"}),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "1000\n"}),
        ("0::/a/b\n", {"a/b/memory.max": "5000\n", "memory.max": "1000\n"}),
        ("0::/not/seen/here\n", {"memory.max": "1000\n"}),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "1000\n"}),
        ("4:cpu,memory:/not/seen/here\n", {"memory/memory.limit_in_bytes": "1000\n"}),
        ("1:name=systemd:/a:b\n0::/a:b\n", {"a:b/memory.max": "1000\n"}),
    ],
)
def test_no_more_than_half_of_the_lowest_limit_of_a_group(system, groups, limits):
    system(4000, groups, limits)
    assert memory.cache_bytes() == 500


@pytest.mark.parametrize("groups", ["0::/\n", "4:cpu:/a\n", "nonsense\n", ""])
def test_groups_without_a_limit_allow_all(system, groups):
    system(4000, groups, {"memory.max": "max\n"})
    assert memory.cache_bytes() == 4000 * 1024 // 2


def test_a_system_that_tells_nothing_is_trusted_with_nothing(system, tmp_path):
    system(4000)
    Path(memory.MEMINFO).write_text("nothing here\n")
    assert memory.cache_bytes() == 0
    Path(memory.MEMINFO).unlink()
    assert memory.cache_bytes() == 0


def test_this_system_tells_more_than_nothing():
    assert memory.cache_bytes() > 0

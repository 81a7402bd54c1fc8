"""benchmarks.compare: a tree that became slower is found, and nothing else is measured than what
the table says."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import compare, data
from benchmarks.loops import BETTER

ROOT = Path(__file__).parents[1]
SMALL = ("--smoke", "--rounds", "1", "--only", "npy_rows/shuffled")

# Each batch comes 50 ms late.
SLOWER = """
import time as _time

def _late(self, _iter=Loader.__iter__):
    for batch in _iter(self):
        _time.sleep(0.05)
        yield batch

Loader.__iter__ = _late
"""


@pytest.fixture
def small(tmp_path):
    return (*SMALL, "--data", str(tmp_path / "data"))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository in place of ours: one commit with the package as it is, which pip need not
    build."""
    root = tmp_path / "repository"
    ignore = shutil.ignore_patterns("__pycache__", "cpp")
    shutil.copytree(ROOT / "gpuload", root / "gpuload", ignore=ignore)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    git(root, "init", "--quiet")
    commit(root)
    monkeypatch.setattr(compare, "ROOT", root)
    return root


def git(root, *command):
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(root), *who, *command], check=True, capture_output=True)


def commit(root):
    git(root, "add", "--all", "--force", "gpuload", "pyproject.toml", "constraints.txt")
    git(root, "commit", "--quiet", "--message", "a tree")


def slow_down(root):
    with open(root / "gpuload" / "__init__.py", "a") as file:
        file.write(SLOWER)


def ratios(output):
    """Return the ratio of each figure in a table, without those that have none."""
    rows = [
        line.strip("| ").split(" | ")
        for line in output.splitlines()
        if line.startswith("| npy_rows")
    ]
    return {row[1]: float(row[4].split()[0].strip("*")) for row in rows if len(row) == 5}


@pytest.mark.slow
@pytest.mark.timeout(400)
class TestTwoTrees:
    def test_a_tree_that_became_slower_is_found_in_every_figure(self, repository, small, capsys):
        slow_down(repository)

        assert compare.main(["HEAD", *small]) == 1

        output = capsys.readouterr().out
        result = ratios(output)
        assert set(result) == {
            name for loop in BETTER.values() for name, better in loop.items() if better
        }
        slower = [
            name
            for name in result
            if "batches/s" in name or name == "records/s" or name.endswith("to batch 100")
        ]
        assert len(slower) == 5
        assert all(result[name] < 0.9 for name in slower)
        assert "share of next() beside a busy step" in output

    def test_a_tree_that_became_faster_ends_with_status_0(self, repository, small, capsys):
        slow_down(repository)
        commit(repository)
        git(repository, "revert", "--no-edit", "HEAD")

        assert compare.main(["HEAD~1", *small, "--loops", "passes"]) == 0

        assert ratios(capsys.readouterr().out)["records/s"] > 1.1

    def test_a_folder_without_the_package_fails_and_is_not_compared_with_another_one(
        self, repository, tmp_path, small, capsys
    ):
        (tmp_path / "elsewhere" / "gpuload").mkdir(parents=True)

        assert compare.main([str(tmp_path / "elsewhere"), *small, "--loops", "fresh"]) == 1

        output = capsys.readouterr().out
        assert ratios(output) == {}
        assert "gpuload was imported from" in output


class TestARow:
    def sample(self, side, number, loop="passes", **figures):
        return {
            "work": "npy_rows/shuffled",
            "loop": loop,
            "side": side,
            "round": number,
            "figures": figures,
        }

    def rows(self, loop, figure, today, other):
        samples = [
            self.sample("today", number, loop, **{figure: value})
            for number, value in enumerate(today)
        ]
        samples += [
            self.sample("main", number, loop, **{figure: value})
            for number, value in enumerate(other)
        ]
        return compare.table_rows(samples)

    def test_has_ratios_taken_within_a_round(self):
        (row,) = self.rows("passes", "records/s", [100, 400, 90], [100, 200, 100])

        assert row.ratios == (1.0, 2.0, 0.9)
        assert "| 100 | 100 | 1.00 (0.90 to 2.00) |" in compare.table([row], "main")

    def test_of_seconds_is_above_1_where_there_are_fewer(self):
        (row,) = self.rows("cold", "cold, s a pass", [0.5], [2.0])

        assert row.ratios == (4.0,)

    @pytest.mark.parametrize(("today", "fell"), [([80, 89, 120], True), ([80, 90, 95], False)])
    def test_fell_if_its_median_did_by_more_than_a_tenth(self, today, fell):
        (row,) = self.rows("passes", "records/s", today, [100, 100, 100])

        assert row.fell is fell
        assert ("**" in compare.table([row], "main")) is fell

    def test_of_waiting_has_no_ratio_and_cannot_fall(self):
        (row,) = self.rows("steps", "share of next() beside a busy step", [0.02], [0.001])

        assert (row.ratios, row.fell) == ((), False)

    def test_needs_a_round_that_both_sides_ended(self):
        assert self.rows("passes", "records/s", [100], []) == []


class TestACore:
    @pytest.fixture
    def tree(self, tmp_path):
        (tmp_path / "gpuload" / "core" / "cpp").mkdir(parents=True)
        (tmp_path / "gpuload" / "core" / "cpp" / "module.cpp").write_text("")
        return tmp_path

    def test_that_is_not_compiled_is_not_measured(self, tree):
        with pytest.raises(
            SystemExit, match=r"the core is not compiled, and its rates would .*; make core"
        ):
            compare.check_core(tree, tree, "make core")

    def test_that_is_older_than_its_files_is_not_measured(self, tree):
        built = (
            tree
            / "gpuload"
            / "core"
            / f"_native{compare.importlib.machinery.EXTENSION_SUFFIXES[0]}"
        )
        built.write_text("")
        compare.check_core(tree, tree, "make core")
        os.utime(built, (1, 1))

        with pytest.raises(SystemExit, match=r"the core is older than its C\+\+ files"):
            compare.check_core(tree, tree, "make core")

    def test_that_a_revision_does_not_have_is_not_asked_for(self, tmp_path):
        compare.check_core(tmp_path, tmp_path, "")


def test_works_are_chosen_by_question_or_by_name():
    choice = compare.works_of(["npy_rows/shuffled-tf", "npz_files"])

    assert [(question.name, variant) for question, variant in choice] == [
        ("npy_rows", "shuffled-tf"), ("npz_files", "stored"), ("npz_files", "deflated"),
    ]  # fmt: skip


def test_a_work_or_a_revision_that_is_not_there_is_named():
    with pytest.raises(
        SystemExit, match=r"no such work: npy_rows/sorted, rows; there are .*npy_rows/shuffled, "
    ):
        compare.works_of(["npy_rows/sorted", "rows"])
    with pytest.raises(SystemExit, match=r"git rev-parse .*no-such-revision"):
        compare.other_side("no-such-revision")


def test_other_packages_need_another_environment_but_not_other_settings_of_tools(
    repository, tmp_path
):
    second = tmp_path / "other"
    second.mkdir()
    shutil.copy(repository / "constraints.txt", second)
    text = (repository / "pyproject.toml").read_text()
    (second / "pyproject.toml").write_text(text.replace("line-length = 120", "line-length = 100"))
    assert compare.packages(second) == compare.packages(repository)

    (second / "pyproject.toml").write_text(text.replace("numpy>=", "numpy>"))
    assert compare.packages(second) != compare.packages(repository)


def test_half_a_tree_is_never_used(tmp_path):
    def stop(path):
        path.mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.once(tmp_path / "tree", stop)

    assert not (tmp_path / "tree").exists()

"""The pages of docs/: their code runs, prints what they say, and passes the contracts that it is
written for."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from gpuload import errors
from tests import codeblocks
from website import performance, promise_picture

DOCS = codeblocks.ROOT / "docs"
PAGES = {  # and what a page needs
    "index": None,
    "start-here": "keras",
    "promise": None,
    "errors": None,
    "audit": None,
    "where-the-time-goes": None,
    "own-reader": None,
    "own-source": None,
    "own-op": None,
    "own-bridge": "pyarrow",
    "damaged-data": "PIL",
    "converting": "PIL",
    "manifests": None,
    "launchers": "jax",
    "scale": None,
    "balance": None,
    "augmentation": None,
    "recipes": "PIL",
    "boxes": "PIL",
    "dali-op": "nvidia.dali",
    "coming-from-tf-data": "nvidia.dali_tf_plugin",
    "coming-from-dali": "PIL",
    "coming-from-torch": None,
    "coming-from-grain": None,
}


@pytest.fixture
def defined(request, tmp_path, monkeypatch):
    """What the code of a page defines when it is run from the first block to the last."""
    page = DOCS / f"{request.param}.md"
    if PAGES[request.param]:
        pytest.importorskip(PAGES[request.param])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield codeblocks.run(page, codeblocks.blocks_of(page), {}, tmp_path)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("defined", ["start-here"], indirect=True)
def test_the_first_page_runs_from_files_to_a_trained_model(defined):
    assert defined["images"].shape == (30, 8, 8, 1)  # the last batch of 1,438 records
    assert defined["loader"].position.epoch == 7


@pytest.mark.parametrize("defined", ["index"], indirect=True)
def test_the_home_page_runs(defined):
    assert defined["batch"]["image"].shape == (64, 32, 32, 3)


@pytest.fixture
def shards(tmp_path):
    (tmp_path / "shards").mkdir()
    for number in range(3):
        np.save(tmp_path / "shards" / f"{number}.npy", np.full((4, 2), number))


@pytest.fixture
def second_rank(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")


@pytest.mark.usefixtures("shards", "second_rank")
@pytest.mark.parametrize("defined", ["launchers"], indirect=True)
def test_the_page_about_launchers_runs(defined):
    assert (
        defined["loader"].batch_size,
        defined["loader"].shard_id,
        defined["loader"].num_shards,
    ) == (8, 1, 3)


@pytest.mark.parametrize("defined", ["scale"], indirect=True)
def test_the_page_about_scale_runs(defined):
    assert (defined["smaller"].num_shards, defined["smaller"].shard_id) == (9504, 3)


@pytest.mark.usefixtures("shards")
@pytest.mark.parametrize("defined", ["manifests"], indirect=True)
def test_the_page_about_manifests_runs(defined):
    assert defined["source"].read([11])["x"].tolist() == [[2, 2]]


@pytest.mark.parametrize("defined", ["where-the-time-goes"], indirect=True)
def test_the_page_about_the_time_runs_and_its_trace_is_written(defined):
    assert json.loads(Path("trace.json").read_text())
    assert defined["traced"] is not defined["loader"]


@pytest.mark.parametrize("defined", ["promise"], indirect=True)
def test_the_page_about_the_promise_runs(defined):
    assert defined["whole"].shape == (48, 24, 24, 3)


@pytest.mark.parametrize("defined", ["errors"], indirect=True)
def test_the_page_about_errors_runs(defined):
    assert isinstance(defined["state"], dict)


@pytest.mark.parametrize("defined", ["audit"], indirect=True)
def test_the_page_about_audits_runs(defined):
    assert defined["stats"]["records_audited"] > 0


def test_the_page_about_errors_names_every_class_of_error_and_what_it_is_besides():
    table = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and name != "GpuloadError"
    }

    kinds = {name for name, kind in classes.items() if issubclass(kind, errors.GpuloadError)}
    assert [name for name, _ in table] == [name for name in classes if name in kinds]
    for name, builtin in table:
        assert builtin in [kind.__name__ for kind in classes[name].__mro__]


def test_the_picture_of_the_promise_is_what_loaders_give():
    assert promise_picture.FILE.read_text(encoding="utf-8") == promise_picture.draw(), (
        "draw it anew: python -m website.promise_picture"
    )


def test_the_plots_and_tables_of_the_page_about_performance_are_those_of_the_results():
    page = performance.PAGE.read_text(encoding="utf-8")
    assert performance.page(page) == page, "write them anew: python -m website.performance"
    for table, variant, name in performance.PICTURES:
        plot = (performance.PLOTS / f"{name}.svg").read_text(encoding="utf-8")
        assert plot == performance.plot(table, variant), (
            "draw it anew: python -m website.performance"
        )
        assert f"assets/performance/{name}.svg" in page


def test_the_page_about_performance_names_each_table_in_which_gpuload_is_not_the_first():
    page = performance.PAGE.read_text(encoding="utf-8")
    losses = page[page.index("## Where it loses") :]
    for table in performance.WORKS:
        for part in (
            (performance.RESULTS / f"{table}.md").read_text(encoding="utf-8").split("\n## ")[1:]
        ):
            loaders = re.findall(
                r"^\| \*{0,2}(\w+)\*{0,2} \| \d", part, re.MULTILINE
            )  # the best first
            first = next(name for name in loaders if not name.startswith("limit"))
            assert first.startswith("gpuload") or f"{table}.md" in losses, (table, part[:20])


@pytest.mark.slow
@pytest.mark.parametrize("defined", ["own-reader"], indirect=True)
def test_the_page_about_readers_runs_and_its_reader_keeps_the_contract(defined):
    records = defined["batch"].records
    np.testing.assert_array_equal(defined["batch"]["x"], defined["table"][records])
    assert defined["streets"].read([3, 7])["boxes"].lengths.tolist() == [3, 2]


@pytest.mark.slow
@pytest.mark.parametrize("defined", ["own-source"], indirect=True)
def test_the_page_about_sources_runs_and_its_source_keeps_the_contract(defined):
    first = defined["batch"]["x"][:, 0]
    assert set(first.tolist()) <= set(range(0, 1000, 4))
    np.testing.assert_array_equal(defined["batch"]["x"], first[:, None] + np.arange(8))


@pytest.mark.slow
@pytest.mark.parametrize("defined", ["own-op"], indirect=True)
def test_the_page_about_ops_runs_and_its_op_keeps_the_contract(defined):
    for values, image in zip(
        defined["loader"].batch_at(0)["image"], defined["images"], strict=False
    ):
        flips = (image, image[:, ::-1])
        forms = [
            np.where(x >= threshold, 255 - x, x) for x in flips for threshold in range(100, 257)
        ]
        assert any(np.array_equal(values, form) for form in forms)


@pytest.mark.slow
@pytest.mark.parametrize("defined", ["own-bridge"], indirect=True)
def test_the_page_about_bridges_runs_and_its_bridge_keeps_the_contract(defined):
    assert type(defined["image"]).__name__ == "Tensor"
    assert defined["loader"].position.step == 1


@pytest.mark.parametrize("defined", ["augmentation"], indirect=True)
def test_the_page_about_augmentation_runs(defined):
    large, small = defined["loader"].batch_at(0)[0:2]
    assert [view.shape for view in large] == [(8, 32, 32, 3)] * 2
    assert [view.shape for view in small] == [(8, 12, 12, 3)] * 8
    assert (defined["labels"] > 0).sum(axis=1).max() == 2


@pytest.mark.parametrize("defined", ["recipes"], indirect=True)
def test_the_page_about_recipes_runs(defined):
    crops = defined["crops"]
    assert [crop.shape for crop in crops] == [(4, 3, 224, 224)] * 2 + [(4, 3, 96, 96)] * 8
    assert (defined["labels"] > 0.1).sum(axis=1).max() == 2


@pytest.mark.parametrize("defined", ["boxes"], indirect=True)
def test_the_page_about_boxes_runs(defined):
    _, mask = defined["loader"].batch_at(1)
    assert set(np.unique(mask)) == {0, 7, 255}


@pytest.mark.slow
@pytest.mark.parametrize("defined", ["dali-op"], indirect=True)
def test_the_page_about_operators_of_dali_runs(defined):
    result = defined["batch"]["image"]
    assert result.mean() == pytest.approx(0, abs=0.5)  # edges of something smooth, up and down
    assert result.std() > 1


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
)  # of h5py
@pytest.mark.parametrize("defined", ["coming-from-tf-data"], indirect=True)
def test_the_page_for_who_comes_from_tf_data_runs(defined):
    for epoch in defined["orders"][0]:
        assert sorted(np.concatenate(epoch)) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    assert defined["orders"][0][0] != defined["orders"][0][1]


@pytest.mark.parametrize("defined", ["coming-from-dali"], indirect=True)
def test_the_page_for_those_who_come_from_dali_runs(defined):
    assert defined["images"].shape == (4, 3, 224, 224)


@pytest.mark.parametrize("defined", ["coming-from-torch", "coming-from-grain"], indirect=True)
def test_the_pages_for_those_who_come_from_torch_and_grain_run(defined):
    assert defined["loader"].position.epoch in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("defined", ["converting"], indirect=True)
def test_the_page_about_converting_runs(defined):
    np.testing.assert_array_equal(np.load("samples.npz")["image"][:, 0, 0], np.arange(6))
    assert np.load("crops.npz")["image"].shape == (8, 32, 32, 3)


@pytest.mark.slow
@pytest.mark.parametrize("defined", ["balance"], indirect=True)
def test_the_page_about_classes_runs(defined):
    assert sorted(part.read([0])["label"].item() for part in defined["classes"]) == [0, 1, 2]


def test_every_block_of_python_in_a_page_is_run():
    pages = sorted(DOCS.rglob("*.md"))
    assert {page.stem for page in pages if codeblocks.blocks_of(page)} >= PAGES.keys()
    assert [page.name for page in pages if codeblocks.without_comment(page)] == []
    rest = [
        page.name
        for page in DOCS.glob("*.md")
        if codeblocks.blocks_of(page) and page.stem not in PAGES
    ]
    tests = "".join(path.read_text() for path in codeblocks.ROOT.glob("tests/**/test_*.py"))
    assert [
        name for name in rest if f'"{name}"' not in tests
    ] == []  # a test of its own runs those of another kind


def test_pages_name_files_that_are_there():
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} names {target}"


def test_what_a_page_says_that_it_prints_is_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- test: one -->\n```python\nprint(1 + 1)\n```\n```text\n3\n```\n")

    with pytest.raises(AssertionError, match=r"page\.md, line 3, prints"):
        codeblocks.run(page, codeblocks.blocks_of(page), {}, tmp_path)


@pytest.mark.slow
def test_a_test_on_a_page_that_fails_is_a_failure(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- file: test_one.py -->\n```python\ndef test_it():\n    assert 1 + 1 == 3\n```\n"
    )

    with pytest.raises(AssertionError, match="1 failed"):
        codeblocks.run(page, codeblocks.blocks_of(page), {}, tmp_path)


def test_a_block_that_nothing_runs_is_counted(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\n1 / 0\n```\n")

    assert codeblocks.without_comment(page) == 1


@pytest.mark.slow
@pytest.mark.parametrize("defined", ["damaged-data"], indirect=True)
def test_the_page_about_damaged_data_runs_and_says_what_is_damaged(defined):
    assert defined["damaged"] == {17, 23}
    assert [
        bad.record for bad in sorted(defined["loader"].bad_records(), key=lambda bad: bad.record)
    ] == [17, 23]
    lines = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert {line["record"] for line in lines} == {17, 23}

"""The documentation site: it builds without a warning, links lead somewhere, and it takes nothing
from elsewhere."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from tests import codeblocks

ROOT = codeblocks.ROOT
mkdocs_config = pytest.importorskip("mkdocs.config")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings_handlers.python")


def build(folder, *, whole):
    """Build the site in a process of its own, ``whole`` with docstrings, the index of the search,
    and coloured code."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "GPULOAD_DOCS_WHOLE": str(whole).lower(),
    }
    process = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return folder


class Links(HTMLParser):
    """What a page links to, what it loads, and which anchors it has."""

    def __init__(self, page):
        super().__init__()
        self.links, self.loads, self.anchors = set(), set(), set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.add(values["href"])
        if tag in ("img", "script", "source", "iframe") and values.get("src"):
            self.loads.add(values["src"])
        if (
            tag == "link"
            and values.get("href")
            and values.get("rel") not in ("canonical", "next", "prev")
        ):
            self.loads.add(values["href"])


def broken_links(folder):
    """Return the links and files of the pages below ``folder`` that lead nowhere, and what is
    loaded from elsewhere."""
    pages = {page.resolve(): Links(page) for page in folder.rglob("*.html")}
    problems = []
    for page, parts in pages.items():
        if page.name == "404.html":  # its links are those of a server's root
            continue
        problems += [f"{page.name} loads {url}" for url in parts.loads if urlsplit(url).netloc]
        for url in parts.links | parts.loads:
            address = urlsplit(url)
            if address.scheme or address.netloc:
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            if not target.is_file():
                problems.append(f"{page.name} names {url}")
            elif (
                address.fragment
                and target in pages
                and unquote(address.fragment) not in pages[target].anchors
            ):
                problems.append(f"{page.name} names {url}, which has no such anchor")
    return problems


def test_the_site_without_docstrings_builds_its_links_lead_somewhere_and_it_loads_nothing_from_elsewhere(
    tmp_path,
):
    folder = build(tmp_path, whole=False)

    assert len(list(folder.rglob("*.html"))) > 40
    assert broken_links(folder) == []
    for sheet in folder.rglob("*.css"):
        assert not re.search(
            r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")
        ), sheet
    for page in folder.rglob("*.html"):
        assert flat_list(page.read_text(encoding="utf-8")) == "", page


WIDTHS = """<pre id="out"></pre><script>
async function measure(page) {
  const frame = document.body.appendChild(document.createElement("iframe"))
  frame.style.width = "PIXELSpx"
  const loaded = new Promise((resolve) => { frame.onload = resolve })
  frame.src = page
  await loaded
  await new Promise((resolve) => setTimeout(resolve, 100))
  const width = frame.contentDocument.documentElement.scrollWidth
  frame.remove()
  out.textContent += `${page} ${width}\\n`
}
PAGES.reduce((before, page) => before.then(() => measure(page)), Promise.resolve())
</script>"""


def too_wide(folder, pixels):
    """Return the pages that have to be scrolled sideways in a window of so many pixels; none
    without Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        return []
    pages = [
        page.relative_to(folder).as_posix()
        for page in folder.rglob("*.html")
        if page.name != "404.html"
    ]
    measure = folder / "widths.html"
    measure.write_text(
        WIDTHS.replace("PIXELS", str(pixels)).replace("PAGES", json.dumps(pages)), encoding="utf-8"
    )
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        "--dump-dom",
    ]
    command += [
        f"--user-data-dir={folder}/browser",
        "--virtual-time-budget=60000",
        "--window-size=1400,1000",
    ]
    process = subprocess.run(
        [*command, measure.as_uri()], capture_output=True, text=True, timeout=280
    )
    widths = dict(re.findall(r"^(?:.*>)?([\w./-]+\.html) (\d+)$", process.stdout, re.MULTILINE))
    assert set(widths) == set(pages)
    return [page for page, width in widths.items() if int(width) > pixels]


def flat_list(html):
    """Return the end of a paragraph in which a list or a table stands as text; ``""`` where there
    is none.

    Python-Markdown wants an empty line before a list, which a code host does not.
    """
    text = re.sub(r"<pre.*?</pre>", "", html, flags=re.DOTALL)
    match = re.search(r"<p>[^<]*(?:<(?!/p)[^>]*>[^<]*)*\n(?:[-*] |\d+\. |\|.*\|)", text)
    return match[0][-200:] if match else ""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_with_the_docstrings_builds_and_its_links_lead_somewhere(tmp_path):
    folder = build(tmp_path, whole=True)

    assert broken_links(folder) == []
    ops = Links(folder / "api" / "ops.html").anchors
    assert {"gpuload.ops.RandomCrop", "gpuload.ops.Decode"} <= ops
    sources = (folder / "api" / "sources.html").read_text(encoding="utf-8")
    assert (
        "doc-symbol-module" not in sources
    )  # gl.open is the function, and not the module of that name
    assert too_wide(folder, pixels=390) == []


def test_a_page_that_the_navigation_does_not_name_is_a_warning(caplog):
    from mkdocs.structure.files import File, get_files
    from mkdocs.structure.nav import get_navigation

    config = mkdocs_config.load_config(str(ROOT / "mkdocs.yml"))
    files = get_files(config)
    files.append(File("lost.md", config.docs_dir, config.site_dir, use_directory_urls=False))

    with caplog.at_level(logging.WARNING):
        get_navigation(files, config)

    assert "lost.md" in caplog.text


def test_a_link_that_leads_nowhere_is_reported(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#x">1</a><a href="c.html">2</a><script src="//cdn/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<h1 id="y">B</h1><a href="a.html">A</a>')

    assert sorted(broken_links(tmp_path)) == [
        "a.html loads //cdn/x.js", "a.html names b.html#x, which has no such anchor", "a.html names c.html"
    ]  # fmt: skip


def test_a_list_that_is_no_list_in_the_site_is_reported():
    assert flat_list("<p>So:\n- first\n- <code>second</code></p>")
    assert not flat_list("<p>So:</p><ul>\n<li>first</li></ul>")


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("chromium") or shutil.which("google-chrome")), reason="needs Chromium"
)
def test_a_page_that_is_wider_than_the_window_is_reported(tmp_path):
    (tmp_path / "wide.html").write_text("<!doctype html><div style='width: 500px'>wide</div>")
    (tmp_path / "narrow.html").write_text("<!doctype html><div>narrow</div>")

    assert too_wide(tmp_path, pixels=390) == ["wide.html"]

"""A hook of MkDocs: what pages link to outside ``docs/`` gets a page, or a copy, under
``repository/`` of the site.

On a code host ``[the script](../docker/install.sh)`` shows that file. In the site the same link
leads to ``repository/docker/install.sh.html``. Markdown becomes a page whose own links are followed
in the same way, an image is copied, any other file is shown as code, and a folder as the list of
its files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PREFIX = "repository/"  # of these files in the site
FENCE = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
IMAGES = {".gif", ".jpg", ".png", ".svg", ".webp"}
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}
FIRST = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
)  # those that the navigation names


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file outside ``docs/`` to which a page of the site links, and those to which these
    link."""
    pending = [*FIRST]
    for file in files.documentation_pages():
        pending += _linked(file.content_string, f"docs/{file.src_uri}")
    while pending:
        path = pending.pop()
        uri = site_uri(path)
        if uri in files.src_uris:
            continue
        place = ROOT / path
        if place.suffix in IMAGES:
            files.append(File.generated(config, uri, abs_src_path=str(place)))
        else:
            files.append(File.generated(config, uri, content=_text_of(path)))
        if place.suffix == ".md":
            pending += _linked(place.read_text(encoding="utf-8"), path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text with each link to a file of the repository turned to where that is in the
    site."""
    uri = page.file.src_uri
    path = uri.removeprefix(PREFIX) if uri.startswith(PREFIX) else f"docs/{uri}"
    if path.endswith(".md") and not (ROOT / path).is_file():
        return markdown  # a page that shows a file of code

    def turn(match: re.Match[str]) -> str:
        target = _target(match[2], path)
        if target is None:
            return match[0]
        place = posixpath.relpath(site_uri(target), posixpath.dirname(uri))
        return f"{match[1]}{place}{match[3] or ''}"

    parts = FENCE.split(markdown)
    return "".join(
        part if number % 2 else LINK.sub(turn, part) for number, part in enumerate(parts)
    )


def site_uri(path: str) -> str:
    """Return where a file of the repository (``docker/install.sh``) is among the sources of the
    site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    suffix = posixpath.splitext(path)[1]
    return PREFIX + path + ("" if suffix in IMAGES or suffix == ".md" else ".md")


def _linked(text: str, path: str) -> list[str]:
    """Return the files outside ``docs/`` to which the page at ``path`` links."""
    text = FENCE.sub("", text)
    targets = [_target(match[2], path) for match in LINK.finditer(text)]
    return [target for target in targets if target and not target.startswith("docs/")]


def _target(link: str, path: str) -> str | None:
    """Return the path in the repository to which a link of the page at ``path`` leads; None if
    nothing is there."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return target if not target.startswith("..") and (ROOT / target).exists() else None


def _text_of(path: str) -> str:
    """Return the page that shows a file or a folder."""
    place = ROOT / path
    if place.suffix == ".md":
        return place.read_text(encoding="utf-8")
    if place.is_dir():
        names = sorted(
            child.name for child in place.iterdir() if not child.name.startswith("__pycache__")
        )
        return f"# {path}\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = place.read_text(encoding="utf-8")
    return f"# {path}\n\n````{LANGUAGES.get(place.suffix, 'text')}\n{text.rstrip()}\n````\n"

"""What the site does beyond MkDocs: repository files as pages, tables for narrow screens, and nothing from elsewhere.

`../examples/flights.py` in docs/kafka.md leads to the file in the repository, and to a page with its text on the site.
MkDocs calls the functions `on_…` (https://www.mkdocs.org/user-guide/configuration/#hooks).
"""

from __future__ import annotations

import itertools
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FOLDER = "repository/"
ALWAYS = ("CHANGELOG.md",)
"""In the navigation, whether a page links to it or not."""

_MINOR = ("reference/", "benchmarks.md", FOLDER)
"""What search lists after the guides: folders, and a page whose tables repeat the names of all sinks."""

_LINK = re.compile(r"(?P<before>\]\(|^\[[^\]\n]+\]: )(?P<path>[^\s()<>#:]+)", re.MULTILINE)
_LOADED = re.compile(r"<(?:script|link|img|iframe|object)\b[^>]*\b(?:src|href|data)=[\"']?(?:https?:)?//[^>]*>")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_CELL = re.compile(r"<td\b")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each repository file that a page links to."""
    waiting = [*ALWAYS]
    for file in files.documentation_pages():
        waiting += _linked(file.src_uri, file.content_string)
    while waiting:
        path = waiting.pop()
        if files.get_file_from_path(_uri(path)) is None:
            content = (ROOT / path).read_text()
            waiting += _linked(_uri(path), content) if path.endswith(".md") else []
            files.append(File.generated(config, _uri(path), content=_shown(path, content)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site, and rank the page for search."""
    if page.file.src_uri.startswith(_MINOR):
        page.meta.setdefault("search", {}).setdefault("boost", 0.3)
    folder = posixpath.dirname(page.file.src_uri)

    def turned(link: re.Match[str]) -> str:
        path = _target(page.file.src_uri, link["path"])
        return link["before"] + posixpath.relpath(_uri(path), folder or ".") if path else link[0]

    return _LINK.sub(turned, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give each cell the heading of its column, which the style sheet shows on screens too narrow for columns."""

    def labelled(table: re.Match[str]) -> str:
        headings = [re.sub(r"<[^>]+>", "", heading) for heading in _HEADING.findall(table[0])]
        labels = itertools.cycle(headings)
        return _CELL.sub(lambda cell: f'<td data-label="{next(labels)}"', table[0])

    return _TABLE.sub(labelled, html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Fail on a page that would load something from another host.

    Raises:
        PluginError: naming what the page loads.
    """
    if loaded := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {loaded[0]}")
    return output


def _linked(uri: str, markdown: str) -> list[str]:
    """Return the repository files outside docs/ that a page links to."""
    targets = [_target(uri, link["path"]) for link in _LINK.finditer(markdown)]
    return [path for path in targets if path and not path.startswith("docs/")]


def _target(uri: str, link: str) -> str | None:
    """Return the repository path of a link; `None` for one between two files of docs/, or to no file."""
    inside = not uri.startswith(FOLDER)
    source = f"docs/{uri}" if inside else uri.removeprefix(FOLDER)
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if path.startswith("../") or (inside and path.startswith("docs/")) or not (ROOT / path).is_file():
        return None
    return path


def _uri(path: str) -> str:
    """Return where the site has a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return FOLDER + (path if path.endswith(".md") else f"{path}.md")


def _shown(path: str, content: str) -> str:
    if path.endswith(".md"):
        return content
    # Longer than a fence that the file may contain.
    fence = "`" * 5
    language = _LANGUAGES.get(Path(path).suffix, "text")
    # Search leads to pages, not into programs.
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n{fence}{language}\n{content}{fence}\n"

"""What docs/hooks.py adds to MkDocs. `nox -s docs` checks links, anchors and the navigation of the whole site."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mkdocs")

from mkdocs.exceptions import PluginError

from docs import hooks

UNUSED: Any = None


def page(uri: str) -> Any:
    return SimpleNamespace(file=SimpleNamespace(src_uri=uri), meta={})


@pytest.mark.parametrize(
    ("uri", "link", "on_the_site"),
    [
        ("kafka.md", "../examples/my_sink.py", "repository/examples/my_sink.py.md"),
        ("recipes/cdc.md", "../../examples/my_sink.py", "../repository/examples/my_sink.py.md"),
        ("kafka.md", "../CHANGELOG.md", "repository/CHANGELOG.md"),
        ("repository/CHANGELOG.md", "docs/kafka.md", "../kafka.md"),
        ("repository/CHANGELOG.md", "LICENSE", "LICENSE.md"),
        ("kafka.md", "file.md", "file.md"),
        ("kafka.md", "../examples/missing.py", "../examples/missing.py"),
    ],
)
def test_links_to_repository_files_lead_to_pages(uri: str, link: str, on_the_site: str) -> None:
    turned = hooks.on_page_markdown(f"See [it]({link}#part).\n\n[ref]: {link}", page(uri), UNUSED, UNUSED)
    assert turned == f"See [it]({on_the_site}#part).\n\n[ref]: {on_the_site}"


def test_search_lists_guides_before_the_reference() -> None:
    for uri, boost in (("reference/mysql.md", 0.3), ("repository/CHANGELOG.md", 0.3), ("mysql.md", 1)):
        hooks.on_page_markdown("", found := page(uri), UNUSED, UNUSED)
        assert found.meta.get("search", {}).get("boost", 1) == boost


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("stuck", "metrics.md"),
        ("lagging", "metrics.md"),
        ("duplicate", "troubleshooting.md"),
        ("slow", "troubleshooting.md"),
        ("null key", "troubleshooting.md"),
    ],
)
def test_what_people_search_in_trouble_is_in_a_heading_of_one_guide(words: str, page: str) -> None:
    """A heading weighs a thousand times as much as the text in Material's search."""
    found = {
        path.name
        for path in (hooks.ROOT / "docs").glob("**/*.md")
        for heading in re.findall("^##+ (.*)", path.read_text(), re.MULTILINE)
        if all(word in heading.lower() for word in words.split())
    }
    assert found == {page}


def test_cells_have_the_headings_of_their_columns() -> None:
    rows = "<tr><th>a</th><th><code>b</code></th></tr><tr><td>1</td><td style='x'>2</td></tr><tr><td>3</td></tr>"
    table = f"<table>{rows}</table>"
    shown = hooks.on_page_content(table, page("x.md"), UNUSED, UNUSED)
    assert '<td data-label="a">1</td><td data-label="b" style=\'x\'>2</td>' in shown
    assert '<td data-label="a">3</td>' in shown


@pytest.mark.parametrize("loaded", ['<script src="//cdn/x.js">', '<link rel="stylesheet" href="https://fonts/x.css">'])
def test_a_page_that_loads_something_from_another_host_fails(loaded: str) -> None:
    hooks.on_post_page('<a href="https://spark.apache.org">Spark</a> <script src="../x.js">', page("x.md"), UNUSED)
    with pytest.raises(PluginError, match="another host"):
        hooks.on_post_page(loaded, page("x.md"), UNUSED)

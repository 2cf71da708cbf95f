"""The generated parts of the pages are what the code says, and each list of sinks is generated or compared with it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from outfall.async_sink import AsyncSink
from tests.combinations import KEYED, REQUESTS
from tests.documents import DOCS, PAGES, ROOT, page_name
from tests.generated import COMMAND, GENERATED, TABLES, Package, destinations, generated, parts, registered

yaml = pytest.importorskip("yaml")

MEASURED = {"benchmarks.md", "comparison.md"}
"""Pages that name the sinks of which they have a measurement or a peer."""
COMPARED = ("| logger | levels |", "| sink | counter |")
"""How tables of sinks begin that other tests compare with the code."""


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import the packages before the first test is timed. Tests that use them show what is missing."""
    with contextlib.suppress(ImportError):
        registered()


@pytest.fixture
def sinks() -> list[Package]:
    return registered()


@pytest.mark.parametrize("page", [page for page in GENERATED if parts(page.read_text())], ids=page_name)
def test_a_page_has_what_the_code_says(page: Path) -> None:
    text = page.read_text()
    assert text == generated(text), f"run {COMMAND}"


def test_each_table_is_in_a_page() -> None:
    assert {name for page in GENERATED for kind, name in parts(page.read_text()) if kind == "sinks"} == set(TABLES)


def test_each_sink_has_a_page_with_its_options(sinks: list[Package]) -> None:
    for package in sinks:
        models = [name for kind, name in parts((DOCS / f"{package.page}.md").read_text()) if kind == "options"]
        assert models, package.page
        assert [name for name in models if not name.startswith(package.module.__name__)] == []


def test_the_navigation_has_each_page_of_a_sink(sinks: list[Package]) -> None:
    text = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text())
    nav = {title: pages for entry in yaml.safe_load(text)["nav"] for title, pages in entry.items()}
    api = {title: pages for entry in nav["API reference"] for title, pages in entry.items()}
    assert sorted(pages_of(nav["Sinks"])) == sorted(f"{package.page}.md" for package in sinks)
    assert sorted(pages_of(api["Sinks"])) == sorted(f"reference/{package.page}.md" for package in sinks)


def pages_of(entries: list[Any]) -> list[str]:
    return [page for entry in entries for page in entry.values()]


def test_each_sink_is_in_the_table_of_counters() -> None:
    table = (DOCS / "metrics.md").read_text().partition("| sink | counter |")[2].partition("\n\n")[0]
    assert [package.page for package in destinations() if f"]({package.page}.md" not in table] == []


def test_each_counter_is_described() -> None:
    sources = [path.read_text() for path in (ROOT / "connectors").rglob("*.py")]
    counters = {name for text in sources for name in re.findall(r'etrics\.(?:add|peak)\(\s*"(\w+)"', text)}
    pages = "".join(page.read_text() for page in PAGES)
    assert len(counters) > 15
    assert {name for name in counters if f"`{name}`" not in pages} == set()


def test_the_wrappers_are_combined_with_each_sink_that_sends_requests() -> None:
    sending = {package.name for package in destinations() for sink in package.facts.sinks.values() if sends(sink)}
    assert {*REQUESTS, *KEYED} == sending


def sends(sink: Any) -> bool:
    return isinstance(getattr(sink, "delegate", sink), AsyncSink)


def test_no_page_lists_sinks_by_hand() -> None:
    titles = [re.compile(rf"\b(?:{'|'.join(package.facts.title.split(', '))})\b") for package in destinations()]
    by_hand = [
        f"{page_name(page)}: {paragraph[:60]}"
        for page in PAGES
        if page.name not in MEASURED
        for paragraph in paragraphs(page)
        if sum(bool(title.search(paragraph)) for title in titles) > len(titles) // 3
    ]
    assert by_hand == [], "generate the list in tests/generated.py, or leave it out"


def paragraphs(page: Path) -> list[str]:
    """What a page says beside generated parts and compared tables."""
    text = re.sub(r"<!-- (options|sinks) .*?<!-- /\1 -->", "", page.read_text(), flags=re.DOTALL)
    return [paragraph for paragraph in re.split(r"\n\n+", text) if not paragraph.startswith(COMPARED)]

"""The Python blocks of README.md and of the pages in docs/, and how they are run.

Every block is run, in the order of its page and in one namespace per page, unless the line before it says
`<!-- not executed: reason -->`. A block that needs Spark is given `spark`, `flights` (a stream of a few flights) and
`day` (the same as a batch). Paths below /data/ are replaced by paths of the test.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / name for name in ("core", "engine", "connectors", "tools")]
"""The roots of the code, from the lowest one: each imports only what is before it."""
DOCS = ROOT / "docs"
RECIPES = DOCS / "recipes"
"""Their blocks need servers: tests/integration/project/test_recipes.py runs them."""
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

_BLOCK = re.compile(
    r"(?:^ *<!-- not executed: (?P<reason>[^\n]+) -->\n)?^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_SPARK = re.compile(r"outfall\.spark|\bpyspark\b|\bspark\.|(?:read|write)Stream|\bwrite_stream\(")
_OPTIONS = re.compile(r'format\("outfall"\)')


def modules() -> Iterator[tuple[str, Path]]:
    """Yield each module of the code, by its name."""
    for root in SOURCES:
        for file in root.rglob("*.py"):
            yield ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), file


def page_name(page: Path) -> str:
    """Return what a test calls a page, such as "file.md" or "recipes/cdc.md"."""
    return str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else page.name


@dataclass(frozen=True)
class Block:
    """One fenced block of Python."""

    page: Path
    line: int
    code: str
    reason: str | None
    """Why it is not run; `None` where it is."""

    @property
    def needs_spark(self) -> bool:
        return bool(_SPARK.search(self.code))

    @property
    def needs_format_api(self) -> bool:
        return bool(_OPTIONS.search(self.code))

    def run(self, names: dict[str, Any], data: Path) -> None:
        """Run it with what the blocks before it have left in `names`."""
        code = self.code.replace("/data/", f"{data}/")
        # The line numbers of a traceback are those of the page.
        exec(compile("\n" * self.line + code, str(self.page), "exec", dont_inherit=True), names)


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, match.start("code")),
            textwrap.dedent(match["code"]),
            match["reason"],
        )
        for match in _BLOCK.finditer(text)
    ]


@contextlib.contextmanager
def unchanged_environment() -> Iterator[None]:
    """Take back what a block does to the environment, and to how Outfall logs."""
    before: Mapping[str, str] = dict(os.environ)
    log = logging.getLogger("outfall")
    level = log.level
    try:
        yield
    finally:
        log.setLevel(level)
        os.environ.clear()
        os.environ.update(before)

"""A page of docs/recipes/ that is followed block by block, with the addresses of a test.

Everything on a page is tried: Python runs in this process, commands in a shell. A block whose first line is a comment
with the name of a file becomes that file. A block of text is compared with the output of the block before it, or with
what the test hands over.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.documents import RECIPES
from tests.integration.conftest import spark_environment

_BLOCK = re.compile(
    r"(?:^<!-- not executed: [^\n]+ -->\n(?=```(?P<skipped>.)))?"
    r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>(?: *(?:#|--) (?P<file>[\w./-]+\.\w+)\n)?.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_VARIES = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?( UTC)?"  # times
    r"|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{16}\b"  # ids
    r"|\b[\w.-]+:\d+(?=, outfall)|\b[\d.,]+ (s|min|B|kB|bytes)\b|\b\d+\.\d\d\b"  # processes, durations, sizes
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    file: str | None
    """The file that it is, where its first line says so."""
    skipped: bool
    line: int


class Recipe:
    """A page that is followed with the test's own addresses.

    Args:
        page: its file below docs/recipes/.
        home: what /data/ on the page stands for.
        addresses: what else on the page stands for what.
    """

    def __init__(self, page: str, home: Path, addresses: Mapping[str, str]) -> None:
        self.path = RECIPES / page
        self.home = home
        self.addresses = {"/data/": f"{home}/", **addresses}
        self.names: dict[str, Any] = {}
        """What the blocks of Python have assigned."""
        self.printed = ""
        """What the last one of them printed, also if it failed."""
        self._sections = sections(self.path.read_text())
        self._left = {id(block): block for found in self._sections.values() for block in found if not block.skipped}

    def follow(self, heading: str, changes: Mapping[str, str] | None = None) -> None:
        """Run the blocks below a heading in their order, with what is to be different from the page."""
        printed: str | None = None
        for block in self._sections[heading]:
            self._left.pop(id(block), None)
            text = replaced(replaced(block.text, changes or {}), self.addresses)
            if block.skipped:
                printed = None
            elif block.language == "text":
                if printed is not None:
                    self._compare(block, printed)
            elif block.file is not None:
                path = self.home / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            elif block.language == "python":
                printed = self._python(block, text)
            elif block.language == "bash":
                printed = self._shell(text)

    def shows(self, heading: str, printed: str, which: int = 0) -> None:
        """Compare what came with a text that the page shows below a heading."""
        block = [block for block in self._sections[heading] if block.language == "text"][which]
        self._left.pop(id(block), None)
        self._compare(block, printed)

    def check_all_was_tried(self, *, but: str = "") -> None:
        """Find each block of the page run, or compared with what came, but those below a heading."""
        elsewhere = {id(block) for block in self._sections.get(but, ())}
        assert [f"{self.path.name}:{block.line}" for key, block in self._left.items() if key not in elsewhere] == []

    def _python(self, block: Block, text: str) -> str:
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                # The line numbers of a traceback are those of the page.
                exec(compile("\n" * block.line + text, str(self.path), "exec"), self.names)
        finally:
            self.printed = output.getvalue()
        return self.printed

    def _shell(self, script: str) -> str:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        ended = subprocess.run(
            ["bash", "-euc", script],
            cwd=self.home, env={**os.environ, **spark_environment(), "PATH": path}, timeout=480,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if ended.returncode:
            print(ended.stdout)
            ended.check_returncode()
        return ended.stdout

    def _compare(self, block: Block, printed: str) -> None:
        """Find the lines of the page among those that came, in their order; times, ids and sizes may be others."""
        back = {address: written for written, address in self.addresses.items()}
        assert block.text.strip(), f"{self.path.name}:{block.line}"
        came = iter(alike(replaced(printed, back)))
        missing = [line for line in alike(block.text) if not any(line == other for other in came)]
        assert missing == [], f"{self.path.name}:{block.line}: what came is\n{replaced(printed, back)}"


def sections(text: str) -> dict[str, list[Block]]:
    """The blocks of a page, by the heading above them."""
    found: dict[str, list[Block]] = {}
    headings = [(match.start(), match[1]) for match in re.finditer(r"^##+ (.+)$", text, re.MULTILINE)]
    for match in _BLOCK.finditer(text):
        heading = [name for start, name in headings if start < match.start()][-1]
        line = text.count("\n", 0, match.start("text"))
        block = Block(
            match["language"], textwrap.dedent(match["text"]), match["file"], match["skipped"] is not None, line
        )
        found.setdefault(heading, []).append(block)
    return found


def replaced(text: str, by: Mapping[str, str]) -> str:
    for old, new in by.items():
        text = text.replace(old, new)
    return text


def alike(text: str) -> list[str]:
    """The lines of an output without what differs between two runs."""
    return [" ".join(_VARIES.sub("#", line).split()) for line in text.splitlines() if line.strip()]

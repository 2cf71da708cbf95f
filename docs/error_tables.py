"""The tables of errors in troubleshooting.md, from the docstrings of `outfall.errors`.

`python docs/error_tables.py` writes them into the page; a test compares them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from outfall import errors

PAGE = Path(__file__).with_name("troubleshooting.md")
FAMILIES = {"terminal": errors.TerminalError, "transient": errors.TransientError}
"""By the name of their table."""


def error_table(family: type[errors.OutfallError]) -> str:
    """Render the errors of one family: from the first paragraph of a docstring when, from the others what to do."""
    lines = ["| Error | When | What to do |", "|---|---|---|"]
    for error in _members(family):
        when, _, remedy = (inspect.getdoc(error) or "").partition("\n\n")
        cells = (when.removeprefix("Raised ").removeprefix("if "), remedy.removeprefix("A retry fails again. "))
        link = f"[`{error.__name__}`](reference/errors.md#outfall.errors.{error.__name__})"
        lines.append(f"| {link} | {' | '.join(_sentence(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    """Return the page with each table as the code has it now."""
    for name, family in FAMILIES.items():
        before, begin, rest = page.partition(f"<!-- errors: {name} -->\n")
        _, end, after = rest.partition(f"<!-- /errors: {name} -->")
        page = before + begin + error_table(family) + end + after
    return page


def _members(family: type[errors.OutfallError]) -> Iterator[type[errors.OutfallError]]:
    for error in vars(errors).values():
        if inspect.isclass(error) and issubclass(error, family) and error not in FAMILIES.values():
            yield error


def _sentence(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))

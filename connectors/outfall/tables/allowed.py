"""The tables that rows may name: the entries of the option `allowed_tables`, for all sinks that have it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PART = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.=-]*[A-Za-z0-9_=-])?")
_STRANGE = re.compile(r"[^A-Za-z0-9_.=-]")


def pattern_of(part: str) -> re.Pattern[str]:
    """Return what a part of an entry matches: `*` stands for any characters of that part.

    A part has no separator of names, so no `*` lets a row choose another schema, namespace or directory.
    """
    return re.compile(".*".join(map(re.escape, part.split("*"))), re.DOTALL)


def check_part(part: str) -> None:
    """Reject a part of a name that is also a level of a path, unless every store and catalog takes it as it is.

    Parsers of URLs drop or decode other characters, some only at an end, so that a path may lead to another place than
    the name that was checked. `ValueError` states what is wrong.
    """
    if _PART.fullmatch(part) is not None:
        return
    if not part.strip():
        raise ValueError("has an empty part" if part == "" else "has a blank part")
    strange = _STRANGE.search(part)
    if strange is not None:
        raise ValueError(f"contains {strange[0]!r}; names in rows consist of ASCII letters, digits, _, -, = and .")
    how = "ends with a dot" if part[0].isalnum() else f"begins with {part[0]!r}"
    raise ValueError(f"has the part {part!r}, which {how}")


class AllowedNames:
    """The tables that rows may name, by the parts of their names, such as a namespace and a table."""

    def __init__(self, entries: Sequence[Sequence[str]]) -> None:
        self._entries = [[pattern_of(part) for part in entry] for entry in entries]

    def allows(self, name: Sequence[str]) -> bool:
        """Return whether rows may name this table."""
        return any(len(entry) == len(name) and all(map(_matches, entry, name)) for entry in self._entries)


def _matches(pattern: re.Pattern[str], part: str) -> bool:
    return pattern.fullmatch(part) is not None

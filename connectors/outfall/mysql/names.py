"""Names of tables and columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from outfall.errors import ConfigurationError
from outfall.mysql.options import LONGEST
from outfall.sql.names import SqlName

_PART = re.compile(r"`(?:[^`]|``)+`|[^`.]+")


@dataclass(frozen=True)
class MySQLName(SqlName):
    """A table with an optional database. Without one, it is in the database of the connection."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `name`, `database.name` or parts in backticks. The server decides whether case matters.

        Raises `ConfigurationError` if it is none of these, or too long.
        """
        parts = _PART.findall(text)
        names = [part[1:-1].replace("``", "`") if part.startswith("`") else part.strip() for part in parts]
        problem = None
        if ".".join(parts) != text or len(parts) not in (1, 2):
            problem = "it has other parts than a database and a name"
        elif problems := [reason for name in names if (reason := why_no_name(name))]:
            problem = problems[0]
        if problem:
            raise ConfigurationError(
                f"{text!r} is not the name of a table",
                why=problem,
                do="write name, database.name or `quoted database`.`quoted name`",
            )
        return cls(names[0] if len(names) == 2 else None, names[-1])

    @property
    def quoted(self) -> str:
        parts = (self.place, self.name)
        return ".".join(_quoted(part) for part in parts if part is not None)


def quote(column: str) -> str:
    """Quote a column as the server's own statements do, for a statement with parameters."""
    return _quoted(column).replace("%", "%%")


def why_no_name(name: str) -> str | None:
    """Return why the server accepts no table or column of a name; `None` if it does."""
    if not 0 < len(name) <= LONGEST:
        return f"{name!r} has {len(name)} characters; a name has 1 to {LONGEST}"
    if name.endswith(" "):
        return f"{name!r} ends with a space"
    if not name.isprintable() or max(name) >= "\U00010000":
        return f"{name!r} contains a character that names do not allow"
    return None


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"

"""Names of tables and columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from psycopg import sql

from outfall.errors import ConfigurationError
from outfall.postgres.options import LONGEST
from outfall.sql.names import SqlName, ledger_name
from outfall.sql.words import doubled

_PART = re.compile(r'"(?:[^"]|"")+"|[^".]+')


@dataclass(frozen=True)
class TableName(SqlName):
    """A table with an optional schema. Without a schema, the server resolves it along the `search_path`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `name`, `schema.name` or quoted parts. Like in SQL, unquoted names are converted to lower case.

        Raises `ConfigurationError` if it is none of these, or too long.
        """
        parts = _PART.findall(text)
        if ".".join(parts) != text or len(parts) not in (1, 2):
            raise ConfigurationError(
                f"{text!r} is not the name of a table", do='write name, schema.name or "Quoted Schema"."Quoted Name"'
            )
        names = [part[1:-1].replace('""', '"') if part.startswith('"') else part.strip().lower() for part in parts]
        for name in names:
            if not name or "\0" in name or len(name.encode()) > LONGEST:
                raise ConfigurationError(f"{text!r} is not the name of a table", why="a part is empty or over 63 bytes")
        return cls(names[0] if len(names) == 2 else None, names[-1])

    def found_in(self, schema: str | None) -> Self:
        """Return the name with the schema that the `search_path` found, or without schema for `public`."""
        return self if schema == "public" else super().found_in(schema)

    def in_ledger(self, schema: str | None) -> str:
        """Return the name in the ledger, for any spelling. `schema` is the table's; `None` if it does not exist."""
        return ledger_name(None if schema == "public" else schema, self.name)

    def identifier(self) -> sql.Identifier:
        """Return the name as SQL, quoted."""
        return sql.Identifier(self.name) if self.place is None else sql.Identifier(self.place, self.name)

    @property
    def quoted(self) -> str:
        return _quoted(self.name) if self.place is None else _quoted(self.place, self.name)


def quote(*name: str) -> str:
    """Quote a name of one or several parts, for a statement with parameters.

    With parameters, psycopg treats % as the beginning of a placeholder, even within quotes.
    """
    return doubled(_quoted(*name))


@lru_cache(maxsize=8192)
def _quoted(*name: str) -> str:
    # An epoch of a thousand tables quotes the same names in each of its statements.
    return sql.Identifier(*name).as_string(None)

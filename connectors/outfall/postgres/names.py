"""Names of tables and columns: those of the user, and those that the sink adds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from psycopg import sql

from outfall.errors import ConfigurationError

_PART = re.compile(r'"(?:[^"]|"")+"|[^".]+')
LONGEST = 63
"""Bytes of an identifier; PostgreSQL silently truncates longer ones."""

STAGE = "_outfall_stage"
"""The column of staging with the attempt's number."""

ROW = "_outfall_row"
"""The column of staging that numbers the rows of an attempt, to find the last row of a key for upserts. Addresses are
not in write order, because a vacuum during a COPY frees earlier pages."""

MARKER = "_outfall_delete"
"""The column of staging with the delete marker, which the target does not have."""

GONE = "_outfall_gone"
"""A column within statements: whether a row of an upsert is a removal."""

NUMBER = "_outfall_number"
"""A column within statements: the number of a row within its key, from the last row on."""


@dataclass(frozen=True)
class TableName:
    """A table with an optional schema. Without a schema, the server resolves it along the `search_path`."""

    schema: str | None
    name: str
    found: str | None = field(default=None, compare=False)
    """The schema in which the server has found it: see `resolved`."""

    @classmethod
    def parse(cls, text: str) -> TableName:
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

    def found_in(self, schema: str | None) -> TableName:
        """Return the name with the schema that the `search_path` found, or without schema for `public`."""
        return self if self.schema is not None or schema in (None, "public") else TableName(schema, self.name)

    def resolved(self, schema: str | None) -> TableName:
        """Return the name with the schema that the `search_path` found, which SQL then names and texts do not.

        Otherwise a table that is created later, in a schema before it in the path, would get the rows.
        """
        return self if self.schema is not None else replace(self, found=schema)

    def ledger_names(self, schema: str | None, step: str) -> list[tuple[str, str]]:
        """Return the names of a table and a step in the ledger, for any spelling. New rows use the first pair.

        The other pairs are those of earlier releases, which wrote the table as it was spelled, and appended the schema
        to the step if the search path found the table outside `public`. `schema` is that of the table; `None` if it
        does not exist.
        """
        qualified = f"{schema}.{self.name}"
        if schema is None:
            return [(self.name, step)]
        if schema == "public":
            return [(self.name, step), (qualified, step)]
        return [(qualified, step), (self.name, f"{step} in {schema}")]

    def identifier(self) -> sql.Identifier:
        """Return the name as SQL, quoted."""
        return sql.Identifier(*self._parts())

    def escaped(self) -> sql.SQL:
        """Return the name as SQL, quoted, for a statement that is executed with parameters."""
        return escaped(*self._parts())

    def _parts(self) -> tuple[str, ...]:
        schema = self.schema or self.found
        return (self.name,) if schema is None else (schema, self.name)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


def escaped(*name: str) -> sql.SQL:
    """Quote a name of one or several parts, for a statement with parameters.

    With parameters, psycopg treats % as the beginning of a placeholder, even within quotes.
    """
    return escaped_sql(sql.Identifier(*name).as_string(None))


def escaped_sql(text: str) -> sql.SQL:
    """Return SQL text unchanged, for a statement with parameters."""
    return sql.SQL(text.replace("%", "%%"))


def staging_name(metadata_schema: str, table: TableName, step_id: str, extra: Sequence[str] = ()) -> TableName:
    """Return the name of the staging table of a step and a table. It is deterministic, so that a DBA can create it.

    `table` is the target, as returned by `found_in`. `extra` are optional columns: queries with different ones would
    otherwise drop each other's table.
    """
    text = "/".join([f"{table.schema or ''}.{table.name}", step_id, *extra])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9_]", "_", f"{table.name}_{step_id}")[:40]
    return TableName(metadata_schema, f"staging_{readable}_{digest}")

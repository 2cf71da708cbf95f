"""Names of tables and columns: the user's, and those that we make beside them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from outfall.errors import ConfigurationError

_PART = re.compile(r'"(?:[^"]|"")+"|[^".]+')
LONGEST = 63
"""Bytes of an identifier; PostgreSQL cuts longer ones without a word."""

STAGE = "_outfall_stage"
"""The column of staging that holds the attempt's number."""

ROW = "_outfall_row"
"""The column of staging that numbers the rows of an attempt, for upserts: which of one key was written last. Addresses
do not tell, since a vacuum in the middle of a COPY frees pages before them."""

MARKER = "_outfall_delete"
"""The column of staging that holds the delete marker, which the target does not have."""

GONE = "_outfall_gone"
"""Whether a row of an upsert is one that removes, as a statement carries it along."""

NUMBER = "_outfall_number"
"""Which row of its key it is, from the last one on, as a statement carries it along."""


@dataclass(frozen=True)
class TableName:
    """A table, perhaps with its schema. Without one the server's `search_path` finds it."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read `name`, `schema.name` or either part in double quotes. Unquoted text is lower-cased, as SQL does it.

        Raises:
            ConfigurationError: it is none of these, or too long.
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
        """Tell a table that the `search_path` found in a schema from those of its name in others.

        In `public`, where most are, it keeps its plain name.
        """
        return self if self.schema is not None or schema in (None, "public") else TableName(schema, self.name)

    def ledger_names(self, schema: str | None, step: str) -> list[tuple[str, str]]:
        """Return what a ledger calls a step's table, whatever its spelling, and the step; new rows get the first one.

        The others are of former releases. These wrote the table as it was spelled, and behind the step the schema, if a
        search path had found it in another one than `public`.

        Args:
            schema: where the server finds the table; `None` if nowhere.
            step: the step's id.
        """
        qualified = f"{schema}.{self.name}"
        if schema is None:
            return [(self.name, step)]
        if schema == "public":
            return [(self.name, step), (qualified, step)]
        return [(qualified, step), (self.name, f"{step} in {schema}")]

    def identifier(self) -> sql.Identifier:
        """Return the name as SQL, quoted."""
        return sql.Identifier(self.name) if self.schema is None else sql.Identifier(self.schema, self.name)

    def escaped(self) -> sql.SQL:
        """Return the name as SQL, quoted, for a statement that is executed with parameters."""
        return escaped(self.name) if self.schema is None else escaped(self.schema, self.name)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


def escaped(*name: str) -> sql.SQL:
    """Quote a name, of one part or several, for a statement that is executed with parameters.

    There psycopg takes % for the beginning of a placeholder, also within quotes; without parameters it does not.
    """
    return escaped_sql(sql.Identifier(*name).as_string(None))


def escaped_sql(text: str) -> sql.SQL:
    """Take a piece of SQL as it is into a statement that is executed with parameters."""
    return sql.SQL(text.replace("%", "%%"))


def staging_name(metadata_schema: str, table: TableName, step_id: str, extra: Sequence[str] = ()) -> TableName:
    """Name the staging table of a step and a table: known beforehand, so that a DBA can make it.

    Args:
        metadata_schema: where it lies.
        table: the target, as `found_in` gives it.
        step_id: the step.
        extra: its columns that not every sink needs; queries with different ones would drop each other's table.
    """
    text = "/".join([f"{table.schema or ''}.{table.name}", step_id, *extra])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9_]", "_", f"{table.name}_{step_id}")[:40]
    return TableName(metadata_schema, f"staging_{readable}_{digest}")

"""Names of tables: as users spell them, as the server has them, in the ledger, and those of the sink's own tables."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from outfall.sql.dialect import Column

Found = tuple[str | None, str]
"""Schema and name of a table, or of one that would be created, as the catalogue of the server has them. No two tables
have the same, and each table one only, however a user spells it. The schema is `None` if there is none."""


@dataclass(frozen=True)
class SqlName(ABC):
    """A table with an optional schema. Without a schema, the server finds it."""

    schema: str | None
    name: str
    found: Found | None = field(default=None, compare=False)
    """What the server has found: see `resolved`."""

    @property
    @abstractmethod
    def quoted(self) -> str:
        """The name as SQL, quoted by the driver's own means."""

    @property
    def sql(self) -> str:
        """The name as SQL, for a statement with parameters."""
        return self.quoted.replace("%", "%%")

    def found_in(self, schema: str | None) -> Self:
        """Return the name with the schema in which the server found it."""
        return self if self.schema is not None or schema is None else replace(self, schema=schema)

    def resolved(self, found: Found | None) -> Self:
        """Return the name with the schema in which the server found it, which SQL then names and texts do not.

        Otherwise a table that is created later, in a schema before it in the path, would get the rows.
        """
        return replace(self, found=found)

    @property
    def place(self) -> str | None:
        """The schema, or the one in which the server has found it."""
        return self.schema if self.schema is not None or self.found is None else self.found[0]

    def sibling(self, schema: str, name: str) -> Self:
        """Return the name of another table."""
        return replace(self, schema=schema, name=name, found=None)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


Name = TypeVar("Name", bound=SqlName)


def ledger_name(schema: str | None, name: str) -> str:
    """Return the name of a table in the ledger: parts with a dot are quoted, since two tables would have one name."""
    parts = [name] if schema is None else [schema, name]
    # A table may also have the name that stands for all tables of a step.
    return ".".join('"' + part.replace('"', '""') + '"' if re.search(r'[."*]', part) else part for part in parts)


def staging_name(metadata_schema: str, table: Name, step_id: str, extra: Sequence[str] = ()) -> Name:
    """Return the name of the staging table of a step and a table. It is deterministic, so that a DBA can create it.

    `table` is the target, as returned by `found_in`. `extra` are optional columns: queries with different ones would
    otherwise drop each other's table.
    """
    text = "/".join([ledger_name(table.schema or "", table.name), step_id, *extra])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9_]", "_", f"{table.name}_{step_id}")[:40]
    return table.sibling(metadata_schema, f"staging_{readable}_{digest}")


def staging_prefix(metadata_schema: str, table: Name, step_id: str, extra: Sequence[str] = ()) -> Name:
    """Return how the names of the staging tables of a step with many tables begin: each is for one layout."""
    digest = hashlib.sha256("/".join([str(table), step_id, *extra]).encode()).hexdigest()[:12]
    return table.sibling(metadata_schema, f"staging_{re.sub(r'[^A-Za-z0-9_]', '_', step_id)[:24]}_{digest}_")


def layout_name(prefix: Name, columns: Sequence[Column]) -> Name:
    """Return the name of the staging table for tables with these columns."""
    text = "/".join(f"{column.name} {column.definition}" for column in columns)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return prefix.sibling(prefix.schema or "", f"{prefix.name}{digest}")


_OWN_TABLE = re.compile(r"ledger|attempts|parts|refused|recovery_(entries|blobs)|(staging|tombstones)_\w*_[0-9a-f]{12}")


def is_own(table: SqlName, metadata_schema: str) -> bool:
    """Whether a name is that of one of the sink's own tables. Some servers compare names without regard to case."""
    of_the_sink = table.place is not None and table.place.casefold() == metadata_schema.casefold()
    return of_the_sink and _OWN_TABLE.fullmatch(table.name.casefold()) is not None

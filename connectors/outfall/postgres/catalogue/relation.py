"""A table as a whole, from the server's catalog: whether it keeps rows, and what stands between it and a write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outfall.postgres.connection.versions import BENEATH
from outfall.sql.database import Session
from outfall.sql.dialect import compose
from outfall.sql.names import SqlName

# A trigger's type is a bit mask: 1 row, 2 BEFORE, 4 INSERT, 8 DELETE, 16 UPDATE, 64 INSTEAD OF (catalog/pg_trigger.h).
_QUERY = compose(
    """
SELECT wanted, found.* FROM unnest(%(tables)s::text[]) AS wanted CROSS JOIN LATERAL (
WITH RECURSIVE members (oid) AS (
    SELECT to_regclass(wanted)::oid
  UNION
    SELECT below.oid FROM members CROSS JOIN LATERAL ({beneath}) AS below (oid)
), tables AS (
    SELECT c.oid, c.oid::regclass::text AS name, relkind, relpersistence,
           relkind = 'r' AND relreplident <> 'f' AND NOT EXISTS (
               SELECT 1 FROM pg_catalog.pg_index
               WHERE indrelid = c.oid AND CASE relreplident WHEN 'd' THEN indisprimary WHEN 'i' THEN indisreplident END
           ) AS unidentified
    FROM members JOIN pg_catalog.pg_class AS c USING (oid)
), intercepting (name, events) AS (
    SELECT 'trigger ' || tgname, bit_or(tgtype::int) FROM members JOIN pg_catalog.pg_trigger ON tgrelid = members.oid
    WHERE tgtype & 1 = 1 AND tgtype & 66 <> 0 AND tgenabled IN ('O', 'A') AND NOT tgisinternal GROUP BY 1
  UNION ALL
    SELECT 'rule ' || rulename, CASE ev_type WHEN '3' THEN 4 WHEN '4' THEN 8 ELSE 16 END FROM pg_catalog.pg_rewrite
    WHERE ev_class = to_regclass(wanted) AND ev_type <> '1' AND ev_enabled IN ('O', 'A')
)
SELECT relkind::text AS kind,
       pg_relation_is_updatable(c.oid, true) AS events,
       ARRAY(SELECT name FROM tables WHERE relpersistence = 'u' AND relkind = 'r' ORDER BY 1) AS unlogged,
       ARRAY(SELECT name FROM tables WHERE relpersistence = 't' ORDER BY 1) AS temporary,
       ARRAY(SELECT name FROM tables WHERE relkind = 'f' ORDER BY 1) AS remote,
       CASE WHEN c.relkind IN ('r', 'p') AND EXISTS (SELECT 1 FROM tables WHERE unidentified) THEN ARRAY(
           -- By number, because names of other schemas are hidden from who may not use them.
           SELECT DISTINCT action FROM tables CROSS JOIN pg_catalog.pg_publication
           CROSS JOIN LATERAL pg_get_publication_tables(pubname) AS published
           CROSS JOIN LATERAL (VALUES ('UPDATE', pubupdate), ('DELETE', pubdelete)) AS each (action, sent)
           WHERE unidentified AND sent AND (published.relid = tables.oid OR published.relid IN (
               SELECT ancestor.relid FROM pg_partition_ancestors(tables.oid) AS ancestor (relid)
           ))
       ) ELSE '{{}}' END AS unpublishable,
       coalesce((SELECT json_object_agg(name, events ORDER BY name) FROM intercepting), '{{}}') AS intercepting,
       row_security_active(c.oid) AS secured,
       row_security_active(c.oid) AND (
           EXISTS (SELECT 1 FROM pg_catalog.pg_policy WHERE polrelid = c.oid AND NOT polpermissive)
           OR NOT (SELECT bool_and(EXISTS (
               SELECT 1 FROM pg_catalog.pg_policy
               WHERE polrelid = c.oid AND polcmd IN ('*', command) AND pg_get_expr(polqual, polrelid) = 'true'
                 AND EXISTS (SELECT 1 FROM unnest(polroles) AS role WHERE role = 0 OR pg_has_role(role, 'USAGE'))
           )) FROM unnest('{{r,d}}'::"char"[]) AS command)
       ) AS hides_rows
FROM pg_catalog.pg_class AS c WHERE c.oid = to_regclass(wanted)
) AS found
""",
    beneath=BENEATH,
)

_INSERT, _DELETE, _INSTEAD_OF = 4, 8, 64
_KINDS = {"m": "a materialized view", "c": "a composite type", "S": "a sequence", "i": "an index", "v": "a view"}
_ACCEPTS = {"INSERT": 8, "DELETE": 16}
"""The bits of `pg_relation_is_updatable`, which counts views with triggers (utils/adt/misc.c)."""


@dataclass(frozen=True)
class Relation:
    """A table, partitioned table, view or foreign table."""

    kind: str
    """The server's letter for it (`relkind`)."""
    events: int
    """The statements that it accepts, as a bit mask."""
    unlogged: Sequence[str]
    """As SQL, the tables in which rows may be, and which a crash of the server empties."""
    temporary: Sequence[str]
    remote: Sequence[str]
    """The foreign tables in which rows may be."""
    unpublishable: Sequence[str]
    """UPDATE and DELETE, if a publication sends them, but a table has no replica identity: they fail."""
    intercepting: Mapping[str, int]
    """The triggers and rules that may change or skip rows, with their events as a bit mask."""
    secured: bool
    """Whether row security applies to this user."""
    hides_rows: bool
    """Whether row security may hide rows from a DELETE of this user."""

    def rejects(self, statement: str) -> str | None:
        """Return what it is, if it accepts no INSERT or no DELETE at all; otherwise `None`."""
        return None if self.events & _ACCEPTS[statement] else _KINDS.get(self.kind, "no table")

    @property
    def on_delete(self) -> list[str]:
        """The triggers and rules that may keep rows from being deleted."""
        return [name for name, events in self.intercepting.items() if events & _DELETE]

    @property
    def has_insert_rule(self) -> bool:
        """Whether a rule adds to an INSERT or replaces it."""
        return any(name.startswith("rule ") and events & _INSERT for name, events in self.intercepting.items())

    @property
    def is_read_only_for_copy(self) -> bool:
        """Whether COPY cannot write it: a view without an INSTEAD OF INSERT trigger."""
        wanted = _INSERT | _INSTEAD_OF
        return self.kind in "vm" and not any(events & wanted == wanted for events in self.intercepting.values())

    def sentence(self, table: SqlName) -> str:
        """Describe what a crash, a trigger, a rule or a policy does to rows of the table."""
        unlogged, intercepting = ", ".join(self.unlogged), ", ".join(self.intercepting)
        return (
            f"a crash of the server {'empties ' + unlogged if unlogged else f'keeps the rows of {table}'}"
            + (f"; {intercepting} may change or skip rows" if intercepting else "")
            + ("; row security applies to this user" if self.secured else "")
        )


def read_relation(session: Session, table: SqlName) -> Relation | None:
    """Read a table, partitioned table, view or foreign table; `None` if it does not exist."""
    found = session.look(_QUERY, _given([table.quoted]), table.quoted)
    return Relation(*found[0][1:]) if found else None


def read_relations(session: Session, tables: Sequence[SqlName]) -> None:
    """Read several tables with one query: `read_relation` then knows them."""
    session.look_ahead(_QUERY, _given, [table.quoted for table in tables])


def _given(tables: Sequence[str]) -> dict[str, Sequence[str]]:
    return {"tables": tables}


_ELSEWHERE = """
SELECT 'it is a view' FROM pg_catalog.pg_class WHERE oid = to_regclass(%(table)s) AND relkind = 'v'
UNION ALL
SELECT 'it is a partition or a child of ' || inhparent::regclass FROM pg_catalog.pg_inherits
WHERE inhrelid = to_regclass(%(table)s)
UNION ALL
SELECT 'it has the partition or child ' || inhrelid::regclass FROM pg_catalog.pg_inherits
WHERE inhparent = to_regclass(%(table)s)
UNION ALL
SELECT format('the foreign key %%I of %%s refers to it', conname, conrelid::regclass) FROM pg_catalog.pg_constraint
WHERE contype = 'f' AND confrelid = to_regclass(%(table)s) AND confdeltype IN ('c', 'n', 'd')
LIMIT 1
"""


def deletes_elsewhere(session: Session, table: SqlName) -> str | None:
    """Return why a DELETE of all rows of a table can reach rows of other tables; `None` if it cannot."""
    found = session.execute(_ELSEWHERE, {"table": table.quoted}).fetchone()
    return found[0] if found else None

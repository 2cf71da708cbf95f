"""The version of a table: what the server's catalogue says of it is the same while the version is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from outfall.sql.dialect import compose
from outfall.sql.session import Statement

BENEATH = """
        SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = members.oid
      UNION ALL
        SELECT refobjid FROM pg_catalog.pg_rewrite AS r JOIN pg_catalog.pg_depend AS d ON d.objid = r.oid
        WHERE ev_class = members.oid AND ev_type = '1' AND d.classid = 'pg_catalog.pg_rewrite'::regclass
          AND refclassid = 'pg_catalog.pg_class'::regclass
"""
"""What is directly beneath a table of `members`: partitions, children, and the tables of a view."""

_VERSIONS = compose(
    """
WITH RECURSIVE members (name, oid) AS (
    SELECT name, to_regclass(name)::oid FROM unnest(%(tables)s::text[]) AS name
  UNION
    SELECT name, below.oid FROM members CROSS JOIN LATERAL ({beneath}) AS below (oid)
)
SELECT name, string_agg(concat_ws(' ', m.oid, c.xmin, row_security_active(c.oid),
    (SELECT string_agg(concat(a.xmin, ' ', t.xmin), ',' ORDER BY attnum) FROM pg_catalog.pg_attribute AS a
     LEFT JOIN pg_catalog.pg_type AS t ON t.oid = atttypid WHERE attrelid = m.oid AND attnum > 0),
    (SELECT string_agg(xmin::text, ',' ORDER BY oid) FROM pg_catalog.pg_attrdef WHERE adrelid = m.oid),
    (SELECT string_agg(concat(indexrelid, ' ', xmin), ',' ORDER BY indexrelid)
     FROM pg_catalog.pg_index WHERE indrelid = m.oid),
    (SELECT string_agg(concat(oid, ' ', xmin), ',' ORDER BY oid) FROM pg_catalog.pg_constraint WHERE conrelid = m.oid),
    (SELECT string_agg(concat(oid, ' ', xmin), ',' ORDER BY oid) FROM pg_catalog.pg_trigger WHERE tgrelid = m.oid),
    (SELECT string_agg(concat(oid, ' ', xmin), ',' ORDER BY oid) FROM pg_catalog.pg_rewrite WHERE ev_class = m.oid),
    (SELECT string_agg(concat(oid, ' ', xmin), ',' ORDER BY oid) FROM pg_catalog.pg_policy WHERE polrelid = m.oid)
), ';' ORDER BY m.oid) || coalesce((
    SELECT string_agg(concat(p.oid, ' ', p.xmin, ' ', r.oid, ' ', r.xmin), ',' ORDER BY p.oid, r.oid)
    FROM pg_catalog.pg_publication AS p LEFT JOIN pg_catalog.pg_publication_rel AS r ON prpubid = p.oid
), '') FROM members AS m LEFT JOIN pg_catalog.pg_class AS c ON c.oid = m.oid GROUP BY name
""",
    beneath=BENEATH,
)


def versions_of(tables: Sequence[Hashable]) -> Statement:
    """Return the query for names of tables and their versions, NULL for a missing table.

    A version is that of each row by which the catalogue describes the table and what is beneath it. A row that is
    changed has another transaction (`xmin`), and VACUUM and ANALYZE keep it.
    """
    return _VERSIONS, {"tables": list(tables)}

"""PostgreSQL: rows in a table, each written exactly once, at the speed of COPY.

```
sink, options       `PostgresSink`, the public class, which delegates to one of three deliveries; its options
delivery            the base of the deliveries in PostgreSQL, and those by epochs and by parts, on `outfall.sql`
dialect, words      PostgreSQL's dialect of SQL for that base, and its words: what differs as text
staging/            by epochs: tasks `load` rows into staging with COPY, which `truncation` empties; `moving` has the
                    addresses of rows, for those that the table accepts
source              by the offsets of the source: tasks publish independently
copy/               converts values to column types, and sends them with COPY
catalogue/          the server's columns and types, type compatibility, privileges
connection/         the port: connections and transactions, what a DSN says, why a server refuses, what errors mean
names               names of tables and columns
recovery/           the log of a step in two tables
```
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import ConfigurationError, require_extra
from outfall.options import parse_options

require_extra("postgres", "psycopg")

from outfall.postgres.options import PostgresOptions
from outfall.postgres.recovery.config import PostgresRecoveryConfig, recovery_from_url
from outfall.postgres.sink import PostgresSink

__all__ = ["PostgresRecoveryConfig", "PostgresSink", "recovery_from_url", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> PostgresSink:
    """Create a sink from Spark options (`dsn`, `table`, `write_mode`, …; also spelled `writeMode`).

    Raises `ConfigurationError`, which names every unknown or wrong option, or rejects `offset_columns`.
    """
    parsed = parse_options(PostgresOptions, options)
    if parsed.offset_columns:
        raise ConfigurationError(
            "offset_columns are not available through options",
            why="through options, rows are published when their epoch is committed",
            do="leave offset_columns out, or use: from outfall.spark import write_stream; write_stream(df,"
            f" PostgresSink(dsn, {parsed.table!r}, offset_columns={list(parsed.offset_columns)}),"
            " checkpoint=…).start(); name the sink to the command outfall as --sink my_module:make_sink",
        )
    return PostgresSink(**(dict(parsed) | {"dsn": parsed.dsn.get_secret_value()}))

"""PostgreSQL: rows in a table, each in it once, at the speed of COPY.

```
sink, options       what a user writes; the sink holds one of the three deliveries
delivery            what they share: the table, checked and opened before an epoch
staging/            by epochs: tasks copy into a staging table (`staging_writer`), the driver moves the rows (`publish`)
offsets/            by offsets: tasks publish by themselves, by `parts` or by the offsets of their `source`
target              the table as the recovery data knows it
tables              the tables of one step: target, ledger, staging, dead letters
ledger              which epoch of which step, and of which part, is in the table
copy/               values made fit for columns, and the COPY that they go by
catalogue/          the server's columns and types, what goes into them, who may write
connection/         connections, transactions that are tried again, errors explained
```
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from outfall.errors import ConfigurationError, missing_extra
from outfall.options import parse_options

if find_spec("psycopg") is None:
    raise missing_extra("psycopg", "postgres")

from outfall.postgres.options import PostgresOptions
from outfall.postgres.sink import PostgresSink

__all__ = ["PostgresSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> PostgresSink:
    """Make a sink from Spark options (`dsn`, `table`, `write_mode`, …; also spelled `writeMode`).

    Raises:
        ConfigurationError: naming every option that is unknown or wrong, or `delivery="offset"` with `offset_columns`.
    """
    parsed = parse_options(PostgresOptions, options)
    if parsed.offset_columns:
        raise ConfigurationError(
            "offset_columns are not available through options",
            why="through options what tasks write is published at commit",
            do="leave delivery out, or use: from outfall.spark import write_stream; write_stream(df,"
            f' PostgresSink(dsn, {parsed.table!r}, delivery="offset", offset_columns={list(parsed.offset_columns)}),'
            " checkpoint=…).start(); name the sink to the command outfall as --sink my_module:make_sink",
        )
    return PostgresSink(**(dict(parsed) | {"dsn": parsed.dsn.get_secret_value()}))

"""MySQL 8 and MariaDB: rows in a table, each written exactly once; and the recovery log of a step in two tables.

```
sink, options   `MySQLSink`, the public class, and its options
delivery        the deliveries by epochs and by parts, on `outfall.sql`
dialect         the dialect of SQL for that base
database        the port: the URL, TLS, sessions in transactions; names of tables and columns
columns, types  the server's catalogue, compatible types, and values that a column cannot hold
json_text       nested values as JSON, and the JSON that MySQL would change
encode, send    rows as text, sent with LOAD DATA LOCAL or INSERT
load            one attempt, which loads its rows into staging, or by parts into the table
words           what differs as text from other databases
moving          the addresses of staged rows, for those that the table accepts
tombstones      the sequences of deleted keys, also of earlier releases
recovery        the location of the log, as arguments and as a URL
log_database    the tables of the log, for `outfall.sql.log`
connection      a connection: its settings, causal reads, LOAD DATA without files
errors          what errors mean, and say without values of rows
```
"""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import require_extra
from outfall.options import parse_options

require_extra("mysql", "pymysql", "numpy")

from outfall.mysql.options import MySQLOptions
from outfall.mysql.recovery import MySQLRecoveryConfig, recovery_from_url
from outfall.mysql.sink import MySQLSink

__all__ = ["MySQLRecoveryConfig", "MySQLSink", "recovery_from_url", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> MySQLSink:
    """Create a sink from Spark options (`dsn`, `table`, `write_mode`, …; also spelled `writeMode`).

    Raises `ConfigurationError`, which names every unknown or wrong option.
    """
    parsed = parse_options(MySQLOptions, options)
    return MySQLSink(**(dict(parsed) | {"dsn": parsed.dsn.get_secret_value()}))

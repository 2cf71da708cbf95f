"""Facts about `MySQLSink` for the documentation."""

from __future__ import annotations

from outfall.mysql.sink import MySQLSink
from outfall.sink_facts import SinkFacts

_TABLE = ("mysql://app@db/warehouse", "rows")

FACTS = SinkFacts(
    title="MySQL, MariaDB",
    destination="rows of a MySQL or MariaDB table",
    sinks={
        "": MySQLSink(*_TABLE),
        'with `write_mode="upsert"`': MySQLSink(*_TABLE, write_mode="upsert", key_columns=["id"]),
    },
)

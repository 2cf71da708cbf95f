"""`MySQLSink`: rows in a table of MySQL or MariaDB, each written exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal

from outfall.existing import OnExistingRows
from outfall.mysql.delivery import MySQLDelivery, MySQLEpochDelivery, MySQLManyDelivery, MySQLPartDelivery
from outfall.mysql.options import MySQLOptions
from outfall.options import arguments_for, make_options, names_arguments
from outfall.row_logging import LogRows
from outfall.sql.delivery import SqlSink


class MySQLSink(SqlSink[MySQLOptions]):
    """Writes rows into a table of MySQL or MariaDB: appends, upserts, deletes or applies changes exactly once.

    Item type: rows (dicts or Arrow batches), whose columns match those of the table by name.

    Requirements: MySQL 8.0.23 or MariaDB 10.6, or later; a table with the engine InnoDB, unless
    `create_table="if_missing"`; the privilege to create the database `outfall`, or the tables that `ddl()` prints; for
    upserts and changes, a unique index on the keys and no other one. LOAD DATA LOCAL is used if the server's
    `local_infile` is ON.

    Parallelism: each Spark task loads its rows into a staging table over its own connection. The driver publishes them
    together with the epoch's number in one transaction, so readers see either all or none of an epoch. With `parts=N`,
    rows are routed by key to N parts, and each task writes its rows straight into the table, in one transaction.

    Guarantee: exactly once, after retries, crashes, stale tasks and lost acknowledgments; by parts, only for a source
    that replays the same rows, see `requires()`.

    Args:
        dsn: the connection, `mysql://user@host/database`; also `env:NAME` or `file:PATH`. See `MySQLOptions`, as for
            all arguments.
        table: `name`, `database.name` or parts in backticks. Without it, `table_column` names the column with each
            row's table.

    Raises:
        ConfigurationError: names every option that is wrong.
    """

    delegate: MySQLDelivery

    @names_arguments
    def __init__(
        self,
        dsn: str,
        table: str | None = None,
        *,
        table_column: str | None = None,
        allowed_tables: str | Sequence[str] = (),
        unknown_columns: Literal["fail", "leave_out_null"] = "fail",
        table_keys: str | Mapping[str, str | Sequence[str]] | None = None,
        table_columns: str | Mapping[str, str | Sequence[str]] | None = None,
        parts: int | None = None,
        offset_keys: Literal["columns", "ledger"] = "columns",
        part_column: str = "partition_id",
        part_offset_column: str = "offset",
        payload_column: str | None = None,
        write_mode: Literal["append", "upsert", "delete", "changes"] = "append",
        key_columns: str | Sequence[str] = (),
        update_columns: str | Sequence[str] = (),
        order_column: str | None = None,
        delete_marker: str | None = None,
        operation_column: str | None = None,
        sequence_column: str | None = None,
        sequence_kind: Literal["value", "kafka"] = "value",
        tombstone_retention: timedelta | float | str = timedelta(days=7),
        on_existing: OnExistingRows = "check",
        dead_letter_table: str | None = None,
        max_dead_letters: int = 1000,
        log_rows: LogRows = "keys",
        create_table: Literal["never", "if_missing"] = "never",
        schema_evolution: Literal["fail", "add_columns"] = "fail",
        metadata_schema: str = "outfall",
        create_staging: Literal["if_missing", "never"] = "if_missing",
        connect_timeout: timedelta | float | str = 10,
        statement_timeout: timedelta | float | str = 600,
        retry_deadline: timedelta | float | str = 300,
    ) -> None:
        options = make_options(MySQLOptions, arguments_for(MySQLOptions, locals()))
        if options.by_epochs:
            delegate: MySQLDelivery = (
                MySQLManyDelivery(options) if options.table is None else MySQLEpochDelivery(options)
            )
        else:
            delegate = MySQLPartDelivery(options)
        super().__init__(delegate)

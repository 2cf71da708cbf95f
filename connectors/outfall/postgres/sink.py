"""`PostgresSink`: rows in a table, each written exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal

from outfall.existing import OnExistingRows
from outfall.options import arguments_for, make_options, names_arguments
from outfall.postgres.delivery import EpochDelivery, ManyDelivery, PostgresDelivery, PostgresPartDelivery
from outfall.postgres.options import PostgresOptions
from outfall.postgres.source import SourceDelivery
from outfall.row_logging import LogRows
from outfall.sql.delivery import SqlSink


class PostgresSink(SqlSink[PostgresOptions]):
    """Writes rows into a PostgreSQL table: appends, upserts or deletes them, or applies changes, exactly once.

    Item type: rows (dicts or Arrow batches), whose columns match those of the table by name.

    Requirements: the table, unless `create_table="if_missing"`; the privilege to create the schema `outfall`, or the
    tables that `ddl()` prints; for upserts, a unique index on the keys. No extension and no superuser are needed.
    pgbouncer is supported.

    Parallelism: by default, each Spark task copies its rows into a staging table over its own connection. The driver
    publishes them together with the epoch's number in one transaction, so readers see either all or none of an epoch.
    With `offset_columns` or `parts`, each task publishes its own rows in one transaction, with keys that identify
    duplicates: `offset_columns` names columns with the offsets of the source; `parts=N` routes rows by key to N parts,
    each of which numbers its rows.

    Guarantee: exactly once, after retries, crashes, stale tasks and lost acknowledgments; by offsets, only for a source
    that replays the same rows, see `requires()`.

    Args:
        dsn: the connection; also `env:NAME` or `file:PATH`. See `PostgresOptions`, as for all arguments.
        table: `name`, `schema.name` or quoted parts. Without it, `table_column` names the column with each row's table.

    Raises:
        ConfigurationError: names every option that is wrong.
    """

    delegate: PostgresDelivery

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
        offset_columns: str | Sequence[str] = (),
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
        conflict_where: str | None = None,
        on_existing: OnExistingRows = "check",
        allow_unlogged: bool = False,
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
        given = arguments_for(PostgresOptions, locals())
        options = make_options(PostgresOptions, given)
        if options.by_epochs:
            delegate: PostgresDelivery = ManyDelivery(options) if options.table is None else EpochDelivery(options)
        elif options.offset_columns:
            delegate = SourceDelivery(options)
        else:
            delegate = PostgresPartDelivery(options)
        super().__init__(delegate)

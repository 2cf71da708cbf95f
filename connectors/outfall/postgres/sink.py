"""`PostgresSink`: rows in a table, each in it once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from outfall.delegating_sink import DelegatingSink
from outfall.options import make_options, names_arguments
from outfall.postgres.delivery import PostgresDelivery
from outfall.postgres.offsets.parts import PartDelivery
from outfall.postgres.offsets.source import SourceDelivery
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.epochs import EpochDelivery
from outfall.row_logging import LogRows


class PostgresSink(DelegatingSink):
    """Writes rows into a PostgreSQL table: appends, upserts or deletes them, each in it once.

    Item type: rows (dicts or Arrow batches), whose columns are the table's by name.

    What must exist: the table, unless `create_table="if_missing"`; the right to make the schema `outfall`, or what
    `ddl()` prints; for upserts a unique index on the keys. No extension, no superuser; pgbouncer may stand between.

    Unit of parallelism: by default each Spark task copies its rows into a staging table, on a connection of its own,
    and the driver publishes them in one transaction, together with the epoch's number in a ledger: an epoch is in the
    table as a whole or not at all. With `delivery="offset"` each task publishes its own rows in one transaction of its
    own, under keys that tell a second copy of them from the first: `offset_columns` names columns of the row that the
    source numbered it by; `parts=N` routes rows by key to N parts, each of which counts its rows.

    Guarantee: exactly once, whatever is retried, killed or woken late, and whatever reply is lost; by offsets only for
    a source that brings the same rows again, as `requires()` says.

    Args:
        dsn: the connection; also `env:NAME` or `file:PATH`. See `PostgresOptions`, as for all arguments.
        table: `name`, `schema.name` or quoted parts.

    Raises:
        ConfigurationError: naming every option that is wrong.
    """

    worker: PostgresDelivery

    @names_arguments
    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        delivery: Literal["epoch", "offset"] = "epoch",
        offset_columns: str | Sequence[str] = (),
        parts: int | None = None,
        offset_keys: Literal["columns", "ledger"] = "columns",
        part_column: str = "partition_id",
        part_offset_column: str = "offset",
        payload_column: str | None = None,
        write_mode: Literal["append", "upsert", "delete"] = "append",
        key_columns: str | Sequence[str] = (),
        update_columns: str | Sequence[str] = (),
        order_column: str | None = None,
        delete_marker: str | None = None,
        conflict_constraint: str | None = None,
        conflict_where: str | None = None,
        on_existing: Literal["check", "resume", "error", "overwrite"] = "check",
        on_rewind: Literal["error"] = "error",
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
        given = {name: value for name, value in locals().items() if name in PostgresOptions.model_fields}
        options = make_options(PostgresOptions, given)
        if options.delivery == "epoch":
            worker: PostgresDelivery = EpochDelivery(options)
        elif options.offset_columns:
            worker = SourceDelivery(options)
        else:
            worker = PartDelivery(options)
        super().__init__(worker)

    def __repr__(self) -> str:
        return f"PostgresSink(table={str(self.worker.table)!r}, write_mode={self.options.write_mode!r})"

    @property
    def options(self) -> PostgresOptions:
        """The options, checked."""
        return self.worker.options

    def ddl(self, step_id: str = "sink") -> str:
        """Return the SQL that makes what the sink needs beside the table, for `create_staging="never"`.

        Called by hand or by a DBA's script, with the table there. Running it again changes nothing but a staging table
        whose columns are no longer the table's.

        Raises:
            TargetError: the server cannot be asked for the table's columns.
        """
        return self.worker.ddl(step_id)

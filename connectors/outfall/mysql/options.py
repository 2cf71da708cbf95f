"""The options of `MySQLSink`."""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator

from outfall.existing import OnExistingRows
from outfall.sql.options import ROW, STAGE
from outfall.sql.parts.options import PartOptions

LONGEST = 64
"""Characters of an identifier."""
PARAMETERS = ("password", "tls", "tls_ca")
"""The parameters of a URL."""


class MySQLOptions(PartOptions):
    """The options of `MySQLSink`, in its constructor and as Spark options."""

    dsn: SecretStr = Field(
        description="The connection: a URL `mysql://user@host:3306/database` with the parameters `tls` (`verify`,"
        " `prefer`, `off`), `tls_ca` (a PEM file) and `password` (`env:NAME`, `file:PATH`). Accepts `env:NAME` and"
        " `file:PATH` for the whole URL, resolved on the connecting host. User and password in it are percent-encoded."
        " Without `tls`, the server certificate is verified, except for local hosts without `tls_ca`."
    )
    table: str | None = Field(
        default=None,
        min_length=1,
        description="The table: `name` or `database.name`. Backticks quote a name with other characters. Either this or"
        " `table_column`.",
    )
    metadata_schema: str = Field(
        default="outfall",
        min_length=1,
        description="The database of the ledger and the staging tables, on this server. It is created on first use.",
    )

    on_existing: OnExistingRows = Field(
        default="check",
        description="What to do if the table holds rows on the first run. `check`: keep them, but fail if this step"
        " wrote some under a lost checkpoint. `resume`: keep them. `error`: fail. `overwrite`: delete them in the"
        " transaction of the first epoch; with `parts` in a separate transaction before the first task.",
    )

    @field_validator("metadata_schema")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if len(value) > LONGEST:
            raise ValueError(f"is longer than {LONGEST} characters, the limit of the server")
        return value

    def own_columns(self) -> list[str]:
        # The rows are numbered in each mode: their number is their address.
        return [STAGE, ROW, *self.not_stored.values()]

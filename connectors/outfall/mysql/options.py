"""The options of `MySQLSink`."""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator

from outfall.sql.options import ROW, STAGE, SqlOptions

LONGEST = 64
"""Characters of an identifier."""
PARAMETERS = ("password", "tls", "tls_ca")
"""The parameters of a URL."""


class MySQLOptions(SqlOptions):
    """The options of `MySQLSink`, in its constructor and as Spark options."""

    dsn: SecretStr = Field(
        description="The connection: a URL `mysql://user@host:3306/database` with the parameters `tls` (`verify`,"
        " `prefer`, `off`), `tls_ca` (a PEM file) and `password` (`env:NAME`, `file:PATH`). Accepts `env:NAME` and"
        " `file:PATH` for the whole URL, resolved on the connecting host. User and password in it are percent-encoded."
        " Without `tls`, the server certificate is verified, except for local hosts without `tls_ca`."
    )
    table: str = Field(
        min_length=1, description="The table: `name` or `database.name`. Backticks quote a name with other characters."
    )
    metadata_schema: str = Field(
        default="outfall",
        min_length=1,
        description="The database of the ledger and the staging tables, on this server. It is created on first use.",
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

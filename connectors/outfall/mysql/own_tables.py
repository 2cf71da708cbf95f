"""The sink's own tables: the ledger, the attempts, and staging. All have a primary key, as clusters require.

Staging has the columns of the table with their types and collations, nullable. There are no unlogged tables, so a crash
of the server keeps staged rows. Creating a table commits, so no table is created within an epoch's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from outfall.mysql.columns import read_columns
from outfall.mysql.database import MySQLSession
from outfall.mysql.names import MySQLName, quote
from outfall.sql.dialect import compose
from outfall.sql.ledger import StepLedger
from outfall.sql.options import MARKER, OPERATION, ROW, STAGE
from outfall.sql.staging import Staging
from outfall.sql.table import missing

# Names compare by their bytes. An index of InnoDB has at most 3072 bytes.
_NAME = "VARCHAR({}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
_TIME = "TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"
_END = "ENGINE = InnoDB CHARACTER SET utf8mb4"
_OWN = {STAGE: "BIGINT NOT NULL", ROW: "BIGINT NOT NULL", MARKER: "TINYINT", OPERATION: "VARCHAR(16)"}


class MySQLLedger(StepLedger):
    """The ledger's row of one step and table in MySQL."""

    # Rows have names as they were spelled, of which the server may take several for one table.
    same_target = "target = {0} OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER({0})"

    def exists(self, session: MySQLSession) -> bool:
        return all(read_columns(session, MySQLName(self.metadata_schema, name)) for name in ("ledger", "attempts"))

    def missing_ddl(self, session: MySQLSession) -> Sequence[str]:
        if self.exists(session):
            return []
        query = "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = %s"
        found = session.execute(query, (self.metadata_schema,)).fetchone()
        # IF NOT EXISTS requires the privilege to create a database even if it exists.
        return ledger_ddl(self.metadata_schema)[1 if found[0] else 0 :]


def ledger_ddl(metadata_schema: str) -> list[str]:
    """Return the statements that create the tables that all sinks of a database share. They can be run again."""
    schema = quote(metadata_schema)
    name, step, staging = _NAME.format(180), _NAME.format(400), _NAME.format(180)
    return [
        compose("CREATE DATABASE IF NOT EXISTS {}", schema),
        compose(
            "CREATE TABLE IF NOT EXISTS {}.ledger (incarnation {name}, target {name}, step {step},"
            " generation BIGINT NOT NULL, begun BIGINT NOT NULL, epoch BIGINT, revoked BIGINT NOT NULL DEFAULT 0,"
            " `rows` BIGINT NOT NULL DEFAULT 0, changed {time}, token TEXT, published_token TEXT,"
            " PRIMARY KEY (incarnation, target)) {end}",
            schema, name=name, step=step, time=_TIME, end=_END,
        ),
        compose(
            "CREATE TABLE IF NOT EXISTS {}.attempts (stage BIGINT PRIMARY KEY, staging {staging}, incarnation {name},"
            " generation BIGINT NOT NULL, epoch BIGINT NOT NULL, attempt BIGINT NOT NULL, `rows` BIGINT NOT NULL,"
            " staged {time}, KEY (staging)) {end}",
            schema, name=name, staging=staging, time=_TIME, end=_END,
        ),
    ]  # fmt: skip


class MySQLStaging(Staging):
    """The staging table of one step and target in MySQL."""

    def missing_ddl(self, session: MySQLSession) -> Sequence[str]:
        # With the table's collations, so that keys compare equal in staging exactly if they do in the table.
        columns = read_columns(session, self._target)
        wanted = [(column.name, column.definition) for column in columns if column.writable]
        if not wanted:
            raise missing(self._target)
        own = self._options.own_columns()
        found = [(column.name, column.definition) for column in read_columns(session, self.table)]
        if [name for name, _ in found[: len(own)]] == own and found[len(own) :] == wanted:
            return []
        fields = [f"{quote(name)} {_OWN[name]}" for name in own]
        # The types come from the server's catalogue as SQL text. NULL, because a TIMESTAMP is NOT NULL by default.
        fields += [f"{quote(name)} {kind.replace('%', '%%')} NULL" for name, kind in wanted]
        fields.append(f"PRIMARY KEY ({quote(STAGE)}, {quote(ROW)})")
        old = [compose("DROP TABLE {}", self.table.sql)] if found else []
        return [*old, compose("CREATE TABLE {} ({}) {}", self.table.sql, ", ".join(fields), _END)]

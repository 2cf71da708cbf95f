"""Checks the privileges of a connection before rows are written."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from outfall.errors import TargetError
from outfall.postgres.connection.database import PostgresConnection, PostgresDatabase
from outfall.postgres.ledger import find_tokens
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions

_NEEDED = {"append": ["INSERT"], "upsert": ["INSERT", "UPDATE", "SELECT"], "delete": ["DELETE", "SELECT"]}
"""The privileges needed on the table, by `write_mode`."""


def needed_rights(options: PostgresOptions) -> list[str]:
    """Return the privileges needed on an existing table, without SELECT for `on_existing="check"`."""
    found = list(_NEEDED[options.write_mode])
    numbered = options.parts is not None and options.offset_keys == "columns"
    # ON CONFLICT reads the columns of its index (manual, INSERT).
    if options.offset_columns or numbered or options.on_existing == "error":
        found.append("SELECT")
    if options.delete_marker or options.on_existing == "overwrite":
        found.append("DELETE")
    return list(dict.fromkeys(found))


def check_rights(
    connection: PostgresConnection, database: PostgresDatabase, table: TableName, letters: TableName | None
) -> Sequence[str]:
    """Return one sentence each about the server, the user and the granted privileges.

    Args:
        connection: a connection.
        database: its database.
        table: the target.
        letters: the dead-letter table, if there is one.

    Raises:
        TargetError: a required privilege is missing.
    """
    version, user = connection.execute("SELECT current_setting('server_version'), current_user").fetchone() or ("", "")
    options = database.options
    found = [f"{database.name()} responds: PostgreSQL {version}, user {user}"]
    found += _on_table(connection, table, needed_rights(options), user)
    if letters is not None:
        found += _on_table(connection, letters, ["INSERT"], user)
        if options.write_mode == "upsert":
            found.append(_temporary(connection, database.database_name(), user))
    schema, made_by_others = options.metadata_schema, options.create_staging == "never"
    found.append(_on_schema(connection, schema, user, made_by_others))
    ledger = sql.Identifier(schema, "ledger").as_string(connection)
    if _ask(connection, "to_regclass(%s) IS NOT NULL", ledger):
        tokens = find_tokens(connection, schema)
        if tokens == "missing" or (tokens == "may be added" and made_by_others):
            found.append(
                f"{schema}.ledger was created by an earlier release and has no columns for tokens, so drivers on copies"
                " of a log are not distinguished; its owner must run the output of PostgresSink.ddl()"
            )
    return found


def _on_table(connection: PostgresConnection, name: TableName, needed: Sequence[str], user: str) -> list[str]:
    if name.schema is not None and _ask(
        connection, "EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = %s)", name.schema
    ):
        _check_schema_right(connection, name.schema, user)
    table = name.identifier().as_string(connection)
    if not _ask(connection, "to_regclass(%s) IS NOT NULL", table):
        return []
    missing = [right for right in needed if not _has_on_table(connection, table, right)]
    if missing:
        raise _missing(f"{', '.join(missing)} on {name}", f"GRANT {', '.join(missing)} ON {table} TO {user}")
    return [f"{', '.join(needed)} on {name} granted"]


def _check_schema_right(connection: PostgresConnection, schema: str, user: str, right: str = "USAGE") -> None:
    if not _ask(connection, "has_schema_privilege(%s, %s)", schema, right):
        quoted = sql.Identifier(schema).as_string(connection)
        raise _missing(f"{right} on schema {schema}", f"GRANT {right} ON SCHEMA {quoted} TO {user}")


def _on_schema(connection: PostgresConnection, schema: str, user: str, made_by_others: bool) -> str:
    if made_by_others:
        return f"the tables in schema {schema} are not created by the sink (create_staging)"
    if _ask(connection, "EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = %s)", schema):
        for right in ("USAGE", "CREATE"):
            _check_schema_right(connection, schema, user, right)
        return f"CREATE on schema {schema} granted"
    if not _ask(connection, "has_database_privilege(current_database(), %s)", "CREATE"):
        raise _missing(f"CREATE on the database, to create schema {schema}", f"have a DBA run CREATE SCHEMA {schema}")
    return f"schema {schema} can be created"


def _temporary(connection: PostgresConnection, database: str, user: str) -> str:
    """Check TEMPORARY: the search for rejected rows of an upsert uses a temporary table."""
    if not _ask(connection, "has_database_privilege(current_database(), %s)", "TEMPORARY"):
        quoted = sql.Identifier(database).as_string(connection)
        raise _missing("TEMPORARY on the database", f"GRANT TEMPORARY ON DATABASE {quoted} TO {user}")
    return "TEMPORARY on the database granted"


def _has_on_table(connection: PostgresConnection, table: str, right: str) -> bool:
    # Column privileges are sufficient, where they exist.
    function = "has_table_privilege" if right == "DELETE" else "has_any_column_privilege"
    return _ask(connection, f"{function}(%s, %s)", table, right)


def _ask(connection: PostgresConnection, condition: str, *given: str) -> bool:
    row = connection.execute(f"SELECT {condition}".encode(), given).fetchone()
    return bool(row and row[0])


def _missing(what: str, do: str) -> TargetError:
    return TargetError(f"the privilege is missing: {what}", do=do)

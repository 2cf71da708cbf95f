"""Checks the privileges of a connection before rows are written."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from outfall.errors import TargetError
from outfall.postgres.catalogue.columns import exists, schema_of
from outfall.postgres.connection.database import PostgresConnection, PostgresDatabase
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions

_NEEDED = {
    "append": ["INSERT"],
    "upsert": ["INSERT", "UPDATE", "SELECT"],
    "delete": ["DELETE", "SELECT"],
    "changes": ["INSERT", "UPDATE", "DELETE", "SELECT"],
}
"""The privileges needed on the table, by `write_mode`."""

OWN_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""The privileges needed on the ledger and the other tables of the sink."""


def needed_rights(options: PostgresOptions) -> list[str]:
    """Return the privileges needed on an existing table, without SELECT for `on_existing="check"`."""
    found = list(_NEEDED[options.write_mode])
    # ON CONFLICT reads the columns of its index (manual, INSERT).
    if options.offset_columns or options.numbered or options.existing.others == "reject":
        found.append("SELECT")
    if options.delete_marker or options.existing.others == "delete":
        found.append("DELETE")
    return list(dict.fromkeys(found))


def check_rights(
    connection: PostgresConnection,
    database: PostgresDatabase,
    table: TableName,
    dead_letters: TableName | None,
    tombstones: TableName | None,
) -> Sequence[str]:
    """Return one sentence each about the server, the user and the granted privileges.

    `dead_letters` and `tombstones` are the tables for dead letters and for sequences of deleted keys, if there are any.
    Raises `TargetError` if a required privilege is missing.
    """
    version, user = connection.execute("SELECT current_setting('server_version'), current_user").fetchone() or ("", "")
    options = database.options
    found = [f"{database.name()} responds: PostgreSQL {version}, user {user}"]
    found += _on_target(connection, table, options, user)
    schema, made_by_others = options.metadata_schema, options.create_staging == "never"
    if dead_letters is not None:
        found += check_granted(connection, dead_letters, ["INSERT"]) or (
            [] if made_by_others else [_can_be_created(connection, dead_letters, user)]
        )
        if options.by_key:
            found.append(_temporary(connection, database.database_name(), user))
    found.append(_on_schema(connection, schema, user, made_by_others))
    names = ["ledger", "parts" if options.parts else "attempts", *(["refused"] if dead_letters else [])]
    for own in [*(TableName(schema, name) for name in names), *([tombstones] if tombstones else [])]:
        check_granted(connection, own, OWN_RIGHTS)
    return found


def _on_target(connection: PostgresConnection, table: TableName, options: PostgresOptions, user: str) -> list[str]:
    found = check_granted(connection, table, needed_rights(options))
    if not found and options.create_table == "if_missing":
        return [_can_be_created(connection, table, user)]
    if found and options.schema_evolution == "add_columns":
        owned = "(SELECT pg_has_role(relowner, 'USAGE') FROM pg_catalog.pg_class WHERE oid = to_regclass(%s))"
        named = table.quoted
        if not _ask(connection, owned, named):
            raise _missing(
                f"ownership of {table}, for schema_evolution='add_columns'",
                f"ALTER TABLE {named} OWNER TO a role of which {user} is a member, or set schema_evolution='fail'",
            )
    return found


def _can_be_created(connection: PostgresConnection, table: TableName, user: str) -> str:
    schema = schema_of(connection, table)
    if schema is None or not _exists(connection, schema):
        raise TargetError(
            f"{table} does not exist and cannot be created: "
            + ("the search_path has no schema" if schema is None else f"there is no schema {schema}"),
            do="create the schema or the table",
        )
    for right in ("USAGE", "CREATE"):
        _check_schema_right(connection, schema, user, right)
    return f"{table} can be created"


def check_granted(connection: PostgresConnection, name: TableName, needed: Sequence[str]) -> list[str]:
    """Return a sentence that privileges on a table are granted; nothing if there is no table.

    Raises `TargetError` if a privilege on the table or its schema is missing.
    """
    (user,) = connection.execute("SELECT current_user").fetchone() or ("",)
    if name.schema is not None and _exists(connection, name.schema):
        _check_schema_right(connection, name.schema, user)
    table = name.quoted
    if not exists(connection, name):
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
    if _exists(connection, schema):
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


def _exists(connection: PostgresConnection, schema: str) -> bool:
    return _ask(connection, "EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = %s)", schema)


def _ask(connection: PostgresConnection, condition: str, *given: str) -> bool:
    row = connection.execute(f"SELECT {condition}".encode(), given).fetchone()
    return bool(row and row[0])


def _missing(what: str, do: str) -> TargetError:
    return TargetError(f"the privilege is missing: {what}", do=do)

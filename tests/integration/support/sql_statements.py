"""The statements that a sink and its recovery log send to a database, by write mode and options.

They are recorded where the driver takes them, from a run on a real server. The file of the first case has all of them
in their order. The others have what is not in that file, once each, in the order of first use.

`python -m tests.integration.support.sql_statements` writes the files; tests only compare them.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import psycopg
import pyarrow as pa
import pymysql
import pytest
from psycopg import sql

from outfall.capabilities import CleanUpContext
from outfall.errors import OutfallError
from outfall.mysql import database as mysql_database
from outfall.mysql.database import MySQLSession
from outfall.postgres.connection import database as postgres_database
from outfall.postgres.connection.database import PostgresConnection
from outfall.sql import log_database
from outfall.sql.session import Statement
from outfall.testing import LocalDriver
from tests.integration.mysql.support import Target as MySQLTable
from tests.integration.postgres.support import Target as PostgresTable
from tests.integration.support.changes import CHANGES, change
from tests.integration.support.mysql import mysql_server
from tests.integration.support.postgres import postgres_server
from tests.integration.support.sql import KEYED, UPSERT, Make, Table

FILES = Path(__file__).parents[1] / "sql" / "statements"

Row = dict[str, Any]
Task = Sequence[Any]

_SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "version": pa.int64()})
_DEAD = {"dead_letter_table": "dead"}
_ORDERED = UPSERT | {"order_column": "version"}
_MARKED = {"delete_marker": "gone"}
_DELETE = {"write_mode": "delete", "key_columns": "id"}
_CHECKED = "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(9), version bigint, CHECK (name <> 'bad'))"
_UNIQUE = "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(9), version bigint, UNIQUE (name))"
_CHANGED = "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(9), lsn bigint, CHECK (name <> 'bad'))"
_PARTIAL = (
    "CREATE TABLE t (id bigint, name varchar(9), version bigint); CREATE UNIQUE INDEX ON t (id) WHERE version >= 0"
)


def _row(number: int, name: str | None = "a", version: int = 1, **more: Any) -> Row:
    return {"id": number, "name": name, "version": version, **more}


def _marked(number: int, name: str = "a", version: int = 1, *, gone: bool = False) -> Row:
    return _row(number, name, version, gone=gone)


@dataclass(frozen=True)
class Case:
    """What a sink with some options does with some epochs, each of them by a driver of its own."""

    options: dict[str, Any]
    epochs: Sequence[Sequence[Task]]
    ddl: str | None = KEYED
    """The statement that makes the table; `None` where the sink creates it."""
    before: str = ""
    """A statement that is run before."""
    log: bool = False
    """Whether the recovery log is in the database too, and its statements are meant."""
    only: tuple[str, ...] = ("postgres", "mysql")
    fails: tuple[str, ...] = ()
    """The databases on which an epoch fails."""
    then: Callable[[Any], object] = field(default=lambda sink: None)
    """What is done with the sink afterwards."""


_PLAIN = [[[_row(1), _row(2)], [_row(1, "b", 2)]]]
_REMOVING = [[[_marked(1), _marked(2)], [_marked(1, gone=True), _marked(1, "b", 2)]]]
_BAD = [[[_row(1), _row(2, "bad")], [_row(3), _row(1, "b", 2)]]]
_EXCHANGED = [[[_row(1, "b"), _row(2, "a")]]]
_BOTH = "INSERT INTO t VALUES (1, 'a', 0), (2, 'b', 0)"
_BAD_MARKED = [[[_marked(1), _marked(2, "bad")], [_marked(3, gone=True), _marked(1, "b", 2)]]]

_MANY = {"table": None, "table_column": "place", "allowed_tables": "t*"}
_SECOND = "CREATE TABLE t2 (id bigint PRIMARY KEY, name varchar(9), version bigint, CHECK (name <> 'bad'))"
_ROUTED = [[_row(1, place="t"), _row(1, place="t2")], [_row(2, place="t2")]]

CASES: dict[str, Case] = {
    "append": Case({}, [[[_row(1)], [_row(2)]], [[_row(3)]]]),
    "append, dead letters": Case(_DEAD, _BAD[:1], _CHECKED.replace(" PRIMARY KEY", "")),
    "append, refused": Case({}, [[[_row(1), _row(2, "bad")]]], _CHECKED, fails=("postgres", "mysql")),
    "append, create the table": Case({"create_table": "if_missing"}, [[[_row(1)]]], None),
    "append, overwrite": Case({"on_existing": "overwrite"}, [[[_row(1)]]], before="INSERT INTO t (id) VALUES (9)"),
    "append, recovery log": Case({}, [[[_row(1)]], [[_row(2)]]], log=True),
    "append, clean-up": Case(
        {},
        [[[_row(1)]]],
        then=lambda sink: sink.clean_up(
            CleanUpContext("sink", "0" * 32, 9, final=True, states=dict, writer_states=tuple)
        ),
    ),
    "upsert": Case(UPSERT, _PLAIN),
    "upsert, marker": Case(UPSERT | _MARKED, _REMOVING),
    "upsert, order": Case(_ORDERED, _PLAIN),
    "upsert, order and marker": Case(_ORDERED | _MARKED, _REMOVING),
    "upsert, some columns": Case(UPSERT | {"update_columns": "name"}, _PLAIN),
    "upsert, some columns, order and marker": Case(_ORDERED | _MARKED | {"update_columns": "name"}, _REMOVING),
    "upsert, keys alone": Case(UPSERT, [[[{"id": 1}]]], "CREATE TABLE t (id bigint PRIMARY KEY)"),
    "upsert, dead letters": Case(UPSERT | _DEAD, _BAD, _CHECKED),
    "upsert, dead letters, order and marker": Case(_ORDERED | _MARKED | _DEAD, _BAD_MARKED, _CHECKED),
    "upsert, dead letters, some columns and marker": Case(
        UPSERT | _MARKED | _DEAD | {"update_columns": "name"}, _BAD_MARKED, _CHECKED
    ),
    "upsert, values exchanged": Case(UPSERT | _DEAD, _EXCHANGED, _UNIQUE, _BOTH, fails=("postgres",)),
    "upsert, values exchanged, deferrable": Case(
        UPSERT | _DEAD, _EXCHANGED, _UNIQUE.replace("(name)", "(name) DEFERRABLE"), _BOTH, only=("postgres",)
    ),
    "upsert, partial index": Case(
        UPSERT | _MARKED | {"conflict_where": "version >= 0"}, _REMOVING, _PARTIAL, only=("postgres",)
    ),
    "upsert, partial index, dead letters": Case(
        UPSERT | _DEAD | {"conflict_where": "version >= 0"},
        [[[_row(1), _row(1, "b", 2), _row(5, "toolongname")]]],
        _PARTIAL,
        only=("postgres",),
    ),
    "upsert, partial index, some columns": Case(
        UPSERT | {"conflict_where": "version >= 0", "update_columns": "name"}, _PLAIN, _PARTIAL, only=("postgres",)
    ),
    "delete": Case(_DELETE, [[[{"id": 1}], [{"id": 2}]]]),
    "delete, dead letters": Case(
        _DELETE | _DEAD,
        [[[{"id": 1}], [{"id": 2}]]],
        f"{KEYED}; CREATE TABLE child (id bigint, FOREIGN KEY (id) REFERENCES t (id))",
        "INSERT INTO t (id) VALUES (1), (2); INSERT INTO child VALUES (2)",
    ),
    "changes": Case(
        CHANGES,
        [[[change("c", 1, "a", 1), change("u", 1, "b", 2)], [change("d", 2, None, 1)]], [[change("d", 1, None, 3)]]],
        _CHANGED,
    ),
    "changes, dead letters": Case(
        CHANGES | _DEAD,
        [[[change("c", 1, "a", 1), change("u", 2, "bad", 2)], [change("d", 3, None, 1)]]],
        _CHANGED,
    ),
    "changes, tied": Case(
        CHANGES | _DEAD, [[[change("c", 1, "a", 1), change("u", 1, "b", 1)], [change("c", 2, "a", 1)]]], _CHANGED
    ),
    "append, many tables": Case(_MANY, [_ROUTED, [[_row(3, place="t")]]], before=_SECOND),
    "append, many tables, refused": Case(
        _MANY, [[[_row(1, place="t"), _row(2, "bad", place="t2")]]], _CHECKED, _SECOND, fails=("postgres", "mysql")
    ),
    "upsert, many tables, marker": Case(
        UPSERT | _MARKED | _MANY,
        [[[_marked(1) | {"place": "t"}], [_marked(2, gone=True) | {"place": "t2"}]]],
        before=_SECOND,
    ),
    "changes, many tables": Case(
        CHANGES | _MANY,
        [[[change("c", 1, "a", 1, place="t"), change("d", 3, None, 1, place="t2")]]],
        _CHANGED,
        _SECOND.replace("version", "lsn"),
    ),
    "parts": Case(
        {"parts": 2, "offset_keys": "ledger"},
        [[[("1", {"id": 1, "name": "a"}), ("2", {"id": 2, "name": "b"})]], [[("1", {"id": 3, "name": "c"})]]],
        "CREATE TABLE t (id bigint, name text)",
    ),
}
"""By name."""
FIRST = next(iter(CASES))


def statements(make: Make, name: str) -> list[str]:
    """Return the statements of a case, without those that read the catalogue."""
    case = CASES[name]
    target = make(case.ddl or "CREATE TABLE other (id int)")
    if case.before:
        target.run(case.before)
    with TemporaryDirectory() as folder:
        place = target.location() if case.log else folder
        sink = target.sink(**case.options)
        with (
            _recorded(target) as found,
            pytest.raises(OutfallError) if target.connector in case.fails else nullcontext(),
        ):
            if case.ddl is None:
                sink.check_schema(_SCHEMA)
            for number, tasks in enumerate(case.epochs):
                LocalDriver(sink, place).run_epoch(number, tasks)
            case.then(sink)
    sent = [shown for statement in found if (shown := _shown(statement, target)) is not None]
    if name == FIRST:
        return sent
    known = set(file_of(target.connector, FIRST).read_text().splitlines())
    return [statement for statement in dict.fromkeys(sent) if statement not in known]


def file_of(connector: str, name: str) -> Path:
    """Return the file of a case."""
    return FILES / connector / f"{name.replace(', ', '-').replace(' ', '_')}.sql"


def text_of(found: Sequence[str]) -> str:
    """Return the text of a file."""
    return "".join(f"{statement}\n" for statement in found)


@contextmanager
def _recorded(target: Table) -> Iterator[list[Any]]:
    """Record what is executed in this process within a block."""
    found: list[Any] = []
    # An earlier test may have left a connection, which may be dead, and knows its catalogue.
    kept: list[Any] = [*mysql_database._IDLE.clear(), *postgres_database._IDLE.clear()]
    for left in kept:
        left.shut()
    # Attempts are moved in the order of their numbers.
    numbers = mock.Mock(randbits=mock.Mock(side_effect=itertools.count(10**10)))
    with (
        mock.patch("outfall.sql.staging.secrets", numbers),
        # An earlier test of this process may have prepared a log in a database of the same name.
        mock.patch.object(log_database, "PREPARED", type(log_database.PREPARED)()),
        ExitStack() as stack,
    ):
        for place in _places(target, found):
            stack.enter_context(place)
        yield found


def _places(target: Table, found: list[Any]) -> list[AbstractContextManager[Any]]:
    """Return the patches of the methods by which statements are sent: alone, or together with others."""
    inside = 0

    def patched(kind: Any, name: str, sent: Callable[..., list[Any]]) -> AbstractContextManager[Any]:
        ours = getattr(kind, name)

        def method(this: Any, *given: Any, **more: Any) -> Any:
            nonlocal inside
            found.extend([] if inside else sent(this, *given))
            inside += 1
            try:
                return ours(this, *given, **more)
            finally:
                inside -= 1

        return mock.patch.object(kind, name, method)

    def together(this: Any, statements: Sequence[Statement]) -> list[Any]:
        connection = None if isinstance(this, MySQLSession) else this
        return [each.as_string(connection) if isinstance(each, sql.Composable) else each for each, _ in statements]

    def alone(cursor: Any, query: Any, *given: Any) -> list[Any]:
        return together(getattr(cursor, "connection", None), [(query, ())])

    def loaded(this: Any, statement: bytes, *given: Any) -> list[Any]:
        return [*(each for each, _ in this._queued), statement]

    if target.connector == "mysql":
        return [
            patched(MySQLSession, "together", together),
            patched(MySQLSession, "send", loaded),
            patched(pymysql.cursors.Cursor, "execute", alone),
        ]
    return [patched(PostgresConnection, "together", together), patched(psycopg.Cursor, "execute", alone)]


# SELECT 1 asks whether a connection that an earlier test left is alive.
_CATALOGUE = re.compile(
    r"^SELECT 1$|information_schema|\bpg_(?!temp)\w+|SHOW |@@(?!lower_case)|has_\w+_privilege|to_regclass"
)
_NAMES = [
    (re.compile(r"\s+"), " "),
    (re.compile(r"\b\d{10,}\b"), "1234567890"),
    (re.compile(r"1234567890(, 1234567890)+"), "1234567890"),
    (re.compile(r"_[0-9a-f]{12}\b"), "_0123456789ab"),
    (re.compile(r"(set_config\(%s, %s, true\)(, )?)+"), "set_config(%s, %s, true), ..."),
    # The two servers name their own limits, types and collations.
    (re.compile(r"max_(statement|execution)_time = \d+"), "max_time = 1"),
    (re.compile(r"\b(bigint|int|tinyint)\(\d+\)"), r"\1"),
    (re.compile(r"COLLATE `?utf8mb4_\w+`?"), "COLLATE utf8mb4_bin"),
]


def _shown(statement: Any, target: Table) -> str | None:
    """Return a statement without what differs from run to run; `None` for one that only reads the server's state."""
    text = statement.decode(errors="replace") if isinstance(statement, bytes) else str(statement)
    if isinstance(target, MySQLTable):
        text = text.replace(target.database, "db")
    if _CATALOGUE.search(text) and not re.match(r"\s*(INSERT|CREATE|UPDATE|DELETE)", text):
        return None
    for pattern, instead in _NAMES:
        text = pattern.sub(instead, text)
    return text.strip()


def _write(connector: str, make: Make) -> None:
    for name, case in CASES.items():
        if connector in case.only:
            file = file_of(connector, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text_of(statements(make, name)))


def main() -> None:
    """Write the files of both databases."""
    servers: dict[str, Callable[[], AbstractContextManager[Any]]] = {"postgres": postgres_server, "mysql": mysql_server}
    for connector in sys.argv[1:] or servers:
        with servers[connector]() as server:
            if connector == "postgres":
                _write(connector, lambda ddl: PostgresTable(server.emptied(), ddl))
            else:
                _write(connector, lambda ddl: MySQLTable(server.client, server.client.new_database(), ddl))


if __name__ == "__main__":
    main()

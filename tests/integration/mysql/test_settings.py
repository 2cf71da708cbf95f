"""Settings of a server that a DBA may have chosen: rows are what they are with the defaults."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.integration.mysql.support import Target
from tests.integration.support.mysql import MySQLServer, Server
from tests.integration.support.sql import first, run

UPSERT = {"write_mode": "upsert", "key_columns": "id", "order_column": "seq", "delete_marker": "gone"}
CHANGES = {"write_mode": "changes", "key_columns": "id", "sequence_column": "seq", "operation_column": "op"}


@pytest.mark.parametrize(
    ("name", "value"),
    first(
        3,
        [
            ("sql_safe_updates", "ON"),
            ("sql_big_selects", "OFF"),
            ("sql_select_limit", "1"),
            ("completion_type", "CHAIN"),
            ("autocommit", "OFF"),
            ("default_storage_engine", "MyISAM"),
            ("sql_mode", "'ANSI,NO_BACKSLASH_ESCAPES'"),
            ("transaction_isolation", "'SERIALIZABLE'"),
            ("max_allowed_packet", "16384"),
            ("time_zone", "'+05:00'"),
            ("max_sort_length", "8"),
            ("sort_buffer_size", "1024"),
            ("unique_checks", "OFF"),
        ],
    ),
)
def test_a_setting_changes_nothing(own_mysql: Server, tmp_path: Path, name: str, value: str) -> None:
    client = own_mysql.client
    target = Target(client, client.new_database(), "CREATE TABLE t (id BIGINT PRIMARY KEY, seq BIGINT, name TEXT)")
    if name == "transaction_isolation" and client.is_mariadb:
        name = "tx_isolation"
    joins = {"max_join_size": "1"} if name == "sql_big_selects" else {}
    with client.settings(**{name: value}, **joins):
        sink = target.sink(**UPSERT, retry_deadline="5 seconds")
        row = {"id": 1, "seq": 1, "name": "né\\😀", "gone": False}
        run(sink, tmp_path, 0, [row, row | {"id": 2}, row | {"id": 3}])
        run(sink, tmp_path, 1, [row | {"seq": 2, "gone": True}, row | {"id": 3, "seq": 0, "name": "late"}])
    assert [bytes.fromhex(name).decode() for (name,) in target.rows("HEX(name)")] == ["né\\😀"] * 2
    assert target.ids() == [2, 3]


@pytest.mark.parametrize(
    "options", first(1, [UPSERT, UPSERT | {"order_column": None}, CHANGES]), ids=["order", "none", "changes"]
)
def test_keys_that_differ_after_a_thousand_bytes_are_different_keys(
    server: MySQLServer, database: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Servers sort values by their first `max_sort_length` bytes, and find the rows of a key by a sort."""
    key = "VARCHAR(768) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    target = Target(server, database, f"CREATE TABLE t (id {key} PRIMARY KEY, seq BIGINT)")
    long, chance = "é" * 700, random.Random(1)
    given = [(f"{long}{chance.randrange(40):02d}", number, chance.random() < 0.4) for number in range(300)]
    last = {id_: (seq, gone) for id_, seq, gone in given}
    wanted = {id_: seq for id_, (seq, gone) in last.items() if not gone}
    marked = {"gone": lambda gone: gone} if "delete_marker" in options else {"op": lambda gone: "d" if gone else "u"}
    ((name, mark),) = marked.items()
    sent = [{"id": id_, "seq": seq, name: mark(gone)} for id_, seq, gone in given]
    if options is CHANGES:
        chance.shuffle(sent)
    for epoch in range(2):
        run(target.sink(**options), tmp_path, epoch, sent[150 * epoch : 150 * (epoch + 1)])
    assert target.rows("SUBSTR(id, 701), seq") == sorted((id_[700:], seq) for id_, seq in wanted.items())

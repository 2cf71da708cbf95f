"""Each wrapper around each way of writing by key: the newest row of a key stays, or the combination is refused.

Three epochs replace and delete rows of the same keys, from other tasks each time, and a drain follows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from outfall.capabilities import SupportsBufferedRows, SupportsTarget
from outfall.capability_checks import capabilities_of, resolve
from outfall.errors import OutfallError
from outfall.postgres import PostgresSink
from outfall.redis import RedisSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.values import rows_to_batch
from outfall.wrappers import BatchingSink, DeadLetteringSink, ExactlyOnceSink, FanOutSink
from tests.combinations import BATCHES, DEAD_LETTERS, FAN_OUT, HELD, ONCE, REFUSED
from tests.integration.support.redis_server import RedisServer, redis_server, rows_of
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.warehouse import Warehouse

pytestmark = pytest.mark.thorough

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda sink: sink,
    FAN_OUT: lambda sink: FanOutSink(out=sink, other=NamedStagingSink(Warehouse(), "other")),
    BATCHES: lambda sink: BatchingSink(sink, batch_size=2),
    HELD: lambda sink: BatchingSink(sink, batch_size=3, across_epochs=True),
    ONCE: lambda sink: ExactlyOnceSink(sink, offset="n", source_partition="source", parts=2),
    DEAD_LETTERS: lambda sink: DeadLetteringSink(sink, NamedStagingSink(Warehouse(), "letters")),
}
MODES: dict[str, dict[str, Any]] = {
    "upsert": {"write_mode": "upsert"},
    "marker": {"write_mode": "upsert", "delete_marker": "gone"},
    "delete": {"write_mode": "delete"},
    "changes": {"write_mode": "changes", "operation_column": "op", "sequence_column": "n"},
}
DROPPED = {"upsert": ("gone", "op"), "marker": ("op",), "delete": ("gone", "op"), "changes": ("gone",)}
"""The columns that a mode does not take."""


def rows(epoch: int, mode: str) -> list[dict[str, Any]]:
    """Two keys are replaced in each epoch, and the last one deletes a key where the mode can."""
    found = []
    for number, key in enumerate("ab"):
        gone = epoch == 2 and key == "a"
        row = {"id": key, "n": epoch * 10 + number, "source": f"{number}", "text": f"{key}{epoch}"}
        row |= {"gone": gone, "op": "delete" if gone else "update"}
        found.append({name: value for name, value in row.items() if name not in DROPPED[mode]})
    return found


def run(make: Callable[[], Any], mode: str) -> OutfallError | None:
    """Run the epochs; return the error with which the combination is refused at its construction."""
    try:
        make()
    except OutfallError as refused:
        return refused
    recovery = MemoryRecoveryConfig()
    for epoch in range(3):
        sink = make()
        given = rows(epoch, mode)
        if SupportsTarget in capabilities_of(sink):
            sink.check_schema(rows_to_batch(given).schema)
        # Each key comes from another task than before.
        tasks: list[Any] = [[row] for row in (given if epoch % 2 else given[::-1])]
        if resolve(sink).fixed:
            tasks = [[(row["source"], row) for row in task] for task in tasks]
        LocalDriver(sink, recovery).run_epoch(epoch, tasks)
    if SupportsBufferedRows in capabilities_of(make()):
        LocalDriver(make(), recovery).drain()
    return None


def expected(wrapper: str, reports: bool) -> str | None:
    """Return the word of the table for a refused combination."""
    if wrapper == HELD:
        return "keys"
    return "hands" if wrapper == DEAD_LETTERS and not reports else None


def check_refused(refused: OutfallError | None, word: str | None) -> None:
    if word is None:
        assert refused is None
        return
    kind, text = REFUSED[word]
    assert isinstance(refused, kind)
    assert text in str(refused)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_newest_row_of_a_key_stays_in_a_table(wrapper: str, mode: str, conformance_dsn: str) -> None:
    table = f"t_{secrets.token_hex(8)}"
    with psycopg.connect(conformance_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (id text PRIMARY KEY, n bigint, source text, text text)")
        connection.execute(f"INSERT INTO {table} VALUES ('a', -1, '', 'a-'), ('c', -1, '', 'c-')")

        def make() -> Any:
            return WRAPPERS[wrapper](PostgresSink(conformance_dsn, table, key_columns="id", **MODES[mode]))

        refused = run(make, mode)
        found: dict[str, str] = dict(connection.execute(f"SELECT id, text FROM {table}").fetchall())
    word = expected(wrapper, reports=False)
    check_refused(refused, word)
    newest = {"upsert": {"a": "a2", "b": "b2"}, "marker": {"b": "b2"}, "delete": {}, "changes": {"b": "b2"}}[mode]
    assert found == ({"a": "a-", "c": "c-"} if word else {"c": "c-"} | newest)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.mark.parametrize("mode", ["upsert", "marker"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_newest_row_of_a_key_stays_in_redis(wrapper: str, mode: str, redis: RedisServer) -> None:
    name = secrets.token_hex(8)
    marker = None if mode == "upsert" else "gone"

    def make() -> Any:
        return WRAPPERS[wrapper](RedisSink(redis.url, f"{name}:{{id}}", delete_marker=marker))

    refused = run(make, mode)
    found = {key.rpartition(":")[2]: row["text"] for key, row in rows_of(redis.client(), f"{name}:*").items()}
    word = expected(wrapper, reports=True)
    check_refused(refused, word)
    assert found == ({} if word else {"b": "b2"} | ({"a": "a2"} if mode == "upsert" else {}))

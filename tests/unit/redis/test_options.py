"""What `RedisSink` takes, how it names keys and versions, and the meaning of Redis' errors."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pyarrow as pa
import pytest
from redis.connection import Connection
from redis.crc import key_slot
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    SlotNotCoveredError,
    TimeoutError,
)

from outfall.async_sink import ErrorAction
from outfall.capabilities import Guarantee
from outfall.capability_checks import check_sink, resolve
from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.redis import RedisSink
from outfall.redis.client import classify, code_of
from outfall.redis.options import KeyPattern
from outfall.redis.packing import hashes, packed_rows, version_key
from outfall.redis.script import SHA, Lives, call
from outfall.source_options import make_sink
from outfall.versioned import KeyedBatch, KeyedRow, Version

URL = "redis://127.0.0.1:6379"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "http://127.0.0.1"}, "url of RedisSink: must be redis://"),
        ({"url": "redis://user:hunter2-word@127.0.0.1"}, "url of RedisSink: must contain no credentials"),
        ({"url": "redis://127.0.0.1/x"}, "url of RedisSink: the path must be the number"),
        ({"key": "r"}, "key of RedisSink: must name a column"),
        ({"key": "r:{}"}, "key of RedisSink: names columns in braces"),
        ({"key": "r:{id!r}"}, "key of RedisSink: names columns in braces"),
        ({"key": "r:{id"}, "key of RedisSink: "),
        ({"layout": "value"}, "value_column belong together"),
        ({"value_column": "a"}, "value_column belong together"),
        ({"cluster": True, "url": f"{URL}/2"}, "a cluster has database 0"),
        ({"client_key": "k.pem"}, "client_key requires client_certificate"),
        ({"ca_bundle": "ca.pem"}, "certificates require a url with rediss://"),
        ({"delete_marker": "id"}, "delete_marker cannot be in the key"),
        ({"ttl": 0}, "ttl"),
        ({"across_epochs": True}, "across_epochs is not available"),
        ({"order_column": "n", "versions": False}, "order_column requires versions"),
        ({"order_column": "n", "delete_marker": "n"}, "delete_marker is not stored"),
    ],
)
def test_wrong_options_are_named_without_secrets(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)) as failed:
        RedisSink(**({"url": URL, "key": "r:{id}"} | options))
    assert "hunter2-word" not in str(failed.value)


def test_a_sink_by_options_is_the_same_and_says_its_guarantee() -> None:
    made = make_sink("redis", {"url": URL, "key": "r:{id}", "orderColumn": "n", "ttl": "1 day"})
    assert repr(made) == "RedisSink('redis://127.0.0.1:6379', 'r:{id}')"
    assert resolve(made).guarantee() is Guarantee.EFFECTIVELY_ONCE
    assert "keeps acknowledged writes" in " ".join(made.requires())
    assert resolve(RedisSink(URL, "r:{id}", versions=False)).guarantee() is Guarantee.AT_LEAST_ONCE
    check_sink(made)


def test_neither_the_sink_nor_its_pickle_shows_a_password_that_is_named() -> None:
    sink = RedisSink(URL, "r:{id}", password="env:REDIS_PASSWORD")
    assert "hunter2" not in repr(sink)
    assert b"env:REDIS_PASSWORD" in pickle.dumps(sink)


def test_a_pattern_joins_texts_and_columns() -> None:
    pattern = KeyPattern("{{{a}}}:{b}!")
    assert pattern.columns == ["a", "b"]
    values = {"a": pa.array([b"1", b"2"], pa.large_binary()), "b": pa.array([b"x", b"y"], pa.large_binary())}
    assert pattern.keys(values).to_pylist() == [b"{1}:x!", b"{2}:y!"]


@pytest.mark.parametrize("key", ["r:1", "{1}:x", "a{b}c{d}", "{", "a{b", "{{}x", "ä:𝄞", "{a}}"])
def test_the_version_of_a_key_lies_in_its_slot(key: str) -> None:
    assert key_slot(version_key(key.encode())) == key_slot(key.encode())


@pytest.mark.parametrize("key", ["a}b", "{}a", "}"])
def test_a_key_without_a_place_for_its_version(key: str) -> None:
    with pytest.raises(ValueRefusedError, match="the version of a row cannot be stored"):
        version_key(key.encode())


def test_rows_are_packed_as_the_client_packs_them() -> None:
    names, columns = ["a", "ä"], [pa.array([b"", b"12", b"\r\n"], pa.large_binary())] * 2
    columns[1] = pa.array([None, b"x" * 11, None], pa.large_binary())
    deleted, ranks = pa.array([False, False, True]), pa.array(["00", "01", "02"], pa.large_string())
    changes = KeyedBatch(pa.record_batch({"a": columns[0]}), deleted, ranks)
    keys = pa.array([b"k", b"{k}", b"d"], pa.large_binary())
    rows = [
        KeyedRow(key, write, 0, "", changes.rows, number)
        for number, (key, write) in enumerate(
            zip(keys.to_pylist(), packed_rows(keys, hashes(names, columns), changes, versions=True), strict=True)
        )
    ]
    arguments = [
        6, "k", "outfall:v:{k}", "{k}", "outfall:v:{k}", "d", "outfall:v:{d}", 4096, "token", 5, 12, 12,
        "00", 2, "a", "", "01", 4, "a", "12", "ä", "x" * 11, "02", "d",
    ]  # fmt: skip
    connection: Any = Connection()  # type: ignore[no-untyped-call]
    expected = b"".join(connection.pack_command("EVALSHA", SHA, *arguments))
    assert call(rows, Version(4096, "token"), Lives(5, 7)) == expected


@pytest.mark.parametrize(
    ("error", "action", "code"),
    [
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), ErrorAction.RETRY, "OOM"),
        (ReadOnlyError("You can't write against a read only replica."), ErrorAction.RETRY, "READONLY"),
        (BusyLoadingError("Redis is loading the dataset in memory"), ErrorAction.RETRY, "LOADING"),
        (MasterDownError("Link with MASTER is down"), ErrorAction.RETRY, "MASTERDOWN"),
        (MovedError("1 127.0.0.1:7000"), ErrorAction.RETRY, "MOVED"),
        (SlotNotCoveredError('Slot "1" is not covered by the cluster.'), ErrorAction.RETRY, "SlotNotCoveredError"),
        (RedisClusterException("Cluster mode is not enabled on this node"), ErrorAction.FATAL, "RedisClusterException"),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), ErrorAction.RETRY, "MISCONF"),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), ErrorAction.RETRY, "NOREPLICAS"),
        (ConnectionError("Connection closed by server."), ErrorAction.RETRY, "ConnectionError"),
        (TimeoutError("Timeout reading from socket"), ErrorAction.RETRY, "TimeoutError"),
        (AuthenticationError("invalid username-password pair"), ErrorAction.FATAL, "AuthenticationError"),
        (NoPermissionError("this user has no permissions"), ErrorAction.FATAL, "NOPERM"),
        (ResponseError("unknown command 'EVALSHA'"), ErrorAction.FATAL, "ResponseError"),
        (ResponseError("OUTFALL the version of a key is damaged"), ErrorAction.DEAD_LETTER, "OUTFALL"),
        (ResponseError("string exceeds maximum allowed size"), ErrorAction.DEAD_LETTER, "ResponseError"),
    ],
    ids=lambda value: None if not isinstance(value, Exception) else str(value)[:12],
)
def test_errors_of_the_server_are_told_apart(error: Exception, action: ErrorAction, code: str) -> None:
    assert classify(error) is action
    assert code_of(error) == code

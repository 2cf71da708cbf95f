"""What `RedisSink` takes, how it names keys and versions, and the meaning of Redis' errors."""

from __future__ import annotations

import pickle
import re
from contextlib import nullcontext, suppress
from itertools import product
from types import SimpleNamespace
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
from outfall.redis.client import RedisConnection, classify, code_of
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
        ({"sequence_column": "n", "order_column": "n"}, "order_column and sequence_column exclude each other"),
        ({"sequence_column": "n", "versions": False}, "sequence_column requires versions"),
        ({"sequence_column": "n", "delete_marker": "n"}, "so it cannot be sequence_column"),
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
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    assert pattern.keys(values, schema).to_pylist() == [b"{1}:x!", b"{2}:y!"]


@pytest.mark.parametrize(
    ("pattern", "kinds", "rows", "refused"),
    [
        ("{a}:{b}", "ss", ["x:y z", "x y:z", "x y"], {"x:y z"}),
        ("{a}aa{b}", "ss", ["xa b", "x ab"], {"xa b"}),
        ("{a}{b}", "ss", ["xy z", "x yz"], {"xy z", "x yz"}),
        ("{a}:{b}", "si", ["x:1 2", "x 1"], set()),
        ("{a}-{b}", "si", ["x- 2", "x -2"], {"x- 2"}),
        ("{a}:{b}", "is", ["1 2:3", "-1 2"], set()),
        ("{a}1{b}", "ii", ["1 11", "11 1"], {"1 11", "11 1"}),
        ("{a}-{b}", "td", ["2026-01-01 1", "2026-01-01 -1"], set()),
        ("{a}:{b}:{c}", "sds", ["x:1 2 y", "x 1 2:y"], {"x:1 2 y"}),
    ],
)
def test_no_two_rows_have_one_key(pattern: str, kinds: str, rows: list[str], refused: set[str]) -> None:
    types = {"s": pa.string(), "i": pa.int64(), "d": pa.decimal128(9, 0), "t": pa.date32()}
    schema = pa.schema([(name, types[kind]) for name, kind in zip("abc", kinds, strict=False)])
    found: dict[bytes, str] = {}
    for row in rows:
        parts = {
            name: pa.array([part.encode()], pa.large_binary()) for name, part in zip("abc", row.split(), strict=False)
        }
        try:
            (key,) = KeyPattern(pattern).keys(parts, schema).to_pylist()
        except ValueRefusedError:
            assert row in refused
        else:
            assert found.setdefault(key, row) == row
            assert row not in refused


@pytest.mark.parametrize("key", ["r:1", "{1}:x", "a{b}c{d}", "{", "a{b", "{{}x", "ä:𝄞", "{a}}"])
def test_the_version_of_a_key_lies_in_its_slot(key: str) -> None:
    assert key_slot(version_key(key.encode())) == key_slot(key.encode())


def test_no_two_keys_have_one_version() -> None:
    keys = [bytes(key) for length in range(1, 7) for key in product(b"a{}", repeat=length)]
    found: dict[bytes, bytes] = {}
    for key in keys:
        with suppress(ValueRefusedError):
            assert found.setdefault(version_key(key), key) == key
            assert key_slot(version_key(key)) == key_slot(key)
    assert len(found) > 400


def test_a_version_that_an_earlier_commit_wrote_is_found_at_its_key() -> None:
    earlier = {"r:1": "outfall:v:{r:1}", "r:{1}:x": "outfall:v:r:{1}:x", "{1}:x": "outfall:v:{1}:x"}
    assert {key: version_key(key.encode()).decode() for key in earlier} == earlier


@pytest.mark.parametrize("key", ["outfall:v:a", "outfall:vb:{a}", "outfall:record:version"])
def test_no_row_has_a_key_of_outfall(key: str) -> None:
    changes = KeyedBatch(pa.record_batch({"id": [key]}), None, pa.array(["00"], pa.large_string()))
    keys = pa.array([key.encode()], pa.large_binary())
    with pytest.raises(ValueRefusedError, match="as the keys of Outfall's records do"):
        packed_rows(keys, hashes(["id"], [keys]), changes, versions=False)


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
        6, "k", "outfall:v:{k}", "{k}", "outfall:vb:{k}", "d", "outfall:v:{d}", 4096, "token", 5, 12, 12,
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


@pytest.mark.parametrize(("host", "more", "goes_on"), [
    ("10.0.0.5", {}, False), ("10.0.0.5", {"allow_unencrypted": True}, True), ("127.0.0.1", {}, True),
])  # fmt: skip
def test_the_password_goes_to_no_other_host_that_a_sentinel_here_names(
    host: str, more: dict[str, Any], goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis.sentinel.Sentinel.discover_master", lambda self, name: (host, 1))
    tried: list[str] = []
    monkeypatch.setattr("redis.sentinel.SentinelManagedConnection.connect_to", lambda self, to: tried.append(to[0]))
    sink = RedisSink("redis://localhost:26379", "{id}", layout="json", sentinel="main", password="hunter2", **more)
    with nullcontext() if goes_on else pytest.raises(ConfigurationError, match=r"sent to 10\.0\.0\.5 without TLS"):
        RedisConnection.of(sink.options).make().connection_pool.make_connection().connect()
    assert tried == [host] * goes_on


@pytest.mark.parametrize(("host", "goes_on"), [("10.0.0.5", False), ("127.0.0.1", True)])
def test_the_password_goes_to_no_other_host_that_a_node_here_names(
    host: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = SimpleNamespace(get_nodes=lambda: [SimpleNamespace(host="127.0.0.1"), SimpleNamespace(host=host)])
    monkeypatch.setattr("redis.RedisCluster.from_url", lambda *given, **more: nodes)
    sink = RedisSink("redis://localhost:7000", "{id}", layout="json", cluster=True, password="hunter2")
    with nullcontext() if goes_on else pytest.raises(ConfigurationError, match=r"sent to 10\.0\.0\.5 without TLS"):
        RedisConnection.of(sink.options).make()

"""What `RedisSink` writes, and what it makes of a server that is full, read-only, loading, stale, or in a cluster."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from outfall.capabilities import WriterInitContext
from outfall.errors import StaleWriterError, TargetError, TargetLostError, TransientError, ValueRefusedError
from outfall.file import FileSink
from outfall.redis import RedisSink
from outfall.redis.packing import version_key
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from tests.integration.support.certificates import self_signed
from tests.integration.support.redis_server import DURABLE, RedisServer, need_tls, redis_server, rows_of
from tests.integration.support.sequence_trials import TRIALS
from tests.integration.support.servers import free_port, free_ports, open_folder
from tests.integration.support.waiting import until

FAST: dict[str, Any] = {"retry_backoff": 0.002, "max_retry_backoff": 0.02, "retry_budget": 1.0}
BRIEF = FAST | {"max_retries": 3, "retry_deadline": 0.3}


def write(sink: Any, *tasks: list[Any], epoch: int = 0, recovery: Any = None) -> dict[str, int]:
    return LocalDriver(sink, recovery or MemoryRecoveryConfig()).run_epoch(epoch, list(tasks)).counts


@pytest.mark.parametrize("versions", [True, False])
def test_each_layout_stores_rows_and_deletes_keys(server: RedisServer, versions: bool) -> None:
    first = [{"id": 1, "text": "ä", "part": None}, {"id": 2, "text": "𝄞", "part": 2.0}]
    expected = {
        "hash": {"r:1": {"id": "1", "text": "ä"}, "r:2": {"id": "2", "text": "𝄞", "part": "2.0"}},
        "json": {"r:1": '{"id":1,"text":"ä"}', "r:2": '{"id":2,"text":"𝄞","part":2.0}'},
        "value": {"r:1": "ä", "r:2": "𝄞"},
    }
    for layout, stored in expected.items():
        server.client().flushall()
        more: dict[str, Any] = {"layout": layout} | ({"value_column": "text"} if layout == "value" else {})
        sink = RedisSink(server.url, "r:{id}", delete_marker="gone", versions=versions, **more)
        write(sink, [row | {"gone": False} for row in first])
        assert rows_of(server.client()) == stored
        write(sink, [first[0] | {"gone": True}])
        assert list(rows_of(server.client())) == ["r:2"]


def test_a_row_replaces_all_fields_of_the_row_before(server: RedisServer) -> None:
    sink, recovery = RedisSink(server.url, "r:{id}"), MemoryRecoveryConfig()
    write(sink, [{"id": 1, "a": "x", "b": "y"}], recovery=recovery)
    write(sink, [{"id": 1, "a": "z", "b": None}], epoch=1, recovery=recovery)
    assert rows_of(server.client()) == {"r:1": {"id": "1", "a": "z"}}


@pytest.mark.parametrize(("option", "do"), [({"cluster": True}, "omit cluster"), ({"sentinel": "m"}, "omit sentinel")])
def test_a_server_of_another_topology_is_named(server: RedisServer, option: dict[str, Any], do: str) -> None:
    with pytest.raises(TargetError, match=do):
        RedisSink(server.url, "r:{id}", **option).check_connection()


def test_a_key_in_braces_is_another_key(server: RedisServer) -> None:
    sink, recovery = RedisSink(server.url, "{id}", order_column="n"), MemoryRecoveryConfig()
    counts = write(sink, [{"id": "{a}", "n": 2}], [{"id": "a", "n": 1}], recovery=recovery)
    assert "replaced_rows" not in counts
    braced = RedisSink(server.url, "{{{id}}}", order_column="n")
    write(braced, [{"id": "a", "n": 5}])
    write(sink, [{"id": "a", "n": 3}], epoch=1, recovery=recovery)
    stored = [server.client().hgetall(key) for key in ("a", "{a}")]
    assert stored == [{"id": "a", "n": "3"}, {"id": "a", "n": "5"}]


@pytest.mark.parametrize("tasks", [1, 2])
def test_the_greatest_row_of_a_key_wins_in_whatever_task_and_order(server: RedisServer, tasks: int) -> None:
    rows = [{"id": 1, "n": n, "text": text} for n, text in [(2, "c"), (10, "b"), (10, "a"), (None, "d"), (-5, "e")]]
    found = []
    for values in (rows, rows[::-1], rows[2:] + rows[:2]):
        server.client().flushall()
        write(RedisSink(server.url, "r:{id}", order_column="n"), *(values[at::tasks] for at in range(tasks)))
        found.append(rows_of(server.client())["r:1"])
    assert found[0]["n"] == "10"
    assert found[0] == found[1] == found[2]


def test_two_rows_of_a_key_without_an_order_are_refused_or_counted(server: RedisServer) -> None:
    twice = [{"id": 1, "text": "a"}], [{"id": 1, "text": "b"}]
    with pytest.raises(ValueRefusedError, match=r"two different rows of one key.*order_column"):
        write(RedisSink(server.url, "r:{id}"), *twice)
    server.client().flushall()
    counts = write(RedisSink(server.url, "r:{id}", duplicate_keys="count"), *twice)
    assert counts["replaced_rows"] == 1
    first = rows_of(server.client())
    server.client().flushall()
    write(RedisSink(server.url, "r:{id}", duplicate_keys="count"), *twice[::-1])
    assert rows_of(server.client()) == first
    write(RedisSink(server.url, "r:{id}"), [{"id": 2, "text": "a"}], [{"id": 2, "text": "a"}])


def test_a_later_job_outranks_an_earlier_stream_whose_next_epoch_outranks_the_job(server: RedisServer) -> None:
    sink, stream = RedisSink(server.url, "r:{id}"), MemoryRecoveryConfig()
    write(sink, [{"id": 1, "by": "stream"}], recovery=stream)
    write(sink, [{"id": 1, "by": "backfill"}])
    assert rows_of(server.client())["r:1"]["by"] == "backfill"
    write(sink, [{"id": 1, "by": "stream"}], epoch=1, recovery=stream)
    assert rows_of(server.client())["r:1"]["by"] == "stream"


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.__name__)
def test_a_sequence_orders_all_rows_of_a_key(server: RedisServer, trial: Callable[[Any, Any], None]) -> None:
    def read() -> dict[str, Any]:
        return {key.removeprefix("r:"): row for key, row in rows_of(server.client()).items()}

    trial(lambda **options: RedisSink(server.url, "r:{id}", **options), read)


def test_a_task_of_an_older_run_is_stale_even_after_its_row_was_deleted(server: RedisServer) -> None:
    sink = RedisSink(server.url, "r:{id}", delete_marker="gone")
    recovery = MemoryRecoveryConfig()
    driver = LocalDriver(sink, recovery)
    ticket = driver.coordinator().begin(0)
    zombie = driver.task_sink().bind(_context(driver, ticket)).build("sink", 0, 0)
    write(sink, [{"id": 1, "gone": True}], recovery=recovery)
    zombie.write_batch([{"id": 1, "gone": False}])
    with pytest.raises(StaleWriterError, match="newer version"):
        zombie.flush(True)
    assert rows_of(server.client()) == {}


def test_what_a_target_that_lost_its_data_says(server: RedisServer) -> None:
    sink, recovery = RedisSink(server.url, "r:{id}"), MemoryRecoveryConfig()
    write(sink, [{"id": 1}], recovery=recovery)
    server.client().flushall()
    with pytest.raises(TargetLostError, match="does not hold the data written up to epoch 0"):
        write(sink, [{"id": 2}], epoch=1, recovery=recovery)


def test_an_older_copy_of_a_target_is_told_apart(server: RedisServer) -> None:
    sink, recovery, client = RedisSink(server.url, "r:{id}"), MemoryRecoveryConfig(), server.client()
    write(sink, [{"id": 1}], recovery=recovery)
    saved = {key: client.get(key) for key in client.scan_iter("outfall:record:*")}
    write(sink, [{"id": 2}], epoch=1, recovery=recovery)
    client.mset(saved)
    with pytest.raises(TargetLostError, match="is behind the recovery data"):
        write(sink, [{"id": 3}], epoch=2, recovery=recovery)


def test_keys_that_cannot_be_are_dead_letters(server: RedisServer, tmp_path: Path) -> None:
    for row in ({"id": None, "k": "a"}, {"id": "", "k": "a"}, {"id": "}", "k": "a"}):
        with pytest.raises(ValueRefusedError, match="key"):
            write(RedisSink(server.url, "{id}:{k}"), [row])
    sink = RedisSink(server.url, "{id}:{k}", dead_letter=FileSink(tmp_path / "dead"))
    write(sink, [{"id": "a", "k": "b"}, {"id": "", "k": "c"}])
    assert list(rows_of(server.client(), "a:*")) == ["a:b"]
    dead = [json.loads(line) for path in (tmp_path / "dead").glob("*.json*") for line in path.read_text().splitlines()]
    assert [json.loads(letter["row"]) for letter in dead] == [{"id": "", "k": "c"}]


def test_keys_live_as_long_as_said_and_their_versions_longer(server: RedisServer) -> None:
    write(RedisSink(server.url, "r:{id}", ttl="1 hour", tombstone_retention="1 day"), [{"id": 1}])
    client = server.client()
    assert 3590 <= client.ttl("r:1") <= 3600
    assert 25 * 3600 - 10 <= client.ttl(version_key(b"r:1")) <= 25 * 3600


def test_a_script_that_the_server_forgot_is_loaded_again(server: RedisServer) -> None:
    recovery, sink = MemoryRecoveryConfig(), RedisSink(server.url, "r:{id}")
    for epoch in range(2):
        server.client().script_flush()
        write(sink, [{"id": number} for number in range(700)], epoch=epoch, recovery=recovery)
    assert len(rows_of(server.client())) == 700


def test_a_full_server_loses_nothing_and_says_so(server: RedisServer) -> None:
    client = server.client()
    sink = RedisSink(server.url, "r:{id}", **BRIEF)
    driver = LocalDriver(sink, MemoryRecoveryConfig())
    ticket = driver.coordinator().begin(0)
    task = driver.task_sink().bind(_context(driver, ticket)).build("sink", 0, 0)
    client.config_set("maxmemory", "1mb")
    try:
        task.write_batch([{"id": 1}])
        with pytest.raises(TransientError, match="OOM: the server is full"):
            task.flush(True)
    finally:
        client.config_set("maxmemory", "0")
    assert rows_of(client, "*r:1*") == {}


def test_a_replica_is_told_apart_and_a_failover_is_followed(server: RedisServer) -> None:
    client = server.client()
    client.replicaof("127.0.0.1", free_port())
    try:
        with pytest.raises(TransientError, match=r"READONLY|MASTERDOWN"):
            write(RedisSink(server.url, "r:{id}", **BRIEF), [{"id": 1}])
    finally:
        client.replicaof("NO", "ONE")
    write(RedisSink(server.url, "r:{id}", **BRIEF), [{"id": 1}])
    assert "r:1" in rows_of(client)


def test_a_user_without_permission_and_a_wrong_password_fail_before_the_first_row(server: RedisServer) -> None:
    server.client().acl_setuser("reader", enabled=True, passwords=["+secret-word"], keys=["*"], categories=["+@read"])
    with pytest.raises(TargetError, match=r"writing the record .*no permissions"):
        write(RedisSink(server.url, "r:{id}", username="reader", password="secret-word"), [{"id": 1}])
    with pytest.raises(TargetError, match="invalid username-password") as failed:
        write(RedisSink(server.url, "r:{id}", username="reader", password="wrong-word"), [{"id": 1}])
    assert "wrong-word" not in str(failed.value)


def test_a_server_that_forgets_is_named_or_rejected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server("--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory", "100mb",
                      "--maxmemory-policy", "allkeys-lru") as server:  # fmt: skip
        with caplog.at_level(logging.WARNING, "outfall.redis"):
            write(RedisSink(server.url, "r:{id}"), [{"id": 1}])
        assert "appendfsync is everysec" in caplog.text
        assert "maxmemory-policy is allkeys-lru" in caplog.text
        with pytest.raises(TargetError, match=r"appendfsync is everysec.*set appendonly yes"):
            write(RedisSink(server.url, "r:{id}", require_durable=True), [{"id": 1}])


def test_what_the_check_of_a_connection_says(server: RedisServer) -> None:
    sink = RedisSink(server.url, "r:{id}", require_durable=True)
    assert sink.check_connection() == ["the server answers", "the server keeps acknowledged writes"]
    write(sink, [{"id": 1}])
    with pytest.raises(TransientError, match="Connection refused"):
        RedisSink(f"redis://127.0.0.1:{free_port()}", "r:{id}").check_connection()


def test_tls_with_the_right_certificate_only(tmp_path: Path) -> None:
    need_tls()
    with open_folder() as folder:
        (folder / "server.pem").write_bytes(self_signed("127.0.0.1"))
        tls, plain = free_port(), free_port()
        pem = str(folder / "server.pem")
        settings = ("--tls-port", str(tls), "--tls-cert-file", pem, "--tls-key-file", pem, "--tls-ca-cert-file", pem)
        server = RedisServer(folder, tls, *DURABLE, *settings, "--tls-auth-clients", "no", extra_port=plain)
        server.start()
        try:
            write(RedisSink(f"rediss://127.0.0.1:{tls}", "r:{id}", ca_bundle=pem), [{"id": 1}])
            assert "r:1" in rows_of(server.client())
            with pytest.raises(TargetError, match="CERTIFICATE_VERIFY_FAILED"):
                write(RedisSink(f"rediss://127.0.0.1:{tls}", "r:{id}", **BRIEF), [{"id": 1}])
        finally:
            server.kill()


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    """Three nodes with a third of the slots each."""
    with open_folder() as folder:
        nodes, ports = [], free_ports(6)  # at once: each is another one
        for number in range(3):
            (folder / str(number)).mkdir()
            nodes.append(RedisServer(folder / str(number), ports[number], *DURABLE, "--cluster-enabled", "yes",
                                     "--cluster-port", str(ports[3 + number])))  # fmt: skip
        try:
            for node in nodes:
                node.start()
            for number, node in enumerate(nodes):
                first, last = number * 5461, 16383 if number == 2 else number * 5461 + 5460
                node.client().execute_command("CLUSTER ADDSLOTSRANGE", first, last)
                node.client().execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                bus = int(node.client().config_get("cluster-port")["cluster-port"])
                nodes[0].client().execute_command("CLUSTER MEET", "127.0.0.1", node.port, bus)
            _wait_whole(nodes)
            yield nodes
        finally:
            for node in nodes:
                node.kill()


def test_rows_find_their_node_of_a_cluster_with_their_versions(cluster: list[RedisServer]) -> None:
    recovery = MemoryRecoveryConfig()
    sink = RedisSink(cluster[0].url, "r:{{{id}}}:{k}", cluster=True, order_column="n", max_batch_size=50)
    for epoch in range(2):
        rows = [{"id": number, "k": f"k{number % 7}", "n": epoch} for number in range(300)]
        write(sink, rows[::2], rows[1::2], epoch=epoch, recovery=recovery)
    found: dict[str, Any] = {}
    for node in cluster:
        some = rows_of(node.client())
        assert len(some) > 50
        found |= some
    assert len(found) == 300
    assert {row["n"] for row in found.values()} == {"1"}


def test_rows_of_a_slot_that_moves_during_an_epoch_follow_it(cluster: list[RedisServer]) -> None:
    slot = key_slot(b"moving")
    source = next(node for node in cluster if _owns(node, slot))
    target = next(node for node in cluster if node is not source)
    ids = {node.port: str(node.client().execute_command("CLUSTER MYID")) for node in cluster}
    sink = RedisSink(source.url, "r:{{moving}}:{id}", cluster=True, **FAST)
    recovery = MemoryRecoveryConfig()
    write(sink, [{"id": number, "n": 0} for number in range(60)], recovery=recovery)

    target.client().execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source.port])
    source.client().execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target.port])
    with ThreadPoolExecutor() as threads:
        # Rows that exist and rows that do not, in one call of the script.
        rows = [{"id": number, "n": 1} for number in range(30, 90)]
        writing = threads.submit(write, sink, rows, epoch=1, recovery=recovery)
        until(lambda: {"errorstat_ASK", "errorstat_TRYAGAIN"} & source.client().info("errorstats").keys(), "a refusal")
        keys = source.client().execute_command("CLUSTER GETKEYSINSLOT", slot, 1000)
        source.client().execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for node in (target, source, *cluster):
            node.client().execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target.port])
        writing.result(60)
    found = rows_of(target.client(), "r:{moving}:*")
    assert {int(row["id"]): int(row["n"]) for row in found.values()} == {n: int(n >= 30) for n in range(90)}


def _owns(node: RedisServer, slot: int) -> bool:
    shards = node.client().execute_command("CLUSTER NODES").values()
    mine = next(shard for shard in shards if "myself" in shard["flags"])
    return any(int(first) <= slot <= int(last) for first, last in mine["slots"])


def _context(driver: LocalDriver, ticket: Any) -> Any:
    return WriterInitContext(
        "sink", ticket.incarnation, ticket.generation, 0, None, driver.new_attempt(), token=ticket.token
    )


def _wait_whole(nodes: list[RedisServer]) -> None:
    deadline = time.monotonic() + 60
    while any(
        (info["cluster_state"], info["cluster_known_nodes"]) != ("ok", "3")
        for info in (node.client().execute_command("CLUSTER INFO") for node in nodes)
    ):
        assert time.monotonic() < deadline, "the cluster did not form"
        time.sleep(0.05)

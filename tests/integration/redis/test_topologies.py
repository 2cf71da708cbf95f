"""`RedisSink` when another server takes the place of its server: after failovers, restored copies and moved slots."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import TargetError, TargetLostError, TransientError
from outfall.redis import RedisSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from tests.integration.support.keyed_lives import KeyedLives
from tests.integration.support.redis_server import redis_server, rows_of, watched_pair
from tests.integration.support.servers import free_port
from tests.integration.support.waiting import until

FAST: dict[str, Any] = {"retry_backoff": 0.01, "max_retry_backoff": 0.1, "retry_budget": 1.0}


def write(sink: Any, *tasks: list[Any], epoch: int = 0, recovery: Any = None) -> dict[str, int]:
    return LocalDriver(sink, recovery or MemoryRecoveryConfig()).run_epoch(epoch, list(tasks)).counts


@pytest.mark.thorough
def test_a_failover_to_a_replica_that_lags(caplog: pytest.LogCaptureFixture) -> None:
    """Without `wait_replicas` it is named before, and noticed afterwards by the BEGIN that it lacks."""
    with watched_pair() as (master, replica, sentinel):
        sink = RedisSink(sentinel.url, "r:{id}", sentinel="m", **FAST)
        recovery = MemoryRecoveryConfig()
        with caplog.at_level(logging.WARNING, "outfall.redis"):
            write(sink, [{"id": 1}], recovery=recovery)
        assert "a failover may lose some" in caplog.text
        with pytest.raises(TargetError, match="a failover may lose some"):
            write(RedisSink(sentinel.url, "r:{id}", sentinel="m", require_durable=True), [{"id": 1}])
        safe: dict[str, Any] = {"sentinel": "m", "wait_replicas": 1, "read_timeout": 0.4} | FAST
        waiting = RedisSink(sentinel.url, "w:{id}", retry_deadline=1, **safe)
        waited = MemoryRecoveryConfig()
        write(waiting, [{"id": 1}], recovery=waited)

        replica.client().replicaof("127.0.0.1", free_port())
        write(sink, [{"id": 2}], epoch=1, recovery=recovery)
        with pytest.raises(TransientError, match="WAIT: 0 replicas have the writes"):
            write(waiting, [{"id": 2}], epoch=1, recovery=waited)
        master.kill()
        until(lambda: sentinel.follows(replica), "the failover", 60)

        with pytest.raises(TargetLostError, match="is behind the recovery data"):
            write(sink, [{"id": 3}], epoch=2, recovery=recovery)
        assert rows_of(replica.client(), "r:*").keys() == {"r:1"}
        # What was not replicated has failed: a restart writes it again. On a busy machine, the Sentinel may fail back.
        master.start()  # the Sentinel makes it the replica
        write(RedisSink(sentinel.url, "w:{id}", retry_deadline=60, **safe), [{"id": 2}], epoch=1, recovery=waited)
        assert rows_of(replica.client(), "w:*").keys() == {"w:1", "w:2"}


@pytest.mark.long
def test_failovers_during_epochs_lose_nothing_with_wait_replicas(tmp_path: Path) -> None:
    with watched_pair() as (master, replica, sentinel):

        def make_sink() -> RedisSink:
            return RedisSink(
                sentinel.url, "r:{id}", sentinel="m", wait_replicas=1, read_timeout=1, order_column="n",
                delete_marker="gone", max_batch_size=20, retry_deadline=60, **FAST,
            )  # fmt: skip

        with KeyedLives(make_sink, tmp_path, epochs=120) as lives:
            for _ in range(3):
                before = lives.reached
                child = lives.start()
                lives.zombies.append(child)
                lives.wait_reached(before + 5)
                master.kill()
                until(lambda replica=replica: sentinel.follows(replica), "the failover", 60)  # type: ignore[misc]
                master.start()  # the Sentinel makes it the replica
                master, replica = replica, master
                lives.zombies.remove(child)
                lives.resume(child)
            lives.finish()
            assert rows_of(master.client()) == {
                f"r:{key}": {name: str(value) for name, value in row.items()} for key, row in lives.ideal().items()
            }


@pytest.mark.thorough
def test_a_snapshot_that_is_restored_is_told_apart(tmp_path: Path) -> None:
    """One that was taken after the newest BEGIN is not, as the page says."""
    with redis_server("--appendonly", "no") as server:
        sink, recovery = RedisSink(server.url, "r:{id}", **FAST), MemoryRecoveryConfig()
        write(sink, [{"id": 1}], recovery=recovery)
        server.client().save()
        folder = Path(server.client().config_get("dir")["dir"])
        shutil.copy(folder / "dump.rdb", tmp_path)
        write(sink, [{"id": 2}], epoch=1, recovery=recovery)
        server.kill()
        shutil.copy(tmp_path / "dump.rdb", folder)
        server.start()
        assert rows_of(server.client()).keys() == {"r:1"}
        with pytest.raises(TargetLostError, match="is behind the recovery data"):
            write(sink, [{"id": 3}], epoch=2, recovery=recovery)
        write(sink, [{"id": 1}, {"id": 2}, {"id": 3}])  # a new checkpoint, over all its input
        assert rows_of(server.client()).keys() == {"r:1", "r:2", "r:3"}

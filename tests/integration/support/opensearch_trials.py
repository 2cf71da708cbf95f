"""What `OpenSearchSink` must do on a cluster: on the model by default, on a node of OpenSearch among the peers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from outfall.capabilities import WriterInitContext
from outfall.errors import OutfallError, StaleWriterError, TargetError, ValueRefusedError
from outfall.opensearch import OpenSearchSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from tests.integration.support import sequence_trials

FAST: dict[str, Any] = {"retry_backoff": 0.002, "max_retry_backoff": 0.02, "retry_budget": 1.0}


def sink_to(cluster: Any, name: str, **options: Any) -> OpenSearchSink:
    return OpenSearchSink(cluster.url, **({"index": name, "key_columns": "id"} | FAST | options))


def write(sink: Any, *tasks: list[Any], epoch: int = 0, recovery: Any = None) -> dict[str, int]:
    return LocalDriver(sink, recovery or MemoryRecoveryConfig()).run_epoch(epoch, list(tasks)).counts


def attempt(sink: Any, recovery: Any = None) -> Any:
    """A task that has begun, with the version of its BEGIN."""
    driver = LocalDriver(sink, recovery or MemoryRecoveryConfig())
    ticket = driver.coordinator().begin(0)
    context = WriterInitContext("sink", ticket.incarnation, ticket.generation, 0, None, 1, token=ticket.token)
    return driver.task_sink().bind(context).build("sink", 0, 0)


def greatest_row_wins(cluster: Any, name: str) -> None:
    rows = [{"id": 1, "n": n, "text": text} for n, text in [(2, "c"), (10, "b"), (10, "a"), (None, "d"), (-5, "e")]]
    found = []
    for number, values in enumerate((rows, rows[::-1], rows[2:] + rows[:2])):
        sink = sink_to(cluster, f"{name}-{number}", order_column="n")
        for _ in range(2):  # and a replay
            write(sink, values[::2], values[1::2])
        found.append(cluster.rows(f"{name}-{number}")["1"])
    assert found[0]["n"] == 10
    assert found[0] == found[1] == found[2]


def duplicates_are_refused_or_counted(cluster: Any, name: str) -> None:
    twice = [{"id": 1, "text": "a"}], [{"id": 1, "text": "b"}]
    with pytest.raises(ValueRefusedError, match="two different rows of one key"):
        write(sink_to(cluster, name), *twice)
    assert write(sink_to(cluster, name, duplicate_keys="count"), *twice)["replaced_rows"] == 1
    first = cluster.rows(name)
    write(sink_to(cluster, name, duplicate_keys="count"), *twice[::-1])
    assert cluster.rows(name) == first


def late_writes_change_nothing(cluster: Any, name: str) -> None:
    sink, recovery = sink_to(cluster, name, delete_marker="gone"), MemoryRecoveryConfig()
    zombie = attempt(sink, recovery)
    write(sink, [{"id": 1, "gone": True}, {"id": 2, "gone": False}], recovery=recovery)
    for key in (1, 2):
        zombie.write_batch([{"id": key, "gone": False, "text": "late"}])
    with pytest.raises(StaleWriterError, match="newer version"):
        zombie.flush(True)
    assert cluster.rows(name) == {"2": {"id": 2}}
    assert cluster.raw(name)["1"].keys() == {"outfall_version", "outfall_deleted"}


def repeated_writes_change_nothing(cluster: Any, name: str) -> None:
    task = attempt(sink_to(cluster, name))
    for _ in range(2):
        task.write_batch([{"id": number, "text": "ä"} for number in range(50)])
        task.flush(True)
    assert task.metrics.counts["repeated_writes"] == 50
    assert cluster.rows(name) == {str(number): {"id": number, "text": "ä"} for number in range(50)}


def lead(cluster: Any, alias: str, *indices: str) -> None:
    """Let an alias stand for these indices, of which the last takes what is written."""
    added = [{"index": index, "alias": alias, "is_write_index": index == indices[-1]} for index in indices]
    cluster.ask("POST", "/_aliases", {"actions": [{"add": each} for each in added]})


def an_alias_has_one_index(cluster: Any, name: str) -> None:
    first, second = f"{name}-1", f"{name}-2"
    for index in (first, second):
        cluster.ask("PUT", f"/{index}")
    lead(cluster, name, first)
    sink, recovery = sink_to(cluster, name), MemoryRecoveryConfig()
    write(sink, [{"id": 1, "text": "a"}], recovery=recovery)
    early, late = attempt(sink), attempt(sink)
    early.write_batch([{"id": 2}])
    early.flush(True)
    lead(cluster, name, first, second)
    early.write_batch([{"id": 3}])
    with pytest.raises(TargetError, match=f"went to {first} before, and go to {second} now"):
        early.flush(True)
    late.write_batch([{"id": 4}])
    with pytest.raises(TargetError, match="stands for 2 indices"):
        late.flush(True)
    with pytest.raises(TargetError, match="stands for 2 indices"):
        write(sink, [{"id": 1, "text": "b"}], epoch=1, recovery=recovery)
    by_row = sink_to(cluster, name, index=None, index_column="i", retry_deadline=1)
    with pytest.raises(OutfallError, match="stands for 2 indices"):
        write(by_row, [{"id": 5, "i": name}])
    assert (cluster.rows(first).keys(), cluster.rows(second).keys()) == ({"1", "2"}, {"3"})


def no_row_reaches_the_own_records(cluster: Any, name: str) -> None:
    write(sink_to(cluster, name), [{"id": 1}])
    records, alias = cluster.raw("outfall-records"), f"{name}-alias"
    lead(cluster, alias, "outfall-records")
    for index in ("outfall-records", "<outfall-records>", alias):
        by_row = sink_to(cluster, name, index=None, index_column="i", versions=False)
        with pytest.raises(OutfallError, match=r"own records|not the lower-case name"):
            write(by_row, [{"id": "version", "i": index}])
    with pytest.raises(TargetError, match="own records"):
        write(sink_to(cluster, alias, versions=False), [{"id": "version"}])
    assert cluster.raw("outfall-records") == records


def a_sequence_orders_all_rows_of_a_key(cluster: Any, name: str) -> None:
    for trial in sequence_trials.TRIALS:
        index = f"{name}-{trial.__name__[:8]}"
        # As the page says: a cluster maps the first number itself, as a long, in which no such sequence fits.
        cluster.ask("PUT", f"/{index}", {"mappings": {"properties": {"seq": {"type": "keyword"}}}})
        trial(partial(sink_to, cluster, index), partial(cluster.rows, index))


def many_changes_of_a_key_conflict_once(cluster: Any, name: str) -> None:
    sink, recovery = sink_to(cluster, name, sequence_column="n"), MemoryRecoveryConfig()
    for epoch in range(2):
        changes = [{"id": 1, "n": 40 * epoch + number} for number in range(40)]
        counts = write(sink, changes, epoch=epoch, recovery=recovery)
        assert counts["changes_stale"] == 39
        assert "retries" not in counts, "each change waited for the one before it"
    assert cluster.rows(name)["1"]["n"] == 79


TRIALS = [
    a_sequence_orders_all_rows_of_a_key, many_changes_of_a_key_conflict_once, greatest_row_wins,
    duplicates_are_refused_or_counted, late_writes_change_nothing, repeated_writes_change_nothing,
    an_alias_has_one_index, no_row_reaches_the_own_records,
]  # fmt: skip

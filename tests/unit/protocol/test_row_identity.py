"""What identifies a row is recorded at BEGIN, and compared when a query starts again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from outfall.capabilities import BufferedRows, RowIdentity
from outfall.capability_checks import ResolvedSink, resolve
from outfall.delta import DeltaSink
from outfall.dynamodb import DynamoDBSink
from outfall.errors import ForeignRecordsError
from outfall.http import HttpSink
from outfall.iceberg import IcebergSink
from outfall.kafka import KafkaSink
from outfall.kinesis import KinesisSink
from outfall.mysql import MySQLSink
from outfall.opensearch import OpenSearchSink
from outfall.postgres import PostgresSink
from outfall.protocol.journal import JournalView
from outfall.protocol.row_identity import check_row_identity
from outfall.recovery.entries import Begin, ChildRecord, Prepared
from outfall.redis import RedisSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.wrappers import BatchingSink, FanOutSink
from tests.unit.support.journals import entries
from tests.unit.support.warehouse import StagingSink, Warehouse

WAS = RowIdentity("upsert", ("id",), "n", "gone")


@dataclass
class Resolved:
    """What is compared of a sink."""

    row: RowIdentity | None = None
    inner: Mapping[str, Resolved] = field(default_factory=dict)
    late: bool = False
    name: str = "AnySink"

    def row_identity(self) -> RowIdentity | None:
        return self.row

    def applies_key_at_commit(self) -> bool:
        return self.late

    def children(self) -> Mapping[str, Resolved]:
        return self.inner


def begin(was: RowIdentity | None, children: Mapping[str, RowIdentity | None] | None = None) -> Begin:
    inner = {name: ChildRecord(sink="S", target="t", row_identity=row) for name, row in (children or {}).items()}
    return Begin(
        step="sink", incarnation="a" * 16, epoch=0, outfall="1", sink="S", target="t", query_id="q", driver="d",
        row_identity=was, children=inner,
    )  # fmt: skip


def check(now: Resolved, entry: Begin | None, **view: Any) -> None:
    given: dict[str, Any] = {"completed": 3} | view
    check_row_identity("sink", cast(ResolvedSink, now), JournalView(begin=entry, **given))


def test_options_of_an_attempt_that_recorded_nothing_can_be_taken_back() -> None:
    check(Resolved(WAS), begin(RowIdentity("upsert", ("k",), "n", "gone")), recorded_begin=begin(WAS))
    with pytest.raises(ForeignRecordsError, match="the key was id, and is k"):
        check(Resolved(RowIdentity("upsert", ("k",), "n", "gone")), begin(None), recorded_begin=begin(WAS))


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (RowIdentity("upsert", ("id", "region"), "n", "gone"), "the key was id, and is id, region"),
        (RowIdentity("upsert", ("id",), "m", "gone"), "the order was by n, and is by m"),
        (RowIdentity("upsert", ("id",), None, "gone"), "the order was by n, and is by no column"),
        (RowIdentity("upsert", ("id",), "n"), "deletes were marked by gone, and are by no column"),
        (RowIdentity("delete", ("id",), "n", "gone"), "the mode was upsert, and is delete"),
        (None, "the mode was upsert, and is append"),
    ],
)
def test_rows_that_would_not_meet_those_in_the_target_are_refused(now: RowIdentity | None, text: str) -> None:
    with pytest.raises(ForeignRecordsError, match=f"than recorded: {text}.*earlier ones.*another step_id") as caught:
        check(Resolved(now), begin(WAS))
    assert caught.value.step == "sink"
    with pytest.raises(ForeignRecordsError, match=f"recorded: b: {text}"):
        check(Resolved(inner={"a": Resolved(WAS), "b": Resolved(now)}), begin(None, {"a": WAS, "b": WAS}))


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (None, WAS),
        (RowIdentity("upsert", ("id",)), RowIdentity("upsert", ("id",), "n")),
        (RowIdentity("upsert", ("id",)), RowIdentity("upsert", ("id",), None, "gone")),
        (WAS, RowIdentity("upsert", ("id",), "n", "removed")),
        (WAS, WAS),
    ],
)
def test_what_stays_comparable_goes_on_with_a_line(
    was: RowIdentity | None, now: RowIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    check(Resolved(now), begin(was))
    changed = was is not None and was != now
    assert ["have another identity" in text for text in caplog.messages] == [True] * changed


def test_keys_of_more_tables_stay_comparable_and_other_ones_do_not() -> None:
    was = RowIdentity("upsert", tables=("a: id",))
    assert begin(was).model_dump()["row_identity"]["tables"] == ("a: id",)
    assert "tables" not in begin(WAS).model_dump()["row_identity"]
    check(Resolved(RowIdentity("upsert", tables=("a: id", "b: k"))), begin(was))
    with pytest.raises(ForeignRecordsError, match="the keys of tables were a: id, and are other ones"):
        check(Resolved(RowIdentity("upsert", tables=("a: k", "b: k"))), begin(was))


def test_a_first_epoch_that_was_never_recorded_may_have_failed_for_its_options(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check(Resolved(), None)
    check(Resolved(RowIdentity("upsert", ("other",))), begin(WAS), completed=None)
    assert "rows that a failed attempt has published remain" in caplog.text
    prepared = Prepared(step="sink", incarnation="a" * 16, epoch=0, generation=1, query_id=None)
    with pytest.raises(ForeignRecordsError):
        check(Resolved(), begin(WAS), completed=None, unfinished=prepared)
    late = Resolved(late=True)
    check(late, begin(WAS), completed=None, unfinished=prepared)
    with pytest.raises(ForeignRecordsError):
        check(late, begin(WAS), completed=None, unfinished=prepared, committing=True)


def test_the_advice_delivers_buffered_rows_before_their_step_ends() -> None:
    class Buffering(JournalView):
        @property
        def buffered(self) -> BufferedRows:
            return BufferedRows(3)

    with pytest.raises(ForeignRecordsError, match="deliver its buffered rows with outfall drain, and then start"):
        check_row_identity("sink", cast(ResolvedSink, Resolved()), Buffering(begin=begin(WAS), completed=0))


class KeyedSink(StagingSink):
    """A sink in memory with an identity of rows."""

    def __init__(self, warehouse: Warehouse, row: RowIdentity | None) -> None:
        super().__init__(warehouse)
        self.row = row

    def row_identity(self) -> RowIdentity | None:
        return self.row


def test_each_begin_records_the_identity_and_a_log_without_one_gets_it(caplog: pytest.LogCaptureFixture) -> None:
    warehouse, recovery = Warehouse(), MemoryRecoveryConfig()

    def run(epoch: int, row: RowIdentity | None) -> None:
        LocalDriver(KeyedSink(warehouse, row), recovery).run_epoch(epoch, [[epoch]])

    run(0, None)
    assert not [entry for entry in recovery.open("sink").read() if b'"row_identity"' in entry.data], "as first written"
    run(1, RowIdentity("upsert", ("id",)))
    run(2, RowIdentity("upsert", ("id",), "n"))
    before = entries(recovery)
    with pytest.raises(ForeignRecordsError, match="by n, and is by no column"):
        run(3, RowIdentity("upsert", ("id",)))
    assert entries(recovery) == before
    run(3, RowIdentity("upsert", ("id",), "n"))


def test_a_recorded_epoch_is_not_published_under_another_identity() -> None:
    warehouse, recovery = Warehouse(), MemoryRecoveryConfig()
    with crash_at("after PREPARED"):
        LocalDriver(KeyedSink(warehouse, WAS), recovery).run_epoch(0, [[0]])
    with pytest.raises(ForeignRecordsError):
        LocalDriver(KeyedSink(warehouse, None), recovery).run_epoch(0, [[0]])
    assert not warehouse.published
    LocalDriver(KeyedSink(warehouse, WAS), recovery).run_epoch(0, [[0]])


def sinks() -> Iterator[tuple[Any, RowIdentity | None]]:
    keyed: dict[str, Any] = {"write_mode": "upsert", "key_columns": ["b", "a"]}
    upsert = RowIdentity("upsert", ("a", "b"), "n", "gone")
    more: dict[str, Any] = {"order_column": "n", "delete_marker": "gone"}
    changes: dict[str, Any] = {"write_mode": "changes", "key_columns": "a", "operation_column": "o"}
    databases: list[tuple[Any, str]] = [(PostgresSink, "postgresql://u@h/d"), (MySQLSink, "mysql://u@h/d")]
    for make, place in databases:
        yield make(place, "t"), None
        yield make(place, "t", key_columns="a", create_table="if_missing"), None
        yield make(place, "t", **keyed, **more), upsert
        ordered = make(place, "t", **changes, sequence_column="s")
        yield ordered, RowIdentity("changes", ("a",), "s")
    dsn = "postgresql://u@h/d"
    offsets = PostgresSink(dsn, "t", offset_columns=["p", "o"])
    yield offsets, RowIdentity("append by offset_columns", ("o", "p"))
    parts = PostgresSink(dsn, "t", parts=2, part_column="p", part_offset_column="o")
    yield parts, RowIdentity("append by part", ("p", "o"))
    yield DeltaSink("/t"), None
    yield DeltaSink("/t", **keyed, **more), upsert
    yield IcebergSink("a.t", **keyed, **more), upsert
    yield RedisSink("redis://h", "{b}:{a}", **more), RowIdentity("upsert", ("b", "a"), "n", "gone")
    yield DynamoDBSink("rows", **more), RowIdentity("upsert", (), "n", "gone")
    search = OpenSearchSink("http://h", index="i", key_columns=["b", "a"], routing_column="r", order_column="n")
    yield search, RowIdentity("upsert", ("b", "a", "r"), "n")
    yield OpenSearchSink("http://h", index="i", data_stream=True), None
    yield KafkaSink("h:9092", "t", value_format="json"), None
    yield (
        KafkaSink("h:9092", "t", value_format="json", key_column="k"),
        RowIdentity("append by key_column", ("k",)),
    )
    yield KinesisSink("s", partition_key="k"), RowIdentity("append by partition_key", ("k",))
    yield HttpSink("http://h/"), None
    item = HttpSink("http://h/", idempotency="item", key_column="k")
    yield item, RowIdentity("idempotency item", ("k",))
    yield BatchingSink(item), RowIdentity("idempotency item", ("k",))


@pytest.mark.parametrize(("sink", "expected"), [*sinks()])
def test_each_sink_says_what_identifies_its_rows(sink: Any, expected: RowIdentity | None) -> None:
    assert resolve(sink).row_identity() == expected


def test_a_sink_with_children_has_their_identities() -> None:
    table = PostgresSink("postgresql://u@h/d", "t", write_mode="upsert", key_columns="id")
    found = resolve(FanOutSink(a=table, b=DeltaSink("/t")))
    assert found.row_identity() is None
    assert {name: child.row_identity() for name, child in found.children().items()} == {
        "a": RowIdentity("upsert", ("id",)),
        "b": None,
    }

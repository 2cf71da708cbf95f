"""Changes with the sequences of Kafka, whose keys may move between partitions, and updates that keep a value."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outfall.delivery_order import PER_GENERATION, PER_OFFSET
from outfall.errors import CommitRefusedError, ValueRefusedError
from outfall.testing import LocalDriver
from tests.integration.support.changes import CHANGES, TABLE, change
from tests.integration.support.sql import ON_EACH, THOROUGH, Make, Table, run

pytestmark = ON_EACH

HELD = "id, name, lsn"


def kafka(op: str, number: int, name: str | None, offset: int, partition: int, generation: int = 1) -> dict[str, Any]:
    """Return a change with the sequence that `outfall.spark.debezium.changes` gives it."""
    sequence = generation * PER_GENERATION + offset * PER_OFFSET + partition
    return {"op": op, "id": number, "name": name, "lsn": Decimal(sequence)}


OF_KAFKA = "CREATE TABLE t (id bigint PRIMARY KEY, name text, lsn decimal(38,0))"


def test_sequences_of_kafka_are_stored_and_compared_exactly_and_a_later_generation_wins(
    make: Make, recovery: str
) -> None:
    target = make(OF_KAFKA)
    sink = target.sink(**CHANGES, sequence_kind="kafka")
    most, highest = 2**63 - 1, 10**9 - 1
    first = [kafka("c", 1, "a", most - 1, highest), kafka("u", 1, "b", most, highest), kafka("c", 2, "x", most, 3)]
    run(sink, recovery, 0, [*first, kafka("d", 3, None, most, 0)])
    assert target.rows(HELD)[0] == (1, "b", Decimal(PER_GENERATION + most * PER_OFFSET + highest))
    # The offsets of a topic that was created again begin anew.
    run(sink, recovery, 1, [kafka("u", 1, "c", 0, 1, 2), kafka("d", 2, None, 1, 0, 2), kafka("c", 3, "y", 2, 5, 2)])
    assert target.rows("id, name") == [(1, "c"), (3, "y")]
    assert target.tombstones() == [
        (2, 2 * PER_GENERATION + PER_OFFSET), (3, PER_GENERATION + most * PER_OFFSET)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "late",
    [
        [kafka("u", 1, "late", 3, 4)],
        [kafka("u", 2, "late", 3, 4)],
        [kafka("u", 9, "b", 7, 0), kafka("u", 9, "l", 3, 4)],
    ],
    ids=["stored", "deleted", "in one epoch"],
)
def test_a_key_that_moved_to_another_partition_is_rejected_instead_of_dropped(
    make: Make, recovery: str, late: list[dict[str, Any]]
) -> None:
    target = make(OF_KAFKA)
    sink = target.sink(**CHANGES, sequence_kind="kafka")
    run(sink, recovery, 0, [kafka("c", 1, "a", 100, 0), kafka("d", 2, None, 101, 0)])
    # Repeated and late, but of the same partition.
    assert (
        run(sink, recovery, 1, [kafka("c", 1, "old", 50, 0), kafka("d", 2, None, 101, 0)]).counts["changes_stale"] == 2
    )
    with pytest.raises(CommitRefusedError, match=r"from another partition of the topic.* incremental snapshot"):
        run(sink, recovery, 2, [*late, kafka("c", 5, "good", 8, 4)])
    assert target.rows("id, name") == [(1, "a")]
    letters = target.sink(**CHANGES, sequence_kind="kafka", dead_letter_table="dead")
    run(letters, recovery, 2, [])
    ((row, reason),) = target.letters()
    assert "another partition" in reason
    assert row["name"] in ("late", "l")
    assert (5, "good") in target.rows("id, name")


@THOROUGH
def test_no_change_is_dropped_because_one_of_another_partition_seems_newer(make: Make, tmp_path: Path) -> None:
    """Without a newer one of its own partition in its epoch, it is a dead letter; and no other change is one."""
    number = itertools.count()
    made: list[str] = []
    target = make(OF_KAFKA)
    changed = st.tuples(st.integers(0, 1), st.integers(1, 2), st.integers(0, 5), st.integers(0, 1))

    def meant(key: int, generation: int, offset: int, partition: int) -> dict[str, Any]:
        if (key + offset) % 3 == 0:
            return kafka("d", key, None, offset, partition, generation)
        return kafka("u", key, f"{generation}/{offset}/{partition}", offset, partition, generation)

    def seems_newer(mine: int, theirs: int) -> bool:
        same = theirs // PER_GENERATION == mine // PER_GENERATION
        return theirs > mine and same and theirs % PER_OFFSET != mine % PER_OFFSET

    @settings(max_examples=20, suppress_health_check=list(HealthCheck), deadline=None)
    @given(st.lists(st.lists(st.lists(changed, max_size=3), min_size=1, max_size=2), min_size=1, max_size=4))
    def check(epochs: list[list[list[tuple[int, int, int, int]]]]) -> None:
        target.run("DELETE FROM t")
        if made:
            target.run(f"DELETE FROM {target.tombstones_table()}; DELETE FROM dead")
        place = str(tmp_path / str(next(number)))
        driver = LocalDriver(target.sink(dead_letter_table="dead", sequence_kind="kafka", **CHANGES), place)
        made.append(place)
        held: dict[int, dict[bool, int]] = {0: {}, 1: {}}
        must, may = set(), set()
        for epoch, tasks in enumerate(epochs):
            rows = [meant(*each) for task in tasks for each in task]
            driver.run_epoch(epoch, [[meant(*each) for each in task] for task in tasks])
            for key, sequences in held.items():
                good = {int(row["lsn"]): row["op"] == "d" for row in rows if row["id"] == key}
                newest = max(good, default=0)
                if applied := newest > max(sequences.values(), default=0):
                    # A row beside its tombstone, or the tombstone alone.
                    held[key] = sequences = {**({} if good[newest] else sequences), good[newest]: newest}
                for mine in good:
                    if any(map(partial(seems_newer, mine), sequences.values())):
                        may.add((key, mine))
                        if not applied or newest % PER_OFFSET != mine % PER_OFFSET:
                            must.add((key, mine))
        found = {
            (row["id"], int(Decimal(str(row["lsn"])))) for row, reason in target.letters() if "partition" in reason
        }
        assert must <= found <= may

    check()


def test_a_sequence_that_is_not_kafkas_is_rejected(make: Make, recovery: str) -> None:
    sink = make(OF_KAFKA).sink(**CHANGES, sequence_kind="kafka")
    with pytest.raises(ValueRefusedError, match=r"none of outfall.spark.debezium.changes"):
        run(sink, recovery, 0, [change("c", 1, "a", 22195960) | {"lsn": Decimal(22195960)}])


GONE = "__debezium_unavailable_value"
KEEPS = "CREATE TABLE t (id bigint PRIMARY KEY, name text, lsn bigint, doc {json}, raw {blob} NOT NULL)"


def update(number: int, lsn: int, op: str = "u", **values: Any) -> dict[str, Any]:
    """Return an update whose other values did not change."""
    return {"op": op, "id": number, "lsn": lsn, "name": GONE, "doc": GONE, "raw": GONE.encode(), **values}


def kept(target: Table) -> list[tuple[Any, ...]]:
    found = target.rows("id, name, doc, raw, lsn")
    return [
        (number, name, json.loads(doc) if isinstance(doc, str) else doc, raw and bytes(raw), lsn)
        for number, name, doc, raw, lsn in found
    ]


def test_an_update_keeps_a_value_that_its_source_does_not_send(make: Make, recovery: str) -> None:
    json_type = "json" if make(TABLE).connector == "mysql" else "jsonb"
    target = make(KEEPS.format(json=json_type, blob=make(TABLE).blob))
    sink = target.sink(**CHANGES)
    new = {"name": "a", "doc": '{"a": 1}', "raw": b"\x00"}
    run(sink, recovery, 0, [update(1, 1, "c", **new), update(2, 2, "c", **new), update(4, 2, "c", **new)])
    # The stored values; those of an older change in the epoch, which keeps one itself; NULL is a value, too.
    changes = [
        update(1, 10, name="b"),
        update(2, 11, raw=b"\x01"), update(2, 12, doc='{"b": 2}'), update(2, 13, name=None), update(2, 14),
        update(3, 15, "c", **new), update(3, 16),
        # A repeated change that is older than the stored row is not known to be right.
        update(4, 1, "c", name="old", doc="{}", raw=b"x"), update(4, 17),
        # Gone again in this epoch: nothing has to be kept.
        update(9, 18), {**update(9, 19, "d"), "name": None, "doc": None, "raw": None},
    ]  # fmt: skip
    run(sink, recovery, 1, changes[:4], changes[4:])
    assert kept(target) == [
        (1, "b", {"a": 1}, b"\x00", 10), (2, None, {"b": 2}, b"\x01", 14), (3, "a", {"a": 1}, b"\x00", 16),
        (4, "a", {"a": 1}, b"\x00", 17),
    ]  # fmt: skip


def test_a_sequence_of_bytes_orders_the_values_that_an_update_keeps(make: Make, recovery: str) -> None:
    kind = "bytea" if make(TABLE).blob == "bytea" else "varbinary(10)"
    target = make(f"CREATE TABLE t (id bigint PRIMARY KEY, name text, lsn {kind})")
    changes = [("c", "a", b"\x01"), ("u", "b", b"\x02"), ("u", GONE, b"\x03")]
    run(
        target.sink(**CHANGES),
        recovery,
        0,
        [{"op": op, "id": 1, "name": name, "lsn": lsn} for op, name, lsn in changes],
    )
    assert [(name, bytes(lsn)) for name, lsn in target.rows("name, lsn")] == [("b", b"\x03")]


def test_an_update_that_keeps_what_is_nowhere_is_rejected_and_its_dead_letter_can_be_replayed(
    make: Make, recovery: str
) -> None:
    json_type = "json" if make(TABLE).connector == "mysql" else "jsonb"
    target = make(KEEPS.format(json=json_type, blob=make(TABLE).blob))
    sink = target.sink(**CHANGES)
    run(sink, recovery, 0, [{**update(1, 50, "d"), "name": None, "doc": None, "raw": None}])
    # Older than the delete: it changes nothing.
    assert run(sink, recovery, 1, [update(1, 49)]).counts["changes_stale"] == 1
    with pytest.raises(CommitRefusedError, match="neither in the table nor in an older change"):
        run(sink, recovery, 2, [update(1, 60, name="b"), update(2, 61, "c", name="x", doc="{}", raw=b"")])
    letters = target.sink(**CHANGES, dead_letter_table="dead")
    run(letters, recovery, 2, [])
    assert [row[0] for row in kept(target)] == [2]
    ((row, reason),) = target.letters()
    assert "neither in the table" in reason
    # Once its row is there, the dead letter keeps the same values.
    run(letters, recovery, 3, [update(1, 55, "c", name="a", doc="{}", raw=b"r")])
    again = {name: row[name] for name in ("op", "id", "name", "lsn")} | {"doc": row["doc"], "raw": None}
    run(letters, recovery, 4, [again])
    assert kept(target)[0] == (1, "b", {}, b"r", 60)


@pytest.mark.thorough
def test_a_changed_key_whose_value_is_not_sent_is_rejected_until_its_row_comes_once_more(
    make: Make, recovery: str
) -> None:
    target = make(OF_KAFKA)
    sink = target.sink(**CHANGES, sequence_kind="kafka")
    run(sink, recovery, 0, [kafka("c", 1, "long", 1, 0)])
    changed = [kafka("d", 1, None, 2, 0), kafka("c", 2, GONE, 7, 1)]
    with pytest.raises(CommitRefusedError, match=r"key of its row was changed.*set dead_letter_table.* snapshot"):
        run(sink, recovery, 1, changed)
    letters = target.sink(**CHANGES, sequence_kind="kafka", dead_letter_table="dead")
    run(letters, recovery, 1, [])
    run(letters, recovery, 2, [kafka("u", 2, GONE, 8, 1)])
    assert target.rows("id, name") == []
    assert [reason.partition(" of its row")[0].partition(" that")[0] for _, reason in target.letters()] == [
        "the key", "a value"
    ]  # fmt: skip
    assert all("incremental snapshot of this key" in reason for _, reason in target.letters())
    run(letters, recovery, 3, [kafka("r", 2, "long", 9, 1), kafka("u", 2, GONE, 10, 1)])
    assert target.rows("id, name") == [(2, "long")]


def test_an_update_keeps_no_value_that_an_older_one_of_its_epoch_may_have_replaced(make: Make, recovery: str) -> None:
    """The keys moved to partition 4, where both updates came, of which the first only seems older than what is there.

    After a delete, nothing else than its value can be meant.
    """
    target = make(OF_KAFKA)
    sink = target.sink(**CHANGES, sequence_kind="kafka")
    run(sink, recovery, 0, [kafka("c", 1, "old", 100, 0), kafka("d", 2, None, 101, 0), kafka("c", 3, "old", 102, 0)])
    late = [
        kafka(op, number, name, offset, 4)
        for number in (1, 2)
        for op, name, offset in (("c", "new", 50), ("u", GONE, 150))
    ]
    with pytest.raises(CommitRefusedError, match="from another partition of the topic"):
        run(sink, recovery, 1, [*late, kafka("u", 3, GONE, 150, 0)])
    run(target.sink(**CHANGES, sequence_kind="kafka", dead_letter_table="dead"), recovery, 1, [])
    assert [(row["id"], row["name"], "another partition" in reason) for row, reason in target.letters()] == [
        (1, "new", True)
    ]
    assert target.rows("id, name") == [(1, "old"), (2, "new"), (3, "old")]


@pytest.mark.parametrize("before", [False, True], ids=["in the table", "in the epoch"])
def test_an_update_keeps_no_value_from_before_a_delete(make: Make, recovery: str, before: bool) -> None:
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, name text, lsn bigint, short varchar(3))")
    sink = target.sink(**CHANGES, dead_letter_table="dead")
    old = [{"op": "c", "id": number, "name": "old", "lsn": 1, "short": "a"} for number in (1, 2)]
    gone = [{"op": "d", "id": number, "name": None, "lsn": 2, "short": None} for number in (1, 2)]
    # The row that replaces the deleted one is refused for another value.
    new = [{"op": "c", "id": number, "name": "new", "lsn": 3, "short": "long" * (2 - number)} for number in (1, 2)]
    last = [{"op": "u", "id": number, "name": GONE, "lsn": 4, "short": "z"} for number in (1, 2)]
    changes: list[dict[str, Any]] = [*old, *gone, *new, *last]
    for epoch, rows in enumerate([changes] if before else [changes[:2], changes[2:]]):
        run(sink, recovery, epoch, rows)
    assert target.rows("id, name, lsn") == [(2, "new", 4)]
    assert sorted((row["lsn"], "neither in the table" in reason) for row, reason in target.letters()) == [
        (3, False), (4, True)
    ]  # fmt: skip

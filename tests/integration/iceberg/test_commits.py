"""T2 and the commit's own promises: one snapshot with its record, on exactly the head that was read."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType

from outfall.errors import ConfigurationError, FencedError, TargetError, TargetLostError
from outfall.iceberg import IcebergSink, catalog
from tests.integration.support.batch_driver import BatchDriver, batch
from tests.integration.support.iceberg_epochs import NAME, Lake

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})


def rows(*ids: int) -> pa.RecordBatch:
    return batch(id=pa.array(ids), name=pa.array([f"n{each}" for each in ids]))


@contextmanager
def answering(sink: IcebergSink, answer: Callable[..., Any]) -> Iterator[list[int]]:
    """Have the catalogue answer the next commits otherwise: `answer` is given what commits, and the arguments."""
    opened = sink.catalogue.opened
    real, calls = opened.commit_table, [0]

    def commit_table(*arguments: Any) -> Any:
        calls[0] += 1
        return answer(lambda: real(*arguments), calls[0])

    setattr(opened, "commit_table", commit_table)  # noqa: B010 - a method
    try:
        yield calls
    finally:
        setattr(opened, "commit_table", real)  # noqa: B010 - a method


@pytest.mark.parametrize("codec", ["zstd", "gzip", "brotli"])
def test_files_have_the_compression_and_the_level_of_the_tables_properties(lake: Lake, codec: str) -> None:
    name = "write.parquet.compression-"
    lake.create(SCHEMA, **{f"{name}codec": codec, f"{name}level": "1"})
    driver, sizes = lake.driver(), []
    for epoch, level in enumerate(["1", "9"]):
        with lake.table.transaction() as transaction:
            transaction.set_properties({f"{name}level": level})
        before = lake.data_files()
        driver.write(epoch, rows(*range(20_000)))
        (path,) = lake.data_files() - before
        sizes.append(path.stat().st_size)
        assert pq.read_metadata(path).row_group(0).column(0).compression == codec.upper()
    # Not smaller: a higher level of gzip makes some data larger.
    assert sizes[1] != sizes[0]
    with lake.table.transaction() as transaction:
        transaction.set_properties({f"{name}level": "99"})
    with pytest.raises(ConfigurationError, match=f"compression-level=99: {codec} has . to"):
        driver.write(2, rows(1))


def test_an_epoch_is_one_snapshot_that_says_so_in_summary_and_property(lake: Lake) -> None:
    lake.create(SCHEMA)
    driver = lake.driver(snapshot_properties={"team": "air"})
    driver.write(0, rows(1, 2), rows(3))
    driver.write(1, rows(4))
    first, second = lake.files.history()
    assert [len(each.files) for each in (first, second)] == [2, 3]
    assert lake.rows("id") == [1, 2, 3, 4]
    (name,) = (name for name in lake.files.properties if name.startswith("outfall.step."))
    record = json.loads(lake.files.properties[name])
    assert json.loads(second.summary[name]) == record
    assert (record["step"], record["epoch"], record["head"], record["order"]) == ("sink", 1, second.id, second.sequence)
    assert second.summary["team"] == "air"
    assert (second.summary["operation"], second.summary["added-records"]) == ("append", "1")
    assert (second.summary["total-records"], second.summary["total-data-files"]) == ("4", "3")
    assert "commit.retry.num-retries" not in lake.files.properties


def evolve(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("name", "title")
        update.add_column("extra", StringType())
        update.make_column_optional("id")


def rewrite(table: Table) -> None:
    """What compaction does: all rows in new files, in one snapshot."""
    table.overwrite(table.scan().to_arrow())


def expire(table: Table) -> None:
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()


def tag(table: Table) -> None:
    head = table.current_snapshot()
    if head is not None:
        table.manage_snapshots().create_tag(head.snapshot_id, f"t{time.monotonic_ns()}").commit()


OTHERS: dict[str, Callable[[Table], object]] = {
    "append": lambda table: table.append(pa.table({"id": [100], "name": ["other"]}, SCHEMA)),
    "rewrite": rewrite,
    "expire": expire,
    "tag": tag,
    "properties": lambda table: table.transaction().set_properties(owner="me").commit_transaction(),
    "delete": lambda table: table.delete("id = -1"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("when", ["between_tasks_and_commit", "between_epochs", "within_the_commit"])
def test_what_others_commit_stays_and_our_epochs_are_there_once(lake: Lake, when: str) -> None:
    lake.create(SCHEMA).append(pa.table({"id": [-1], "name": ["older"]}, SCHEMA))
    driver = lake.driver()
    for epoch, (doing, others) in enumerate(OTHERS.items()):
        act = partial(others, lake.table)
        if when == "between_epochs":
            act()
            driver.write(epoch, rows(epoch))
        elif when == "between_tasks_and_commit":
            driver.write(epoch, rows(epoch), between=act)
        else:

            def first_the_others(commit: Callable[[], Any], call: int, act: Callable[[], object] = act) -> Any:
                if call == 1:
                    act()
                return commit()

            with answering(driver.sink, first_the_others) as calls:
                driver.write(epoch, rows(epoch))
            assert calls[0] == (2 if doing in ("append", "rewrite", "delete") else 1)
    assert sorted(lake.rows("id")) == [*range(len(OTHERS)), 100]


@pytest.mark.thorough
def test_a_commit_to_another_branch_takes_the_sequence_number_and_the_epoch_is_committed_on_the_next(
    lake: Lake,
) -> None:
    table = lake.create(SCHEMA)
    lake.append(rows(0))
    head = lake.head().id
    table.refresh().manage_snapshots().create_branch(head, "audit").commit()
    driver = lake.driver()

    def first_the_other(commit: Callable[[], Any], call: int) -> Any:
        if call == 1:
            lake.table.append(pa.table({"id": [9], "name": ["audit"]}, SCHEMA), branch="audit")
        return commit()

    with answering(driver.sink, first_the_other) as calls:
        driver.write(0, rows(1))
    assert calls[0] == 2
    assert lake.rows("id") == [0, 1]
    assert [row["id"] for row in lake.files.rows(lake.head("audit"))] == [9, 0]


def lost_answer(commit: Callable[[], Any], call: int) -> Any:
    answer = commit()
    if call == 1:
        raise CommitStateUnknownException("the proxy gave up")
    return answer


def lost_request(commit: Callable[[], Any], call: int) -> Any:
    if call == 1:
        raise ConnectionResetError("the request was lost")
    return commit()


def sent_twice_by_a_proxy(commit: Callable[[], Any], call: int) -> Any:
    answer = commit()
    if call == 1:
        raise CommitFailedException("branch main has changed")
    return answer


def called_wrong_though_done(commit: Callable[[], Any], call: int) -> Any:
    answer = commit()
    if call == 1:
        raise ValueError("the answer is no JSON")
    return answer


@pytest.mark.parametrize("answer", [lost_answer, lost_request, sent_twice_by_a_proxy, called_wrong_though_done])
def test_whatever_answer_is_lost_the_epoch_is_there_once_and_its_files_are_whole(
    lake: Lake, answer: Callable[..., Any]
) -> None:
    lake.create(SCHEMA)
    driver = lake.driver()
    driver.write(0, rows(1))
    with answering(driver.sink, answer) as calls:
        driver.write(1, rows(2))
    assert calls[0] == 1
    driver.write(2, rows(3))
    # Read by hand: every manifest of every snapshot is there.
    assert [len(snapshot.files) for snapshot in lake.files.history()] == [1, 2, 3]
    assert lake.rows("id") == [1, 2, 3]


def test_a_commit_that_others_came_before_leaves_no_manifest(lake: Lake) -> None:
    lake.create(SCHEMA)
    driver = lake.driver()
    driver.write(0, rows(1))

    def first_another(commit: Callable[[], Any], call: int) -> Any:
        if call == 1:
            lake.append(rows(7))
        return commit()

    with answering(driver.sink, first_another):
        driver.write(1, rows(2))
    named = {Path(snapshot["manifest-list"].removeprefix("file://")) for snapshot in lake.files.metadata["snapshots"]}
    assert {path for path in lake.metadata_files if path.name.startswith("snap-")} == named
    assert len([path for path in lake.metadata_files if path.name.endswith("-m0.avro")]) == 3


@pytest.mark.thorough
def test_where_the_marker_is_gone_the_table_is_refused(lake: Lake) -> None:
    lake.create(SCHEMA)
    driver = lake.driver("log")
    driver.write(0, rows(1))
    (name,) = (name for name in lake.files.properties if name.startswith("outfall.step."))
    with lake.table.transaction() as transaction:
        transaction.remove_properties(name)
    for each in (driver, lake.driver("log")):
        with pytest.raises(TargetLostError, match=r"has no record of this step .*epoch 0"):
            each.write(1, rows(2))
    with lake.table.transaction() as transaction:
        transaction.set_properties({name: "{}"})
    with pytest.raises(TargetLostError, match=f"record in the property {name}.* cannot be read"):
        lake.driver("log").write(1, rows(2))
    assert lake.rows("id") == [1]


def test_a_stale_driver_is_fenced_whatever_it_has_loaded_before(lake: Lake) -> None:
    lake.create(SCHEMA)
    stale = lake.driver("log")
    stale.write(0, rows(1))
    newer: list[BatchDriver] = []

    def take_over(commit: Callable[[], Any], call: int) -> Any:
        if call == 1:
            newer.append(lake.driver("log"))
            newer[0].write(1, rows(2))
        return commit()

    with answering(stale.sink, take_over), pytest.raises(FencedError):
        stale.write(1, rows(2))
    newer[0].write(2, rows(3))
    assert lake.rows("id") == [1, 2, 3]


@pytest.mark.thorough
def test_columns_are_evolved_by_others_between_epochs(lake: Lake) -> None:
    lake.create(SCHEMA)
    driver = lake.driver()
    driver.write(0, rows(1))
    evolve(lake.table)
    with pytest.raises(Exception, match="name is not in the table"):
        driver.write(1, rows(2))
    driver.write(1, batch(id=pa.array([2]), title=pa.array(["b"])))
    assert lake.rows() == [
        {"id": 1, "title": "n1", "extra": None},
        {"id": 2, "title": "b", "extra": None},
    ]


@pytest.mark.thorough
def test_a_promotion_between_tasks_and_commit_fits(lake: Lake) -> None:
    lake.create(pa.schema({"id": pa.int32()}))

    def promote() -> None:
        with lake.table.update_schema() as update:
            update.update_column("id", LongType())

    lake.driver().write(0, batch(id=pa.array([1], pa.int32())), between=promote)
    assert lake.rows("id") == [1]
    assert lake.table.scan("id = 1").to_arrow().to_pylist() == [{"id": 1}]


@pytest.mark.thorough
def test_a_commit_whose_journal_cannot_be_synced_stops_the_query_and_the_next_run_settles_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite has committed; nobody knows whether a loss of power would undo it."""
    lake.create(SCHEMA)
    driver = lake.driver("log")
    driver.write(0, rows(1))
    broken = OSError(errno.EIO, "Input/output error")

    def fail_after(commit: Callable[[], Any], call: int) -> Any:
        answer = commit()
        monkeypatch.setattr(catalog, "sync_directory", Mock(side_effect=broken))
        return answer

    with answering(driver.sink, fail_after), pytest.raises(TargetError, match="could not be made durable"):
        driver.write(1, rows(2))
    # Nor is what was read taken for durable.
    with pytest.raises(TargetError, match="Input/output error"):
        lake.driver("log").write(1, rows(2))
    synced = Mock()
    monkeypatch.setattr(catalog, "sync_directory", synced)
    lake.driver("log").write(1, rows(2))
    assert synced.call_args_list[0].args == (str(lake.directory),)
    assert lake.rows("id") == [1, 2]


@pytest.mark.thorough
def test_manifests_are_merged_once_there_are_many_unless_they_would_be_written_wrongly(lake: Lake) -> None:
    lake.create(SCHEMA, "name", **{"commit.manifest.min-count-to-merge": "3"})
    driver = lake.driver("log")
    for epoch in range(8):
        driver.write(epoch, rows(epoch))
    assert lake.rows("id") == list(range(8))
    assert len(lake.table.current_snapshot().manifests(lake.table.io)) <= 3  # type: ignore[union-attr]
    assert [len(snapshot.files) for snapshot in lake.files.history()] == list(range(1, 9))
    lake.driver("log", write_mode="overwrite_partitions").write(8, batch(id=pa.array([70, 30]), name=["n7", "n3"]))
    assert sorted(lake.rows("id")) == [0, 1, 2, 4, 5, 6, 30, 70]
    lake.catalog.drop_table(NAME)
    lake.create(pa.schema({"f": pa.float64()}), "f", **{"commit.manifest.min-count-to-merge": "3"})
    driver = lake.driver()
    for epoch in range(5):
        driver.write(epoch, batch(f=[epoch / 10]))
    assert sorted(file["partition"]["f"] for file in lake.head().files) == [0.0, 0.1, 0.2, 0.3, 0.4]

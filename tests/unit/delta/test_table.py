"""One version of a Delta table: its record, and a commit that makes exactly the next version or nothing."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from outfall.delta import DeltaSink, files
from outfall.delta.files import TableLocation
from outfall.delta.layout import STATISTICS
from outfall.delta.table import LoadedDelta
from outfall.errors import ConfigurationError, TargetError
from outfall.tables.data_file import DataFile, EpochFiles
from outfall.tables.record import TableRecord
from outfall.tables.table import HeadMovedError, UnclearCommitError
from tests.unit.support.delta_reader import newest, versions, write_table

OURS = TableRecord(incarnation="ffeeddccbbaa9988", step="flights", generation=3, token="0123456789abcdef", epoch=7)
COLUMNS = {"id": "long", "day": "string"}


def load(path: Path) -> LoadedDelta:
    table = DeltaSink(path).load()
    assert table is not None
    return table


def epoch_files(table: LoadedDelta, *names: str, partition: str | None = None) -> EpochFiles:
    found = tuple(
        DataFile(name=name, size=9, rows=1, partition=(partition,), statistics={STATISTICS: '{"numRecords":1}'})
        for name in names
    )
    return EpochFiles.model_construct(
        directory="outfall/x/g3-y", root=table.files.area.root, layout=table.files.layout, files=found, published=None
    )


def commit(table: LoadedDelta, *names: str, record: TableRecord = OURS, **more: Any) -> LoadedDelta:
    return table.commit(epoch_files(table, *names, partition=more.pop("partition", None)), record, **more)


def by_others(path: Path, *paths: str) -> None:
    table = DeltaTable(path)
    added = [AddAction(each, 1, {"day": "others"}, 1, True, '{"numRecords":1}') for each in paths]
    table.create_write_transaction(added, "append", table.schema(), ["day"])  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_table(tmp_path / "t", COLUMNS, ["day"], {"delta.checkpointInterval": "4"})
    return tmp_path / "t"


def test_a_commit_adds_its_files_and_writes_the_record(path: Path) -> None:
    left = commit(load(path), "a.parquet", "b.parquet", partition="a b/ü")
    now = newest(path)
    assert now.number == 1
    assert [(name, file["partitionValues"]) for name, file in now.files.items()] == [
        ("outfall/x/g3-y/a.parquet", {"day": "a b/ü"}),
        ("outfall/x/g3-y/b.parquet", {"day": "a b/ü"}),
    ]
    expected = OURS.model_copy(update={"step": "", "head": 1, "order": 1})
    assert left.record(OURS.incarnation) == load(path).record(OURS.incarnation) == expected
    assert list(left.records("flights")) == [expected.model_copy(update={"step": "flights"})]
    assert list(left.records("other")) == []
    assert left.record("0000000000000000") is None
    assert left.has_rows()


def test_the_marker_of_the_newest_version_is_read_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """deltalake scans the log for each transaction: five times for a record."""
    commit(load(path), "a.parquet")
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "transaction_version", None)
        found = load(path).record(OURS.incarnation)
    assert found is not None
    by_others(path, "theirs.parquet")
    assert load(path).record(OURS.incarnation) == found


def test_a_commit_without_files_moves_the_head(path: Path) -> None:
    commit(load(path), record=TableRecord(incarnation=OURS.incarnation, step="flights"))
    found = load(path).record(OURS.incarnation)
    assert found is not None
    assert (found.generation, found.token) == (0, None)
    commit(load(path), record=found.without(4))
    found = load(path).record(OURS.incarnation)
    assert found is not None
    assert (found.epoch, found.revoked, found.head) == (-1, 4, 2)
    assert len(newest(path).transactions) == 6
    assert not load(path).has_rows()


def test_of_two_commits_on_one_version_the_second_changes_nothing(path: Path) -> None:
    one, other = load(path), load(path)
    commit(one, "a.parquet")
    with pytest.raises(HeadMovedError):
        commit(other, "b.parquet")
    assert list(newest(path).files) == ["outfall/x/g3-y/a.parquet"]


def test_no_commit_is_made_on_a_version_that_was_not_read(path: Path) -> None:
    """deltalake would append behind another writer's version, and the record would name the wrong one."""
    table = load(path)
    by_others(path, "theirs.parquet")
    with pytest.raises(HeadMovedError):
        commit(table, "a.parquet")
    assert list(newest(path).files) == ["theirs.parquet"]


def load_at(path: Path, version: int) -> LoadedDelta:
    place = DeltaSink(path).options.place
    table = place.load(version)
    assert table is not None
    return LoadedDelta(place, table)


def test_an_error_that_tells_nothing_is_unclear(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("Generic S3 error\n   0: <unknown>")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fail)
    with pytest.raises(UnclearCommitError, match=r"^OSError: Generic S3 error$"):
        commit(load(path), "a.parquet")


@pytest.mark.parametrize("landed", [False, True], ids=["refused", "after an attempt that succeeded"])
def test_a_commit_that_the_store_denies_is_final_unless_the_table_has_moved(
    path: Path, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    def deny(*given: Any, **more: Any) -> None:
        if landed:
            commit_it(*given, **more)
        raise OSError("Error performing PUT http://s/lake/t/_delta_log/2.json in 1ms - 403 Forbidden")

    commit_it = DeltaTable.create_write_transaction
    monkeypatch.setattr(DeltaTable, "create_write_transaction", deny)
    with pytest.raises(UnclearCommitError if landed else TargetError, match="403 Forbidden"):
        commit(load(path), "a.parquet")


def test_what_deltalake_refuses_to_commit_is_no_other_writer(path: Path) -> None:
    table = load(path)
    write_table(path.with_name("u"), COLUMNS, ["day"], protocol={"minReaderVersion": 1, "minWriterVersion": 6})
    place = DeltaSink(path.with_name("u")).options.place
    unsupported = place.load()
    assert unsupported is not None
    with pytest.raises(UnclearCommitError, match="Unsupported table features"):
        commit(LoadedDelta(place, unsupported), "a.parquet")
    assert table.record(OURS.incarnation) is None


def test_the_marker_survives_checkpoints_and_log_clean_up(tmp_path: Path) -> None:
    properties = {"delta.checkpointInterval": "2", "delta.logRetentionDuration": "interval 0 seconds"}
    write_table(tmp_path, COLUMNS, ["day"], properties)
    commit(load(tmp_path), "a.parquet")
    for number in range(5):
        by_others(tmp_path, f"{number}.parquet")
    DeltaTable(tmp_path).cleanup_metadata()
    assert not (tmp_path / "_delta_log" / f"{1:020}.json").exists()
    found = load(tmp_path).record(OURS.incarnation)
    assert found is not None
    assert (found.epoch, found.head) == (7, 1)
    reason = load(tmp_path).left_out(found)
    assert reason is not None
    assert "is unknown: the log has no operation for version 4" in reason


def test_a_marker_that_was_forgotten_is_none(path: Path) -> None:
    commit(load(path), "a.parquet")
    stale = load(path)
    by_others(path, "theirs.parquet")
    stale.forget(OURS.incarnation)
    assert load(path).record(OURS.incarnation) is None
    assert list(load(path).records("flights")) == []
    before = newest(path).number
    load(path).forget(OURS.incarnation)
    assert newest(path).number == before


def test_a_marker_of_which_a_part_is_missing_is_no_record(path: Path) -> None:
    commit(load(path), "a.parquet")
    entry = path / "_delta_log" / f"{1:020}.json"
    lines = [line for line in entry.read_text().splitlines() if "-token" not in line]
    entry.write_text("\n".join(lines))
    with pytest.raises(TargetError, match="not all identifiers of its record"):
        load(path).record(OURS.incarnation)


def written(path: Path) -> None:
    by_others(path, "theirs.parquet")


def written_and_rolled_back(path: Path) -> None:
    written(path)
    DeltaTable(path).restore(1)


def logged(**info: Any) -> Callable[[Path], None]:
    def append(path: Path) -> None:
        log = path / "_delta_log"
        number = len(list(log.glob("*.json")))
        (log / f"{number:020}.json").write_text(json.dumps({"commitInfo": {"timestamp": 1, **info}}))

    return append


def restored_by_time(version: int) -> Callable[[Path], None]:
    """Another writer appends and restores a version by its time, as the JVM writes it: the version is null."""

    def restore(path: Path) -> None:
        written(path)
        DeltaTable(path).restore(version)
        entry = max((path / "_delta_log").glob("*.json"))
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["operationParameters"] = {"version": None, "timestamp": "2026-11-24 02:09:02.175"}
        entry.write_text("\n".join(map(json.dumps, actions)))

    return restore


def undone(*, by_time: bool) -> Callable[[Path], None]:
    """The table is restored to before ours, and then as the error says, to what it was."""

    def restore(path: Path) -> None:
        file = path / "outfall/x/g3-y/a.parquet"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"deltalake only restores what is there")
        for number, entry in enumerate(sorted((path / "_delta_log").glob("*.json"))):
            os.utime(entry, (1000 + number, 1000 + number))
        DeltaTable(path).restore(0)
        DeltaTable(path).restore(datetime.fromtimestamp(1001.5, UTC) if by_time else 1)

    return restore


def undone_and_again(path: Path) -> None:
    undone(by_time=False)(path)
    DeltaTable(path).restore(0)


@pytest.mark.parametrize(
    ("happened", "reason"),
    [
        (lambda path: DeltaTable(path).delete(), None),
        (written, None),
        (written_and_rolled_back, None),
        (lambda path: DeltaTable(path).restore(0), "rolled it back to before version 1, which"),
        (logged(operation="RESTORE", operationParameters={"version": "1"}), None),
        (logged(operation="RESTORE", operationParameters={"version": None, "timestamp": "2024"}), None),
        (restored_by_time(0), "rolled it back to before"),
        (restored_by_time(1), None),
        (undone(by_time=False), None),
        (undone(by_time=True), None),
        (undone_and_again, "version 4 rolled it back to before version 1"),
        (logged(operation="CREATE OR REPLACE TABLE AS SELECT", operationParameters={}), "rolled it back to before"),
        (logged(), "is unknown"),
    ],
    ids=[
        "delete",
        "append",
        "restore after ours",
        "restore",
        "restore to ours",
        "restore to a time that changed nothing",
        "restore to a time before ours",
        "restore to a time after ours",
        "restore that was undone",
        "restore that was undone by a time",
        "restore that was undone, and again",
        "replace",
        "mute",
    ],
)
def test_what_was_taken_back_since_is_seen(path: Path, happened: Callable[[Path], Any], reason: str | None) -> None:
    left = commit(load(path), "a.parquet", partition="x")
    record = left.record(OURS.incarnation)
    assert record is not None
    assert left.left_out(record) is None
    happened(path)
    found = load(path).left_out(record)
    assert (reason is None) == (found is None)
    assert reason is None or (found is not None and reason in found)


RECORDED = Path(__file__).parent / "restored"
"""A log by Delta 4.2.0 on Spark 4.1.1: 3 appends, RESTORE to version 1, then to the time of version 3, an append."""


@pytest.mark.parametrize(
    ("head", "version", "reason"),
    [
        (1, 4, None),
        (1, 6, None),
        (2, 4, "version 4 rolled it back to before version 2"),
        (3, 4, "version 4 rolled it back to before version 3"),
        (2, 6, None),
        (3, 6, None),
        (4, 6, "version 5 rolled it back to before version 4"),
    ],
)
def test_a_restore_by_the_jvm_counts_as_what_the_table_has_now(
    tmp_path: Path, head: int, version: int, reason: str | None
) -> None:
    shutil.copytree(RECORDED, tmp_path / "_delta_log")
    found = load_at(tmp_path, version).left_out(OURS.model_copy(update={"head": head}))
    assert (found is None) == (reason is None)
    assert reason is None or (found is not None and reason in found and "undoes that" in found)


def test_a_table_at_a_lower_version_than_ours_is_seen(path: Path) -> None:
    left = commit(load(path), "a.parquet")
    record = left.record(OURS.incarnation)
    assert record is not None
    assert load_at(path, 0).left_out(record) == "this query committed version 1, and the table is at 0"


ODD = "".join(chr(code) for code in range(32, 127) if chr(code) not in "/")


def test_partitions_of_other_writers_are_replaced_whatever_their_paths_hold(tmp_path: Path) -> None:
    """deltalake encodes paths: what the sink removes must be written exactly as what was added."""
    days = ["a b", "2024-01-01 00:00:00", "50%", "é", ODD, "x/y=z", None]
    write_deltalake(tmp_path, pa.table({"id": range(len(days)), "day": days}), partition_by=["day"])
    kept = [row["day"] for row in newest(tmp_path).rows()]
    assert sorted(map(str, kept)) == sorted(map(str, days))
    for number, day in enumerate(days):
        table = load(tmp_path)
        commit(table, f"{number}.parquet", partition=day, replace={(day,)})
        theirs = [name for name in newest(tmp_path).files if not name.startswith("outfall/")]
        assert len(theirs) == len(days) - number - 1
    entries = [json.loads(line) for line in (tmp_path / "_delta_log" / f"{1:020}.json").read_text().splitlines()]
    (removed,) = [entry["remove"] for entry in entries if "remove" in entry]
    assert removed["partitionValues"] == {"day": "a b"}
    assert removed["dataChange"]
    assert removed["size"] > 0
    assert abs(removed["deletionTimestamp"] / 1000 - time.time()) < 60


def test_a_path_that_deltalake_would_write_otherwise_is_refused(path: Path) -> None:
    """Spark leaves letters that are not ASCII as they are, and others encode in small letters."""
    for odd in ("é.parquet", "a%2fb.parquet"):
        entries = path / "_delta_log"
        number = len(list(entries.glob("*.json")))
        added = {"path": odd, "partitionValues": {"day": "x"}, "size": 1, "modificationTime": 1, "dataChange": True}
        (entries / f"{number:020}.json").write_text(
            json.dumps({"commitInfo": {"timestamp": 1, "operation": "WRITE"}}) + "\n" + json.dumps({"add": added})
        )
    with pytest.raises(ConfigurationError, match=r"cannot replace the file"):
        commit(load(path), "a.parquet", partition="x", replace={("x",)})
    commit(load(path), "a.parquet", partition="y", replace={("y",)})


def test_all_rows_are_replaced_in_one_commit(path: Path) -> None:
    by_others(path, "one.parquet", "two.parquet")
    commit(load(path), "a.parquet", replace=None)
    assert list(newest(path).files) == ["outfall/x/g3-y/a.parquet"]
    assert [len(version.files) for version in versions(path)] == [0, 2, 1]


def test_files_that_a_readable_version_names_are_named(path: Path) -> None:
    commit(load(path), "a.parquet")
    commit(load(path), "b.parquet", replace=None)
    by_others(path, "theirs.parquet")
    root = f"{path}/outfall/x/g3-y"
    asked = {f"{root}/{name}.parquet" for name in "abc"}
    assert load(path).named(asked) == {f"{root}/a.parquet", f"{root}/b.parquet"}


def test_no_entry_is_read_that_is_older_than_the_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(load(path), "a.parquet")
    by_others(path, "theirs.parquet")
    lost = path / "outfall/x/g3-y/lost.parquet"
    lost.parent.mkdir(parents=True)
    lost.touch()
    table = load(path)
    read: list[int] = []
    entry_of = TableLocation.entry

    def entry(self: TableLocation, version: int) -> bytes | None:
        read.append(version)
        return entry_of(self, version)

    monkeypatch.setattr(TableLocation, "entry", entry)
    assert table.named({str(lost)}) == set()
    assert read == [2, 1, 0]  # all of today
    tomorrow = time.time() + 48 * 3600
    os.utime(lost, (tomorrow, tomorrow))
    read.clear()
    assert table.named({str(lost)}) == set()
    assert read == [2]


def test_columns_are_added_once_whoever_does(path: Path) -> None:
    rows = pa.schema([("id", pa.int64()), ("day", pa.string()), ("new", pa.int32())])
    one, other = load(path), load(path)
    assert one.with_columns(rows).layout == other.with_columns(rows).layout != one.files.layout
    one.add_columns(rows)
    other.add_columns(rows)
    assert load(path).files.layout == one.with_columns(rows).layout
    assert newest(path).columns == {**COLUMNS, "new": "integer"}
    assert newest(path).number == 1


def test_timestamps_without_zone_do_not_raise_a_tables_protocol(path: Path) -> None:
    rows = pa.schema([("id", pa.int64()), ("new", pa.struct([("t", pa.timestamp("us"))]))])
    with pytest.raises(ConfigurationError, match=r"'new' cannot be added .* timestampNtz"):
        load(path).with_columns(rows)
    assert newest(path).protocol == {"minReaderVersion": 1, "minWriterVersion": 2}


def test_the_connection_is_tried_and_nothing_stays(path: Path) -> None:
    before = set(path.rglob("*"))
    assert "is a table with supported features" in DeltaSink(path).check_connection()[0]
    assert set(path.rglob("*")) == before
    with pytest.raises(ConfigurationError, match="does not exist"):
        DeltaSink(path.with_name("none")).check_connection()
    assert "will be created" in DeltaSink(path.with_name("none"), create_table="if_missing").check_connection()[0]
    assert not path.with_name("none").exists()


def test_a_version_is_synced_before_anything_stands_on_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(files, "_sync", lambda path: synced.append(path.name))
    monkeypatch.setattr(files, "sync_directory", lambda path: synced.append(Path(path).name))
    table = load(path)
    assert synced == [f"{0:020}.json", "_last_checkpoint", "_delta_log"]
    synced.clear()
    commit(table, "a.parquet")
    assert synced[0] == f"{1:020}.json"


def test_a_disk_that_fails_after_the_commit_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = load(path)

    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "_sync", fail)
    with pytest.raises(TargetError, match=r"version 1 of .* may not be durable"):
        commit(table, "a.parquet")

"""T6 and T4: what changes about the table or its files, between tasks and commit and between two epochs."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from outfall.errors import EpochAbandonedError, TargetError, TargetLostError
from outfall.tables import data_file
from outfall.testing import crash_at
from tests.integration.support.batch_driver import batch
from tests.integration.support.iceberg_epochs import Lake

pytestmark = pytest.mark.thorough

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})


def rows(*ids: int) -> pa.RecordBatch:
    return batch(id=pa.array(ids), name=pa.array([f"n{each}" for each in ids]))


def dies() -> None:
    raise RuntimeError("the driver dies after its tasks")


def spec_evolves(lake: Lake) -> None:
    lake.partition("name")


def column_is_dropped_and_added_again(lake: Lake) -> None:
    with lake.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("id")
    with lake.table.update_schema() as update:
        update.add_column("id", LongType())


def column_becomes_required(lake: Lake) -> None:
    with lake.table.update_schema(allow_incompatible_changes=True) as update:
        update.make_column_optional("name")
        update._set_column_requirement("name", True)


def files_move(lake: Lake) -> None:
    with lake.table.transaction() as transaction:
        transaction.set_properties({"write.data.path": f"file://{lake.directory}/warehouse/elsewhere"})


MISFITS = [spec_evolves, column_is_dropped_and_added_again, column_becomes_required, files_move]


@pytest.mark.parametrize("change", MISFITS, ids=lambda change: change.__name__)
def test_files_that_no_longer_fit_are_given_up_and_the_epoch_is_written_anew(
    lake: Lake, change: Callable[[Lake], None]
) -> None:
    lake.create(SCHEMA)
    driver = lake.driver()
    driver.write(0, rows(1))
    with pytest.raises(EpochAbandonedError):
        driver.write(1, rows(2), between=lambda: change(lake))
    # The commit that revokes has no rows, so that no late driver can commit the files.
    assert [len(snapshot.files) for snapshot in lake.files.history()] == [1, 1]
    driver.write(1, rows(2))
    driver.write(2, rows(3))
    found = [row["name"] for row in lake.files.rows()]
    assert sorted(found) == ["n1", "n2", "n3"]
    # What lies where the table's data once was is found by nobody but orphan removal.
    assert len(lake.data_files() - lake.head().paths) == (1 if change is files_move else 0)


@pytest.mark.parametrize("change", MISFITS, ids=lambda change: change.__name__)
def test_between_epochs_the_next_epoch_is_written_as_the_table_is_then(
    lake: Lake, change: Callable[[Lake], None]
) -> None:
    lake.create(SCHEMA)
    driver = lake.driver()
    driver.write(0, rows(1))
    change(lake)
    driver.write(1, rows(2, 3))
    assert sorted(row["name"] for row in lake.files.rows()) == ["n1", "n2", "n3"]
    assert len(lake.head().files) == (3 if change is spec_evolves else 2)


def test_files_that_orphan_removal_took_have_the_epoch_written_anew(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file, "_FRESH", -1.0)  # an hour later
    lake.create(SCHEMA)
    with crash_at("table: committing"):
        lake.driver("log").write(0, rows(1), rows(2))
    for path in lake.data_files():
        path.unlink()
    lake.driver("log").write(0, rows(1), rows(2))
    assert lake.rows("id") == [1, 2]
    assert [len(snapshot.files) for snapshot in lake.files.history()] == [0, 2]


def roll_back(lake: Lake) -> None:
    snapshots = lake.files.history()
    lake.table.manage_snapshots().rollback_to_snapshot(snapshots[0].id).commit()


def roll_back_and_go_on(lake: Lake) -> None:
    roll_back(lake)
    lake.append(rows(70))
    lake.append(rows(71))


def roll_back_and_expire(lake: Lake) -> None:
    gone = lake.files.history()[-1].id
    roll_back(lake)
    lake.table.maintenance.expire_snapshots().by_id(gone).commit()


def roll_back_go_on_and_expire(lake: Lake) -> None:
    gone = lake.files.history()[-1].id
    roll_back_and_go_on(lake)
    lake.table.maintenance.expire_snapshots().by_id(gone).commit()


ROLLBACKS = [roll_back, roll_back_and_go_on, roll_back_and_expire, roll_back_go_on_and_expire]


@pytest.mark.parametrize("change", ROLLBACKS, ids=lambda change: change.__name__)
@pytest.mark.parametrize("when", ["between_epochs", "between_tasks_and_commit", "after_a_restart"])
def test_a_table_that_was_rolled_back_behind_our_epoch_is_refused(
    lake: Lake, change: Callable[[Lake], None], when: str
) -> None:
    lake.create(SCHEMA)
    driver = lake.driver("log")
    driver.write(0, rows(1))
    driver.write(1, rows(2))
    if when == "after_a_restart":
        driver = lake.driver("log")
    between: Callable[[], object] = lambda: change(lake)  # noqa: E731
    if when != "between_tasks_and_commit":
        between, _ = lambda: None, between()
    with pytest.raises(TargetLostError, match="rolled back"):
        driver.write(2, rows(3), between=between)
    assert 3 not in lake.rows("id")


def test_a_rollback_that_is_undone_ends_with_a_running_query(lake: Lake) -> None:
    lake.create(SCHEMA)
    driver = lake.driver("log")
    driver.write(0, rows(1))
    driver.write(1, rows(2))
    ours = lake.head().id
    roll_back(lake)
    with pytest.raises(TargetLostError, match="rolled back"):
        lake.driver("log").write(2, rows(3))
    lake.table.manage_snapshots().set_current_snapshot(ours).commit()
    driver = lake.driver("log")
    driver.write(2, rows(3))
    driver.write(3, rows(4))
    assert lake.rows("id") == [1, 2, 3, 4]


def test_a_rollback_of_what_others_committed_after_our_epoch_is_theirs_to_make(lake: Lake) -> None:
    lake.create(SCHEMA)
    driver = lake.driver()
    driver.write(0, rows(1))
    ours = lake.head().id
    lake.append(rows(50))
    lake.table.manage_snapshots().rollback_to_snapshot(ours).commit()
    driver.write(1, rows(2))
    assert lake.rows("id") == [1, 2]


def test_a_table_that_was_dropped_or_made_anew_is_refused(lake: Lake) -> None:
    lake.create(SCHEMA)
    driver = lake.driver("log")
    driver.write(0, rows(1))
    lake.catalog.drop_table("db.flights")
    with pytest.raises(TargetLostError, match="does not exist, and epoch 0 was committed"):
        driver.write(1, rows(2))
    lake.create(SCHEMA)
    for each in (driver, lake.driver("log")):
        with pytest.raises(TargetLostError, match="has no record of this step"):
            each.write(1, rows(2))
    assert lake.files.history() == []


def test_a_table_that_is_made_anew_within_the_first_epoch_has_it_written_anew(lake: Lake) -> None:
    lake.create(SCHEMA)
    driver = lake.driver()

    def make_anew() -> None:
        lake.catalog.drop_table("db.flights")
        lake.create(SCHEMA)

    with pytest.raises(EpochAbandonedError):
        driver.write(0, rows(1), between=make_anew)
    driver.write(0, rows(1))
    assert lake.rows("id") == [1]


def test_files_of_lost_attempts_are_removed_and_nobody_elses(lake: Lake) -> None:
    lake.create(SCHEMA)
    lake.append(rows(90))
    theirs = lake.data_files()
    first = lake.driver("log")
    first.write(0, rows(1))
    with pytest.raises(RuntimeError, match="dies"):
        first.write(1, rows(2), rows(3), between=dies)
    lost, _ = lake.data_files() - lake.head().paths - theirs
    beside = lost.with_name("notes.parquet")
    shutil.copy(lost, beside)
    again = lake.driver("log")
    again.write(1, rows(2), rows(3))
    assert lake.data_files() == lake.head().paths | theirs | {beside}
    assert lake.rows("id") == [1, 2, 3, 90]


def test_what_an_attempt_left_beside_the_winner_is_removed_after_the_commit(lake: Lake) -> None:
    lake.create(SCHEMA)
    driver = lake.driver()
    with pytest.raises(RuntimeError, match="dies"):
        driver.write(0, rows(1), rows(2), between=dies)
    left = lake.data_files()
    assert len(left) == 2
    driver.write(0, rows(1), rows(2))
    assert lake.data_files() == lake.head().paths
    assert not left & lake.data_files()


def test_what_a_snapshot_names_is_spared_by_gc_and_what_none_names_is_listed(lake: Lake) -> None:
    lake.create(SCHEMA)
    driver = lake.driver()
    driver.write(0, rows(1))
    driver.write(1, rows(2))
    table = lake.sink().load()
    assert table is not None
    named = {f"file://{path}" for path in lake.head().paths}
    assert table.named({*named, "file:///not/there.parquet"}) == named
    lake.table.delete("id = 1")
    # The head has lost a file that an older snapshot still names.
    table = lake.sink().load()
    assert table is not None
    assert table.named(named) == named
    lake.table.maintenance.expire_snapshots().by_ids([each.id for each in lake.files.history()[:-1]]).commit()
    table = lake.sink().load()
    assert table is not None
    assert table.named(named) == named & {file["file_path"] for file in lake.head().files}


DAY = 86_400_000_000


def test_partitions_that_an_epoch_has_rows_of_are_replaced_in_one_snapshot(lake: Lake) -> None:
    lake.create(SCHEMA, "name")
    lake.append(batch(id=pa.array([1, 2, 3]), name=pa.array(["a/b", None, "c"])))
    driver = lake.driver(write_mode="overwrite_partitions")
    driver.write(0, batch(id=pa.array([10, 11]), name=pa.array(["a/b", None])), batch(id=[12], name=["a/b"]))
    assert lake.rows("id") == [10, 11, 12, 3]
    assert len(lake.files.history()) == 2
    assert lake.head().summary["operation"] == "overwrite"
    driver.write(1, batch(id=[13], name=["new"]))
    assert lake.rows("id") == [10, 11, 12, 13, 3]


def test_without_partitions_all_rows_are_replaced(lake: Lake) -> None:
    lake.create(SCHEMA)
    lake.append(rows(1, 2))
    lake.driver(write_mode="overwrite_partitions").write(0, rows(3))
    assert lake.rows("id") == [3]
    lake.driver(on_existing="overwrite").write(0, rows(4))
    assert lake.rows("id") == [4]


def test_files_of_an_older_partitioning_are_replaced_where_it_tells_the_new_one_and_else_refused(lake: Lake) -> None:
    lake.create(SCHEMA.append(pa.field("at", pa.timestamp("us"))), "name", "day: at")
    at = pa.array([0, DAY], pa.timestamp("us"))
    lake.append(batch(id=pa.array([1, 2]), name=pa.array(["a", "b"]), at=at))
    with lake.table.update_spec() as update:
        update.remove_field("day_at")
    driver = lake.driver("log", write_mode="overwrite_partitions")
    driver.write(0, batch(id=[3], name=["a"], at=at[:1]))
    assert lake.rows("id") == [2, 3]
    lake.partition("id")
    with pytest.raises(TargetError, match=r"older partitioning \(spec \d\), which does not determine id"):
        driver.write(1, batch(id=[3], name=["a"], at=at[:1]))
    assert lake.rows("id") == [2, 3]


def test_a_commit_that_replaces_nothing_reads_no_manifest(lake: Lake) -> None:
    lake.create(SCHEMA)
    driver = lake.driver()
    driver.write(0, rows(1))
    manifest = next(path for path in lake.metadata_files if path.name.endswith("-m0.avro"))
    hidden = manifest.rename(manifest.with_name("hidden"))
    driver.write(1, rows(2))
    hidden.rename(manifest)
    assert lake.rows("id") == [1, 2]

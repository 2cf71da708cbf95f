"""T6 and T4: what changes about the table or its files, between tasks and commit and between two epochs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from outfall.errors import EpochAbandonedError, TargetLostError
from outfall.tables import data_file
from outfall.testing import crash_at
from tests.integration.support.batch_driver import batch
from tests.integration.support.delta_epochs import Shore

pytestmark = pytest.mark.thorough

COLUMNS = {"id": "long", "name": "string"}


def rows(*ids: int) -> pa.RecordBatch:
    return batch(id=pa.array(ids), name=pa.array([f"n{each}" for each in ids]))


def overwrite(shore: Shore, **columns: pa.Array) -> None:
    """Write the table's rows again, with other columns: the only way to retype or to drop one."""
    kept = {"id": pa.array([1]), "name": pa.array(["n1"])} | columns
    table = pa.table({name: column for name, column in kept.items() if column is not None})
    write_deltalake(shore.path, table, mode="overwrite", schema_mode="overwrite")


def column_is_retyped(shore: Shore) -> None:
    overwrite(shore, id=pa.array([1], pa.int32()))


def column_is_dropped(shore: Shore) -> None:
    overwrite(shore, id=None)


def another_is_partitioned(shore: Shore) -> None:
    table = pa.table({"id": [1], "name": ["n1"]})
    write_deltalake(shore.path, table, mode="overwrite", schema_mode="overwrite", partition_by=["name"])


def column_is_required(shore: Shore) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    table = pa.table({"id": [1], "name": ["n1"]}, schema=schema)
    write_deltalake(shore.path, table, mode="overwrite", schema_mode="overwrite")


MISFITS = [column_is_retyped, column_is_dropped, another_is_partitioned, column_is_required]


@pytest.mark.parametrize("change", MISFITS, ids=lambda change: change.__name__)
def test_files_that_no_longer_fit_are_given_up_and_the_epoch_is_written_anew(
    shore: Shore, change: Callable[[Shore], None]
) -> None:
    shore.create(COLUMNS)
    driver = shore.driver()
    driver.write(0, rows(1))
    with pytest.raises(EpochAbandonedError):
        driver.write(1, rows(2), between=lambda: change(shore))
    # The commit that revokes has no rows, so that no late driver can commit the files.
    assert shore.versions[-1].files == shore.versions[-2].files
    again = batch(name=["n2"]) if change is column_is_dropped else rows(2)
    if change is column_is_retyped:
        again = batch(id=pa.array([2], pa.int32()), name=["n2"])
    driver.write(1, again)
    assert shore.rows("name") == ["n1", "n2"]
    assert shore.left_over() == set()


def test_a_column_that_is_dropped_and_added_again_takes_what_was_written_before(shore: Shore) -> None:
    """Delta finds columns by name: the files say what the table asks for."""
    shore.create(COLUMNS)
    driver = shore.driver()
    driver.write(0, rows(1))

    def drop_and_add() -> None:
        column_is_dropped(shore)
        overwrite(shore)

    driver.write(1, rows(2), between=drop_and_add)
    assert shore.rows("id") == [1, 2]


def test_files_that_vacuum_took_have_the_epoch_written_anew(shore: Shore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "_FRESH", -1.0)  # an hour later
    shore.create(COLUMNS)
    with crash_at("table: committing"):
        shore.driver("log").write(0, rows(1), rows(2))
    assert len(shore.left_over()) == 2
    shore.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert shore.left_over() == set()
    shore.driver("log").write(0, rows(1), rows(2))
    assert shore.rows("id") == [1, 2]
    assert {len(version.files) for version in shore.versions} == {0, 2}


def restore(shore: Shore) -> None:
    shore.table.restore(1)


def restore_and_go_on(shore: Shore) -> None:
    restore(shore)
    shore.append(rows(70))


def replace(shore: Shore) -> None:
    shore.table.create(shore.path, shore.table.schema(), mode="overwrite")


@pytest.mark.parametrize("change", [restore, restore_and_go_on, replace], ids=lambda change: change.__name__)
@pytest.mark.parametrize("when", ["between_epochs", "between_tasks_and_commit", "after_a_restart"])
def test_a_table_that_went_back_behind_our_epoch_is_refused(
    shore: Shore, change: Callable[[Shore], None], when: str
) -> None:
    shore.create(COLUMNS)
    driver = shore.driver("log")
    driver.write(0, rows(1))
    driver.write(1, rows(2))
    if when == "after_a_restart":
        driver = shore.driver("log")
    between: Callable[[], object] = lambda: change(shore)  # noqa: E731
    if when != "between_tasks_and_commit":
        between, _ = lambda: None, between()
    with pytest.raises((TargetLostError, EpochAbandonedError)):
        driver.write(2, rows(3), between=between)
    assert 3 not in shore.rows("id")


def test_a_restore_that_is_undone_as_its_error_says_ends_with_a_running_query(shore: Shore) -> None:
    shore.create(COLUMNS)
    driver = shore.driver("log")
    driver.write(0, rows(1))
    driver.write(1, rows(2))
    for _ in range(2):
        shore.table.restore(1)
        with pytest.raises(TargetLostError) as caught:
            shore.driver("log").write(2, rows(3))
        advice = re.search(r"TO VERSION AS OF (\d+) undoes that", str(caught.value))
        assert advice is not None
        shore.table.restore(int(advice[1]))
    driver = shore.driver("log")
    driver.write(2, rows(3))
    driver.write(3, rows(4))
    assert shore.rows("id") == [1, 2, 3, 4]


def test_going_back_behind_what_others_committed_is_theirs_to_do(shore: Shore) -> None:
    shore.create(COLUMNS)
    driver = shore.driver()
    driver.write(0, rows(1))
    shore.append(rows(70))
    shore.table.restore(1)
    driver.write(1, rows(2))
    assert shore.rows("id") == [1, 2]


@pytest.mark.parametrize("when", ["between_epochs", "between_tasks_and_commit"])
def test_a_table_that_is_made_anew_takes_nothing_of_the_old_one(shore: Shore, when: str) -> None:
    shore.create(COLUMNS)
    driver = shore.driver()
    driver.write(0, rows(1))

    def make_anew() -> None:
        shutil.rmtree(shore.path)
        shore.create(COLUMNS)

    if when == "between_epochs":
        make_anew()
        with pytest.raises(TargetLostError):
            driver.write(1, rows(2))
    else:
        with pytest.raises((TargetLostError, EpochAbandonedError)):
            driver.write(1, rows(2), between=make_anew)
        with pytest.raises(TargetLostError):
            driver.write(1, rows(2))
    assert shore.rows() == []
    assert len(shore.versions) == 1


def test_files_of_lost_attempts_are_removed_and_those_of_others_never(shore: Shore) -> None:
    shore.create(COLUMNS)
    shore.append(rows(70))
    driver = shore.driver("log")
    with pytest.raises(ZeroDivisionError):
        driver.write(0, rows(1), between=lambda: 1 // 0)
    (lost,) = shore.left_over()
    beside = (shore.path / lost).with_name("somebody-elses.parquet")
    beside.write_bytes(b"x")
    shore.driver("log").write(0, rows(2))
    assert shore.left_over() == {str(beside.relative_to(shore.path))}
    assert shore.rows("id") == [2, 70]

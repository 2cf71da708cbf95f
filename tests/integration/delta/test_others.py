"""T2: other writers append, compact, delete, evolve, check-point and clean up between our epochs and within them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Field

from outfall.delta.table import LoadedDelta
from outfall.errors import ConfigurationError, TargetAheadError, TargetLostError, TargetNotEmptyError
from outfall.tables.table import UnclearCommitError
from tests.integration.support.batch_driver import batch
from tests.integration.support.delta_epochs import Shore

pytestmark = pytest.mark.thorough

COLUMNS = {"id": "long", "name": "string"}


def rows(*ids: int) -> pa.RecordBatch:
    return batch(id=pa.array(ids), name=pa.array([f"n{each}" for each in ids]))


def append(shore: Shore) -> None:
    shore.append(rows(70))


def compact(shore: Shore) -> None:
    shore.append(rows(70))
    shore.table.optimize.compact()


def delete(shore: Shore) -> None:
    shore.table.delete("id = 1")
    shore.append(rows(1, 70))


def add_a_column(shore: Shore) -> None:
    shore.table.alter.add_columns([Field.from_arrow(pa.field("more", pa.string()))])
    shore.append(rows(70), schema_mode="merge")


def check_point_and_clean_up(shore: Shore) -> None:
    shore.append(rows(70))
    shore.table.create_checkpoint()
    shore.table.cleanup_metadata()


def set_properties(shore: Shore) -> None:
    shore.table.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 day"})
    shore.append(rows(70))


@pytest.mark.parametrize(
    "happens", [append, compact, delete, add_a_column, check_point_and_clean_up, set_properties],
    ids=lambda happens: happens.__name__,
)  # fmt: skip
@pytest.mark.parametrize("when", ["between_epochs", "between_tasks_and_commit"])
def test_ours_goes_on_from_what_others_committed(shore: Shore, happens: Callable[[Shore], None], when: str) -> None:
    shore.create(COLUMNS)
    driver = shore.driver()
    driver.write(0, rows(1), rows(2))
    if when == "between_epochs":
        happens(shore)
        driver.write(1, rows(3))
    else:
        driver.write(1, rows(3), between=lambda: happens(shore))
    driver.write(2, rows(4))
    assert shore.rows("id") == [1, 2, 3, 4, 70]
    # Whole epochs only, in each version that can be read.
    for version in shore.versions:
        seen = {row["id"] for row in version.rows()}
        assert len(seen & {1, 2}) in (0, 1, 2) if happens is delete else len(seen & {1, 2}) in (0, 2)


def test_a_commit_that_loses_the_race_is_made_on_the_new_version(shore: Shore, monkeypatch: pytest.MonkeyPatch) -> None:
    shore.create(COLUMNS)
    driver = shore.driver()
    committing = LoadedDelta.commit
    raced: list[int] = []

    def lose_twice(self: LoadedDelta, *args: Any, **more: Any) -> LoadedDelta:
        if len(raced) < 2:
            raced.append(1)
            shore.append(rows(70 + len(raced)))
        return committing(self, *args, **more)

    monkeypatch.setattr(LoadedDelta, "commit", lose_twice)
    driver.write(0, rows(1))
    assert shore.rows("id") == [1, 71, 72]


@pytest.mark.parametrize("took_place", [True, False])
def test_a_commit_whose_answer_is_lost_is_settled_by_the_table(
    shore: Shore, monkeypatch: pytest.MonkeyPatch, took_place: bool
) -> None:
    shore.create(COLUMNS)
    driver = shore.driver()
    committing = LoadedDelta.commit
    calls: list[int] = []

    def lose_the_answer(self: LoadedDelta, *args: Any, **more: Any) -> LoadedDelta:
        calls.append(1)
        if len(calls) > 1:
            return committing(self, *args, **more)
        if took_place:
            committing(self, *args, **more)
        raise UnclearCommitError("timed out")

    monkeypatch.setattr(LoadedDelta, "commit", lose_the_answer)
    driver.write(0, rows(1))
    assert shore.rows("id") == [1]
    assert len(calls) == (1 if took_place else 2)


def test_a_marker_that_retention_forgot_is_refused(shore: Shore) -> None:
    shore.create(COLUMNS)
    driver = shore.driver()
    driver.write(0, rows(1))
    retention = {"delta.setTransactionRetentionDuration": "interval 1 millisecond"}
    shore.table.alter.set_table_properties(retention)
    with pytest.raises(ConfigurationError, match="removes transaction identifiers"):
        driver.write(1, rows(2))
    shore.append(rows(70))
    shore.table.create_checkpoint()  # which leaves them out
    shore.table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 30 days"})
    with pytest.raises(TargetLostError, match="has no record of this step"):
        driver.write(1, rows(2))
    assert shore.rows("id") == [1, 70]


def test_a_feature_that_bare_files_bypass_stops_the_query_before_its_commit(shore: Shore) -> None:
    shore.create(COLUMNS)
    driver = shore.driver("log")

    def constrain() -> None:
        shore.table.alter.add_constraint({"small": "id < 100"})

    with pytest.raises(ConfigurationError, match="has a CHECK constraint"):
        driver.write(0, rows(1000), between=constrain)
    assert shore.rows() == []
    shore.table.alter.drop_constraint("small")
    shore.driver("log").write(0, rows(1000))
    assert shore.rows("id") == [1000]


def test_a_lost_checkpoint_is_found_on_first_contact(shore: Shore) -> None:
    shore.create(COLUMNS)
    shore.driver().write(0, rows(1))
    for _ in range(2):
        with pytest.raises(TargetNotEmptyError, match="has rows that this step wrote"):
            shore.driver().write(0, rows(1))
    shore.driver(on_existing="resume").write(0, rows(2))
    shore.driver(on_existing="overwrite").write(0, rows(3))
    assert shore.rows("id") == [3]
    other = shore.driver(on_existing="error")
    other.step_id = "other"
    with pytest.raises(TargetNotEmptyError, match="is not empty"):
        other.write(0, rows(4))


def test_two_drivers_on_copies_of_one_checkpoint_do_not_both_write(shore: Shore) -> None:
    shore.create(COLUMNS)
    shore.driver("log").write(0, rows(1))
    shutil.copytree(shore.directory / "log", shore.directory / "copy")
    shore.driver("log").write(1, rows(2))
    with pytest.raises(TargetAheadError):
        shore.driver("copy").write(1, rows(2))
    assert shore.rows("id") == [1, 2]

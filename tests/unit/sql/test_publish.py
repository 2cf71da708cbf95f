"""How an epoch is published, by the SQL of the base on SQLite."""

from __future__ import annotations

import sqlite3

import pytest

from outfall.errors import (
    CommitRefusedError,
    FencedError,
    LostCommittableError,
    TargetError,
    TargetLostError,
    ValueRefusedError,
)  # fmt: skip
from outfall.sql.options import STAGE
from outfall.sql.table_move import staged_row_name
from outfall.sql.tables import EpochTable
from tests.unit.support.sqlite_tables import EPOCH, GENERATION, SqliteStep

LETTERS = {"dead_letter_table": "d"}
CHANGES = {"write_mode": "changes", "key_columns": ["id"], "operation_column": "op", "sequence_column": "text"}


def dead_letters_of(step: SqliteStep) -> list[str]:
    return [row for (row,) in step.execute('SELECT "row" FROM d ORDER BY 1')]


def wait_as_letter(step: SqliteStep, stage: int, row: str) -> None:
    """Write a dead letter as a task does."""
    assert step.tables.dead_letters is not None
    for statement in step.tables.dead_letters.missing_ddl(step.session):
        step.execute(statement)
    names = f'"{STAGE}", "row", reason, step, epoch, part, "time"'
    step.execute(f"INSERT INTO outfall.refused ({names}) VALUES ({stage}, '{row}', 'wrong', 'sink', {EPOCH}, '0', 0)")


def test_all_rows_are_moved_and_recorded_once() -> None:
    step = SqliteStep()
    requests = [step.stage(1, 2), step.stage(3, stage=2)]
    step.stage(9, stage=3)  # of an attempt that has lost
    step.committer().commit(requests)
    assert step.ids == [1, 2, 3]
    assert step.ledger("epoch", "begun", "generation", "rows", "published_token") == (
        EPOCH,
        EPOCH,
        GENERATION,
        3,
        "nine",
    )
    assert step.waiting == [3]
    assert [request.outcome.kind for request in requests] == ["committed"] * 2
    assert step.counts == {"rows_changed": 3}

    again = [step.stage(1, 2), step.stage(3, stage=2)]
    step.committer().commit(again)
    assert step.ids == [1, 2, 3]
    assert [request.outcome.kind for request in again] == ["already committed"] * 2
    assert step.counts == {"rows_changed": 3}


def test_an_epoch_whose_commit_has_lost_its_answer_is_found_and_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.sql.database._FIRST_PAUSE", 0)
    step = SqliteStep()

    def lost() -> None:
        raise sqlite3.OperationalError("the connection is lost")

    step.dialect.database.commits.append(lost)
    request = step.stage(1, 2)
    step.committer().commit([request])
    assert step.ids == [1, 2]
    assert request.outcome.kind == "already committed"
    assert step.counts == {"rows_changed": 2, "retries": 1}


@pytest.mark.parametrize(
    ("given", "epoch", "left"),
    [({"on_existing": "overwrite"}, None, [1]), ({"on_existing": "overwrite"}, 3, [1, 8]), ({}, None, [1, 8])],
)
def test_only_the_first_epoch_replaces_existing_rows_and_only_if_told(
    given: dict[str, str], epoch: int | None, left: list[int]
) -> None:
    step = SqliteStep(**given)
    step.set(epoch=epoch)
    step.execute("INSERT INTO t (id) VALUES (8)")
    step.committer().commit([step.stage(1)])
    assert step.ids == left


def test_deletes_are_remembered_until_their_retention_or_all_rows_are_replaced() -> None:
    for given, left in (({"on_existing": "overwrite"}, []), ({}, [2])):
        step = SqliteStep(**CHANGES, **given)
        assert step.tables.tombstones is not None
        for statement in step.tables.tombstones.missing_ddl(step.session):
            step.execute(statement)
        table = step.tables.tombstones.table.sql
        old = -(7 * 86_400) - 1
        step.execute(f"INSERT INTO {table} VALUES (1, 1, {old}), (2, 2, {old + 2})")
        step.committer().commit([step.stage(1)])
        assert [number for (number,) in step.execute(f"SELECT id FROM {table}")] == left


def test_an_epoch_that_lacks_staged_rows_is_lost_as_a_whole() -> None:
    step = SqliteStep()
    whole, lacking = step.stage(1, 2), step.stage(3, 4, stage=2)
    step.execute("DELETE FROM outfall.staging WHERE id = 3")
    step.committer().commit([whole, lacking])
    assert step.ids == []
    assert [request.outcome.kind for request in (whole, lacking)] == ["lost"] * 2
    assert "discarded with another attempt" in whole.outcome.reason
    assert lacking.outcome.reason.startswith("outfall.staging holds 1 of the 2 rows of attempt 2")
    assert step.waiting == []
    # A driver that still runs with these rows may not publish them after they were reported as lost.
    assert step.ledger("revoked", "epoch") == (GENERATION, None)
    assert step.counts == {}


@pytest.mark.parametrize(("revoked", "published"), [(GENERATION - 1, [1]), (GENERATION, []), (GENERATION + 1, [])])
def test_a_revoked_generation_publishes_nothing(revoked: int, published: list[int]) -> None:
    step = SqliteStep()
    step.set(revoked=revoked)
    request = step.stage(1)
    if published:
        step.committer().commit([request])
    else:
        with pytest.raises(FencedError, match=f"rejects rows of generation {GENERATION}") as caught:
            step.committer().commit([request])
        assert (caught.value.step, caught.value.epoch) == ("sink", EPOCH)
    assert step.ids == published


def test_rows_of_a_revoked_generation_that_are_missing_are_lost() -> None:
    step = SqliteStep()
    request = step.stage(1)
    step.set(revoked=GENERATION)
    step.execute("DELETE FROM outfall.staging")
    step.committer().commit([request])
    assert request.outcome.kind == "lost"


def test_a_rejected_row_fails_the_epoch_and_is_named() -> None:
    step = SqliteStep()
    requests = [step.stage(1, 0, 2), step.stage(3, stage=2)]
    step.committer().commit(requests)
    assert step.ids == []
    assert step.ledger("epoch") == (None,)
    for request in requests:
        error = request.outcome.error
        assert isinstance(error, CommitRefusedError)
        assert '{"id":0,' in str(error)
        assert "CHECK constraint failed" in str(error)
    assert step.waiting == [1, 2]
    assert step.counts == {}


def test_a_row_that_is_accepted_in_another_try_is_not_named() -> None:
    step = SqliteStep(on_existing="overwrite")
    step.execute("INSERT INTO t (id) VALUES (1)")
    step.stage(1)
    committer, request = step.committer(), step.stage(2, stage=2)

    def look(session: object, move: object) -> list[int]:
        return step.ids

    # As in the first epoch, whose rows replace the others; and without a trace.
    assert committer.move_again([request], look) == []
    assert step.ids == [1]
    step.execute("DELETE FROM outfall.ledger")
    assert committer.move_again([request], look) is None


def test_rejected_rows_become_dead_letters_and_the_others_are_moved() -> None:
    step = SqliteStep(**LETTERS)
    request = step.stage(1, 0, 2, -1)
    step.committer().commit([request])
    assert step.ids == [1, 2]
    assert dead_letters_of(step) == ['{"id":-1,"text":"x"}', '{"id":0,"text":"x"}']
    assert step.execute("SELECT DISTINCT code, step, epoch FROM d") == [("19", "sink", EPOCH)]
    assert step.ledger("rows") == (2,)
    assert step.counts == {"rows_changed": 2, "dead_letters": 2}


@pytest.mark.parametrize(("most", "published"), [(2, [1]), (1, [])])
def test_dead_letters_of_tasks_and_of_publishing_have_one_limit(most: int, published: list[int]) -> None:
    step = SqliteStep(**LETTERS, max_dead_letters=most)
    wait_as_letter(step, 1, "of a task")
    request = step.stage(1, 0, letters=1)
    if published:
        step.committer().commit([request])
        assert dead_letters_of(step) == ["of a task", '{"id":0,"text":"x"}']
        assert step.counts == {"rows_changed": 1, "dead_letters": 1}  # the task has counted the other one
    else:
        with pytest.raises(ValueRefusedError, match="more than 1 rows of this epoch were rejected") as caught:
            step.committer().commit([request])
        assert '{"id":0,' in str(caught.value)
        assert dead_letters_of(step) == []
    assert step.ids == published


def test_a_dead_letter_of_a_task_that_is_gone_is_a_lost_row() -> None:
    step = SqliteStep(**LETTERS)
    request = step.stage(1, letters=1)
    step.committer().commit([request])
    assert request.outcome.kind == "lost"
    assert "0 of its 1 dead letters" in request.outcome.reason
    assert step.ids == []


def test_dead_letters_of_tasks_need_their_table_still() -> None:
    step = SqliteStep()
    with pytest.raises(CommitRefusedError, match="2 rows of this epoch are dead letters") as caught:
        step.committer().commit([step.stage(1, letters=2)])
    assert (caught.value.step, caught.value.epoch) == ("sink", EPOCH)
    assert step.ids == []


def test_missing_rows_are_no_dead_letters() -> None:
    for rows in ((1, 2), (1, 0)):  # moved as a whole; sorted
        step = SqliteStep(**LETTERS)
        request = step.stage(*rows, 3)
        step.execute("DELETE FROM outfall.staging WHERE id = 3")
        step.committer().commit([request])
        assert request.outcome.kind == "lost"
        assert (step.ids, dead_letters_of(step)) == ([], [])


def test_changes_that_nothing_orders_fail_the_epoch() -> None:
    step = SqliteStep(**CHANGES)
    request = step.stage(1, 2)
    step.dialect.ties = ["2"]
    step.committer().commit([request])
    assert step.ids == []
    assert isinstance(request.outcome.error, CommitRefusedError)
    assert '{"id":2,' in str(request.outcome.error)


@pytest.mark.parametrize(("most", "published"), [(3, [2, 4]), (2, [])])
def test_changes_that_nothing_orders_are_dead_letters_within_the_limit(most: int, published: list[int]) -> None:
    step = SqliteStep(**CHANGES, **LETTERS, max_dead_letters=most)
    request = step.stage(1, 2, 3, 4, 0)
    step.dialect.ties = ["1", "3"]
    if published:
        step.committer().commit([request])
        assert dead_letters_of(step) == [f'{{"id":{number},"text":"x"}}' for number in (0, 1, 3)]
        assert step.counts == {"rows_changed": 2, "dead_letters": 3}
    else:
        with pytest.raises(ValueRefusedError, match="more than 2 rows"):
            step.committer().commit([request])
    assert step.ids == published


def test_one_more_tie_than_the_limit_is_named_and_nothing_is_written() -> None:
    step = SqliteStep(**CHANGES, **LETTERS, max_dead_letters=1)
    request = step.stage(1, 2, 3)
    step.dialect.ties = ["1", "3"]
    with pytest.raises(ValueRefusedError, match=r'more than 1 rows .*"id":3'):
        step.committer().commit([request])
    assert (step.ids, dead_letters_of(step)) == ([], [])
    step.dialect.ties = ["1"]
    step.committer().commit([request])
    assert step.ids == [2, 3]
    assert step.counts == {"rows_changed": 2, "dead_letters": 1}


@pytest.mark.parametrize("given", [{}, LETTERS])
def test_rows_that_a_trigger_skips_are_counted(given: dict[str, str]) -> None:
    step = SqliteStep(**given)
    request = step.stage(1, 2, 3)
    step.dialect.skips = [2, 3]
    step.committer().commit([request])
    assert step.ids == [1]
    assert request.outcome.kind == "committed"
    assert step.counts == {"rows_changed": 1, "rows_skipped": 2}


def test_skipped_rows_are_counted_beside_rejected_ones() -> None:
    step = SqliteStep(**LETTERS)
    request = step.stage(1, 2, 0, -1)
    step.dialect.skips = [2]
    step.committer().commit([request])
    assert step.counts == {"rows_changed": 1, "rows_skipped": 1, "dead_letters": 2}


def test_stale_changes_are_counted_and_an_upsert_skips_none() -> None:
    for given in (CHANGES, CHANGES | LETTERS):
        step = SqliteStep(**given)
        request = step.stage(1, 2)
        step.dialect.skips, step.dialect.stale = [2], 1
        step.committer().commit([request])
        assert step.counts == {"rows_changed": 1, "changes_stale": 1}


def test_a_table_that_is_dropped_after_the_first_epoch_is_lost() -> None:
    for epoch, kind, text in (
        (3, TargetLostError, "but this query has written to it"),
        (None, TargetError, "its rows are recorded"),
    ):
        step = SqliteStep()
        step.set(epoch=epoch)
        request = step.stage(1)
        step.execute("DROP TABLE t")
        with pytest.raises(kind, match=text) as caught:
            step.committer().commit([request])
        assert type(caught.value) is kind
        assert caught.value.step == "sink"


@pytest.mark.parametrize("given", [{}, LETTERS])
def test_rows_that_no_longer_fit_the_table_are_lost_instead_of_rejected(given: dict[str, str]) -> None:
    step = SqliteStep(**given)
    request = step.stage(1)
    step.execute("ALTER TABLE t DROP COLUMN text")
    step.committer().commit([request])
    assert request.outcome.kind == "lost"
    assert "'text', which t no longer has" in request.outcome.reason


@pytest.mark.parametrize("given", [{}, LETTERS])
def test_an_error_that_is_no_rows_is_not_theirs(given: dict[str, str]) -> None:
    step = SqliteStep(**given)
    request = step.stage(1)
    step.dialect.skips = ["nonsense"]
    with pytest.raises(TargetError, match=r"publishing to t in .* failed\. No such column"):
        step.committer().commit([request])
    assert request.outcome.kind == "unsignalled"


def test_lost_rows_are_found_without_publishing() -> None:
    step = SqliteStep()
    requests = [step.stage(1), step.stage(2, stage=2)]
    step.execute("DELETE FROM outfall.staging WHERE id = 2")
    step.committer().find_lost(requests)
    assert [request.outcome.kind for request in requests] == ["unsignalled", "lost"]
    # Staging is cleared by the driver that has published the epoch.
    step.set(epoch=EPOCH, published_token="nine")
    request = step.stage(stage=3)
    step.execute("DELETE FROM outfall.staging")
    step.committer().find_lost([request])
    assert request.outcome.kind == "unsignalled"


def test_an_epoch_is_revoked_before_it_is_published_and_not_after() -> None:
    step = SqliteStep()
    request = step.stage(1)
    assert step.committer().nothing_published([request])
    assert "FOR UPDATE" in step.session.statements[-2]
    step.committer().revoke([request])
    assert step.ledger("revoked") == (GENERATION,)
    assert step.waiting == []
    with pytest.raises(FencedError):
        step.committer().commit([request])

    step.set(epoch=EPOCH, published_token="nine")
    assert not step.committer().nothing_published([request])
    with pytest.raises(LostCommittableError, match=f"epoch {EPOCH} is already in t") as caught:
        step.committer().revoke([request])
    assert (caught.value.step, caught.value.epoch) == ("sink", EPOCH)


@pytest.mark.parametrize(
    ("given", "text"),
    [(LETTERS, "for dead letters is missing: d or outfall.refused"), (CHANGES, "for tombstones is missing")],
)
def test_tables_beside_the_target_are_made_only_if_they_may(given: dict[str, str], text: str) -> None:
    step = SqliteStep(**given, create_staging="never")
    request = step.stage(1)
    with pytest.raises(TargetError, match=text) as caught:
        step.committer().commit([request])
    assert (caught.value.step, caught.value.epoch) == ("sink", EPOCH)
    assert step.ids == []
    step = SqliteStep(**given)
    step.committer().commit([step.stage(1)])
    assert step.ids == [1]
    # They are there now, so nobody needs to make them.
    assert not any("CREATE" in statement for statement in _of_next_epoch(step))


def _of_next_epoch(step: SqliteStep) -> list[str]:
    before = len(step.session.statements)
    step.committer().commit([step.stage(2, stage=2)])
    return step.session.statements[before:]


def test_a_row_without_a_text_is_still_named() -> None:
    step = SqliteStep()
    committer = step.committer()
    move = committer.move_of(EpochTable(step.tables, [step.stage(1).committable]))
    assert staged_row_name(step.session, move, "1") == 'a row, {"id":1,"text":"x"}'
    assert staged_row_name(step.session, move, "77").startswith("a row")

"""The ledger of a table: what a driver reads, writes and refuses, on SQLite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outfall.capabilities import CommitterInitContext, SealContext, TargetContext
from outfall.errors import FencedError, TargetLostError
from outfall.sql.dialect import StagedRows
from outfall.sql.ledger import MANY, LedgerRow
from outfall.sql.names import ledger_name
from outfall.target_record import TargetRecord
from tests.unit.support.sqlite_tables import EPOCH, GENERATION, OTHERS, OURS, SqliteStep

STAGED = StagedRows(stage=1, rows=1, columns=("id",), staging=("outfall", "staging"))


def read_published(step: SqliteStep, *attempts: StagedRows, lock: bool = False) -> LedgerRow:
    return step.tables.ledger.read_published(step.session, step.context, attempts, lock=lock)


def test_a_row_holds_its_epoch_and_all_before() -> None:
    row = LedgerRow(GENERATION, EPOCH, EPOCH, 0, "nine")
    assert [row.holds(epoch) for epoch in (EPOCH - 1, EPOCH, EPOCH + 1)] == [True, True, False]
    assert not LedgerRow(GENERATION, -1, None, 0).holds(0)
    assert row.record == TargetRecord(GENERATION, "nine", EPOCH)


@pytest.mark.parametrize(("epoch", "begun"), [(None, 4), (3, 4), (7, 7)])
def test_the_newest_begun_epoch_never_goes_back(epoch: int | None, begun: int) -> None:
    context = TargetContext[Any](
        "sink", OURS, epoch, completed=None, first_contact=False, states={}, generation=12, token="t"
    )
    after = LedgerRow(GENERATION, 4, 2, 1, "nine", "nine").opened_by(context)
    assert after == LedgerRow(12, begun, 2, 1, "t", "nine")


def test_a_new_row_is_made_once_and_read_as_it_was_written() -> None:
    step = SqliteStep()
    ledger, session = step.tables.ledger, step.session
    assert ledger.exists(session)
    assert ledger.read(session) == LedgerRow(GENERATION, EPOCH, None, 0, "nine")
    ledger.create(session)
    assert ledger.read(session) == LedgerRow(GENERATION, EPOCH, None, 0, "nine")
    ledger.end(session)
    assert ledger.read(session) is None
    ledger.create(session)
    assert ledger.read(session) == LedgerRow(0, -1, None, 0)


def test_a_row_is_locked_if_asked() -> None:
    step = SqliteStep()
    for lock in (False, True):
        step.tables.ledger.read(step.session, lock=lock)
        assert step.session.statements[-1].endswith(" FOR UPDATE") == lock
        read_published(step, lock=lock)
        assert step.session.statements[-1].endswith(" FOR UPDATE") == lock
    step.tables.ledger.read(step.session)
    assert "FOR UPDATE" not in step.session.statements[-1]
    step.tables.ledger.read_published(step.session, step.context, [])
    assert "FOR UPDATE" not in step.session.statements[-1]


def test_each_call_writes_what_it_says_and_leaves_the_rest() -> None:
    step = SqliteStep()
    ledger, session = step.tables.ledger, step.session
    step.execute(
        "INSERT INTO outfall.ledger (incarnation, target, step, generation, begun) VALUES (%s, 't', 'sink', 1, 1)",
        (OTHERS,),
    )
    ledger.open(session, LedgerRow(12, 6, None, 0, "twelve"))
    assert ledger.read(session) == LedgerRow(12, 6, None, 0, "twelve")
    ledger.published(session, SealContext("sink", OURS, 12, 8, token="seal"), 5)
    ledger.published(session, SealContext("sink", OURS, 12, 7, token="again"), 2)
    assert ledger.read(session) == LedgerRow(12, 8, 7, 0, "again", "again")
    assert step.ledger("rows") == (7,)
    for revoked in (12, 11):
        ledger.revoke(session, revoked)
    assert ledger.read(session) == LedgerRow(12, 8, 7, 12, "again", "again")
    others = f"SELECT generation, begun, epoch, token FROM outfall.ledger WHERE incarnation = '{OTHERS}'"
    assert step.execute(others) == [(1, 1, None, None)]


def test_an_earlier_checkpoint_of_the_step_is_seen_by_what_it_published() -> None:
    step = SqliteStep()
    ledger, session = step.tables.ledger, step.session
    step.set(epoch=9)
    assert ledger.published_by_others(session) is None
    insert = "INSERT INTO outfall.ledger (incarnation, target, step, generation, begun, epoch, changed) VALUES"
    step.execute(f"{insert} ('c', 't', 'sink', 1, 1, NULL, 9), ('d', 't', 'other', 1, 1, 8, 9)")
    assert ledger.published_by_others(session) is None
    step.execute(f"{insert} ('e', 't', 'sink', 1, 1, 5, 2), ('f', 'main.t', 'sink', 1, 1, 3, 1)")
    assert ledger.published_by_others(session) == 5


def test_a_driver_may_publish_what_it_has_opened() -> None:
    step = SqliteStep()
    assert read_published(step) == LedgerRow(GENERATION, EPOCH, None, 0, "nine")
    step.set(epoch=EPOCH, published_token="nine")
    assert read_published(step).holds(EPOCH)
    for changed in ({"generation": GENERATION + 1}, {"token": "other"}):
        step = SqliteStep()
        step.set(**changed)
        step.context = _with_begun(step)
        with pytest.raises(FencedError):
            read_published(step)


def test_an_epoch_that_a_driver_on_a_copy_has_published_is_not_taken_for_ours() -> None:
    step = SqliteStep()
    step.context = _with_begun(step)
    step.set(epoch=EPOCH, published_token="other")
    with pytest.raises(FencedError, match=f"epoch {EPOCH} of t"):
        read_published(step)
    # An older epoch was published by whoever it was: its token is not compared.
    step.set(epoch=EPOCH - 1)
    assert read_published(step).epoch == EPOCH - 1


def _with_begun(step: SqliteStep) -> CommitterInitContext:
    return replace(step.context, begun={GENERATION: "nine"})


@pytest.mark.parametrize("gone", ["row", "table"])
def test_a_ledger_without_our_row_is_lost(gone: str) -> None:
    step = SqliteStep()
    step.execute("DELETE FROM outfall.ledger" if gone == "row" else "DROP TABLE outfall.ledger")
    with pytest.raises(TargetLostError, match="has no row for this query's writes to t") as caught:
        read_published(step, STAGED)
    assert (caught.value.step, caught.value.epoch) == ("sink", EPOCH)
    assert "The ledger was emptied or dropped" in str(caught.value)
    former = STAGED.model_copy(update={"staging": ("former", "staging")})
    with pytest.raises(TargetLostError, match="metadata_schema is 'outfall', but was 'former'"):
        read_published(step, StagedRows(stage=1, rows=1, columns=()), former)


def test_another_error_is_not_taken_for_a_ledger_without_our_row() -> None:
    step = SqliteStep()
    step.execute("ALTER TABLE outfall.ledger DROP COLUMN revoked")
    with pytest.raises(step.dialect.database.errors, match="no such column"):
        read_published(step, STAGED)


def test_each_table_has_a_name_of_its_own_in_the_ledger() -> None:
    tables = [(None, "t"), ("s", "t"), (None, "s.t"), ("s", "t.u"), ("s.t", "u"), (None, '"s.t"'), (None, "*")]
    names = [ledger_name(schema, name) for schema, name in tables]
    assert names[:2] == ["t", "s.t"]
    # The row of a step with many tables has the name *.
    assert len({*names, MANY}) == len(tables) + 1

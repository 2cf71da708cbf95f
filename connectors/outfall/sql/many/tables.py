"""The tables of a step whose rows name them, and of an epoch: what of its attempts goes to which.

The record of an epoch has the tables by staging table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfall.capabilities import CommitterInitContext
from outfall.sql.database import Session
from outfall.sql.dialect import Column, StagedRows, StagedTable
from outfall.sql.keyed import Move
from outfall.sql.ledger import LedgerRow
from outfall.sql.many.listed import ListedTables
from outfall.sql.names import Found, layout_name
from outfall.sql.staging import Staging
from outfall.sql.tables import D, EpochTable, StepTables


@dataclass(frozen=True)
class ManyTables(StepTables[D]):
    """The tables of one step whose rows name the targets.

    `target` stands for all of them, and `staging` has how the names of their staging tables begin.
    """

    where = "any table"
    looks = True

    def of_table(
        self,
        found: Found,
        spelled: str,
        *,
        layout: Sequence[Column] | None = None,
        staging: Found | None = None,
        keys: Sequence[str] = (),
        columns: Sequence[str] = (),
    ) -> StepTables[D]:
        """Return the tables of the step for one of many targets, which rows name like this.

        Its staging table is the one for a `layout`, the columns of the target in their order, or the one that is named.
        `keys` is what identifies rows of the target, if that differs, and `columns` those that the target gets.
        """
        dialect = self.dialect.with_options(self.options.of_table(spelled, keys, columns))
        target = dialect.parse(spelled).resolved(found)
        name = self.staging.table
        if layout is not None:
            name = layout_name(name, layout)
        elif staging is not None:
            name = name.sibling(staging[0] or "", staging[1])
        ledger = self.ledger.of_table(dialect, dialect.in_ledger(found))
        tombstones = dialect.tombstones(target) if self.options.write_mode == "changes" else None
        own = Staging(dialect, name, target, layout)
        return StepTables(self.step_id, dialect, target, ledger, own, self.dead_letters, tombstones)

    # --- those of an epoch

    def of_epoch(self, attempts: Sequence[StagedRows]) -> list[EpochTable]:
        found = []
        for some in alike(attempts):
            for only in merged(some):
                table = self.of_table(only.found, only.spelled[0], staging=some[0].staging, keys=some[0].keys)
                found.append(EpochTable(table, some, only))
        return sorted(found, key=lambda table: table.only.found if table.only else ("", ""))

    def new(self, session: Session, row: LedgerRow, tables: Sequence[EpochTable]) -> list[EpochTable]:
        named = {table.in_ledger: table for table in tables}
        known = self.ledger.known_tables(session, list(named))
        return [table for name, table in named.items() if name not in known]

    def record(self, session: Session, context: CommitterInitContext, new: Sequence[EpochTable]) -> None:
        self.ledger.add_tables(session, context, [table.in_ledger for table in new])

    def hold(self, session: Session, moves: Sequence[Move]) -> None:
        named = list(dict.fromkeys(name for move in moves for name in (move.table, move.staging)))
        if self.dialect.has_conflicts and self.options.write_mode != "append":
            self.dialect.read_ahead(session, named)
        for move in moves:
            move.wait_for_others(session)
        session.hold([statement for move in moves for statement in move.holding(session)])
        self.dialect.read_ahead(session, named)

    def unfit(self, session: Session, tables: Sequence[EpochTable]) -> bool:
        # All attempts in a staging table have the same columns, unless tasks have got other ones.
        for each in tables:
            some = list({attempt.columns: attempt for attempt in each.attempts}.values())
            if any(each.tables.staging.unfit(session, some).values()):
                return True
        return bool(in_two_places(tables) or with_other_keys(session, self, tables))

    def lacks_rows(self, session: Session, tables: Sequence[EpochTable], settled: int | None = None) -> bool:
        # For appends, the count of moved rows shows that none was lost, unless triggers or rules skip rows.
        looks_after = self.options.write_mode == "append"
        if looks_after == (settled is None) or settled == sum(table.rows for table in tables):
            return False
        for each in {table.attempts[0].stage: table for table in tables}.values():
            expected = {attempt.stage: attempt.rows for attempt in each.attempts}
            if each.tables.staging.counts(session, expected) != expected:
                return True
        return False

    def find_lost(self, session: Session, attempts: Sequence[StagedRows]) -> Mapping[int, str]:
        tables = self.of_epoch(attempts)
        found: dict[int, str] = {**in_two_places(tables), **with_other_keys(session, self, tables)}
        for table in tables:
            found |= table.tables.find_lost(session, table.attempts)
        unrouted = {each.stage: each.letters for each in attempts if each.staging is None and each.letters}
        if unrouted and self.dead_letters is not None:
            waiting = self.dead_letters.counts(session, list(unrouted))
            found |= {
                stage: f"{waiting[stage]} of {letters} dead letters are there"
                for stage, letters in unrouted.items()
                if waiting[stage] != letters
            }
        return found


def alike(attempts: Sequence[StagedRows]) -> list[list[StagedRows]]:
    """Return the attempts that have rows, those together that have one staging table and one key."""
    found: dict[tuple[Found, tuple[str, ...]], list[StagedRows]] = {}
    for attempt in attempts:
        if attempt.staging is not None:
            found.setdefault((attempt.staging, attempt.keys), []).append(attempt)
    return list(found.values())


def merged(attempts: Sequence[StagedRows]) -> list[StagedTable]:
    """Return the tables of attempts, once each."""
    found: dict[Found, StagedTable] = {}
    for table in (table for attempt in attempts for table in attempt.tables):
        known = found.get(table.found)
        spelled = table.spelled if known is None else tuple(dict.fromkeys([*known.spelled, *table.spelled]))
        rows = table.rows if known is None else known.rows + table.rows
        found[table.found] = StagedTable(found=table.found, spelled=spelled, rows=rows)
    return list(found.values())


def recorded_once(attempts: Sequence[StagedRows]) -> list[StagedRows]:
    """Return the attempts of an epoch with its tables once, so that a record stays small."""
    first = {some[0].stage: tuple(merged(some)) for some in alike(attempts)}
    return [attempt.model_copy(update={"tables": first.get(attempt.stage, ())}) for attempt in attempts]


def in_two_places(tables: Sequence[EpochTable]) -> Mapping[int, str]:
    """Return the attempts with rows of a table that others have staged for other columns, with the reason."""
    lost: dict[int, str] = {}
    seen: dict[Found, EpochTable] = {}
    for table in tables:
        if table.only is None:
            continue
        other = seen.setdefault(table.only.found, table)
        if other is not table:
            why = f"the columns of {table.tables.target} changed while its rows were staged"
            lost |= {attempt.stage: why for attempt in (*other.attempts, *table.attempts)}
    return lost


def with_other_keys(session: Any, step: StepTables[Any], tables: Sequence[EpochTable]) -> Mapping[int, str]:
    """Return the attempts with rows of a table that has another primary key than they were staged for, with the reason.

    Of rows with one key, only the newest is moved, so the key must be that of the table, unless `table_keys` has it.
    """
    lost: dict[int, str] = {}
    if not step.options.keys_differ:
        return lost
    listed = ListedTables(step.dialect, step.target.place)
    for table in tables:
        staged = table.attempts[0].keys if table.only is not None else ()
        dialect, target = table.tables.dialect, table.tables.target
        if table.only is not None and set(listed.given_keys(target, table.only.found)) == set(staged):
            continue
        # A missing table is an error of its own.
        if staged and set(dialect.primary_key(session, target)) != set(staged) and dialect.columns(session, target):
            why = f"the primary key of {target} changed while its rows were staged"
            lost |= {attempt.stage: why for attempt in table.attempts}
    return lost

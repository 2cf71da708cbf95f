"""The ledger: the newest epoch of each step that a table holds, in the same database and transactions.

```
begin      lock the row · check its BEGIN against the log · write this driver's generation and token, which rejects
           publications of older drivers and of drivers on a copy of the log
publish    lock the row · check its BEGIN against the log · check the epoch · move the rows · write the epoch · COMMIT
```

If the acknowledgment of a COMMIT is lost, the row is read again: the holder of its lock sees the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from outfall.capabilities import CommitterInitContext, SealContext, TargetContext
from outfall.errors import TargetLostError
from outfall.sql.database import Session
from outfall.sql.dialect import Dialect, StagedRows, compose
from outfall.sql.names import SqlName
from outfall.sql.session import AT_ONCE, Statement
from outfall.sql.statements import ledger_ddl
from outfall.target_record import TargetRecord, check_publishing

MANY = "*"
"""The name in the ledger of the tables that a column names: it is no table's, and that of a step's own row."""


@dataclass(frozen=True)
class LedgerRow:
    """The ledger row of one step."""

    generation: int
    """The newest generation that began."""
    begun: int
    """The newest epoch that began with a known number; -1 before the first. With an adopted checkpoint and options, the
    number of the first epoch is known only to the tasks."""
    epoch: int | None
    """The newest epoch whose rows are in the table; `None` before the first. Epochs without rows are not recorded,
    except the first one with `on_existing="overwrite"`, which empties the table."""
    revoked: int
    """Generations up to this one can no longer publish."""
    token: str | None = None
    """The token of the BEGIN of `generation`; `None` before the first."""
    published_token: str | None = None
    """The token of the BEGIN under which the rows of `epoch` were written; `None` before the first epoch."""

    ready: ClassVar[bool] = True

    def holds(self, epoch: int) -> bool:
        """Return whether an epoch's rows are in the table."""
        return self.epoch is not None and self.epoch >= epoch

    @property
    def record(self) -> TargetRecord:
        """What is compared with the log."""
        return TargetRecord(self.generation, self.token, self.epoch)

    def opened_by(self, context: TargetContext[Any]) -> LedgerRow:
        """Return the row after a BEGIN has opened the table."""
        begun = self.begun if context.epoch is None else max(self.begun, context.epoch)
        return replace(self, generation=context.generation, token=context.token, begun=begun)


class StepLedger:
    """The ledger's row of one step and table. Every call runs in the caller's transaction.

    `target` is the name of its table in the ledger, and `former` the one that its row may still have.
    """

    def __init__(
        self,
        dialect: Dialect,
        table: SqlName,
        target: str,
        incarnation: str,
        step_id: str,
        former: str | None = None,
    ) -> None:
        options = dialect.options
        self.table = options.described if options.table is None else str(dialect.parse(options.table))
        """The target as spelled in the options, for texts."""
        self._own = table
        self.name = table.sql
        """Its table, as SQL."""
        names = {"target": target} if former is None else {"target": target, "former": former}
        self.key: Mapping[str, object] = {"incarnation": incarnation, "step": step_id, **names}
        """The parameters of statements with `called` or `mine`."""
        self._of_step = "incarnation = %(incarnation)s AND step = %(step)s"
        self._many = target == MANY
        same = " OR ".join(dialect.words.same_target.format(f"%({name})s") for name in names)
        self.called = f"({same}) AND step = %(step)s"
        """The condition for rows of a step and table, of any incarnation."""
        self.mine = f"incarnation = %(incarnation)s AND {self.called}"
        """The condition for this row."""
        self.metadata_schema = dialect.options.metadata_schema
        self._dialect = dialect
        self._step_id = step_id

    def of_table(self, dialect: Dialect, target: str) -> StepLedger:
        """Return the ledger's row of one of a step's many tables."""
        return StepLedger(dialect, self._own, target, str(self.key["incarnation"]), self._step_id)

    def missing_ddl(self, session: Session) -> Sequence[str]:
        """Return the statements that create the tables `ledger` and `attempts`; none if both exist."""
        if self.exists(session):
            return []
        query = compose("SELECT count(*) FROM {} = %s", self._dialect.words.schemas)
        found = session.execute(query, (self.metadata_schema,)).fetchone()
        # IF NOT EXISTS requires the privilege to create a schema even if it exists.
        return self.ddl()[1 if found[0] else 0 :]

    def ddl(self) -> list[str]:
        """Return the statements that create both tables and their schema. They can be run again."""
        return ledger_ddl(self._dialect.words, self.metadata_schema)

    def exists(self, session: Session) -> bool:
        """Return whether both tables exist."""
        names = (self._own.sibling(self.metadata_schema, name) for name in ("ledger", "attempts"))
        return all(self._dialect.exists(session, name) for name in names)

    def read(self, session: Session, *, lock: bool = False) -> LedgerRow | None:
        """Return the row; `None` if there is none. With `lock`, no other transaction can write it."""
        return self.read_with(session, self._dialect.words.locking if lock else "")

    def read_with(self, session: Session, lock: str) -> LedgerRow | None:
        """Return the row under a lock."""
        found = session.execute(*self.reading(lock)).fetchone()
        return None if found is None else LedgerRow(*found)

    def reading(self, lock: str = " FOR UPDATE") -> Statement:
        """Return the query of `read_with`."""
        columns = "generation, begun, epoch, revoked, token, published_token"
        return compose("SELECT {} FROM {} WHERE {}{}", columns, self.name, self.mine, lock), self.key

    def published_by_others(self, session: Session) -> int | None:
        """Return the newest epoch of the same step and table that another incarnation has published."""
        query = compose(
            "SELECT epoch FROM {} WHERE {} AND incarnation <> %(incarnation)s AND epoch IS NOT NULL"
            " ORDER BY changed DESC LIMIT 1",
            self.name,
            self.called,
        )
        found = session.execute(query, self.key).fetchone()
        return None if found is None else int(found[0])

    def others_have_published(self, session: Session) -> bool:
        """Return whether another incarnation of the step has published into any table."""
        condition = "step = %(step)s AND incarnation <> %(incarnation)s AND epoch IS NOT NULL"
        query = compose("SELECT EXISTS (SELECT 1 FROM {} WHERE {})", self.name, condition)
        return bool(session.execute(query, self.key).fetchone()[0])

    def rename(self, session: Session) -> None:
        """Give a row with the former name the name of today."""
        query = compose("UPDATE {} SET target = %(target)s WHERE {}", self.name, self.mine)
        session.execute(query, self.key)

    def read_published(
        self, session: Session, context: CommitterInitContext, attempts: Sequence[StagedRows], *, lock: bool = False
    ) -> LedgerRow:
        """Return the row, locked with `lock`, if this driver may publish the epoch.

        `attempts` are the recorded attempts of the epoch, for errors. Raises `TargetLostError` if there is no row, and
        `FencedError` if another driver opened the table since, or has published its own rows as this epoch.
        """
        try:
            row = self.read(session, lock=lock)
        except self._dialect.database.errors as error:
            if "table" not in self._dialect.faults(error):
                raise
            row = None
        if row is None:
            raise self._without_row(context, attempts)
        check_publishing(self.table, row.record, context)
        if row.holds(context.epoch):
            published = replace(row.record, generation=context.generation, token=row.published_token)
            check_publishing(f"epoch {row.epoch} of {self.table}", published, context)
        return row

    def create(self, session: Session) -> None:
        """Create the row, before the first BEGIN opens the table. If two drivers create it, one waits for the other."""
        statement = compose(
            "INSERT INTO {} (incarnation, target, step, generation, begun)"
            " VALUES (%(incarnation)s, %(target)s, %(step)s, 0, -1) {}",
            self.name,
            self._dialect.words.keeping,
        )
        session.execute(statement, self.key)

    def open(self, session: Session, after: LedgerRow) -> None:
        """Record that a BEGIN opens the table. The caller holds the lock of the row."""
        given = {"generation": after.generation, "begun": after.begun, "token": after.token}
        self._set(session, given, "generation = %(generation)s, begun = %(begun)s, token = %(token)s")

    def published(self, session: Session, context: CommitterInitContext | SealContext, rows: int) -> None:
        """Record that an epoch's rows are in the table. The caller has locked the row.

        The context has the epoch and its BEGIN.
        """
        given = {"generation": context.generation, "token": context.token, "epoch": context.epoch, "rows": rows}
        changes = compose(
            "generation = %(generation)s, epoch = %(epoch)s, begun = greatest(begun, %(epoch)s),"
            " {0} = {0} + %(rows)s, token = %(token)s, published_token = %(token)s",
            self._dialect.quote("rows"),
        )
        self._set(session, given, changes)

    def revoke(self, session: Session, generation: int) -> None:
        """Record that a generation and all earlier ones can no longer publish. The caller holds the lock."""
        self._set(session, {"generation": generation}, "revoked = greatest(revoked, %(generation)s)")

    def end(self, session: Session) -> None:
        """Remove the row, and those of its tables. The incarnation is completed and never resumed."""
        rows = self._of_step if self._many else self.mine
        session.execute(compose("DELETE FROM {} WHERE {}", self.name, rows), self.key)

    def known_tables(self, session: Session, targets: Sequence[str]) -> set[str]:
        """Return which of these tables have rows of this incarnation, by their names in the ledger.

        They have rows of their own beside that of a step with many tables, which has the name `MANY`.
        """
        if not targets:
            return set()
        given = {f"target_{number}": target for number, target in enumerate(targets)}
        listed = ", ".join(f"%({parameter})s" for parameter in given)
        query = compose("SELECT target FROM {} WHERE {} AND target IN ({})", self.name, self._of_step, listed)
        return {target for (target,) in session.execute(query, {**self.key, **given}).fetchall()}

    def add_tables(self, session: Session, context: CommitterInitContext, targets: Sequence[str]) -> None:
        """Record that an epoch is the first one with rows of these tables, in the transaction that writes them."""
        given = {**self.key, "generation": context.generation, "epoch": context.epoch, "token": context.token}
        row = "(%(incarnation)s, %({})s, %(step)s, %(generation)s, -1, %(epoch)s, %(token)s, %(token)s)"
        for first in range(0, len(targets), AT_ONCE):
            some = {f"target_{number}": target for number, target in enumerate(targets[first : first + AT_ONCE])}
            columns = "incarnation, target, step, generation, begun, epoch, token, published_token"
            rows = ", ".join(row.format(parameter) for parameter in some)
            statement = compose("INSERT INTO {} ({}) VALUES {}", self.name, columns, rows)
            session.later(statement, {**given, **some})

    def lost(self, what: str, epoch: int | None, *, why: str | None = None, do: str | None = None) -> TargetLostError:
        """Return the error of a ledger that has lost records of this query.

        `what` is the missing record. `why` is the reason, if it is known, and `do` the remedy for that reason.
        """
        return TargetLostError(
            f"the ledger {what}",
            step=self._step_id,
            epoch=epoch,
            why=why
            or "the ledger was emptied or dropped, metadata_schema or the database changed, or the database was"
            " restored from a copy that is older than this query",
            do=do or "restore the database, or start the query with a new checkpoint",
        )

    def _without_row(self, context: CommitterInitContext, attempts: Sequence[StagedRows]) -> TargetLostError:
        what, ours = f"has no row for this query's writes to {self.table}", self.metadata_schema
        former = next((staged.staging[0] for staged in attempts if staged.staging), ours)
        if former == ours:
            return self.lost(what, context.epoch)
        why = f"metadata_schema is {ours!r}, but was {former!r} when the rows of this epoch were written"
        return self.lost(what, context.epoch, why=why, do=f"set metadata_schema to {former!r} again")

    def _set(self, session: Session, given: Mapping[str, object], changes: str) -> None:
        statement = compose("UPDATE {} SET {}, changed = now() WHERE {}", self.name, changes, self.mine)
        session.later(statement, {**self.key, **given})

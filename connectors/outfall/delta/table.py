"""A loaded version of a Delta table: its record of a step, and the commit that replaces exactly this version.

The record of a step is made of app transactions (PROTOCOL.md, "Transaction Identifiers"), which checkpoints keep:

```
outfall-<incarnation>              the newest epoch that is in the table
outfall-<incarnation>-generation   whose commit it was
outfall-<incarnation>-token        likewise, the token's 64 bits
outfall-<incarnation>-head         the version that this commit made
outfall-<incarnation>-revoked      which generations' files are never committed any more
outfall-step-<step id>             the incarnation that committed last, its 64 bits
```
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Field
from deltalake.transaction import AddAction, RemoveAction

from outfall.delta.columns import lacking, merged, moments_without_zone
from outfall.delta.files import TableLocation
from outfall.delta.layout import STATISTICS, DeltaFileLayout
from outfall.delta.partition_values import text_of
from outfall.delta.stored import DeltaFile, stored_files
from outfall.errors import ConfigurationError, TargetError, TransientError
from outfall.store_errors import refuses
from outfall.tables.data_file import DataFile, EpochFiles
from outfall.tables.keyed import KeyedTable, StoredFile
from outfall.tables.record import TableRecord
from outfall.tables.stored_rows import StoredRows
from outfall.tables.table import HeadMovedError, UnclearCommitError

_FORGOTTEN = -2
"""Instead of an epoch: Delta keeps a transaction identifier permanently, and this one is no longer valid."""

_GONE_BACK = re.compile(r"(CREATE OR )?REPLACE TABLE.*|CLONE", re.IGNORECASE)
"""Operations after which rows of earlier versions may be missing without having been deleted as rows."""

_VACUUM = ("VACUUM START", "VACUUM END")
"""Operations that remove files which no version in the retention refers to, and so perhaps those of this epoch."""

_REWRITTEN = "rewritten"
"""A key in the commit info of a merge: the number of files that it rewrote."""

_NOT_ENCODED = "/!$&'()+,:;=@~"
"""Characters that deltalake does not encode in paths of the log."""

_CLOCKS = 24 * 3600 * 1000
"""Maximum difference in milliseconds between the clocks of writers and of the store."""

_TRIES = 5
"""Number of attempts to add columns after concurrent commits."""


class LoadedDelta(KeyedTable):
    """One version of a Delta table."""

    orphans = "run VACUUM with its default retention"

    def __init__(self, place: TableLocation, table: DeltaTable | None = None) -> None:
        """Use a loaded version, or load the newest one on first use."""
        self.where = place.url
        self._place = place
        self._given = table

    @cached_property
    def _table(self) -> DeltaTable:
        table = self._given or self._place.load()
        if table is None:
            raise TargetError(
                f"{self.where} was dropped meanwhile", do="find out who dropped it, and start the query again"
            )
        return table

    @cached_property
    def _version(self) -> int:
        return self._table.version()

    @cached_property
    def _files(self) -> DeltaFileLayout:
        return DeltaFileLayout.of(self._place, self._table)

    @property
    def columns(self) -> pa.Schema:
        return self._files.schema

    @property
    def files(self) -> DeltaFileLayout:
        return self._files

    @property
    def on_disk(self) -> bool:
        return self._place.is_disk

    # --- columns

    def with_columns(self, rows: pa.Schema) -> DeltaFileLayout:
        return DeltaFileLayout.of(self._place, self._table, pa.schema(merged(self._files.schema, self._lacking(rows))))

    def add_columns(self, rows: pa.Schema) -> None:
        table: LoadedDelta = self
        for attempt in range(_TRIES):
            fields = table._lacking(rows)
            if not fields:
                return
            try:
                with self._place.translated_errors("adding columns to"):
                    table._table.alter.add_columns(
                        [Field.from_arrow(field) for field in fields],
                        commit_properties=CommitProperties(max_commit_retries=0),
                    )
            except TargetError:
                # Other writers may have committed, possibly the same columns.
                if attempt == _TRIES - 1:
                    raise
            else:
                self._place.make_durable(table._version + 1)
            table = LoadedDelta(self._place)

    def _lacking(self, rows: pa.Schema) -> list[pa.Field]:
        found = lacking(self._files.schema, rows)
        without_zone = moments_without_zone(found)
        if without_zone and "timestampNtz" not in (self._table.protocol().writer_features or ()):
            raise ConfigurationError(
                f"column {without_zone[0]!r} cannot be added to {self.where}: it has timestamps without a time zone",
                why="the table lacks the feature timestampNtz, which locks out readers without it",
                do="cast the column to a timestamp with a time zone, or enable the feature"
                " (delta.feature.timestampNtz=supported)",
            )
        return found

    # --- records of steps

    def record(self, incarnation: str) -> TableRecord | None:
        epoch = self._transaction(_app(incarnation))
        if epoch is None or epoch == _FORGOTTEN:
            return None
        rest = {name: self._transaction(_app(incarnation, name)) for name in ("generation", "token", "head", "revoked")}
        known = {name: value for name, value in rest.items() if value is not None}
        if len(known) < len(rest):
            raise TargetError(
                f"{self.where} has epoch {epoch} of incarnation {incarnation}, but not all identifiers of its record",
                why="transaction identifiers of its log were removed",
                do="restore the log, or start the query with a new checkpoint",
            )
        return TableRecord(
            incarnation=incarnation,
            epoch=epoch,
            generation=known["generation"],
            token=_hexadecimal(known["token"]) if known["generation"] else None,
            head=known["head"],
            order=known["head"],
            revoked=known["revoked"],
        )

    def records(self, step: str) -> Iterable[TableRecord]:
        last = self._transaction(_step(step))
        found = None if last is None else self.record(_hexadecimal(last))
        if found is not None:
            yield found.model_copy(update={"step": step})

    def left_out(self, record: TableRecord) -> str | None:
        if self._version < record.head:
            return f"this query committed version {record.head}, and the table is at {self._version}"
        return self._lost(self._version, record.head)

    def _lost(self, version: int, head: int) -> str | None:
        """Return why a version does not follow from another; `None` if it does.

        A version follows from the one before, and a restored one from that to which it was restored: what was restored
        meanwhile does not count.
        """
        while version > head:
            operation, parameters = self._operation(version)
            if operation is None:
                return (
                    f"the history after version {head}, which this query committed, is unknown: the log has no"
                    f" operation for version {version}"
                )
            before: Iterable[int] = (version - 1,)
            if operation.upper() == "RESTORE":
                before = self._restored(version, parameters, head)
            elif _GONE_BACK.fullmatch(operation):
                before = ()
            reached = [each for each in before if each >= head]
            if not reached or (len(reached) > 1 and all(self._lost(each, head) for each in reached)):
                return (
                    f"version {version} rolled it back to before version {head}, which this query committed"
                    f" ({operation}); RESTORE TABLE … TO VERSION AS OF {version - 1} undoes that"
                )
            if len(reached) > 1:
                return None
            version = reached[0]
        return None

    def _restored(self, version: int, parameters: Mapping[str, Any], head: int) -> Iterable[int]:
        """Return the versions from which a restored one follows.

        A RESTORE by time has only the time as its user wrote it, in an unknown zone. The files tell more: it follows
        from each version that has the same ones.
        """
        to = str(parameters.get("version", ""))
        if to.isdigit():
            return (int(to),)
        files = self._files_of(version)
        return [each for each in range(head, version) if files is not None and self._files_of(each) == files]

    def _files_of(self, version: int) -> Collection[str] | None:
        """Return the files of a version; `None` if the log no longer has it."""
        try:
            table = self._place.load(version)
        except TargetError:
            return None
        return None if table is None else set(LoadedDelta(self._place, table)._active().column("path").to_pylist())

    def _operation(self, version: int) -> tuple[str | None, Mapping[str, Any]]:
        """Return the operation of a version and its parameters, as far as the log has them."""
        for action in _actions(self._place.entry(version)):
            info = action.get("commitInfo")
            if info and info.get("operation"):
                return info["operation"], info.get("operationParameters") or {}
        return None, {}

    @cached_property
    def _newest_transactions(self) -> Mapping[str, int]:
        """Cached for the newest version, usually this query's own: deltalake reads the log again for each request."""
        return _transactions_of(self._place.entry(self._version))

    def _transaction(self, app: str) -> int | None:
        if app in self._newest_transactions:
            return self._newest_transactions[app]
        with self._place.translated_errors("reading transactions of"):
            return self._table.transaction_version(app)

    # --- files

    def may_lack_files(self, record: TableRecord | None) -> bool:
        """On a disk the check costs less than the question; elsewhere an entry of a VACUUM shows it.

        The first commit of a step has no entry to begin with.
        """
        if self._place.is_disk or record is None:
            return True
        return any(self._operation(version)[0] in _VACUUM for version in range(record.head + 1, self._version + 1))

    def has_rows(self) -> bool:
        return bool(self._active().num_rows)

    def never_had_rows(self) -> bool:
        entries = map(self._place.entry, range(self._version + 1))
        return not self.has_rows() and all(
            entry is not None and not any("add" in action or "remove" in action for action in _actions(entry))
            for entry in entries
        )

    def named(self, candidates: Collection[str]) -> Collection[str]:
        """Check the newest version, and the log back to the time at which the oldest of the files was written.

        If only an older readable version refers to a file, a log entry has removed the file since.
        """
        wanted, root = set(candidates), self._files.area.root
        found = {f"{root}/{unquote(path)}" for path in self._active().column("path").to_pylist()} & wanted
        since = self._place.written([path.removeprefix(f"{root}/") for path in wanted - found]) - _CLOCKS
        version = self._version
        while wanted - found:
            entry = self._place.entry(version)
            if entry is None:
                break
            for action in _actions(entry):
                path = (action.get("add") or action.get("remove") or {}).get("path")
                found |= {f"{root}/{unquote(path)}"} & wanted if path else set()
                if ((action.get("commitInfo") or {}).get("timestamp") or since) < since:
                    return found
            version -= 1
        return found

    def stored(self, keys: Sequence[str]) -> list[DeltaFile]:
        """Return the active files; `ConfigurationError` names one of another table."""
        with self._place.translated_errors("listing files of"):
            found = pa.table(self._table.get_add_actions(flatten=True))
        return list(stored_files(found, self._files.schema, self._files.partitioned_by, keys))

    def rows(self, file: StoredFile) -> StoredRows:
        stored = cast(DeltaFile, file)

        def locate() -> tuple[pafs.FileSystem, str]:
            filesystem, root = self._place.open()
            return filesystem, f"{root}/{unquote(stored.path)}"

        return StoredRows(locate, stored.path, self._files.schema, stored.partition)

    def check_removable(self, file: StoredFile) -> None:
        self._removal(cast(DeltaFile, file))

    def merged(self, record: TableRecord, directory: str) -> Collection[str] | None:
        actions = list(_actions(self._place.entry(record.head)))
        if not any(_REWRITTEN in ((action.get("commitInfo") or {}).get("outfall") or {}) for action in actions):
            return None
        paths = [unquote(action["add"]["path"]) for action in actions if "add" in action]
        return {path.rpartition("/")[2] for path in paths if path.rpartition("/")[0] == directory}

    def _active(self) -> pa.Table:
        with self._place.translated_errors("listing files of"):
            found = pa.table(self._table.get_add_actions())
        # Without statistics, which may cover many columns. An unpartitioned table has no partition values.
        return found.select([name for name in ("path", "size_bytes", "partition") if name in found.column_names])

    # --- committing

    def commit(
        self, files: EpochFiles, record: TableRecord, *, replace: Collection[tuple[str | None, ...]] | None = ()
    ) -> LoadedDelta:
        return self._commit(files, record, replace, None)

    def commit_merged(
        self, files: EpochFiles, record: TableRecord, replaced: Collection[StoredFile], *, everything: bool
    ) -> LoadedDelta:
        return self._commit(files, record, None if everything else (), [cast(DeltaFile, each) for each in replaced])

    def _commit(
        self,
        files: EpochFiles,
        record: TableRecord,
        replace: Collection[tuple[str | None, ...]] | None,
        without: Collection[DeltaFile] | None,
    ) -> LoadedDelta:
        """Commit; `without` are the files that a merge also removes."""
        now = int(time.time() * 1000)
        head = self._version + 1
        actions: list[Any] = [_added(files, file, self._files.partitioned_by, now) for file in files.files]
        if replace is None or replace:
            actions += self._removed(replace, now)
        about = {"step": record.step, "epoch": record.epoch, "rows": files.rows}
        if without is not None:
            actions += [self._removal(file, now) for file in without]
            about[_REWRITTEN] = len(without)
        transactions = _transactions(record.model_copy(update={"head": head, "order": head}), now)
        try:
            self._transact(actions, transactions, about, max_commit_retries=0)
        except Exception as error:
            raise self._why_failed(error) from error
        self._place.make_durable(head)
        if self._place.is_disk and not self._is_entry(head, transactions):
            raise HeadMovedError()
        return LoadedDelta(self._place)

    def _is_entry(self, version: int, transactions: Iterable[Transaction]) -> bool:
        """Whether the log still has a commit of this process as a version.

        On a disk Spark's own writer looks for an entry and then renames its own to that name, which replaces an entry
        that was made in between (HDFSLogStore).
        """
        found = _transactions_of(self._place.entry(version))
        return all(found.get(each.app_id) == each.version for each in transactions)

    def forget(self, incarnation: str) -> None:
        if self.record(incarnation) is None:
            return
        now = int(time.time() * 1000)
        with self._place.translated_errors("removing a record from"):
            self._transact([], [Transaction(_app(incarnation), _FORGOTTEN, now)], {})

    def _transact(
        self, actions: list[Any], transactions: list[Transaction], about: Mapping[str, Any], **more: Any
    ) -> None:
        self._table.create_write_transaction(
            actions,
            "append",
            self._table.schema(),
            list(self._files.partitioned_by),
            commit_properties=CommitProperties(
                app_transactions=transactions, custom_metadata={"outfall": dict(about)}, **more
            ),
        )

    def _why_failed(self, error: Exception) -> Exception:
        """Distinguish what a store refuses for good, and a version that another commit has created, from the rest.

        deltalake repeats requests itself: an attempt before a refused one may have succeeded.
        """
        doubtful = UnclearCommitError(self._place.summary(error))
        rejected = isinstance(error, CommitFailedError)
        if not rejected and not refuses(error):
            return doubtful
        try:
            table = self._place.load()
        except TransientError as unread:
            return UnclearCommitError(f"{doubtful}; {unread}")
        if table is None or table.version() != self._version:
            return HeadMovedError() if rejected else doubtful
        return self._place.explained(error, "committing to") if refuses(error) else doubtful

    def _removed(self, replace: Collection[tuple[str | None, ...]] | None, now: int) -> Iterator[RemoveAction]:
        """Remove the active files of some partitions, or all, in the same commit as the added files."""
        names = self._files.partitioned_by
        for file in self._active().to_pylist():
            values = file.get("partition") or {}
            texts = tuple(text_of(values[name]) for name in names)
            if replace is None or texts in replace:
                yield self._removal(DeltaFile(file["path"], file["size_bytes"], values, {}), now)

    def _removal(self, file: DeltaFile, now: int = 0) -> RemoveAction:
        """Return the action that removes a file.

        Raises `ConfigurationError` if deltalake cannot encode another writer's path in the same way.
        """
        path = unquote(file.path)
        if quote(path, safe=_NOT_ENCODED) != file.path:
            raise ConfigurationError(
                f"cannot replace the file {file.path!r} of {self.where}",
                why="another writer has encoded the path in a way that deltalake does not recognize",
                do='have that writer rewrite the file (OPTIMIZE, or REORG), or use write_mode="append"',
            )
        values = {name: text_of(file.partition[name]) for name in self._files.partitioned_by}
        return RemoveAction(path, True, now, file.size, values)


def _added(files: EpochFiles, file: DataFile, names: Iterable[str], now: int) -> AddAction:
    return AddAction(
        path=f"{files.directory}/{file.name}",
        size=file.size,
        partition_values=dict(zip(names, file.partition, strict=True)),
        modification_time=now,
        data_change=True,
        stats=file.statistics[STATISTICS],
    )


def _transactions(record: TableRecord, now: int) -> list[Transaction]:
    """Return the transaction identifiers of a record.

    Each has a time, otherwise a table with a retention removes them at once. A record that was read has no step; a
    commit of its files has.
    """
    versions = {
        _app(record.incarnation): record.epoch,
        _app(record.incarnation, "generation"): record.generation,
        _app(record.incarnation, "token"): _signed(record.token or ""),
        _app(record.incarnation, "head"): record.head,
        _app(record.incarnation, "revoked"): record.revoked,
    } | ({_step(record.step): _signed(record.incarnation)} if record.step else {})
    return [Transaction(app, version, now) for app, version in versions.items()]


def _transactions_of(entry: bytes | None) -> dict[str, int]:
    """Return the versions of the transaction identifiers in a log entry."""
    transactions = (action.get("txn") for action in _actions(entry))
    return {txn["appId"]: txn["version"] for txn in transactions if txn}


def _app(incarnation: str, of: str | None = None) -> str:
    return f"outfall-{incarnation}" + (f"-{of}" if of else "")


def _step(step: str) -> str:
    return f"outfall-step-{step}"


def _signed(text: str) -> int:
    """Return 16 hexadecimal digits as Delta's signed 64-bit integer."""
    return int.from_bytes(bytes.fromhex(text.zfill(16)), "big", signed=True)


def _hexadecimal(number: int) -> str:
    return number.to_bytes(8, "big", signed=True).hex()


def _actions(entry: bytes | None) -> Iterator[dict[str, Any]]:
    """Yield the actions of a log entry; none if there is no entry."""
    for line in (entry or b"").splitlines():
        if line.strip():
            yield json.loads(line)

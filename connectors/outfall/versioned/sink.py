"""The sink and the partition of destinations whose writes carry versions."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import count, repeat
from threading import Lock
from typing import Any

import pyarrow as pa

from outfall.async_sink import AsyncSink, BlockingSinkPartition
from outfall.capabilities import (
    CleanUpContext,
    Guarantee,
    RowIdentity,
    SupportsTarget,
    TargetContext,
    shown_name,
)
from outfall.errors import CapabilityError, ConfigurationError, OutfallError, StaleWriterError, ValueRefusedError
from outfall.possession.possession import check, check_same_name, find_moved, open_target
from outfall.tables.key_options import refuse_null_keys
from outfall.target_record import TargetRecord
from outfall.versioned.draws import (
    BY_SEQUENCE,
    COUNTER,
    Answer,
    RecordStore,
    RetryingStore,
    Version,
    VersionPort,
    version_of,
)
from outfall.versioned.options import VersionedOptions
from outfall.versioned.outcomes import counted
from outfall.versioned.rows import (
    KeyedBatch,
    KeyedRow,
    changes_of,
    check_columns,
    check_sequence_type,
    refuse_null_sequences,
)


class VersionedSink(AsyncSink[KeyedRow], SupportsTarget[Any]):
    """Base of sinks that upsert and delete by key. A shim implements `records`, `open` and `key_columns`.

    Rows of one key may arrive in any task: the server compares version and rank, so no shuffle is needed.
    """

    options: Any
    """A `VersionedOptions`."""

    @abstractmethod
    def records(self) -> RecordStore:
        """Return the store of the records in the target. Raises `OutfallError` if it cannot be reached."""

    @abstractmethod
    def key_columns(self) -> Sequence[str]:
        """Return the columns that identify a row."""

    def place_columns(self) -> Sequence[str]:
        """Return the columns that say where a row is: of a delete, only these are used. The default is the key."""
        return self.key_columns()

    def guarantee(self) -> Guarantee:
        kept = self._settings.versions and self._settings.keeps_deleted
        return Guarantee.EFFECTIVELY_ONCE if kept else Guarantee.AT_LEAST_ONCE

    def replaces_rows(self) -> bool:
        return True

    def keeps_newer_rows(self) -> bool:
        return self._settings.sequence_column is not None

    def requires(self) -> Sequence[str]:
        if self.guarantee() is Guarantee.AT_LEAST_ONCE:
            return ()
        kept = self._settings.tombstone_retention
        return (
            "a source that replays the same rows when an epoch runs again",
            "a target that keeps acknowledged writes",
            f"no task and no driver that is suspended for longer than tombstone_retention ({kept}) and then writes",
        )

    def row_identity(self) -> RowIdentity | None:
        settings = self._settings
        return RowIdentity("upsert", self.identifying(), settings.ordered_by, settings.delete_marker)

    def identifying(self) -> tuple[str, ...]:
        """Return the columns that identify a row, unless the target defines them."""
        return tuple(self.place_columns())

    def owns_target(self) -> bool:
        return False  # others may write to it

    def without_address(self, target: str) -> str:
        """Return what a name that `target` returned, now or earlier, contains beside an address."""
        return target

    def find_moved(self, context: TargetContext[Any], recorded: str) -> TargetRecord | None:
        check_same_name(self.without_address(self.target()), self.without_address(recorded), shown_name(self))
        if not self._settings.versions:
            return None
        port = self._port(context.incarnation)
        return find_moved(port if port.read() else self._port(context.incarnation, recorded), context)

    def move_target(self, context: TargetContext[Any], recorded: str) -> None:
        if self._settings.versions:
            self._port(context.incarnation).rename_from(self._port(context.incarnation, recorded))

    def check_schema(self, schema: pa.Schema) -> None:
        settings = self._settings
        keys = self.key_columns()
        if settings.sequence_column in keys:
            raise ConfigurationError(
                f"sequence_column is {settings.sequence_column!r}, which is in the key",
                why="it differs between the rows of a key",
                do="use another column",
            )
        option = "sequence_column" if settings.sequence_column else "order_column"
        check_columns(schema, keys, settings.ordered_by, settings.delete_marker, option)
        if settings.sequence_column is not None:
            check_sequence_type(schema, settings.sequence_column)

    def check_server(self, context: TargetContext[Any]) -> None:
        """Ask the server, before each BEGIN, whether it can take the rows. Repeated after a `TransientError`.

        Raises `OutfallError` if it cannot.
        """

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        self.patiently("checking the target", lambda: self.check_server(context))
        if self._settings.versions:
            check(self._port(context.incarnation), context)
        return {}

    def open_target(self, context: TargetContext[Any]) -> None:
        if self._settings.versions:
            open_target(self._port(context.incarnation), context, None)

    def clean_up(self, context: CleanUpContext) -> int:
        return self._remove(context) if context.final else 0

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        return ()

    def withdraw(self, context: CleanUpContext) -> None:
        self._remove(context)

    def version(self) -> Version | None:
        """Return the version of the writes of a task; `None` if they carry none.

        Raises:
            ConfigurationError: the sink is bound to no writer context.
            OutfallError: the target is not that of this run; see `version_of`.
        """
        if not self._settings.versions:
            return None
        context = self.writer_context()
        return version_of(self._port(context.incarnation), context)

    @property
    def _settings(self) -> VersionedOptions:
        return self.options  # type: ignore[no-any-return]

    def _port(self, incarnation: str, target: str | None = None) -> VersionPort:
        """Return the target of a step, with the record for this name or another one that it had."""
        # Two sinks of one step may write to one target, and each has a record.
        which = hashlib.blake2b((target or self.target()).encode(), digest_size=4).hexdigest()
        store = RetryingStore(self.records(), self._settings.retry_deadline.total_seconds())
        return VersionPort(store, f"step:{incarnation}:{which}")

    def _remove(self, context: CleanUpContext) -> int:
        """Remove the record of a step that has ended. Late tasks of it then find no version."""
        if not self._settings.versions:
            return 0
        port = self._port(context.incarnation)
        found = port.read()
        return int(found is not None and port.store.replace(port.name, found.version, None))


class VersionedPartition(BlockingSinkPartition[KeyedRow]):
    """Writes rows with the version of their BEGIN. A shim implements `writes` and `send`, which ends with `resolve`."""

    sink: VersionedSink
    options: Any

    def __init__(self, sink: VersionedSink, **arguments: Any) -> None:
        """Read the version of this task. Raises as `draws.version_of`."""
        super().__init__(sink, **arguments)
        drawn = sink.version()
        self._drawn = 0 if drawn is None else drawn.number
        self._by_sequence = sink.options.sequence_column is not None
        self.version = BY_SEQUENCE if self._by_sequence else drawn
        self._replaced: Counter[str] = Counter()
        self._lock = Lock()

    @abstractmethod
    def writes(self, changes: KeyedBatch) -> tuple[Sequence[Hashable], Sequence[Any], Sequence[int]]:
        """Return the `key`, the `write` and the `size` of each row, as `KeyedRow` has them.

        Raises `ValueRefusedError` for a row that cannot be written.
        """

    def convert(self, batch: pa.RecordBatch) -> Sequence[KeyedRow]:
        """Return the rows of a batch, in its order.

        Raises:
            CapabilityError: `writes` did not return one key, write and size for each row.
            ValueRefusedError: a row has NULL in its key, or cannot be written.
        """
        settings: VersionedOptions = self.options
        refuse_null_keys(batch, self.sink.key_columns())
        if settings.sequence_column is not None:
            refuse_null_sequences(batch, settings.sequence_column)
        ranked = self.version is not None
        changes = changes_of(
            batch, self.sink.place_columns(), settings.delete_marker, settings.ordered_by, ranked=ranked
        )
        keys, writes, sizes = self.writes(changes)
        if not len(keys) == len(writes) == len(sizes) == batch.num_rows:
            raise CapabilityError(
                f"writes() returned {len(keys)} keys, {len(writes)} writes and {len(sizes)} sizes for"
                f" {batch.num_rows} rows",
                do="return one of each for each row",
            )
        return list(map(KeyedRow, keys, writes, sizes, changes.ranks.to_pylist(), repeat(batch), count()))

    def size_in_bytes(self, entry: KeyedRow) -> int:
        return entry.size

    def ordering_key(self, entry: KeyedRow) -> Hashable:
        # With versions the server decides between two rows of one key.
        return None if self.version else entry.key

    def text_of(self, entry: KeyedRow) -> str:
        return entry.text()

    def resolve(self, answers: Sequence[tuple[KeyedRow, Answer]]) -> OutfallError | None:
        """Count the answers to writes, and return the error if one must fail the query. Any thread may call it."""
        if not answers:
            return None
        with self._lock:
            self._replaced += counted(answers, by_sequence=self._by_sequence)
        settings: VersionedOptions = self.options
        alone = settings.ordered_by is None and settings.duplicate_keys == "error"
        for entry, answer in answers:
            if answer is Answer.STALE:
                return self._stale(entry)
            if alone and answer in (Answer.REPLACED, Answer.OUTRANKED):
                return self._twice(entry)
        return None

    def flush(self, end_of_input: bool) -> None:
        super().flush(end_of_input)
        with self._lock:
            counts, self._replaced = self._replaced, Counter()
        self.metrics.add_all(counts)
        if self.version is not None:
            # Recorded with the epoch.
            self.metrics.peak("max_version", self._drawn)

    def _stale(self, entry: KeyedRow) -> StaleWriterError:
        what = f"{self._refusals.rows.name('a row', entry.text())} has a newer version in {self.sink.target()}"
        if self._by_sequence:
            return StaleWriterError(
                what,
                why="it has a version that no row with a sequence has, so another client has written the key",
                do="restore the versions of the key, or remove it, with its version, and write its newest row again",
            )
        return StaleWriterError(
            what,
            why=f"a run that began later than this one (version {self._drawn}) has written the key: a backfill, another"
            " query, or the driver or task that replaced this one; or rows with a sequence, which are newer than all"
            " without one",
            do="nothing, if this driver or task was replaced; set sequence_column, if the rows of another query have a"
            " sequence; otherwise restart the query, which then has the newest"
            f" version. If that does not help, the counter {COUNTER!r} in the target was deleted: set it to a higher"
            " number than the stored versions, as the page of the sink says",
        )

    def _twice(self, entry: KeyedRow) -> ValueRefusedError:
        return ValueRefusedError(
            f"the epoch has two different rows of one key; {self._refusals.rows.name('one of them', entry.text())}",
            why="without order_column, neither of them is the later one",
            do="set order_column to a column that orders the rows of a key; or reduce the rows before writing; or set"
            ' duplicate_keys="count" to let the hash of the rows decide',
        )

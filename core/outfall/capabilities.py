"""Optional features of sinks, one small class each, combined freely (FLIP-372's mixins).

Their contexts (`outfall.contexts`) and committers (`outfall.committer`) can be imported from here too.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, runtime_checkable

from outfall.committer import CommitOutcome, CommitRequest, Committer
from outfall.contexts import (
    BufferedRows,
    CleanUpContext,
    CommittableMessage,
    CommitterInitContext,
    Metrics,
    PartSeal,
    RowIdentity,
    SealContext,
    TargetCheck,
    TargetContext,
    WriterId,
    WriterInitContext,
)
from outfall.errors import ConfigurationError
from outfall.serde import SimpleVersionedSerializer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from outfall.dead_letter import DeadLetter
    from outfall.sinks import StatelessSinkPartition
    from outfall.target_record import TargetRecord

X = TypeVar("X")
S = TypeVar("S")
C = TypeVar("C")
W = TypeVar("W")
C_co = TypeVar("C_co", covariant=True)
S_co = TypeVar("S_co", covariant=True)

SaveMode = Literal["error", "append", "overwrite"]
"""How a batch job treats existing data in the target."""

OUTPUT_MODES = ("append", "update", "complete")
"""Spark's output modes of a streaming query."""

__all__ = [
    "OUTPUT_MODES",
    "BufferedRows",
    "CleanUpContext",
    "CommitOutcome",
    "CommitRequest",
    "CommittableMessage",
    "Committer",
    "CommitterInitContext",
    "CommittingSinkPartition",
    "DeclaresCapabilities",
    "DeclaresGuarantee",
    "DeclaresKind",
    "DeclaresRoutingKey",
    "Guarantee",
    "Metrics",
    "PartSeal",
    "RowIdentity",
    "SaveMode",
    "SealContext",
    "SnapshotsWriterState",
    "SupportsArrow",
    "SupportsBufferedRows",
    "SupportsCommitter",
    "SupportsDeadLetters",
    "SupportsFlush",
    "SupportsPostCommitTopology",
    "SupportsPreCommitTopology",
    "SupportsPreWriteTopology",
    "SupportsSeal",
    "SupportsSparkWriter",
    "SupportsStateSerializer",
    "SupportsTarget",
    "SupportsWriterContext",
    "SupportsWriterState",
    "TargetCheck",
    "TargetContext",
    "WithCompatibleState",
    "WriterId",
    "WriterInitContext",
    "class_name",
    "no_save_mode",
    "shown_name",
]


class Guarantee(IntEnum):
    """The guarantee for a reader of the target, weakest first."""

    AT_LEAST_ONCE = 1
    """The target contains each row at least once."""
    EFFECTIVELY_ONCE = 2
    """A write may be sent again, and the receiver recognizes it by the key or the version that it carries.

    Once the epochs are completed, the target is as one run without failures leaves it, if `requires()` holds. A reader
    can see parts of an epoch before.
    """
    EXACTLY_ONCE = 3
    """The target contains each row exactly once."""


class SupportsCommitter(ABC, Generic[C]):
    """On a sink: two-phase commit. Its partitions must be `CommittingSinkPartition`s."""

    @abstractmethod
    def create_committer(self, context: CommitterInitContext) -> Committer[C]:
        """Return the committer of one epoch. Called on the driver."""

    @abstractmethod
    def committable_serializer(self) -> SimpleVersionedSerializer[C]:
        """Return the serializer that the recovery data stores committables with."""


@runtime_checkable
class CommittingSinkPartition(Protocol[C_co]):
    """On a partition: returns committables for data that is written but not yet visible."""

    def prepare_commit(self) -> Sequence[C_co]:
        """Finish writing and return the committables, as a list or tuple.

        Called once per epoch in the task, after the last flush and before the snapshot. The data of the committables
        must be durable and invisible. The partition gets no values afterwards.
        """


class SupportsWriterState(ABC, Generic[X, S]):
    """On a dynamic sink: state that outlives the epoch. Its partitions must have `snapshot_state`."""

    @abstractmethod
    def restore_writer(self, context: WriterInitContext, recovered: Sequence[S]) -> StatelessSinkPartition[X]:
        """Open a writer that continues from recorded states. Called instead of `build`.

        Called in a task if at least one state is recorded for it. After rescaling, one writer may get several states
        and another none. Each state is given to exactly one writer.
        """

    def keeps_writer_state(self) -> bool:
        """Return whether the sink keeps state under its options. If not, it requires no fixed number of tasks.

        States that were recorded under other options are still given to `restore_writer`.
        """
        return True

    @abstractmethod
    def writer_state_serializer(self) -> SimpleVersionedSerializer[S]:
        """Return the serializer that the recovery data stores writer states with."""


class WithCompatibleState(ABC):
    """On a `SupportsWriterState` sink: adopts the states of other steps in the same recovery data, once."""

    @abstractmethod
    def compatible_writer_state_names(self) -> Sequence[str]:
        """Return the ids of the steps whose states this step may adopt when it first begins."""


@runtime_checkable
class SnapshotsWriterState(Protocol[S_co]):
    """On a partition of a `SupportsWriterState` sink."""

    def snapshot_state(self, epoch: int) -> Sequence[S_co]:
        """Return zero or more states, as a list or tuple, from which a writer can continue after the last value."""


class SupportsStateSerializer(ABC, Generic[S]):
    """On a fixed sink: serializes the states of its parts. Default: JSON, if it restores the state unchanged."""

    @abstractmethod
    def state_serializer(self) -> SimpleVersionedSerializer[S]:
        """Return the serializer that the recovery data stores the parts' states with."""


class SupportsPreWriteTopology(ABC):
    """On a sink: changes the DataFrame before it is written. Python API only."""

    @abstractmethod
    def add_pre_write_topology(self, df: DataFrame) -> DataFrame:
        """Repartition, sort or cast. Called on the driver, once per epoch.

        Every partition of `df` must still be read. A stateful query fails after a `limit`, for example.
        """


class SupportsSparkWriter:
    """On a committing dynamic sink: Spark's own writer writes the rows, which never reach Python. Python API only.

    The sink's `build` is called once per epoch, on the driver, as for a single task. What it returns has
    `write_frame(rows) -> int` in place of `write_batch`: it lets Spark write the rows (`outfall.spark.own_writer`) to a
    place of the attempt, and returns their number. `prepare_commit` follows as in a task. Nothing that late tasks of
    Spark write after `write_frame` has returned may become visible.
    """

    checks_columns: ClassVar[bool] = False
    """Whether `check_schema` of its `SupportsTarget` is called, with Arrow types although no row becomes Arrow."""


class SupportsPreCommitTopology(ABC, Generic[W, C]):
    """On a committing sink: turns the write results of the tasks into committables, of any type and number."""

    @abstractmethod
    def add_pre_commit_topology(self, results: Sequence[CommittableMessage[W]]) -> Sequence[CommittableMessage[C]]:
        """Combine write results. Called on the driver after all tasks have returned, before anything is recorded.

        Both the results and the return value may be empty. The current epoch replaces the epoch of each returned
        message. The method must be idempotent.
        """

    @abstractmethod
    def write_result_serializer(self) -> SimpleVersionedSerializer[W]:
        """Return the serializer that carries write results from task to driver."""


class SupportsPostCommitTopology(ABC, Generic[C]):
    """On a committing sink: acts on committed data, for example to compact it."""

    @abstractmethod
    def add_post_commit_topology(self, committed: Sequence[CommittableMessage[C]]) -> None:
        """Act on the epoch's committables. Called on the driver after all are resolved, and again after a crash."""


@runtime_checkable
class SupportsFlush(Protocol):
    """On a partition: buffers values."""

    def flush(self, end_of_input: bool) -> None:
        """Send all buffered values. Called once after the last value of an epoch, without an argument if it takes none.

        Args:
            end_of_input: Whether no value may remain buffered. True at the end of every epoch, because the end of a
                stream is not visible to a sink. For a `SupportsBufferedRows` sink, true only in a drain and at the end
                of a batch job.
        """


class SupportsBufferedRows(ABC, Generic[S]):
    """On a sink: may buffer rows across epochs, in the state of a part or in writer states.

    Its partitions must have `flush`. At the end of an epoch, `flush` is called with `end_of_input=False`: rows that are
    not sent then must be in the state. In a drain and at the end of a batch job it is called with `end_of_input=True`:
    only rows that cannot be in one epoch with the delivered rows may remain. A drain repeats until none remain.
    A wrapper passes True to a sink without this class.
    """

    @abstractmethod
    def buffered_rows(self, state: S) -> BufferedRows:
        """Return the number and age of the rows in a state.

        Called in the task for each state that it returns, before the state is stored. Depends on the state alone.
        """

    def max_time_in_buffer(self) -> timedelta:
        """Return the age of a buffered row from which the driver warns of it. Defaults to an hour.

        A sink that delivers rows at a configured age returns this age. Called on the driver after an epoch.
        """
        return timedelta(hours=1)


@runtime_checkable
class SupportsArrow(Protocol):
    """On a partition: takes Arrow batches, without a Python object per row."""

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch in their order. Called instead of `write_batch`."""


@runtime_checkable
class SupportsDeadLetters(Protocol):
    """On a partition: passes permanently rejected records on instead of failing."""

    def dead_letters_to(self, take: Callable[[Sequence[DeadLetter]], None]) -> None:
        """Pass rejected records to `take` from now on. Called once after building. Without it, a rejection is an error.

        Args:
            take: Keeps the records in the same epoch. If it raises, the query fails. Call it in the thread of the task,
                and not after the last flush and `prepare_commit` have returned. Count the records as `dead_letters`
                in the metrics of the writer context.
        """


MAX_DEAD_LETTERS = 1000
"""The maximum number of rejected records per epoch, unless the options of a sink set another one."""


class SupportsDeadLetterSink:
    """On a sink: declares that its partitions have `SupportsDeadLetters`, so that another sink can take the records.

    The sink declares it because it is combined with the other sink before its partitions exist.
    """

    def max_dead_letters(self) -> int:
        """Return the maximum number of rejected records per epoch."""
        return MAX_DEAD_LETTERS


class SupportsCountCheck(ABC):
    """On a sink: may reject an epoch by the counters of its tasks."""

    @abstractmethod
    def check_counts(self, counts: Mapping[str, int], examples: Mapping[str, str]) -> None:
        """Check the counters of an epoch. Called on the driver after all tasks have returned, before PREPARED.

        Args:
            counts: The sums over the tasks.
            examples: A text of `Metrics.example` by the name of its counter.

        Raises:
            OutfallError: The epoch is rejected. It is not recorded, and no data of it is published unless its tasks
                have already published it.
        """


class SupportsWriterContext:
    """On a sink: receives step, incarnation, generation, epoch and attempt. Required for fencing and staging names."""

    context: WriterInitContext | None = None
    """The context of the attempt that writes, in the copy that `bind` returned."""

    def bind(self, context: WriterInitContext) -> Self:
        """Return a copy with this context. Called in a task before `build` or `build_part`. Has no side effect."""
        return changed(self, context=context)

    def writer_context(self) -> WriterInitContext:
        """Return the context of the attempt that writes.

        Raises:
            ConfigurationError: `bind` was not called.
        """
        if self.context is None:
            raise ConfigurationError(
                f"{shown_name(self)} has no writer context", do="run it with outfall, which calls bind() first"
            )
        return self.context


class DeclaresKind:
    """On a sink: names its kind. Every `SupportsTarget` sink does, and every sink that delegates to another one."""

    def kind(self) -> str:
        """Return a stable name of the kind of sink, stored in the log. Defaults to the class name."""
        return class_name(self)


class SupportsTarget(DeclaresKind, ABC, Generic[S]):
    """On a sink: names, checks, opens and cleans up its target. Only `target` is required, the rest has defaults.

    The order in an epoch: the columns are checked, the target is compared with the recovery data, BEGIN is written, the
    target is opened. After the epoch is completed, the data of failed attempts is removed.
    """

    reselects_base_states: bool = False
    """Whether `check_target` may replace a state that it returned earlier, as long as no epoch is recorded. For a part
    that has a state, it then returns one only if no data can have been written since."""

    @abstractmethod
    def target(self) -> str:
        """Return a stable name of the target, without secrets. If it changes between restarts, the query fails."""

    def place(self) -> str:
        """Return the current location of the target: unique per target, and the same for all names of one target.

        Called on the driver before each epoch if several sinks are written in one step. No two sinks of one kind (up
        to the first `/` of `kind`) may write to one location. A location that ends with `/` contains every location
        that begins with it, and those are rejected too. The value is never recorded. It may therefore contain a
        host name, which `target` omits if the name may change. Defaults to `target`.
        """
        return self.target()

    def row_identity(self) -> RowIdentity | None:
        """Return what identifies a row in the target, without secrets, if rows are written by key.

        Called on the driver before each epoch, and contacts nothing. Stored in the log at each BEGIN. If it changes
        once an epoch is recorded, the query fails, since rows of one key would no longer meet in the target. An order
        or a marker of deletes may be added, and the marker may get another name.

        Returns:
            The identity, or `None` if each row is added. Defaults to `None`.
        """
        return None

    def applies_key_at_commit(self) -> bool:
        """Return whether a commit applies the row identity of the running query to what earlier tasks have staged.

        Called on the driver before each epoch. If it does, the identity may also change while an epoch is recorded,
        until its commit begins. Defaults to `False`.
        """
        return False

    def owns_target(self) -> bool:
        """Return whether the sink takes over the data in its target, so that no other sink may write there.

        A sink that only sends requests reads nothing, and other sinks may send to the same location. The default is
        false for a sink that neither checks its target, nor commits, seals or cleans up there.
        """
        kind = type(self)
        acts = isinstance(self, SupportsCommitter | SupportsSeal) or kind.clean_up is not SupportsTarget.clean_up
        return acts or kind.check_target is not SupportsTarget.check_target

    def recovery_location(self) -> str | None:
        """Return a recovery location in the target's own database, for an error about a location that cannot be used.

        It contains no secret, only references such as `password=env:NAME`, and belongs to no other query.

        Returns:
            A URL, or `None` if the target is not such a database. Defaults to `None`.
        """
        return None

    def check_connection(self) -> Sequence[str]:
        """Connect to the destination and check the permissions, for `outfall doctor`. Leaves nothing behind.

        Called in any process, without a query. Sends no row.

        Returns:
            One short sentence per successful check, and per property that cannot be checked. Empty by default.

        Raises:
            OutfallError: A check failed. States why, and what to do.
        """
        return ()

    def row_schema(self) -> pa.Schema | None:
        """Return the columns that a row may have, for `outfall replay`, which parses rows from text.

        Called in any process, without a query. A column takes values of its type. A string column may also take the
        text form of another type, if the target parses it.

        Returns:
            The columns, or `None` if the target does not define them. Defaults to `None`.

        Raises:
            OutfallError: The target cannot be read.
        """
        return None

    def check_schema(self, schema: pa.Schema) -> None:
        """Reject columns that cannot be written. Called on the driver before each epoch, before any data moves.

        Args:
            schema: The Arrow schema of the batches.

        Raises:
            ConfigurationError: Names each rejected column, its type, and what to do.
        """

    def check_target(self, context: TargetContext[S]) -> Mapping[str, S] | TargetCheck[S]:
        """Reject a target that contradicts the recovery data. Changes nothing.

        Called on the driver before the BEGIN of each epoch, and before the rows of a completed batch are skipped. A
        sink remembers nothing between this call and `open_target`: it returns a `TargetCheck` instead.

        Returns:
            The start state of parts that have none yet. A sink that writes in place returns a state for each such
            part, even an empty one, because `seal` is called only for parts with a state. Until an epoch is recorded, a
            sink with `reselects_base_states` may return other states than before.

        Raises:
            TargetNotEmptyError: On the first run, the target contains data of another writer.
            TargetLostError: The target contains less than was recorded.
            TargetAheadError: The target contains later epochs than were recorded.
        """
        return {}

    def find_moved(self, context: TargetContext[S], recorded: str) -> TargetRecord | None:
        """Find the step's record in a target that has another name than recorded, for `outfall move`. Changes nothing.

        Called on the driver, before recorded epochs of earlier runs are resolved. Implement it if `target` contains an
        address and the target keeps a record of the step.

        Args:
            context: The state of the recovery data. Its generation and token are those of the newest BEGIN, so that
                `outfall.target_record.check_opening` compares the record with it.
            recorded: What `target` returned for that BEGIN.

        Returns:
            The record. `None`, the default, means that the target keeps none: the user then decides.

        Raises:
            ConfigurationError: More than the address has changed.
            TargetLostError: The target has no record of the step, or an older one.
            FencedError: Another driver has opened the target.
        """
        return None

    def move_target(self, context: TargetContext[S], recorded: str) -> None:
        """Rename what the target keeps under a name that contains the recorded address. Must be idempotent.

        Called after `find_moved` with the same arguments, before recorded epochs are resolved. Without effect by
        default.
        """

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        """Return a copy that treats existing data in the target according to a save mode of Spark.

        Called on the driver for a batch job, before it begins. The default accepts "append" and `None`.

        Args:
            mode: "error" rejects a target with data (`TargetNotEmptyError`), "append" keeps the data, "overwrite"
                replaces it. `None` applies the sink's options, or "error".

        Raises:
            ConfigurationError: The sink does not support the mode, or its options contradict it.
        """
        if mode in ("error", "overwrite"):
            raise no_save_mode(self, mode)
        return self

    def output_modes(self) -> Collection[str]:
        """Return the output modes of streaming queries that the sink accepts.

        In mode `update`, Spark sends a row again after each change. In mode `complete`, it sends all rows in every
        epoch.
        """
        return OUTPUT_MODES

    def open_target(self, context: TargetContext[S]) -> None:
        """Create directories, markers or tables for the tasks. Called after each BEGIN. Must be idempotent."""

    def clean_up(self, context: CleanUpContext) -> int:
        """Remove data of failed attempts: names with this incarnation and a generation below that of the context.

        Called on the driver after an epoch is completed, and before the epoch of a failed attempt is written again. At
        these times no record names data of an older generation, except the states, which the context reads. Data that
        a state names must remain. Never removes data of another writer, and never decides by age.

        Returns:
            The number of removed objects.
        """
        return 0

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str] | None:
        """Return what `clean_up` would remove with the same context, for `outfall gc` without `--yes`.

        Changes nothing. The result may be outdated by the time of `clean_up`.

        Returns:
            One readable name per object, without secrets. `None` if the sink cannot determine it, which is the default
            if the sink has a `clean_up`.
        """
        return () if type(self).clean_up is SupportsTarget.clean_up else None

    def withdraw(self, context: CleanUpContext) -> None:
        """Release a target that was opened and in which no epoch is completed, so that the next run finds it unchanged.

        Removes the marks of this incarnation. Called on the driver for a batch job without recovery data that failed
        before anything was recorded, after `open_target`, `seal` and `clean_up` with a new generation. By then all
        data of the job is removed, and its zombie tasks are fenced. Must be idempotent.
        """


class SupportsSeal(ABC, Generic[S]):
    """On a fixed sink that writes in place: closes each part before its state is recorded."""

    @abstractmethod
    def seal(self, context: SealContext, parts: Sequence[PartSeal[S]]) -> None:
        """Check the parts, and close them to every writer of this epoch or an older generation.

        Called on the driver after all tasks have returned. Under each part's lock, the last writer must be the recorded
        winner, and the content must end where the state says. A part without a task result is truncated to its state.

        Raises:
            SealError: Another attempt wrote last. The epoch runs again.
        """


class DeclaresCapabilities(ABC):
    """On a sink or a partition: declares which features of its class it has under its options.

    For classes that have a feature only in some write modes, and for sinks that delegate to another sink. The
    declaration takes precedence over the base classes.
    """

    @abstractmethod
    def capabilities(self) -> Collection[type]:
        """Return the classes that apply. The result must not change.

        Valid are classes of `outfall.capabilities`, and for a sink also `FixedPartitionedSink` or `DynamicSink`.
        """


class DeclaresGuarantee(ABC):
    """On a sink: declares its guarantee. The conformance suite tries to refute it."""

    @abstractmethod
    def guarantee(self) -> Guarantee:
        """Return the guarantee under the options of the sink."""

    def requires(self) -> Sequence[str]:
        """Return the conditions of the guarantee on source, receiver and environment, one short sentence each."""
        return ()

    def needs_same_rows(self) -> bool:
        """Return whether the guarantee requires the same rows in a replay, in any order and in any batches.

        Wrappers that choose the rows of an epoch reject such a sink.
        """
        return False

    def replaces_rows(self) -> bool:
        """Return whether a row can replace or delete a row of an earlier epoch in the target, as with upserts.

        Wrappers that deliver some rows of an epoch after those of the next one reject such a sink.
        """
        return False

    def supports_speculation(self) -> bool:
        """Return whether Spark may run two attempts of a task in parallel. If not, `spark.speculation` is rejected."""
        return True


class DeclaresRoutingKey(ABC):
    """On a fixed sink: names the column that routes rows to its parts if the user names none."""

    @abstractmethod
    def routing_key(self) -> str | None:
        """Return the name of the column, or `None` if the user must name one."""


def no_save_mode(sink: object, mode: str) -> ConfigurationError:
    """Return the error for a save mode of a sink that supports only "append"."""
    return ConfigurationError(
        f"{shown_name(sink)} cannot be written with mode={mode!r}",
        why='the only save mode that the sink supports is "append"',
        do='pass mode="append", or write to a new target',
    )


def shown_name(sink: object) -> str:
    """Return the class name of a sink for messages: `shown_as` if set, which names the public class around it."""
    return getattr(type(sink), "shown_as", None) or type(sink).__name__


def class_name(sink: object) -> str:
    """Return the qualified class name of a sink."""
    return f"{type(sink).__module__}.{type(sink).__qualname__}"


def changed(sink: S, **attributes: Any) -> S:
    """Return a copy of a sink with other values of these attributes, for `bind` and `in_save_mode`."""
    copied = copy.copy(sink)
    for name, value in attributes.items():
        setattr(copied, name, value)
    return copied

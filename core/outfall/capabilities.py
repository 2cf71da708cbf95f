"""Optional features of sinks, one small class each, combined freely (FLIP-372's mixins).

Those of two-phase commit (`outfall.committer`) and of targets (`outfall.targets`), and the contexts of all
(`outfall.contexts`), are imported from here too.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar, runtime_checkable

from outfall.committer import (
    CommitOutcome,
    CommitRequest,
    Committer,
    CommittingSinkPartition,
    SupportsCommitter,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
)
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
from outfall.targets import (
    OUTPUT_MODES,
    DeclaresKind,
    SaveMode,
    SupportsSeal,
    SupportsTarget,
    class_name,
    no_save_mode,
    shown_name,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from outfall.dead_letter import DeadLetter
    from outfall.sinks import StatelessSinkPartition

X = TypeVar("X")
S = TypeVar("S")
C = TypeVar("C")
W = TypeVar("W")
C_co = TypeVar("C_co", covariant=True)
S_co = TypeVar("S_co", covariant=True)

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

    def keeps_newer_rows(self) -> bool:
        """Return whether no row replaces or deletes a newer one of its key, in whatever epoch, query or run it arrives.

        As with a sequence that the target keeps for each key, also for a deleted one. Matters only if `replaces_rows`
        returns true: `outfall replay` then rejects a sink that returns false, since its rows were rejected earlier.
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


def changed(sink: S, **attributes: Any) -> S:
    """Return a copy of a sink with other values of these attributes, for `bind` and `in_save_mode`."""
    copied = copy.copy(sink)
    for name, value in attributes.items():
        setattr(copied, name, value)
    return copied

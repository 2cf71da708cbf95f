"""Optional features of sinks, one small class each, combined freely (FLIP-372's mixins).

Their contexts (`outfall.contexts`) and committers (`outfall.committer`) can be imported from here too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar, runtime_checkable

from outfall.committer import CommitOutcome, CommitRequest, Committer
from outfall.contexts import (
    CommittableMessage,
    CommitterInitContext,
    HeldRows,
    Metrics,
    PartSeal,
    SealContext,
    SweepContext,
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

X = TypeVar("X")
S = TypeVar("S")
C = TypeVar("C")
W = TypeVar("W")
C_co = TypeVar("C_co", covariant=True)
S_co = TypeVar("S_co", covariant=True)

SaveMode = Literal["error", "append", "overwrite"]
"""What a batch job does with what the target holds."""

OUTPUT_MODES = ("append", "update", "complete")
"""Spark's output modes of a streaming query."""

__all__ = [
    "OUTPUT_MODES",
    "CommitOutcome",
    "CommitRequest",
    "CommittableMessage",
    "Committer",
    "CommitterInitContext",
    "CommittingSinkPartition",
    "DeclaresGuarantee",
    "Guarantee",
    "HeldRows",
    "Metrics",
    "PartSeal",
    "SaveMode",
    "SealContext",
    "SnapshotsWriterState",
    "SupportsArrow",
    "SupportsChildren",
    "SupportsCommitter",
    "SupportsConnectionCheck",
    "SupportsDeadLetters",
    "SupportsFlush",
    "SupportsHeldRows",
    "SupportsLeftovers",
    "SupportsNamedStates",
    "SupportsPostCommitTopology",
    "SupportsPreCommitTopology",
    "SupportsPreWriteTopology",
    "SupportsSchemaCheck",
    "SupportsSeal",
    "SupportsStateSerializer",
    "SupportsSweep",
    "SupportsTarget",
    "SupportsWithdrawal",
    "SupportsWriterContext",
    "SupportsWriterState",
    "SweepContext",
    "TargetContext",
    "WithCompatibleState",
    "WriterId",
    "WriterInitContext",
    "class_name",
    "no_save_mode",
]


class Guarantee(IntEnum):
    """What a reader of the target finds, weakest first."""

    AT_LEAST_ONCE = 1
    """Every row, some perhaps more than once."""
    EFFECTIVELY_ONCE = 2
    """Every row once, if the receiver honours the idempotency key that it is sent."""
    EXACTLY_ONCE = 3
    """Every row once."""


class SupportsCommitter(ABC, Generic[C]):
    """On a sink: two-phase commit. Its partitions must be `CommittingSinkPartition`s."""

    @abstractmethod
    def create_committer(self, context: CommitterInitContext) -> Committer[C]:
        """Make the committer of one epoch. Called on the driver."""

    @abstractmethod
    def committable_serializer(self) -> SimpleVersionedSerializer[C]:
        """Return the serializer that the recovery data stores committables with."""


@runtime_checkable
class CommittingSinkPartition(Protocol[C_co]):
    """On a partition: hands over what is written but not yet visible."""

    def prepare_commit(self) -> Sequence[C_co]:
        """Finish writing and return handles to it, as a list or tuple.

        Called once per epoch in the task, after the last flush and before the snapshot. What the handles name must be
        durable and invisible. Nothing may be written afterwards.
        """


class SupportsWriterState(ABC, Generic[X, S]):
    """On a dynamic sink: state that outlives the epoch. Its partitions must have `snapshot_state`."""

    @abstractmethod
    def restore_writer(self, context: WriterInitContext, recovered: Sequence[S]) -> StatelessSinkPartition[X]:
        """Open a writer that goes on from recorded states, in place of `build`.

        Called in a task when at least one state was recorded for it. After rescaling one writer may get several states
        and others none; each is consumed by exactly one.
        """

    def keeps_writer_state(self) -> bool:
        """Whether it leaves state behind under its options. If not, it needs no fixed number of tasks.

        States that were recorded under other options are brought to `restore_writer` all the same.
        """
        return True

    @abstractmethod
    def writer_state_serializer(self) -> SimpleVersionedSerializer[S]:
        """Return the serializer that the recovery data stores writer states with."""


class WithCompatibleState(ABC):
    """On a `SupportsWriterState` sink: adopts once the states of other steps in the same recovery data."""

    @abstractmethod
    def compatible_writer_state_names(self) -> Sequence[str]:
        """Return the ids of the steps whose states may be adopted when this step begins for the first time."""


@runtime_checkable
class SnapshotsWriterState(Protocol[S_co]):
    """On a partition of a `SupportsWriterState` sink."""

    def snapshot_state(self, epoch: int) -> Sequence[S_co]:
        """Return a list or tuple of zero or more states that describe what is to go on after the last value written."""


class SupportsStateSerializer(ABC, Generic[S]):
    """On a fixed sink: how its parts' states are stored. Without it as JSON, if JSON gives them back unchanged."""

    @abstractmethod
    def state_serializer(self) -> SimpleVersionedSerializer[S]:
        """Return the serializer that the recovery data stores the parts' states with."""


class SupportsNamedStates(ABC):
    """On a fixed sink whose parts keep several states each, every one under a name of its own: a sink made of sinks.

    `build_part` then gets a mapping from name to state, or `None` when there is none, and `snapshot()` returns one; a
    name that it leaves out keeps its state. `check_target` and `seal` speak of these names instead of parts.
    """

    @abstractmethod
    def state_names(self, part: str) -> Sequence[str]:
        """Return the names of a part's states. No two parts share one, and names outlive the names of the parts."""

    @abstractmethod
    def named_state_serializer(self, name: str) -> SimpleVersionedSerializer[Any]:
        """Return the serializer that the recovery data stores the state of this name with."""


class SupportsChildren(ABC):
    """On a sink that consists of others: names them, so that the recovery data knows which it is of."""

    @abstractmethod
    def children(self) -> Mapping[str, Any]:
        """Return the sinks by name. A name says which child it was before a restart, whatever the order.

        A child that the recovery data knows and that is gone, or writes elsewhere now, stops the query; a new one
        starts fresh.
        """


class SupportsPreWriteTopology(ABC):
    """On a sink: changes the DataFrame before it is written. Objects only."""

    @abstractmethod
    def add_pre_write_topology(self, df: DataFrame) -> DataFrame:
        """Repartition, sort or cast. Called on the driver, once per epoch.

        Every partition of `df` must still be read: after `limit` a stateful query cannot go on.
        """


class SupportsPreCommitTopology(ABC, Generic[W, C]):
    """On a committing sink: turns what the tasks hand over into committables. May change their type and number."""

    @abstractmethod
    def add_pre_commit_topology(self, results: Sequence[CommittableMessage[W]]) -> Sequence[CommittableMessage[C]]:
        """Combine write results. Called on the driver after all tasks answered, before anything is recorded.

        There may be none, and none may be returned. The epoch is the one under way, whatever a returned message says.
        Must have no side effect that a second run would not repeat harmlessly.
        """

    @abstractmethod
    def write_result_serializer(self) -> SimpleVersionedSerializer[W]:
        """Return the serializer that carries write results from task to driver."""


class SupportsPostCommitTopology(ABC, Generic[C]):
    """On a committing sink: acts on what was committed."""

    @abstractmethod
    def add_post_commit_topology(self, committed: Sequence[CommittableMessage[C]]) -> None:
        """Follow up. Called on the driver after all committables are resolved. Idempotent: a crash repeats it."""


@runtime_checkable
class SupportsFlush(Protocol):
    """On a partition: holds values back."""

    def flush(self, end_of_input: bool) -> None:
        """Send what is held back. Called once after the last value of an epoch; without an argument if it takes none.

        Args:
            end_of_input: whether nothing may be held back. True at the end of every epoch, since a stream has no end
                that a sink could see; for a `SupportsHeldRows` sink only in a drain and at the end of a batch job.
        """


class SupportsHeldRows(ABC, Generic[S]):
    """On a sink: may hold rows back across epochs, in the state of a part or in writer states.

    Its partitions must have `flush`, which is called with `end_of_input=False` at the end of an epoch: what is not sent
    then must be in the state. With `end_of_input=True`, in a drain and at the end of a batch job, nothing may be left
    but rows that cannot go into one epoch with those delivered; a drain comes again until there are none.
    A wrapper passes True on to a target that has not this class.
    """

    @abstractmethod
    def held_rows(self, state: S) -> HeldRows:
        """Count the rows that a state holds.

        Called in the task for each state that it hands over, before it is stored. Depends on the state alone.
        """


@runtime_checkable
class SupportsArrow(Protocol):
    """On a partition: takes Arrow batches, so that no row ever becomes a Python object."""

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch in their order, in place of `write_batch`."""


@runtime_checkable
class SupportsDeadLetters(Protocol):
    """On a partition: hands over the records that its destination refuses for good, instead of failing on them."""

    def dead_letters_to(self, take: Callable[[Sequence[DeadLetter]], None]) -> None:
        """Hand refused records to `take` from now on. Called once after building; without it a refusal is an error.

        Args:
            take: keeps them in the same epoch; when it raises, the query stops. To be called in the task's thread, and
                no more once the last flush and `prepare_commit` have returned. What it took is to be counted as
                `dead_letters` in the metrics of the writer context.
        """


class SupportsDeadLetterSink:
    """On a sink: its partitions have `SupportsDeadLetters`, so that another sink can take what they refuse.

    Said by the sink, since its partitions are not there yet when it is put together with the other one.
    """


class SupportsWriterContext(ABC):
    """On a sink: learns who writes. Needed for fencing and for staging names."""

    @abstractmethod
    def bind(self, context: WriterInitContext) -> Self:
        """Return a copy that knows the context. Called in a task before `build` or `build_part`; changes nothing."""


class SupportsTarget(ABC, Generic[S]):
    """On a sink: knows its target, and compares it with the recovery data."""

    chooses_bases_anew: bool = False
    """Whether `check_target` may replace a state that it returned before, as long as no epoch is recorded. It then
    returns one for a part that has one only where nothing can have been written since."""

    def kind(self) -> str:
        """Return a stable name of the sink's kind. The default is the class's; a built-in keeps its own when moved."""
        return class_name(self)

    @abstractmethod
    def target(self) -> str:
        """Return a stable name of the target, free of secrets. A change of it between restarts stops the query."""

    def place(self) -> str:
        """Return where the target is today: another text than any other target's, the same by whatever name.

        Called on the driver before each epoch, where several sinks are written in one step: no two of one kind (up to
        its first `/`) may write to one place. A place that ends with `/` holds every place that begins with it, and
        those are refused beside it too. Never recorded, so that it may name a host, which `target` leaves out if it may
        change. The default is what `target` returns.
        """
        return self.target()

    def check_target(self, context: TargetContext[S]) -> Mapping[str, S]:
        """Refuse a target that is not what the recovery data says, and change nothing.

        Called on the driver before each epoch's BEGIN is written.

        Returns:
            The state to start from, for parts that have none yet. A sink that writes in place returns one for each such
            part, also an empty one: `seal` is called for parts with a state only. Until an epoch is recorded a
            sink that `chooses_bases_anew` may return others than before.

        Raises:
            TargetNotEmptyError: first contact, and somebody's data is there.
            TargetLostError: less is there than was recorded.
            TargetAheadError: later epochs are there than were recorded.
        """
        return {}

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        """Return a copy that does with what its target holds as a save mode of Spark's says.

        Called on the driver for a batch job, before anything is begun. The default takes whatever comes to a target
        that it does not look at.

        Args:
            mode: "error" refuses a target that holds data, by `TargetNotEmptyError`; "append" keeps the data,
                "overwrite" replaces it. `None` is as the sink's options say, or "error".

        Raises:
            ConfigurationError: the sink cannot do that, or its options say otherwise.
        """
        if mode in ("error", "overwrite"):
            raise no_save_mode(self, mode)
        return self

    def output_modes(self) -> Collection[str]:
        """Return which output modes a streaming query may have whose rows come as they are.

        In `update` a row comes again whenever it changes, in `complete` all rows come in every epoch.
        """
        return OUTPUT_MODES

    def open_target(self, context: TargetContext[S]) -> None:
        """Make what the tasks need: directories, markers, tables. Called after each BEGIN is written; idempotent."""


class SupportsSeal(ABC, Generic[S]):
    """On a fixed sink that writes in place: makes each part final before its state is recorded."""

    @abstractmethod
    def seal(self, context: SealContext, parts: Sequence[PartSeal[S]]) -> None:
        """Check and close the parts against every writer of this epoch or an older generation.

        Called on the driver after all tasks answered. Under each part's lock: the last writer must be the recorded
        winner and the content must end where the state says; a part that no task answered for is cut back to its state.

        Raises:
            SealError: another attempt wrote last; the epoch runs again.
        """


class SupportsSweep(ABC):
    """On a sink: removes what lost attempts left behind."""

    @abstractmethod
    def sweep(self, context: SweepContext) -> int:
        """Remove what carries our incarnation and a generation below the context's.

        Called on the driver after an epoch is completed, and before a lost attempt's epoch is written again, when no
        record but the states names anything of an older generation; what a state names, which the context reads, is to
        be left. Never removes anything of others, and never goes by age.

        Returns:
            How many things were removed.
        """


class SupportsLeftovers(ABC):
    """On a `SupportsSweep` sink: says beforehand what a sweep would remove, for `outfall gc` without `--yes`."""

    @abstractmethod
    def find_leftovers(self, context: SweepContext) -> Sequence[str]:
        """Return what `sweep` would remove with the same context, one name for people each, free of secrets.

        Changes nothing. Between the two calls more may come, or a query may sweep by itself.
        """


class SupportsWithdrawal(ABC):
    """On a `SupportsTarget` sink: gives up a target that it has opened, and in which it has completed no epoch."""

    @abstractmethod
    def withdraw(self, context: SweepContext) -> None:
        """Remove what says that this incarnation writes there, so that the next one finds the target as it was.

        Called on the driver for a batch job without recovery data that failed before anything was recorded, after
        `open_target`, `seal` and `sweep` with a generation of its own: nothing of the job is there any more, and its
        late tasks are fenced. Idempotent.
        """


class SupportsConnectionCheck(ABC):
    """On a sink: tries its destination, for `outfall doctor`, after `SupportsTarget.check_target`."""

    @abstractmethod
    def check_connection(self) -> Sequence[str]:
        """Connect, look whether the rights suffice, and leave nothing behind.

        Called in any process, with no query around it; no row is sent.

        Returns:
            What was found to work, one short sentence each; what it cannot find out is said too.

        Raises:
            OutfallError: what does not work, why, and what to do.
        """


class SupportsSchemaCheck(ABC):
    """On a sink: sees the columns before any data moves."""

    @abstractmethod
    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse columns that cannot be written. Called on the driver before each epoch.

        Args:
            schema: the Arrow schema of the batches to come.

        Raises:
            ConfigurationError: naming each column, its type and what to do.
        """


class DeclaresGuarantee(ABC):
    """On a sink: says what it promises. The conformance suite tries to refute it."""

    @abstractmethod
    def guarantee(self) -> Guarantee:
        """Return the guarantee under the sink's own options."""

    def requires(self) -> Sequence[str]:
        """Return what source, receiver or surroundings must do for it, one short sentence each."""
        return ()

    def needs_same_rows(self) -> bool:
        """Whether it stands only where an epoch that is run again brings the same rows, in whatever order and batches.

        Such a sink is refused where a wrapper would choose which rows an epoch has.
        """
        return False


def no_save_mode(sink: object, mode: str) -> ConfigurationError:
    """Make the refusal of a save mode by a sink that adds rows and does not see what is there."""
    return ConfigurationError(
        f"{type(sink).__name__} cannot be written with mode={mode!r}",
        why="it adds rows, and neither sees nor replaces what its target holds",
        do='pass mode="append"',
    )


def class_name(sink: object) -> str:
    """Name a sink's class with its module."""
    return f"{type(sink).__module__}.{type(sink).__qualname__}"

"""Optional features of sinks, one small class each, combined freely (FLIP-372's mixins).

Their contexts (`outfall.contexts`) and committers (`outfall.committer`) can be imported from here too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Generic, Literal, Protocol, Self, TypeVar, runtime_checkable

from outfall.committer import CommitOutcome, CommitRequest, Committer
from outfall.contexts import (
    BufferedRows,
    CleanUpContext,
    CommittableMessage,
    CommitterInitContext,
    Metrics,
    PartSeal,
    SealContext,
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
    "DeclaresRoutingKey",
    "Guarantee",
    "Metrics",
    "PartSeal",
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
    "SupportsStateSerializer",
    "SupportsTarget",
    "SupportsWriterContext",
    "SupportsWriterState",
    "TargetContext",
    "WithCompatibleState",
    "WriterId",
    "WriterInitContext",
    "class_name",
    "no_save_mode",
    "shown_name",
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


class SupportsPreWriteTopology(ABC):
    """On a sink: changes the DataFrame before it is written. Python API only."""

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
                that a sink could see; for a `SupportsBufferedRows` sink only in a drain and at the end of a batch job.
        """


class SupportsBufferedRows(ABC, Generic[S]):
    """On a sink: may hold rows back across epochs, in the state of a part or in writer states.

    Its partitions must have `flush`, which is called with `end_of_input=False` at the end of an epoch: what is not sent
    then must be in the state. With `end_of_input=True`, in a drain and at the end of a batch job, nothing may be left
    but rows that cannot go into one epoch with those delivered; a drain comes again until there are none.
    A wrapper passes True on to a target that has not this class.
    """

    @abstractmethod
    def buffered_rows(self, state: S) -> BufferedRows:
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


MAX_DEAD_LETTERS = 1000
"""How many records of an epoch may be refused, unless a sink's options say otherwise."""


class SupportsDeadLetterSink:
    """On a sink: its partitions have `SupportsDeadLetters`, so that another sink can take what they refuse.

    Said by the sink, since its partitions are not there yet when it is put together with the other one.
    """

    def max_dead_letters(self) -> int:
        """Return how many records of one epoch may be refused. The default is what sinks have by default."""
        return MAX_DEAD_LETTERS


class SupportsCountCheck(ABC):
    """On a sink: may refuse an epoch by what its tasks have counted."""

    @abstractmethod
    def check_counts(self, counts: Mapping[str, int], examples: Mapping[str, str]) -> None:
        """Look at the counters of an epoch. Called on the driver once all tasks have answered, before PREPARED.

        Args:
            counts: summed over the tasks.
            examples: by the name of a counter, a text of `Metrics.example`.

        Raises:
            OutfallError: the epoch is not recorded, nor is anything of it published that tasks have not published.
        """


class SupportsWriterContext(ABC):
    """On a sink: learns who writes. Needed for fencing and for staging names."""

    @abstractmethod
    def bind(self, context: WriterInitContext) -> Self:
        """Return a copy that knows the context. Called in a task before `build` or `build_part`; changes nothing."""


class SupportsTarget(ABC, Generic[S]):
    """On a sink: knows its target. Only its name is needed; every other method has a default that does nothing.

    In the order of an epoch: the columns are checked, the target is compared with the recovery data, and once BEGIN is
    written it is opened; when the epoch is completed, what lost attempts left behind is removed.
    """

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

    def owns_target(self) -> bool:
        """Whether the sink takes what it finds in its target for its own, so that no other may write there beside it.

        One that sends and is answered finds nothing, and others may send to the same place. By default that is a sink
        that neither compares its target, nor commits, seals or cleans up there.
        """
        kind = type(self)
        acts = isinstance(self, SupportsCommitter | SupportsSeal) or kind.clean_up is not SupportsTarget.clean_up
        return acts or kind.check_target is not SupportsTarget.check_target

    def check_connection(self) -> Sequence[str]:
        """Try the destination, for `outfall doctor`: connect, look whether the rights suffice, leave nothing behind.

        Called in any process, with no query around it; no row is sent.

        Returns:
            What was found to work, one short sentence each; what it cannot find out is said too. Nothing where there is
            no such check, as by default.

        Raises:
            OutfallError: what does not work, why, and what to do.
        """
        return ()

    def row_schema(self) -> pa.Schema | None:
        """Return the columns that a row may have, for who makes rows of text: `outfall replay`.

        Called in any process, with no query around it. A column takes the values of its type here; a string may also
        be another type's text, where the target reads that.

        Returns:
            The columns, or `None` where the target does not say, as by default.

        Raises:
            OutfallError: the target could not be asked.
        """
        return None

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse columns that cannot be written. Called on the driver before each epoch, before any data moves.

        Args:
            schema: the Arrow schema of the batches to come.

        Raises:
            ConfigurationError: naming each column, its type and what to do.
        """

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

    def clean_up(self, context: CleanUpContext) -> int:
        """Remove what lost attempts left behind: what carries our incarnation and a generation below the context's.

        Called on the driver after an epoch is completed, and before a lost attempt's epoch is written again, when no
        record but the states names anything of an older generation; what a state names, which the context reads, is to
        be left. Never removes anything of others, and never goes by age.

        Returns:
            How many things were removed.
        """
        return 0

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str] | None:
        """Say what `clean_up` would remove with the same context, for `outfall gc` without `--yes`.

        Changes nothing. Between the two calls more may come, or a query may clean up by itself.

        Returns:
            One readable name each, free of secrets. `None` if it cannot tell beforehand, the default where `clean_up`
            removes anything.
        """
        return () if type(self).clean_up is SupportsTarget.clean_up else None

    def withdraw(self, context: CleanUpContext) -> None:
        """Give up a target that was opened, and in which no epoch is completed: the next one finds it as it was.

        Removes what says that this incarnation writes there. Called on the driver for a batch job without recovery data
        that failed before anything was recorded, after `open_target`, `seal` and `clean_up` with a new generation:
        nothing of the job is there any more, and its late tasks are fenced. Idempotent.
        """


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


class DeclaresCapabilities(ABC):
    """On a sink or a partition: says which of the features that its class has it has under its options.

    For classes that have a feature in one way of writing and not in another, and for those that stand for another sink.
    What it says counts, whatever its class derives from.
    """

    @abstractmethod
    def capabilities(self) -> Collection[type]:
        """Return the classes that apply, the same whenever it is asked.

        They are classes of `outfall.capabilities`, and for a sink `FixedPartitionedSink` or `DynamicSink`.
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

    def bears_speculation(self) -> bool:
        """Whether Spark may run two attempts of a task side by side. If not, `spark.speculation=true` is refused."""
        return True


class DeclaresRoutingKey(ABC):
    """On a fixed sink: says which column routes rows to its parts where the user names none."""

    @abstractmethod
    def routing_key(self) -> str | None:
        """Return the column's name; `None` where the user has to name one."""


def no_save_mode(sink: object, mode: str) -> ConfigurationError:
    """Make the refusal of a save mode by a sink that adds rows and does not see what is there."""
    return ConfigurationError(
        f"{shown_name(sink)} cannot be written with mode={mode!r}",
        why="it adds rows, and neither sees nor replaces what its target holds",
        do='pass mode="append"',
    )


def shown_name(sink: object) -> str:
    """Name a sink's class for people: the one that they write, where that one holds this and `shown_as` says so."""
    return getattr(sink, "shown_as", None) or type(sink).__name__


def class_name(sink: object) -> str:
    """Name a sink's class with its module."""
    return f"{type(sink).__module__}.{type(sink).__qualname__}"

"""Optional features of sinks, one small class each, combined freely (FLIP-372's mixins).

`check_sink` looks at a sink before any data moves and says what is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from outfall.errors import CapabilityError
from outfall.serde import SimpleVersionedSerializer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from outfall.sinks import StatelessSinkPartition

X = TypeVar("X")
S = TypeVar("S")
C = TypeVar("C")
W = TypeVar("W")
C_co = TypeVar("C_co", covariant=True)
S_co = TypeVar("S_co", covariant=True)


class Guarantee(IntEnum):
    """What a reader of the target finds, weakest first."""

    AT_LEAST_ONCE = 1
    """Every row, some perhaps more than once."""
    EFFECTIVELY_ONCE = 2
    """Every row once, if the receiver honours the idempotency key that it is sent."""
    EXACTLY_ONCE = 3
    """Every row once."""


class Metrics:
    """Counters of one part, one task or one epoch: whole numbers under a name, summed on the way to the record."""

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        """Start from given counts, or from nothing."""
        self._counts: Counter[str] = Counter(counts or {})

    def add(self, name: str, amount: int = 1) -> None:
        """Add to the counter `name`."""
        self._counts[name] += amount

    def add_all(self, counts: Mapping[str, int]) -> None:
        """Add each of `counts` to the counter of its name."""
        self._counts.update(counts)

    @property
    def counts(self) -> dict[str, int]:
        """The counters as a plain dict of their own."""
        return dict(self._counts)


@dataclass(frozen=True)
class WriterInitContext:
    """Who writes, in which attempt. Handed to `SupportsWriterContext.bind` before a part is built.

    (`generation`, `epoch`, `attempt`) orders all writers of one part: only the highest may write.
    """

    step_id: str
    incarnation: str
    """Random id of the step's recovery data: 16 hexadecimal digits."""
    generation: int
    """Number of the driver's BEGIN entry: the fencing token."""
    epoch: int
    part: str | None
    """The part's name; `None` for a dynamic sink."""
    attempt: int
    """Unique and increasing among the attempts of one generation (Spark's task attempt id)."""
    worker_index: int = 0
    worker_count: int = 0
    metrics: Metrics = field(default_factory=Metrics, compare=False)


@dataclass(frozen=True)
class CommitterInitContext:
    """Whose committables are to be committed. Handed to `SupportsCommitter.create_committer`."""

    step_id: str
    incarnation: str
    generation: int
    """The generation that wrote the committables, which may be older than the driver that commits them."""
    epoch: int
    metrics: Metrics = field(default_factory=Metrics, compare=False)


@dataclass(frozen=True)
class TargetContext(Generic[S]):
    """What the recovery data knows of the target when an epoch begins."""

    step_id: str
    incarnation: str
    epoch: int | None
    """The epoch that begins; `None` where the door learns it only in the tasks."""
    completed: int | None
    """The last completed epoch; `None` before the first."""
    first_contact: bool
    """Whether no BEGIN was ever written: what the target holds is not ours."""
    states: Mapping[str, S]
    """The recorded state of each part that has one."""
    last_generation: int = 0
    """The newest generation in the recovery data before this epoch; a target that carries a higher one is ahead."""
    generation: int = 0
    """The generation that begins; 0 while the target is only being checked."""


@dataclass(frozen=True, order=True)
class WriterId:
    """Identity of an attempt at a part. A higher one fences a lower one."""

    generation: int
    epoch: int
    attempt: int


@dataclass(frozen=True)
class PartSeal(Generic[S]):
    """One part to be sealed: its state after the epoch, and who wrote it last."""

    part: str
    state: S
    writer: WriterId | None
    """The recorded winner; `None` when no task of this epoch answered for the part."""


@dataclass(frozen=True)
class SealContext:
    """Which epoch seals its parts."""

    step_id: str
    incarnation: str
    generation: int
    epoch: int


@dataclass(frozen=True)
class SweepContext:
    """Bounds of a sweep: names of this incarnation with a generation below this one, that stand in no record."""

    step_id: str
    incarnation: str
    generation: int


@dataclass(frozen=True)
class CommittableMessage(Generic[C]):
    """A committable, or a write result on its way to become one, with where it comes from."""

    value: C
    epoch: int
    worker_index: int
    part: str | None = None


class CommitRequest(Generic[C]):
    """One committable offered to a committer. It ends as committed unless one of the signals says otherwise."""

    def __init__(self, committable: C, number_of_retries: int = 0) -> None:
        """Offer `committable`, after `number_of_retries` earlier offers."""
        self._committable = committable
        self._number_of_retries = number_of_retries
        self._outcome: Outcome = Outcome("unsignalled")

    @property
    def committable(self) -> C:
        """What is to be committed."""
        return self._committable

    @property
    def number_of_retries(self) -> int:
        """How often this committable was offered before."""
        return self._number_of_retries

    @property
    def outcome(self) -> Outcome:
        """What was signalled."""
        return self._outcome

    def signal_committed(self) -> None:
        """Say that it is committed. Needed only for a strict committer; others commit by saying nothing."""
        self._outcome = Outcome("committed")

    def signal_already_committed(self) -> None:
        """Say that an earlier try had committed it, as after a lost reply or a replay."""
        self._outcome = Outcome("already committed")

    def retry_later(self) -> None:
        """Ask to be offered it again, after a pause."""
        self._outcome = Outcome("retry")

    def update_and_retry_later(self, committable: C) -> None:
        """Ask to be offered `committable` in its place, after a pause."""
        self._committable = committable
        self._outcome = Outcome("retry")

    def signal_failed_with_known_reason(self, error: Exception) -> None:
        """Say that it will never commit, for a reason the sink understands: it fails the query, or is dropped."""
        self._outcome = Outcome("known failure", error)

    def signal_failed_with_unknown_reason(self, error: Exception) -> None:
        """Say that it failed for a reason the sink does not understand: fails the query."""
        self._outcome = Outcome("unknown failure", error)

    def signal_lost(self, reason: str) -> None:
        """Say that the data behind it is gone although nothing of it was published.

        For an unlogged staging table emptied by a server's crash, or an upload taken by a lifecycle rule.
        """
        self._outcome = Outcome("lost", reason=reason)

    def offer_again(self) -> None:
        """Clear the signal before the next offer. Called by the engine."""
        self._outcome = Outcome("unsignalled")
        self._number_of_retries += 1


@dataclass(frozen=True)
class Outcome:
    """What became of a commit request."""

    kind: str
    error: Exception | None = None
    reason: str = ""


class Committer(ABC, Generic[C]):
    """Publishes committables, on the driver, after they are recorded.

    Committing must be idempotent: after a crash the same committables are offered again, also by a second driver while
    the first still runs.
    """

    strict: bool = False
    """Whether each request must be resolved by a signal, so that saying nothing is an error."""

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest[C]]) -> None:
        """Publish the committables of one epoch.

        Called with all requests, then again with those that asked for a retry, after a pause. A raised error counts as
        an unknown failure of the whole call.
        """

    def find_lost(self, requests: Sequence[CommitRequest[C]]) -> None:
        """Signal each committable whose data is gone, without publishing any.

        Called when a driver finds recorded committables that nobody has begun to commit.
        """

    def revoke(self, requests: Sequence[CommitRequest[C]]) -> None:
        """Make these committables unpublishable for ever, by anybody, before their epoch is written anew.

        Called when another committable of the epoch is lost and none was published. The default refuses.
        """
        raise CapabilityError(
            f"{type(self).__name__} cannot revoke committables, so an epoch that lost one cannot be written anew",
            do="implement Committer.revoke, or restore the lost data",
        )

    def nothing_published(self, requests: Sequence[CommitRequest[C]]) -> bool:
        """Tell from conclusive evidence in the target, read under a lock, that nothing of the epoch was published.

        Called when a committable is lost after committing has begun. The default has no evidence and says no.
        """
        return False

    def close(self) -> None:
        """Release resources. Called once, after errors too."""


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
        """Finish writing and return handles to it.

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
        """Return zero or more states that describe what is to go on after the last value written."""


class SupportsStateSerializer(ABC, Generic[S]):
    """On a fixed sink: how its parts' states are stored. Without it as JSON, if JSON gives them back unchanged."""

    @abstractmethod
    def state_serializer(self) -> SimpleVersionedSerializer[S]:
        """Return the serializer that the recovery data stores the parts' states with."""


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
        """Send what is held back. Called once after the last value of an epoch.

        Args:
            end_of_input: whether nothing may be held back. True at the end of every epoch, since a stream has no end
                that a sink could see.
        """


@runtime_checkable
class SupportsArrow(Protocol):
    """On a partition: takes Arrow batches, so that no row ever becomes a Python object."""

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch in their order, in place of `write_batch`."""


class SupportsWriterContext(ABC):
    """On a sink: learns who writes. Needed for fencing and for staging names."""

    @abstractmethod
    def bind(self, context: WriterInitContext) -> Self:
        """Return a copy that knows the context. Called in a task before `build` or `build_part`; changes nothing."""


class SupportsTarget(ABC, Generic[S]):
    """On a sink: knows its target, and compares it with the recovery data."""

    def kind(self) -> str:
        """Return a stable name of the sink's kind. The default is the class's; a built-in keeps its own when moved."""
        return _class_name(self)

    @abstractmethod
    def target(self) -> str:
        """Return a stable name of the target, free of secrets. A change of it between restarts stops the query."""

    def check_target(self, context: TargetContext[S]) -> Mapping[str, S]:
        """Refuse a target that is not what the recovery data says, and change nothing.

        Called on the driver before each epoch's BEGIN is written.

        Returns:
            The state to start from, for parts that have none yet. A sink that writes in place returns one for each such
            part, also an empty one: `seal` is called for parts with a state only.

        Raises:
            TargetNotEmptyError: first contact, and somebody's data is there.
            TargetLostError: less is there than was recorded.
            TargetAheadError: later epochs are there than were recorded.
        """
        return {}

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

        Called on the driver after an epoch is completed, when no record names anything of an older generation. Never
        removes anything of others, and never goes by age.

        Returns:
            How many things were removed.
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


def is_fixed(sink: object) -> bool:
    """Whether the sink has a fixed list of parts."""
    return callable(getattr(sink, "list_parts", None)) and callable(getattr(sink, "build_part", None))


def is_dynamic(sink: object) -> bool:
    """Whether the sink is built per task."""
    return callable(getattr(sink, "build", None))


def guarantee_of(sink: object) -> Guarantee:
    """Return what the sink declares; `AT_LEAST_ONCE` when it declares nothing or cannot be fenced."""
    if isinstance(sink, DeclaresGuarantee) and isinstance(sink, SupportsWriterContext):
        return sink.guarantee()
    return Guarantee.AT_LEAST_ONCE


def requirements_of(sink: object) -> Sequence[str]:
    """Return what the sink's guarantee needs from its surroundings."""
    return tuple(sink.requires()) if isinstance(sink, DeclaresGuarantee) else ()


def kind_of(sink: object) -> str:
    """Name the sink's kind as the recovery data stores it."""
    return sink.kind() if isinstance(sink, SupportsTarget) else _class_name(sink)


def _class_name(sink: object) -> str:
    return f"{type(sink).__module__}.{type(sink).__qualname__}"


def check_sink(sink: Any) -> None:
    """Check a sink's shape before any data moves.

    Raises:
        CapabilityError: naming what is missing or does not go together.
    """
    name = type(sink).__name__
    if is_fixed(sink) == is_dynamic(sink):
        has = (
            "both list_parts/build_part and build" if is_fixed(sink) else "neither list_parts and build_part nor build"
        )
        raise CapabilityError(
            f"{name} has {has}", do="make it a FixedPartitionedSink or a DynamicSink (outfall.sinks), not both"
        )
    for mixin, needs in _NEEDS.items():
        if isinstance(sink, mixin) and not isinstance(sink, needs):
            raise CapabilityError(f"{name} has {mixin.__name__} but not {needs.__name__}", do=f"add {needs.__name__}")
    for mixin in (SupportsSeal, SupportsStateSerializer):
        if isinstance(sink, mixin) and not is_fixed(sink):
            raise CapabilityError(
                f"{name} has {mixin.__name__} but no parts", do="make it a FixedPartitionedSink, or drop the mixin"
            )
    if isinstance(sink, SupportsWriterState) and is_fixed(sink):
        raise CapabilityError(
            f"{name} has SupportsWriterState and fixed parts", do="keep the state of a part in its snapshot()"
        )


def check_partition(sink: Any, partition: Any) -> None:
    """Check an open partition against what its sink promises, before the first row is written.

    Raises:
        CapabilityError: naming the method that is missing.
    """
    needed = ["write_batch"] if not isinstance(partition, SupportsArrow) else []
    needed += ["snapshot"] if is_fixed(sink) else []
    needed += ["prepare_commit"] if isinstance(sink, SupportsCommitter) else []
    needed += ["snapshot_state"] if isinstance(sink, SupportsWriterState) else []
    for method in needed:
        if not callable(getattr(partition, method, None)):
            raise CapabilityError(
                f"{type(sink).__name__} built a {type(partition).__name__} that has no {method}()",
                do=f"add {method}() to the partition, or drop the capability that needs it from the sink",
            )


_NEEDS: dict[type, type] = {
    SupportsPreCommitTopology: SupportsCommitter,
    SupportsPostCommitTopology: SupportsCommitter,
    WithCompatibleState: SupportsWriterState,
    SupportsSeal: SupportsWriterContext,
}

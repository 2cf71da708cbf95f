"""The contexts that the engine passes to sinks: writer, epoch, recorded data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

S = TypeVar("S")
C = TypeVar("C")

_PEAK = "max_"
_EXAMPLE = 1000
"""Maximum length in characters, because a row may be long."""


class Metrics:
    """Integer counters of one part, task or epoch, summed before they are recorded.

    A counter whose name begins with `max_` is a peak: its largest value is kept instead of the sum. The name may follow
    that of a child (`archive.max_in_flight`).
    """

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        """Start with the given counts, or with none."""
        self._counts: Counter[str] = Counter(counts or {})
        self._examples: dict[str, str] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Add to the counter `name`."""
        self._counts[name] += amount

    def example(self, name: str, text: str) -> None:
        """Keep an example of the records that the counter `name` counts, for errors of the driver. Keeps the first one.

        Args:
            name: The name of the counter.
            text: The example, without secrets. Long texts are cut.
        """
        self._examples.setdefault(name, text[:_EXAMPLE])

    def add_all(self, counts: Mapping[str, int]) -> None:
        """Add each count to the counter of its name, or keep the larger one for a peak."""
        for name, amount in counts.items():
            if is_peak(name):
                self.peak(name, amount)
            else:
                self.add(name, amount)

    def peak(self, name: str, amount: int) -> None:
        """Raise the counter `name` to `amount` if it is lower.

        Raises:
            ValueError: The name does not begin with `max_`.
        """
        if not is_peak(name):
            raise ValueError(f"the name of a peak begins with {_PEAK!r}, not {name!r}")
        self._counts[name] = max(self._counts[name], amount)

    @property
    def counts(self) -> dict[str, int]:
        """A copy of the counters."""
        return dict(self._counts)

    @property
    def examples(self) -> dict[str, str]:
        """A copy of the examples, by the names of their counters."""
        return dict(self._examples)


def is_peak(name: str) -> bool:
    """Return whether this is the name of a peak, of which the largest value is kept instead of the sum."""
    return name.rpartition(".")[2].startswith(_PEAK)


@dataclass(frozen=True)
class WriterInitContext:
    """Identity of a writer and its attempt. Passed to `SupportsWriterContext.bind` before a part is built.

    (`generation`, `epoch`, `attempt`) orders all writers of one part: only the highest may write.
    """

    step_id: str
    incarnation: str
    """Random id of the step's recovery data: 16 hexadecimal digits."""
    generation: int
    """Number of the driver's BEGIN entry: the fencing token."""
    epoch: int
    part: str | None
    """The name of the part; `None` for a dynamic sink."""
    attempt: int
    """Unique and increasing among the attempts of one generation (Spark's task attempt id)."""
    worker_index: int = 0
    worker_count: int = 0
    value: str | None = None
    """The column whose values are the sink's items; `None` for rows."""
    key: str | None = None
    """The routing column; `None` if there is none, for example in a drain."""
    metrics: Metrics = field(default_factory=Metrics, compare=False)
    token: str = ""
    """The random token of that BEGIN. Two drivers of copies of a log may have the same generation, but not token."""


@dataclass(frozen=True)
class BufferedRows:
    """The number of rows in a state that are not yet in the target.

    Raises:
        ValueError: The number is negative, or the time has no zone.
    """

    rows: int
    oldest: datetime | None = None
    """The write time of the oldest row, with time zone; `None` if it is unknown or there is no row."""

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ValueError(f"the number of buffered rows is {self.rows}, which is negative")
        if self.oldest is not None and self.oldest.tzinfo is None:
            raise ValueError(f"the time of the oldest buffered row has no time zone: {self.oldest}")


@dataclass(frozen=True)
class CommitterInitContext:
    """Origin of the committables. Passed to `SupportsCommitter.create_committer`."""

    step_id: str
    incarnation: str
    generation: int
    """The generation that wrote the committables, which may be older than that of the committing driver."""
    epoch: int
    metrics: Metrics = field(default_factory=Metrics, compare=False)
    token: str = ""
    """The token of the BEGIN of that generation."""
    begun: Mapping[int, str] = field(default_factory=dict)
    """Generation → token of the last completed epoch's BEGIN and of each BEGIN since."""


@dataclass(frozen=True)
class TargetContext(Generic[S]):
    """The state of the recovery data when an epoch begins."""

    step_id: str
    incarnation: str
    epoch: int | None
    """The epoch that begins; `None` if the API learns it only in the tasks."""
    completed: int | None
    """The last completed epoch; `None` before the first."""
    first_contact: bool
    """Whether no BEGIN was ever written: existing data in the target belongs to another writer."""
    states: Mapping[str, S]
    """The recorded state of each part that has one."""
    last_generation: int = 0
    """The newest generation in the recovery data before this epoch. A target with a higher one is ahead."""
    generation: int = 0
    """The generation that begins; 0 while the target is being checked."""
    known_children: Mapping[str, int] = field(default_factory=dict)
    """For a composite sink: the children in the recovery data, and the first epoch that each could receive."""
    token: str = ""
    """The token of the BEGIN of `generation`; empty while the target is being checked."""
    begun: Mapping[int, str] = field(default_factory=dict)
    """Generation → token of the last completed epoch's BEGIN and of each BEGIN since. One of these last opened the
    target."""
    published: int | None = None
    """The newest epoch that was published to this target, as recorded with the last completed epoch. `None` before the
    first, and in recovery data of releases that did not record it."""
    children_published: Mapping[str, int] = field(default_factory=dict)
    """The same per child, for a composite sink."""
    unfinished: bool = False
    """Whether a BEGIN follows the last completed epoch: its tasks may have written."""
    key: str | None = None
    """The routing column, as in `WriterInitContext`."""


@dataclass(frozen=True, order=True)
class WriterId:
    """Identity of an attempt to write a part. A higher one fences a lower one."""

    generation: int
    epoch: int
    attempt: int


@dataclass(frozen=True)
class PartSeal(Generic[S]):
    """A part to be sealed: its state after the epoch, and its last writer."""

    part: str
    state: S
    writer: WriterId | None
    """The recorded winner; `None` if no task of this epoch returned a result for the part."""


@dataclass(frozen=True)
class SealContext:
    """The epoch that seals its parts."""

    step_id: str
    incarnation: str
    generation: int
    epoch: int
    token: str = ""
    """The token of the BEGIN of `generation`."""


@dataclass(frozen=True)
class CleanUpContext:
    """Bounds of a clean-up: unrecorded names of this incarnation with a lower generation than this one."""

    step_id: str
    incarnation: str
    generation: int
    final: bool = False
    """Whether the last epoch of this incarnation is completed or rolled back. No run continues it, and the evidence
    that it was written may be removed too."""
    token: str = ""
    """The token of `generation`, if that is the number of a BEGIN."""
    lost: Mapping[int, str] | None = None
    """Generation → token of each BEGIN whose attempts failed. These are older than `generation` and follow the BEGIN of
    the last completed epoch, or of the one before in the clean-up after COMPLETED. For a sink that has a location per
    BEGIN and reads only these. `None` means any older one, as in `outfall gc`."""
    # Without a default: a clean-up that omits them would remove data that the states name.
    states: Callable[[], Mapping[str, Any]] = field(kw_only=True, compare=False)
    """Returns the recorded states of parts by name, for a sink whose states name data in the target."""
    writer_states: Callable[[], Sequence[Any]] = field(kw_only=True, compare=False)
    """Returns the recorded writer states."""


@dataclass(frozen=True)
class CommittableMessage(Generic[C]):
    """A committable or a write result, with its origin."""

    value: C
    epoch: int
    worker_index: int
    part: str | None = None

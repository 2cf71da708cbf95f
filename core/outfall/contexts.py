"""What the engine tells a sink: who writes, what is recorded, which epoch."""

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
"""Characters; a row may be long."""


class Metrics:
    """Counters of one part, one task or one epoch: whole numbers under a name, summed on the way to the record.

    Those whose name begins with `max_`, behind the name of a child if there is one (`archive.max_in_flight`), are not
    summed: of them the largest is kept.
    """

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        """Start from given counts, or from nothing."""
        self._counts: Counter[str] = Counter(counts or {})
        self._examples: dict[str, str] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Add to the counter `name`."""
        self._counts[name] += amount

    def example(self, name: str, text: str) -> None:
        """Keep a text that shows what the counter `name` counts: the first one that is given, for the driver's errors.

        Args:
            name: the counter's.
            text: without a secret. Only its beginning is kept.
        """
        self._examples.setdefault(name, text[:_EXAMPLE])

    def add_all(self, counts: Mapping[str, int]) -> None:
        """Add each of `counts` to the counter of its name; of a `max_…` keep the larger."""
        for name, amount in counts.items():
            if is_peak(name):
                self.peak(name, amount)
            else:
                self.add(name, amount)

    def peak(self, name: str, amount: int) -> None:
        """Raise the counter `name` to `amount`, if it is below.

        Raises:
            ValueError: the name does not begin with `max_`.
        """
        if not is_peak(name):
            raise ValueError(f"the name of a peak begins with {_PEAK!r}, not {name!r}")
        self._counts[name] = max(self._counts[name], amount)

    @property
    def counts(self) -> dict[str, int]:
        """The counters as a plain dict of their own."""
        return dict(self._counts)

    @property
    def examples(self) -> dict[str, str]:
        """The examples, by the names of their counters."""
        return dict(self._examples)


def is_peak(name: str) -> bool:
    """Whether the counter of this name is not summed: of it the largest is kept."""
    return name.rpartition(".")[2].startswith(_PEAK)


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
    value: str | None = None
    """The column whose values are the sink's items; `None` for rows."""
    key: str | None = None
    """The column that says which part a row belongs to; `None` where none was given, as in a drain."""
    metrics: Metrics = field(default_factory=Metrics, compare=False)
    token: str = ""
    """The random token of that BEGIN: where a log was copied, two drivers may have one generation, never one token."""


@dataclass(frozen=True)
class BufferedRows:
    """How many rows a state holds that are not in the target yet.

    Raises:
        ValueError: the number is negative, or the time has no zone.
    """

    rows: int
    oldest: datetime | None = None
    """When the oldest of them was written, with its zone; `None` when it is not known or there is none."""

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ValueError(f"rows held cannot be {self.rows}")
        if self.oldest is not None and self.oldest.tzinfo is None:
            raise ValueError(f"the time of the oldest row held has no zone: {self.oldest}")


@dataclass(frozen=True)
class CommitterInitContext:
    """Whose committables are to be committed. Handed to `SupportsCommitter.create_committer`."""

    step_id: str
    incarnation: str
    generation: int
    """The generation that wrote the committables, which may be older than the driver that commits them."""
    epoch: int
    metrics: Metrics = field(default_factory=Metrics, compare=False)
    token: str = ""
    """The token of the BEGIN of that generation."""
    begun: Mapping[int, str] = field(default_factory=dict)
    """Generation → token of each BEGIN since the last completed epoch's, and of that one."""


@dataclass(frozen=True)
class TargetContext(Generic[S]):
    """What the recovery data knows of the target when an epoch begins."""

    step_id: str
    incarnation: str
    epoch: int | None
    """The epoch that begins; `None` where the API learns it only in the tasks."""
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
    known_children: Mapping[str, int] = field(default_factory=dict)
    """For a sink that consists of others: the children that were there when the recovery data was last written, and the
    first epoch that each could get."""
    token: str = ""
    """The token of the BEGIN of `generation`; empty while the target is only being checked."""
    begun: Mapping[int, str] = field(default_factory=dict)
    """Generation → token of each BEGIN since the last completed epoch's, and of that one: one of these opened the
    target last."""
    published: int | None = None
    """The newest epoch that was published to this target when its epoch was recorded as completed; `None` before the
    first, and in recovery data of a release that did not record it."""
    children_published: Mapping[str, int] = field(default_factory=dict)
    """The same by name, for a sink that consists of others."""
    unfinished: bool = False
    """Whether there was a BEGIN after the last completed epoch: its tasks may have written."""
    key: str | None = None
    """The column that says which part a row belongs to, as in `WriterInitContext`."""


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
    """The recorded winner; `None` when no task of this epoch responded for the part."""


@dataclass(frozen=True)
class SealContext:
    """Which epoch seals its parts."""

    step_id: str
    incarnation: str
    generation: int
    epoch: int
    token: str = ""
    """The token of the BEGIN of `generation`."""


@dataclass(frozen=True)
class CleanUpContext:
    """Bounds of a clean-up: names of this incarnation with a generation below this one, that stand in no record."""

    step_id: str
    incarnation: str
    generation: int
    final: bool = False
    """Whether the last epoch of this incarnation is completed, or taken back: nobody comes back to it, and what tells
    that it was written may go too."""
    token: str = ""
    """The token of the BEGIN of `generation`, where it is that of a BEGIN."""
    lost: Mapping[int, str] | None = None
    """Generation → token of each BEGIN whose attempts were lost: after that of the last completed epoch, or for the
    clean-up after COMPLETED of the one before it, and older than `generation`. For a sink that has a location for
    each BEGIN, and looks at these only. `None` where any older one is meant, as for `outfall gc`."""
    # Without a default: who cleans up and forgets them would remove what they name.
    states: Callable[[], Mapping[str, Any]] = field(kw_only=True, compare=False)
    """Reads the recorded states of parts, by name: for a sink whose states name things in the target, which stand in a
    record as long as a state does."""
    writer_states: Callable[[], Sequence[Any]] = field(kw_only=True, compare=False)
    """Reads the recorded writer states."""


@dataclass(frozen=True)
class CommittableMessage(Generic[C]):
    """A committable, or a write result on its way to become one, with where it comes from."""

    value: C
    epoch: int
    worker_index: int
    part: str | None = None

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
        self._tables: dict[str, int] = {}

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

    def table(self, name: str, rows: int) -> None:
        """Set how many rows of the epoch are for one of several tables. A committer calls it, also when it repeats.

        The log keeps the tables with the most rows, and the number of tables as the peak `max_tables`.

        Args:
            name: The table as the target names it.
            rows: The number of rows.
        """
        self._tables[name] = rows

    @property
    def tables(self) -> dict[str, int]:
        """A copy of the rows by table."""
        return dict(self._tables)

    @property
    def counts(self) -> dict[str, int]:
        """A copy of the counters."""
        return dict(self._counts)

    @property
    def examples(self) -> dict[str, str]:
        """A copy of the examples, by the names of their counters."""
        return dict(self._examples)


def is_peak(name: str) -> bool:
    """Return whether this is the name of a peak, whose largest value is kept instead of the sum."""
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
    """Unique and increasing among the attempts of all tasks of one generation: Spark's task attempt id, which is unique
    within one SparkContext. Attempts of different generations may have the same number."""
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
    """Origin of the committables. Passed to `SupportsCommitter.create_committer`.

    The same values are passed if a later run resolves the epoch, because that run commits before it writes its BEGIN.
    """

    step_id: str
    incarnation: str
    generation: int
    """The generation in the PREPARED of the epoch: its tasks wrote the committables."""
    epoch: int
    metrics: Metrics = field(default_factory=Metrics, compare=False)
    """The counters of the epoch. Counts that the committer adds are recorded in COMPLETED."""
    token: str = ""
    """The token of the BEGIN of `generation`."""
    begun: Mapping[int, str] = field(default_factory=dict)
    """Generation → token of the last completed epoch's BEGIN and of each BEGIN since, which includes `generation`. For
    `outfall.target_record.check_publishing`."""
    published: int | None = None
    """As in `TargetContext`: the newest epoch that was published to this target before this one."""
    children_published: Mapping[str, int] = field(default_factory=dict)
    """The same per child, for a composite sink."""


@dataclass(frozen=True)
class TargetContext(Generic[S]):
    """The state of the recovery data when an epoch begins.

    Passed to `SupportsTarget.check_target` before BEGIN, and to `SupportsTarget.open_target` after it. Only
    `incarnation`, `generation`, `token`, `begun`, `states` and `found` can differ between the two calls. Recorded
    epochs of earlier runs are completed or discarded before the first call.
    """

    step_id: str
    incarnation: str
    """Random id of the step's recovery data. Empty in `check_target` if no BEGIN was ever written."""
    epoch: int | None
    """The epoch that begins; `None` if the API learns it only in the tasks."""
    completed: int | None
    """The last completed epoch; `None` before the first."""
    first_contact: bool
    """Whether no BEGIN was ever written: existing data in the target belongs to another writer."""
    states: Mapping[str, S]
    """The recorded state of each part that has one. Empty for a dynamic sink. In `open_target`, with the states that
    `check_target` returned."""
    last_generation: int = 0
    """The generation of the newest BEGIN before this epoch's, in both calls; 0 if there is none. A target with a higher
    one is ahead."""
    generation: int = 0
    """The generation that begins; 0 in `check_target`."""
    known_children: Mapping[str, int] = field(default_factory=dict)
    """For a composite sink: the children in the recovery data, and the first epoch that each could receive."""
    token: str = ""
    """The token of the BEGIN of `generation`; empty in `check_target`."""
    begun: Mapping[int, str] = field(default_factory=dict)
    """Generation → token of the last completed epoch's BEGIN and of each BEGIN since. In `check_target`, one of these
    last opened the target, unless it was never opened. In `open_target`, the BEGIN of `generation` is included."""
    published: int | None = None
    """The newest epoch that was published to this target, as recorded with the last completed epoch. `None` before the
    first, and in recovery data of releases that did not record it."""
    children_published: Mapping[str, int] = field(default_factory=dict)
    """The same per child, for a composite sink."""
    unfinished: bool = False
    """Whether a BEGIN follows that of the last completed epoch. Tasks of that BEGIN may have written. The BEGIN of
    `generation` does not count."""
    key: str | None = None
    """The routing column; `None` if there is none, for example in a drain."""
    starting: bool = True
    """Whether this is the first epoch of a run, as far as its process knows: the target may have changed in any way
    since. Later epochs may repeat only the checks that are cheap."""
    found: Any = None
    """In `open_target`, what `check_target` returned as `TargetCheck.found`."""


@dataclass(frozen=True)
class RowIdentity:
    """What makes two rows of a sink the same row, and which of them is the newer one. Stored in the log."""

    mode: str
    """How rows are written by key, such as the `write_mode`."""
    columns: tuple[str, ...] = ()
    """The columns that identify a row. Empty if the target itself defines them."""
    order: str | None = None
    """The column that decides between two rows of one key."""
    delete_marker: str | None = None
    """The column that marks the rows that are deletes."""
    tables: tuple[str, ...] = ()
    """Where rows name their table, the keys of some of the tables, each as `table: column, column`."""


@dataclass(frozen=True)
class TargetCheck(Generic[S]):
    """The result of `SupportsTarget.check_target`, for a sink whose `open_target` needs more than the start states."""

    states: Mapping[str, S]
    """The start states of parts."""
    found: Any = None
    """What the sink found, for `open_target` in the same process. It is neither recorded nor pickled."""


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
    """Bounds of a clean-up.

    The clean-up may remove data of `incarnation` with a generation below `generation`, unless it is published or a
    state names it. Published data has older generations too: search only where unpublished data is stored. Keep data of
    `generation` itself, except with `final`.
    """

    step_id: str
    incarnation: str
    generation: int
    """The generation of the newest BEGIN: after COMPLETED that of the completed epoch, after BEGIN the one that begins.
    Attempts that failed within a successful generation are therefore removed in the epoch after it."""
    final: bool = False
    """Whether no run continues this incarnation, because its last epoch is completed or rolled back and its recovery
    data is deleted next, as after a batch job. Then unpublished data of `generation`, and records of the step in the
    target, may be removed too."""
    token: str = ""
    """The token of the BEGIN of `generation`; empty while `outfall gc --take-over` lists leftovers before its BEGIN."""
    lost: Mapping[int, str] | None = None
    """Generation → token of each BEGIN before `generation` that was replaced before its epoch was completed.

    Contains the BEGINs after that of the last completed epoch. After COMPLETED, this is the epoch before the one just
    completed. `{}` means that no BEGIN was replaced. `None`, as in `outfall gc`, means that any older generation may
    have data. A sink with one location per BEGIN can read these locations instead of listing all. `lost` never contains
    the generation of a completed epoch: such a sink must remove the failed attempts of that epoch separately, for
    example in its post-commit topology."""
    # Without a default: a clean-up that omits them would remove data that the states name.
    states: Callable[[], Mapping[str, Any]] = field(kw_only=True, compare=False)
    """Returns the recorded states of parts by name, for a sink whose states name data in the target. Keep that data,
    whatever its generation."""
    writer_states: Callable[[], Sequence[Any]] = field(kw_only=True, compare=False)
    """Returns the recorded writer states. Keep the data that they name."""


@dataclass(frozen=True)
class CommittableMessage(Generic[C]):
    """A committable or a write result, with its origin."""

    value: C
    epoch: int
    worker_index: int
    part: str | None = None

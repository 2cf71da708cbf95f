"""`outfall repair`: takes back, after a loss of power, what Spark's checkpoint lost and no epoch stands on.

```
look     the logs say which batch was begun last, and which one every step completed; the checkpoint, what is torn
REPAIRED in each step's log: a driver that still runs is fenced
move     what is torn, and what stands on it, aside; newest first, so that a repair that dies can be made again
REPAIRED once more: whoever began an epoch meanwhile is found out, and everything is moved back
```
What may be moved follows from the order in which Spark and Outfall write. A batch that no step has begun may be planned
anew: nobody has seen its rows. A batch that every step has completed may come again: its rows are dropped. All else is
refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

import click

from outfall.cli.commands.arguments import json_option, recovery_location, step_id
from outfall.cli.commands.output import print_json
from outfall.errors import ConfigurationError, FencedError
from outfall.filesystems import make_durably, sync_directory
from outfall.protocol.clock import SystemClock
from outfall.protocol.journal import Journal
from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.entries import Repaired, Skipped
from outfall.recovery.location import explained
from outfall.recovery.log import EntryExistsError, RecoveryConfig
from outfall.recovery.spark_checkpoint import SparkCheckpoint, checksum_of
from outfall.trace_points import reached

ASIDE = "outfall-repair"
"""The directory below the checkpoint that files are moved to."""

_SPARK = {"metadata", "offsets", "commits", "sources", "state"}


@dataclass(frozen=True)
class Progress:
    """What the logs of a query's steps say together, in Spark's batch ids."""

    begun: int | None
    """The last batch that any step has begun."""
    completed: int | None
    """The last batch that every step has completed."""
    recorded: int | None = None
    """The last batch that any step has recorded; one that was only begun may not even have been planned."""
    behind: Sequence[str] = ()
    """The steps that have not completed what others have."""


@dataclass
class Findings:
    """What is wrong with a checkpoint, and what can be done."""

    damaged: dict[str, str] = field(default_factory=dict)
    """Each damaged or missing file that matters, with what is wrong."""
    moves: list[str] = field(default_factory=list)
    """The files to move aside, in this order."""
    refusals: list[str] = field(default_factory=list)
    """Why nothing can be done; empty when it can."""
    again: int | None = None
    """The completed batch that Spark brings again."""
    planned: int | None = None
    """The batch that Spark plans anew."""


class _Examination:
    """Decides about one checkpoint."""

    def __init__(self, checkpoint: SparkCheckpoint, progress: Progress) -> None:
        self._files = checkpoint
        self._begun = _planned(progress, max(checkpoint.numbered("offsets"), default=None))
        self._completed = progress.completed
        self._behind = progress.behind
        self._offsets = checkpoint.numbered("offsets")
        self._commits = checkpoint.numbered("commits")
        self._found = Findings()
        self._sources: list[str] = []
        self._states: list[str] = []

    def run(self) -> Findings:
        self._look_at_layout()
        if not self._found.refusals:
            plan_anew = self._look_at_offsets() | self._look_at_sources()
            again = self._look_at_commits() | self._look_at_state()
            self._decide(plan_anew, again)
        if self._found.refusals or not self._found.damaged:
            self._found.moves.clear()
        return self._found

    def _refuse(self, why: str) -> None:
        if why not in self._found.refusals:
            self._found.refusals.append(why)

    def _note(self, name: str, wrong: str) -> None:
        self._found.damaged[name] = wrong

    def _look_at_layout(self) -> None:
        wrong = self._files.damage("metadata", thoroughly=True)
        if wrong is not None or self._files.query_id() is None:
            self._note("metadata", wrong or "is cut short")
            self._refuse("metadata holds the query's id, which nothing else in the checkpoint does")
        for directory in ("offsets", "commits"):
            numbers = list(self._files.numbered(directory))
            if directory == "offsets" and numbers and numbers != list(range(numbers[0], numbers[-1] + 1)):
                self._refuse(
                    f"numbers are missing in {directory}, as with asynchronous progress tracking, where batches are not"
                    " brought again as they were"
                )
            newest = self._files.numbered(directory).get(max(numbers, default=-1))
            if newest and self._files.format_of(f"{directory}/{newest}") not in ("", "v1"):
                self._refuse(f"{directory}/{newest} has a format that this command does not know")
        unknown = [name for name in os.listdir(self._files.root) if name[0] != "." and name not in _SPARK]
        strange = [name for name in unknown if not name.startswith("outfall")]
        places = ("offsets", "commits", *(f"sources/{source}" for source in self._files.sources()))
        strange += [f"{place}/{name}" for place in places for name in self._files.strange(place)]
        if strange:
            self._refuse(f"{strange[0]} is nothing that this command knows in a checkpoint")

    def _look_at_offsets(self) -> bool:
        """Whether the batch that nobody has begun must be planned anew."""
        newest = max(self._offsets, default=-1)
        begun = -1 if self._begun is None else self._begun
        if newest < begun:
            self._note(f"offsets/{begun}", "is missing")
            self._refuse(f"batch {begun} was begun, and without its offsets Spark would bring other rows as that batch")
        if newest > begun + 1:
            self._refuse(
                f"Spark has planned batch {newest}, and the recovery data ends with batch {begun}: it is an older copy,"
                " or not that of this query"
            )
        torn = [number for number in self._torn("offsets") if number >= newest - 1 or number > begun]
        for number in torn:
            if number <= begun:
                self._refuse(f"offsets/{number} is of a batch that was begun, and nothing else says which rows it has")
        return any(number > begun for number in torn)

    def _torn(self, directory: str) -> list[int]:
        found = []
        for number, name in self._files.numbered(directory).items():
            wrong = self._files.log_damage(f"{directory}/{name}")
            if wrong is not None:
                self._note(f"{directory}/{name}", wrong)
                found.append(number)
        return found

    def _look_at_sources(self) -> bool:
        """Whether what a source noted for a batch that nobody has begun is gone."""
        needed = {} if self._begun is None else self._files.source_ends(self._begun)
        planned = self._files.source_ends(max(self._offsets, default=-1))
        lost = False
        for source in self._files.sources():
            base = -1 if self._begun is None else needed.get(source)
            lost |= self._look_at_source(source, base, planned.get(source, -1))
        return lost

    def _look_at_source(self, source: str, base: int | None, planned: int) -> bool:
        directory = f"sources/{source}"
        entries = self._files.numbered(directory)
        whole_compacts = [
            number
            for number, name in entries.items()
            if name.endswith(".compact") and self._files.log_damage(f"{directory}/{name}") is None
        ]
        # Nothing before the newest whole one is read any more.
        read_from = max(whole_compacts, default=0)
        # Of other sources than Spark's own of files only bytes and checksum are known.
        of_files = base is not None and (base >= 0 or planned >= 0)
        look = self._files.log_damage if of_files else lambda name: self._files.damage(name, thoroughly=True)
        torn = [n for n, name in entries.items() if n >= read_from and look(f"{directory}/{name}") is not None]
        for number in torn:
            name = f"{directory}/{entries[number]}"
            self._note(name, look(name) or "")
            if base is None or number <= base:
                self._refuse(f"{name} is part of batches that were begun, and nothing else says which rows they have")
        if torn and not self._found.refusals:
            first = torn[0]
            chain = range(max((n for n in whole_compacts if n < first), default=0), first)
            if entries[first].endswith(".compact") and not all(number in entries for number in chain):
                self._refuse(f"{directory}/{entries[first]} replaces entries of which some are gone")
            # Those after it would be read over a gap. What they note is found again.
            self._sources += [f"{directory}/{entries[n]}" for n in sorted(entries, reverse=True) if n >= first]
        missing = bool(entries) and max(entries) < planned
        if missing:
            self._note(f"{directory}/{planned}", "is missing")
            if base is not None and base > max(entries):
                self._refuse(f"{directory}/{base} is part of a batch that was begun")
        return bool(torn) or missing

    def _look_at_commits(self) -> bool:
        """Whether the last batch that Spark took for done is to come again."""
        self._torn("commits")
        torn = self._spoilt_commits()
        for number in torn:
            if self._completed is None or number > self._completed:
                behind = f", {', '.join(self._behind)} did not" if self._behind else ""
                self._refuse(
                    f"commits/{number} can only be done without once every step has completed batch {number}{behind}"
                )
        if torn and self._is_stateful and self._begun != self._completed:
            self._refuse(f"batch {self._begun} was begun on the state that commits/{torn[0]} speaks of")
        return bool(torn)

    @property
    def _is_stateful(self) -> bool:
        return os.path.isdir(self._files.path("state"))

    def _look_at_state(self) -> bool:
        """Whether the state that the last completed batch has made must be made again."""
        made = 0 if self._completed is None else self._completed + 1
        lost = set(self._files.lost_state(made, thoroughly=True))
        shared = self._files.shared_state(made - 1) if self._is_stateful else set()
        of_version = []
        for file in self._files.state_files():
            wrong = self._files.damage(file.path, thoroughly=True)
            if file.version is not None and file.version == made:
                of_version.append(file.path)
            if wrong is None or (file.version or 0) > made:
                continue  # a batch that was running makes it again
            if os.path.basename(os.path.dirname(file.path)) in ("SSTs", "logs") and file.path not in shared:
                continue  # no version before consists of it
            if file.version == made and file.version > 0:
                lost.add(file.path)
            elif file.version is None or not self._is_spent(file.path, file.version):
                self._note(file.path, wrong)
                self._refuse(f"{file.path} cannot be made again by the last batch")
        if not lost or made - 1 not in self._commits:
            return False  # Spark brings the batch again by itself
        for name in sorted(lost):
            self._note(name, self._files.damage(name, thoroughly=True) or "is missing")
        if self._begun != self._completed:
            self._refuse(f"batch {self._begun} was begun, so that batch {self._completed} cannot come again")
        self._states = of_version
        return True

    def _is_spent(self, path: str, version: int) -> bool:
        """Whether a newer snapshot stands in for a file of the state."""
        directory = os.path.dirname(self._files.path(path))
        whole = (name for name in os.listdir(directory) if name.endswith(".snapshot"))
        return any(
            name.split(".")[0].isdecimal()
            and version < int(name.split(".")[0]) <= (self._completed or 0) + 1
            and self._files.damage(os.path.relpath(f"{directory}/{name}", self._files.root), thoroughly=True) is None
            for name in whole
        )

    def _decide(self, plan_anew: bool, again: bool) -> None:
        newest = max(self._offsets, default=-1)
        moves = self._found.moves
        # Where a batch comes again, no later one may be planned already: Spark would bring that one instead.
        if (plan_anew or again) and newest > (-1 if self._begun is None else self._begun):
            moves.append(f"offsets/{self._offsets[newest]}")
            self._found.planned = newest
        moves += self._sources
        moves += [f"commits/{number}" for number in self._spoilt_commits()]
        moves += self._states
        if again and self._begun == self._completed:
            self._found.again = self._completed

    def _spoilt_commits(self) -> list[int]:
        """The newest ones: Spark reads only the last."""
        spoilt = []
        for number in reversed(self._commits):
            is_torn = f"commits/{number}" in self._found.damaged
            if not is_torn and not (self._states and number == self._completed):
                break
            spoilt.append(number)
        return spoilt


def _planned(progress: Progress, newest: int | None) -> int | None:
    """The last batch that was begun and planned.

    `format("outfall")` learns only in its tasks which batch they are of. Where Spark brings one again, the next one is
    begun in the log, and nothing was planned for it.
    """
    recorded = -1 if progress.recorded is None else progress.recorded
    if newest is not None and progress.begun is not None and recorded <= newest < progress.begun:
        return newest
    return progress.begun


def examine(checkpoint: SparkCheckpoint, progress: Progress) -> Findings:
    """Say what is torn in a checkpoint, and what to move aside so that Spark goes on from what the steps recorded."""
    return _Examination(checkpoint, progress).run()


class _Step:
    """A step's log, read to its end."""

    def __init__(self, name: str, journal: Journal) -> None:
        self.name = name
        self.journal = journal
        told = [entry for entry in journal.read_all() if not isinstance(entry, Repaired)]
        self._last = told[-1] if told else None

    @property
    def completed(self) -> int | None:
        view = self.journal.view
        return None if view.completed is None else view.completed - view.drains

    @property
    def recorded(self) -> int | None:
        view = self.journal.view
        if view.unfinished is None or view.drain_unfinished:
            return self.completed
        return view.unfinished.epoch - view.drains

    def begun(self) -> int | None:
        """The last batch that was begun. A drain has none; and what was begun and skipped was the one before."""
        view = self.journal.view
        is_drain = view.begin is not None and view.begin.drain
        if view.unfinished is not None or not view.begun_since or is_drain or isinstance(self._last, Skipped):
            return self.recorded
        if view.open_epoch is None and view.completed is None:
            # Which one it is was to be learnt in the tasks: `adopt_checkpoint` over an empty log.
            raise ConfigurationError(
                "the first epoch was begun and not recorded, and its number is not known",
                step=self.name,
                do="erase the step's log with outfall reset, since nothing is recorded in it, and repair again",
            )
        return self.completed if view.open_epoch is None else view.open_epoch - view.drains


class CheckpointRepair:
    """Repairs the checkpoint of one query.

    Args:
        checkpoint: Spark's checkpoint location.
        recovery: where the steps' logs are; more than one where the steps have places of their own.
        steps: the steps that the query writes; all that are recorded there for this query when empty.
    """

    def __init__(self, checkpoint: str, recovery: Sequence[RecoveryConfig], steps: Sequence[str] = ()) -> None:
        found = SparkCheckpoint.at(checkpoint)
        if found is None:
            raise ConfigurationError(
                f"{checkpoint!r} is not the checkpoint of a query on a local disk",
                do="give the query's checkpointLocation; one in an object store or in HDFS is not torn by a power loss",
            )
        self.checkpoint = found
        self._recovery = recovery
        self._steps = steps

    def look(self) -> tuple[Progress, Findings]:
        """Read the logs and the checkpoint. Writes nothing.

        Raises:
            ConfigurationError: no step of the query is recorded where the logs should be.
            RecordError: a log is damaged.
            TransientError: a store failed.
        """
        with ExitStack() as stack:
            progress = _progress(self._read(stack))
        with explained("reading Spark's checkpoint", None, self.checkpoint.root):
            return progress, examine(self.checkpoint, progress)

    def repair(self) -> list[str]:
        """Fence drivers that still run, and move aside what `look` says. Deletes nothing.

        Returns:
            The files that were moved, below the checkpoint, to `aside`.

        Raises:
            ConfigurationError: it is refused; nothing was moved.
            FencedError: a driver goes on with the query; nothing was moved, or all was moved back.
        """
        with ExitStack() as stack:
            steps = self._read(stack)
            with explained("repairing Spark's checkpoint", None, self.checkpoint.root):
                found = examine(self.checkpoint, _progress(steps))
                if found.refusals:
                    raise ConfigurationError(
                        f"the checkpoint {self.checkpoint.root} cannot be repaired", why="; ".join(found.refusals)
                    )
                if found.moves:
                    self._move(steps, found.moves)
        return found.moves

    def _move(self, steps: Sequence[_Step], names: Sequence[str]) -> None:
        aside = f"{ASIDE}/{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        self._record(steps, names, aside, done=False)
        reached("repair: fenced")
        moved: list[tuple[str, str]] = []
        try:
            for name in names:
                for part in (name, checksum_of(name)):
                    source, target = self.checkpoint.path(part), self.checkpoint.path(f"{aside}/{part}")
                    if os.path.exists(source):
                        _rename(source, target)
                        moved.append((source, target))
                reached("repair: moved")
            self._record(steps, names, aside, done=True)
        except Exception:
            for source, target in reversed(moved):
                _rename(target, source)
            raise

    def _record(self, steps: Sequence[_Step], names: Sequence[str], aside: str, *, done: bool) -> None:
        for step in steps:
            entry = Repaired(
                step=step.name,
                incarnation=step.journal.view.incarnation or "",
                checkpoint=self.checkpoint.root,
                files=list(names),
                aside=aside,
                done=done,
            )
            try:
                step.journal.append(entry)
            except EntryExistsError:
                raise FencedError(
                    "a driver writes this step, so its query runs", step=step.name, do="stop the query, and repair then"
                ) from None

    def _read(self, stack: ExitStack) -> list[_Step]:
        """The log of each step of the query."""
        query, found = self.checkpoint.query_id(), []
        places = [recovery.url() for recovery in self._recovery]
        for recovery in self._recovery:
            for name in self._steps or recovery.steps():
                journal = Journal(recovery.open(name), name, SystemClock())
                stack.callback(journal.log.close)
                step, view = _Step(name, journal), journal.view
                if view.begin is None or (query and view.query_id and view.query_id != query):
                    continue
                if view.moved_to in places:
                    continue
                if view.moved_to is not None:
                    raise ConfigurationError(
                        f"the step was moved to {view.moved_to}",
                        step=name,
                        do="name that place with --recovery, and this one too if other steps are still here",
                    )
                found.append(step)
        if not found:
            raise ConfigurationError(
                f"no step of the query {query or 'whose id cannot be read'} has begun anything in {', '.join(places)}",
                why="without a log nobody knows which batches count",
                do="name the place of its recovery data with --recovery. If the query never began to write, start it"
                " with a new checkpoint: no row was written",
            )
        return found


def _progress(steps: Sequence[_Step]) -> Progress:
    completed = {step.name: step.completed for step in steps}
    known = [batch for batch in completed.values() if batch is not None]
    least = min(known) if len(known) == len(completed) else None
    begun = max((batch for step in steps if (batch := step.begun()) is not None), default=None)
    recorded = max((batch for step in steps if (batch := step.recorded) is not None), default=None)
    return Progress(begun, least, recorded, sorted(step for step, batch in completed.items() if batch != begun))


def _rename(source: str, target: str) -> None:
    make_durably(os.path.dirname(target))
    os.rename(source, target)
    sync_directory(os.path.dirname(target))
    sync_directory(os.path.dirname(source))


def lines(progress: Progress, found: Findings) -> Iterator[str]:
    """Say what was found and what is done about it, for people."""
    begun = "no batch was begun" if progress.begun is None else f"batch {progress.begun} was begun last"
    done = "none is completed" if progress.completed is None else f"{progress.completed} is completed by every step"
    yield f"{begun}, {done}"
    for name, wrong in found.damaged.items():
        yield f"{'aside' if name in found.moves else 'damaged'}  {name} {wrong}"
    for name in found.moves:
        if name not in found.damaged:
            yield f"aside  {name} stands on what is damaged"
    if found.again is not None and found.moves:
        yield f"Spark then brings batch {found.again} again: its rows are read and dropped"
    if found.planned is not None and found.moves:
        yield f"Spark then plans batch {found.planned} anew: no step has begun it"


@click.command()
@click.argument("checkpoint", type=recovery_location, metavar="CHECKPOINT")
@click.option(
    "--recovery",
    "places",
    type=recovery_location,
    metavar="RECOVERY",
    multiple=True,
    help="Where the recovery data is, if not in the checkpoint. May be repeated.",
)
@click.option(
    "--step",
    "steps",
    type=step_id,
    metavar="STEP",
    multiple=True,
    help="A step that the query writes; may be repeated. Without it all that are recorded for the query count.",
)
@click.option("--yes", is_flag=True, help="Repair it. Without it is only said what would be done.")
@json_option
def repair(
    checkpoint: RecoveryConfig, places: Sequence[RecoveryConfig], steps: Sequence[str], yes: bool, as_json: bool
) -> None:
    """Make Spark's checkpoint usable again after a loss of power. Deletes nothing.

    CHECKPOINT is the query's checkpointLocation, on a local disk. For queries that Spark cannot start any more
    ("Incomplete log file"). Stop the query first: one that runs is fenced and fails. What is torn is moved aside where
    the recovery data proves that no row is lost or written twice without it; anything else is refused, with the reason,
    and the exit code is 1.
    """
    if not isinstance(checkpoint, CheckpointRecoveryConfig):
        raise click.BadParameter(f"{checkpoint.url()} is no checkpoint of Spark")
    work = CheckpointRepair(checkpoint.url(), places or [checkpoint], steps)
    progress, found = work.look()
    moved = work.repair() if yes and not found.refusals else []
    if as_json:
        print_json({"progress": progress, "findings": found, "moved": moved})
    else:
        for line in lines(progress, found):
            click.echo(line)
        _conclude(moved, found.moves, bool(found.damaged))
    for why in found.refusals:
        click.echo(f"refused: {why}", err=True)
    if found.refusals:
        raise click.exceptions.Exit(1)


def _conclude(moved: Sequence[str], movable: Sequence[str], is_damaged: bool) -> None:
    if moved:
        click.echo(f"{len(moved)} moved to outfall-repair; start the query")
    elif movable:
        click.echo(f"{len(movable)} to move, nothing was moved: give --yes", err=True)
    elif not is_damaged:
        click.echo("nothing is damaged")

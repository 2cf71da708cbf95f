"""`outfall repair`: repairs Spark's checkpoint after a power loss, by moving torn files aside.

```
examine   read the last begun and the last completed batch from the logs, and the torn files from the checkpoint
REPAIRED  append to each step's log, which fences a running driver
move      torn files and files that depend on them, newest first, so that an interrupted repair can be repeated
REPAIRED  append again; if a driver began an epoch in the meantime, move everything back
```
The order in which Spark and Outfall write determines the files that can be moved. Spark may plan a batch again if no
step has begun it, because no sink has its rows. Spark may replay a batch that every step has completed, because its
rows are dropped. All other damage is rejected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

import click

from outfall.cli.commands.arguments import json_option, recovery_location, step_id
from outfall.cli.commands.output import print_json, say
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
"""Directory below the checkpoint for moved files."""

_SPARK = {"metadata", "offsets", "commits", "sources", "state"}


@dataclass(frozen=True)
class Progress:
    """Progress of a query over all its steps, in Spark's batch ids."""

    begun: int | None
    """The last batch that any step has begun."""
    completed: int | None
    """The last batch that every step has completed."""
    recorded: int | None = None
    """The last batch that any step has recorded. A batch that was only begun may not have been planned."""
    behind: Sequence[str] = ()
    """The steps that have not completed the last begun batch."""


@dataclass
class Findings:
    """The damage of a checkpoint and its repair."""

    damaged: dict[str, str] = field(default_factory=dict)
    """Relevant damaged or missing file → damage."""
    moves: list[str] = field(default_factory=list)
    """Files to move aside, in this order."""
    refusals: list[str] = field(default_factory=list)
    """Reasons against a repair; empty if it is possible."""
    again: int | None = None
    """The completed batch that Spark replays."""
    planned: int | None = None
    """The batch that Spark plans again."""


class _Examination:
    """Examines one checkpoint and decides on its repair."""

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
        self._check_layout()
        if not self._found.refusals:
            plan_anew = self._check_offsets() | self._check_sources()
            again = self._check_commits() | self._check_state()
            self._decide(plan_anew, again)
        if self._found.refusals or not self._found.damaged:
            self._found.moves.clear()
        return self._found

    def _refuse(self, why: str) -> None:
        if why not in self._found.refusals:
            self._found.refusals.append(why)

    def _note(self, name: str, wrong: str) -> None:
        self._found.damaged[name] = wrong

    def _check_layout(self) -> None:
        wrong = self._files.damage("metadata", thoroughly=True)
        if wrong is not None or self._files.query_id() is None:
            self._note("metadata", wrong or "is truncated")
            self._refuse("metadata has the query id, and no other file in the checkpoint has it")
        for directory in ("offsets", "commits"):
            numbers = list(self._files.numbered(directory))
            if directory == "offsets" and numbers and numbers != list(range(numbers[0], numbers[-1] + 1)):
                self._refuse(
                    f"numbers are missing in {directory}, as with asynchronous progress tracking, which does not replay"
                    " batches unchanged"
                )
            newest = self._files.numbered(directory).get(max(numbers, default=-1))
            if newest and self._files.format_of(f"{directory}/{newest}") not in ("", "v1"):
                self._refuse(f"{directory}/{newest} has an unknown format")
        unknown = [name for name in os.listdir(self._files.root) if name[0] != "." and name not in _SPARK]
        strange = [name for name in unknown if not name.startswith("outfall")]
        places = ("offsets", "commits", *(f"sources/{source}" for source in self._files.sources()))
        strange += [f"{place}/{name}" for place in places for name in self._files.strange(place)]
        if strange:
            self._refuse(f"the checkpoint has an unknown file: {strange[0]}")

    def _check_offsets(self) -> bool:
        """Whether the batch that no step has begun must be planned again."""
        newest = max(self._offsets, default=-1)
        begun = -1 if self._begun is None else self._begun
        if newest < begun:
            self._note(f"offsets/{begun}", "is missing")
            self._refuse(f"batch {begun} was begun, and without its offsets Spark would read other rows for that batch")
        if newest > begun + 1:
            self._refuse(
                f"Spark has planned batch {newest}, but the recovery data ends with batch {begun}: it is an older copy"
                " or belongs to another query"
            )
        torn = [number for number in self._torn("offsets") if number >= newest - 1 or number > begun]
        for number in torn:
            if number <= begun:
                self._refuse(
                    f"offsets/{number} belongs to a batch that was begun, and no other file has the batch's rows"
                )
        return any(number > begun for number in torn)

    def _torn(self, directory: str) -> list[int]:
        found = []
        for number, name in self._files.numbered(directory).items():
            wrong = self._files.log_damage(f"{directory}/{name}")
            if wrong is not None:
                self._note(f"{directory}/{name}", wrong)
                found.append(number)
        return found

    def _check_sources(self) -> bool:
        """Whether a source has lost entries of a batch that no step has begun."""
        needed = {} if self._begun is None else self._files.source_ends(self._begun)
        planned = self._files.source_ends(max(self._offsets, default=-1))
        lost = False
        for source in self._files.sources():
            base = -1 if self._begun is None else needed.get(source)
            lost |= self._check_source(source, base, planned.get(source, -1))
        return lost

    def _check_source(self, source: str, base: int | None, planned: int) -> bool:
        directory = f"sources/{source}"
        entries = self._files.numbered(directory)
        whole_compacts = [
            number
            for number, name in entries.items()
            if name.endswith(".compact") and self._files.log_damage(f"{directory}/{name}") is None
        ]
        # Spark reads no entry before the newest complete compaction.
        read_from = max(whole_compacts, default=0)
        # Only Spark's file source has a known format. For other sources, check bytes and checksum.
        of_files = base is not None and (base >= 0 or planned >= 0)
        look = self._files.log_damage if of_files else lambda name: self._files.damage(name, thoroughly=True)
        torn = [n for n, name in entries.items() if n >= read_from and look(f"{directory}/{name}") is not None]
        for number in torn:
            name = f"{directory}/{entries[number]}"
            self._note(name, look(name) or "")
            if base is None or number <= base:
                self._refuse(f"{name} belongs to batches that were begun, and no other file has their rows")
        if torn and not self._found.refusals:
            first = torn[0]
            chain = range(max((n for n in whole_compacts if n < first), default=0), first)
            if entries[first].endswith(".compact") and not all(number in entries for number in chain):
                self._refuse(f"{directory}/{entries[first]} replaces entries, and some of them are missing")
            # Later entries would follow a gap. The source finds their files again.
            self._sources += [f"{directory}/{entries[n]}" for n in sorted(entries, reverse=True) if n >= first]
        missing = bool(entries) and max(entries) < planned
        if missing:
            self._note(f"{directory}/{planned}", "is missing")
            if base is not None and base > max(entries):
                self._refuse(f"{directory}/{base} belongs to a batch that was begun")
        return bool(torn) or missing

    def _check_commits(self) -> bool:
        """Whether Spark must replay the last batch of `commits`."""
        self._torn("commits")
        torn = self._spoilt_commits()
        for number in torn:
            if self._completed is None or number > self._completed:
                behind = f"; incomplete: {', '.join(self._behind)}" if self._behind else ""
                self._refuse(f"commits/{number} can only be removed if every step has completed batch {number}{behind}")
        if torn and self._is_stateful and self._begun != self._completed:
            self._refuse(f"batch {self._begun} was begun with the state of commits/{torn[0]}")
        return bool(torn)

    @property
    def _is_stateful(self) -> bool:
        return os.path.isdir(self._files.path("state"))

    def _check_state(self) -> bool:
        """Whether the last completed batch must build its state again."""
        made = 0 if self._completed is None else self._completed + 1
        lost = set(self._files.lost_state(made, thoroughly=True))
        shared = self._files.shared_state(made - 1) if self._is_stateful else set()
        of_version = []
        for file in self._files.state_files():
            wrong = self._files.damage(file.path, thoroughly=True)
            if file.version is not None and file.version == made:
                of_version.append(file.path)
            if wrong is None or (file.version or 0) > made:
                continue  # the interrupted batch writes it again
            if os.path.basename(os.path.dirname(file.path)) in ("SSTs", "logs") and file.path not in shared:
                continue  # no earlier version uses it
            if file.version == made and file.version > 0:
                lost.add(file.path)
            elif file.version is None or not self._is_spent(file.path, file.version):
                self._note(file.path, wrong)
                self._refuse(f"the last batch cannot build {file.path} again")
        if not lost or made - 1 not in self._commits:
            return False  # Spark replays the batch by itself
        for name in sorted(lost):
            self._note(name, self._files.damage(name, thoroughly=True) or "is missing")
        if self._begun != self._completed:
            self._refuse(f"batch {self._begun} was begun, so batch {self._completed} cannot be replayed")
        self._states = of_version
        return True

    def _is_spent(self, path: str, version: int) -> bool:
        """Whether a newer snapshot replaces a file of the state."""
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
        # A replay requires that no later batch is planned. Spark would run the later batch instead.
        if (plan_anew or again) and newest > (-1 if self._begun is None else self._begun):
            moves.append(f"offsets/{self._offsets[newest]}")
            self._found.planned = newest
        moves += self._sources
        moves += [f"commits/{number}" for number in self._spoilt_commits()]
        moves += self._states
        if again and self._begun == self._completed:
            self._found.again = self._completed

    def _spoilt_commits(self) -> list[int]:
        """Return the newest commits to remove. Spark reads only the last one."""
        spoilt = []
        for number in reversed(self._commits):
            is_torn = f"commits/{number}" in self._found.damaged
            if not is_torn and not (self._states and number == self._completed):
                break
            spoilt.append(number)
        return spoilt


def _planned(progress: Progress, newest: int | None) -> int | None:
    """Return the last batch that was begun and planned.

    With `format("outfall")`, only the tasks have the batch id. When Spark replays a batch, the log begins the next one,
    although Spark has not planned it.
    """
    recorded = -1 if progress.recorded is None else progress.recorded
    if newest is not None and progress.begun is not None and recorded <= newest < progress.begun:
        return newest
    return progress.begun


def examine(checkpoint: SparkCheckpoint, progress: Progress) -> Findings:
    """Find torn files in a checkpoint, and the files to move aside so that Spark continues from the recorded epochs."""
    return _Examination(checkpoint, progress).run()


class _Step:
    """A step's log, read completely."""

    def __init__(self, name: str, journal: Journal) -> None:
        self.name = name
        self.journal = journal
        entries = [entry for entry in journal.read_all() if not isinstance(entry, Repaired)]
        self._last = entries[-1] if entries else None

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
        """Return the last begun batch. Drains have no batch, and a skipped epoch belongs to the previous one."""
        view = self.journal.view
        is_drain = view.begin is not None and view.begin.drain
        if view.unfinished is not None or not view.begun_since or is_drain or isinstance(self._last, Skipped):
            return self.recorded
        if view.open_epoch is None and view.completed is None:
            # Only the tasks had the batch id: `adopt_checkpoint` with an empty log.
            raise ConfigurationError(
                "the first epoch was begun but not recorded, and its number is unknown",
                step=self.name,
                do="run outfall reset for the step, which has no recorded epoch to lose, and then repair again",
            )
        return self.completed if view.open_epoch is None else view.open_epoch - view.drains


class CheckpointRepair:
    """Repairs the checkpoint of one query.

    Args:
        checkpoint: Spark's checkpoint location.
        recovery: locations of the steps' logs; several if steps have their own locations.
        steps: the steps of the query; if empty, all steps recorded for the query.
    """

    def __init__(self, checkpoint: str, recovery: Sequence[RecoveryConfig], steps: Sequence[str] = ()) -> None:
        found = SparkCheckpoint.at(checkpoint)
        if found is None:
            raise ConfigurationError(
                f"{checkpoint!r} is not the checkpoint of a query on a local disk",
                do="give the query's checkpointLocation; in object stores and HDFS, a power loss tears no file",
            )
        self.checkpoint = found
        self._recovery = recovery
        self._steps = steps

    def look(self) -> tuple[Progress, Findings]:
        """Read the logs and the checkpoint. Writes nothing.

        Raises:
            ConfigurationError: the locations have no step of the query.
            RecordError: a log is damaged.
            TransientError: a store failed.
        """
        with ExitStack() as stack:
            progress = _progress(self._read(stack))
        with explained("reading Spark's checkpoint", None, self.checkpoint.root):
            return progress, examine(self.checkpoint, progress)

    def repair(self) -> list[str]:
        """Fence running drivers, and move the files aside that `look` returns. Deletes nothing.

        Returns:
            The moved files, relative to the checkpoint.

        Raises:
            ConfigurationError: the damage cannot be repaired; no file was moved.
            FencedError: a driver runs the query; no file was moved, or all files were moved back.
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
                    "another driver writes this step, so its query is running",
                    step=step.name,
                    do="stop the query, then repair",
                ) from None

    def _read(self, stack: ExitStack) -> list[_Step]:
        """Read the log of each step of the query."""
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
                        do="give that location with --recovery, and this one too if it still has other steps",
                    )
                found.append(step)
        if not found:
            raise ConfigurationError(
                f"no step of the query {query or 'with an unreadable id'} has begun an epoch in {', '.join(places)}",
                why="without a log, the completed batches are unknown",
                do="give the location of the recovery data with --recovery. If the query never began an epoch, start it"
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
    """Describe the findings and the repair in readable lines."""
    begun = "no batch was begun" if progress.begun is None else f"last begun batch: {progress.begun}"
    done = (
        "none completed" if progress.completed is None else f"last batch completed by every step: {progress.completed}"
    )
    yield f"{begun}, {done}"
    for name, wrong in found.damaged.items():
        yield f"{'aside' if name in found.moves else 'damaged'}  {name} {wrong}"
    for name in found.moves:
        if name not in found.damaged:
            yield f"aside  {name} depends on a damaged file"
    if found.again is not None and found.moves:
        yield f"Spark will replay batch {found.again}; its rows are read and dropped"
    if found.planned is not None and found.moves:
        yield f"Spark will plan batch {found.planned} again; no step has begun it"


@click.command()
@click.argument("checkpoint", type=recovery_location, metavar="CHECKPOINT")
@click.option(
    "--recovery",
    "places",
    type=recovery_location,
    metavar="RECOVERY",
    multiple=True,
    help="Location of the recovery data, if not in the checkpoint. Can be repeated.",
)
@click.option(
    "--step",
    "steps",
    type=step_id,
    metavar="STEP",
    multiple=True,
    help="Step of the query. Can be repeated. Default: all steps recorded for the query.",
)
@click.option("--yes", is_flag=True, help="Repair the checkpoint. Without it, only the plan is shown.")
@json_option
def repair(
    checkpoint: RecoveryConfig, places: Sequence[RecoveryConfig], steps: Sequence[str], yes: bool, as_json: bool
) -> None:
    """Repair Spark's checkpoint after a power loss. Deletes nothing.

    Use it for queries that Spark cannot start ("Incomplete log file"). CHECKPOINT is the query's checkpointLocation on
    a local disk. Stop the query first: a running query is fenced and fails. Torn files are moved aside if the recovery
    data proves that no row is lost or duplicated. Otherwise the command reports the reason and exits with code 1.
    """
    if not isinstance(checkpoint, CheckpointRecoveryConfig):
        raise click.BadParameter(f"{checkpoint.url()} is not a Spark checkpoint")
    work = CheckpointRepair(checkpoint.url(), places or [checkpoint], steps)
    progress, found = work.look()
    moved = work.repair() if yes and not found.refusals else []
    if as_json:
        print_json({"progress": progress, "findings": found, "moved": moved})
    else:
        for line in lines(progress, found):
            say(line)
        _conclude(moved, found.moves, bool(found.damaged))
    for why in found.refusals:
        say(f"cannot be repaired: {why}", err=True)
    if found.refusals:
        raise click.exceptions.Exit(1)


def _conclude(moved: Sequence[str], movable: Sequence[str], is_damaged: bool) -> None:
    if moved:
        say(f"{len(moved)} files moved to outfall-repair; start the query")
    elif movable:
        say(f"{len(movable)} files to move; nothing was moved; add --yes to move them", err=True)
    elif not is_damaged:
        say("no damage found")

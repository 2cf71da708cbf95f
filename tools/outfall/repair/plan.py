"""Decides which files of a damaged checkpoint to move aside. Only reads.

The order in which Spark and Outfall write determines the files that can be moved. Spark may plan a batch again if no
step has begun it, because no sink has its rows. Spark may replay a batch that every step has completed, because its
rows are dropped. All other damage is rejected.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from outfall.recovery.spark_checkpoint import SparkCheckpoint

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


@dataclass(frozen=True)
class Plan:
    """The damage of a checkpoint and its repair."""

    damaged: Mapping[str, str]
    """Relevant damaged or missing file → damage."""
    moves: Sequence[str]
    """Files to move aside, in this order; empty if there are reasons against it."""
    refusals: Sequence[str]
    """Reasons against a repair; empty if it is possible."""
    again: int | None
    """The completed batch that Spark replays."""
    planned: int | None
    """The batch that Spark plans again."""


def examine(checkpoint: SparkCheckpoint, progress: Progress) -> Plan:
    """Find torn files in a checkpoint, and the files to move aside so that Spark continues from the recorded epochs."""
    offsets = checkpoint.numbered("offsets")
    begun = _planned(progress, max(offsets, default=None))
    return _Examination(
        checkpoint, begun, progress.completed, progress.behind, offsets, checkpoint.numbered("commits")
    ).plan()


def _planned(progress: Progress, newest: int | None) -> int | None:
    """Return the last batch that was begun and planned.

    With `format("outfall")`, only the tasks have the batch id. When Spark replays a batch, the log begins the next one,
    although Spark has not planned it.
    """
    recorded = -1 if progress.recorded is None else progress.recorded
    if newest is not None and progress.begun is not None and recorded <= newest < progress.begun:
        return newest
    return progress.begun


@dataclass
class _Finding:
    """The result of one check."""

    damaged: dict[str, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)
    again: bool = False
    """Whether Spark must run a batch again: plan one that no step has begun, or replay the last one."""


@dataclass(frozen=True)
class _Examination:
    """One checkpoint with the last batches that were begun and completed."""

    files: SparkCheckpoint
    begun: int | None
    completed: int | None
    behind: Sequence[str]
    offsets: dict[int, str]
    commits: dict[int, str]

    def plan(self) -> Plan:
        layout = self._check_layout()
        if layout.refusals:
            return Plan(layout.damaged, (), layout.refusals, None, None)
        unbegun = [self._check_offsets(), *map(self._check_source, self.files.sources())]
        completed = [self._check_commits(), state := self._check_state()]
        found = [layout, *unbegun, *completed]
        damaged = {name: wrong for finding in found for name, wrong in finding.damaged.items()}
        refusals = list(dict.fromkeys(why for finding in found for why in finding.refusals))
        newest = max(self.offsets, default=-1)
        # A replay requires that no later batch is planned. Spark would run the later batch instead.
        plans = any(finding.again for finding in found) and newest > (-1 if self.begun is None else self.begun)
        replays = any(finding.again for finding in completed) and self.begun == self.completed
        moves = [f"offsets/{self.offsets[newest]}"] if plans else []
        moves += [name for finding in unbegun for name in finding.moves]
        moves += [f"commits/{number}" for number in self._spoilt_commits(damaged, with_state=state.again)]
        moves += state.moves
        return Plan(
            damaged,
            moves if damaged and not refusals else (),
            refusals,
            again=self.completed if replays else None,
            planned=newest if plans else None,
        )

    def _check_layout(self) -> _Finding:
        found, files = _Finding(), self.files
        wrong = files.damage("metadata", thoroughly=True)
        if wrong is not None or files.query_id() is None:
            found.damaged["metadata"] = wrong or "is truncated"
            found.refusals.append("metadata has the query id, and no other file in the checkpoint has it")
        numbers = list(self.offsets)
        if numbers and numbers != list(range(numbers[0], numbers[-1] + 1)):
            found.refusals.append(
                "numbers are missing in offsets, as with asynchronous progress tracking, which does not replay batches"
                " unchanged"
            )
        for directory, names in (("offsets", self.offsets), ("commits", self.commits)):
            newest = names.get(max(names, default=-1))
            if newest and files.format_of(f"{directory}/{newest}") not in ("", "v1"):
                found.refusals.append(f"{directory}/{newest} has an unknown format")
        unknown = [name for name in os.listdir(files.root) if name[0] != "." and name not in _SPARK]
        strange = [name for name in unknown if not name.startswith("outfall")]
        places = ("offsets", "commits", *(f"sources/{source}" for source in files.sources()))
        strange += [f"{place}/{name}" for place in places for name in files.strange(place)]
        if strange:
            found.refusals.append(f"the checkpoint has an unknown file: {strange[0]}")
        return found

    def _check_offsets(self) -> _Finding:
        """Look for torn offsets. The batch that no step has begun can be planned again."""
        newest = max(self.offsets, default=-1)
        begun = -1 if self.begun is None else self.begun
        found = _Finding(self._torn("offsets", self.offsets))
        if newest < begun:
            found.damaged[f"offsets/{begun}"] = "is missing"
            found.refusals.append(
                f"batch {begun} was begun, and without its offsets Spark would read other rows for that batch"
            )
        if newest > begun + 1:
            found.refusals.append(
                f"Spark has planned batch {newest}, but the recovery data ends with batch {begun}: it is an older copy"
                " or belongs to another query"
            )
        torn = [number for number, name in self.offsets.items() if f"offsets/{name}" in found.damaged]
        found.refusals += [
            f"offsets/{number} belongs to a batch that was begun, and no other file has the batch's rows"
            for number in torn
            if newest - 1 <= number <= begun
        ]
        found.again = any(number > begun for number in torn)
        return found

    def _torn(self, directory: str, names: Mapping[int, str]) -> dict[str, str]:
        paths = [f"{directory}/{name}" for name in names.values()]
        return {path: wrong for path in paths if (wrong := self.files.log_damage(path)) is not None}

    def _check_source(self, source: str) -> _Finding:
        """Look for lost entries of a source. Those of a batch that no step has begun can be written again."""
        found, files, directory = _Finding(), self.files, f"sources/{source}"
        base = -1 if self.begun is None else files.source_ends(self.begun).get(source)
        planned = files.source_ends(max(self.offsets, default=-1)).get(source, -1)
        entries = files.numbered(directory)
        whole_compacts = [
            number
            for number, name in entries.items()
            if name.endswith(".compact") and files.log_damage(f"{directory}/{name}") is None
        ]
        # Spark reads no entry before the newest complete compaction.
        read_from = max(whole_compacts, default=0)
        # Only Spark's file source has a known format. For other sources, check bytes and checksum.
        of_files = base is not None and (base >= 0 or planned >= 0)
        look = files.log_damage if of_files else lambda name: files.damage(name, thoroughly=True)
        torn = [n for n, name in entries.items() if n >= read_from and look(f"{directory}/{name}") is not None]
        for number in torn:
            name = f"{directory}/{entries[number]}"
            found.damaged[name] = look(name) or ""
            if base is None or number <= base:
                found.refusals.append(f"{name} belongs to batches that were begun, and no other file has their rows")
        if torn and not found.refusals:
            first = torn[0]
            chain = range(max((n for n in whole_compacts if n < first), default=0), first)
            if entries[first].endswith(".compact") and not all(number in entries for number in chain):
                found.refusals.append(f"{directory}/{entries[first]} replaces entries, and some of them are missing")
            # Later entries would follow a gap. The source finds their files again.
            found.moves = [f"{directory}/{entries[n]}" for n in sorted(entries, reverse=True) if n >= first]
        missing = bool(entries) and max(entries) < planned
        if missing:
            found.damaged[f"{directory}/{planned}"] = "is missing"
            if base is not None and base > max(entries):
                found.refusals.append(f"{directory}/{base} belongs to a batch that was begun")
        found.again = bool(torn) or missing
        return found

    def _check_commits(self) -> _Finding:
        """Look for torn commits. The last batch can be replayed if every step has completed it."""
        found = _Finding(self._torn("commits", self.commits))
        spoilt = self._spoilt_commits(found.damaged)
        behind = f"; incomplete: {', '.join(self.behind)}" if self.behind else ""
        found.refusals = [
            f"commits/{number} can only be removed if every step has completed batch {number}{behind}"
            for number in spoilt
            if self.completed is None or number > self.completed
        ]
        if spoilt and self._is_stateful and self.begun != self.completed:
            found.refusals.append(f"batch {self.begun} was begun with the state of commits/{spoilt[0]}")
        found.again = bool(spoilt)
        return found

    def _spoilt_commits(self, damaged: Mapping[str, str], *, with_state: bool = False) -> list[int]:
        """Return the newest commits to remove. Spark reads only the last one.

        `with_state` says whether the last completed batch must build its state again.
        """
        return list(
            takewhile(
                lambda number: f"commits/{number}" in damaged or (with_state and number == self.completed),
                reversed(self.commits),
            )
        )

    @property
    def _is_stateful(self) -> bool:
        return os.path.isdir(self.files.path("state"))

    def _check_state(self) -> _Finding:
        """Look for lost state. The last completed batch can build its own again."""
        found, files = _Finding(), self.files
        made = 0 if self.completed is None else self.completed + 1
        lost = set(files.lost_state(made, thoroughly=True))
        shared = files.shared_state(made - 1) if self._is_stateful else set()
        of_version = []
        for file in files.state_files():
            wrong = files.damage(file.path, thoroughly=True)
            if file.version is not None and file.version == made:
                of_version.append(file.path)
            if wrong is None or (file.version or 0) > made:
                continue  # the interrupted batch writes it again
            if os.path.basename(os.path.dirname(file.path)) in ("SSTs", "logs") and file.path not in shared:
                continue  # no earlier version uses it
            if file.version == made and file.version > 0:
                lost.add(file.path)
            elif file.version is None or not self._is_spent(file.path, file.version):
                found.damaged[file.path] = wrong
                found.refusals.append(f"the last batch cannot build {file.path} again")
        if not lost or made - 1 not in self.commits:
            return found  # Spark replays the batch by itself
        for name in sorted(lost):
            found.damaged[name] = files.damage(name, thoroughly=True) or "is missing"
        if self.begun != self.completed:
            found.refusals.append(f"batch {self.begun} was begun, so batch {self.completed} cannot be replayed")
        found.moves, found.again = of_version, True
        return found

    def _is_spent(self, path: str, version: int) -> bool:
        """Whether a newer snapshot replaces a file of the state."""
        directory = os.path.dirname(self.files.path(path))
        whole = (name for name in os.listdir(directory) if name.endswith(".snapshot"))
        return any(
            name.split(".")[0].isdecimal()
            and version < int(name.split(".")[0]) <= (self.completed or 0) + 1
            and self.files.damage(os.path.relpath(f"{directory}/{name}", self.files.root), thoroughly=True) is None
            for name in whole
        )

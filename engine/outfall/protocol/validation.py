"""Checks which driver may write which epoch, and composes the errors."""

from __future__ import annotations

from collections.abc import Sequence

from outfall.capability_checks import ResolvedSink, returned_list
from outfall.errors import (
    CapabilityError,
    FencedError,
    ForeignRecordsError,
    OutfallError,
    PartsChangedError,
    RecordError,
    TerminalError,
    UnexpectedEpochError,
)
from outfall.protocol.journal import JournalView
from outfall.protocol.row_identity import check_row_identity


def check_identity(
    step_id: str, sink: ResolvedSink, view: JournalView, query_id: str | None, *, moved: bool = False
) -> None:
    """Reject recovery data of another query, sink or target.

    With `moved`, targets may have other names than recorded: see `outfall.protocol.moving`. Raises `FencedError` if the
    step continues in another store. `ForeignRecordsError` names the recorded and the current value.
    """
    if view.moved_to is not None:
        raise FencedError(
            f"the recovery data of this step was moved to {view.moved_to}",
            step=step_id,
            why="this log does not have the epochs that were written there, and the query would write them again",
            do=f"set recovery to {view.moved_to!r}",
        )
    begin = view.begin
    if begin is None:
        return
    check_query(step_id, view.query_id, query_id)
    if begin.sink != sink.kind():
        raise ForeignRecordsError(
            f"the recovery data is of the sink {begin.sink}, not of {sink.kind()}",
            step=step_id,
            do="restore the earlier sink, or start with a new checkpoint or another step_id",
        )
    if not begin.children and not moved and begin.target != sink.target():
        raise ForeignRecordsError(
            f"the recovery data is of the target {begin.target}, not of {sink.target()}",
            step=step_id,
            do=f"restore the earlier target; if the target itself has moved, {_MOVE}{_or_link(begin.target)}; otherwise"
            " start with a new checkpoint or another step_id",
        )
    _check_children(step_id, sink, view, moved=moved)
    check_row_identity(step_id, sink, view)


def _or_link(target: str | None) -> str:
    """Return the shorter way for a directory on a disk."""
    path = (target or "").removeprefix("file:")
    return f", or leave a symbolic link at {path}" if path.startswith("/") else ""


def _check_children(step_id: str, sink: ResolvedSink, view: JournalView, *, moved: bool) -> None:
    """Reject a change of the recorded children. Additions are accepted.

    Raises `ForeignRecordsError`, which names each child that is missing or has another target than before.
    """
    children = sink.children()
    problems, elsewhere = [], False
    for name, was in (view.begin.children if view.begin else {}).items():
        child = children.get(name)
        if child is None:
            problems.append(f"{name} ({was.sink}, target {was.target}) is missing")
            continue
        same = was.sink == child.kind()
        if same and (moved or was.target == child.target() or child.children()):
            continue
        elsewhere = elsewhere or same
        problems.append(f"{name} was {was.sink}, target {was.target}, and is {child.kind()}, target {child.target()}")
    if problems:
        raise ForeignRecordsError(
            f"the sinks in {sink.name} are not the recorded ones: {'; '.join(problems)}",
            step=step_id,
            why="each has its part of the recovery data under its name, or under its position in a list of sinks",
            do="give each sink its earlier name or position (a new sink a new name, or the end of the list)"
            + (f"; if a target itself has moved, {_MOVE}" if elsewhere else "")
            + "; or start with a new checkpoint or another step_id",
        )


_MOVE = "stop the query and run outfall move with the sink's new options"


def expected_epoch(view: JournalView, *, adopt: bool) -> int | None:
    """Return the next epoch, or `None` if any is valid."""
    if view.open_epoch is not None:
        return view.open_epoch
    if view.completed is not None:
        return view.completed + 1
    return None if adopt else 0


def check_batch(step_id: str, view: JournalView, batch: int, *, adopt: bool, any_later: bool) -> None:
    """Reject a batch whose epoch is neither the last recorded one nor the next, with `UnexpectedEpochError`.

    The number is from Spark or the user. `view` is the log before an open epoch is resolved. With `adopt`, an empty log
    may begin at any number; with `any_later`, numbers may be skipped.
    """
    epoch = batch + view.drains
    # A drain has no batch: while one is unfinished, the same batches are valid as before it.
    if view.unfinished is not None and not view.drain_unfinished:
        expected: int | None = view.unfinished.epoch
        fits = epoch == view.unfinished.epoch or (any_later and epoch > view.unfinished.epoch)
    else:
        expected = expected_epoch(view, adopt=adopt)
        later = any_later and (view.completed is None or epoch > view.completed)
        fits = later or expected is None or epoch in (view.completed, expected)
    if fits:
        return
    if any_later:
        raise earlier_epoch(step_id, epoch, completed=view.completed, drains=view.drains)
    raise unexpected_epoch(step_id, epoch, completed=view.completed, expected=expected, drains=view.drains)


def listed_parts(step_id: str, resolved: ResolvedSink, recorded: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a fixed sink, or nothing for a dynamic one. `recorded` are the parts that have a state.

    Raises `PartsChangedError` if a part with a state is not listed, and `CapabilityError` if the result is empty or is
    not a list of unique strings.
    """
    if not resolved.fixed:
        return ()
    sink = resolved.sink
    parts = tuple(returned_list(sink, "list_parts", sink.list_parts(), step=step_id))
    strange = [part for part in parts if not isinstance(part, str)]
    if strange:
        raise CapabilityError(
            f"list_parts() returned {strange[0]!r}, a {type(strange[0]).__name__}",
            step=step_id,
            do="return strings, for example str(number)",
        )
    if len(set(parts)) != len(parts) or not parts:
        raise CapabilityError(
            f"list_parts() returned {len(parts)} names, {len(set(parts))} of them different",
            step=step_id,
            do="return at least one name, and each name only once",
        )
    missing = sorted(set(recorded) - {name for part in parts for name in resolved.state_names(part)})
    if missing:
        raise PartsChangedError(
            f"{len(missing)} parts have a state and are no longer listed: {', '.join(missing[:5])}",
            step=step_id,
            part=missing[0],
            do="list them again, or start with a new checkpoint and an empty target",
        )
    return parts


def check_query(step_id: str, recorded: str | None, found: str | None) -> None:
    """Reject recovery data of another Spark query with `ForeignRecordsError`. Unknown ids are not compared."""
    if recorded is not None and found is not None and recorded != found:
        raise ForeignRecordsError(
            f"the recovery data belongs to Spark query {recorded}, not to {found}",
            step=step_id,
            why="the checkpoint is new, or another query uses the same step and recovery location",
            do="give this query its own step_id or recovery location, or restore its old checkpoint",
        )


def check_version(driver: str, task: str, step_id: str) -> None:
    """Reject a task or driver of another version of Outfall."""
    if driver != task:
        raise TerminalError(
            f"the driver runs outfall {driver} and a task runs outfall {task}",
            step=step_id,
            do="install the same version on the driver and on every executor",
        )


def unexpected_epoch(
    step_id: str, found: int, *, completed: int | None, expected: int | None, drains: int = 0
) -> OutfallError:
    """Return the error for a batch id. Its text has batch ids, which are epoch numbers without the earlier drains."""
    found, completed, expected = found - drains, _less(completed, drains), _less(expected, drains)
    last = "no epoch is completed" if completed is None else f"epoch {completed} is the last completed one"
    if completed is None and expected == 0:
        why = f"{last}: the recovery data is new, but the query is not"
        # Spark has begun the batch by now: with True, the next run could not tell who has written rows of it.
        do = (
            "restore the recovery data; or, if the query wrote to another sink before, and no row of this batch is in"
            ' the target, pass adopt_checkpoint="rerun" to start at it'
        )
    elif completed is not None and found <= completed:
        why = f"{last}: Spark's checkpoint was rewound, or is another one"
        do = "restore the checkpoint and the recovery data from copies of the same time"
    else:
        why = f"{last}: epochs are missing, for example because the recovery data was restored from an older copy"
        do = "restore the recovery data and the checkpoint from copies of the same time"
    return UnexpectedEpochError(f"Spark runs batch {found}, expected was {expected}", step=step_id, why=why, do=do)


def rerun_batch(step_id: str, batch: int) -> OutfallError:
    """Return the error for a first batch that the query has begun with its earlier sink."""
    return UnexpectedEpochError(
        f"Spark runs batch {batch} again, which it had begun and not committed before this run",
        step=step_id,
        why="the earlier sink may have written rows of this batch, and they would be written twice",
        do="run the earlier code once with trigger(availableNow=True), so that it ends after a committed batch; or,"
        f' if no row of batch {batch} is in the target, or you have deleted them, pass adopt_checkpoint="rerun"',
    )


def earlier_epoch(step_id: str, found: int, *, completed: int | None, drains: int = 0) -> OutfallError:
    """Return the error for the epoch of a batch job."""
    found, completed = found - drains, _less(completed, drains)
    return UnexpectedEpochError(
        f"the job has epoch {found}",
        step=step_id,
        why=f"epoch {completed} is the last completed one, and no earlier epoch can be written",
        # Another step_id alone would write rows again that are in the target.
        do=f"if outfall.recovery.history lists epoch {found}, its rows are in the target, and nothing is to be done;"
        " otherwise give the job a larger epoch",
    )


def fenced(step_id: str, epoch: int | None = None) -> FencedError:
    """Return the error for a driver that was replaced by another one."""
    return FencedError(
        "another driver has taken over this step; this driver stops",
        step=step_id,
        epoch=epoch,
        why="a newer run of the query, or another query with the same step and recovery location, writes here",
        do="run only one of them; if you need both, give each its own step_id or recovery location",
    )


def log_lost(step_id: str, known: int, newest: int) -> RecordError:
    """Return the error for a log that ends before an entry that this driver has read or written."""
    return RecordError(
        f"recovery entry {known} is missing, "
        + (f"and the newest entry is now {newest}" if newest else "and the log is now empty"),
        step=step_id,
        why="the recovery data was lost, restored from an older copy, or reset while the query ran",
        do="restore the recovery data and start the query again; if it cannot be restored, compare target and source"
        " and start with a new checkpoint",
    )


def _less(epoch: int | None, drains: int) -> int | None:
    return None if epoch is None else epoch - drains

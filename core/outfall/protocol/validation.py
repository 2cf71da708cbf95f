"""Who may write which epoch: what is refused, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.capability_checks import children_of, is_fixed, kind_of, target_of
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
from outfall.protocol.states import state_names


def check_identity(step_id: str, sink: Any, view: JournalView, query_id: str | None) -> None:
    """Refuse recovery data of another query, sink or target.

    Raises:
        FencedError: the step goes on in another store.
        ForeignRecordsError: naming both.
    """
    if view.moved_to is not None:
        raise FencedError(
            f"the recovery data of this step was moved to {view.moved_to}",
            step=step_id,
            why="what is written there is not known here, and a query that goes on here would write it again",
            do=f"pass recovery={view.moved_to!r}",
        )
    begin = view.begin
    if begin is None:
        return
    check_query(step_id, view.query_id, query_id)
    compared: list[tuple[str, str | None, str | None]] = [("sink", begin.sink, kind_of(sink))]
    if not begin.children:
        compared.append(("target", begin.target, target_of(sink)))
    for what, recorded, found in compared:
        if recorded != found:
            raise ForeignRecordsError(
                f"the recovery data is of the {what} {recorded}, not of {found}",
                step=step_id,
                do=f"restore the former {what}, or start with a new checkpoint or another step_id",
            )
    check_children(step_id, sink, view)


def check_children(step_id: str, sink: Any, view: JournalView) -> None:
    """Refuse another set of children than the recorded one, unless it has only grown.

    Raises:
        ForeignRecordsError: naming each child that is gone, or that writes elsewhere than before.
    """
    children = children_of(sink)
    problems = []
    for name, was in (view.begin.children if view.begin else {}).items():
        child = children.get(name)
        if child is None:
            problems.append(f"{name} ({was.sink}, target {was.target}) is gone")
        elif was.sink != kind_of(child) or (was.target != target_of(child) and not children_of(child)):
            problems.append(
                f"{name} was {was.sink}, target {was.target}, and is {kind_of(child)}, target {target_of(child)}"
            )
    if problems:
        raise ForeignRecordsError(
            f"the sinks that {type(sink).__name__} consists of are not the recorded ones: {'; '.join(problems)}",
            step=step_id,
            why="each has its share of the recovery data under its name, which is its position where sinks are a list",
            do="give each sink its former name or position (new ones a new name, or the end of the list), or start with"
            " a new checkpoint or another step_id",
        )


def expected_epoch(view: JournalView, *, adopt: bool) -> int | None:
    """The epoch that comes next; `None` when any would do."""
    if view.open_epoch is not None:
        return view.open_epoch
    if view.completed is not None:
        return view.completed + 1
    return None if adopt else 0


def check_batch(step_id: str, view: JournalView, batch: int, *, adopt: bool, any_later: bool) -> None:
    """Refuse a batch whose epoch is neither the last recorded one nor the next.

    Args:
        step_id: for the text.
        view: the log, with what is unfinished not settled yet.
        batch: the number that Spark or the user brings.
        adopt: whether an empty log may begin anywhere.
        any_later: whether numbers may be left out.

    Raises:
        UnexpectedEpochError: saying what was found, what was expected and what to do.
    """
    epoch = batch + view.drains
    # A drain has no batch: with one that is unfinished the same batches fit as before it.
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


def listed_parts(step_id: str, sink: Any, recorded: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a fixed sink, none for a dynamic one.

    Args:
        step_id: for the text.
        sink: the sink.
        recorded: the parts that have state.

    Raises:
        CapabilityError: they are no list of texts, there are none, or two of one name.
        PartsChangedError: a part that has state is not listed.
    """
    if not is_fixed(sink):
        return ()
    parts = tuple(returned_list(sink, "list_parts", sink.list_parts(), step=step_id))
    strange = [part for part in parts if not isinstance(part, str)]
    if strange:
        raise CapabilityError(
            f"list_parts() returned {strange[0]!r}, a {type(strange[0]).__name__}",
            step=step_id,
            do="name each part by a text, as str(number)",
        )
    if len(set(parts)) != len(parts) or not parts:
        raise CapabilityError(
            f"list_parts() returned {len(parts)} names, {len(set(parts))} of them different",
            step=step_id,
            do="return at least one name, and none twice",
        )
    gone = sorted(set(recorded) - {name for part in parts for name in state_names(sink, part)})
    if gone:
        raise PartsChangedError(
            f"{len(gone)} parts have state and are no longer listed: {', '.join(gone[:5])}",
            step=step_id,
            part=gone[0],
            do="list them again, or start with a new checkpoint and an empty target",
        )
    return parts


def check_query(step_id: str, recorded: str | None, found: str | None) -> None:
    """Refuse recovery data of another Spark query; unknown ids are not compared.

    Raises:
        ForeignRecordsError: the ids differ.
    """
    if recorded is not None and found is not None and recorded != found:
        raise ForeignRecordsError(
            f"the recovery data belongs to Spark query {recorded}, not to {found}",
            step=step_id,
            why="the checkpoint is new, or another query uses the same step and recovery location",
            do="give this query a step_id or a recovery location of its own, or restore its old checkpoint",
        )


def check_version(driver: str, task: str, step_id: str) -> None:
    """Refuse to work together with another Outfall version."""
    if driver != task:
        raise TerminalError(
            f"the driver runs outfall {driver} and a task runs outfall {task}",
            step=step_id,
            do="install the same version on the driver and on every executor",
        )


def unexpected_epoch(
    step_id: str, found: int, *, completed: int | None, expected: int | None, drains: int = 0
) -> OutfallError:
    """Make the refusal of a batch id, in batch ids: they are the epochs' numbers less the drains before them."""
    found, completed, expected = found - drains, _less(completed, drains), _less(expected, drains)
    last = "no epoch is completed" if completed is None else f"epoch {completed} is the last completed one"
    if completed is None and expected == 0:
        why = f"{last}: the recovery data is new although the query is not"
        do = "restore the recovery data, or pass adopt_checkpoint=True to start it at this batch id"
    elif completed is not None and found <= completed:
        why = f"{last}: Spark's checkpoint was rewound or is another one"
        do = "restore the checkpoint and the recovery data from copies of the same time"
    else:
        why = f"{last}: epochs are missing, as in recovery data restored from an older copy"
        do = "restore the recovery data and the checkpoint from copies of the same time"
    return UnexpectedEpochError(f"Spark brings batch {found}, expected was {expected}", step=step_id, why=why, do=do)


def earlier_epoch(step_id: str, found: int, *, completed: int | None, drains: int = 0) -> OutfallError:
    """Make the refusal of a batch job's epoch."""
    found, completed = found - drains, _less(completed, drains)
    return UnexpectedEpochError(
        f"epoch {found} was asked for",
        step=step_id,
        why=f"epoch {completed} is the last completed one, and what came before it is not known any more",
        do="give each job a larger epoch than the one before, or another step_id or recovery location",
    )


def fenced(step_id: str, epoch: int | None = None) -> FencedError:
    """Make the refusal of a driver that another one has overtaken."""
    return FencedError(
        "another driver has taken this step over; this one stops",
        step=step_id,
        epoch=epoch,
        why="a newer run of the query, or another query with the same step and recovery location, writes here",
        do="let one of them run; if both are wanted, give each a step_id or a recovery location of its own",
    )


def log_lost(step_id: str, known: int, newest: int) -> RecordError:
    """Make the refusal of a log that ends before what a driver has read or written: no driver takes anything away."""
    return RecordError(
        f"recovery entry {known} is gone, "
        + (f"and the newest one is {newest} now" if newest else "and the log is empty now"),
        step=step_id,
        why="the recovery data was lost, restored from an older copy, or reset while the query ran",
        do="restore the recovery data as it was and start the query again; where nothing can be restored, compare"
        " target and source and start with a new checkpoint",
    )


def _less(epoch: int | None, drains: int) -> int | None:
    return None if epoch is None else epoch - drains


def returned_list(
    owner: object, method: str, value: Any, *, step: str | None = None, part: str | None = None
) -> Sequence[Any]:
    """Return a list or tuple of what a method returned.

    A text would be taken apart into its characters, each recorded, and the step could not go on any more.

    Args:
        owner: whose method it is.
        method: its name.
        value: what it returned.
        step: the step's id, where known.
        part: the part's name, if any.

    Raises:
        CapabilityError: it is neither.
    """
    if isinstance(value, list | tuple):
        return value
    raise CapabilityError(
        f"{type(owner).__name__}.{method}() returned a {type(value).__name__}",
        step=step,
        part=part,
        do="return a list, empty where there is nothing",
    )

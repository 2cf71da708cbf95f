"""`outfall drain`, `copy`, `move`, `accept` and `reset`: operations on a step's recovery data while no query runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import click

from outfall.capability_checks import resolve
from outfall.cli.commands.arguments import (
    ChosenSink,
    complete_location,
    json_option,
    nothing_recorded,
    recovery_argument,
    recovery_location,
    sink_options,
    step_argument,
)
from outfall.cli.commands.output import print_json, say
from outfall.errors import RecordError
from outfall.metrics.step_status import read_status
from outfall.protocol import draining
from outfall.protocol.clock import SystemClock
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.journal import Journal
from outfall.protocol.moving import MovedTarget, find_moved
from outfall.protocol.states import ROWS_DRAINED
from outfall.protocol.step import EpochOptions
from outfall.protocol.validation import check_identity
from outfall.recovery.copying import copy_step
from outfall.recovery.log import RecoveryConfig, ServerChange
from outfall.redaction import without_credentials


@click.command()
@recovery_argument
@step_argument
@sink_options
@json_option
def drain(recovery: RecoveryConfig, step: str, chosen: ChosenSink, as_json: bool) -> None:
    """Deliver the rows that a sink has buffered across epochs.

    Stop the query first: a running query is fenced and fails. Give the sink with the options of its query. You can
    repeat a failed drain. Rows are delivered with the guarantee of any epoch.
    """
    with closing(recovery.open(step)) as log:
        if not log.numbers():
            raise nothing_recorded(recovery, step)
    sink, options = chosen.make(), EpochOptions(commit=chosen.commit_policy())
    result = draining.drain(lambda: EpochCoordinator(sink, step, recovery, options=options))
    if as_json:
        rows = 0 if result is None else result.counts[ROWS_DRAINED]
        print_json({"epoch": result and result.epoch, "rows": rows, "seconds": result and result.seconds})
    elif result is None:
        say("no rows are buffered")
    else:
        say(f"epoch {result.epoch} delivered {result.counts[ROWS_DRAINED]:,} rows in {result.seconds:.2f} s")


@click.command()
@click.argument("source", type=recovery_location, metavar="SOURCE", shell_complete=complete_location)
@click.argument("target", type=recovery_location, metavar="TARGET", shell_complete=complete_location)
@step_argument
@json_option
def copy(source: RecoveryConfig, target: RecoveryConfig, step: str, as_json: bool) -> None:
    """Move a step's recovery data to another store.

    SOURCE and TARGET are recovery locations. Stop the query first, and start it with recovery=TARGET. The source gets a
    last entry, and no query can continue from it. To repeat a failed copy, use the same arguments.
    """
    copied = copy_step(source, target, step)
    if as_json:
        print_json(copied)
        return
    say(f"{copied.entries} entries and {copied.states} large states, {copied.bytes:,} bytes, copied and compared")
    say(f"start the query with recovery={target.url()!r}")


@click.command()
@recovery_argument
@step_argument
@sink_options
@click.option("--yes", is_flag=True, help="Move the step. Without it, nothing is changed.")
@json_option
def move(recovery: RecoveryConfig, step: str, chosen: ChosenSink, yes: bool, as_json: bool) -> None:
    """Continue a step in a target that has moved or was renamed.

    Use it if a query reports that its recovery data is of another target, and that target is the same one under another
    address. Stop the query first: a running query is fenced and fails. Give the sink with its new options. The step's
    record in the target must match the recovery data. A recorded epoch is published first. Without --yes, the command
    only shows what it has found, and exits with code 1 if the step has to be moved.
    """
    sink = chosen.make()
    with closing(recovery.open(step)) as log:
        view = Journal(log, step, SystemClock()).read()
        if view.begin is None:
            raise nothing_recorded(recovery, step)
        check_identity(step, resolve(sink), view, None, moved=True)
        found = find_moved(step, resolve(sink), view)
    moves = bool(found) and yes
    if moves:
        options = EpochOptions(commit=chosen.commit_policy(), moved=True)
        with closing(EpochCoordinator(sink, step, recovery, options=options)) as coordinator:
            coordinator.begin(None)
    if as_json:
        print_json({"step": step, "targets": found, "moved": moves})
    else:
        for line in _moves_in_words(found):
            say(line)
        if moves:
            say("moved; start the query with the new options")
    if found and not yes:
        say("nothing was changed; add --yes to move the step", err=True)
        raise click.exceptions.Exit(1)


def _moves_in_words(found: Sequence[MovedTarget]) -> Iterator[str]:
    if not found:
        yield "the targets have their recorded names; there is nothing to move"
    for each in found:
        yield without_credentials(f"{f'{each.child}: ' if each.child else ''}from {each.recorded} to {each.now}")
        if each.record is None:
            yield "  the sink keeps no record there: nothing proves that this is the same target"
        else:
            epoch = "none" if each.record.epoch is None else each.record.epoch
            yield f"  the step's record is there: generation {each.record.generation}, last published epoch {epoch}"


@click.command()
@recovery_argument
@step_argument
@click.option("--yes", is_flag=True, help="Accept the server. Without it, nothing is changed.")
@json_option
def accept(recovery: RecoveryConfig, step: str, yes: bool, as_json: bool) -> None:
    """Continue a log in a database on another server than before.

    Use it after a failover, a restore or a move of the database that contains the log. Stop the query first. Without
    --yes, the command shows both servers and what to write again, and changes nothing. It then exits with code 1 if the
    server has changed.
    """
    with closing(recovery.open(step)) as log:
        change = log.server_change()
        if change is not None and yes:
            log.accept_server(change)
    completed = read_status(recovery, step, last=0).completed
    if as_json:
        print_json({"step": step, "change": change, "completed": completed, "accepted": change is not None and yes})
    else:
        for line in _change_in_words(change, completed):
            say(line)
        if change is not None and yes:
            say("accepted; start the query")
    if change is not None and not yes:
        say("nothing was changed; add --yes to accept the server", err=True)
        raise click.exceptions.Exit(1)


def _change_in_words(change: ServerChange | None, completed: int | None) -> Iterator[str]:
    if change is None:
        yield "the server has not changed; there is nothing to accept"
        return
    yield f"entry {change.entry}, the newest one, was written on {change.recorded}"
    yield f"this is {change.now}"
    last, following = ("none", "each epoch") if completed is None else (f"{completed}", f"each epoch after {completed}")
    yield f"last completed epoch here: {last}"
    yield f"- Batch jobs with epoch=: rows of later epochs may be missing here. Run {following} again, in order."
    yield (
        "- Streaming queries: they continue if the checkpoint has no later batch. Otherwise they are refused, because"
        " rows are missing here: restore log, target and checkpoint from copies of the same time."
    )
    yield "- If the former server still runs, stop it first: a query that is connected to it continues there."


@click.command()
@recovery_argument
@step_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def reset(recovery: RecoveryConfig, step: str, yes: bool, as_json: bool) -> None:
    """Erase a step's recovery data. Rows may be written again.

    The command lists the consequences and asks for confirmation. The target does not change. With --json, it never
    asks: without --yes, it erases nothing and exits with code 1.
    """
    lost = [without_credentials(line) for line in consequences(recovery, step)]
    if not as_json:
        _announce(recovery, step, lost)
        if lost and not yes:
            click.confirm("Erase it?", abort=True)
    if lost and (yes or not as_json):
        with closing(recovery.open(step)) as log:
            log.erase()
    if as_json:
        print_json({"step": step, "recovery": recovery.url(), "lost": lost, "erased": bool(lost) and yes})
        if lost and not yes:
            raise click.exceptions.Exit(1)
    elif lost:
        say("erased")


def _announce(recovery: RecoveryConfig, step: str, lost: Sequence[str]) -> None:
    if not lost:
        say("nothing is recorded, nothing to erase")
        return
    say(f"The recovery data of step {step} in {recovery.url()} will be erased.")
    for line in lost:
        say(f"- {line}")


def consequences(recovery: RecoveryConfig, step_id: str) -> list[str]:
    """Describe the consequences of a reset, one paragraph each; empty if nothing is recorded.

    Raises `TransientError` or `ConfigurationError` if the store cannot be read.
    """
    try:
        status = read_status(recovery, step_id, last=0)
    except RecordError as error:
        return [f"The log cannot be read, so the lost data is unknown: {error}", *_ALWAYS]
    if status.state == "empty":
        return []
    found = []
    if status.state in ("recorded", "committing"):
        found.append(
            f"Epoch {status.epoch} is recorded but not fully published. Its rows are lost or partly visible, unless the"
            " source replays them. To publish it first, start the query once or run outfall gc --take-over."
        )
    if status.buffered_rows:
        found.append(
            f"{status.buffered_rows} buffered rows are permanently lost. To deliver them first, run outfall drain."
        )
    last = "no epoch is completed" if status.completed is None else f"epochs up to {status.completed} are completed"
    where = status.target or status.sink or "the target"
    return [
        *found,
        f"The log no longer records which rows are in {where} ({last}). Replayed rows are written again.",
        *_ALWAYS,
    ]


_ALWAYS = [
    "Data of failed attempts remains in the target permanently. To remove it first, run outfall gc --take-over.",
    "The step starts as a new one: with a new checkpoint at batch 0, with the old checkpoint only with"
    " adopt_checkpoint. The sink treats existing data in the target as another writer's and applies on_existing.",
    "A query that still runs fails.",
]

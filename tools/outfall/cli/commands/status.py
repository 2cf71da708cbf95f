"""`outfall status`: what the log of a step says, for people and for monitoring."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click
from rich.console import Console

from outfall.cli.commands.arguments import json_option, no_steps, recovery_argument, step_id
from outfall.cli.commands.output import console, moment, print_json, table
from outfall.errors import OutfallError
from outfall.metrics.step_status import StepStatus, look
from outfall.recovery.history import KEPT_EPOCHS
from outfall.recovery.log import RecoveryConfig

_COLUMNS = (
    "epoch", "batch", "completed", "rows", "bytes", "seconds", "retries", "dead letters", "skipped", "rows held",
)  # fmt: skip


@click.command()
@recovery_argument
@click.option("--step", "steps", type=step_id, metavar="STEP", multiple=True, help="Only this step. May be repeated.")
@click.option(
    "--last", type=click.IntRange(0, KEPT_EPOCHS), default=10, show_default=True, help="How many epochs to show."
)
@click.option("--watch", is_flag=True, help="Go on showing it, until Ctrl-C.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between two looks."
)
@json_option
def status(
    recovery: RecoveryConfig, steps: Sequence[str], last: int, watch: bool, interval: float, as_json: bool
) -> None:
    """Show the steps of a recovery location and their last epochs.

    Writes nothing, and may run beside the query. With --watch --json each look is one line, and an error is shown until
    it has passed. The exit code is 1 where nothing is recorded, or a step cannot be read; the reason is shown with it.
    """
    found: list[StepStatus] = []
    try:
        while True:
            found, problem = _look_at_all(recovery, steps, last, until_it_passes=watch)
            _show(found, problem, recovery, as_json=as_json, watch=watch)
            if not watch:
                break
            time.sleep(interval)
    except KeyboardInterrupt:
        if not watch:
            raise
    if not found or any(step.problem or step.state == "empty" for step in found):
        raise click.exceptions.Exit(1)


def _look_at_all(
    recovery: RecoveryConfig, steps: Sequence[str], last: int, *, until_it_passes: bool
) -> tuple[list[StepStatus], str | None]:
    """Read each step, and return why there are none where they cannot even be listed."""
    try:
        named = steps or recovery.steps()
    except OutfallError as error:
        if not until_it_passes:
            raise
        return [], str(error)
    return [look(recovery, step, last=last) for step in named], None


def _show(
    found: Sequence[StepStatus], problem: str | None, recovery: RecoveryConfig, *, as_json: bool, watch: bool
) -> None:
    if as_json:
        problem = no_steps(recovery) if problem is None and not found else problem
        reason = {} if problem is None else {"problem": problem}
        print_json({"recovery": recovery.url(), "steps": found} | reason, indent=None if watch else 2)
        return
    if watch:
        click.clear()
    if problem is None:
        _print(found, recovery)
    else:
        console().print(problem)


def _print(steps: Sequence[StepStatus], recovery: RecoveryConfig) -> None:
    out = console()
    if not steps:
        out.print(no_steps(recovery))
    for index, step in enumerate(steps):
        if index:
            out.print()
        _print_step(out, step, recovery.url())


def _print_step(out: Console, step: StepStatus, location: str) -> None:
    out.print(f"step {step.step}: {_state(step)}", style="bold")
    for name, value in _facts(step, location):
        if value not in (None, ""):
            out.print(f"  {name:<12} {value}")
    if step.epochs:
        # Nearly always nothing is dropped, and the table is wide.
        columns = (*_COLUMNS, "dropped") if step.dropped_committables else _COLUMNS
        rows = [
            (
                epoch.epoch,
                "drain" if epoch.batch is None else epoch.batch,
                moment(epoch.completed_at),
                f"{epoch.rows:,}",
                f"{epoch.bytes:,}",
                f"{epoch.seconds:.2f}",
                epoch.retries,
                epoch.dead_letters,
                f"{epoch.skipped:,}",
                f"{epoch.rows_held:,}",
                f"{epoch.dropped:,}",
            )[: len(columns)]
            for epoch in step.epochs
        ]
        out.print(table(columns, rows, right=set(columns) - {"completed"}))


def _facts(step: StepStatus, location: str) -> Iterator[tuple[str, str | None]]:
    yield "problem", step.problem
    yield "sink", step.sink
    yield "target", step.target
    for name, target in step.children.items():
        yield f"  {name}", target
    yield "guarantee", step.guarantee
    dropped = f"{step.dropped_rows:,} rows, in {step.dropped_committables:,} committables that the target refused"
    yield "dropped", dropped if step.dropped_committables else None
    yield "incarnation", step.incarnation
    yield "generation", f"{step.generation}, by {step.driver}, outfall {step.outfall}" if step.driver else None
    yield "query", step.query_id
    held = f"{step.rows_held:,}" + (f", the oldest since {moment(step.held_since)}" if step.held_since else "")
    yield "rows held", held if step.rows_held else None
    # Nobody is told when a query ends, so that this is said also where one runs.
    deliver = f"outfall drain {shlex.quote(location)} {step.step}, with the sink's options, while no query runs"
    yield "to deliver", deliver if step.rows_held else None
    yield "states", str(step.states) if step.states else None


def _state(step: StepStatus) -> str:
    since = "" if step.changed_at is None else f", {_ago(step.changed_at)}"
    match step.state:
        case "empty":
            return "nothing is recorded"
        case "begun":
            epoch = "an epoch" if step.epoch is None or step.epoch == step.completed else f"epoch {step.epoch}"
            return f"{epoch} is being written, or was when its driver ended{since}"
        case "recorded":
            return f"epoch {step.epoch} is recorded and not published{since}"
        case "committing":
            return f"epoch {step.epoch} is being published, or was when its driver ended{since}"
        case "abandoned":
            return f"epoch {step.epoch} lost data before it was published, and is to be written anew{since}"
        case "moved":
            return f"moved to {step.moved_to}{since}"
        case "damaged":
            return "its log cannot be read"
        case "unreadable":
            return "its log cannot be read now"
        case "completed":
            return f"epoch {step.completed} is completed{since}"


def _ago(time: datetime) -> str:
    seconds = int((datetime.now(UTC) - time).total_seconds())
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name} ago"
    return f"{max(0, seconds)} s ago"

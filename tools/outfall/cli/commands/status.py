"""`outfall status`: the state of steps in readable form."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outfall.cli.commands.arguments import complete_step, json_option, recovery_argument, step_id
from outfall.cli.commands.output import SEVERITY_STYLES, all_printable, console, location_as_json, print_json, table
from outfall.metrics.in_words import (
    Severity,
    age,
    byte_size,
    last_error_in_words,
    moment,
    remedy_of,
    retrying_in_words,
    state_in_words,
    state_word,
    tables_in_words,
)
from outfall.metrics.location_status import LocationStatus, look_at, named_steps, problems
from outfall.metrics.step_status import StepStatus
from outfall.protocol.states import ROWS_BY_SPARK
from outfall.recovery.history import KEPT_EPOCHS, EpochSummary
from outfall.recovery.log import RecoveryConfig


@click.command()
@recovery_argument
@click.option(
    "--step", "steps", type=step_id, metavar="STEP", multiple=True, shell_complete=complete_step,
    help="Only this step. Can be repeated.",
)  # fmt: skip
@click.option(
    "--last", type=click.IntRange(0, KEPT_EPOCHS), default=10, show_default=True, help="Number of epochs to show."
)
@json_option
def status(recovery: RecoveryConfig, steps: Sequence[str], last: int, as_json: bool) -> None:
    """Show the steps of a recovery location and their last epochs.

    For a directory of checkpoints, show one line per step. The command only reads, so it is safe while the query runs.
    The exit code is 1 if nothing is recorded or a step cannot be read; the output has the reason.
    """
    found = look_at(recovery, steps, last=last)
    if as_json:
        print_json(location_as_json(found))
    else:
        _print(console(), all_printable(found))
    if found.failed():
        raise click.exceptions.Exit(1)


def _print(out: Console, found: LocationStatus) -> None:
    now = datetime.now(UTC)
    for _, problem in problems(found):
        out.print(problem, style=SEVERITY_STYLES["failed"])
    if found.checkpoints:
        out.print(_overview(found, now))
    for index, step in enumerate(found.steps):
        if index:
            out.print()
        _print_step(out, step, found.recovery, now)


def _overview(found: LocationStatus, now: datetime) -> Table:
    """Return a table with one line per step of the checkpoints below a directory."""
    made = table(("checkpoint", "step", "state", "epoch", "age"), right=("epoch", "age"))
    for each in named_steps(found):
        step, (word, severity) = each.status, state_word(each.status)
        epoch = step.epoch if step.epoch is not None else step.completed
        since = "" if step.changed_at is None else age(step.changed_at, now)
        number = "" if epoch is None else str(epoch)
        made.add_row(each.directory, step.step, Text(word, SEVERITY_STYLES[severity]), number, since)
    return made


def _print_step(out: Console, step: StepStatus, location: str, now: datetime) -> None:
    ended = "; the query has failed" if step.failed else ""
    state = Text(state_in_words(step, now) + ended, SEVERITY_STYLES[state_word(step)[1]])
    out.print(Text.assemble((f"step {step.step}: ", "bold"), state))
    facts = [(name, value, style) for name, value, style in _facts(step, location, now) if value not in (None, "")]
    if out.is_terminal:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value, style in facts:
            grid.add_row(f"  {name}", Text(value or "", style))
        out.print(grid)
    else:
        names = max(len(name) for name, _, _ in facts) if facts else 0
        for name, value, style in facts:
            out.print(Text.assemble(f"  {name:<{names}}  ", (value or "", style)))
    if step.epochs:
        _print_epochs(out, step.epochs)


def _facts(step: StepStatus, location: str, now: datetime) -> Iterator[tuple[str, str | None, str]]:
    """Yield the facts about a step: name, value, style."""
    failed, warning = SEVERITY_STYLES["failed"], SEVERITY_STYLES["warning"]
    yield "problem", step.problem, failed
    yield "retrying", retrying_in_words(step), failed
    yield "last error", last_error_in_words(step, now), failed
    yield "what to do", remedy_of(step), ""
    yield "sink", step.sink, ""
    yield "target", step.target, ""
    for name, target in step.children.items():
        yield f"  {name}", target, ""
    yield "tables", tables_in_words(step), ""
    yield "guarantee", step.guarantee, failed if step.guarantee == "NONE" else ""
    dropped = f"{step.dropped_rows:,} rows, in {step.dropped_committables:,} committables that the target rejected"
    yield "dropped", dropped if step.dropped_committables else None, failed
    yield "incarnation", step.incarnation, ""
    yield "generation", f"{step.generation}, by {step.driver}, outfall {step.outfall}" if step.driver else None, ""
    yield "query", step.query_id, ""
    held = f"{step.buffered_rows:,} rows" + (f", the oldest since {moment(step.held_since)}" if step.held_since else "")
    yield "buffered", held if step.buffered_rows else None, warning
    # Shown also while a query runs, because the log does not tell when a query ends.
    deliver = f"outfall drain {shlex.quote(location)} {step.step}, with the sink's options, while no query runs"
    yield "to deliver", deliver if step.buffered_rows else None, ""
    restarts = f"{step.restarts:,} restarts of epochs" if step.restarts > 1 else "1 restart of an epoch"
    yield "restarts", restarts if step.restarts else None, ""
    yield "states", str(step.states) if step.states else None, ""


_ALWAYS = ("epoch", "completed (UTC)", "rows", "bytes", "seconds", "commit")
_COUNTERS: dict[str, Callable[[EpochSummary], int]] = {
    "tables": lambda epoch: epoch.table_count,
    "retries": lambda epoch: epoch.retries,
    "dead letters": lambda epoch: epoch.dead_letters,
    "dropped": lambda epoch: epoch.dropped,
    "skipped": lambda epoch: epoch.skipped,
    "buffered": lambda epoch: epoch.buffered_rows,
    "by Spark": lambda epoch: epoch.counts.get(ROWS_BY_SPARK, 0),
}
"""Columns that are left out if all their values are zero."""
_STYLES: dict[str, Severity] = {"retries": "warning", "dead letters": "warning", "dropped": "failed"}
_DISPENSABLE = ("bytes", "batch", "commit", "skipped")
"""Columns that are removed first if the terminal is too narrow."""


def _print_epochs(out: Console, epochs: Sequence[EpochSummary]) -> None:
    counters = [name for name, count in _COUNTERS.items() if any(map(count, epochs))]
    batches = ["batch"] if any(epoch.batch != epoch.epoch for epoch in epochs) else []
    always = [name for name in _ALWAYS[1:] if name != "bytes" or any(epoch.bytes for epoch in epochs)]
    columns = ["epoch", *batches, *always, *counters]
    left_out = []
    for name in _DISPENSABLE:
        if out.measure(_epoch_table(columns, epochs)).maximum <= out.width:
            break
        if name in columns:
            columns.remove(name)
            left_out.append(name)
    out.print(_epoch_table(columns, epochs))
    if left_out:
        out.print(f"({' and '.join(left_out)} left out to fit the width; --json has all columns)", style="dim")


def _epoch_table(columns: Sequence[str], epochs: Sequence[EpochSummary]) -> Table:
    # A two-line heading keeps the column as narrow as its numbers.
    made = table([name.replace("dead ", "dead\n") for name in columns], right=set(columns) - {"completed (UTC)"})
    for epoch in epochs:
        made.add_row(*(_cell(name, epoch) for name in columns))
    return made


def _cell(name: str, epoch: EpochSummary) -> Text:
    match name:
        case "epoch":
            return Text(str(epoch.epoch))
        case "batch":
            return Text("drain" if epoch.batch is None else str(epoch.batch))
        case "completed (UTC)":
            return Text(epoch.completed_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"))
        case "rows":
            return Text(f"{epoch.delivered_rows:,}")
        case "bytes":
            return Text(byte_size(epoch.bytes))
        case "seconds":
            return Text(f"{epoch.seconds:.2f}")
        case "commit":
            return Text(f"{epoch.commit_seconds:.2f}")
    count = _COUNTERS[name](epoch)
    return Text(f"{count:,}", SEVERITY_STYLES[_STYLES.get(name, "ok")] if count and name in _STYLES else "")

"""`outfall watch`: a live view of the steps of one or more locations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from outfall.cli.commands.arguments import complete_location, complete_step, json_option, recovery_location, step_id
from outfall.cli.commands.output import SEVERITY_STYLES, all_printable, console, location_as_json, print_json, table
from outfall.metrics.in_words import age, retrying_in_words, state_word
from outfall.metrics.location_status import LocationStatus, look_at, named_steps, problems
from outfall.metrics.step_status import StepStatus
from outfall.recovery.history import KEPT_EPOCHS, rows_per_second
from outfall.recovery.log import RecoveryConfig
from outfall.recovery.plots import compact
from outfall.redaction import without_credentials

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 40
_OTHER_LINES = 4
"""Lines of the screen without a step: time, headings, number of hidden steps, and the last line."""


@click.command()
@click.argument(
    "locations", type=recovery_location, metavar="RECOVERY...", nargs=-1, required=True,
    shell_complete=complete_location,
)  # fmt: skip
@click.option(
    "--step", "steps", type=step_id, metavar="STEP", multiple=True, shell_complete=complete_step,
    help="Only this step. Can be repeated.",
)  # fmt: skip
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between two updates."
)
@json_option
def watch(locations: Sequence[RecoveryConfig], steps: Sequence[str], interval: float, as_json: bool) -> None:
    """Show the current state of the steps of one or more locations, until Ctrl-C.

    If a store fails, the output shows the error and the next update tries again. Without a terminal, each update is
    printed below the previous one. With --json, each update is one line.
    """
    out = console()
    try:
        with _whole_screen(out, as_json) as live:
            while True:
                found = [_look(recovery, steps) for recovery in locations]
                if as_json:
                    print_json({"locations": [location_as_json(each) for each in found]}, indent=None)
                elif live is not None:
                    live.update(screen(found, datetime.now(UTC), out.width, out.height), refresh=True)
                else:
                    out.print(screen(found, datetime.now(UTC), out.width))
                time.sleep(interval)
    except KeyboardInterrupt:
        return


def _look(recovery: RecoveryConfig, steps: Sequence[str]) -> LocationStatus:
    try:
        return look_at(recovery, steps, last=KEPT_EPOCHS)
    except Exception as error:  # any error of a store's client may be temporary
        return LocationStatus(recovery.url(), problem=without_credentials(f"{type(error).__name__}: {error}"))


def _whole_screen(out: Console, as_json: bool) -> AbstractContextManager[Live | None]:
    if out.is_terminal and not as_json:
        return Live(console=out, screen=True, auto_refresh=False)
    return nullcontext()


def screen(found: Sequence[LocationStatus], now: datetime, width: int, height: int | None = None) -> RenderableType:
    """Return one update: a line for each step, then the problems. `now` is in UTC.

    Steps that do not fit in `height` lines of the terminal are hidden and counted; with `None`, all are shown.
    """
    found = all_printable([*found])
    rows = [
        (f"{_last(location)}/{each.name}" if len(found) > 1 else each.name, each.status)
        for location in found
        for each in named_steps(location)
    ]
    wrong = [
        Text.assemble((f"{name}  ", "bold"), (text, SEVERITY_STYLES["failed"])) for name, text in _wrong(found, rows)
    ]
    room = len(rows) if height is None else max(1, height - _OTHER_LINES - 2 * len(wrong))
    more = [Text(f"and {len(rows) - room} more", "dim")] if len(rows) > room else []
    heading = Text(f"{now:%Y-%m-%d %H:%M:%S} UTC", "dim")
    return Group(heading, _table(rows[:room], now, width), *more, *wrong)


def _last(location: LocationStatus) -> str:
    return location.recovery.rstrip("/").rpartition("/")[2]


def _wrong(found: Sequence[LocationStatus], rows: Sequence[tuple[str, StepStatus]]) -> Iterator[tuple[str, str]]:
    for location in found:
        yield from problems(location)
    for name, step in rows:
        if step.problem is not None:
            yield name, step.problem
        elif step.state == "abandoned":
            yield name, f"epoch {step.epoch} lost data before publication; the query writes it again"
        elif retrying := retrying_in_words(step):
            yield name, f"retrying: {retrying}"
        if step.dropped_committables:
            yield name, f"{step.dropped_rows:,} rows that the target rejected were dropped"


_COLUMNS = ("step", "state", "epoch", "age", "rows/s", "last epochs", "seconds", "buffered")
"""`seconds` has the duration of the last epoch: tasks + commit."""


def _table(rows: Sequence[tuple[str, StepStatus]], now: datetime, width: int) -> Table:
    without = _filled(rows, now, bars=0)
    bars = width - Console(width=10 * width).measure(without).maximum
    return _filled(rows, now, bars=max(0, min(_MOST_BARS, bars)) + len("last epochs"))


def _filled(rows: Sequence[tuple[str, StepStatus]], now: datetime, bars: int) -> Table:
    made = table(_COLUMNS, right=("epoch", "age", "rows/s", "seconds", "buffered"))
    for name, step in rows:
        word, severity = state_word(step)
        written = [epoch for epoch in step.epochs if epoch.seconds]
        speeds = [rows_per_second(epoch) for epoch in written]
        epoch = step.completed if step.epoch is None else step.epoch
        made.add_row(
            Text(name),
            Text(word, SEVERITY_STYLES[severity]),
            "" if epoch is None else str(epoch),
            "" if step.changed_at is None else age(step.changed_at, now),
            compact(speeds[-1]) if speeds else "",
            sparkline(speeds[-bars:]) if bars else "",
            f"{written[-1].task_seconds:.1f}+{written[-1].commit_seconds:.1f}" if written else "",
            Text(compact(step.buffered_rows), SEVERITY_STYLES["warning"]) if step.buffered_rows else "",
        )
    return made


def sparkline(values: Sequence[float]) -> str:
    """Draw numbers as bars in one line; the largest has the full height."""
    top = max(values, default=0.0)
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] if top > 0 else _BARS[0] for value in values)

"""`outfall report`: an HTML page about the steps of a location."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TextIO

import click

from outfall.cli.commands.arguments import json_option, recovery_argument
from outfall.cli.commands.output import print_json
from outfall.errors import ConfigurationError
from outfall.metrics.advice import troubles
from outfall.metrics.location_status import look_at, named_steps
from outfall.metrics.report import report_page
from outfall.recovery.history import KEPT_EPOCHS
from outfall.recovery.log import RecoveryConfig


@click.command()
@recovery_argument
@click.option(
    "-o", "--output", type=click.File("w", encoding="utf-8", lazy=True), metavar="PAGE.html",
    help="Output file; - for the standard output. Optional with --json.",
)  # fmt: skip
@click.option(
    "--last", type=click.IntRange(1, KEPT_EPOCHS), default=KEPT_EPOCHS, show_default=True,
    help="Number of epochs to show for each step.",
)  # fmt: skip
@json_option
def report(recovery: RecoveryConfig, output: TextIO | None, last: int, as_json: bool) -> None:
    """Write an HTML page about the steps of a recovery location: states, problems and advice.

    The page is self-contained, loads nothing and runs no script, so you can mail it. The command only reads recovery
    data, so it is safe while the query runs. For a directory of checkpoints, the page has all of them. With --json,
    problems and advice are also printed.
    """
    if output is None and not as_json:
        raise click.UsageError("Missing option '-o': for example -o report.html.")
    found = look_at(recovery, last=last)
    if found.problem is not None:
        raise ConfigurationError(found.problem)
    now = datetime.now(UTC)
    if output is not None:
        output.write(report_page(found, now))
    if as_json:
        steps = [
            {"location": each.location, "step": each.status.step, "state": each.status.state,
             "troubles": troubles(each.status, each.location, now)}
            for each in named_steps(found)
        ]  # fmt: skip
        print_json({"recovery": found.recovery, "steps": steps})

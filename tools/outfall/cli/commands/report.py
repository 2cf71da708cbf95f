"""`outfall report`: a page about the steps of a location."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TextIO

import click

from outfall.cli.commands.arguments import recovery_argument
from outfall.errors import ConfigurationError
from outfall.metrics.location_status import look_at
from outfall.metrics.report import report_page
from outfall.recovery.history import KEPT_EPOCHS
from outfall.recovery.log import RecoveryConfig


@click.command()
@recovery_argument
@click.option(
    "-o", "--output", type=click.File("w", encoding="utf-8", lazy=True), required=True, metavar="PAGE.html",
    help="The file to write; - for the standard output.",
)  # fmt: skip
@click.option(
    "--last", type=click.IntRange(1, KEPT_EPOCHS), default=KEPT_EPOCHS, show_default=True,
    help="How many epochs of each step to show.",
)  # fmt: skip
def report(recovery: RecoveryConfig, output: TextIO, last: int) -> None:
    """Write a page of HTML about the steps of a recovery location: how they stand, what went wrong, and what to do.

    The page needs no other file, loads nothing and runs no script, so it can be mailed or kept. Reads only; safe while
    the query runs. Of a directory of checkpoints all are on the page.
    """
    found = look_at(recovery, last=last)
    if found.problem is not None:
        raise ConfigurationError(found.problem)
    output.write(report_page(found, datetime.now(UTC)))

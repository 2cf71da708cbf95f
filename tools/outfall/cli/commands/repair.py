"""`outfall repair`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from outfall.cli.commands.arguments import json_option, recovery_location, step_id
from outfall.cli.commands.output import print_json
from outfall.cli.repairing import CheckpointRepair, lines
from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.log import RecoveryConfig


@click.command()
@click.argument("checkpoint", type=recovery_location, metavar="CHECKPOINT")
@click.option(
    "--recovery",
    "places",
    type=recovery_location,
    metavar="RECOVERY",
    multiple=True,
    help="Where the recovery data is, if not in the checkpoint. May be repeated.",
)
@click.option(
    "--step",
    "steps",
    type=step_id,
    metavar="STEP",
    multiple=True,
    help="A step that the query writes; may be repeated. Without it all that are recorded for the query count.",
)
@click.option("--yes", is_flag=True, help="Repair it. Without it is only said what would be done.")
@json_option
def repair(
    checkpoint: RecoveryConfig, places: Sequence[RecoveryConfig], steps: Sequence[str], yes: bool, as_json: bool
) -> None:
    """Make Spark's checkpoint usable again after a loss of power. Deletes nothing.

    CHECKPOINT is the query's checkpointLocation, on a local disk. For queries that Spark cannot start any more
    ("Incomplete log file"). Stop the query first: one that runs is fenced and fails. What is torn is moved aside where
    the recovery data proves that no row is lost or written twice without it; anything else is refused, with the reason,
    and the exit code is 1.
    """
    if not isinstance(checkpoint, CheckpointRecoveryConfig):
        raise click.BadParameter(f"{checkpoint.url()} is no checkpoint of Spark")
    work = CheckpointRepair(checkpoint.url(), places or [checkpoint], steps)
    progress, found = work.look()
    moved = work.repair() if yes and not found.refusals else []
    if as_json:
        print_json({"progress": progress, "findings": found, "moved": moved})
    else:
        for line in lines(progress, found):
            click.echo(line)
        _conclude(moved, found.moves, bool(found.damaged))
    for why in found.refusals:
        click.echo(f"refused: {why}", err=True)
    if found.refusals:
        raise click.exceptions.Exit(1)


def _conclude(moved: Sequence[str], movable: Sequence[str], is_damaged: bool) -> None:
    if moved:
        click.echo(f"{len(moved)} moved to outfall-repair; start the query")
    elif movable:
        click.echo(f"{len(movable)} to move, nothing was moved: give --yes", err=True)
    elif not is_damaged:
        click.echo("nothing is damaged")

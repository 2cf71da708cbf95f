"""`outfall copy`."""

from __future__ import annotations

import click

from outfall.cli.commands.arguments import json_option, recovery_location, step_argument
from outfall.cli.commands.output import print_json
from outfall.recovery.copying import copy_step
from outfall.recovery.log import RecoveryConfig


@click.command()
@click.argument("source", type=recovery_location, metavar="SOURCE")
@click.argument("target", type=recovery_location, metavar="TARGET")
@step_argument
@json_option
def copy(source: RecoveryConfig, target: RecoveryConfig, step: str, as_json: bool) -> None:
    """Move a step's recovery data to another store.

    SOURCE and TARGET are recovery locations. Stop the query first, and start it with recovery=TARGET: the source gets a
    last entry, after which nobody goes on from it. A copy that failed is made again with the same arguments.
    """
    copied = copy_step(source, target, step)
    if as_json:
        print_json(copied)
        return
    click.echo(
        f"{copied.entries} entries and {copied.states} large states, {copied.bytes:,} bytes, copied and compared"
    )
    click.echo(f"start the query with recovery={target.url()!r}")

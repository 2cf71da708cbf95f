"""`outfall reset`."""

from __future__ import annotations

import click

from outfall.cli.commands.arguments import recovery_argument, step_argument
from outfall.cli.masking import without_credentials
from outfall.cli.resetting import consequences
from outfall.cli.resetting import reset as erase
from outfall.recovery.log import RecoveryConfig


@click.command()
@recovery_argument
@step_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(recovery: RecoveryConfig, step: str, yes: bool) -> None:
    """Erase a step's recovery data. Rows may be written again.

    Says first what is lost, and asks. The target is left as it is.
    """
    known = consequences(recovery, step)
    if not known:
        click.echo("nothing is recorded; there is nothing to erase")
        return
    click.echo(f"The recovery data of step {step} in {recovery.url()} will be erased.")
    for line in known:
        click.echo(f"- {without_credentials(line)}")
    if not yes:
        click.confirm("Erase it?", abort=True)
    erase(recovery, step)
    click.echo("erased")

"""`outfall gc`."""

from __future__ import annotations

import click

from outfall.cli.chosen_sink import ChosenSink
from outfall.cli.commands.arguments import json_option, recovery_argument, sink_options, step_argument
from outfall.cli.commands.output import print_json
from outfall.cli.leftovers import LeftoverSweeper
from outfall.cli.masking import without_credentials
from outfall.recovery.log import RecoveryConfig


@click.command()
@recovery_argument
@step_argument
@sink_options
@click.option("--yes", is_flag=True, help="Remove them. Without it they are only listed.")
@click.option(
    "--take-over", is_flag=True,
    help="Also what the last driver's attempts left, for a query that does not run: one that does is fenced and fails."
    " What is recorded is published first.",
)  # fmt: skip
@json_option
def gc(recovery: RecoveryConfig, step: str, chosen: ChosenSink, yes: bool, take_over: bool, as_json: bool) -> None:
    """Find, and with --yes remove, what lost attempts of a step left in its target: uploads, staging, files.

    Safe while the query runs, unless --take-over is given: only what carries this step's incarnation and an older
    generation than the newest in its log. The query does the same after each epoch; this is for what is left when it
    will not run again, or when sweeping failed.
    """
    sweeper = LeftoverSweeper(chosen.make(), recovery, step)
    if yes:
        removed = sweeper.sweep(take_over=take_over, commit=chosen.commit_policy())
        if as_json:
            print_json({"removed": removed})
        else:
            click.echo(f"{removed} removed")
        return
    found = sweeper.find(take_over=take_over)
    names = [without_credentials(name) for name in found.names]
    if as_json:
        print_json({"leftovers": names, "generation": found.generation, "recorded": found.recorded})
        return
    for name in names:
        click.echo(name)
    if found.recorded is not None:
        click.echo(f"epoch {found.recorded} is recorded and would be published; what it leaves is not listed", err=True)
    click.echo(f"{len(names)} found" + (", nothing was removed: give --yes" if names else ""), err=True)

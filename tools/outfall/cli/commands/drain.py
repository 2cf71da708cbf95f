"""`outfall drain`."""

from __future__ import annotations

from contextlib import closing

import click

from outfall.cli.chosen_sink import ChosenSink
from outfall.cli.commands.arguments import recovery_argument, sink_options, step_argument
from outfall.errors import ConfigurationError
from outfall.protocol import draining
from outfall.protocol.coordinator import EpochCoordinator, EpochOptions
from outfall.protocol.states import ROWS_DRAINED
from outfall.recovery.log import RecoveryConfig


@click.command()
@recovery_argument
@step_argument
@sink_options
def drain(recovery: RecoveryConfig, step: str, chosen: ChosenSink) -> None:
    """Deliver the rows that a sink holds back across epochs.

    Stop the query first: one that runs is fenced and fails. Give the sink with the options of its query. A drain that
    fails can be repeated; each row is delivered once, as in any epoch.
    """
    with closing(recovery.open(step)) as log:
        if not log.numbers():
            raise ConfigurationError(
                f"nothing is recorded of this step in {recovery.url()}", step=step, do="see outfall status"
            )
    sink, options = chosen.make(), EpochOptions(commit=chosen.commit_policy())
    result = draining.drain(lambda: EpochCoordinator(sink, step, recovery, options=options))
    if result is None:
        click.echo("nothing is held back")
    else:
        click.echo(f"epoch {result.epoch} delivered {result.counts[ROWS_DRAINED]:,} rows in {result.seconds:.2f} s")

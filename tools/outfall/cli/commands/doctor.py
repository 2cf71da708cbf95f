"""`outfall doctor`."""

from __future__ import annotations

import click

from outfall.cli.chosen_sink import ChosenSink
from outfall.cli.commands.arguments import json_option, recovery_location, sink_options, step_id
from outfall.cli.commands.output import print_json
from outfall.cli.examination import Examination, Finding
from outfall.recovery.log import RecoveryConfig


@click.command()
@sink_options
@click.option(
    "--recovery",
    type=recovery_location,
    metavar="RECOVERY",
    help="Compare the target with this log.",
)
@click.option("--step", type=step_id, metavar="STEP", default="sink", show_default=True, help="The step in that log.")
@json_option
def doctor(chosen: ChosenSink, recovery: RecoveryConfig | None, step: str, as_json: bool) -> None:
    """Check a sink's options, its target and the way to it. Writes nothing that stays.

    Runs here, with the rights and the network of this host: executors may have others. Exit code 1 when something
    fails.
    """
    findings: list[Finding] = []
    for finding in Examination(chosen.make, recovery, step).run():
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.result:<12} {finding.about:<12} {finding.text}")
    if as_json:
        print_json(findings)
    if any(finding.result == "failed" for finding in findings):
        raise click.exceptions.Exit(1)

"""`outfall repair`: shows what is torn in Spark's checkpoint after a power loss, and moves it aside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from outfall.cli.commands.arguments import json_option, recovery_location, step_id
from outfall.cli.commands.output import print_json, say
from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.log import RecoveryConfig
from outfall.repair.plan import Plan, Progress
from outfall.repair.repairing import ASIDE, opened


def lines(progress: Progress, plan: Plan) -> Iterator[str]:
    """Describe the damage and its repair in readable lines."""
    begun = "no batch was begun" if progress.begun is None else f"last begun batch: {progress.begun}"
    done = (
        "none completed" if progress.completed is None else f"last batch completed by every step: {progress.completed}"
    )
    yield f"{begun}, {done}"
    for name, wrong in plan.damaged.items():
        yield f"{'aside' if name in plan.moves else 'damaged'}  {name} {wrong}"
    for name in plan.moves:
        if name not in plan.damaged:
            yield f"aside  {name} depends on a damaged file"
    if plan.again is not None and plan.moves:
        yield f"Spark will replay batch {plan.again}; its rows are read and dropped"
    if plan.planned is not None and plan.moves:
        yield f"Spark will plan batch {plan.planned} again; no step has begun it"


@click.command()
@click.argument("checkpoint", type=recovery_location, metavar="CHECKPOINT")
@click.option(
    "--recovery",
    "places",
    type=recovery_location,
    metavar="RECOVERY",
    multiple=True,
    help="Location of the recovery data, if not in the checkpoint. Can be repeated.",
)
@click.option(
    "--step",
    "steps",
    type=step_id,
    metavar="STEP",
    multiple=True,
    help="Step of the query. Can be repeated. Default: all steps recorded for the query.",
)
@click.option("--yes", is_flag=True, help="Repair the checkpoint. Without it, only the plan is shown.")
@json_option
def repair(
    checkpoint: RecoveryConfig, places: Sequence[RecoveryConfig], steps: Sequence[str], yes: bool, as_json: bool
) -> None:
    """Repair Spark's checkpoint after a power loss. Deletes nothing.

    Use it for queries that Spark cannot start ("Incomplete log file"). CHECKPOINT is the query's checkpointLocation on
    a local disk. Stop the query first: a running query is fenced and fails. Torn files are moved aside if the recovery
    data proves that no row is lost or duplicated. Otherwise the command reports the reason and exits with code 1.
    """
    if not isinstance(checkpoint, CheckpointRecoveryConfig):
        raise click.BadParameter(f"{checkpoint.url()} is not a Spark checkpoint")
    with opened(checkpoint.url(), places or [checkpoint], steps) as work:
        plan = work.plan()
        if not as_json:
            for line in lines(work.progress, plan):
                say(line)
        moved = plan.moves if yes else ()
        if moved:
            work.carry_out(plan)
    if as_json:
        print_json({"progress": work.progress, "findings": plan, "moved": moved})
    else:
        _conclude(moved, plan)
    for why in plan.refusals:
        say(f"cannot be repaired: {why}", err=True)
    if plan.refusals:
        raise click.exceptions.Exit(1)


def _conclude(moved: Sequence[str], plan: Plan) -> None:
    if moved:
        say(f"{len(moved)} files moved to {ASIDE}; start the query")
    elif plan.moves:
        say(f"{len(plan.moves)} files to move; nothing was moved; add --yes to move them", err=True)
    elif not plan.damaged:
        say("no damage found")

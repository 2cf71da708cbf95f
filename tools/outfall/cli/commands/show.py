"""`outfall show`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from outfall.cli.commands.arguments import json_option, recovery_argument, step_argument
from outfall.cli.commands.output import print_json
from outfall.cli.epoch_records import read_epoch
from outfall.recovery.log import RecoveryConfig

LAST = -1


def epoch_number(text: str) -> int:
    """Understand a number, or `last`."""
    if text == "last":
        return LAST
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r} is neither a number nor 'last'")
    return int(text)


@click.command()
@recovery_argument
@step_argument
@click.argument("epoch", type=epoch_number, metavar="EPOCH")
@json_option
def show(recovery: RecoveryConfig, step: str, epoch: int, as_json: bool) -> None:
    """Show what is recorded of an epoch, states and committables as stored.

    EPOCH is a number as outfall status shows it, or "last". The last epoch is kept whole, of those before only counts.
    Records hold no secrets; what looks like credentials in a URL is masked all the same.
    """
    found = read_epoch(recovery, step, None if epoch == LAST else epoch)
    if as_json:
        print_json(found)
        return
    click.echo(f"step {found.step}, epoch {found.epoch}")
    if not found.whole:
        click.echo("Its states and committables are not kept any more.")
    for entry in found.entries:
        click.echo(f"\nentry {entry['number']}: {str(entry['kind']).upper()}, {entry['time']}")
        for line in _lines(entry):
            click.echo(f"  {line}")


_IN_THE_HEADING = {"number", "kind", "time", "format", "step"}


def _lines(entry: Mapping[str, Any]) -> Iterator[str]:
    for name, value in entry.items():
        if name in _IN_THE_HEADING or value in (None, "", [], {}):
            continue
        if name == "counts" or not isinstance(value, dict | list):
            yield f"{name}: {_shown(value)}"
            continue
        yield f"{name}:"
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from (f"  {key}: {_shown(item)}" for key, item in items)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value, ensure_ascii=False)

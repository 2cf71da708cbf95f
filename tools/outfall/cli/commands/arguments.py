"""Arguments and options that several commands have."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from outfall.cli.chosen_sink import ChosenSink, read_options
from outfall.errors import ConfigurationError
from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.log import RecoveryConfig, check_step_id
from outfall.recovery.url import recovery_config

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN = 10
"""Checkpoints that are named."""


def recovery_location(text: str) -> RecoveryConfig:
    """Understand a path, also a relative one, or a URL; as the type of an argument."""
    if not text.strip():
        raise click.BadParameter("it is empty: give a path or a URL, and . for the current directory")
    try:
        # Relative is to where the command runs, which here is the only place that counts.
        return recovery_config(text if urlsplit(text).scheme else os.path.abspath(os.path.expanduser(text)))
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from error


def why_none(recovery: RecoveryConfig) -> str:
    """Say why a location has no steps, where that can be seen: the end of a sentence, or nothing."""
    path = recovery.url() if isinstance(recovery, CheckpointRecoveryConfig) else ""
    if not path.startswith("/"):
        return ""
    if not os.path.isdir(path):
        return ": there is no such directory"
    below = sorted(found.parent.name for found in Path(path).glob("*/outfall") if found.is_dir())
    if below:
        shown = ", ".join(below[:_SHOWN]) + (f" and {len(below) - _SHOWN} more" if len(below) > _SHOWN else "")
        return f" itself, but in directories of it: {shown}. Name one of them"
    kind = "Spark has a checkpoint there, and Outfall wrote nothing yet" if (Path(path) / "offsets").is_dir() else None
    return f": {kind or 'it is no checkpoint, nor was it given as recovery='}"


def step_id(text: str) -> str:
    """Check the id of a step; as the type of an argument."""
    try:
        return check_step_id(text)
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from error


recovery_argument = click.argument("recovery", type=recovery_location, metavar="RECOVERY")
step_argument = click.argument("step", type=step_id, metavar="STEP")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def sink_options(command: F) -> F:
    """Give a command the options that name a sink; its function takes `chosen: ChosenSink`."""

    def choose(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> ChosenSink:
        name, path = ctx.params.pop("sink"), ctx.params.pop("options_file")
        try:
            options = {} if path is None else read_options(path)
        except ConfigurationError as error:
            raise click.BadParameter(str(error), ctx, param_hint="--options-file") from error
        options = _merged(options, dict(_pair(text, ctx, param) for text in given))
        if name is None and not any(key.lower() == "sink" for key in options):
            raise click.UsageError("Missing option '--sink': name the sink, for example --sink file.", ctx)
        return ChosenSink(name, options)

    for option in (
        # Last, so that the two others are known to it.
        click.option(
            "-o", "--option", "chosen", multiple=True, metavar="NAME=VALUE", callback=choose,
            help='An option of the sink, as .option(NAME, VALUE) gives it to format("outfall"). May be repeated. Give'
            " secrets as env:NAME or file:PATH: a command line can be seen by others.",
        ),
        click.option(
            "--options-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), is_eager=True,
            help="A TOML or JSON file of options; those given with -o go before.",
        ),
        click.option(
            "--sink", metavar="NAME", is_eager=True,
            help="A sink, such as file, or package.module:make_sink for a sink object.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _pair(text: str, ctx: click.Context, param: click.Parameter) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        # The text is not shown: a value that lost its name may be a secret.
        raise click.BadParameter("write each option as name=value", ctx, param)
    return name.strip(), value


def _merged(below: dict[str, str], above: dict[str, str]) -> dict[str, str]:
    """Both, where an option in any of its spellings is one."""
    given = {_plain(name) for name in above}
    return {name: value for name, value in below.items() if _plain(name) not in given} | above


def _plain(name: str) -> str:
    return name.replace("_", "").lower()

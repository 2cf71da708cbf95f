"""Arguments and options that several commands have: places, steps, and the sink that a command is about."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from outfall import plugins
from outfall.capability_checks import check_sink
from outfall.errors import ConfigurationError, OutfallError
from outfall.metrics.location_status import SHOWN, local_path, no_steps, why_none
from outfall.options import plain_name
from outfall.protocol.commit_retry import CommitPolicy
from outfall.recovery.log import RecoveryConfig, check_step_id
from outfall.recovery.sqlite import SqliteRecoveryConfig
from outfall.recovery.url import recovery_config
from outfall.source_options import build_sink, split_options


@dataclass(frozen=True)
class ChosenSink:
    """Which sink a command is about, and how it is made.

    Args:
        name: a sink as `.option("sink", …)` names it, or `package.module:function`, a function without arguments, or
            `package.module:sink`, for sinks that are made of objects. May stand among the options instead.
        options: those of `format("outfall")`, in any of their spellings. The API's own may be among them.
    """

    name: str | None
    options: Mapping[str, str] = field(repr=False)

    def make(self) -> Any:
        """Make the sink.

        Raises:
            ConfigurationError: there is none of that name, or an option is wrong.
            CapabilityError: its capabilities do not go together.
            ImportError: its module or its extra is missing.
        """
        if self.name is not None and ":" in self.name:
            sink = _imported(self.name, self.options)
            check_sink(sink)
            return sink
        api, rest = split_options(self._all())
        # No API to go through: what routes rows or keeps states will do as well.
        return build_sink(api.sink, rest)

    def commit_policy(self) -> CommitPolicy:
        """How committing is tried: as the API's own options say."""
        if self.name is not None and ":" in self.name:
            return CommitPolicy()
        return split_options(self._all())[0].commit_policy()

    def _all(self) -> dict[str, str]:
        if self.name is None:
            return dict(self.options)
        return {name: value for name, value in self.options.items() if name.lower() != "sink"} | {"sink": self.name}


def read_options(path: Path) -> dict[str, str]:
    """Read options from a file: JSON where its name ends in `.json`, else TOML.

    Tables within are those of the sinks of a fan-out, or `dead_letter`: `[archive]` with `path` is `archive.path`.
    Lists become text with commas.

    Raises:
        ConfigurationError: the file cannot be read, or holds something else than options.
    """
    try:
        text = path.read_text()
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"the options file {str(path)!r} cannot be read", why=error.strerror) from error
    except ValueError as error:
        # Neither parser quotes the line, which may hold a secret.
        raise ConfigurationError(
            f"the options file {str(path)!r} is no {'JSON' if path.suffix == '.json' else 'TOML'}", why=str(error)
        ) from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"the options file {str(path)!r} holds no names with values", do="write an object")
    return dict(_flat("", found))


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, list):
            yield f"{prefix}{name}", ",".join(_text(f"{prefix}{name}", item) for item in value)
        else:
            yield f"{prefix}{name}", _text(f"{prefix}{name}", value)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigurationError(
        f"the option {name} has a value of type {type(value).__name__}",
        do="give text, a number, true or false, or a list of these; leave an option out to have its default",
    )


def _imported(place: str, options: Mapping[str, str]) -> Any:
    if options:
        raise ConfigurationError(
            f"options are given for {place}, which makes its sink itself", do="leave them out, or name a built-in sink"
        )
    module_name, _, attribute = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for `python -m`: a script's own place is first there otherwise
    found = getattr(importlib.import_module(module_name), attribute, None) if module_name and attribute else None
    if found is None:
        raise ConfigurationError(
            f"{place!r} names nothing", do="write package.module:make_sink, a function without arguments, or a sink"
        )
    return found() if callable(found) else found


F = TypeVar("F", bound=Callable[..., Any])

_DEFAULT_STEP = "sink"


def recovery_location(text: str) -> RecoveryConfig:
    """Understand a path, also a relative one, or a URL; as the type of an argument."""
    if not text.strip():
        raise click.BadParameter("it is empty: give a path or a URL, and . for the current directory")
    try:
        # Relative is to where the command runs, which here is the only place that counts.
        return recovery_config(text if urlsplit(text).scheme else os.path.abspath(os.path.expanduser(text)))
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from error


def nothing_recorded(recovery: RecoveryConfig, step: str) -> ConfigurationError:
    """Make the error for a step without a log, which names the steps that have one."""
    with suppress(OutfallError):
        if steps := recovery.steps():
            why = f"the steps there are {', '.join(steps[:SHOWN])}"
            return ConfigurationError(f"nothing is recorded of this step in {recovery.url()}", step=step, why=why)
    return ConfigurationError(
        f"nothing is recorded of this step in {recovery.url()}",
        step=step,
        why=why_none(recovery),
        do="check the location: it is the query's checkpoint, or what was given as recovery=",
    )


def chosen_step(recovery: RecoveryConfig, step: str | None) -> str:
    """Return the step that is named, else `sink`, else the only one that there is.

    Raises:
        ConfigurationError: there are several of other names, or none.
        TransientError: the store failed.
    """
    if step is not None:
        return step
    steps = recovery.steps()
    if _DEFAULT_STEP in steps:
        return _DEFAULT_STEP
    if not steps:
        raise ConfigurationError(no_steps(recovery))
    if len(steps) > 1:
        raise ConfigurationError(
            f"{recovery.url()} has several steps, and none of them is {_DEFAULT_STEP}",
            do=f"name one of {', '.join(steps)}",
        )
    return steps[0]


def step_id(text: str) -> str:
    """Check the id of a step; as the type of an argument."""
    try:
        return check_step_id(text)
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from error


def complete_location(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete a directory."""
    return [CompletionItem(incomplete, type="dir")]


def complete_step(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Name the steps of the location before, where that is on this host: a server might take long to say."""
    recovery = ctx.params.get("recovery") or ctx.params.get("source")
    if not isinstance(recovery, SqliteRecoveryConfig) and (recovery is None or local_path(recovery) is None):
        return []
    try:
        return [step for step in recovery.steps() if step.startswith(incomplete)]
    except OutfallError:
        return []


def _complete_sink(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in plugins.names(plugins.SINKS) if name.startswith(incomplete)]


recovery_argument = click.argument(
    "recovery", type=recovery_location, metavar="RECOVERY", shell_complete=complete_location
)
step_argument = click.argument("step", type=step_id, metavar="STEP", shell_complete=complete_step)
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
            "--sink", metavar="NAME", is_eager=True, shell_complete=_complete_sink,
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
    given = {plain_name(name) for name in above}
    return {name: value for name, value in below.items() if plain_name(name) not in given} | above

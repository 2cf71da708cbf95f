"""Arguments and options shared by commands: locations, steps and sinks."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

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
from outfall.serde import parse_json
from outfall.source_options import build_sink, split_options
from outfall.urls import scheme_of


@dataclass(frozen=True)
class ChosenSink:
    """The sink given on the command line.

    The name is the value of `.option("sink", …)`; or, for sink objects, `package.module:function` (a function without
    arguments) or `package.module:sink`. It is `None` if the options have it. The options are those of
    `format("outfall")`, in any spelling, including those of the API itself.
    """

    name: str | None
    options: Mapping[str, str] = field(repr=False)

    def make(self) -> Any:
        """Create the sink.

        Raises `ConfigurationError` if the sink does not exist or an option is invalid, `CapabilityError` if its
        capabilities contradict each other, and `ImportError` if its module or extra is missing.
        """
        if self.name is not None and ":" in self.name:
            sink = _imported(self.name, self.options)
            check_sink(sink)
            return sink
        api, rest = split_options(self._all())
        # No API is involved, so options for routing and state are accepted too.
        return build_sink(api.sink, rest)

    def commit_policy(self) -> CommitPolicy:
        """Return the commit policy from the API's options."""
        if self.name is not None and ":" in self.name:
            return CommitPolicy()
        return CommitPolicy.from_options(split_options(self._all())[0])

    def _all(self) -> dict[str, str]:
        if self.name is None:
            return dict(self.options)
        return {name: value for name, value in self.options.items() if name.lower() != "sink"} | {"sink": self.name}


def read_options(path: Path) -> dict[str, str]:
    """Read options from a file: JSON if its name ends in `.json`, else TOML.

    A table is a sink of a fan-out, or `dead_letter`: `path` in `[archive]` becomes `archive.path`. Lists become
    comma-separated strings. Raises `ConfigurationError` if the file cannot be read, or does not contain options.
    """
    try:
        text = path.read_text()
        found = parse_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"the options file {str(path)!r} cannot be read", why=error.strerror) from error
    except ValueError as error:
        # Neither parser quotes the line, which may contain a secret.
        raise ConfigurationError(
            f"the options file {str(path)!r} is not valid {'JSON' if path.suffix == '.json' else 'TOML'}",
            why=str(error),
        ) from None
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"the options file {str(path)!r} does not contain a mapping", do="write an object with names and values"
        )
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
        do="use a string, a number, true, false, or a list of these; omit the option to use its default",
    )


def _imported(place: str, options: Mapping[str, str]) -> Any:
    if options:
        raise ConfigurationError(
            f"{place} creates its own sink and takes no options", do="remove the options, or use a built-in sink"
        )
    module_name, _, attribute = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as with `python -m`; a script has its own directory there
    found = getattr(importlib.import_module(module_name), attribute, None) if module_name and attribute else None
    if found is None:
        raise ConfigurationError(
            f"{place!r} does not exist",
            do="write package.module:make_sink, with a function without arguments or a sink",
        )
    return found() if callable(found) else found


F = TypeVar("F", bound=Callable[..., Any])

_DEFAULT_STEP = "sink"


def recovery_location(text: str) -> RecoveryConfig:
    """Parse a path (absolute or relative) or a URL; the type of an argument."""
    if not text.strip():
        raise click.BadParameter("the location is empty: give a path, a URL, or . for the current directory")
    try:
        # Relative to the current directory: unlike a query, the command runs in one process.
        return recovery_config(text if scheme_of(text) else os.path.abspath(os.path.expanduser(text)))
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from error


def nothing_recorded(recovery: RecoveryConfig, step: str) -> ConfigurationError:
    """Return the error for a step without a log; it lists the steps that have one."""
    with suppress(OutfallError):
        if steps := recovery.steps():
            why = f"the recorded steps are {', '.join(steps[:SHOWN])}"
            return ConfigurationError(f"nothing is recorded for this step in {recovery.url()}", step=step, why=why)
    return ConfigurationError(
        f"nothing is recorded for this step in {recovery.url()}",
        step=step,
        why=why_none(recovery),
        do="check the location: use the query's checkpoint or the value of recovery=",
    )


def chosen_step(recovery: RecoveryConfig, step: str | None) -> str:
    """Return the given step, else `sink`, else the only step.

    Raises `ConfigurationError` if there are no steps, or several steps with other names, and `TransientError` if the
    store failed.
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
            f"{recovery.url()} has several steps, and none has the name {_DEFAULT_STEP!r}",
            do=f"give one of {', '.join(steps)}",
        )
    return steps[0]


def step_id(text: str) -> str:
    """Check a step id; the type of an argument."""
    try:
        return check_step_id(text)
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from error


def complete_location(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a directory."""
    return [CompletionItem(incomplete, type="dir")]


def complete_step(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the steps of the given location if it is local. A server might take too long."""
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
default_step_argument = click.argument(
    "step", type=step_id, metavar="[STEP]", required=False, shell_complete=complete_step
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def sink_options(command: F) -> F:
    """Add the options for a sink to a command; its function takes `chosen: ChosenSink`."""

    def choose(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> ChosenSink:
        name, path = ctx.params.pop("sink"), ctx.params.pop("options_file")
        try:
            options = {} if path is None else read_options(path)
        except ConfigurationError as error:
            raise click.BadParameter(str(error), ctx, param_hint="--options-file") from error
        options = _merged(options, dict(_pair(text, ctx, param) for text in given))
        if name is None and not any(key.lower() == "sink" for key in options):
            raise click.UsageError("Missing option '--sink': for example --sink file.", ctx)
        return ChosenSink(name, options)

    for option in (
        # Last, because its callback reads the two others.
        click.option(
            "-o", "--option", "chosen", multiple=True, metavar="NAME=VALUE", callback=choose,
            help='Option of the sink, as in .option(NAME, VALUE) of format("outfall"). Can be repeated. Pass secrets as'
            " env:NAME or file:PATH, because other users can see command lines.",
        ),
        click.option(
            "--options-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), is_eager=True,
            help="TOML or JSON file with options. Options given with -o take precedence.",
        ),
        click.option(
            "--sink", metavar="NAME", is_eager=True, shell_complete=_complete_sink,
            help="Sink, for example file, or package.module:make_sink for a sink object.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _pair(text: str, ctx: click.Context, param: click.Parameter) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        # The text is not shown: a value without a name may be a secret.
        raise click.BadParameter("write each option as name=value", ctx, param)
    return name.strip(), value


def _merged(below: dict[str, str], above: dict[str, str]) -> dict[str, str]:
    """Merge two sets of options; different spellings are the same option."""
    given = {plain_name(name) for name in above}
    return {name: value for name, value in below.items() if plain_name(name) not in given} | above

"""The options of `format("outfall")`: the door's own, and how the others become a sink. Free of Spark."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from pydantic import Field

from outfall.capabilities import SupportsPreWriteTopology
from outfall.capability_checks import check_sink, is_fixed, keeps_writer_state, supports
from outfall.errors import ConfigurationError
from outfall.options import SinkOptions, parse_options
from outfall.protocol.commit_retry import CommitPolicy
from outfall.wrappers.composite import DeadLetteringSink

BUILT_IN = ("file", "postgres", "s3", "http", "kinesis", "fanout")
"""Sinks of this distribution, for texts."""
FAN_OUT = "fanout"
BATCHING = ("batchsize", "flushinterval", "maxbytes")
DEAD_LETTER = "deadletter."

Check = Callable[[Any, str], None]
"""Looks at a sink and its name, and raises a `ConfigurationError` where it will not do."""


class DoorOptions(SinkOptions):
    """Options of the door itself; every other one goes to the sink."""

    sink: str = Field(description="Which sink to write to, for example `file`.")
    step_id: str = Field(default="sink", description="Names this sink within the query.")
    checkpoint_location: str | None = Field(
        default=None, description="Spark's checkpoint location, absolute; also holds the step's log."
    )
    recovery: str | None = Field(
        default=None, description="Where the step's log is, if not with the checkpoint: an absolute path or a URL."
    )
    epoch: int | None = Field(default=None, description="Batch jobs only: the number of this job's rows.")
    adopt_checkpoint: bool = Field(
        default=False, description="Begin at the batch id that comes although nothing is recorded yet."
    )
    commit_deadline: float = Field(default=600.0, gt=0, description="Seconds for which committing is tried.")
    on_known_failure: Literal["fail", "drop"] = Field(
        default="fail",
        description="What to do when the target refuses written data: `fail`, or `drop` all rows of that task or"
        " epoch.",
    )

    def commit_policy(self) -> CommitPolicy:
        """How committing is tried."""
        return CommitPolicy(deadline=self.commit_deadline, on_known_failure=self.on_known_failure)


def split_options(options: Mapping[str, str]) -> tuple[DoorOptions, dict[str, str]]:
    """Divide the options into the door's and the sink's.

    Raises:
        ConfigurationError: `sink` is missing, or an option of the door is wrong.
    """
    own = {plain_name(name) for name in DoorOptions.model_fields}
    door = {name: value for name, value in options.items() if plain_name(name) in own}
    rest = {name: value for name, value in options.items() if plain_name(name) not in own}
    if not any(plain_name(name) == "sink" for name in door):
        raise ConfigurationError(
            'the option "sink" is missing', do=f'add .option("sink", …), one of: {", ".join(BUILT_IN)}'
        )
    return parse_options(DoorOptions, door), rest


def make_sink(name: str, options: Mapping[str, str]) -> Any:
    """Make a sink from its options, for the options door.

    Raises:
        ConfigurationError: there is no such sink, an option is wrong, or the sink needs `write_stream`.
        CapabilityError: sinks do not go together.
        ImportError: the sink's extra is not installed.
    """
    return build_sink(name, options, check_for_options)


def build_sink(name: str, options: Mapping[str, str], check: Check) -> Any:
    """Make a sink from its options: `outfall.<name>.sink_from_options`, or several for `fanout`.

    `batch_size`, `flush_interval` and `max_bytes` give any sink larger batches; `dead_letter.sink` and more options
    with this prefix another one for what it refuses, where it hands that over (`SupportsDeadLetterSink`).

    Args:
        name: the sink's.
        options: its own, as text.
        check: refuses a sink that the caller cannot use; called for each, those that it consists of first.

    Raises:
        ConfigurationError: there is no such sink, or an option is wrong.
        CapabilityError: sinks do not go together.
        ImportError: the sink's extra is not installed.
    """
    batching, rest = _divided(options, lambda plain: plain in BATCHING)
    letters, own = _divided(rest, lambda plain: plain.startswith(DEAD_LETTER))
    sink = _fan_out(own, check) if name == FAN_OUT else _from_factory(name, own)
    if batching:
        sink = _wrappers().batching_from_options(sink, batching)
    if letters:
        given = {_after_dot(key): value for key, value in letters.items()}
        sink = DeadLetteringSink(sink, _child("dead_letter", given, check))
    check(sink, name)
    return sink


def _from_factory(name: str, options: Mapping[str, str]) -> Any:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or find_spec(f"outfall.{name}") is None:
        raise _unknown(name)
    factory: Callable[[Mapping[str, str]], Any] | None
    factory = getattr(import_module(f"outfall.{name}"), "sink_from_options", None)
    if factory is None:
        raise _unknown(name)
    return factory(options)


def _fan_out(options: Mapping[str, str], check: Check) -> Any:
    """Several sinks, each with the options that begin with its name and a dot."""
    children: dict[str, dict[str, str]] = {}
    for key, value in options.items():
        if "." not in key:
            raise ConfigurationError(
                f"{key}: unknown for the sink fanout",
                do=f'begin each option with the name of the sink that it is for, as "archive.{key}"',
            )
        children.setdefault(key.partition(".")[0], {})[_after_dot(key)] = value
    named = [name for name, given in children.items() if _divided(given, _is_sink)[0]]
    return _wrappers().FanOutSink(**{name: _child(name, given, check, named) for name, given in children.items()})


def _is_sink(plain: str) -> bool:
    return plain == "sink"


def _child(name: str, options: Mapping[str, str], check: Check, named: Sequence[str] = ()) -> Any:
    sinks, rest = _divided(options, _is_sink)
    if not sinks:
        nearest = difflib.get_close_matches(name, named, n=1)
        other = f'; or if "{nearest[0]}" is meant, write {name}.… as {nearest[0]}.…' if nearest else ""
        raise ConfigurationError(
            f'the option "{name}.sink" is missing', do=f"say which sink it is, one of: {', '.join(BUILT_IN)}{other}"
        )
    try:
        return build_sink(next(iter(sinks.values())), rest, check)
    except ConfigurationError as error:
        error.add_note(f"In the options that begin with {name!r} and a dot.")
        raise


def _wrappers() -> Any:
    return import_module("outfall.wrappers")


def _divided(options: Mapping[str, str], belongs: Callable[[str], bool]) -> tuple[dict[str, str], dict[str, str]]:
    """The options whose plain name belongs, and the others."""
    found = {name: value for name, value in options.items() if belongs(plain_name(name))}
    return found, {name: value for name, value in options.items() if name not in found}


def _after_dot(key: str) -> str:
    return key.partition(".")[2]


def check_for_options(sink: Any, name: str) -> None:
    """Refuse a sink that needs more than this door can do.

    Raises:
        ConfigurationError: it needs `write_stream`.
    """
    check_sink(sink)
    if is_fixed(sink) or supports(sink, SupportsPreWriteTopology) or keeps_writer_state(sink):
        raise ConfigurationError(
            f"the sink {name} with these options routes or reorders rows, or keeps state per worker",
            why="through options a sink cannot change the DataFrame or fix the number of its tasks",
            do=f"from outfall.spark import write_stream; write_stream(df, sink, {_needed(sink)}checkpoint=…).start()",
        )


def _needed(sink: Any) -> str:
    if is_fixed(sink):
        return "key=…, "
    return "workers=…, " if keeps_writer_state(sink) else ""


def _unknown(name: str) -> ConfigurationError:
    return ConfigurationError(f"there is no sink {name!r}", do=f"use one of: {', '.join(BUILT_IN)}")


def plain_name(name: str) -> str:
    """An option's name as it is compared: `onExisting` and `on_existing` are one option."""
    return name.replace("_", "").lower()

"""The options of `format("outfall")`: the API's own, and how the others become a sink. Free of Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from pydantic import Field

from outfall import plugins
from outfall.capabilities import SupportsPreWriteTopology
from outfall.capability_checks import check_sink, is_fixed, keeps_writer_state, supports
from outfall.errors import ConfigurationError
from outfall.options import Duration, OptionTexts, SinkOptions, in_own_case, nearest_name, parse_options, plain_name
from outfall.protocol.commit_retry import CommitPolicy


class SourceOptions(SinkOptions):
    """Options of the API itself; every other one goes to the sink."""

    owner = 'format("outfall")'

    sink: str = Field(description="The sink, for example `file`.")
    checkpoint_location: str | None = Field(
        default=None,
        description="Streams only: Spark's checkpoint, absolute. It also holds the log unless `recovery` is set.",
    )
    query_name: str | None = Field(
        default=None, description="Streams only: the name of the query, as `.queryName(…)` sets it."
    )
    recovery: str | None = Field(
        default=None,
        description="The location of the log if it is not next to the checkpoint: an absolute path or a URL, also"
        " `kafka://host:9092/prefix`.",
    )
    step_id: str = Field(default="sink", description="The name of this sink within the query.")
    epoch: int | None = Field(
        default=None,
        description="Batch jobs only: the number of this job's epoch, larger than any before. Requires `recovery`.",
    )
    adopt_checkpoint: bool = Field(
        default=False,
        description="Start at Spark's current batch id although the log is empty: for a query that wrote elsewhere"
        " before.",
    )
    commit_deadline: Duration = Field(default=timedelta(minutes=10), description="For how long a commit is retried.")
    on_known_failure: Literal["fail", "drop"] = Field(
        default="fail",
        description="What to do when the target rejects written data: `fail` the query, or `drop` **all rows** of that"
        " task or epoch.",
    )

    def commit_policy(self) -> CommitPolicy:
        """How committing is tried."""
        return CommitPolicy(deadline=self.commit_deadline.total_seconds(), on_known_failure=self.on_known_failure)


def split_options(options: Mapping[str, str]) -> tuple[SourceOptions, dict[str, str]]:
    """Divide the options into the API's and the sink's.

    Raises:
        ConfigurationError: `sink` is missing, or an option of the API is wrong.
    """
    own = {plain_name(name) for name in SourceOptions.model_fields}
    api = {name: value for name, value in options.items() if plain_name(name) in own}
    rest = {name: value for name, value in options.items() if plain_name(name) not in own}
    if not any(plain_name(name) == "sink" for name in api):
        raise ConfigurationError(
            'the option "sink" is missing',
            do=f"add .option(\"sink\", …), in SQL INSERT INTO t WITH (sink = '…', …); the sinks are:"
            f" {', '.join(_sink_names())}",
        )
    return parse_options(SourceOptions, api), rest


def make_sink(name: str, options: Mapping[str, str]) -> Any:
    """Make a sink from its options, for the options API.

    Raises:
        ConfigurationError: there is no such sink, an option is wrong, or the sink needs `write_stream`.
        CapabilityError: sinks do not go together.
        ImportError: the sink's extra is not installed.
    """
    sink = build_sink(name, options)
    check_for_options(sink, name)
    return sink


def build_sink(name: str, options: Mapping[str, str]) -> Any:
    """Make a sink from its options, whatever it needs of those who write through it.

    The options of `outfall.plugins.WRAPPERS` go to the sink if it has them itself, else to a wrapper around it.

    Args:
        name: the sink's, as a distribution registers it in `outfall.plugins.SINKS`.
        options: its own, as text.

    Raises:
        ConfigurationError: there is no such sink, or an option is wrong.
        CapabilityError: sinks do not go together.
        ImportError: the sink's extra is not installed.
    """
    factory = plugins.find(plugins.SINKS, in_own_case(name, plugins.names(plugins.SINKS)))
    if factory is None:
        raise _unknown(name)
    wrappers = {plain_name(option): option for option in plugins.names(plugins.WRAPPERS)}
    wraps = {key: wrappers.get(plain_name(key.partition(".")[0])) for key in options}
    texts = OptionTexts(
        {key: value for key, value in options.items() if wraps[key] is None},
        {key: value for key, value in options.items() if wraps[key] is not None},
        known=[*wrappers.values(), *SourceOptions.model_fields],
    )
    sink = factory(texts)
    wrapping: dict[Any, dict[str, str]] = {}
    for key, value in texts.offered.items():
        wrapping.setdefault(plugins.find(plugins.WRAPPERS, str(wraps[key])), {})[key] = value
    for wrap, given in wrapping.items():
        sink = wrap(sink, given)
    check_sink(sink)
    return sink


def build_children(options: Mapping[str, str]) -> dict[str, Any]:
    """Make several sinks, each from the options that begin with its name and a dot; for a sink that consists of them.

    Raises:
        ConfigurationError: as `build_sink`, with the name of the sink; or an option has no name before it.
        CapabilityError: sinks do not go together.
        ImportError: a sink's extra is not installed.
    """
    children: dict[str, dict[str, str]] = {}
    for key, value in options.items():
        name, dot, option = key.partition(".")
        if not dot:
            raise ConfigurationError(
                f"{key}: unknown for a sink that consists of others",
                do=f'begin each option with the name of the sink that it is for, as "archive.{key}"',
            )
        children.setdefault(name, {})[option] = value
    named = [name for name, given in children.items() if any(plain_name(option) == "sink" for option in given)]
    return {name: _child(name, given, named) for name, given in children.items()}


def _child(name: str, options: Mapping[str, str], named: Sequence[str]) -> Any:
    own = dict(options)
    sinks = [own.pop(option) for option in options if plain_name(option) == "sink"]
    if not sinks:
        nearest = nearest_name(name, named)
        other = f'; or if "{nearest}" is meant, write {name}.… as {nearest}.…' if nearest else ""
        raise ConfigurationError(
            f'the option "{name}.sink" is missing',
            do=f"say which sink it is, one of: {', '.join(_sink_names())}{other}",
        )
    try:
        return build_sink(sinks[0], own)
    except ConfigurationError as error:
        error.add_note(f"In the options that begin with {name!r} and a dot.")
        raise


def check_for_options(sink: Any, name: str) -> None:
    """Refuse a sink that needs more than this API can do.

    Raises:
        ConfigurationError: it needs `write_stream`.
    """
    check_sink(sink)
    if is_fixed(sink) or supports(sink, SupportsPreWriteTopology) or keeps_writer_state(sink):
        routes = is_fixed(sink)
        what = "has parts, to which rows are routed by key" if routes else "reorders rows, or keeps state per worker"
        raise ConfigurationError(
            f"the sink {name} with these options {what}",
            why="through options a sink cannot change the DataFrame or fix the number of its tasks",
            do="make the sink with the same options, and: from outfall.spark import write_stream;"
            f" write_stream(df, sink, {_needed(sink)}checkpoint=…).start()",
        )


def _needed(sink: Any) -> str:
    if is_fixed(sink):
        return "key=…, "
    return "workers=…, " if keeps_writer_state(sink) else ""


def _unknown(name: str) -> ConfigurationError:
    known = _sink_names()
    nearest = nearest_name(name, known)
    meant = f"; did you mean {nearest!r}?" if nearest else ""
    return ConfigurationError(f"there is no sink {name!r}", do=f"use one of: {', '.join(known)}{meant}")


def _sink_names() -> list[str]:
    """The names of sinks that are installed here.

    Raises:
        ConfigurationError: there are none, not even those that come with this module.
    """
    if known := plugins.names(plugins.SINKS):
        return known
    raise ConfigurationError(
        "no sink is registered here, not even Outfall's own",
        why="the code of Outfall is here without its metadata, as from an archive of --py-files or a directory on"
        " PYTHONPATH, or with that of an older version",
        do="install Outfall with pip where the driver runs; or give a sink object to outfall.spark.write_stream",
    )

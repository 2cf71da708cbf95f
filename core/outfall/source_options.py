"""The options of `format("outfall")`: its own, and the creation of sinks from the others. Does not depend on Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from pydantic import Field

from outfall import plugins
from outfall.capabilities import SupportsPreWriteTopology, SupportsSparkWriter
from outfall.capability_checks import ResolvedSink, check_sink
from outfall.errors import ConfigurationError
from outfall.option_values import Epoch
from outfall.options import (
    Duration,
    OptionTexts,
    SinkOptions,
    in_own_case,
    nearest_name,
    parse_options,
    plain_name,
)

SPARKS_NAME = "checkpointLocation"

BATCH_ADVICE = (
    'with format("outfall"), Arrow batches have the limits of the session; if no row is wide, rows cost less with'
    " spark.sql.execution.arrow.maxBytesPerBatch=2147483647 and spark.sql.execution.arrow.maxRecordsPerBatch=2000"
)
"""What only the user can set, because Spark itself starts the job."""


class SourceOptions(SinkOptions):
    """Options of `format("outfall")` itself. All other options go to the sink."""

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
    epoch: Epoch | None = Field(
        default=None,
        description="Batch jobs only: the number of this job's epoch, larger than all before. Requires `recovery`.",
    )
    adopt_checkpoint: bool | Literal["rerun"] = Field(
        default=False,
        description="Start at Spark's current batch id although the log is empty, for a query that wrote to another"
        " sink before. Its last batch must be committed: `commits` and `offsets` of the checkpoint end with the same"
        " number. Here, `rerun` means the same as `true`.",
    )
    commit_deadline: Duration = Field(default=timedelta(minutes=10), description="For how long a commit is retried.")
    on_known_failure: Literal["fail", "drop"] = Field(
        default="fail",
        description="If the target rejects written data: `fail` the query, or `drop` **all rows** of that task or"
        " epoch.",
    )


def split_options(options: Mapping[str, str]) -> tuple[SourceOptions, dict[str, str]]:
    """Split the options into those of `format("outfall")` and those of the sink.

    Raises `ConfigurationError` if `sink` is missing, or an option of `format("outfall")` is invalid.
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
    if len(spelled := [name for name in api if plain_name(name) == "checkpointlocation"]) > 1:
        # Spark ignores case.
        other = next((name for name in spelled if name.lower() != SPARKS_NAME.lower()), spelled[-1])
        raise ConfigurationError(
            f"the checkpoint is given twice, as {SPARKS_NAME} and as {other}",
            why=f"Spark keeps its own files at {SPARKS_NAME}, and knows no other name for it",
            do=f"omit {other}",
        )
    return parse_options(SourceOptions, api), rest


def make_sink(name: str, options: Mapping[str, str]) -> Any:
    """Return a sink from its options, for `format("outfall")`.

    Raises the errors of `build_sink`, and `ConfigurationError` if the sink requires `write_stream`.
    """
    sink = build_sink(name, options)
    check_for_options(sink, name)
    return sink


def build_sink(name: str, options: Mapping[str, str]) -> Any:
    """Return the sink that is registered under a name in `outfall.plugins.SINKS` from its options, for any API.

    An option of `outfall.plugins.WRAPPERS` goes to the sink if the sink has it, otherwise to a wrapper around it.
    Raises `ConfigurationError` if the sink does not exist or an option is invalid, `CapabilityError` if sinks do not
    fit together, and `ImportError` if the extra of the sink is not installed.
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
    """Return the children of a composite sink. The options of each begin with its name and a dot.

    Raises the errors of `build_sink`, with the name of the child in a `ConfigurationError`, which is also raised if an
    option has no name before it.
    """
    children: dict[str, dict[str, str]] = {}
    for key, value in options.items():
        name, dot, option = key.partition(".")
        if not dot:
            raise ConfigurationError(
                f"{key}: unknown for a sink that consists of several sinks",
                do=f'begin each option with the name of its sink, for example "archive.{key}"',
            )
        children.setdefault(name, {})[option] = value
    named = [name for name, given in children.items() if any(plain_name(option) == "sink" for option in given)]
    return {name: _child(name, given, named) for name, given in children.items()}


def _child(name: str, options: Mapping[str, str], named: Sequence[str]) -> Any:
    own = dict(options)
    sinks = [own.pop(option) for option in options if plain_name(option) == "sink"]
    if not sinks:
        nearest = nearest_name(name, named)
        other = f'; or, if "{nearest}" is meant, write {name}.… as {nearest}.…' if nearest else ""
        raise ConfigurationError(
            f'the option "{name}.sink" is missing',
            do=f"set it to one of: {', '.join(_sink_names())}{other}",
        )
    try:
        return build_sink(sinks[0], own)
    except ConfigurationError as error:
        error.add_note(f"In the options that begin with {name!r} and a dot.")
        raise


def check_for_options(sink: Any, name: str) -> None:
    """Reject a sink that requires `write_stream`, because `format("outfall")` does not support it."""
    resolved = check_sink(sink)
    if SupportsSparkWriter in resolved.capabilities:
        raise ConfigurationError(
            f"the sink {name} with these options lets Spark write the rows",
            why='Spark sends the rows of format("outfall") to Python',
            do="omit writer; or create the sink with the same options, and: from outfall.spark import write_stream;"
            " write_stream(df, sink, checkpoint=…).start()",
        )
    if resolved.fixed or SupportsPreWriteTopology in resolved.capabilities or resolved.keeps_writer_state():
        what = (
            "has parts, to which rows are routed by key"
            if resolved.fixed
            else "reorders rows, or keeps state per worker"
        )
        raise ConfigurationError(
            f"the sink {name} with these options {what}",
            why='with format("outfall"), a sink cannot change the DataFrame or set the number of its tasks',
            do="create the sink with the same options, and: from outfall.spark import write_stream;"
            f" write_stream(df, sink, {_needed(resolved)}checkpoint=…).start()",
        )


def _needed(resolved: ResolvedSink) -> str:
    if resolved.fixed:
        return "key=…, "
    return "workers=…, " if resolved.keeps_writer_state() else ""


def _unknown(name: str) -> ConfigurationError:
    known = _sink_names()
    nearest = nearest_name(name, known)
    meant = f"; did you mean {nearest!r}?" if nearest else ""
    return ConfigurationError(f"there is no sink {name!r}", do=f"use one of: {', '.join(known)}{meant}")


def _sink_names() -> list[str]:
    """Return the names of the installed sinks, or raise if there are none, not even those of this distribution."""
    if known := plugins.names(plugins.SINKS):
        return known
    raise ConfigurationError(
        "no sink is registered here, not even Outfall's own",
        why="the code of Outfall is installed without its metadata, for example from an archive of --py-files or a"
        " directory on PYTHONPATH, or with the metadata of an older version",
        do="install Outfall with pip on the driver; or pass a sink object to outfall.spark.write_stream",
    )

"""The options of a sink are those of its model, and its constructor shows each of them with its type."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_type_hints

import pytest

from outfall.delta import DeltaSink
from outfall.delta.options import DeltaOptions
from outfall.file import FileSink
from outfall.file.options import FileOptions
from outfall.iceberg import IcebergSink
from outfall.iceberg.options import IcebergOptions
from outfall.kafka import KafkaSink
from outfall.kafka.options import KafkaOptions
from outfall.options import SinkOptions
from outfall.postgres import PostgresSink
from outfall.postgres.options import PostgresOptions
from outfall.s3 import S3Sink
from outfall.s3.options import S3Options

SINKS: dict[Any, type[SinkOptions]] = {
    DeltaSink: DeltaOptions,
    FileSink: FileOptions,
    IcebergSink: IcebergOptions,
    KafkaSink: KafkaOptions,
    PostgresSink: PostgresOptions,
    S3Sink: S3Options,
}
BESIDE: dict[Any, set[str]] = {KafkaSink: {"dead_letter"}, S3Sink: {"session_factory"}}
"""Arguments that are no options: a sink, or a function."""


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink.__name__)
def test_a_constructor_takes_the_options_of_the_model(sink: Any) -> None:
    assert named(sink.__init__) - BESIDE.get(sink, set()) == set(SINKS[sink].model_fields)


def named(constructor: Any) -> set[str]:
    """The names of arguments, with those of a TypedDict."""
    found: set[str] = set()
    for parameter in inspect.signature(constructor).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            (keywords,) = get_args(get_type_hints(constructor)[parameter.name])
            found |= get_type_hints(keywords).keys()
        else:
            found.add(parameter.name)
    return found - {"self"}

"""Kinesis Data Streams and Amazon Data Firehose: rows as records, at least once."""

from __future__ import annotations

from collections.abc import Mapping

from outfall.errors import require_extra
from outfall.options import parse_options

require_extra("kinesis", "boto3")

from outfall.kinesis.firehose import FirehoseOptions, FirehoseSink
from outfall.kinesis.stream import KinesisOptions, KinesisSink

__all__ = ["FirehoseSink", "KinesisSink", "sink_from_options"]


def sink_from_options(options: Mapping[str, str]) -> KinesisSink | FirehoseSink:
    """Create a sink from Spark options: a `FirehoseSink` if `delivery_stream` is given, else a `KinesisSink`.

    Raises `ConfigurationError`, which lists every unknown or wrong option.
    """
    if any(name.replace("_", "").lower() == "deliverystream" for name in options):
        return FirehoseSink(**dict(parse_options(FirehoseOptions, options)))
    return KinesisSink(**dict(parse_options(KinesisOptions, options)))

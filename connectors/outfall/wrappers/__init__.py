"""Sinks around sinks: fan-out, batching, exactly-once, and dead letters in another sink.

They accept any sink and can be nested. No extra is needed.
"""

from outfall.wrappers.batch_buffer import BatchingOptions
from outfall.wrappers.batching import BatchingSink, batching_from_options
from outfall.wrappers.composite import Composite, CompositeSink
from outfall.wrappers.dead_lettering import DeadLetteringSink, WithDeadLetters, dead_letters_from_options
from outfall.wrappers.exactly_once import ExactlyOnceOptions, ExactlyOnceSink
from outfall.wrappers.fan_out import FanOutSink, fan_out_from_options

__all__ = [
    "BatchingOptions",
    "BatchingSink",
    "Composite",
    "CompositeSink",
    "DeadLetteringSink",
    "ExactlyOnceOptions",
    "ExactlyOnceSink",
    "FanOutSink",
    "WithDeadLetters",
    "batching_from_options",
    "dead_letters_from_options",
    "fan_out_from_options",
]

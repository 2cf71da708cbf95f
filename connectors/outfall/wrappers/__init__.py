"""Sinks around sinks: several at once, larger batches, rows that are seen once, refused rows in another sink.

They take any sink and combine with each other. No extra is needed.
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

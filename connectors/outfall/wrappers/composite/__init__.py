"""Sinks that consist of other sinks, which share one epoch and its record, each under its name."""

from outfall.wrappers.composite.dead_letters import DeadLetteringSink, dead_letters_from_options
from outfall.wrappers.composite.sink import Composite, CompositeSink
from outfall.wrappers.composite.tagged import OfChild

__all__ = ["Composite", "CompositeSink", "DeadLetteringSink", "OfChild", "dead_letters_from_options"]

"""Sinks that consist of other sinks, which share one epoch and its record, each under its name."""

from outfall.composite.dead_letters import DeadLetteringSink
from outfall.composite.sink import Composite, CompositeSink
from outfall.composite.tagged import OfChild

__all__ = ["Composite", "CompositeSink", "DeadLetteringSink", "OfChild"]

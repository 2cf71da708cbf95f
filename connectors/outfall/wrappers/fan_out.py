"""`FanOutSink`: the same rows to several sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfall.errors import ConfigurationError
from outfall.source_options import build_children
from outfall.wrappers.composite import CompositeSink


class FanOutSink(CompositeSink):
    """Writes each row to several sinks, in one epoch with one record.

    Item type: what each of the sinks takes.

    What must exist: what each of the sinks needs.

    Unit of parallelism: that of the sinks. Sinks without parts are written by every Spark task. With sinks that have
    parts, all of the same number, part i of each is written by one task, and so is one writer of each of the others.

    Guarantee: each sink keeps its own, as if it were alone; the one reported is the weakest. After a crash all sinks
    get the epoch again: one that is exactly once has its rows once, whichever of them had failed.

    `FanOutSink([a, b])` names the sinks by their position, from 0; `FanOutSink(archive=a, db=b)` by words. A sink's
    share of the recovery data goes by its name. More sinks can be added at any restart, under new names.

    Args:
        sinks: the sinks in a list, or none.
        named: the sinks by name.

    Raises:
        ConfigurationError: there is none, both ways are mixed, or one sink is given twice.
        CapabilityError: sinks do not go together, with the reason.
    """

    kind_name = "fanout"

    def __init__(self, sinks: Sequence[Any] = (), /, **named: Any) -> None:
        if sinks and named:
            raise ConfigurationError("some sinks are in a list and others have names", do="name all of them, or none")
        children = named or {str(position): sink for position, sink in enumerate(sinks)}
        if len({id(sink) for sink in children.values()}) < len(children):
            raise ConfigurationError("the same sink is given twice", do="give each sink once")
        super().__init__(children)


def fan_out_from_options(options: Mapping[str, str]) -> FanOutSink:
    """Make several sinks of Spark options, each of those that begin with its name and a dot (`archive.sink`, …).

    Raises:
        ConfigurationError: naming the sink and the option that is unknown or wrong.
        CapabilityError: sinks do not go together.
        ImportError: a sink's extra is not installed.
    """
    return FanOutSink(**build_children(options))

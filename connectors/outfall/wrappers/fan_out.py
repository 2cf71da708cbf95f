"""`FanOutSink`: writes the same rows to several sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfall.errors import ConfigurationError
from outfall.source_options import build_children
from outfall.wrappers.composite import CompositeSink


class FanOutSink(CompositeSink):
    """Writes each row to several sinks, in one epoch with one record.

    Item type: that of each sink.

    What must exist: the requirements of each sink.

    Unit of parallelism: that of the sinks. Sinks without parts are written by every Spark task. Sinks with parts must
    have the same number; one task writes part i of each, and has one writer for each of the other sinks.

    Guarantee: each sink keeps its own; the reported one is the weakest. After a failure all sinks get the epoch again:
    an exactly-once sink has its rows exactly once, whichever sink had failed.

    `FanOutSink([a, b])` gives the sinks the names `0` and `1`; `FanOutSink(archive=a, db=b)` uses the given names. The
    recovery data of a sink is stored under its name. Sinks can be added at any restart, under new names.

    Args:
        sinks: the sinks in a list, or none.
        named: the sinks by name.

    Raises:
        ConfigurationError: there is no sink, both forms are used, or a sink is passed more than once.
        CapabilityError: the sinks cannot be combined; with the reason.
    """

    kind_name = "fanout"

    def __init__(self, sinks: Sequence[Any] = (), /, **named: Any) -> None:
        if sinks and named:
            raise ConfigurationError("some sinks are in a list and others have names", do="name all of them, or none")
        children = named or {str(position): sink for position, sink in enumerate(sinks)}
        if len({id(sink) for sink in children.values()}) < len(children):
            raise ConfigurationError("the same sink is passed more than once", do="pass each sink once")
        super().__init__(children)


def fan_out_from_options(options: Mapping[str, str]) -> FanOutSink:
    """Create several sinks from Spark options: each from those with its name and a dot as prefix (`archive.sink`, …).

    Raises `ConfigurationError` with the sink and the unknown or wrong option, `CapabilityError` if the sinks cannot be
    combined, and `ImportError` if a sink's extra is not installed.
    """
    return FanOutSink(**build_children(options))

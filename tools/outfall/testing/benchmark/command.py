"""What the command does once its arguments are understood."""

from __future__ import annotations

import argparse

from outfall.errors import ConfigurationError
from outfall.testing.benchmark.comparison import Comparison, Size, compare
from outfall.testing.benchmark.doors import Door, ObjectsDoor, OptionsDoor
from outfall.testing.benchmark.factory import load_factory
from outfall.testing.benchmark.report import table
from outfall.testing.benchmark.scratch import Scratch
from outfall.testing.benchmark.session import start_session


def run(given: argparse.Namespace) -> Comparison:
    """Measure and print.

    Raises:
        ConfigurationError: what is given does not fit together.
        ImportError: the sink's module, or an extra, is missing.
    """
    from rich.console import Console

    make_sink = load_factory(given.sink)
    door = _door(given.door, given.key)
    settings = dict(_setting(text) for text in given.conf)
    if not given.master.startswith("local"):
        raise ConfigurationError(
            f"Spark would run on {given.master}",
            why="CPU time and memory are those of this process and what it starts",
            do="give a local master, such as local[2]",
        )
    size = Size(given.rows, given.pairs, given.epochs, given.epoch_rows)
    spark = start_session(given.master, settings)
    try:
        with Scratch(given.directory) as scratch:
            comparison = compare(spark, make_sink, door, size, scratch)
    finally:
        spark.stop()
    title = f"{given.sink}: {size.rows:,} rows, {size.pairs} pairs, door {given.door}, {given.master}"
    Console().print(table(comparison, title))
    return comparison


def _door(name: str, key: str | None) -> Door:
    if name == "objects":
        return ObjectsDoor(key)
    if key is not None:
        raise ConfigurationError("key is given with the options door", do="leave it out: options cannot route rows")
    return OptionsDoor()


def _setting(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ConfigurationError(f"the setting {text!r} has no value", do="write it as name=value")
    return name, value

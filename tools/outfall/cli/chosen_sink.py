"""The sink that a command line names: by its name and options, or by a function that makes it."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outfall.capability_checks import check_sink
from outfall.errors import ConfigurationError
from outfall.protocol.commit_retry import CommitPolicy
from outfall.source_options import build_sink, split_options


@dataclass(frozen=True)
class ChosenSink:
    """Which sink a command is about, and how it is made.

    Args:
        name: a sink as `.option("sink", …)` names it, or `package.module:function`, a function without arguments, or
            `package.module:sink`, for sinks that are made of objects. May stand among the options instead.
        options: those of `format("outfall")`, in any of their spellings. The door's own may be among them.
    """

    name: str | None
    options: Mapping[str, str] = field(repr=False)

    def make(self) -> Any:
        """Make the sink.

        Raises:
            ConfigurationError: there is none of that name, or an option is wrong.
            CapabilityError: its capabilities do not go together.
            ImportError: its module or its extra is missing.
        """
        if self.name is not None and ":" in self.name:
            sink = _imported(self.name, self.options)
            check_sink(sink)
            return sink
        door, rest = split_options(self._all())
        # No door to go through: what routes rows or keeps states will do as well.
        return build_sink(door.sink, rest)

    def commit_policy(self) -> CommitPolicy:
        """How committing is tried: as the door's own options say."""
        if self.name is not None and ":" in self.name:
            return CommitPolicy()
        return split_options(self._all())[0].commit_policy()

    def _all(self) -> dict[str, str]:
        if self.name is None:
            return dict(self.options)
        return {name: value for name, value in self.options.items() if name.lower() != "sink"} | {"sink": self.name}


def read_options(path: Path) -> dict[str, str]:
    """Read options from a file: JSON where its name ends in `.json`, else TOML.

    Tables within are those of the sinks of a fan-out, or `dead_letter`: `[archive]` with `path` is `archive.path`.
    Lists become text with commas.

    Raises:
        ConfigurationError: the file cannot be read, or holds something else than options.
    """
    try:
        text = path.read_text()
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"the options file {str(path)!r} cannot be read", why=error.strerror) from error
    except ValueError as error:
        # Neither parser quotes the line, which may hold a secret.
        raise ConfigurationError(
            f"the options file {str(path)!r} is no {'JSON' if path.suffix == '.json' else 'TOML'}", why=str(error)
        ) from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"the options file {str(path)!r} holds no names with values", do="write an object")
    return dict(_flat("", found))


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, list):
            yield f"{prefix}{name}", ",".join(_text(f"{prefix}{name}", item) for item in value)
        else:
            yield f"{prefix}{name}", _text(f"{prefix}{name}", value)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigurationError(
        f"the option {name} has a value of type {type(value).__name__}",
        do="give text, a number, true or false, or a list of these; leave an option out to have its default",
    )


def _imported(place: str, options: Mapping[str, str]) -> Any:
    if options:
        raise ConfigurationError(
            f"options are given for {place}, which makes its sink itself", do="leave them out, or name a built-in sink"
        )
    module_name, _, attribute = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for `python -m`: a script's own place is first there otherwise
    found = getattr(importlib.import_module(module_name), attribute, None) if module_name and attribute else None
    if found is None:
        raise ConfigurationError(
            f"{place!r} names nothing", do="write package.module:make_sink, a function without arguments, or a sink"
        )
    return found() if callable(found) else found

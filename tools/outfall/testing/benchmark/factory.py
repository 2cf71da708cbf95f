"""The sink that a command line names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outfall.errors import ConfigurationError

SinkFactory = Callable[[Path], Any]
"""Makes a sink for one run, given an empty directory that only this run uses."""


def load_factory(name: str) -> SinkFactory:
    """Find a function by `package.module:function`.

    Raises:
        ConfigurationError: there is no such function.
        ImportError: the module, or what it imports, is missing.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name.isidentifier():
        raise ConfigurationError(
            f"{name!r} names no function",
            do="give it as package.module:make_sink; it takes a directory and returns a sink",
        )
    factory = getattr(importlib.import_module(module_name), function_name, None)
    if not callable(factory):
        raise ConfigurationError(
            f"the module {module_name} has no function {function_name!r}", do="name one that takes a directory"
        )
    return factory  # type: ignore[no-any-return]

"""Finds sinks, recovery stores, wrappers and formats of installed distributions by their entry points.

A distribution `outfall-acme` declares its sink in the same way as Outfall:

```toml
[project.entry-points."outfall.sinks"]
acme = "outfall_acme:sink_from_options"
```

Then `.option("sink", "acme")` finds it. Names are resolved on the driver only. Tasks get the created object, pickled
by module and attribute: an executor requires the code of a distribution, not its metadata.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from outfall.errors import ConfigurationError

SINKS = "outfall.sinks"
"""Entry points by the name of `.option("sink", …)`: a function of the sink's options as strings. Returns the sink."""
WRAPPERS = "outfall.wrappers"
"""Entry points by the name of an option of any sink, or by its part before the first dot: a function of the sink and of
these options as strings. Returns the sink that wraps it. A sink that has the option itself is not wrapped. Several
wrappers wrap each other in the order of their names."""
FORMATS = "outfall.formats"
"""Entry points by the name of the option `format`: a subclass of `outfall.formats.Encoder`."""
RECOVERY = "outfall.recovery"
"""Entry points by the scheme of a recovery location: a function of its URL. Returns a `RecoveryConfig`."""


def names(group: str) -> list[str]:
    """Return the names that are registered in a group, sorted."""
    return sorted({entry.name for entry in entry_points(group=group)})


def find(group: str, name: str) -> Any | None:
    """Import the object that is registered under a name. Return `None` if there is none.

    Raises `ConfigurationError` if several distributions register the name or the registered object does not exist, and
    `ImportError` if the module, or an extra that it requires, is not installed.
    """
    entries = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if len(entries) > 1:
        places = ", ".join(f"{value} of {_distribution(entry)}" for value, entry in sorted(entries.items()))
        raise ConfigurationError(
            f"several installed distributions register {name!r} in {group}: {places}", do="uninstall all but one"
        )
    for entry in entries.values():
        return load(entry)
    return None


def load(entry: EntryPoint) -> Any:
    """Import the object of an entry point. Raises like `find`."""
    try:
        return entry.load()
    except AttributeError as error:
        raise ConfigurationError(
            f"{_distribution(entry)} registers {entry.name!r} in {entry.group} as {entry.value}, which does not exist",
            why=str(error),
            do="reinstall the distribution, so that its code and its metadata have the same version",
        ) from error


def _distribution(entry: EntryPoint) -> str:
    return "a distribution" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"

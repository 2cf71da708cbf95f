"""What installed distributions bring: sinks, recovery stores and what wraps sinks, found by their entry points.

A distribution `outfall-mysql` declares, as Outfall itself does for its own sinks:

```toml
[project.entry-points."outfall.sinks"]
mysql = "outfall_mysql:sink_from_options"
```

and `.option("sink", "mysql")` finds it. What a name means is looked up on the driver only. Tasks get what was made
there, pickled by module and attribute: an executor needs the code of a distribution and not its metadata.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from outfall.errors import ConfigurationError

SINKS = "outfall.sinks"
"""By the name of `.option("sink", …)`: a function of the sink's options, as text, that returns the sink."""
WRAPPERS = "outfall.wrappers"
"""By the name of an option that any sink may have, or by its part before the first dot: a function of the sink and of
these options, as text, that returns the sink which wraps it. A sink that has the option itself gets it, and is not
wrapped for it. Several wrap each other in the order of their names."""
RECOVERY = "outfall.recovery"
"""By the scheme of a recovery location: a function of its URL that returns a `RecoveryConfig`."""


def names(group: str) -> list[str]:
    """Return the names that are registered in a group, sorted."""
    return sorted({entry.name for entry in entry_points(group=group)})


def find(group: str, name: str) -> Any | None:
    """Import what is registered under a name; `None` where nothing is.

    Raises:
        ConfigurationError: several distributions register the name, or the one that does has no such object.
        ImportError: its module, or an extra that it needs, is not installed.
    """
    entries = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if len(entries) > 1:
        places = ", ".join(f"{value} of {_distribution(entry)}" for value, entry in sorted(entries.items()))
        raise ConfigurationError(
            f"several installed distributions register {name!r} in {group}: {places}", do="uninstall all but one"
        )
    for entry in entries.values():
        return _loaded(entry)
    return None


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except AttributeError as error:
        raise ConfigurationError(
            f"{_distribution(entry)} registers {entry.name!r} in {entry.group} as {entry.value}, which is not there",
            why=str(error),
            do="install the distribution again, so that its code and its metadata are of one version",
        ) from error


def _distribution(entry: EntryPoint) -> str:
    return "a distribution" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"

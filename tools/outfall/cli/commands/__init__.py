"""The commands of `outfall`. They require the extra `cli`."""

from importlib.util import find_spec

from outfall.errors import missing_extra

for _package in ("click", "rich"):
    if find_spec(_package) is None:
        raise missing_extra(_package, "cli")

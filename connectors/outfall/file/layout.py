"""Where things lie in the target's directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass


def is_hidden(name: str) -> bool:
    """Tell whether Spark's readers skip a name: it begins with `.`, or with `_` and is no `column=value`."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


_REGISTER = re.compile(r"parts\..+\.lock")

SPARK_LOG = "_spark_metadata"
"""The directory in which Spark's own streaming file sink lists its files. Where it is, Spark reads no others."""

SUMMARIES = ("_SUCCESS", "_metadata", "_common_metadata")
"""Hidden files that speak of the visible ones beside them."""


@dataclass(frozen=True)
class Layout:
    """The names below a target's directory. What is not data lies in `_outfall`, which readers skip."""

    path: str

    @property
    def sidecar(self) -> str:
        """Locks, markers and staging."""
        return f"{self.path}/_outfall"

    @property
    def staging(self) -> str:
        """Whole files that are written and not published."""
        return f"{self.path}/_outfall/staging"

    @property
    def opening(self) -> str:
        """The lock under which a step opens the target for the first time."""
        return f"{self.path}/_outfall/open.lock"

    @property
    def replaced(self) -> str:
        """Where the log of Spark's own sink is moved before it is deleted."""
        return f"{self.path}/_outfall/replaced"

    @property
    def publishing(self) -> str:
        """The lock that is held shared by who publishes whole files, and alone by who overwrites the directory."""
        return f"{self.path}/_outfall/publish.lock"

    def data(self, name: str) -> str:
        """A visible file."""
        return f"{self.path}/{name}"

    def staged(self, name: str) -> str:
        """A whole file before it is published."""
        return f"{self.path}/_outfall/staging/{name}"

    def lock(self, part: str) -> str:
        """The lock file of a growing part."""
        return f"{self.path}/_outfall/{part}.lock"

    def register(self, suffix: str) -> str:
        """The file that says who may write the growing parts whose names end so."""
        return f"{self.path}/_outfall/parts{suffix}.lock"

    def marker(self, incarnation: str) -> str:
        """The file that says that a step writes here."""
        return f"{self.path}/_outfall/{incarnation}.json"

    def registers(self) -> list[str]:
        """The ends of names for which there is a register."""
        names = os.listdir(self.sidecar)
        return [name[len("parts") : -len(".lock")] for name in names if _REGISTER.fullmatch(name)]

    def visible(self) -> Iterator[os.DirEntry[str]]:
        """What readers see, lazily: a caller that needs one entry reads one."""
        try:
            with os.scandir(self.path) as entries:
                yield from (entry for entry in entries if not is_hidden(entry.name))
        except FileNotFoundError:
            return

    def walk(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """As `os.walk`, from the root down, where readers look."""
        for directory, directories, files in os.walk(self.path):
            directories[:] = [name for name in directories if not is_hidden(name)]
            yield directory, directories, [name for name in files if not is_hidden(name)]

    def markers(self) -> list[str]:
        """The incarnations of all steps that write here, or did."""
        try:
            names = os.listdir(self.sidecar)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and not is_hidden(name))

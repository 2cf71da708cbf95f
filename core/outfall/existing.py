"""What `on_existing` and the save modes of Spark mean for data that is in a target before the first epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outfall.capabilities import SaveMode

Fate = Literal["reject", "keep", "delete"]

OnExistingFiles = Literal["error", "resume", "overwrite"]
"""The words of sinks whose target belongs to one query."""
OnExistingRows = Literal["check", "resume", "error", "overwrite"]
"""The words of sinks whose target is a table with rows of many writers."""


@dataclass(frozen=True)
class Existing:
    """How the first run of a query treats existing data."""

    others: Fate
    """Of data of other writers."""
    own: Fate
    """Of data that the same step wrote under a checkpoint that is lost: its rows may come again."""
    save_mode: SaveMode | None
    """The save mode with this meaning. Each append job without recovery data passes the mode: it has no earlier
    checkpoint to protect."""


EXISTING = {
    "error": Existing(others="reject", own="reject", save_mode="error"),
    "check": Existing(others="keep", own="reject", save_mode=None),
    "resume": Existing(others="keep", own="keep", save_mode="append"),
    "overwrite": Existing(others="delete", own="delete", save_mode="overwrite"),
}
"""By the word of `on_existing`. A sink has those words whose meaning its target supports."""

ON_EXISTING = {existing.save_mode: word for word, existing in EXISTING.items() if existing.save_mode}
"""The word of `on_existing` for each save mode."""

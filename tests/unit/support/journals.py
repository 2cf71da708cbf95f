"""What a step's log holds, read without the engine's own reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outfall.recovery import RecoveryConfig, recovery_config


def entries(recovery: str | RecoveryConfig, step_id: str = "sink") -> list[dict[str, Any]]:
    """The entries as JSON objects, oldest first."""
    return [json.loads(entry.data) for entry in recovery_config(recovery).open(step_id).read()]


def kinds(recovery: str | RecoveryConfig, step_id: str = "sink") -> list[str]:
    """The kinds of the entries, oldest first."""
    return [entry["kind"] for entry in entries(recovery, step_id)]


def entry_files(recovery: str | Path, step_id: str = "sink") -> list[Path]:
    """The files of a local log's entries, oldest first."""
    return sorted((Path(recovery) / "outfall" / step_id).glob("*.json"))

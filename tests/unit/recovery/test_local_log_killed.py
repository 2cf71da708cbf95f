"""A local log whose process is killed between any two side effects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.killed_log import check_killed_at_each_step

WRITING = ["log: file created", "log: file filled"]
APPENDING = [
    *WRITING,
    "log: temporary written",
    "log: linked",
    "log: directory synced",
    "log: temporary removed",
]
MADE = "log: directory made"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("before", "action", "expected"),
    [
        (0, "append", ["log: newest checked", MADE, MADE, MADE, *APPENDING]),
        (2, "append", ["log: newest checked", *APPENDING]),
        (2, "state", [MADE, *WRITING, "log: state written", "log: state durable"]),
        (3, "clean_up", ["log: entry cleaned up", "log: entry cleaned up"]),
    ],
)
def test_killed_at_any_step_the_log_is_whole_and_goes_on(
    before: int, action: str, expected: list[str], tmp_path: Path
) -> None:
    there = len(APPENDING[3:]) if action == "append" else 0
    check_killed_at_each_step(lambda name: str(tmp_path / name), before, action, expected, there)

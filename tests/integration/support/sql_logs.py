"""Logs in a database: what the tests of PostgreSQL and of MySQL write and read."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError
from outfall.recovery import RecoveryConfig, RecoveryLog
from outfall.recovery.url import recovery_config_for
from outfall.testing import LocalDriver

STEPS = ("log: newest checked", "log: entry inserted", "log: before commit")
"""The trace points between the statements of an append."""


def filled(recovery: RecoveryConfig, count: int) -> RecoveryLog:
    log = recovery.open("sink")
    for after in range(count):
        log.append(b"%d" % (after + 1), after=after)
    return log


def contents(recovery: RecoveryConfig) -> list[bytes]:
    with closing(recovery.open("sink")) as log:
        return [entry.data for entry in log.read()]


def check_advice(
    sink: Callable[[str], Any], recovery: Path, secret: str, monkeypatch: pytest.MonkeyPatch, also: str = ""
) -> None:
    """Follow the advice for checkpoints that cannot hold the log, with sinks of two tables that have rows `id`."""
    locations = []
    for table in ("first", "second.table"):
        monkeypatch.setattr("os.link", _no_links)
        with pytest.raises(ConfigurationError, match="does not support hard links") as links:
            LocalDriver(sink(table), str(recovery / table)).run_epoch(0, [[{"id": 0}]])
        monkeypatch.undo()
        with pytest.raises(ConfigurationError, match="'dbfs:///checkpoint' is not supported") as scheme:
            recovery_config_for(sink(table), "dbfs:///checkpoint")
        advice = [_advice(str(links.value)), _advice(str(scheme.value))]
        assert advice[0] == advice[1]
        locations.append(advice[0])
    assert secret not in str(locations)
    for table, location in zip(("first", "second.table"), locations, strict=True):
        driver = LocalDriver(sink(table), location + also)
        for epoch in (0, 1):
            driver.run_epoch(epoch, [[{"id": epoch}]])


def _advice(text: str) -> str:
    found = re.search(r'set recovery="([^"]+)", which is the database of the sink', text)
    assert found is not None, text
    return found[1]


def _no_links(*paths: str, **options: Any) -> None:
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")

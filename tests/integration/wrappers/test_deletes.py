"""Of a delete, each sink uses the key only: no other value of its row stops the query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import OutfallError
from outfall.testing import MemoryRecoveryConfig
from tests.integration.support.batch_driver import BatchDriver
from tests.integration.wrappers.keyed_targets import TARGETS, Servers

pytestmark = pytest.mark.thorough

NO_TIME = 2**62
"""In milliseconds a time in the year 146 million, and in microseconds one in the year 148,000."""
CELLS = [(name, mode) for name, kind in TARGETS.items() for mode in kind.modes if mode != "upsert"]


def row(name: str, mode: str, epoch: int, at: int, *, gone: bool) -> pa.RecordBatch:
    kind = pa.timestamp("us" if name == "mysql" else "ms", "UTC")
    columns: dict[str, Any] = {
        "id": ["a"],
        "n": [epoch],
        "text": ["a"],
        "at": pa.array([at]).cast(kind),
    }
    if mode == "marker":
        columns["gone"] = [gone]
    elif mode == "changes":
        columns["op"] = ["delete" if gone else "update"]
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(("name", "mode"), CELLS)
def test_no_other_value_of_a_delete_stops_the_query(name: str, mode: str, servers: Servers, tmp_path: Path) -> None:
    target, recovery = TARGETS[name](servers.get(name), tmp_path, mode), MemoryRecoveryConfig()
    if mode != "delete":
        with pytest.raises(OutfallError, match="at"):
            BatchDriver(target.sink(), MemoryRecoveryConfig()).write(0, row(name, mode, 0, NO_TIME, gone=False))
        BatchDriver(target.sink(), recovery).write(0, row(name, mode, 0, 0, gone=False))
        assert "a" in target.read()
    BatchDriver(target.sink(), recovery).write(int(mode != "delete"), row(name, mode, 1, NO_TIME, gone=True))
    assert "a" not in target.read()

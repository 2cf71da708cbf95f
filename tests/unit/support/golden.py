"""Writes recovery data as this version does, to be read by every later one. Run once per release:

python -m tests.unit.support.golden tests/unit/golden/0.1.0
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from pathlib import Path

from outfall.epoch.clock import Clock
from outfall.recovery import RecoveryConfig, SqliteRecoveryConfig, recovery_config
from outfall.testing import FakeClock, LocalDriver, crash_at
from tests.unit.support.hoarding import HoardingInParts, LedgerWarehouse

LARGE = "x" * 70_000


def stores(directory: Path) -> dict[str, RecoveryConfig]:
    """The stores below a release's directory."""
    return {
        "checkpoint": recovery_config(str(directory / "checkpoint")),
        "sqlite": SqliteRecoveryConfig(str(directory / "sqlite")),
    }


class Past:
    """What was done with a store: three steps that ended differently, over a target that is made anew to go on."""

    def __init__(self, recovery: RecoveryConfig, clock: Clock | None = None) -> None:
        self.recovery = recovery
        self.clock = clock
        self.setup = HoardingInParts()

    def driver(self, step_id: str) -> LocalDriver:
        return LocalDriver(self.setup.sink(), self.recovery, step_id=step_id, query_id="query", clock=self.clock)

    def run(self, step_id: str, batch: int, text: str = "a") -> bool:
        """Write a batch: of the step `held` too little to be delivered."""
        rows = [(str(number), [batch, text, number]) for number in range(3 if step_id == "held" else 30)]
        return self.driver(step_id).run_epoch(batch, [rows]).skipped

    def write(self) -> None:
        """Complete, skip and drain epochs; leave one step held, one recorded and not completed, one abandoned."""
        self.run("held", 0)
        self.run("held", 0)
        self.driver("held").drain()
        self.run("held", 1, LARGE)
        self.setup.warehouse = LedgerWarehouse()
        self.run("prepared", 0)
        with crash_at("after COMMITTING"):
            self.run("prepared", 1)
        self.setup.warehouse = LedgerWarehouse()
        self.run("abandoned", 0)
        with crash_at("after PREPARED"):
            self.run("abandoned", 1)
        self.setup.warehouse.staged.clear()
        with suppress(Exception), crash_at("after ABANDONED"):
            self.run("abandoned", 1)


if __name__ == "__main__":
    socket.gethostname = lambda: "host"
    for store in stores(Path(sys.argv[1]).absolute()).values():
        Past(store, FakeClock()).write()

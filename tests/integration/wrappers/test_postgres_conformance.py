"""Wrappers around `PostgresSink` keep its guarantee: the conformance suite does not refute it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outfall.protocol.step import EpochOptions
from outfall.testing import SinkConformance, run_conformance
from outfall.wrappers import BatchingSink, ExactlyOnceSink, FanOutSink
from tests.integration.postgres.support import Target
from tests.integration.support.sql import Table
from tests.integration.support.sql_conformance import PartTables, Tables


class Wrapped(Tables):
    """One table; committables carry the name of their sink."""

    def lose(self, target: Any, committable: Any) -> None:
        super().lose(target, committable.value)


class FannedTables(Wrapped):
    """Two tables. The second is read by `OtherTables`."""

    def new_target(self, directory: Path) -> Any:
        name: str = super().new_target(directory)
        self.home.run(f"CREATE TABLE other_{name} ({self.columns.format(text='text')})")
        return name

    def make_sink(self, target: Any) -> Any:
        return FanOutSink(out=super().make_sink(target), other=super().make_sink(f"other_{target}"))

    def lose(self, target: Any, committable: Any) -> None:
        super().lose(target if committable.child == "out" else f"other_{target}", committable)

    def leftovers(self, target: Any) -> int:
        return super().leftovers(target) + super().leftovers(f"other_{target}")


class OtherTables(FannedTables):
    """What is read is the table that commits last."""

    def read(self, target: Any) -> Any:
        return super().read(f"other_{target}")


class BatchedTables(Tables):
    def make_sink(self, target: Any) -> Any:
        return BatchingSink(super().make_sink(target), batch_size=2)


class HeldTables(Wrapped):
    """Batches across epochs, whose last rows are drained."""

    def make_sink(self, target: Any) -> Any:
        return BatchingSink(super().make_sink(target), batch_size=2, across_epochs=True)

    def options(self) -> EpochOptions:
        return EpochOptions(worker_count=2)


class OnceTables(Wrapped):
    """Offsets are the rows' numbers."""

    columns = "id bigint, text text, source text"
    not_claimed = Wrapped.not_claimed | {"equal_rows": "a row is known by its offset"}

    def make_sink(self, target: Any) -> Any:
        return ExactlyOnceSink(super().make_sink(target), offset="id", source_partition="source", parts=3)

    def row(self, number: int) -> Any:
        return {**super().row(number), "source": f"{number % 3}"}

    def key(self, number: int) -> str:
        return f"{number % 3}"

    def read(self, target: Any) -> Any:
        found = self.home.read(f"SELECT id, text, source FROM {target}")
        return [{"id": number, "text": text, "source": source} for number, text, source in found]


class FannedParts(FannedTables):
    """Offsets by parts, and staging beside them."""

    repeatable_source = True
    not_claimed = Tables.not_claimed | {
        "parts_reordered": PartTables.not_claimed["parts_reordered"],
        "nothing_visible_before_commit": "parts are visible before the other table commits",
    }

    def make_sink(self, target: Any) -> Any:
        parts = Tables.make_sink(_Parts(self.home), target)
        return FanOutSink(out=parts, other=Tables.make_sink(self, f"other_{target}"))

    def leftovers(self, target: Any) -> int:
        return Tables.leftovers(self, f"other_{target}")


class _Parts(Tables):
    def __init__(self, home: Table) -> None:
        self.home = home

    def sink_options(self, target: str) -> dict[str, Any]:
        return {"parts": 4, "offset_keys": "ledger"}


SHORT = ["one_epoch", "counts_are_facts", "replay_of_a_lost_epoch", "lost_log", "two_attempts_finish"]
SHORTEST = ["one_epoch", "replay_of_a_lost_epoch"]


@pytest.mark.parametrize(
    ("kind", "checks"),
    [
        (FannedTables, ["two_attempts_finish"]),
        *(
            pytest.param(kind, checks, marks=pytest.mark.thorough)
            for kind, checks in [
                (FannedTables, SHORT),
                (BatchedTables, SHORTEST),
                (HeldTables, SHORT),
                (OnceTables, SHORTEST),
                (FannedParts, SHORTEST),
            ]
        ),
    ],
)
def test_wrapped_tables_in_short(conformance_dsn: str, tmp_path: Path, kind: type[Tables], checks: list[str]) -> None:
    """What takes seconds; the others need minutes with a real server, most of them to wait for locks."""
    tables = kind()
    tables.home = Target(conformance_dsn, "SELECT 1")
    report = run_conformance(tables, tmp_path, checks=checks)
    assert report.passed, report


class Suite(SinkConformance):
    """The whole suite."""

    home: Table
    schedules = 30

    @pytest.fixture(autouse=True)
    def _database(self, conformance_dsn: str) -> None:
        self.home = Target(conformance_dsn, "SELECT 1")


@pytest.mark.long
class TestFanOut(FannedTables, Suite):
    pass


@pytest.mark.long
class TestOtherSinkOfAFanOut(OtherTables, Suite):
    pass


@pytest.mark.long
class TestBatches(BatchedTables, Suite):
    pass


@pytest.mark.long
class TestBatchesAcrossEpochs(HeldTables, Suite):
    pass


@pytest.mark.long
class TestExactlyOnce(OnceTables, Suite):
    pass


@pytest.mark.long
class TestFanOutToParts(FannedParts, Suite):
    pass

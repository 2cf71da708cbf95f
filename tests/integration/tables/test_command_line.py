"""`outfall doctor`, `show` and `gc` on tables: what is reached, what an epoch named, what lost attempts left."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_catalogs import embedded
from tests.integration.support.tables import DeltaLake, IcebergLake, LakeTable
from tests.unit.support.command import done, failed, parsed

ROWS = [[{"id": 1}], [{"id": 2}]]


@pytest.fixture(params=["iceberg", "delta"])
def lake(request: pytest.FixtureRequest, duck: Duck, tmp_path: Path) -> LakeTable:
    """An empty table of each format in turn, in a directory of its own."""
    home = tmp_path / "lake"
    home.mkdir()
    return IcebergLake(duck, embedded(home)) if request.param == "iceberg" else DeltaLake(duck, home)


def given(lake: LakeTable) -> list[str]:
    options = lake.options()
    return ["--sink", options.pop("sink"), *(text for pair in options.items() for text in ("-o", "=".join(pair)))]


def write(lake: LakeTable, recovery: Path, epoch: int) -> None:
    sink = lake.sink()
    sink.check_schema(pa.schema([("id", pa.int64())]))
    LocalDriver(sink, str(recovery)).run_epoch(epoch, ROWS)


def files(lake: LakeTable, tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "lake").rglob("outfall/**/*.parquet")}


def test_a_table_is_examined_before_and_after_its_first_epoch(lake: LakeTable, tmp_path: Path) -> None:
    assert "EXACTLY_ONCE" in done("doctor", *given(lake))
    assert lake.states() == [], "an examination made the table"
    write(lake, tmp_path / "log", 0)
    found = parsed("doctor", *given(lake), "--recovery", tmp_path / "log")
    results = {finding["about"]: finding["result"] for finding in found}
    assert (results["connection"], results["target"]) == ("ok", "ok")
    # The same table, and no log: it says who wrote to it.
    assert "has rows that this step wrote" in failed("doctor", *given(lake))


@pytest.mark.thorough
def test_an_epoch_that_is_recorded_and_not_committed_shows_its_files(lake: LakeTable, tmp_path: Path) -> None:
    write(lake, tmp_path / "log", 0)
    before = files(lake, tmp_path)
    with crash_at("after PREPARED"):
        write(lake, tmp_path / "log", 1)
    text = done("show", tmp_path / "log", "sink", 1)
    assert all(name in text for name in files(lake, tmp_path) - before)


@pytest.mark.thorough
def test_what_lost_attempts_left_is_listed_and_removed_and_what_is_in_the_table_stays(
    lake: LakeTable, tmp_path: Path
) -> None:
    write(lake, tmp_path / "log", 0)
    named = files(lake, tmp_path)
    with crash_at("after collect"):
        write(lake, tmp_path / "log", 1)
    command = ("gc", tmp_path / "log", "sink", *given(lake))
    assert parsed(*command)["leftovers"] == []
    found = {Path(name).name for name in parsed(*command, "--take-over")["leftovers"]}
    assert found == files(lake, tmp_path) - named
    assert len(found) == 2
    assert "2 removed" in done(*command, "--take-over", "--yes")
    assert files(lake, tmp_path) == named
    write(lake, tmp_path / "log", 1)
    assert lake.ids() == [1, 1, 2, 2]

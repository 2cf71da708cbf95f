"""The driver is killed (-9) while it streams real flights into a table, and started again until the stream ends."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.support.duck import Duck
from tests.integration.support.flights import COLUMNS
from tests.integration.support.iceberg_catalogs import embedded, load
from tests.integration.support.killed_driver import FORMAT_API, KILLS, make_job
from tests.integration.support.tables import DeltaLake, IcebergLake, LakeTable

pytestmark = [pytest.mark.spark, pytest.mark.faults]

STEPS = (
    "after BEGIN", "table: made or changed", "table: writing", "table: file written", "table: files synced",
    "after collect", "before PREPARED", "after PREPARED", "after COMMITTING", "table: committing", "table: committed",
    "after commit", "before COMPLETED", "after COMPLETED", "after clean-up",
)  # fmt: skip

IN_TASKS = ("table: writing", "table: file written", "table: files synced")
"""Steps at which a Python worker dies instead, whose death fails the query: Spark retries no task in local mode."""

OF_DRIVERS = [step for step in STEPS if step not in IN_TASKS]


@pytest.fixture
def lake(request: pytest.FixtureRequest, duck: Duck, tmp_path: Path) -> LakeTable:
    """An empty table of the format that the test asks for."""
    (tmp_path / "lake").mkdir()
    return IcebergLake(duck, embedded(tmp_path / "lake")) if request.param == "iceberg" else DeltaLake(duck, tmp_path)


def check(lake: LakeTable, wanted: Counter[tuple[object, ...]]) -> None:
    """Each flight is there once, and none has ever gone or come twice on the way there."""
    found = Counter(lake.read(", ".join(COLUMNS)))
    assert found - wanted == Counter()
    assert wanted - found == Counter()
    before: set[int] = set()
    for ids in lake.all_states():
        assert len(ids) == len(set(ids))
        assert before <= set(ids)
        before = set(ids)


@pytest.mark.long
@pytest.mark.parametrize(
    ("lake", "api"),
    [
        ("iceberg", "objects"),
        ("delta", "objects"),
        pytest.param("iceberg", "options", marks=FORMAT_API),
        pytest.param("delta", "options", marks=FORMAT_API),
    ],
    indirect=["lake"],
)
def test_the_table_holds_each_flight_once_however_often_the_driver_is_killed(
    tmp_path: Path, lake: LakeTable, api: str
) -> None:
    job, rows = make_job(tmp_path, "append", api, steps=STEPS)
    job.lake = json.dumps({**lake.options(), "partition_by": "carrier"})
    job.run_all()
    check(lake, Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True)))
    if KILLS >= 20:
        assert len(set(job.obeyed)) > 3


@pytest.mark.long
@pytest.mark.parametrize("step", OF_DRIVERS)
@pytest.mark.parametrize("lake", ["iceberg", "delta"], indirect=True)
def test_the_table_holds_each_flight_once_after_a_driver_has_died_at_each_step(
    tmp_path: Path, lake: LakeTable, step: str
) -> None:
    job, rows = make_job(tmp_path, "append", "objects", files=4)
    job.lake = json.dumps(lake.options())
    job.feed(4)
    job.run_until_killed_at(step)
    job.run_to_the_end()
    check(lake, Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True)))


@pytest.mark.long
@pytest.mark.parametrize("step", [*OF_DRIVERS, "table: merging", "table: merged", "table: clearing"])
@pytest.mark.parametrize("lake", ["delta"], indirect=True)
def test_each_key_has_its_last_row_after_a_driver_that_upserts_has_died_at_each_step(
    tmp_path: Path, lake: LakeTable, step: str
) -> None:
    job, rows = make_job(tmp_path, "upsert", "objects", files=4)
    keys = {"write_mode": "upsert", "key_columns": ["carrier", "flight"], "order_column": "id"}
    job.lake = json.dumps(lake.options() | {"partition_by": ["carrier"]} | keys)
    job.feed(4)
    job.run_until_killed_at(step)
    job.run_to_the_end()
    carrier, flight = COLUMNS.index("carrier"), COLUMNS.index("flight")
    given = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    wanted = {(row[carrier], row[flight]): row for row in given}
    found = lake.read(", ".join(COLUMNS))
    assert (set(found), len(found)) == (set(wanted.values()), len(wanted))


@pytest.mark.long
@pytest.mark.parametrize("api", ["objects", pytest.param("options", marks=FORMAT_API)])
@pytest.mark.parametrize("format_", ["iceberg", "delta"])
def test_each_of_many_tables_holds_its_flights_once_however_often_the_driver_is_killed(
    tmp_path: Path, duck: Duck, format_: str, api: str
) -> None:
    """The tables are created by the tasks that first meet them."""
    (tmp_path / "lake").mkdir()
    given: dict[str, str] = {"sink": "delta", "path": str(tmp_path / "lake"), "allowed_tables": "t*"}
    if format_ == "iceberg":
        catalog = embedded(tmp_path / "lake")
        given = {"sink": "iceberg", "catalog_options": json.dumps(catalog), "allowed_tables": "db.t*"}
    job, rows = make_job(tmp_path, "many tables", api, steps=STEPS)
    job.lake = json.dumps({**given, "table_column": "place", "create_table": "if_missing"})
    job.run_all()
    for number in range(20):
        if format_ == "iceberg":
            location = load(catalog).load_table(f"db.t{number}").metadata_location
            found = Counter(duck.iceberg(location, ", ".join(COLUMNS)))
        else:
            found = Counter(duck.delta(tmp_path / "lake" / f"t{number}", ", ".join(COLUMNS)))
        wanted = Counter(tuple(row[name] for name in COLUMNS) for row in rows.to_pylist() if row["id"] % 20 == number)
        assert (wanted - found, found - wanted) == (Counter(), Counter())
    print(f"{job.kills} kills, {rows.num_rows} rows in 20 tables")

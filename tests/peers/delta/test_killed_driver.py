"""Drivers of ours are killed (-9) while they stream into a table that Delta's own engine changes at the same time."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.integration.support import killed_driver
from tests.integration.support.duck import Duck
from tests.integration.support.flights import COLUMNS
from tests.integration.support.killed_driver import SEED, make_job
from tests.peers.support.jvm_tables import JvmTable
from tests.unit.support.delta_reader import versions

pytestmark = [pytest.mark.spark, pytest.mark.faults]

KILLS = max(3, killed_driver.KILLS)
"""`OUTFALL_TEST_KILLS`, where it asks for more than the slice does."""

FILES_PER_RUN = 4
"""Input files, and so epochs, that a run finds new: Delta's own commits take as long as several of ours."""

STEPS = (
    "after BEGIN", "table: file written", "after collect", "before PREPARED", "after PREPARED", "table: committing",
    "table: committed", "before COMPLETED", "after clean-up",
)  # fmt: skip
MERGE_STEPS = (*STEPS, "table: merging", "table: merged", "table: clearing")

UPSERT = {"write_mode": "upsert", "key_columns": "carrier,flight", "order_column": "id"}


@dataclass
class Others:
    """Somebody who appends rows of negative ids, merges and compacts, until told to stop."""

    table: JvmTable
    path: Path
    chance: random.Random
    key: str = "id"
    """The columns that no two rows share."""
    deeds: tuple[str, ...] = ("append", "append", "optimize", "zorder", "delete", "count")
    done: Counter[str] = field(default_factory=Counter)
    appended: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def go_on(self) -> None:
        while not self.stop.wait(0.2):
            if (self.path / "_delta_log" / f"{0:020}.json").exists():
                self.do(self.chance.choice(self.deeds))

    def do(self, what: str) -> None:
        number = -1 - len(self.appended)
        statement = {
            "append": f"INSERT INTO {{t}} (id, carrier, flight, year) VALUES ({number}, 'JV', {number}, 0)",
            "merge": "MERGE INTO {t} t USING (SELECT -1 AS id, 'JV' AS carrier) s"
            " ON t.id = s.id AND t.carrier = s.carrier WHEN MATCHED THEN UPDATE SET year = t.year + 1",
            "optimize": "OPTIMIZE {t}",
            "zorder": "OPTIMIZE {t} ZORDER BY (id)",
            "delete": "DELETE FROM {t} WHERE carrier = 'none'",
            "count": f"SELECT max(id) AS id FROM {{t}} GROUP BY {self.key} HAVING count(*) > 1",
        }[what]
        try:
            found = self.table.run(statement)
        except Exception as error:
            # Theirs lost a race, as their own writers lose one: nothing was committed.
            self.done[f"{what} refused"] += 1
            if "DELTA_CONCURRENT" not in str(error):
                self.surprises.append(str(error))
            return
        self.done[what] += 1
        if what == "append":
            self.appended.append(number)
        elif what == "count":
            self.doubled += [row["id"] for row in found]


@contextmanager
def at_work(others: Others) -> Iterator[None]:
    thread = threading.Thread(target=others.go_on)
    thread.start()
    try:
        yield
    finally:
        others.stop.set()
        thread.join()


def test_each_row_of_either_writer_is_there_once_however_often_ours_is_killed(
    delta: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    job, rows = make_job(tmp_path, "append", "objects", steps=STEPS, files=FILES_PER_RUN * (KILLS + 1 + KILLS // 2))
    job.lake = json.dumps({"sink": "delta", "path": str(path), "create_table": "if_missing"})
    table = JvmTable(delta, f"delta.`{path}`")
    others = Others(table, path, random.Random(SEED))
    with at_work(others):
        job.run_all(KILLS, FILES_PER_RUN)
    found = Counter(tuple(row) for row in table.run(f"SELECT {', '.join(COLUMNS)} FROM {{t}} WHERE id >= 0"))
    wanted = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    lost, doubled = wanted - found, found - wanted
    theirs = table.column("id", "WHERE id < 0")
    print(
        f"kills {job.kills}, at steps {dict(Counter(job.obeyed))}; rows {wanted.total()}, lost {lost.total()},"
        f" doubled {doubled.total()}; theirs {len(others.appended)}, lost {len(set(others.appended) - set(theirs))};"
        f" deeds {dict(others.done)}"
    )
    assert others.surprises == []
    assert job.kills == KILLS
    assert (lost, doubled, others.doubled) == (Counter(), Counter(), [])
    assert sorted(theirs) == sorted(others.appended)


def test_each_key_has_its_last_row_however_often_the_driver_that_upserts_is_killed(
    delta: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    files = FILES_PER_RUN * (KILLS + 1 + KILLS // 2)
    job, rows = make_job(tmp_path, "upsert", "objects", steps=MERGE_STEPS, files=files)
    options = {"sink": "delta", "path": str(path), "create_table": "if_missing", "partition_by": ["carrier"]}
    job.lake = json.dumps(options | UPSERT | {"key_columns": UPSERT["key_columns"].split(",")})
    table = JvmTable(delta, f"delta.`{path}`")
    deeds = ("append", "append", "merge", "optimize", "zorder", "delete", "count")
    others = Others(table, path, random.Random(SEED), "carrier, flight", deeds)
    with at_work(others):
        job.run_all(KILLS, FILES_PER_RUN)
    given = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    carrier, flight = COLUMNS.index("carrier"), COLUMNS.index("flight")
    wanted = set({(row[carrier], row[flight]): row for row in given}.values())
    found = [tuple(row) for row in table.run(f"SELECT {', '.join(COLUMNS)} FROM {{t}} WHERE id >= 0")]
    theirs = table.column("id", "WHERE id < 0")
    print(
        f"kills {job.kills}, at steps {dict(Counter(job.obeyed))}; keys {len(wanted)}; theirs {len(others.appended)};"
        f" deeds {dict(others.done)}"
    )
    assert others.surprises == []
    assert job.kills == KILLS
    assert (set(found) - wanted, wanted - set(found), len(found)) == (set(), set(), len(wanted))
    assert others.doubled == []
    assert sorted(theirs) == sorted(others.appended)
    by_deltalake = DeltaTable(path).to_pyarrow_table(columns=["id"])["id"].to_pylist()
    assert sorted(by_deltalake) == sorted([*theirs, *(row[0] for row in found)])
    reader = Duck()
    try:
        assert sorted(number for (number,) in reader.delta(path, "id")) == sorted(by_deltalake)
    finally:
        reader.close()
    left = {str(each.relative_to(path)) for each in path.glob("outfall/**/*.parquet")}
    assert left <= {name for version in versions(path) for name in version.files}

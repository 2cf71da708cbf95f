"""Drivers of ours are killed (-9) while they stream real flights into a table that the JVM changes all the while."""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.support.duck import Duck
from tests.integration.support.flights import COLUMNS, SCHEMA
from tests.integration.support.killed_driver import FILES_PER_RUN, SEED, make_job
from tests.integration.tables.test_killed_driver import STEPS
from tests.peers.support.jvm_iceberg import LATER, JvmTable

KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "40"))

PASSING = ("CommitFailed", "ValidationException", "SQLITE_BUSY", "database is locked", "CommitStateUnknown")
"""What the JVM answers, rightly, if another commit was first."""

DEEDS = {
    "append": "INSERT INTO {t} (id) VALUES (-1), (-2), (-3)",
    "delete": "DELETE FROM {t} WHERE id = -2",
    "update": "UPDATE {t} SET carrier = 'theirs' WHERE id = -3",
    "merge": "MERGE INTO {t} USING (SELECT -1 AS m) ON id = m WHEN MATCHED THEN DELETE",
    "compact": "CALL ice.system.rewrite_data_files(table => '{n}', options => map('min-input-files', '2'))",
    "compact deletes": "CALL ice.system.rewrite_position_delete_files(table => '{n}')",
    "rewrite manifests": "CALL ice.system.rewrite_manifests(table => '{n}')",
    "expire": f"CALL ice.system.expire_snapshots(table => '{{n}}', older_than => {LATER}, retain_last => 3)",
    "tag": "ALTER TABLE {t} CREATE OR REPLACE TAG kept",
    "remove orphans": "CALL ice.system.remove_orphan_files(table => '{n}')",
}


class Meddler(threading.Thread):
    """The JVM as a second writer, of rows with negative ids, until it is stopped."""

    def __init__(self, table: JvmTable, deeds: Mapping[str, str] = DEEDS) -> None:
        super().__init__()
        self._table = table
        self._statements = deeds
        self._over = threading.Event()
        self._chance = random.Random(SEED)
        self.deeds: Counter[str] = Counter()
        self.complaints: list[str] = []

    def run(self) -> None:
        while not self._over.wait(0.2) and not self.complaints:
            name = self._chance.choice(list(self._statements))
            try:
                self._table.sql(self._statements[name].replace("{n}", self._table.name))
                self.deeds[name] += 1
            except Exception as error:
                if not any(text in str(error) for text in PASSING):
                    self.complaints.append(f"{name}: {error}")
                self.deeds[f"{name}, too late"] += 1

    def stop(self) -> None:
        self._over.set()
        self.join()


@pytest.mark.parametrize("kills", [3, pytest.param(KILLS, marks=pytest.mark.long)])
def test_the_jvm_counts_each_flight_once_however_often_the_driver_is_killed(
    table: JvmTable, tmp_path: Path, kills: int
) -> None:
    table.create(
        SCHEMA,
        "PARTITIONED BY (bucket(2, id))",
        {f"write.{what}.mode": "merge-on-read" for what in ("delete", "update")},
    )
    table.sql("INSERT INTO {t} (id) VALUES (-4)")
    files = FILES_PER_RUN * (kills + 1 + kills // 2)
    job, sent = make_job(tmp_path, "append", "objects", steps=STEPS, files=files)
    options = {"sink": "iceberg", "table": table.name, "catalog": "ice", "catalog_options": table.properties}
    job.lake = json.dumps({**options, "max_snapshot_age": "1 second"})
    meddler = Meddler(table)
    meddler.start()
    try:
        job.run_all(kills, FILES_PER_RUN)
    finally:
        meddler.stop()
    found = Counter(table.read("id", "{t} WHERE id >= 0"))
    wanted = sent.column("id").to_pylist()
    lost, doubled = len(set(wanted) - set(found)), sum(found.values()) - len(found)
    print(f"{len(wanted)} rows, {job.kills} kills ({len(job.obeyed)} at a step), lost {lost}, doubled {doubled}")
    print(f"the JVM: {dict(meddler.deeds)}")
    assert not meddler.complaints
    assert (lost, doubled, set(found)) == (0, 0, set(wanted))
    assert job.kills == kills
    columns = [name for name in sent.column_names if name != "air_time"]
    rows = Counter(table.read(", ".join(columns), "{t} WHERE id >= 0"))
    assert rows == Counter(zip(*(sent.column(name).to_pylist() for name in columns), strict=True))


UPSERT = {"write_mode": "upsert", "key_columns": ["carrier", "flight"], "order_column": "id"}
MERGE_KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "60"))
FILES_PER_LIFE = 2
"""Input files, and so epochs, that a run finds new: each rewrites a file in most partitions."""
MERGE_STEPS = (*STEPS, "table: merging", "table: merged", "iceberg: commit staged", "iceberg: committed",
               "table: clearing")  # fmt: skip
KEYED_DEEDS = DEEDS | {
    "append": "INSERT INTO {t} (id, carrier, flight) VALUES (-1, 'JV', -1), (-2, 'JV', -2), (-3, 'JV', -3)",
    "touch": "UPDATE {t} SET year = year WHERE flight < 100",
}


@pytest.mark.parametrize("kills", [3, pytest.param(MERGE_KILLS, marks=pytest.mark.long)])
def test_each_key_has_its_last_row_however_often_the_driver_that_upserts_is_killed(
    table: JvmTable, tmp_path: Path, kills: int
) -> None:
    table.create(
        SCHEMA, "PARTITIONED BY (carrier)", {f"write.{what}.mode": "merge-on-read" for what in ("delete", "update")}
    )
    table.sql("INSERT INTO {t} (id, carrier, flight) VALUES (-4, 'JV', -4)")
    job, sent = make_job(
        tmp_path, "upsert", "objects", steps=MERGE_STEPS, files=FILES_PER_LIFE * (kills + 1 + kills // 2)
    )
    options = {"sink": "iceberg", "table": table.name, "catalog": "ice", "catalog_options": table.properties}
    job.lake = json.dumps({**options, **UPSERT})
    meddler = Meddler(table, KEYED_DEEDS)
    meddler.start()
    try:
        job.run_all(kills, FILES_PER_LIFE)
    finally:
        meddler.stop()
    columns = [name for name in COLUMNS if name != "air_time"]
    given = list(zip(*(sent.column(name).to_pylist() for name in columns), strict=True))
    carrier, flight = columns.index("carrier"), columns.index("flight")
    wanted = set({(row[carrier], row[flight]): row for row in given}.values())
    found = table.read(", ".join(columns), "{t} WHERE id >= 0")
    print(f"{len(wanted)} keys, {job.kills} kills ({dict(Counter(job.obeyed))} at steps)")
    print(f"the JVM: {dict(meddler.deeds)}")
    assert not meddler.complaints
    assert (set(found) - wanted, wanted - set(found), len(found)) == (set(), set(), len(wanted))
    loaded = table.catalog.load_table(table.name)
    assert sorted(loaded.scan(row_filter="id >= 0").to_arrow()["id"].to_pylist()) == sorted(row[0] for row in found)
    reader = Duck()
    try:
        for condition in ("id >= 0", "id >= 0 AND carrier = 'UA'", "id >= 0 AND flight BETWEEN 100 AND 500"):
            by_duck = [number for (number,) in reader.query(
                f"SELECT id FROM iceberg_scan('{loaded.metadata_location}') WHERE {condition}")]  # fmt: skip
            assert sorted(by_duck) == table.ids(f"{{t}} WHERE {condition}"), condition
    finally:
        reader.close()

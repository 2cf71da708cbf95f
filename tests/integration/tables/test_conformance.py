"""`IcebergSink` is exactly once also with catalogues that are servers, and files on S3."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from outfall.capabilities import Guarantee
from outfall.iceberg import IcebergSink
from outfall.tables.data_file import EpochFiles
from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_catalogs import Properties, load
from tests.integration.support.recorded_elsewhere import IcebergRecordedElsewhere
from tests.integration.support.s3 import SeaweedFS
from tests.integration.support.tables import IcebergLake

SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})
FORKING = ("killed_at_every_step", "killed_before_close", "memory_over_epochs", "tasks_in_processes_of_their_own")
"""Their children would inherit pyarrow's S3 client, which does not work there."""


class ServedTables(SinkHarness):
    """A target is a table in a namespace of its own."""

    claim = Guarantee.EXACTLY_ONCE
    not_claimed = {
        **dict.fromkeys(FORKING, "tried with a catalogue on a disk, tests/integration/iceberg"),
        "loss_of_power": "the servers keep what they have, not we",
        "target_refuses": "outages of the catalogue are tried in test_faults.py",
    }
    secrets = ("outfall-secret",)
    catalog: Properties
    server: SeaweedFS
    duck: Duck

    def new_target(self, directory: Path) -> IcebergLake:
        lake = IcebergLake(self.duck, self.catalog)
        load(self.catalog).create_table(lake.name, SCHEMA)
        return lake

    def make_sink(self, target: IcebergLake) -> IcebergSink:
        return IcebergRecordedElsewhere(target.name, catalog_options=self.catalog, retry_deadline="10 seconds")

    def read(self, target: IcebergLake) -> Iterable[Any]:
        if not target.states():
            return []
        return [{"id": number, "text": text} for number, text in target.read("id, text")]

    def lose(self, target: IcebergLake, committable: EpochFiles) -> None:
        for name in committable.names:
            target.table().io.delete(f"{committable.root}/{committable.directory}/{name}")

    def lose_target(self, target: IcebergLake) -> None:
        """Drop the table, and make another one of its name."""
        load(self.catalog).drop_table(target.name)
        load(self.catalog).create_table(target.name, SCHEMA)

    def save_target(self, target: IcebergLake) -> Callable[[], None]:
        """Copy the catalogue's pointer to the table, and the files, which a catalogue may delete with the table."""
        metadata, where = target.table().metadata_location, urlsplit(target.table().location())
        files = self.server.s3.objects(where.netloc, where.path.lstrip("/"))

        def restore() -> None:
            load(self.catalog).drop_table(target.name)
            for name, body in files.items():
                key = f"{where.path.lstrip('/')}{name}"
                self.server.s3.client().put_object(Bucket=where.netloc, Key=key, Body=body)
            load(self.catalog).register_table(target.name, metadata)

        return restore

    def leftovers(self, target: IcebergLake) -> int:
        where = urlsplit(f"{target.table().location()}/data/outfall/")
        found = self.server.s3.objects(where.netloc, where.path.lstrip("/"))
        named = self.duck.query(f"SELECT file_path FROM iceberg_metadata('{target.table().metadata_location}')")
        # Where pyarrow has deleted the last file of a directory it leaves an empty object by the directory's name.
        files = {f"{where.geturl()}{name}" for name in found if not name.endswith("/")}
        return len(files - {path for (path,) in named})


SHORT = [
    "one_epoch", "two_attempts_finish", "lost_reply_of_a_commit", "lost_before_committing", "late_zombie",
    "leftovers_are_cleaned_up", "lost_target", "restored_target",
]  # fmt: skip


@pytest.fixture(params=["rest", "postgres"])
def served(request: pytest.FixtureRequest, seaweed: SeaweedFS, duck: Duck) -> Properties:
    """A catalogue whose tables `duck` can read."""
    duck.use(seaweed.s3)
    properties: Properties = request.getfixturevalue(f"{request.param}_catalog")
    return properties


@pytest.mark.thorough
def test_the_suite_in_short(served: Properties, seaweed: SeaweedFS, duck: Duck, tmp_path: Path) -> None:
    tables = ServedTables()
    tables.catalog, tables.server, tables.duck = served, seaweed, duck
    tables.most_cases = 4
    report = run_conformance(tables, tmp_path, checks=SHORT)
    assert report.passed, report


@pytest.mark.long
class TestServedTables(ServedTables, SinkConformance):
    most_cases = 30
    schedules = 30

    @pytest.fixture(autouse=True)
    def _servers(self, served: Properties, seaweed: SeaweedFS, duck: Duck) -> None:
        self.catalog, self.server, self.duck = served, seaweed, duck

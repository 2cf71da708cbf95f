"""A query or a job that would go on in another layout is refused before it begins, in every store and write mode."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver
from tests.unit.support.fake_s3 import FakeS3

Make = Callable[..., Any]
"""Makes the sink of one directory."""

ROWS = pa.RecordBatch.from_pydict({"a": [1], "b": ["x"]})
TURNED = ROWS.select(["b", "a"])
MORE = pa.RecordBatch.from_pydict({"a": [1], "b": ["x"], "c": [1.5]})
OTHER_TYPE = pa.RecordBatch.from_pydict({"a": ["1"], "b": ["x"]})
CSV: dict[str, Any] = {"format": "csv"}


@pytest.fixture(params=["whole", "growing", "rolling", "remote", "s3"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "s3":
        return FakeS3().sink
    path = f"memory://{uuid.uuid4().hex}/out" if request.param == "remote" else str(tmp_path / "out")
    parts: dict[str, Any] = {"growing": {"parts": 1}, "rolling": {"parts": 1, "roll_bytes": 1}}.get(request.param, {})
    return lambda **options: FileSink(path, **parts, **options)


@pytest.fixture
def log() -> str:
    return f"memory://{uuid.uuid4().hex}"


def write(sink: Any, log: str, epoch: int, rows: pa.RecordBatch, *, fails: bool = False) -> None:
    """Write one epoch, as a run of its own. If it `fails`, it does so before anything is recorded."""
    driver = LocalDriver(sink, log)
    sink.check_schema(rows.schema)
    with closing(driver.coordinator()) as coordinator:
        ticket = coordinator.begin(epoch)
        if not fails:
            coordinator.finish(ticket, [driver.run_task(ticket, epoch, 0, [((*ticket.parts, None)[0], rows)])])


@pytest.mark.parametrize(
    ("was", "now", "rows", "what"),
    [
        (CSV, CSV, TURNED, r"column 1 has changed from 'a' \(bigint\) to 'b' \(string\)"),
        (CSV, CSV, MORE, r"column 3, 'c' \(double\), is new"),
        (CSV, {**CSV, "header": True}, ROWS, "header has changed from 'the default' to 'true'"),
        (CSV, {**CSV, "sep": ";"}, ROWS, "sep has changed"),
        ({}, {}, OTHER_TYPE, "column 'a' has changed from bigint to string"),
        ({}, {"timestamp_format": "yyyy"}, ROWS, "timestamp_format has changed"),
    ],
)
def test_another_layout_is_refused(make: Make, log: str, was: Any, now: Any, rows: pa.RecordBatch, what: str) -> None:
    write(make(**was), log, 0, ROWS)
    with pytest.raises(ConfigurationError, match=f"(?s){what}.*What to do: .* another path"):
        write(make(**now), log, 1, rows)
    write(make(**was), log, 1, ROWS)


def test_what_readers_unite_is_accepted_and_kept(make: Make, log: str) -> None:
    write(make(), log, 0, ROWS)
    write(make(), log, 1, MORE)
    write(make(), log, 2, TURNED)
    with pytest.raises(ConfigurationError, match="'c' has changed from double to string"):
        write(make(), log, 3, pa.RecordBatch.from_pydict({"c": ["x"]}))


def test_an_epoch_that_fails_leaves_no_layout(make: Make, log: str) -> None:
    write(make(), log, 0, ROWS)
    write(make(), log, 1, MORE, fails=True)
    write(make(), log, 1, pa.RecordBatch.from_pydict({"a": [1], "c": ["x"]}))


def test_columns_that_change_while_the_query_runs_are_refused(make: Make, log: str) -> None:
    sink = make(**CSV)
    driver = LocalDriver(sink, log)
    for epoch, rows in enumerate([ROWS, ROWS, TURNED]):
        sink.check_schema(rows.schema)
        with closing(driver.coordinator()) as coordinator:
            if rows is TURNED:
                with pytest.raises(ConfigurationError, match="column 1 has changed"):
                    coordinator.begin(epoch)
                continue
            ticket = coordinator.begin(epoch)
            coordinator.finish(ticket, [driver.run_task(ticket, epoch, 0, [((*ticket.parts, None)[0], rows)])])


@pytest.mark.parametrize("make", ["whole", "remote", "s3"], indirect=True)
def test_a_job_that_adds_to_a_directory_keeps_its_layout(make: Make, log: str) -> None:
    write(make(**CSV), log, 0, ROWS)
    with pytest.raises(ConfigurationError, match="column 1 has changed"):
        write(make(**CSV, on_existing="resume"), f"{log}-2", 0, TURNED)
    write(make(**CSV, on_existing="resume"), f"{log}-2", 0, ROWS)
    write(make(on_existing="overwrite"), f"{log}-3", 0, OTHER_TYPE)
    with pytest.raises(ConfigurationError, match="format has changed from 'jsonl' to 'csv'"):
        write(make(**CSV, on_existing="resume"), f"{log}-4", 0, ROWS)


@pytest.mark.parametrize("format", ["parquet", "orc", "avro"])
def test_sparks_writer_keeps_the_types_of_its_files(tmp_path: Path, log: str, format: str) -> None:
    sink = FileSink(tmp_path / "out", format=format, writer="spark")
    write(sink, log, 0, ROWS, fails=True)
    (tmp_path / "out/part-0").write_text("x")
    layout = tmp_path / "out/_outfall/directory.layout"
    layout.write_text(layout.read_text().replace('"epoch":0', '"epoch":-1'))
    with pytest.raises(ConfigurationError, match="'a' has changed from bigint to string"):
        write(sink, log, 0, OTHER_TYPE)


def test_a_directory_whose_files_are_gone_begins_anew(tmp_path: Path, log: str) -> None:
    write(FileSink(tmp_path / "out", **CSV), log, 0, ROWS)
    for file in (tmp_path / "out").glob("part-*"):
        file.unlink()
    write(FileSink(tmp_path / "out", **CSV), log, 1, TURNED)
    with pytest.raises(ConfigurationError, match="column 1 has changed from 'b'"):
        write(FileSink(tmp_path / "out", **CSV), log, 2, ROWS)


@pytest.mark.parametrize("make", ["whole", "remote", "s3"], indirect=True)
def test_a_job_that_is_withdrawn_leaves_no_layout(make: Make, log: str) -> None:
    write(make(), log, 0, ROWS)
    sink = make(on_existing="resume")
    driver = LocalDriver(sink, f"{log}-2", options=EpochOptions(final=True, any_later=True))
    sink.check_schema(MORE.schema)
    with closing(driver.coordinator()) as coordinator:
        coordinator.begin(0)
    with closing(driver.coordinator()) as coordinator:
        assert coordinator.withdraw()
    write(make(), log, 1, pa.RecordBatch.from_pydict({"a": [1], "c": ["x"]}))


def test_the_layout_of_an_earlier_release_is_taken_over_and_completed(tmp_path: Path, log: str) -> None:
    write(FileSink(tmp_path / "out", **CSV), log, 0, ROWS)
    (record,) = (tmp_path / "out/_outfall").glob("*.json")
    (tmp_path / "out/_outfall/directory.layout").unlink()
    record.with_suffix(".layout").write_text('{"format":"csv","levels":[]}')
    with pytest.raises(ConfigurationError, match="format has changed from 'csv' to 'jsonl'"):
        write(FileSink(tmp_path / "out"), log, 1, ROWS)
    write(FileSink(tmp_path / "out", **CSV), log, 1, ROWS)
    with pytest.raises(ConfigurationError, match="column 1 has changed"):
        write(FileSink(tmp_path / "out", **CSV), log, 2, TURNED)

"""Whole files in directories by column and by time."""

from __future__ import annotations

import json
import os
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outfall.errors import ConfigurationError, TargetNotEmptyError
from outfall.file import FileSink, sink_from_options
from outfall.storage.rolling import RollBounds
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import OTHERS, WholeDriver, meanwhile, open_files, whole
from tests.unit.support.remote_target import Memory


def flight(number: int, carrier: str | None = "AA") -> dict[str, Any]:
    return {"id": number, "carrier": carrier}


def tree(out: Path) -> dict[str, list[int]]:
    """The rows that readers see, by directory."""
    found: dict[str, list[int]] = {}
    for directory, directories, files in os.walk(out):
        directories[:] = [name for name in directories if name[0] not in "_."]
        for name in sorted(files):
            if name[0] not in "_.":
                lines = Path(directory, name).read_text().splitlines()
                found.setdefault(os.path.relpath(directory, out), []).extend(json.loads(line)["id"] for line in lines)
    return found


def test_rows_go_to_the_directory_of_their_bucket_without_its_columns(out: Path) -> None:
    driver = WholeDriver(whole(out, partition_by="carrier"))
    driver.run([flight(1), flight(2, "UA"), flight(3)], [flight(4, "UA"), flight(5, None), flight(6, "a/b")])
    assert tree(out) == {
        "carrier=AA": [1, 3],
        "carrier=UA": [2, 4],
        "carrier=__HIVE_DEFAULT_PARTITION__": [5],
        "carrier=a%2Fb": [6],
    }
    assert {file.read_text() for file in (out / "carrier=AA").iterdir()} == {'{"id":1}\n{"id":3}\n'}


def test_the_time_of_writing_names_a_directory_where_no_column_does(out: Path) -> None:
    sink = whole(out, directory_pattern="'dt='yyyy-MM-dd/'hour='HH")
    sink.delegate.rolling = RollBounds(clock=lambda: datetime(2026, 11, 21, 23, 59, tzinfo=UTC).timestamp())
    WholeDriver(sink).run([flight(1)])
    assert tree(out) == {"dt=2026-11-21/hour=23": [1]}


def test_columns_and_the_time_of_a_row_together(out: Path) -> None:
    sink = whole(out, partition_by=["carrier"], directory_pattern="'dt='yyyy-MM-dd", directory_time="at")
    at = datetime(2013, 1, 1, 5, tzinfo=UTC)
    WholeDriver(sink).run([flight(1) | {"at": at}, flight(2, "UA") | {"at": None}])
    assert tree(out) == {"carrier=AA/dt=2013-01-01": [1], "carrier=UA/dt=__HIVE_DEFAULT_PARTITION__": [2]}


def test_nothing_leaves_the_root(out: Path) -> None:
    WholeDriver(whole(out, partition_by="carrier")).run([flight(1, ".."), flight(2, "../../x"), flight(3, "/etc")])
    assert sorted(tree(out)) == ["carrier=%2Fetc", "carrier=..", "carrier=..%2F..%2Fx"]
    assert sorted(os.listdir(out.parent)) == ["out"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 2, "partition_by": "carrier"}, "are for whole files"),
        ({"parts": 2, "directory_pattern": "yyyy"}, "are for whole files"),
        ({"directory_pattern": "'../'yyyy"}, "directory_pattern"),
        ({"directory_time": "at"}, "directory_time"),
    ],
)
def test_options_that_do_not_go_together_are_refused(out: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FileSink(out, **options)


def test_columns_are_checked_before_the_first_row(out: Path) -> None:
    schema = pa.schema({"id": pa.int64(), "carrier": pa.string()})
    sink_from_options({"path": str(out), "partition_by": "carrier", "format": "parquet"}).check_schema(schema)
    with pytest.raises(ConfigurationError, match="career"):
        FileSink(out, partition_by="career").check_schema(schema)
    # What is left must suit the format.
    FileSink(out, format="text", partition_by="id").check_schema(schema)
    with pytest.raises(ConfigurationError):
        FileSink(out, format="text", partition_by="carrier").check_schema(schema)


def test_many_buckets_are_written_with_few_descriptors(out: Path) -> None:
    driver = WholeDriver(whole(out, partition_by="carrier", max_open_files=16))
    driver.begin()
    before = open_files(out)
    part = driver.file()
    for first in range(3):
        part.write_batch([flight(first * 100 + number, f"c{number}") for number in range(100)])
        assert open_files(out) - before <= 16
    staged = part.prepare_commit()
    part.close()
    assert open_files(out) == before
    driver.commit(staged)
    assert tree(out) == {f"carrier=c{number}": [number, number + 100, number + 200] for number in range(100)}


def test_a_file_is_synced_before_its_descriptor_is_taken(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.file.encoded_file._PART_BYTES", 1)
    driver = WholeDriver(whole(out, partition_by="carrier", max_open_files=1))
    driver.begin()
    part = driver.file()
    part.write_batch([flight(1, "AA")])
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    part.write_batch([flight(2, "UA")])
    assert [Path(path).read_text() for path in synced] == ['{"id":1}\n']
    part.close()


def test_files_whose_descriptor_was_taken_go_on_at_their_end(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.file.encoded_file._PART_BYTES", 1)
    driver = WholeDriver(whole(out, partition_by="carrier", max_open_files=1))
    driver.begin()
    part = driver.file()
    for number in range(10):
        part.write_batch([flight(number, "AA"), flight(number + 10, "UA")])
    driver.commit(part.prepare_commit())
    part.close()
    assert tree(out) == {"carrier=AA": list(range(10)), "carrier=UA": list(range(10, 20))}


def test_rows_kept_for_row_groups_are_bounded_over_all_buckets(out: Path) -> None:
    driver = WholeDriver(whole(out, partition_by="carrier", format="parquet"))
    driver.begin()
    part = driver.file()
    part._most_kept = 100_000
    kept = []
    for first in range(20):
        ids = range(first * 1000, first * 1000 + 1000)
        carriers = [f"c{number % 10}" for number in ids]
        batch = pa.record_batch({"id": pa.array(ids, pa.int64()), "carrier": pa.array(carriers)})
        part.write_record_batch(batch)
        kept.append(sum(file.kept for file in part._open.values()))
    assert 0 < max(kept) <= 100_000
    driver.commit(part.prepare_commit())
    part.close()
    found = sorted(number for file in out.glob("carrier=*/*") for number in pq.read_table(file)["id"].to_pylist())
    assert found == list(range(20_000))


@pytest.mark.parametrize("step", [f"file: {name}#{k}" for k in (1, 3) for name in ("publishing", "published")])
def test_a_driver_killed_between_buckets_publishes_the_rest_later(out: Path, tmp_path: Path, step: str) -> None:
    recovery = str(tmp_path / "rec")
    sink = FileSink(out, partition_by="carrier")
    rows = [flight(number, f"c{number % 3}") for number in range(9)]
    with crash_at(step):
        LocalDriver(sink, recovery).run_epoch(0, [rows])
    LocalDriver(sink, recovery).run_epoch(0, [rows[::-1]])
    assert tree(out) == {f"carrier=c{k}": [k, k + 3, k + 6] for k in range(3)}


def test_directories_and_their_parents_are_synced_once_each(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = WholeDriver(whole(out, partition_by=["carrier", "day"]))
    driver.begin()
    rows = [{"id": number, "carrier": "AA", "day": number % 2} for number in range(10)]
    staged = driver.stage(rows) + driver.stage(rows, worker_index=1)
    synced: list[str] = []
    monkeypatch.setattr(
        "outfall.file.stores.local.sync_directory", lambda path: synced.append(os.path.relpath(path, out))
    )
    driver.commit(staged)
    assert sorted(synced) == sorted(
        [".", "carrier=AA", "carrier=AA/day=0", "carrier=AA/day=1", os.path.join("_outfall", "staging")]
    )


# --- first contact and restored checkpoints


def test_data_in_a_bucket_is_data_on_first_contact(out: Path) -> None:
    WholeDriver(whole(out, partition_by="carrier"), OTHERS).run([flight(1)])
    with pytest.raises(TargetNotEmptyError):
        WholeDriver(whole(out, partition_by="carrier")).begin()


def test_overwriting_empties_the_buckets_and_removes_them(out: Path) -> None:
    WholeDriver(whole(out, partition_by=["carrier"]), OTHERS).run([flight(1), flight(2, "UA")])
    (out / "carrier=AA" / "_SUCCESS").touch()
    WholeDriver(whole(out, partition_by=["carrier"], on_existing="overwrite")).run([flight(3, "UA")])
    assert tree(out) == {"carrier=UA": [3]}
    # It is not empty for us, though it is for readers.
    assert os.listdir(out / "carrier=AA") == ["_SUCCESS"]


def test_overwriting_refuses_a_bucket_that_is_a_symbolic_link(out: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "old.jsonl").write_text('{"id":1}\n')
    out.mkdir()
    (out / "carrier=AA").symlink_to(tmp_path / "elsewhere")
    sink = whole(out, partition_by="carrier", on_existing="overwrite")
    with pytest.raises(
        TargetNotEmptyError, match=r"'carrier=AA', which is a symbolic link.*readers would still read it"
    ):
        WholeDriver(sink).begin()
    assert (out / "carrier=AA" / "old.jsonl").exists()


def test_overwriting_refuses_directories_deeper_than_its_buckets(out: Path) -> None:
    (out / "carrier=AA" / "day=1").mkdir(parents=True)
    sink = whole(out, partition_by="carrier", on_existing="overwrite")
    with pytest.raises(TargetNotEmptyError, match=r"holds the directory 'day=1'"):
        WholeDriver(sink).begin()


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_restored_checkpoint_takes_rows_back_out_of_buckets(tmp_path: Path, kind: str) -> None:
    place = Memory(uuid.uuid4().hex)
    path = str(tmp_path / "out") if kind == "local" else place.url
    driver = WholeDriver(FileSink(path, partition_by="carrier"))
    driver.run([flight(1)])
    copy = driver.restored_copy(FileSink(path, partition_by="carrier", on_rewind="truncate"))
    driver.run([flight(2), flight(3, "UA")])
    copy.run([flight(4)])
    found = place.ids() if kind == "memory" else [number for ids in tree(Path(path)).values() for number in ids]
    assert found == [1, 4]


def test_a_bucket_that_somebody_removes_while_it_is_published_is_made_again(out: Path) -> None:
    driver = WholeDriver(whole(out, partition_by="carrier"))
    driver.run([flight(1)])
    for file in (out / "carrier=AA").iterdir():
        file.unlink()
    driver.begin()
    staged = driver.stage([flight(2)])
    with meanwhile("file: record advanced", (out / "carrier=AA").rmdir):
        driver.commit(staged)
    assert tree(out) == {"carrier=AA": [2]}

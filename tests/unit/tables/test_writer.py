"""A task's rows become data files: cast to the table's columns, split by partition, rolled, and bounded."""

from __future__ import annotations

import os
import traceback
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pydantic import ByteSize

from outfall.errors import ConfigurationError, TargetError, TransientError, ValueRefusedError
from outfall.tables.area import DataArea, NewFile
from outfall.tables.data_file import TaskFiles
from outfall.tables.writer import TableWriter
from tests.unit.support.file_target import open_files
from tests.unit.support.memory_table import MemoryArea, TableLink, TableStore
from tests.unit.support.points import error_of
from tests.unit.support.table_epochs import INCARNATION, attempted, writer


def link_to(spec: tuple[str, ...] = (), **columns: str) -> TableLink:
    return TableLink(TableStore(columns or {"id": "int64", "text": "string"}, spec))


def write(link: TableLink, *batches: pa.RecordBatch, **options: Any) -> TaskFiles:
    part = writer(link, **options)
    for batch in batches:
        part.write_record_batch(batch)
    (found,) = part.prepare_commit()
    part.close()
    return found


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def content(link: TableLink, found: TaskFiles) -> list[list[dict[str, Any]]]:
    """The rows of each file, read by their names."""
    files = []
    for file in found.files:
        with link.store.files.open(f"/{link.store.name}/{found.directory}/{file.name}") as opened:
            files.append(pq.read_table(pa.BufferReader(opened.read())).to_pylist())
    return files


# --- columns


def test_columns_come_in_the_tables_order_and_types_whatever_their_case_and_order() -> None:
    link = link_to(id="int64", text="string")
    found = write(link, pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([7], pa.int32())], ["TEXT", "id"]))
    assert content(link, found) == [[{"id": 7, "text": "a"}]]


def test_a_name_that_is_there_exactly_goes_before_one_that_differs_in_case() -> None:
    link = link_to(id="int64")
    link.store.add_column("ID", "int64")
    found = write(link, pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["ID", "id"]))
    assert content(link, found) == [[{"id": 2, "ID": 1}]]


def test_files_carry_what_readers_find_columns_by() -> None:
    link = link_to()
    found = write(link, batch(id=[1], text=["a"]))
    with link.store.files.open(f"/{link.store.name}/{found.directory}/{found.files[0].name}") as opened:
        schema = pq.read_schema(pa.BufferReader(opened.read()))
    assert [field.metadata[b"PARQUET:field_id"] for field in schema] == [b"1", b"2"]


def test_a_column_that_the_rows_lack_is_left_out() -> None:
    link = link_to()
    assert content(link, write(link, batch(id=[1]))) == [[{"id": 1}]]


def test_a_column_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="other"):
        write(link_to(), batch(id=[1], other=[2]))


SENTINEL = "Ringelnatz"
"""What no traceback holds; its lines of source name it so."""


def test_a_value_that_does_not_fit_is_refused_with_its_column() -> None:
    with pytest.raises(ValueRefusedError, match=r"column 'id' of type string .* bigint .*, in row 1 of the batch") as e:
        write(link_to(), batch(id=["1", SENTINEL], text=["a", "b"]))
    assert SENTINEL not in "".join(traceback.format_exception(e.value))


def test_a_null_that_the_table_does_not_take_is_refused_with_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    link = link_to()
    part = writer(link)
    required = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    monkeypatch.setattr(part._table.layout, "file_schema", lambda given: required)
    with pytest.raises(ValueRefusedError, match=r"column 'id' is NULL in row 1"):
        part.write_record_batch(batch(id=[1, None]))


def test_rows_with_other_columns_go_into_files_of_their_own() -> None:
    link = link_to()
    found = write(link, batch(id=[1]), batch(id=[2], text=["b"]), batch(id=[3], text=["c"]))
    assert content(link, found) == [[{"id": 1}], [{"id": 2, "text": "b"}, {"id": 3, "text": "c"}]]


def test_rows_with_other_types_that_are_cast_to_the_same_go_into_one() -> None:
    link = link_to()
    found = write(link, batch(id=pa.array([1], pa.int32())), batch(id=pa.array([2], pa.int16())))
    assert content(link, found) == [[{"id": 1}, {"id": 2}]]


# --- partitions


def test_rows_are_split_by_partition_null_included_and_keep_their_order() -> None:
    link = link_to(("text",))
    texts = ["b", None, "a", "b", None, "a/ä %2F\n"]
    found = write(link, batch(id=list(range(6)), text=texts))
    by_partition = dict(zip([file.partition for file in found.files], content(link, found), strict=True))
    assert {key: [row["id"] for row in rows] for key, rows in by_partition.items()} == {
        ("b",): [0, 3], (None,): [1, 4], ("a",): [2], ("a/ä %2F\n",): [5],
    }  # fmt: skip


def test_partitions_of_several_columns_are_their_combinations() -> None:
    link = link_to(("text", "kind"), id="int64", text="string", kind="int64")
    rows = batch(id=[1, 2, 3, 4, 5], text=["a", "a", None, "a", None], kind=[1, None, None, 1, 2])
    found = write(link, rows)
    sizes = {file.partition: file.rows for file in found.files}
    assert sizes == {("a", "1"): 2, ("a", None): 1, (None, None): 1, (None, "2"): 1}


def test_a_column_of_one_value_is_part_of_each_partition() -> None:
    link = link_to(("text", "kind"), id="int64", text="string", kind="int64")
    found = write(link, batch(id=[1, 2, 3], text=["a", "b", "a"], kind=[7, 7, 7]))
    assert {file.partition: file.rows for file in found.files} == {("a", "7"): 2, ("b", "7"): 1}


def test_a_batch_of_one_partition_is_not_copied_row_by_row() -> None:
    link = link_to(("text", "kind"), id="int64", text="string", kind="int64")
    found = write(link, batch(id=[1, 2], text=["a", "a"], kind=[3, 4]), batch(id=[3], text=["a"], kind=[4]))
    assert {file.partition: file.rows for file in found.files} == {("a", "3"): 1, ("a", "4"): 2}


def test_no_value_of_a_row_is_part_of_a_path() -> None:
    link = link_to(("text",))
    write(link, batch(id=[1], text=["SECRET"]))
    assert not [path for path in link.store.paths() if "SECRET" in path]


def test_a_partition_by_a_day_is_a_text_that_the_format_reads() -> None:
    link = link_to(("text",))
    part = writer(link)
    assert part._table.layout.partition_text([date(2026, 11, 22), None]) == ("2026-11-22", None)


# --- files


def test_a_file_is_closed_at_its_target_size_and_the_next_begun() -> None:
    link = link_to()
    batches = [batch(id=[number] * 1000, text=[f"{number}" * 50] * 1000) for number in range(6)]
    found = write(link, *batches, target_file_bytes=1)
    assert [file.rows for file in found.files] == [1000] * 6
    whole = write(link, *batches, attempt=1)
    assert [file.rows for file in whole.files] == [6000]


def test_the_tables_own_target_size_counts_where_no_option_is_given() -> None:
    link = link_to()
    part = writer(link)
    assert part._target_size(part._table.layout) == part._table.layout.target_size
    assert writer(link, target_file_bytes="3 KiB")._target_size(part._table.layout) == 3072


def test_no_more_files_are_open_than_allowed_and_none_is_lost() -> None:
    link = link_to(("text",))
    part = writer(link, max_open_files=3)
    most = 0
    for turn in range(3):
        for number in range(8):
            part.write_record_batch(batch(id=[turn * 8 + number], text=[f"p{number}"]))
            most = max(most, len(part._open))
    (found,) = part.prepare_commit()
    assert most == 3
    assert sorted(row["id"] for rows in content(link, found) for row in rows) == list(range(24))


def test_the_file_that_was_written_to_least_recently_is_closed() -> None:
    link = link_to(("text",))
    part = writer(link, max_open_files=2)
    for text in ("a", "b", "a", "c"):
        part.write_record_batch(batch(id=[1], text=[text]))
    assert [partition for _, partition in part._open] == [("a",), ("c",)]


def test_rows_that_are_kept_in_memory_stay_within_their_bound() -> None:
    link = link_to(("text",))
    part = writer(link)
    part._most_kept = 20_000
    for turn in range(40):
        part.write_record_batch(batch(id=[turn] * 500, text=[f"p{turn % 4}"] * 500))
        assert sum(file.kept for file in part._open.values()) <= 20_000
    (found,) = part.prepare_commit()
    assert sum(file.rows for file in found.files) == found.rows == 20_000
    assert sum(map(len, content(link, found))) == 20_000


def test_sizes_and_counts_are_those_of_the_files() -> None:
    link = link_to()
    part = writer(link)
    part.write_record_batch(batch(id=[1, 2], text=["a", "b"]))
    (found,) = part.prepare_commit()
    (file,) = found.files
    assert file.size == link.store.files.size(f"/{link.store.name}/{found.directory}/{file.name}")
    assert part._context.metrics.counts == {"files": 1, "bytes": file.size}


def test_an_attempt_without_rows_leaves_no_file() -> None:
    link = link_to()
    assert write(link, batch(id=pa.array([], pa.int64()))).files == ()
    assert link.store.paths() == []


def test_the_directory_is_of_one_begin_with_its_token() -> None:
    link = link_to()
    found = [attempted(link, [{"id": 1, "text": "a"}], token=token).directory for token in ("0a" * 8, "0b" * 8)]
    assert found == [f"outfall/{INCARNATION}/g1-{token}" for token in ("0a" * 8, "0b" * 8)]
    assert list(writer(link)._table.layout.area.begun(INCARNATION)) == [(1, each) for each in found]


def test_two_attempts_write_files_of_their_own() -> None:
    link = link_to()
    one, other = (attempted(link, [{"id": 1, "text": "a"}], attempt=number) for number in range(2))
    assert one.directory == other.directory
    assert not one.names & other.names


def test_a_task_that_fails_takes_back_finished_and_open_files() -> None:
    link = link_to(("text",))
    part = writer(link, target_file_bytes=1)
    part.write_record_batch(batch(id=[1, 2], text=["a", "b"]))
    part._target_file_bytes = ByteSize(1 << 30)
    part.write_record_batch(batch(id=[3], text=["a"]))
    part.close()
    part.close()
    assert link.store.paths() == []


def test_what_cannot_be_taken_back_is_left_to_the_clean_up(caplog: pytest.LogCaptureFixture) -> None:
    link = link_to()
    part = writer(link)
    part.write_record_batch(batch(id=[1], text=["a"]))
    link.gone = True
    part.close()
    assert "until clean-up" in caplog.text


# --- a disk


class Disk:
    """A directory as a table's data area."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> tuple[pafs.FileSystem, str]:
        return pafs.LocalFileSystem(), str(self.path)


def on_disk(path: Path, **options: Any) -> TableWriter:
    part = writer(link_to(), **options)
    part._table.layout.area = DataArea(f"file:{path}", Disk(path))
    return part


def test_files_and_their_names_are_durable_before_they_are_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    part = on_disk(tmp_path / "data")
    part.write_record_batch(batch(id=[1], text=["a"]))
    (found,) = part.prepare_commit()
    directory = tmp_path / "data" / found.directory
    wanted = [directory / found.files[0].name, directory, *directory.parents[:4]]
    assert {str(path) for path in wanted} <= set(synced)
    assert synced.index(str(wanted[0])) < len(synced) - synced[::-1].index(str(directory)) - 1


def test_a_file_of_this_very_attempt_that_is_there_already_is_refused(tmp_path: Path) -> None:
    first, second = on_disk(tmp_path / "data"), on_disk(tmp_path / "data")
    first.write_record_batch(batch(id=[1], text=["a"]))
    error = error_of(lambda: second.write_record_batch(batch(id=[1], text=["a"])))
    first.close()
    assert isinstance(error, TargetError)
    assert not isinstance(error, TransientError)


def test_an_area_on_a_disk_removes_directories_that_are_empty(tmp_path: Path) -> None:
    part = on_disk(tmp_path / "data")
    part.write_record_batch(batch(id=[1], text=["a"]))
    (found,) = part.prepare_commit()
    area = part._table.layout.area
    sizes = {**found.sizes, "other": 1}
    assert area.damaged(found.directory, sizes) == {"other": None}
    area.delete(found.directory, found.names)
    area.delete(found.directory, found.names)
    assert not (tmp_path / "data" / found.directory).exists()
    assert area.names(found.directory) == []


def test_a_task_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    part = on_disk(tmp_path)
    part.write_record_batch(batch(id=[1], text=["a"]))
    held = list(part._open.values())  # as a traceback holds them
    assert open_files(tmp_path) == len(held) == 1
    part.close()
    assert open_files(tmp_path) == 0


def test_a_store_that_is_away_when_a_file_is_created_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [OSError("AWS Error NETWORK_CONNECTION: Could not connect to server"), OSError("AWS Error SLOW_DOWN")]

    def create(self: MemoryArea, directory: str, name: str) -> NewFile:
        if answers:
            raise answers.pop()
        return known(self, directory, name)

    known = MemoryArea.create
    monkeypatch.setattr(MemoryArea, "create", create)
    link = link_to()
    assert content(link, write(link, batch(id=[1], text=["a"]), retry_deadline=60)) == [[{"id": 1, "text": "a"}]]
    answers.append(OSError("AWS Error ACCESS_DENIED during CreateMultipartUpload operation: Access Denied"))
    answers.insert(0, OSError("not reached"))
    assert isinstance(error_of(lambda: write(link, batch(id=[1], text=["a"]))), TargetError)
    assert len(answers) == 1


@pytest.mark.parametrize("failing", ["create", "sync"])
def test_a_disk_that_fails_is_an_error_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    part = on_disk(tmp_path / "data")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DataArea, failing, fail)

    def run() -> None:
        part.write_record_batch(batch(id=[1], text=["a"]))
        part.prepare_commit()

    error = error_of(run)
    assert isinstance(error, TransientError)
    assert "No space left" in str(error)


def test_rows_may_come_as_values() -> None:
    link = link_to()
    part = writer(link)
    part.write_batch([])
    part.write_batch([{"id": 1, "text": "a"}, {"id": 2, "text": None}])
    (found,) = part.prepare_commit()
    assert content(link, found) == [[{"id": 1, "text": "a"}, {"id": 2, "text": None}]]

"""Formats in files: headers, members, names and cuts."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outfall.errors import ConfigurationError, TargetNotEmptyError, ValueRefusedError
from outfall.file.growing.part_files import FileState
from outfall.storage.names import AttemptName
from tests.unit.support.file_target import GrowingDriver, WholeDriver, end, growing, rows, visible, whole


def text(path: Path) -> str:
    """What a reader sees who takes the compression from the file's name."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data).decode()
    if path.suffix == ".zst":
        return str(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read(), "utf-8") if data else ""
    return data.decode()


@pytest.fixture(params=["none", "gzip", "zstd"])
def driver(request: pytest.FixtureRequest, out: Path) -> GrowingDriver:
    return GrowingDriver(growing(out, parts=2, format="csv", header=True, compression=request.param))


def test_a_growing_file_has_its_header_once_and_members_that_are_whole_after_every_epoch(
    driver: GrowingDriver, out: Path
) -> None:
    part = out / driver.sink.list_parts()[0]
    expected = "id\n"
    driver.run({})
    assert part.read_bytes() == b"" if part.exists() else True
    for number in range(4):
        driver.run({part.name: rows(number)})
        expected += f"{number}\n"
        assert text(part) == expected


def test_an_attempt_that_died_within_a_member_is_cut_to_the_last_whole_one(driver: GrowingDriver, out: Path) -> None:
    part = out / driver.sink.list_parts()[0]
    driver.run({part.name: rows(1)})
    before = part.read_bytes()
    driver.begin()
    lost = driver.part(part.name, attempt=1)
    lost.write_batch(rows(2, 3))
    lost.snapshot()
    lost.close()
    os.truncate(part, len(before) + (part.stat().st_size - len(before)) // 2)
    driver.run({part.name: rows(4)})
    assert part.read_bytes().startswith(before)
    assert text(part) == "id\n1\n4\n"


def test_a_header_is_written_again_when_everything_of_a_file_was_cut(driver: GrowingDriver, out: Path) -> None:
    part = out / driver.sink.list_parts()[0]
    driver.begin()
    driver.write({part.name: rows(1)})
    driver.run({part.name: rows(2)})
    assert text(part) == "id\n2\n"


def test_many_pieces_of_an_epoch_are_one_text(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.file.encoded_file._PART_BYTES", 1)
    driver = GrowingDriver(growing(out, format="csv", header=True, compression="gzip"))
    driver.begin()
    part = driver.part()
    for number in range(3):
        part.write_batch(rows(number))
    assert part.snapshot().offset == (out / "part-00000.csv.gz").stat().st_size
    part.close()
    assert text(out / "part-00000.csv.gz") == "id\n0\n1\n2\n"


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("damage", ["none", "no line end", "cut"])
def test_a_file_of_somebody_else_is_continued_only_if_it_is_whole(out: Path, compression: Any, damage: str) -> None:
    if (compression, damage) == ("none", "cut"):
        pytest.skip("what is not compressed is whole wherever a line ends")
    GrowingDriver(growing(out, compression=compression)).run(
        {growing(out, compression=compression).list_parts()[0]: rows(1)}
    )
    sink = growing(out, compression=compression, on_existing="resume")
    path = out / sink.list_parts()[0]
    if damage == "no line end":
        from outfall.formats import member

        path.write_bytes(b"".join(member(compression, [pa.py_buffer(b'{"id":1}')])))
    elif damage == "cut":
        os.truncate(path, path.stat().st_size - 2)
    end(out)
    driver = GrowingDriver(sink, incarnation="00000000000000bb")
    if damage != "none":
        with pytest.raises(TargetNotEmptyError, match=str(path)):
            driver.run({path.name: rows(2)})
    else:
        driver.run({path.name: rows(2)})
        assert text(path) == '{"id":1}\n{"id":2}\n'


@pytest.mark.parametrize(
    ("options", "end"),
    [({"format": "csv", "compression": "gzip"}, ".csv.gz"), ({"compression": "zstd"}, ".jsonl.zst"),
     ({"format": "parquet"}, ".snappy.parquet")],
)  # fmt: skip
def test_names_of_whole_files_end_as_readers_expect_and_are_known_again(out: Path, options: Any, end: str) -> None:
    driver = WholeDriver(whole(out, **options))
    driver.run(rows(1), rows(2))
    driver.begin()
    driver.stage(rows(3))
    driver.begin()
    assert driver.clean_up() == 1, "the names of lost attempts are found by their form"
    names = [path.name for path in visible(out)]
    assert len(names) == 2
    for name in names:
        found = AttemptName.parse(name)
        assert found is not None
        assert (found.suffix, str(found)) == (end, name)


def test_whole_files_have_a_header_each(out: Path) -> None:
    WholeDriver(whole(out, format="csv", header=True, compression="gzip")).run(rows(1), rows(2, 3))
    assert [text(path) for path in visible(out)] == ["id\n1\n", "id\n2\n3\n"]


def test_parquet_is_compressed_inside_and_closed_when_it_is_committed(out: Path) -> None:
    WholeDriver(whole(out, format="parquet", compression="gzip")).run(rows(1), rows(2, 3))
    tables = [pq.read_table(io.BytesIO(path.read_bytes())) for path in visible(out)]
    assert [table.to_pylist() for table in tables] == [rows(1), rows(2, 3)]


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_columns_that_change_within_a_file_are_refused(out: Path, format: Any) -> None:
    driver = WholeDriver(whole(out, format=format))
    driver.begin()
    part = driver.file()
    part.write_batch([{"a": 1}])
    with pytest.raises(ValueRefusedError, match=r"from \(a: bigint\) to \(a: bigint, b: string\)"):
        part.write_batch([{"a": 1, "b": "x"}])
    part.close()


CHANGES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "columns in another order": ([{"admin": True, "user": "bob"}], {}),
    "one column more": ([{"user": "bob", "admin": True, "id": 7}], {}),
    "another name": ([{"user": "bob", "root": True}], {}),
    "no header": ([{"user": "bob", "admin": True}], {"header": False}),
    "another separator": ([{"user": "bob", "admin": True}], {"sep": ";"}),
    "another NULL": ([{"user": "bob", "admin": True}], {"null_value": "NULL"}),
}
FIRST = [{"user": "ann", "admin": False}]


@pytest.mark.parametrize("change", CHANGES)
def test_rows_of_other_columns_do_not_follow_in_a_csv_file_after_a_restart(out: Path, change: str) -> None:
    part = "part-00000.csv"
    driver = GrowingDriver(growing(out, format="csv", header=True))
    driver.run({part: FIRST})
    values, changed = CHANGES[change]
    options: dict[str, Any] = {"format": "csv", "header": True, **changed}
    driver.sink = growing(out, **options)
    with pytest.raises(ConfigurationError, match=r"has changed from|other columns or other options of csv.*roll_bytes"):
        driver.run({part: values})
    assert text(out / part) == "user,admin\nann,false\n"
    driver.sink = growing(out, format="csv", header=True)
    driver.run({part: [{"user": "cid", "admin": True}]})
    assert text(out / part) == "user,admin\nann,false\ncid,true\n"


def test_a_part_that_rolls_begins_a_new_csv_file_for_other_columns(out: Path) -> None:
    part = "part-00000.csv"
    driver = GrowingDriver(growing(out, format="csv", header=True, roll_bytes="1 GiB"))
    driver.run({part: FIRST})
    driver.run({part: []})
    driver.run({part: [{"admin": True, "user": "bob"}]})
    driver.run({part: [{"admin": True, "user": "cid"}]})
    assert [text(file) for file in visible(out)] == ["user,admin\nann,false\n", "admin,user\ntrue,bob\ntrue,cid\n"]


def test_a_state_of_a_release_that_kept_no_columns_goes_on(out: Path) -> None:
    part = "part-00000.csv"
    driver = GrowingDriver(growing(out, format="csv", header=True))
    driver.run({part: FIRST})
    old = driver.states[part].model_dump(exclude={"shape"})
    driver.states[part] = FileState.model_validate(old)
    driver.run({part: [{"user": "bob", "admin": True}]})
    assert text(out / part) == "user,admin\nann,false\nbob,true\n"
    assert driver.states[part].shape is not None


def test_rows_of_json_may_change_their_columns(out: Path) -> None:
    driver = GrowingDriver(growing(out))
    driver.run({"part-00000.jsonl": FIRST})
    driver.run({"part-00000.jsonl": [{"admin": True, "id": 7}]})
    assert driver.states["part-00000.jsonl"].shape is None


@pytest.mark.parametrize(
    ("options", "ending"),
    [
        ({}, ".jsonl"),
        ({"compression": "gzip"}, ".jsonl.gz"),
        ({"format": "csv", "compression": "gzip"}, ".csv.gz"),
        ({"format": "text", "compression": "zstd"}, ".txt.zst"),
        ({"format": "parquet"}, ".snappy.parquet"),
    ],
    ids=str,
)
def test_extensions_are_those_that_the_pages_name(out: Path, options: dict[str, Any], ending: str) -> None:
    assert whole(out, **options).delegate.suffix == ending
    assert f"`{ending}`" in (Path(__file__).parents[3] / "docs" / "file.md").read_text()

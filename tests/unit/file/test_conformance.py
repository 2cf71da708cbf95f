"""`FileSink` is exactly once, in both of its ways: the conformance suite does not refute it."""

from __future__ import annotations

import csv
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from outfall.file import FileSink
from outfall.file.stores.locks import Patience
from outfall.testing import SinkConformance, run_conformance
from outfall.testing.conformance import run_check
from tests.unit.support.remote_target import Memory
from tests.unit.support.spark_writer import WrittenInPython


def visible(target: Path) -> list[Path]:
    """The files that readers see, in directories too."""
    files = [path for path in target.rglob("*") if path.is_file()] if target.exists() else []
    return [path for path in files if not any(name[0] in "_." for name in path.relative_to(target).parts)]


class Files(SinkConformance):
    memory_limit: int | None = 8 << 20

    def make_sink(self, target: Any) -> Any:
        sink: Any = FileSink(target / "out", **self.file_options())
        # A stalled attempt may hold a lock, and whoever waits for it must not wait for long.
        sink.delegate.patience = Patience(seconds=0.05)
        return sink

    def file_options(self) -> dict[str, Any]:
        return {}

    def read(self, target: Any) -> Iterable[Any]:
        return [json.loads(line) for path in visible(target / "out") for line in path.read_text().splitlines()]

    def lose_target(self, target: Any) -> None:
        shutil.rmtree(target / "out")

    @contextmanager
    def breaking(self, target: Any) -> Iterator[None]:
        """Have the directory give way to a file."""
        os.rename(target / "out", target / "away")
        (target / "out").touch()
        try:
            yield
        finally:
            os.unlink(target / "out")
            os.rename(target / "away", target / "out")


SEALED = {"log_copied_during_an_epoch": "parts are sealed before their epoch is recorded, as docs/file.md says"}


class GrowingFiles(Files):
    not_claimed = SEALED

    def file_options(self) -> dict[str, Any]:
        return {"parts": 3}

    def leftovers(self, target: Any) -> int:
        # Bytes of failed attempts are truncated, so only records of steps could remain.
        return len(list((target / "out" / "_outfall").glob("*.json")))


class WholeFiles(Files):
    def lose(self, target: Any, committable: Any) -> None:
        os.unlink(target / "out" / "_outfall" / "staging" / committable.name)

    def leftovers(self, target: Any) -> int:
        return len(list((target / "out" / "_outfall" / "staging").iterdir()))


class FilesBySpark(WholeFiles):
    """What Spark's own writer has written, by a stand-in for Spark."""

    def file_options(self) -> dict[str, Any]:
        return {"format": "avro", "writer": "spark"}

    def make_sink(self, target: Any) -> Any:
        return WrittenInPython(super().make_sink(target))

    # The stand-in holds the rows of a task.
    memory_limit = None


class InShort(Files):
    """Most checks, each over a few of its steps; the thorough classes below go over all."""

    most_cases = 3
    schedules = 3
    memory_limit = None
    test_memory_over_epochs = test_files_and_threads_stay_flat = None
    test_crash_at_every_line = test_killed_at_every_step = None


class TestWholeFilesInShort(InShort, WholeFiles):
    pass


class CsvFiles(WholeFiles):
    """Files whose readers take columns by position."""

    def file_options(self) -> dict[str, Any]:
        return {"format": "csv"}

    def row(self, number: int) -> Any:
        return {"id": str(number), "text": f"row {number}"}

    def read(self, target: Any) -> Iterable[Any]:
        for path in visible(target / "out"):
            with path.open(newline="") as file:
                yield from (dict(zip(("id", "text"), line, strict=True)) for line in csv.reader(file))


def test_csv_files_whose_columns_change(tmp_path: Path) -> None:
    report = run_conformance(CsvFiles(), tmp_path, checks=["one_epoch", "changed_layout"])
    assert report.passed, report


@pytest.mark.thorough
class TestGrowingFiles(GrowingFiles):
    pass


@pytest.mark.thorough
class TestWholeFiles(WholeFiles):
    pass


@pytest.mark.thorough
class TestFilesBySpark(FilesBySpark):
    pass


@pytest.mark.long
class TestWholeParquetFiles(WholeFiles):
    # A row group is held until it is full, which is 64 MiB.
    memory_limit = None

    def file_options(self) -> dict[str, Any]:
        return {"format": "parquet"}

    def read(self, target: Any) -> Iterable[Any]:
        return [row for path in visible(target / "out") for row in pq.read_table(path).to_pylist()]


@pytest.mark.long
class TestRollingGrowingFiles(GrowingFiles):
    def file_options(self) -> dict[str, Any]:
        return {"parts": 3, "roll_bytes": 200}

    # Its many rows would be as many files.
    memory_limit = None


@pytest.mark.long
class TestRollingWholeFiles(WholeFiles):
    def file_options(self) -> dict[str, Any]:
        return {"roll_bytes": 200}

    memory_limit = None


@pytest.mark.long
class TestPartitionedFiles(WholeFiles):
    def file_options(self) -> dict[str, Any]:
        return {"partition_by": ["b"]}

    def row(self, number: int) -> Any:
        return {"id": number, "b": f"b{number % 3}"}

    def read(self, target: Any) -> Iterable[Any]:
        for path in visible(target / "out"):
            for line in path.read_text().splitlines():
                yield json.loads(line) | {"b": path.parent.name.removeprefix("b=")}


@pytest.mark.long
class TestWholeFilesInAnObjectStore(SinkConformance):
    """Whole files in fsspec's own store, which is in this process."""

    strict = False

    @pytest.fixture(autouse=True)
    def _scratch(self, scratch: Path) -> None:
        """Attempts keep files until they are uploaded."""

    def new_target(self, directory: Path) -> Memory:
        return Memory(directory.parent.name)

    def make_sink(self, target: Memory) -> Any:
        return FileSink(target.url)

    def read(self, target: Memory) -> Iterable[Any]:
        return target.rows()

    def lose(self, target: Memory, committable: Any) -> None:
        target.remove(f"_outfall/staging/{committable.name}")

    def lose_target(self, target: Memory) -> None:
        for path in target.everything():
            target.remove(path)

    def save_target(self, target: Memory) -> Callable[[], None]:
        files = target.everything()

        def restore() -> None:
            self.lose_target(target)
            for path, data in files.items():
                target.put(path, data)

        return restore

    def leftovers(self, target: Memory) -> int:
        return len(target.hidden())


SCHEDULES = 5500
"""For each of the two ways: more than ten thousand for the sink."""


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("harness", [GrowingFiles, WholeFiles])
def test_ten_thousand_fresh_schedules_write_each_epoch_once(harness: type[Files], tmp_path: Path) -> None:
    """Some minutes; less with `--basetemp` in memory, such as /dev/shm/outfall."""
    files = harness()
    files.schedules = SCHEDULES
    files.schedule_seed = secrets.randbelow(2**32)
    print(f"schedule_seed {files.schedule_seed}")
    run_check(files, "random_schedules", tmp_path)

"""Delta's own engine and ours commit the same version of a table on a disk.

Its log store looks for the entry and then renames its own to that name, which replaces an entry made in between. strace
holds it there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from outfall.delta.files import TableLocation
from outfall.errors import TargetLostError
from tests.integration.support.batch_driver import batch
from tests.integration.support.delta_epochs import Shore
from tests.integration.support.waiting import until
from tests.peers.support.jvm_tables import JvmTable
from tests.programs import program

pytestmark = pytest.mark.spark


def rows(*ids: int) -> pa.RecordBatch:
    return batch(id=pa.array(ids), name=pa.array([f"n{each}" for each in ids]))


class Held:
    """The JVM, stopped whenever it is about to rename a log entry."""

    def __init__(self, process: int, trace: Path) -> None:
        self._process = process
        self._trace = trace
        self._strace: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [program("strace"), "--follow-forks", f"--attach={self._process}", f"--output={self._trace}"]
        command += ["--trace=rename", "--signal=none", "--inject=rename:delay_enter=60s"]
        self._strace = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert self._strace.stderr is not None
        assert b"attached" in self._strace.stderr.readline()

    def is_at(self, version: int) -> bool:
        return f"/_delta_log/{version:020}.json" in self._trace.read_text(errors="replace")

    def let_go(self) -> None:
        """Detach, so that the call takes place."""
        if self._strace is not None:
            self._strace.send_signal(signal.SIGINT)
            self._strace.communicate()
            self._strace = None


@contextmanager
def insert_held_at(held: Held, jvm: JvmTable, version: int) -> Iterator[Callable[[], None]]:
    """Let the JVM insert a row, held where it would make the version; yields what lets it do so, and waits for it."""
    held.start()
    inserting = threading.Thread(target=lambda: jvm.run("INSERT INTO {t} VALUES (70, 'theirs')"))
    inserting.start()

    def finish() -> None:
        held.let_go()
        inserting.join()

    try:
        until(lambda: held.is_at(version), f"the JVM at version {version}")
        yield finish
    finally:
        finish()


@pytest.fixture
def held(delta: SparkSession, tmp_path: Path) -> Iterator[Held]:
    assert delta._jvm is not None
    process = int(delta._jvm.java.lang.ProcessHandle.current().pid())
    found = Held(process, tmp_path / "strace")
    yield found
    found.let_go()


def test_rows_whose_version_is_replaced_while_they_are_made_durable_are_committed_again(
    shore: Shore, jvm: JvmTable, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = shore.driver("log", create_table="if_missing")
    driver.write(0, rows(1))
    make_durable = TableLocation.make_durable
    with insert_held_at(held, jvm, 2) as finish:

        def replaced_meanwhile(place: TableLocation, version: int) -> None:
            if version == 2:
                assert os.path.exists(shore.path / "_delta_log" / f"{2:020}.json")
                finish()
            make_durable(place, version)

        monkeypatch.setattr(TableLocation, "make_durable", replaced_meanwhile)
        driver.write(1, rows(2))
    driver.write(2, rows(3))
    assert jvm.ids() == [1, 2, 3, 70]


def test_rows_whose_version_is_replaced_later_are_missed_by_the_next_epoch(
    shore: Shore, jvm: JvmTable, held: Held
) -> None:
    driver = shore.driver("log", create_table="if_missing")
    driver.write(0, rows(1))
    with insert_held_at(held, jvm, 2) as finish:
        driver.write(1, rows(2))
        finish()
    assert jvm.ids() == [1, 70]
    with pytest.raises(TargetLostError, match="it has epoch 0, but epoch 1 was published"):
        driver.write(2, rows(3))
    assert jvm.ids() == [1, 70]

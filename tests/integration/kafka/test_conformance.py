"""`FileSink` is exactly once with its recovery data in Kafka: the conformance suite does not refute it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from outfall.file import FileSink
from outfall.file.stores.locks import Patience
from outfall.kafka import KafkaRecoveryConfig
from outfall.recovery import RecoveryConfig
from outfall.testing import SinkConformance, SinkHarness, run_conformance

pytestmark = pytest.mark.usefixtures("no_client_left")


class Files(SinkHarness):
    """Whole files, or growing ones; each trial has topics of its own."""

    not_claimed = {
        **dict.fromkeys(
            ["rewound_log", "copied_log", "log_copied_during_an_epoch"],
            "the check takes copies of a directory; it is about the sink, and runs on the checkpoint store",
        ),
        "lost_log": "the check deletes a directory; it is about the sink, and runs on the checkpoint store",
    }
    address: str
    parts: int | None = None

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return KafkaRecoveryConfig(self.address, f"test-{uuid.uuid4().hex}", replication_factor=1, timeout=20)

    def make_sink(self, target: Any) -> Any:
        sink: Any = FileSink(target / "out", parts=self.parts)
        # A stalled attempt may hold a lock, and whoever waits for it must not wait for long.
        sink.delegate.patience = Patience(seconds=0.05)
        return sink

    def read(self, target: Any) -> Iterable[Any]:
        found = (target / "out").glob("[!_.]*") if (target / "out").exists() else []
        return [json.loads(line) for path in found if path.is_file() for line in path.read_text().splitlines()]

    def leftovers(self, target: Any) -> int:
        return len(list((target / "out" / "_outfall" / "staging").iterdir()))


def test_whole_files_in_short(kafka: str, tmp_path: Path) -> None:
    """Each trial has clients of its own, which take their time: the whole suite is played in the unit tests."""
    files = Files()
    files.address = kafka
    report = run_conformance(files, tmp_path, checks=["one_epoch"])
    assert report.passed, report


class Suite(Files, SinkConformance):
    """The whole suite."""

    schedules = 5

    @pytest.fixture(autouse=True)
    def _broker(self, kafka: str) -> None:
        self.address = kafka


@pytest.mark.long
class TestWholeFiles(Suite):
    pass


@pytest.mark.long
class TestGrowingFiles(Suite):
    parts = 3

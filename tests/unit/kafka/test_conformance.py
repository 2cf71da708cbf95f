"""`FileSink` is exactly once with its recovery data in Kafka: what of the suite partitions in memory can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfall.recovery import RecoveryConfig
from tests.unit.file.test_conformance import Files, WholeFiles
from tests.unit.support.kafka_partition import MemoryKafka


class InKafka(Files):
    not_claimed = {
        **dict.fromkeys(
            ["rewound_log", "copied_log", "log_copied_during_an_epoch"],
            "the check takes copies of a directory; it is about the sink, and runs on the checkpoint store",
        ),
        "lost_log": "the check deletes a directory; it is about the sink, and runs on the checkpoint store",
        "memory_over_epochs": "the broker and what it keeps is in this process; the check runs in tests/integration",
        "killed_at_every_step": "partitions in memory die with the process; the driver is killed in tests/integration",
        "loss_of_power": "partitions in memory die with the process; it runs on the checkpoint store",
    }

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return MemoryKafka()


@pytest.mark.long
class TestGrowingFiles(InKafka):
    def file_options(self) -> dict[str, object]:
        return {"parts": 3}


@pytest.mark.long
class TestWholeFiles(InKafka):
    leftovers = WholeFiles.leftovers

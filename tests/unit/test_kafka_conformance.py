"""`FileSink` is exactly once with its recovery data in Kafka: the whole suite, over partitions in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfall.recovery import RecoveryConfig
from tests.unit.support.kafka_partition import MemoryKafka
from tests.unit.test_file_conformance import Files


class InKafka(Files):
    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return MemoryKafka()


@pytest.mark.long
class TestGrowingFiles(InKafka):
    def file_options(self) -> dict[str, object]:
        return {"parts": 3}


@pytest.mark.long
class TestWholeFiles(InKafka):
    pass

"""Logs in stores that need a server are exported like all others."""

from __future__ import annotations

import uuid
from contextlib import closing
from functools import partial

import pytest

from outfall.kafka import KafkaRecoveryConfig
from outfall.metrics.exporter import Exporter
from outfall.recovery import recovery_config
from outfall.recovery.log import RecoveryConfig
from outfall.testing import LocalDriver
from tests.integration.support.prometheus import scraped
from tests.integration.support.s3 import S3
from tests.integration.support.waiting import until
from tests.unit.support.warehouse import PlainSink

pytestmark = pytest.mark.thorough


def look(recovery: RecoveryConfig) -> None:
    LocalDriver(PlainSink(), recovery).run_epoch(0, [[1, 2]])
    with closing(Exporter.start([recovery], host="127.0.0.1", port=0, every=0.1)) as exporter:
        for epoch in (1, 2):
            line = f'outfall_rows_total{{location="{recovery.url()}",step="sink"}} {2 * epoch}.0'
            until(partial(says, exporter.port, line), f"epoch {epoch}", 30)
            LocalDriver(PlainSink(), recovery).run_epoch(epoch, [[1, 2]])


def says(port: int, line: str) -> bool:
    return line in scraped(port).splitlines()


def test_kafka(kafka: str) -> None:
    look(KafkaRecoveryConfig(kafka, f"exported-{uuid.uuid4().hex}", replication_factor=1, timeout=20))


def test_an_object_store(s3_through_fsspec: S3) -> None:
    bucket = f"exported-{uuid.uuid4().hex}"
    s3_through_fsspec.client().create_bucket(Bucket=bucket)
    look(recovery_config(f"s3://{bucket}/chk"))

"""What the server that forks lives has done already: all imports, boto3's models, and what a first epoch costs."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import tempfile
from typing import Any

import boto3
import psycopg2  # type: ignore[import-untyped]  # noqa: F401
import pyiceberg.catalog.sql  # noqa: F401
import sqlalchemy.dialects.postgresql.psycopg2
import sqlalchemy.dialects.sqlite.pysqlite  # noqa: F401

import outfall.delta
import outfall.file
import outfall.iceberg
import outfall.kafka
import outfall.kafka.parts
import outfall.postgres
import outfall.s3
import outfall.tables
import tests.integration.support.lives  # noqa: F401
from outfall.file import FileSink
from outfall.testing import LocalDriver

PACKAGES = (
    outfall.delta, outfall.file, outfall.iceberg, outfall.kafka, outfall.kafka.parts, outfall.postgres, outfall.s3,
    outfall.tables,
)  # fmt: skip


@functools.cache
def session() -> Any:
    """A `session_factory` whose clients cost a tenth of those of a new session."""
    return boto3.session.Session(
        aws_access_key_id=os.environ.get("AWS_ACCESS_KEY_ID", "outfall"),
        aws_secret_access_key=os.environ.get("AWS_SECRET_ACCESS_KEY", "outfall-secret"),
        region_name="us-east-1",
    )


def _warm_up() -> None:
    for package in PACKAGES:
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    session().client("s3")
    with tempfile.TemporaryDirectory() as directory:
        LocalDriver(FileSink(f"{directory}/out"), f"{directory}/recovery").run_epoch(0, [[{"id": 1}]])


if "OUTFALL_TEST_WARM" in os.environ:
    _warm_up()

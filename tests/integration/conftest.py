"""What the integration tests share: for each process of the run one Spark session, and one server of each kind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from pyspark.sql import SparkSession

from outfall.testing.crash_points import SITE
from tests.integration.support.kafka_server import kafka_server
from tests.integration.support.mysql import MySQLServer, mysql_server
from tests.integration.support.mysql import Server as OwnMySQL
from tests.integration.support.mysql import own_server as own_mysql_server
from tests.integration.support.postgres import Databases, Server, own_server, postgres_server
from tests.integration.support.s3 import S3, s3_server

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent / "support"


def spark_environment() -> dict[str, str]:
    """Return what a JVM must inherit so that its Python workers are this Python and import what the tests import."""
    path = [str(ROOT), str(SUPPORT), str(SITE), os.environ.get("PYTHONPATH", "")]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        # Without it Spark asks for the machine's own address, which a container may be unable to reach.
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Tests are too short for the optimizing compiler to pay: without it a third of the time is saved.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # Emulators take any, but boto3 sends nothing without.
        "AWS_ACCESS_KEY_ID": os.environ.get("AWS_ACCESS_KEY_ID", "outfall"),
        "AWS_SECRET_ACCESS_KEY": os.environ.get("AWS_SECRET_ACCESS_KEY", "outfall-secret"),
        "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "us-east-1"),
    }


def run_script(name: str, *arguments: object, output: Path, may_fail: bool = False) -> int:
    """Run a script of `support` with a Spark of its own, and return its exit code, which must be 0 unless it may fail.

    What it prints goes to a file.
    """
    command = [sys.executable, str(SUPPORT / name), *map(str, arguments)]
    with output.open("wb") as printed:
        done = subprocess.run(
            command,
            env={**os.environ, **spark_environment()},
            stdout=printed,
            stderr=printed,
            timeout=1800,
            check=False,
        )
    assert may_fail or done.returncode == 0, output.read_text()[-5000:]
    return done.returncode


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    """A server that is shared: nobody stops it."""
    with postgres_server() as databases:
        yield databases


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[Server]:
    """A server that tests stop, kill and configure."""
    # Commits that do not wait for the log stay out of it for as long as a test takes.
    with own_server({"wal_writer_delay": "10s"}) as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySQLServer]:
    """A MariaDB or MySQL that is shared: nobody stops it."""
    with mysql_server() as server:
        yield server


@pytest.fixture(scope="session")
def own_mysql() -> Iterator[OwnMySQL]:
    """A MariaDB or MySQL that tests stop, kill and configure."""
    with own_mysql_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """A server that is shared: moto's, or the one that the environment names."""
    with s3_server() as server:
        yield server


@pytest.fixture
def s3_through_fsspec(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """The server, reached by the URLs of `s3://` that name no address."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    # Instances are cached with the address and the credentials that they were made with, perhaps by another test.
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield s3
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The address of a broker that nobody here wrote, for all tests; topics have names of their own."""
    with kafka_server() as address:
        yield address


@pytest.fixture(scope="session")
def crash_order(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that tells Spark's Python processes at which step to die; see `outfall.testing.crash_points`."""
    return tmp_path_factory.mktemp("crash") / "order"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, crash_order: Path) -> Iterator[SparkSession]:
    """A classic session on two cores; a test that changes its configuration changes it back."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment().items():
            patch.setenv(name, value)
        patch.setenv("OUTFALL_TEST_CRASH_ORDER", str(crash_order))
        # Written by a test that has an S3 server: processes that plan have the JVM's environment, which is older.
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path_factory.mktemp("aws") / "credentials"))
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()

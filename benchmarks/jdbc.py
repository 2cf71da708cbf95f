"""The JDBC drivers of databases, for Spark's own writer beside the sinks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Driver:
    """A driver's jar, and the command that fetches it."""

    jar: Path
    fetch: str

    def is_in(self, spark: SparkSession) -> bool:
        """Return whether a session was started with it."""
        return str(self.jar) in (spark.conf.get("spark.jars", "") or "")


POSTGRES = Driver(Path("/usr/share/java/postgresql.jar"), "apt-get install libpostgresql-jdbc-java")
MYSQL = Driver(
    Path.home() / ".m2/repository/com/mysql/mysql-connector-j/9.7.0/mysql-connector-j-9.7.0.jar",
    "mvn dependency:get -Dartifact=com.mysql:mysql-connector-j:9.7.0",
)


def jars(*drivers: Driver) -> dict[str, str]:
    """Return the settings of a session that has these drivers; say which are missing."""
    for driver in drivers:
        if not driver.jar.exists():
            sys.stdout.write(f"{driver.jar} is missing: its JDBC writer is skipped. What to do: {driver.fetch}\n")
    found = [str(driver.jar) for driver in drivers if driver.jar.exists()]
    return {"spark.jars": ",".join(found)} if found else {}

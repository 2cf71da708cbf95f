"""DuckDB as a reader of tables: it has its own code for Iceberg's metadata and for Delta's log."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import duckdb

from tests.integration.support.s3 import S3, SeaweedFS

EXTENSIONS = ("avro", "httpfs", "iceberg", "delta")
"""Avro first: Iceberg's would look for it on the network."""


class Duck:
    """A connection that has the extensions of the installed wheels, and asks the network for none."""

    def __init__(self, connection: duckdb.DuckDBPyConnection | None = None) -> None:
        """Load the extensions, which takes a second, unless a connection has them."""
        if connection is not None:
            self._connection = connection
            return
        never: dict[str, Any] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        self._connection = duckdb.connect(config=never)
        for name in EXTENSIONS:
            package = importlib.import_module(f"duckdb_extension_{name}")
            assert package.__file__
            (path,) = Path(package.__file__).parent.rglob("*.duckdb_extension")
            self._connection.execute(f"LOAD '{path}'")

    def another(self) -> Duck:
        """Return one for another thread, which has the same extensions."""
        return Duck(self._connection.cursor())

    def use(self, s3: S3) -> None:
        """Read from this server from now on."""
        host = s3.endpoint.removeprefix("http://")
        self._connection.execute(
            f"CREATE OR REPLACE SECRET store (TYPE s3, KEY_ID '{s3.key}', SECRET '{s3.secret}', REGION 'us-east-1',"
            f" ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false)"
        )

    def attach(self, server: SeaweedFS) -> None:
        """Let `catalog.<namespace>.<table>` be the tables of the server's REST catalogue."""
        self.use(server.s3)
        self._connection.execute(
            f"CREATE OR REPLACE SECRET API (TYPE iceberg, CLIENT_ID '{server.s3.key}', CLIENT_SECRET"
            f" '{server.s3.secret}', OAUTH2_SERVER_URI '{server.catalog}/v1/oauth/tokens')"
        )
        self._connection.execute(
            f"ATTACH 's3://{server.table_bucket}' AS catalog (TYPE iceberg, SECRET api, ENDPOINT '{server.catalog}')"
        )

    def query(self, text: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(text).fetchall()

    def iceberg(self, metadata: str, columns: str = "*", snapshot: int | None = None) -> list[tuple[Any, ...]]:
        """Read a table by the path of its metadata, as of a snapshot or as it is there."""
        of = "" if snapshot is None else f", snapshot_from_id = {snapshot}"
        return self.query(f"SELECT {columns} FROM iceberg_scan('{metadata}'{of})")

    def delta(self, directory: Path | str, columns: str = "*", version: int | None = None) -> list[tuple[Any, ...]]:
        """Read a table by its directory, as of a version or as it is."""
        of = "" if version is None else f", version = {version}"
        return self.query(f"SELECT {columns} FROM delta_scan('{directory}'{of})")

    def close(self) -> None:
        self._connection.close()

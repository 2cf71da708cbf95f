"""A worker of Kafka Connect with Debezium's connectors, that may be killed and started again on its offsets.

Standalone, it keeps its offsets in a file, so a killed worker repeats events. `exactly_once` runs it distributed, with
its offsets in the transaction of the events.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support.servers import OwnServer, free_port
from tests.integration.support.waiting import until
from tests.peers.support.jars import class_path, java

PROFILE = "debezium-3.6"
_SECONDS = 120
_JOINING = (404, 409, 500, 503)
"""What a worker answers that has just started; a distributed one joins its group first."""
_JSON = "org.apache.kafka.connect.json.JsonConverter"


class ConnectWorker(OwnServer):
    """A worker; connectors are given to it over HTTP, also after each start of a standalone one."""

    def __init__(
        self, folder: Path, kafka: str, *, exactly_once: bool = False, schemas: bool = False, flush: float = 1.0
    ) -> None:
        """Prepare its folder; start nothing yet. `flush` is how often its offsets are kept, in seconds."""
        folder.mkdir(exist_ok=True)
        self._port = free_port()
        self._connectors: dict[str, Mapping[str, str]] = {}
        name = f"connect-{self._port}"
        settings = {
            "bootstrap.servers": kafka, "listeners": f"http://127.0.0.1:{self._port}",
            "rest.advertised.host.name": "127.0.0.1", "plugin.discovery": "service_load",
            "key.converter": _JSON, "value.converter": _JSON,
            "key.converter.schemas.enable": str(schemas).lower(),
            "value.converter.schemas.enable": str(schemas).lower(),
        }  # fmt: skip
        if exactly_once:
            topics = {f"{kind}.storage.topic": f"{name}.{kind}" for kind in ("config", "offset", "status")}
            copies = {f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")}
            settings |= topics | copies | {
                "exactly.once.source.support": "enabled", "group.id": name, "offset.storage.partitions": "1",
                "status.storage.partitions": "1", "session.timeout.ms": "6000", "heartbeat.interval.ms": "2000",
                "scheduled.rebalance.max.delay.ms": "0",
            }  # fmt: skip
        else:
            settings |= {
                "offset.storage.file.filename": str(folder / "offsets"),
                "offset.flush.interval.ms": str(int(flush * 1000)),
            }
        properties = folder / "worker.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        main = f"org.apache.kafka.connect.cli.Connect{'Distributed' if exactly_once else 'Standalone'}"
        command = [
            java(), "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path(PROFILE), main, str(properties),
        ]  # fmt: skip
        self.log = folder / "log"
        super().__init__(command, self.log, self._answers)

    def start(self) -> None:
        """Start it with its connectors, and return when their tasks run."""
        self.launch()
        self.wait_ready(_SECONDS)
        for name, config in self._connectors.items():
            self._put(name, config)

    def run(self, name: str, config: Mapping[str, str]) -> None:
        """Give it a connector, and return when its task runs."""
        self._connectors[name] = config
        self._put(name, config)

    def state(self, name: str) -> str:
        """Return the state of a connector's task: `RUNNING`, `FAILED` with its trace, or none yet."""
        try:
            tasks = self._ask("GET", f"/connectors/{name}/status")["tasks"]
        except OSError:
            return ""
        return "" if not tasks else f"{tasks[0]['state']} {tasks[0].get('trace', '')[:2000]}".strip()

    def _put(self, name: str, config: Mapping[str, str]) -> None:
        def runs() -> bool:
            state = self.state(name)
            assert not state.startswith("FAILED"), state
            return state == "RUNNING"

        until(lambda: self._accepts(name, config), f"the connector {name}", _SECONDS)
        until(runs, f"the task of {name}", _SECONDS)

    def _accepts(self, name: str, config: Mapping[str, str]) -> bool:
        try:
            self._ask("PUT", f"/connectors/{name}/config", {**config, "name": name})
        except urllib.error.HTTPError as error:
            if error.code not in _JOINING:
                pytest.fail(error.read().decode())
            return False
        except OSError:
            # It waits for others of its group.
            return False
        return True

    def _answers(self) -> bool:
        try:
            self._ask("GET", "/connectors")
        except OSError:
            return False
        return True

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url, headers = f"http://127.0.0.1:{self._port}{path}", {"Content-Type": "application/json"}
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read() or b"null")


def postgres_connector(host: str, port: int, database: str, tables: str, **more: str) -> dict[str, str]:
    """Return the settings of a connector for tables of a PostgreSQL database with the signal table of `SIGNALS`.

    `more` are settings with underscores for dots.
    """
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "tasks.max": "1",
        "database.hostname": host, "database.port": str(port), "database.dbname": database,
        "database.user": "postgres", "database.password": "any", "topic.prefix": "shop", "plugin.name": "pgoutput",
        "slot.name": f"slot_{database}"[:60], "publication.name": "shop", "publication.autocreate.mode": "filtered",
        "table.include.list": f"{tables},public.debezium_signal",
        "signal.data.collection": "public.debezium_signal", "skipped.operations": "none",
        "topic.creation.default.partitions": "4", "topic.creation.default.replication.factor": "1",
    } | {name.replace("_", "."): value for name, value in more.items()}  # fmt: skip


def mysql_connector(host: str, port: int, database: str, tables: str, kafka: str, **more: str) -> dict[str, str]:
    """Return the settings of a connector for tables of a MySQL database with the signal table of `SIGNALS`.

    `kafka` is where the history of the tables is kept; `more` are settings with underscores for dots.
    """
    listed = ",".join(f"{database}.{table}" for table in (*tables.split(","), "debezium_signal"))
    return {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector", "tasks.max": "1",
        "database.hostname": host, "database.port": str(port), "database.user": "root", "database.password": "",
        "database.server.id": str(5400 + zlib.crc32(database.encode()) % 10_000), "topic.prefix": "shop",
        "database.include.list": database, "table.include.list": listed,
        "signal.data.collection": f"{database}.debezium_signal", "skipped.operations": "none",
        "schema.history.internal.kafka.bootstrap.servers": kafka,
        "schema.history.internal.kafka.topic": "shop.history",
        "topic.creation.default.partitions": "4", "topic.creation.default.replication.factor": "1",
    } | {name.replace("_", "."): value for name, value in more.items()}  # fmt: skip


SIGNALS = "CREATE TABLE debezium_signal (id VARCHAR(42) PRIMARY KEY, type VARCHAR(32) NOT NULL, data VARCHAR(2048))"
"""Makes the table whose rows are commands for the connector."""

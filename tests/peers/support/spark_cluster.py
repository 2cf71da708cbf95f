"""A standalone cluster of Spark over hosts that can be cut off: a master, workers on two hosts, drivers on any."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.integration.conftest import spark_environment
from tests.integration.support.servers import OwnServer, free_port, listens
from tests.integration.support.waiting import until
from tests.peers.support import cluster_streams
from tests.peers.support.hosts import Host, Network, network
from tests.peers.support.jars import java

WORKERS = ("a", "b")
"""Hosts that have a worker."""
THIRD = "c"
"""A host that has none, and only runs drivers."""
SERVERS = "s"
"""The host of the master and of all targets."""
DRIVERS = (THIRD, *WORKERS)
EXECUTOR = "CoarseGrainedExecutorBackend"
_HOME = Path(pyspark.__file__).parent
_LOST = {
    # How long a host may be silent: short, so that a test need not wait; and longer than a busy machine is.
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "3s",
    "spark.executor.heartbeatInterval": "3s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "30000",
}
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "100ms",
    # Of stages with a single task too.
    "spark.speculation.task.duration.threshold": "500ms",
}
_SECONDS = 240
_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class Cluster:
    """A master, and a worker on each of two hosts."""

    def __init__(self, net: Network) -> None:
        """Start nothing yet."""
        self.network = net
        self.hosts = net.hosts
        self._server = net.hosts[SERVERS]
        self._port = free_port()
        self.master = f"spark://{self._server.address}:{self._port}"
        self._folder = net.folder / "spark"
        self._folder.mkdir()
        self._events = self._folder / "events"
        self._events.mkdir()
        self._master = OwnServer(
            self._java("master.Master", "--host", self._server.address, "--port", str(self._port), "--webui-port", "0"),
            self._folder / "master.log",
            lambda: listens(self._port, self._server.address),
        )
        self._workers: dict[str, OwnServer] = {}

    def start(self) -> None:
        """Return when the master knows both workers."""
        with self._server.entered():
            self._master.launch()
        self._master.wait_ready(_SECONDS)
        for name in WORKERS:
            self._launch_worker(name)
        for name in WORKERS:
            self._workers[name].wait_ready(_SECONDS)

    def executors(self, host: str, driver: str = "") -> list[psutil.Process]:
        """Return the executors on a host, of one driver if one is named by its address."""
        return [found for found in self.hosts[host].processes(EXECUTOR) if driver in " ".join(found.cmdline())]

    def decommission(self, host: str) -> None:
        """Take a worker out of service as an administrator does, and put a new one in its place when it is out."""
        before = self.executors(host)
        (worker,) = self.hosts[host].processes("deploy.worker.Worker")
        worker.send_signal(signal.SIGPWR)
        with suppress(AssertionError):
            # An executor ends when its tasks have; one that is stopped or whose driver is cut off does not.
            until(lambda: not any(each.is_running() for each in before), "the end of its executors", 15)
        self._workers[host].kill()
        self._launch_worker(host)
        self._workers[host].wait_ready(_SECONDS)

    def settings(self, host: Host, *, speculation: bool) -> dict[str, str]:
        """Return the settings of a driver on a host."""
        environment = spark_environment()
        return {
            "spark.driver.host": host.address,
            "spark.driver.bindAddress": host.address,
            "spark.driver.memory": "600m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "4",
            "spark.cores.max": "8",
            "spark.task.maxFailures": "8",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.local.dir": str(self._folder / "local"),
            "spark.decommission.enabled": "true",
            "spark.storage.decommission.enabled": "true",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self._events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            **{f"spark.executorEnv.{name}": environment[name] for name in environment if name != "SPARK_LOCAL_IP"},
            **_LOST,
            **(_SPECULATION if speculation else {}),
        }

    def speculative(self) -> int:
        """Count the speculative attempts of all drivers, by the logs of their events."""
        return sum(
            event["Task Info"]["Speculative"]
            for path in self._events.iterdir()
            for line in path.read_text(errors="replace").splitlines()
            if '"SparkListenerTaskStart"' in line and line.endswith("}")
            for event in [json.loads(line)]
        )

    def kill(self) -> None:
        """Kill the master and the workers; what they started is left to the network's end."""
        for server in (self._master, *self._workers.values()):
            server.kill()

    def _launch_worker(self, name: str) -> None:
        host = self.hosts[name]
        log = self._folder / f"worker-{name}.log"
        log.write_bytes(b"")
        arguments = ("-c", "64", "-m", "16g", "-d", str(self._folder / "work" / name), "--webui-port", "0", self.master)
        self._workers[name] = OwnServer(
            self._java("worker.Worker", "--host", host.address, *arguments),
            log,
            lambda: "Successfully registered with master" in log.read_text(errors="replace"),
            SPARK_LOCAL_IP=host.address,
            # Without it a worker of the pip package finds no class path for executors.
            SPARK_SCALA_VERSION="2.13",
            SPARK_HOME=str(_HOME),
            SPARK_ENV_LOADED="1",
            SPARK_LOCAL_DIRS=str(self._folder / "local"),
        )
        with host.entered():
            self._workers[name].launch()

    def _java(self, name: str, *arguments: str) -> list[str]:
        options = ("-Dspark.worker.timeout=25", "-Dspark.decommission.enabled=true", *_FLAGS)
        return [
            java(), "-Xmx256m", *options, "-cp", f"{_HOME / 'jars'}/*", f"org.apache.spark.deploy.{name}", *arguments
        ]  # fmt: skip


class Driver:
    """A driver on a host, with all streams."""

    def __init__(
        self, cluster: Cluster, root: Path, number: int, host: str, sinks: Mapping[str, Any], *, speculation: bool
    ) -> None:
        """Start nothing yet."""
        self.host = host
        self.sinks = sinks
        self.name = f"driver-{number}"
        self.address = cluster.hosts[host].address
        self._there = cluster.hosts[host]
        self._root = root
        self._log = root / f"{self.name}.log"
        settings = cluster.settings(self._there, speculation=speculation)
        given = {"master": cluster.master, "settings": settings, "sinks": sinks}
        environment = spark_environment() | {"SPARK_LOCAL_IP": self.address, "SPARK_SCALA_VERSION": "2.13"}
        self._server = OwnServer(
            [environment["PYSPARK_PYTHON"], str(cluster_streams.__file__), str(root), self.name, json.dumps(given)],
            self._log,
            lambda: bool(self.reported("started")),
            None,
            **environment,
        )

    @property
    def running(self) -> bool:
        return self._server.running

    def launch(self) -> None:
        """Make it the driver that is wanted, and do not wait until its streams have started."""
        wanted = self._root / "wanted"
        wanted.with_name("wanting").write_text(self.name)
        wanted.with_name("wanting").rename(wanted)
        with self._there.entered():
            self._server.launch()

    def reported(self, event: str) -> list[dict[str, Any]]:
        """Return what it reported."""
        path = self._root / "reports" / self.name
        lines = path.read_text().splitlines() if path.exists() else []
        return [reported for line in lines if (reported := json.loads(line))["event"] == event]

    def signal(self, number: int) -> None:
        """Send a signal to its processes: Python's, the JVM's, and those of the streams' functions."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def processes(self) -> list[psutil.Process]:
        found = self._there.processes(self.name)
        below = [child for process in found for child in process.children(recursive=True)]
        return list({process.pid: process for process in (*found, *below)}.values())

    def kill(self) -> None:
        """Kill it (-9)."""
        self.signal(signal.SIGKILL)
        self._server.kill()

    def log(self) -> str:
        return self._log.read_text(errors="replace")


@contextmanager
def standalone() -> Iterator[Cluster]:
    """Run a cluster."""
    with network((*WORKERS, THIRD, SERVERS)) as net:
        cluster = Cluster(net)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.kill()

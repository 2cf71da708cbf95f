"""YARN, from Maven's jars: a resource manager and two node managers beside HDFS, and what Spark runs there.

The node managers are two hosts to YARN and Spark: each has a loopback address of its own. What they start ends with
the tests, also when those are killed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.integration.support.servers import OwnServer, free_ports, listens, open_folder
from tests.integration.support.waiting import until
from tests.peers.support import reaper
from tests.peers.support.hadoop import Hdfs, small_java, write_site
from tests.peers.support.jars import class_path, java

SPARK_HOME = Path(pyspark.__file__).parent
USER = "flyer"
"""Who submits jobs. The node managers run as another user, as do the containers."""
_NM_EXPIRY = 6
"""Seconds after which a node manager that says nothing is given up, and with it the application masters there.

An application master itself has YARN's ten minutes: on a busy machine, it says nothing for long while it starts.
"""
_SERVER = "org.apache.hadoop.yarn.server"
_RM_ADDRESSES = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
_NM_ADDRESSES = ("address", "localizer.address", "webapp.address")
_WEBAPPS = ("cluster", "node", "static")


class Yarn:
    """A cluster of three processes, which may be killed and started again on their disks."""

    def __init__(self, folder: Path, hdfs: Hdfs, settings: Mapping[str, str] | None = None) -> None:
        """Write the configurations; start nothing yet.

        Args:
            folder: where it keeps its files, and where all containers work.
            hdfs: its default filesystem.
            settings: further ones of `yarn-site.xml`.
        """
        self.folder = folder
        self.hdfs = hdfs
        self.conf = folder / "conf"
        ports = free_ports(len(_RM_ADDRESSES))
        self._web = f"127.0.0.1:{ports[-1]}"
        self._site = {
            f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}" for name, port in zip(_RM_ADDRESSES, ports, strict=True)
        } | {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.am.max-attempts": "50",
            # A resource manager that is killed and started again knows its applications, which go on.
            "yarn.resourcemanager.recovery.enabled": "true",
            "yarn.resourcemanager.store.class": f"{_SERVER}.resourcemanager.recovery.FileSystemRMStateStore",
            "yarn.resourcemanager.fs.state-store.uri": f"file://{folder}/state",
            "yarn.nm.liveness-monitor.expiry-interval-ms": f"{_NM_EXPIRY * 1000}",
            "yarn.scheduler.minimum-allocation-mb": "256",
            "yarn.nodemanager.resource.memory-mb": "8192",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            # The connection to a dead node manager is given up early.
            "yarn.client.nodemanager-connect.max-wait-ms": "3000",
            "yarn.client.nodemanager-connect.retry-interval-ms": "1000",
            # Else a disk of tests that is nearly full makes a host unhealthy.
            "yarn.nodemanager.disk-health-checker.enable": "false",
            **(settings or {}),
        }
        self._write_conf(self.conf, {})
        self.manager = OwnServer(
            self._java("resourcemanager.ResourceManager", self.conf), folder / "manager.log", lambda: listens(ports[-1])
        )
        self.hosts = [Host(self, number) for number in (1, 2)]

    def java_of_host(self, host: Host) -> list[str]:
        """Write the configuration of a node manager, and return the command that runs it."""
        self._write_conf(host.folder / "conf", host.site())
        return self._java("nodemanager.NodeManager", host.folder / "conf")

    def alive(self) -> list[str]:
        """Return the addresses of the node managers that the resource manager knows as running."""
        found = (self.rest("nodes?states=RUNNING")["nodes"] or {}).get("node", [])
        return [node["nodeHostName"] for node in found]

    def rest(self, path: str) -> Any:
        """Ask the resource manager."""
        with urllib.request.urlopen(f"http://{self._web}/ws/v1/cluster/{path}", timeout=30) as answer:
            return json.load(answer)

    def application(self, name: str) -> dict[str, Any] | None:
        """Return the newest application of a name, as the resource manager describes it."""
        with suppress(OSError):
            apps = (self.rest("apps")["apps"] or {}).get("app", [])
            return max((app for app in apps if app["name"] == name), key=lambda app: app["startedTime"], default=None)
        return None

    def attempts(self, application: str) -> list[dict[str, Any]]:
        """Return the attempts at an application, the first one first."""
        found = self.rest(f"apps/{application}/appattempts")["appAttempts"]["appAttempt"]
        return sorted(found, key=lambda attempt: int(attempt["id"]))

    def clear(self) -> None:
        """End all containers, and start again what was killed."""
        for host in self.hosts:
            if not host.manager.running:
                host.end()
        if not self.manager.running:
            self.manager.start()
        for application in self._unfinished():
            self.kill_application(application)
        for host in self.hosts:
            if not host.manager.running:
                host.manager.start()
            until(lambda host=host: not host.containers(), "the end of all containers")  # type: ignore[misc]

    def kill_application(self, application: str) -> None:
        """Have the resource manager end an application."""
        request = urllib.request.Request(
            f"http://{self._web}/ws/v1/cluster/apps/{application}/state",
            data=b'{"state": "KILLED"}',
            headers={"Content-Type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(request, timeout=30).close()

    def _unfinished(self) -> list[str]:
        apps = (self.rest("apps?states=NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING")["apps"] or {}).get("app", [])
        return [app["id"] for app in apps]

    def logs(self) -> str:
        """Return the ends of what containers wrote, the newest last."""
        files = [path for path in self.folder.glob("host*/logs/*/*/*") if path.is_file() and path.stat().st_size]
        newest = sorted(files, key=lambda path: path.stat().st_mtime)[-8:]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in newest)

    def _write_conf(self, folder: Path, more: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        for name in ("core-site.xml", "hdfs-site.xml"):
            shutil.copy(self.hdfs.conf / name, folder / name)
        write_site(folder / "yarn-site.xml", self._site | dict(more))
        queue = "yarn.scheduler.capacity"
        site = {f"{queue}.root.queues": "default", f"{queue}.root.default.capacity": "100"}
        write_site(folder / "capacity-scheduler.xml", site | {f"{queue}.maximum-am-resource-percent": "0.9"})
        for name in _WEBAPPS:
            (folder / "webapps" / name / "WEB-INF").mkdir(parents=True)
            (folder / "webapps" / name / "WEB-INF" / "web.xml").write_text("<web-app/>")

    def _java(self, name: str, conf: Path) -> list[str]:
        return [
            *small_java(conf.parent),
            "--add-opens", "java.base/java.lang=ALL-UNNAMED",
            "-cp", os.pathsep.join((str(conf), class_path("hadoop-3.4"))), f"{_SERVER}.{name}",
        ]  # fmt: skip


class Host:
    """A node manager and the containers that it started."""

    def __init__(self, yarn: Yarn, number: int) -> None:
        """Start nothing yet."""
        self.address = f"127.0.0.{number + 1}"
        self.folder = yarn.folder / f"host{number}"
        self._ports = free_ports(len(_NM_ADDRESSES))
        # Not HADOOP_CONF_DIR, which containers would inherit: not all distributions set it.
        environment: dict[str, Any] = {"JAVA_HOME": str(Path(java()).resolve().parents[1])}
        self.manager = OwnServer(
            yarn.java_of_host(self),
            yarn.folder / f"host{number}.log",
            lambda: self.address in yarn.alive(),
            **environment,
        )

    def site(self) -> dict[str, str]:
        """Return the settings that only this node manager has."""
        given = {
            f"yarn.nodemanager.{name}": f"{self.address}:{port}"
            for name, port in zip(_NM_ADDRESSES, self._ports, strict=True)
        }
        return given | {
            "yarn.nodemanager.hostname": self.address,
            "yarn.nodemanager.local-dirs": f"{self.folder}/local",
            "yarn.nodemanager.log-dirs": f"{self.folder}/logs",
        }

    def containers(self) -> list[psutil.Process]:
        """Return the processes of the containers, those of Python too."""
        found = []
        for pid in reaper.processes_below(self.folder / "local"):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found

    def end(self) -> None:
        """Kill the node manager and all its containers, as when the host loses its power."""
        self.manager.kill()
        reaper.end_processes_below(self.folder)


@contextmanager
def yarn(hdfs: Hdfs, settings: Mapping[str, str] | None = None) -> Iterator[Yarn]:
    """Run a cluster of our own. If the tests are killed, a process that outlives them ends all containers."""
    with open_folder() as folder:
        reaping = [sys.executable, str(reaper.__file__), str(folder)]
        outliving = subprocess.Popen(reaping, stdin=subprocess.PIPE, start_new_session=True, cwd="/")
        cluster = Yarn(folder, hdfs, settings)
        try:
            home = f"/user/{USER}"
            hdfs.client().mkdirs(home, 0o755, True)
            hdfs.client().set_owner(home, USER, USER)
            cluster.manager.start()
            for host in cluster.hosts:
                host.manager.launch()
            for host in cluster.hosts:
                host.manager.wait_ready()
            yield cluster
        finally:
            for host in cluster.hosts:
                host.manager.kill()
            cluster.manager.kill()
            outliving.communicate()

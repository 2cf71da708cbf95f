"""HDFS with high availability: namenodes that share their edits by a journal node, and two datanodes.

Failover is by hand: the tests are who decides which namenode is active.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hdfs_native import Client

from tests.integration.support.servers import OwnServer, free_ports, listens, open_folder
from tests.integration.support.waiting import until
from tests.peers.support.hadoop import small_java, write_site
from tests.peers.support.jars import class_path

NAMESERVICE = "flights"
_SERVER = "org.apache.hadoop.hdfs.server"
_PROVIDER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


class HaHdfs:
    """Namenodes `nn1`, `nn2`, … and the datanodes. Clients find it by the folder of its configuration."""

    def __init__(self, folder: Path, namenodes: int = 2, provider: str = _PROVIDER, lags: str = "") -> None:
        """Write the configuration; start nothing yet.

        Only the clients' has the provider. The namenode `lags` reads the edits of the others once in an hour.
        """
        self._folder = folder
        self._lags = lags
        self.names = [f"nn{number + 1}" for number in range(namenodes)]
        journal, journal_status, *ports = free_ports(2 + namenodes * 2 + 6)
        self._rpc = dict(zip(self.names, ports, strict=False))
        status = dict(zip(self.names, ports[namenodes:], strict=False))
        self._site = {
            "dfs.nameservices": NAMESERVICE,
            f"dfs.ha.namenodes.{NAMESERVICE}": ",".join(self.names),
            **{f"dfs.namenode.rpc-address.{NAMESERVICE}.{n}": f"127.0.0.1:{p}" for n, p in self._rpc.items()},
            **{f"dfs.namenode.http-address.{NAMESERVICE}.{n}": f"127.0.0.1:{p}" for n, p in status.items()},
            "dfs.namenode.shared.edits.dir": f"qjournal://127.0.0.1:{journal}/{NAMESERVICE}",
            "dfs.journalnode.rpc-address": f"127.0.0.1:{journal}",
            "dfs.journalnode.http-address": f"127.0.0.1:{journal_status}",
            "dfs.journalnode.edits.dir": f"{folder}/journal",
            f"dfs.client.failover.proxy.provider.{NAMESERVICE}": _PROVIDER,
            "dfs.ha.fencing.methods": "shell(/bin/true)",
            "dfs.ha.nn.not-become-active-in-safemode": "false",
            "dfs.ha.tail-edits.period": "1s",
            "dfs.ha.tail-edits.in-progress": "true",
            "dfs.replication": "2",
            "dfs.namenode.replication.min": "1",
            # A datanode is dead after 12 seconds.
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "1000",
            "dfs.namenode.safemode.extension": "0",
            "dfs.client.failover.sleep.base.millis": "100",
        }
        self.conf = self._configure("conf", {f"dfs.client.failover.proxy.provider.{NAMESERVICE}": provider})
        self.url = f"hdfs://{NAMESERVICE}"
        self.journal = OwnServer(
            self._java("journal", {}, "org.apache.hadoop.hdfs.qjournal.server.JournalNode"),
            folder / "journal.log",
            lambda: listens(journal),
        )
        self.namenodes = {name: self._namenode(name) for name in self.names}
        self.datanodes = [self._datanode(number, ports[namenodes * 2 + 3 * number :]) for number in range(2)]

    def start(self) -> None:
        """Format, and start all: `nn1` is active, the others follow."""
        self.journal.start()
        first, *others = self.names
        self._run(self._of(first), "namenode.NameNode", "-format", "-force", "-nonInteractive")
        self.namenodes[first].start()
        for name in others:
            self._run(self._of(name), "namenode.NameNode", "-bootstrapStandby", "-force", "-nonInteractive")
            self.namenodes[name].launch()
        for name in others:
            self.namenodes[name].wait_ready()
        self.haadmin("-transitionToActive", first)
        for datanode in self.datanodes:
            datanode.launch()
        until(self.writes, "two datanodes taking blocks")

    def stop(self) -> None:
        """End all processes."""
        for server in [*self.datanodes, *self.namenodes.values(), self.journal]:
            server.kill()

    def haadmin(self, *arguments: str) -> str:
        """Run `hdfs haadmin`, and return what it printed."""
        command = self._java("admin", {}, "org.apache.hadoop.hdfs.tools.DFSHAAdmin")
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
        return done.stdout.strip()

    def client(self) -> Client:
        """Return a client of its own."""
        return Client(self.url, {}, str(self.conf))

    def only(self, name: str) -> Path:
        """Return the configuration of clients that know one namenode."""
        return self._configure(f"conf-only-{name}", {f"dfs.ha.namenodes.{NAMESERVICE}": name})

    def revive(self, name: str) -> None:
        """Start a namenode again that was killed or has ended, and return when it could take over."""
        self.namenodes[name].kill()
        self.namenodes[name].start()
        self.is_safe(name)

    def is_safe(self, name: str) -> None:
        """Return when a namenode has left its safe mode."""
        command = self._java("admin", {}, "org.apache.hadoop.hdfs.tools.DFSAdmin")
        address = f"hdfs://127.0.0.1:{self._rpc[name]}"
        done = [*command, "-fs", address, "-safemode", "get"]
        until(
            lambda: "OFF" in subprocess.run(done, capture_output=True, text=True, check=False).stdout, "a safe namenode"
        )

    def restore(self) -> None:
        """Let all run, and the first one be active."""
        for server in self.datanodes:
            if not server.running:
                server.launch()
        for server in self.namenodes.values():
            if not server.running:
                server.start()
        first, second = self.names[:2]
        if self.haadmin("-getServiceState", first) != "active":
            self.haadmin("-transitionToStandby", second)
            self.haadmin("-transitionToActive", first)
        self.is_safe(first)
        until(self.writes, "two datanodes taking blocks")

    def writes(self) -> bool:
        """Whether a file gets its two replicas."""
        try:
            with self.client().create("/.ready") as file:
                file.write(b"ready")
        except Exception:
            return False
        finally:
            self._forget()
        return True

    def _forget(self) -> None:
        try:
            self.client().delete("/.ready")
        except Exception:
            return

    def _namenode(self, name: str) -> OwnServer:
        return OwnServer(
            self._java(name, self._of(name), f"{_SERVER}.namenode.NameNode"),
            self._folder / f"{name}.log",
            lambda: listens(self._rpc[name]),
        )

    def _datanode(self, number: int, ports: list[int]) -> OwnServer:
        names = ("dfs.datanode.address", "dfs.datanode.http.address", "dfs.datanode.ipc.address")
        own = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=False)}
        own["dfs.datanode.data.dir"] = f"{self._folder}/data{number}"
        return OwnServer(
            self._java(f"datanode{number}", own, f"{_SERVER}.datanode.DataNode"),
            self._folder / f"datanode{number}.log",
            lambda: True,
        )

    def _of(self, name: str) -> dict[str, str]:
        own = {"dfs.ha.namenode.id": name, "dfs.namenode.name.dir": f"{self._folder}/{name}"}
        return own | ({"dfs.ha.tail-edits.period": "1h"} if name == self._lags else {})

    def _run(self, own: dict[str, str], server: str, *arguments: str) -> None:
        command = self._java(own["dfs.ha.namenode.id"], own, f"{_SERVER}.{server}")
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]

    def _java(self, name: str, own: dict[str, str], main: str) -> list[str]:
        conf = self._configure(f"conf-{name}", own)
        path = os.pathsep.join((str(conf), class_path("hadoop-3.4")))
        return [*small_java(self._folder), "-cp", path, main]

    def _configure(self, name: str, own: dict[str, str]) -> Path:
        conf = self._folder / name
        conf.mkdir(exist_ok=True)
        core = {"fs.defaultFS": f"hdfs://{NAMESERVICE}", "hadoop.tmp.dir": f"{self._folder}/tmp"}
        write_site(conf / "core-site.xml", core)
        write_site(conf / "hdfs-site.xml", self._site | own)
        # The servers of status pages want these folders.
        for page in ("hdfs", "datanode", "journal", "static"):
            (conf / "webapps" / page / "WEB-INF").mkdir(parents=True, exist_ok=True)
            (conf / "webapps" / page / "WEB-INF" / "web.xml").write_text("<web-app/>")
        return conf


@contextmanager
def ha_hdfs(namenodes: int = 2, provider: str = _PROVIDER, lags: str = "") -> Iterator[HaHdfs]:
    """Run a cluster of our own."""
    with open_folder() as folder:
        cluster = HaHdfs(folder, namenodes, provider, lags)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()

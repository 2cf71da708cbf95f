"""HDFS, from Maven's jars: one namenode and one datanode, which may be killed and started again on their disks."""

from __future__ import annotations

import json
import os
import subprocess
import xml.sax.saxutils
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hdfs_native import Client, WriteOptions

from tests.integration.support.servers import OwnServer, free_ports, listens, open_folder
from tests.peers.support.jars import class_path, java

_ADDRESSES = (
    "dfs.namenode.http-address",
    "dfs.datanode.address",
    "dfs.datanode.http.address",
    "dfs.datanode.ipc.address",
)
_SERVER = "org.apache.hadoop.hdfs.server"


class Hdfs:
    """A cluster of two processes. Clients find it by the folder of its configuration."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        """Write the configuration, and format the namenode; start nothing yet."""
        namenode, *ports = free_ports(5)
        self.address = f"127.0.0.1:{namenode}"
        self.status = f"http://127.0.0.1:{ports[2]}"
        """The address of the datanode's status."""
        self.conf = folder / "conf"
        self.conf.mkdir()
        given = {name: f"127.0.0.1:{port}" for name, port in zip(_ADDRESSES, ports, strict=True)}
        site = {"dfs.replication": "1", "dfs.namenode.safemode.extension": "0"} | given | dict(settings or {})
        core = {"fs.defaultFS": f"hdfs://{self.address}", "hadoop.tmp.dir": f"{folder}/tmp"}
        write_site(self.conf / "core-site.xml", core)
        write_site(self.conf / "hdfs-site.xml", site)
        # The servers of status pages want these folders.
        for name in ("hdfs", "datanode", "static"):
            (self.conf / "webapps" / name / "WEB-INF").mkdir(parents=True)
            (self.conf / "webapps" / name / "WEB-INF" / "web.xml").write_text("<web-app/>")
        formatting = [*self._java("namenode.NameNode"), "-format", "-force", "-nonInteractive"]
        done = subprocess.run(formatting, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        self.namenode = OwnServer(self._java("namenode.NameNode"), folder / "namenode.log", lambda: listens(namenode))
        self.datanode = OwnServer(self._java("datanode.DataNode"), folder / "datanode.log", self.writes)

    def client(self) -> Client:
        """Return a client of its own."""
        return Client(f"hdfs://{self.address}", {}, str(self.conf))

    def admin(self, *arguments: str) -> str:
        """Run `hdfs dfsadmin`, and return what it printed."""
        command = [*self._java("", main="org.apache.hadoop.hdfs.tools.DFSAdmin"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
        return done.stdout

    def writes(self) -> bool:
        """Whether a file can be written: the datanode is registered, and the namenode has left its safe mode."""
        try:
            with self.client().create("/.ready", WriteOptions(overwrite=True)) as file:
                file.write(b"ready")
        except Exception:
            return False
        return True

    def _java(self, name: str, main: str | None = None) -> list[str]:
        return [
            *small_java(self.conf.parent),
            "-cp", os.pathsep.join((str(self.conf), class_path("hadoop-3.4"))),
            main or f"{_SERVER}.{name}",
        ]  # fmt: skip


class Directory:
    """A directory of the cluster."""

    def __init__(self, hdfs: Hdfs, name: str) -> None:
        self.client: Client = hdfs.client()
        self.path = f"/{name}"
        self.url = f"hdfs://{hdfs.address}{self.path}"

    def everything(self) -> dict[str, bytes]:
        try:
            found = [status for status in self.client.list_status(self.path, True) if not status.isdir]
        except FileNotFoundError:
            return {}
        return {s.path.removeprefix(f"{self.path}/"): self.client.read(s.path).read() for s in found}

    def rows(self) -> list[Any]:
        visible = {path: data for path, data in self.everything().items() if not path.startswith(("_", "."))}
        return [json.loads(line) for path in sorted(visible) for line in visible[path].splitlines()]

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())

    def put(self, path: str, data: bytes) -> None:
        with self.client.create(f"{self.path}/{path}", WriteOptions(overwrite=True)) as file:
            file.write(data)

    def remove(self, path: str) -> None:
        self.client.delete(f"{self.path}/{path}")


def small_java(folder: Path) -> list[str]:
    """Return how Java runs a small server. Killed, it leaves the pages of its status, so they are in the folder."""
    return [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={folder}"]


def write_site(path: Path, settings: Mapping[str, str]) -> None:
    """Write a file of Hadoop's configuration."""
    escape = xml.sax.saxutils.escape
    lines = (f"<property><name>{escape(n)}</name><value>{escape(v)}</value></property>" for n, v in settings.items())
    path.write_text("\n".join(["<configuration>", *lines, "</configuration>", ""]))


@contextmanager
def hdfs(settings: Mapping[str, str] | None = None) -> Iterator[Hdfs]:
    """Run a cluster of our own."""
    with open_folder() as folder:
        cluster = Hdfs(folder, settings)
        cluster.namenode.start()
        try:
            cluster.datanode.start()
            yield cluster
        finally:
            cluster.datanode.kill()
            cluster.namenode.kill()

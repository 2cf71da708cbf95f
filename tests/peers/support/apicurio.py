"""Apicurio Registry, which serves Confluent's API: a server of our own, from Maven's archive, data in memory."""

from __future__ import annotations

import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.integration.support.servers import OwnServer, free_port, open_folder
from tests.peers.support.debian import java_21
from tests.peers.support.jars import jars, keep

APICURIO = "apicurio-3.3"
_API = "/apis/ccompat/v7"


@contextmanager
def apicurio() -> Iterator[str]:
    """Run it; yields the URL of Confluent's API. It takes half a minute, and Java 21."""
    program, port = _unpacked(APICURIO), free_port()
    url = f"http://127.0.0.1:{port}{_API}"
    settings = {
        "quarkus.http.host": "127.0.0.1", "quarkus.http.port": str(port), "quarkus.management.enabled": "false",
        "apicurio.storage.kind": "sql", "apicurio.rest.deletion.artifact-version.enabled": "true",
        "apicurio.rest.deletion.artifact.enabled": "true", "apicurio.rest.deletion.group.enabled": "true",
    }  # fmt: skip
    with open_folder() as folder:
        command = [
            *java_21(), "-Xmx512m", "-XX:TieredStopAtLevel=1", *(f"-D{name}={each}" for name, each in settings.items()),
            "-jar", str(program / "quarkus-run.jar"),
        ]  # fmt: skip
        server = OwnServer(command, folder / "log", lambda: _answers(f"{url}/subjects"))
        server.launch()
        server.wait_ready(180)
        try:
            yield url
        finally:
            server.kill()


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
        return bool(response.status == 200)
    return False


def _unpacked(name: str) -> Path:
    (archive,) = jars(name).glob("*.tar.gz")
    folder = archive.parent.with_name(f"{archive.parent.name}-unpacked")
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unpacking-") as scratch:
            with tarfile.open(archive) as packed:
                packed.extractall(f"{scratch}/made", filter="data")
            keep(Path(scratch, "made"), folder)
    return folder

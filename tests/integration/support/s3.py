"""S3 servers: the one that the environment names or moto's, SeaweedFS, and rclone, which ignores `If-None-Match`."""

from __future__ import annotations

import os
import random
import socket
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

from tests.integration.support.servers import OwnServer, listens

ENDPOINT = "OUTFALL_TEST_S3_ENDPOINT"
_GRPC = 10_000
"""How far above a port SeaweedFS puts that for gRPC."""


@dataclass(frozen=True)
class S3:
    """Where the server is, and who may use it."""

    endpoint: str
    key: str
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which S3's own libraries find it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name="us-east-1",
        )

    def objects(self, bucket: str, prefix: str) -> dict[str, bytes]:
        """What lies under a prefix, by the names below it."""
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
        return {key.removeprefix(prefix): client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}


class SeaweedFS(OwnServer):
    """An independent server that keeps its data on disk."""

    def __init__(self, directory: Path) -> None:
        ports = _free_ports(4)
        self.s3 = S3(f"http://127.0.0.1:{ports[3]}", "outfall", "outfall-secret")
        names = ("master", "volume", "filer", "s3")
        command = [
            _executable("weed"), "mini", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false",
            "-admin.ui=false", *(f"-{name}.port={port}" for name, port in zip(names, ports, strict=True)),
        ]  # fmt: skip
        super().__init__(
            command,
            directory / "log",
            lambda: _answers(f"{self.s3.endpoint}/healthz"),
            AWS_ACCESS_KEY_ID=self.s3.key,
            AWS_SECRET_ACCESS_KEY=self.s3.secret,
        )


class Rclone(OwnServer):
    """A store that ignores `If-None-Match`."""

    def __init__(self, directory: Path) -> None:
        (port,) = _free_ports(1)
        self.s3 = S3(f"http://127.0.0.1:{port}", "outfall-key-0123456789", "outfall-secret-0123456789")
        data = directory / "data"
        data.mkdir()
        command = [
            _executable("rclone"), "serve", "s3", "--auth-key", f"{self.s3.key},{self.s3.secret}",
            "--addr", f"127.0.0.1:{port}", str(data),
        ]  # fmt: skip
        super().__init__(command, directory / "log", lambda: listens(port))


@contextmanager
def seaweedfs(directory: Path) -> Iterator[SeaweedFS]:
    server = SeaweedFS(directory)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def rclone(directory: Path) -> Iterator[Rclone]:
    server = Rclone(directory)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _executable(name: str) -> str:
    """The path of what a package of the environment has installed."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, and so are those 10,000 above them, which SeaweedFS takes for gRPC.

    A server that is killed comes back to its ports. So they are none that the kernel gives to clients and to servers
    that ask for any, unless it gives all, and each pytest worker has its own to choose from.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    given = range(low, high + 1)
    ports = range(10_000, 10_000 + _GRPC)
    found = [port for port in ports if port not in given and port + _GRPC not in given] or list(ports)
    found = found[worker::workers]
    random.SystemRandom().shuffle(found)
    free = list(islice((port for port in found if _is_free(port) and _is_free(port + _GRPC)), count))
    assert len(free) == count, f"only {len(free)} ports are free"
    return free


def _is_free(port: int) -> bool:
    with socket.socket() as tried, suppress(OSError):
        tried.bind(("127.0.0.1", port))
        return True
    return False


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


@contextmanager
def s3_server() -> Iterator[S3]:
    given = os.environ.get(ENDPOINT)
    if given:
        yield S3(given, os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3(f"http://{host}:{port}", "outfall", "outfall-secret")
    finally:
        server.stop()

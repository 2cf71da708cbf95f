"""S3 servers: the one that the environment names or moto's, SeaweedFS, and rclone, which ignores `If-None-Match`."""

from __future__ import annotations

import os
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

from tests.integration.support.servers import OwnServer, free_port, free_ports, listens

ENDPOINT = "OUTFALL_TEST_S3_ENDPOINT"
_GRPC = 10_000
"""How far above a port SeaweedFS puts that for gRPC."""
_VOLUMES = 10_000
"""Volumes that SeaweedFS may create. Each bucket takes one, and by default it creates one per gigabyte of free disk."""


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
    """An independent server that keeps its data on disk. It has a REST catalogue for Iceberg, too."""

    table_bucket = "lake"
    """The warehouse of that catalogue."""

    def __init__(self, directory: Path, host: str = "127.0.0.1") -> None:
        ports = dict(
            zip(("master", "volume", "filer", "s3", "s3.port.iceberg"), free_ports(5, also_above=_GRPC), strict=True)
        )
        self.s3 = S3(f"http://{host}:{ports['s3']}", "outfall", "outfall-secret")
        self.catalog = f"http://{host}:{ports['s3.port.iceberg']}"
        command = [
            _executable("weed"), "mini", f"-dir={directory}", f"-ip={host}", f"-ip.bind={host}", "-webdav=false",
            "-admin.ui=false", "-s3.port.lance=0", f"-volume.max={_VOLUMES}", f"-tableBucket={self.table_bucket}",
            *(f"-{name}{'' if '.' in name else '.port'}={port}" for name, port in ports.items()),
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
        port = free_port()
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
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3(f"http://{host}:{port}", "outfall", "outfall-secret")
    finally:
        server.stop()

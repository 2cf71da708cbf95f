"""An S3 server: the one that the environment names, or moto's on a free port."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

ENDPOINT = "OUTFALL_TEST_S3_ENDPOINT"


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

"""A prefix in a bucket, and what lies below it as another client sees it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3

from outfall.s3 import S3Sink
from outfall.testing import LocalDriver
from outfall.trace_points import listen
from tests.integration.support.s3 import S3


@dataclass(frozen=True)
class Session:
    """A picklable `session_factory`."""

    key: str
    secret: str

    def __call__(self) -> Any:
        return boto3.session.Session(
            aws_access_key_id=self.key, aws_secret_access_key=self.secret, region_name="us-east-1"
        )


class Target:
    """One prefix, in a bucket of its own unless one is given."""

    def __init__(self, server: S3, bucket: str = "", prefix: str = "out") -> None:
        self.server = server
        self.prefix = prefix
        self.bucket = bucket or f"outfall-{uuid.uuid4().hex}"
        if not bucket:
            self.client.create_bucket(Bucket=self.bucket)

    @cached_property
    def client(self) -> Any:
        return self.server.client()

    @property
    def root(self) -> str:
        return f"{self.prefix}/" if self.prefix else ""

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def sink(self, **options: Any) -> S3Sink:
        given: dict[str, Any] = {
            "endpoint_url": self.server.endpoint,
            "path_style": True,
            "retry_deadline": "5 seconds",
            "session_factory": Session(self.server.key, self.server.secret),
        }
        return S3Sink(self.bucket, self.prefix, **(given | options))

    def objects(self) -> dict[str, bytes]:
        """Everything, sidecar included, by the keys below the prefix."""
        return self.server.objects(self.bucket, self.root)

    def data(self) -> dict[str, bytes]:
        """What readers see."""
        return {key: body for key, body in self.objects().items() if not key.startswith("_outfall/")}

    def rows(self) -> list[Any]:
        return [json.loads(line) for body in self.data().values() for line in body.splitlines()]

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())

    def uploads(self) -> list[Mapping[str, Any]]:
        """Uploads that are not completed."""
        pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=self.root)
        return [upload for page in pages for upload in page.get("Uploads", [])]

    def abort_all(self) -> None:
        """Take all uploads away, as a lifecycle rule does."""
        for upload in self.uploads():
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def delete_all(self) -> None:
        for key in self.objects():
            self.client.delete_object(Bucket=self.bucket, Key=self.root + key)


@contextmanager
def credentials_file(server: S3) -> Iterator[None]:
    """Have every process of the Spark session find the server's credentials, those that plan among them."""
    path = Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"])
    path.write_text(f"[default]\naws_access_key_id = {server.key}\naws_secret_access_key = {server.secret}\n")
    try:
        yield
    finally:
        path.unlink()


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call a listener at every step that is reached within the block."""
    with ExitStack() as stack:
        stack.callback(listen(listener))
        yield


def run(sink: S3Sink, recovery: str, epoch: int, *tasks: Sequence[Any]) -> Any:
    """Run one epoch by a driver of its own, as after a restart."""
    return LocalDriver(sink, recovery).run_epoch(epoch, tasks)


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in ids]

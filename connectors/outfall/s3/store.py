"""The requests of a sink, with the arguments of its options and with retries after transient errors.

There is one boto3 client per process and set of options. It is shared by all threads and never pickled.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from pydantic import SecretStr

from outfall.contexts import Metrics
from outfall.options import resolve_secret
from outfall.process_clients import ProcessClients, hide_secrets
from outfall.retry_log import Retry, RetryLog
from outfall.retry_loop import retried
from outfall.s3.errors import FAILURES, PASSING, FailureKind, asked, classify, describe, metadata, translated, unusable
from outfall.s3.options import S3Connection, S3Options

T = TypeVar("T")

_retries = RetryLog(logging.getLogger(__name__))
_LONGEST_PAUSE = 15.0
_NAME = "outfall-name"
"""The metadata key with the name of a small object, which identifies the object in a response."""

SessionFactory = Callable[[], Any]
"""Returns a `boto3.session.Session`. Picklable, so that tasks can call it too."""

_TRIES = 1
"""boto3 does not retry, so that Outfall can log and count every retry. It still slows down while S3 throttles."""


@dataclass(frozen=True)
class S3Access:
    """The access of a process to S3. Has no client; picklable."""

    options: S3Connection
    connections: int = 10
    sse_customer_key: SecretStr | None = None
    """A secret of requests, which is removed from messages."""
    # Factories are compared but not hashed, because a data class with `__call__` has no hash.
    session_factory: SessionFactory | None = field(default=None, hash=False)

    def client(self) -> Any:
        """Return this process's client. Credentials come from `session_factory` or from boto3's own chain."""
        return _clients.get(self)

    def renew(self, client: Any) -> None:
        """Drop a client, so that the next call of `client` creates one with new credentials."""
        _clients.drop(self, client)

    def make(self) -> Any:
        """Create a new client."""
        session = boto3.session.Session() if self.session_factory is None else self.session_factory()
        options = self.options
        config = Config(
            connect_timeout=options.connect_timeout.total_seconds(),
            read_timeout=options.read_timeout.total_seconds(),
            max_pool_connections=self.connections,
            retries={"mode": "adaptive", "total_max_attempts": _TRIES},
            s3={"addressing_style": "path" if options.path_style else "auto"},
        )
        client = session.client("s3", endpoint_url=options.endpoint_url, region_name=options.region, config=config)
        hide_secrets(client, [] if self.sse_customer_key is None else [resolve_secret(self.sse_customer_key)])
        return client


_clients = ProcessClients[S3Access](environment="AWS_")


@dataclass(frozen=True)
class VersionedContent:
    """The content of a small object, and its version."""

    body: bytes
    etag: str


@dataclass(frozen=True)
class Store:
    """A bucket with the options of a sink. The driver and each task create their own store. Has no client."""

    options: S3Options
    session_factory: SessionFactory | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set to stop all retries."""
    metrics: Metrics | None = None
    """The counters for retries."""

    @property
    def access(self) -> S3Access:
        """The access to the bucket."""
        # One more than the parallel uploads, for other requests at the same time.
        connections = self.options.max_concurrency + 1
        connection = S3Connection.of(self.options)
        return S3Access(connection, connections, self.options.sse_customer_key, self.session_factory)

    def ask(self, request: str, **arguments: Any) -> Mapping[str, Any]:
        """Send one request, and return its response if it is complete and belongs to the request.

        `arguments` are those other than the bucket and those of the options. Raises the errors of `errors.asked`. After
        expired credentials, the next request uses new ones.
        """
        client = self.access.client()
        sent = {"Bucket": self.options.bucket, **self._added(request), **arguments}
        try:
            return asked(lambda: getattr(client, request)(**sent), request, sent)
        except FAILURES as error:
            if classify(error) is FailureKind.EXPIRED:
                self.access.renew(client)
            raise

    def call(self, doing: str, request: str, **arguments: Any) -> Mapping[str, Any]:
        """Send a repeatable request, with retries after transient errors until `retry_deadline`.

        `doing` is the operation for messages, for example `"uploading a part of s3://bucket/key"`; `arguments` are as
        for `ask`. Raises `TransientError` if the deadline has passed, `TargetError` if the user must act, and
        `ClientError` for a response that the caller must handle: TAKEN, GONE, INCOMPLETE.
        """
        return self.again(doing, lambda: self.ask(request, **arguments))

    def demand(self, doing: str, request: str, **arguments: Any) -> Mapping[str, Any]:
        """Send a request like `call`, for which every error is a failure: `TransientError` or `TargetError`."""
        try:
            return self.call(doing, request, **arguments)
        except FAILURES as error:
            raise translated(doing, error) from error

    def abort_upload(self, doing: str, key: str, upload_id: str) -> None:
        """Abort an upload. A missing upload is not an error. Raises like `demand`."""
        try:
            self.call(doing, "abort_multipart_upload", Key=key, UploadId=upload_id)
        except FAILURES as error:
            if classify(error) is not FailureKind.GONE:
                raise translated(doing, error) from error

    def again(self, doing: str, what: Callable[[], T]) -> T:
        """Run a repeatable function with the retries of `call`. Raises like `call`."""
        started = time.monotonic()
        try:
            return retried(
                what,
                passes=lambda error: not self.stopped.is_set() and _passes(error),
                deadline=self.options.retry_deadline.total_seconds(),
                longest_wait=_LONGEST_PAUSE,
                log=_retries,
                describe=lambda error: self._counted(doing, error),
                sleep=self.stopped.wait,
            )
        except FAILURES as error:
            if classify(error) in PASSING or classify(error) is FailureKind.REFUSED:
                raise translated(doing, error, time.monotonic() - started) from error
            raise

    def _counted(self, doing: str, error: BaseException) -> Retry:
        if self.metrics is not None:
            self.metrics.add("retries")
        return Retry(self.options.url(), doing, describe(error))

    def get(self, key: str) -> bytes | None:
        """Return a small object's content; `None` if there is none. Raises like `read`."""
        found = self.read(key)
        return None if found is None else found.body

    def read(self, key: str) -> VersionedContent | None:
        """Return a small object's content with its ETag; `None` if there is none. Raises the errors of `demand`."""

        def read() -> VersionedContent:
            answer = self.ask("get_object", Key=key)
            # The response arrives before its body, and the connection may break in between.
            body: bytes = answer["Body"].read()
            name = metadata(answer).get(_NAME)
            if len(body) != answer.get("ContentLength", len(body)):
                raise unusable("get_object", f"it has {len(body)} bytes of {answer['ContentLength']}")
            # Only the end, because a copy of a prefix also copies the metadata of its objects.
            if name is not None and not key.endswith(name):
                raise unusable("get_object", f"it belongs to another request: {name} was read")
            return VersionedContent(body, answer["ETag"])

        doing = f"reading {self.url(key)}"
        try:
            return self.again(doing, read)
        except FAILURES as error:
            if classify(error) is FailureKind.GONE:
                return None
            raise translated(doing, error) from error

    def put(self, key: str, body: bytes, **arguments: Any) -> None:
        """Write a small object of the sink, with its name in the metadata.

        Raises the errors of `call`; `ClientError` only for a conditional request: TAKEN or GONE.
        """
        named = {"Metadata": {_NAME: key.removeprefix(self.options.root)}}
        doing = f"writing {self.url(key)}"
        try:
            self.call(doing, "put_object", Key=key, Body=body, **named, **arguments)
        except FAILURES as error:
            if classify(error) in (FailureKind.TAKEN, FailureKind.GONE):
                raise
            raise translated(doing, error) from error

    def keys(self, prefix: str, *, after: str = "", most: int = 1000) -> Iterator[str]:
        """Yield the keys with a prefix that sort after another key, by UTF-8 bytes. Raises the errors of `demand`."""
        given: dict[str, Any] = {"Prefix": prefix, "MaxKeys": most} | ({"StartAfter": after} if after else {})
        while True:
            page = self.demand(f"listing {self.url(prefix)}", "list_objects_v2", **given)
            yield from (found["Key"] for found in page.get("Contents", []))
            if not page.get("IsTruncated"):
                return
            given["ContinuationToken"] = page["NextContinuationToken"]

    def url(self, key: str) -> str:
        """Return a key as a URL, for messages."""
        return f"s3://{self.options.bucket}/{key}"

    def _added(self, request: str) -> dict[str, Any]:
        """Return the arguments that the options add to a request."""
        added = {name: value for name in _TAKES.get(request, ()) for name, value in self._argument(name).items()}
        pays = self.options.requester_pays and request not in _OF_THE_BUCKET
        return added | ({"RequestPayer": "requester"} if pays else {})

    def _argument(self, name: str) -> dict[str, Any]:
        options = self.options
        if name.endswith("customer key"):
            key = options.customer_key()
            return {} if key is None else _customer(key, "CopySource" if name.startswith("source's") else "")
        values = {
            "ACL": options.acl,
            "ServerSideEncryption": options.sse,
            "SSEKMSKeyId": options.sse_kms_key_id,
            "ChecksumAlgorithm": options.checksum,
        }
        return {name: values[name]} if values[name] else {}

    def data(self) -> dict[str, str]:
        """Return the arguments that the options add when data is created, but not for the sink's small objects."""
        found = {"StorageClass": self.options.storage_class, "Tagging": self.options.tags}
        return {name: value for name, value in found.items() if value}


def _passes(error: BaseException) -> bool:
    return isinstance(error, FAILURES) and classify(error) in PASSING


def _customer(key: bytes, of: str) -> dict[str, str]:
    """Return the arguments of SSE-C, encoded here because boto3 encodes them only for some requests."""
    digest = hashlib.md5(key, usedforsecurity=False).digest()
    return {
        f"{of}SSECustomerAlgorithm": "AES256",
        f"{of}SSECustomerKey": base64.b64encode(key).decode(),
        f"{of}SSECustomerKeyMD5": base64.b64encode(digest).decode(),
    }


_OF_THE_BUCKET = ("get_bucket_versioning",)
"""Requests that only the bucket owner pays for."""
_CREATES = ("ACL", "ServerSideEncryption", "SSEKMSKeyId", "customer key", "ChecksumAlgorithm")
_TAKES = {
    "create_multipart_upload": _CREATES,
    "put_object": _CREATES,
    "upload_part": ("customer key", "ChecksumAlgorithm"),
    "upload_part_copy": ("customer key", "source's customer key"),
    "complete_multipart_upload": ("customer key",),
    "list_parts": ("customer key",),
    "head_object": ("customer key",),
    "get_object": ("customer key",),
}

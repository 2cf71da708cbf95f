"""The requests that a sink makes, with what its options add to each; made again while errors may pass.

boto3's clients are one per process and set of options, shared by its threads, and never pickled.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from pydantic import SecretStr
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
)
from tenacity import wait_random_exponential as wait

from outfall.contexts import Metrics
from outfall.options import resolve_secret
from outfall.process_clients import ProcessClients, hide_secrets
from outfall.retry_log import RetryLog
from outfall.s3.errors import FAILURES, PASSING, FailureKind, asked, classify, describe, metadata, translated, unusable
from outfall.s3.options import S3Options

T = TypeVar("T")

_retries = RetryLog(logging.getLogger(__name__))
_LONGEST_PAUSE = 15.0
_NAME = "outfall-name"
"""The metadata by which a small object of ours says what it is, so that no other one is taken for it."""

SessionFactory = Callable[[], Any]
"""Makes a `boto3.session.Session`. Picklable, so that tasks can call it too."""

_TRIES = 1
"""Only ours are made again, so that each is seen. boto3 slows a client down all the same when S3 throttles it."""


@dataclass(frozen=True)
class S3Access:
    """How a process reaches S3. Holds no client; picklable."""

    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool = False
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    connections: int = 10
    sse_customer_key: SecretStr | None = None
    """What requests carry, that no text may show."""
    # Whether two are one is asked of them, but no hash: a data class with `__call__` has none.
    session_factory: SessionFactory | None = field(default=None, hash=False)

    def client(self) -> Any:
        """Return this process's client. Credentials come from `session_factory`, else from boto3's own chain."""
        return _clients.get(self)

    def renew(self, client: Any) -> None:
        """Have the next call of `client` make a new one, with new credentials, unless that has happened already."""
        _clients.drop(self, client)

    def make(self) -> Any:
        """Make a client of its own."""
        session = boto3.session.Session() if self.session_factory is None else self.session_factory()
        config = Config(
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            max_pool_connections=self.connections,
            retries={"mode": "adaptive", "total_max_attempts": _TRIES},
            s3={"addressing_style": "path" if self.path_style else "auto"},
        )
        client = session.client("s3", endpoint_url=self.endpoint_url, region_name=self.region, config=config)
        hide_secrets(client, [] if self.sse_customer_key is None else [resolve_secret(self.sse_customer_key)])
        return client


_clients = ProcessClients[S3Access]()


@dataclass(frozen=True)
class VersionedContent:
    """What is in a small object, and which version of it that is."""

    body: bytes
    etag: str


@dataclass(frozen=True)
class Store:
    """A bucket, seen through a sink's options. Made anew on the driver and in each task; holds no client."""

    options: S3Options
    session_factory: SessionFactory | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set by whoever gives up: then nothing is tried again."""
    metrics: Metrics | None = None
    """Where requests that are made again are counted."""

    @property
    def access(self) -> S3Access:
        """How it is reached."""
        options = self.options
        return S3Access(
            endpoint_url=options.endpoint_url,
            region=options.region,
            path_style=options.path_style,
            connect_timeout=options.connect_timeout.total_seconds(),
            read_timeout=options.read_timeout.total_seconds(),
            # One more than works at once, for whoever asks for something else meanwhile.
            connections=options.max_concurrency + 1,
            sse_customer_key=options.sse_customer_key,
            session_factory=self.session_factory,
        )

    def ask(self, request: str, **arguments: Any) -> Mapping[str, Any]:
        """Make one request, and return its response if that is whole and belongs to it.

        Args:
            request: a method of boto3's client, as `"head_object"`.
            arguments: beside the bucket and what the options add.

        Raises:
            ClientError, BotoCoreError, ResponseParserError: see `errors.asked`. After expired credentials the next
                request has new ones.
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
        """Make a request that may be repeated, again after errors that may pass, until `retry_deadline`.

        Args:
            doing: for texts, as `"uploading a part of s3://bucket/key"`.
            request: a method of boto3's client.
            arguments: beside the bucket and what the options add.

        Raises:
            TransientError: the deadline has passed.
            TargetError: somebody has to act.
            ClientError: an answer that says something: TAKEN, GONE, INCOMPLETE.
        """
        return self.again(doing, lambda: self.ask(request, **arguments))

    def demand(self, doing: str, request: str, **arguments: Any) -> Mapping[str, Any]:
        """Make a request as `call` does, where no answer but that it was done says anything.

        Raises:
            TransientError, TargetError: see `call`.
        """
        try:
            return self.call(doing, request, **arguments)
        except FAILURES as error:
            raise translated(doing, error) from error

    def abort_upload(self, doing: str, key: str, upload_id: str) -> None:
        """Abort an upload; one that is gone already is as good. Errors are those of `demand`."""
        try:
            self.call(doing, "abort_multipart_upload", Key=key, UploadId=upload_id)
        except FAILURES as error:
            if classify(error) is not FailureKind.GONE:
                raise translated(doing, error) from error

    def again(self, doing: str, what: Callable[[], T]) -> T:
        """Do what may be repeated, as `call` makes a request. Raises as it does."""
        retrying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, FAILURES) and classify(error) in PASSING),
            stop=stop_after_delay(self.options.retry_deadline.total_seconds()) | stop_when_event_set(self.stopped),
            wait=wait(multiplier=0.2, max=_LONGEST_PAUSE),
            sleep=sleep_using_event(self.stopped),
            before_sleep=lambda state: self._warn(doing, state),
            reraise=True,
        )
        try:
            return retrying(what)
        except FAILURES as error:
            if classify(error) in PASSING or classify(error) is FailureKind.REFUSED:
                raise translated(doing, error) from error
            raise

    def _warn(self, doing: str, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if self.metrics is not None:
            self.metrics.add("retries")
        _retries.retry(
            self.options.url(),
            doing,
            attempt=state.attempt_number,
            reason="" if error is None else describe(error),
            left=self.options.retry_deadline.total_seconds() - (state.seconds_since_start or 0.0),
        )

    def get(self, key: str) -> bytes | None:
        """Return a small object's content, `None` when there is none. Errors are those of `read`."""
        found = self.read(key)
        return None if found is None else found.body

    def read(self, key: str) -> VersionedContent | None:
        """Return a small object's content with its ETag, `None` when there is none.

        Raises:
            TransientError, TargetError: see `call`.
        """

        def read() -> VersionedContent:
            answer = self.ask("get_object", Key=key)
            # The answer comes before its body, and the connection may break in between.
            body: bytes = answer["Body"].read()
            name = metadata(answer).get(_NAME)
            if len(body) != answer.get("ContentLength", len(body)):
                raise unusable("get_object", f"it has {len(body)} bytes of {answer['ContentLength']}")
            # Who copies a prefix to another one copies what its objects say.
            if name is not None and not key.endswith(name):
                raise unusable("get_object", f"it is of another request: {name} was read")
            return VersionedContent(body, answer["ETag"])

        doing = f"reading {self.url(key)}"
        try:
            return self.again(doing, read)
        except FAILURES as error:
            if classify(error) is FailureKind.GONE:
                return None
            raise translated(doing, error) from error

    def put(self, key: str, body: bytes, **arguments: Any) -> None:
        """Write a small object of our own, which then says what it is.

        Raises:
            TransientError, TargetError: see `call`.
            ClientError: TAKEN or GONE, where it is written under a condition.
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
        """Yield the keys that begin with a prefix and come after another key, in the order of their UTF-8 bytes.

        Raises:
            TransientError, TargetError: see `call`.
        """
        given: dict[str, Any] = {"Prefix": prefix, "MaxKeys": most} | ({"StartAfter": after} if after else {})
        while True:
            page = self.demand(f"listing {self.url(prefix)}", "list_objects_v2", **given)
            yield from (found["Key"] for found in page.get("Contents", []))
            if not page.get("IsTruncated"):
                return
            given["ContinuationToken"] = page["NextContinuationToken"]

    def url(self, key: str) -> str:
        """Return a key as a URL, for texts."""
        return f"s3://{self.options.bucket}/{key}"

    def _added(self, request: str) -> dict[str, Any]:
        """What the options add to a request."""
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
        """Return what the options add to the creation of data, and not to that of our own small objects."""
        found = {"StorageClass": self.options.storage_class, "Tagging": self.options.tags}
        return {name: value for name, value in found.items() if value}


def _customer(key: bytes, of: str) -> dict[str, str]:
    """The arguments of SSE-C, encoded here since boto3 does it for some requests only."""
    digest = hashlib.md5(key, usedforsecurity=False).digest()
    return {
        f"{of}SSECustomerAlgorithm": "AES256",
        f"{of}SSECustomerKey": base64.b64encode(key).decode(),
        f"{of}SSECustomerKeyMD5": base64.b64encode(digest).decode(),
    }


_OF_THE_BUCKET = ("get_bucket_versioning",)
"""Requests that only its owner pays for."""
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

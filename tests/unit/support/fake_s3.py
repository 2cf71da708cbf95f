"""S3 in memory, as its API Reference describes it, with faults: before a request is carried out or after."""

from __future__ import annotations

import hashlib
import io
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

from outfall.s3 import S3Sink
from outfall.s3.record import ObjectRecord
from outfall.testing import ByReference

BUCKET = "bkt"
CRC = "AAAAAA=="
OURS = "00000000000000aa"
"""An incarnation."""


def answer(status: int, code: str, message: str = "") -> ClientError:
    """An error as boto3 raises it."""
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "Request")


def timed_out() -> ReadTimeoutError:
    return ReadTimeoutError(endpoint_url="https://s3.example")


@dataclass
class Object:
    body: bytes
    etag: str
    metadata: dict[str, str]
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Upload:
    key: str
    metadata: dict[str, str]
    arguments: dict[str, Any]
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Fault:
    request: str
    error: Exception
    times: int
    after: bool
    key: str


class FakeS3(ByReference):
    """A bucket, and the session and client that reach it: a sink takes it as its `session_factory`."""

    def __init__(
        self, *, page: int = 1000, conditional: bool = True, metadata: bool = True, smallest: int = 5 << 20
    ) -> None:
        self.objects: dict[str, Object] = {}
        self.uploads: dict[str, Upload] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.sessions = 0
        self.most_at_once = 0
        self.versioning = ""
        """The status of versioning, which is only told."""
        self.during: Callable[[str], None] = lambda request: None
        """Called while a request is under way."""
        self.knows_conditions = True
        """Without it a request that holds `If-None-Match` is answered with 501."""
        self._page = page
        self._smallest = smallest
        self._conditional = conditional
        self._keeps_metadata = metadata
        self._faults: list[Fault] = []
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._at_once = 0

    def __call__(self) -> FakeS3:
        self.sessions += 1
        return self

    def client(self, service: str, **settings: Any) -> FakeS3:
        assert service == "s3"
        self.settings = settings
        return _Client(self)  # type: ignore[return-value]

    def sink(self, prefix: str = "out", **options: Any) -> S3Sink:
        given: dict[str, Any] = {"inline_bytes": 0, "max_concurrency": 1, "retry_deadline": "5 seconds"}
        return S3Sink(BUCKET, prefix, session_factory=self, **(given | options))

    def fail(self, request: str, error: Exception, *, times: int = 1, after: bool = False, key: str = "") -> None:
        """Have requests fail whose key holds a text; `after` they were carried out."""
        self._faults.append(Fault(request, error, times, after, key))

    def heal(self) -> None:
        """Lift all faults."""
        self._faults.clear()

    def put(self, key: str, body: bytes = b"theirs") -> None:
        """Put an object as somebody else."""
        self.objects[key] = Object(body, _etag(body), {})

    def mark(self, prefix: str = "out", **fields: Any) -> None:
        """Put the record of a step that has opened a prefix."""
        given: dict[str, Any] = {"incarnation": OURS, "step": "sink", "matching": True}
        record = ObjectRecord(**(given | fields))
        self.put(f"{prefix}/_outfall/{record.incarnation}.json", record.body())

    def record(self, incarnation: str = "") -> ObjectRecord:
        """Return the record below the prefix `out`: of an incarnation, or the only one there is."""
        (key,) = (key for key in self.objects if re.fullmatch(f"out/_outfall/{incarnation or '[0-9a-f]+'}.json", key))
        return ObjectRecord.model_validate_json(self.objects[key].body)

    def data(self) -> dict[str, bytes]:
        return {key: found.body for key, found in sorted(self.objects.items()) if "_outfall/" not in key}

    def pieces(self) -> dict[str, int]:
        """The sizes of the pieces of objects to be, by their names."""
        return {
            key.partition("_outfall/pieces/")[2]: len(found.body)
            for key, found in sorted(self.objects.items())
            if "_outfall/pieces/" in key
        }

    def requests(self, name: str) -> list[dict[str, Any]]:
        return [arguments for request, arguments in self.calls if request == name]

    # --- requests

    def request(self, name: str, arguments: dict[str, Any]) -> Any:
        with self._lock:
            self.calls.append((name, arguments))
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            self.during(name)
            self._befall(name, arguments, after=False)
            assert arguments["Bucket"] == BUCKET
            with self._lock:
                result = getattr(self, f"_{name}")(**{key: arguments[key] for key in arguments if key != "Bucket"})
            self._befall(name, arguments, after=True)
        finally:
            with self._lock:
                self._at_once -= 1
        return result

    def _befall(self, name: str, arguments: dict[str, Any], *, after: bool) -> None:
        with self._lock:
            for fault in self._faults:
                hit = (fault.request, fault.after) == (name, after) and fault.key in arguments.get("Key", "")
                if hit and fault.times:
                    fault.times -= 1
                    raise fault.error

    def _put_object(
        self, *, Key: str, Body: bytes, Metadata: Any = None, IfNoneMatch: str = "", IfMatch: str = "", **rest: Any  # noqa: N803
    ) -> Any:  # fmt: skip
        self._refuse_taken(Key, IfNoneMatch)
        self._refuse_other(Key, IfMatch)
        self.objects[Key] = Object(bytes(Body), _etag(Body), self._kept(Metadata), rest)
        return {"ETag": _etag(Body)}

    def _get_object(self, *, Key: str, **rest: Any) -> Any:  # noqa: N803
        found = self._found(Key, "NoSuchKey")
        first, _, last = rest.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        body = found.body[int(first) : int(last or len(found.body)) + 1]
        return {
            "Body": io.BytesIO(body), "ContentLength": len(body), "ETag": found.etag, "Metadata": found.metadata,
            "ContentRange": f"bytes {first}-{last}/{len(found.body)}",
        }  # fmt: skip

    def _head_object(self, *, Key: str, **rest: Any) -> Any:  # noqa: N803
        found = self._found(Key, "404")
        return {"ContentLength": len(found.body), "ETag": found.etag, "Metadata": found.metadata}

    def _delete_object(self, *, Key: str, **rest: Any) -> Any:  # noqa: N803
        self.objects.pop(Key, None)
        return {}

    def _delete_objects(self, *, Delete: Any, **rest: Any) -> Any:  # noqa: N803
        for each in Delete["Objects"]:
            self.objects.pop(each["Key"], None)
        return {"Deleted": Delete["Objects"]}

    def _list_objects_v2(
        self, *, Prefix: str, MaxKeys: int = 1000, StartAfter: str = "", ContinuationToken: str = "", **rest: Any  # noqa: N803
    ) -> Any:  # fmt: skip
        after = ContinuationToken or StartAfter
        found = sorted(key for key in self.objects if key.startswith(Prefix) and key > after)
        page = found[: min(MaxKeys, self._page)]
        more: dict[str, Any] = {"Name": BUCKET, "Prefix": Prefix, "KeyCount": len(page), "IsTruncated": False}
        if len(page) < len(found):
            more |= {"IsTruncated": True, "NextContinuationToken": page[-1]}
        return {"Contents": [{"Key": key} for key in page], **more}

    def _create_multipart_upload(self, *, Key: str, Metadata: Any = None, **rest: Any) -> Any:  # noqa: N803
        upload_id = f"upload-{next(self._numbers):05d}"
        self.uploads[upload_id] = Upload(Key, self._kept(Metadata), rest)
        return {"Key": Key, "UploadId": upload_id}

    def _upload_part(self, *, Key: str, UploadId: str, PartNumber: int, Body: bytes, **rest: Any) -> Any:  # noqa: N803
        assert 1 <= PartNumber <= 10_000
        self._upload(Key, UploadId).parts[PartNumber] = bytes(Body)
        return {"ETag": _etag(Body), "ChecksumCRC32": CRC, "ServerSideEncryption": "AES256"}

    def _upload_part_copy(
        self, *, Key: str, UploadId: str, PartNumber: int, CopySource: Any, **rest: Any  # noqa: N803
    ) -> Any:  # fmt: skip
        assert CopySource["Bucket"] == BUCKET
        body = self._found(CopySource["Key"], "NoSuchKey").body
        part = self._upload_part(Key=Key, UploadId=UploadId, PartNumber=PartNumber, Body=body)
        return {"CopyPartResult": {"ETag": part["ETag"], "ChecksumCRC32": CRC}, "ServerSideEncryption": "AES256"}

    def _get_bucket_versioning(self) -> Any:
        return {"Status": self.versioning} if self.versioning else {}

    def _list_parts(self, *, Key: str, UploadId: str, **rest: Any) -> Any:  # noqa: N803
        parts = [{"PartNumber": number} for number in self._upload(Key, UploadId).parts]
        return {"Key": Key, "UploadId": UploadId, "Parts": parts}

    def _abort_multipart_upload(self, *, Key: str, UploadId: str, **rest: Any) -> Any:  # noqa: N803
        self._upload(Key, UploadId)
        del self.uploads[UploadId]
        return {}

    def _complete_multipart_upload(
        self, *, Key: str, UploadId: str, MultipartUpload: Any, IfNoneMatch: str = "", **rest: Any  # noqa: N803
    ) -> Any:  # fmt: skip
        upload = self._upload(Key, UploadId)
        self._refuse_taken(Key, IfNoneMatch)
        parts = MultipartUpload["Parts"]
        for part in parts:
            body = upload.parts.get(part["PartNumber"])
            if body is None or _etag(body) != part["ETag"]:
                raise answer(400, "InvalidPart")
            if len(body) < self._smallest and part is not parts[-1]:
                raise answer(400, "EntityTooSmall")
        bodies = [upload.parts[part["PartNumber"]] for part in parts]
        if rest.get("MpuObjectSize", 0) not in (0, sum(map(len, bodies))):
            raise answer(400, "InvalidRequest")
        digest = hashlib.md5(b"".join(hashlib.md5(body).digest() for body in bodies)).hexdigest()
        self.objects[Key] = Object(b"".join(bodies), f'"{digest}-{len(bodies)}"', upload.metadata, upload.arguments)
        del self.uploads[UploadId]
        return {"Key": Key, "ETag": self.objects[Key].etag}

    def _list_multipart_uploads(
        self, *, Prefix: str, KeyMarker: str = "", UploadIdMarker: str = "", **rest: Any  # noqa: N803
    ) -> Any:  # fmt: skip
        found = sorted((upload.key, upload_id) for upload_id, upload in self.uploads.items())
        found = [each for each in found if each[0].startswith(Prefix) and each > (KeyMarker, UploadIdMarker)]
        page = found[: self._page]
        more: dict[str, Any] = {"Bucket": BUCKET, "IsTruncated": False}
        if len(page) < len(found):
            more |= {"IsTruncated": True, "NextKeyMarker": page[-1][0], "NextUploadIdMarker": page[-1][1]}
        return {"Uploads": [{"Key": key, "UploadId": upload_id} for key, upload_id in page], **more}

    def _found(self, key: str, code: str) -> Object:
        if key not in self.objects:
            raise answer(404, code)
        return self.objects[key]

    def _upload(self, key: str, upload_id: str) -> Upload:
        if upload_id not in self.uploads or self.uploads[upload_id].key != key:
            raise answer(404, "NoSuchUpload")
        return self.uploads[upload_id]

    def _refuse_taken(self, key: str, condition: str) -> None:
        if condition and not self.knows_conditions:
            raise answer(501, "NotImplemented", "A header you provided implies functionality that is not implemented")
        if condition and self._conditional and key in self.objects:
            raise answer(412, "PreconditionFailed")

    def _refuse_other(self, key: str, etag: str) -> None:
        if etag and not self.knows_conditions:
            raise answer(501, "NotImplemented", "A header you provided implies functionality that is not implemented")
        if etag and self._conditional and self._found(key, "NoSuchKey").etag != etag:
            raise answer(412, "PreconditionFailed")

    def _kept(self, metadata: Any) -> dict[str, str]:
        return dict(metadata or {}) if self._keeps_metadata else {}


class _Client:
    """A client of its own for each session, so that tests see which one is asked."""

    def __init__(self, fake: FakeS3) -> None:
        self._fake = fake

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda **arguments: self._fake.request(name, arguments)

    def get_paginator(self, name: str) -> Any:
        return _Paginator(self, name)


class _Paginator:
    def __init__(self, client: _Client, name: str) -> None:
        self._client = client
        self._name = name

    def paginate(self, **arguments: Any) -> Iterator[Any]:
        while True:
            page = getattr(self._client, self._name)(**arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'

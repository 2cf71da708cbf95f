"""The committables of a task: objects whose bytes are durable but not visible yet."""

from __future__ import annotations

import base64
import hashlib
import re

from pydantic import BaseModel, ConfigDict, Field

ID = "outfall-id"
"""The metadata key that identifies an object of this sink."""

_MD5 = re.compile(r"[0-9a-f]{32}")


class UploadedPart(BaseModel):
    """One part of an upload, as S3 has confirmed it."""

    model_config = ConfigDict(frozen=True)

    number: int = Field(ge=1, le=10_000)
    etag: str
    checksum: dict[str, str] = {}
    """Checksums by their names in S3's API, such as `ChecksumCRC32`. S3 requires them to complete the upload."""

    def named(self) -> dict[str, str | int]:
        """Return the part as an argument of `CompleteMultipartUpload`."""
        return {"PartNumber": self.number, "ETag": self.etag, **self.checksum}


class StagedObject(BaseModel):
    """An object before it is published: an upload that is not completed, or its bytes.

    It contains no secret. S3 stores the random `id` in the object's metadata, which identifies the object reliably.
    """

    model_config = ConfigDict(frozen=True)

    bucket: str
    key: str
    id: str
    """The random id of this object."""
    size: int = Field(ge=1)
    """Size in bytes. An upload that lost some of them cannot be completed."""
    rows: int = Field(ge=0)
    upload_id: str | None = None
    """`None` for an object whose bytes are in `content`."""
    parts: tuple[UploadedPart, ...] = ()
    content: str | None = None
    """The bytes in Base64."""

    def __str__(self) -> str:
        how = "inline" if self.upload_id is None else f"upload {self.upload_id}"
        return f"s3://{self.bucket}/{self.key} ({self.rows} rows, {self.size} bytes, {how})"

    __repr__ = __str__  # without the content, because rows must not appear in messages

    @property
    def body(self) -> bytes:
        """The bytes of an object without an upload."""
        return base64.b64decode(self.content or "")

    def etag(self) -> str | None:
        """Return the ETag that the object will have; `None` if it does not depend on the contents.

        S3 User Guide, "Checking object integrity": for an upload, the MD5 of its parts' MD5s, unless KMS encrypts them.
        """
        if self.upload_id is None:
            return hashlib.md5(self.body, usedforsecurity=False).hexdigest()
        found = [part.etag.strip('"') for part in self.parts]
        if not all(map(_MD5.fullmatch, found)):
            return None
        whole = hashlib.md5(b"".join(map(bytes.fromhex, found)), usedforsecurity=False).hexdigest()
        return f"{whole}-{len(found)}"


def encoded(content: bytes) -> str:
    """Return bytes as `StagedObject.content`."""
    return base64.b64encode(content).decode()

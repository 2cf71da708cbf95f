"""The options of `S3Sink`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlencode

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator

from outfall.connections import ConnectionOptions, ConnectionSettings
from outfall.errors import ConfigurationError
from outfall.existing import OnExistingFiles
from outfall.formats import FormatArguments
from outfall.formats.partition_paths import PartitionArguments
from outfall.options import Duration, SinkOptions, parse_endpoint, resolve_secret
from outfall.s3.location import bucket_and_prefix
from outfall.storage.options import StorageOptions
from outfall.storage.rolling import RollBounds
from outfall.unencrypted_secrets import Sent, UnencryptedSecrets, UnencryptedSecretsSettings, given

SMALLEST_PART = 5 << 20
LARGEST_PART = 5 << 30
LARGEST_INLINE = 1 << 20
_NEED_CRT = ("CRC32C", "CRC64NVME")
_MOST_PARTS = 8_000
"""Parts of an object that gathers rows. Fewer than S3 allows, because the bytes of the last epoch are added."""
_MOST_BYTES = 2 << 40


class RollOptions(SinkOptions):
    """The bounds at which an object that gathers the rows of several epochs is composed."""

    roll_bytes: ByteSize | None = Field(
        default=None,
        ge=1,
        description="Gather the rows of several epochs and publish them as one object of at least this size: bytes, or"
        " a string such as `128 MiB`. Compressed bytes count. An object may exceed the size by one Arrow batch. The"
        " size of a Parquet file is estimated. Any size is allowed, also below `part_bytes`. Requires `workers=`.",
    )
    roll_interval: Duration | None = Field(
        default=None,
        description="The age of the oldest gathered row at which the object is published: seconds, or a string such as"
        " `1 hour`. It is checked while epochs run. Required with `directory_pattern`. Also set it with `partition_by`"
        " if values stop recurring, because their last rows would wait forever.",
    )
    roll_rows: int | None = Field(
        default=None,
        ge=1,
        description="The number of gathered rows at which the object is published. No object has more rows.",
    )

    @property
    def rolls(self) -> bool:
        """Whether rows are buffered across epochs."""
        return not (self.roll_bytes is None and self.roll_interval is None and self.roll_rows is None)


class _Place(SinkOptions):
    """Where objects go. A separate base class, so that these options come first in the documentation."""

    bucket: str = Field(default="", description="The bucket, or the ARN of an access point. It must exist.")
    prefix: str = Field(
        default="",
        description="The prefix of the keys, with `/` between levels. It is used literally, including `%20`, `#` and"
        " `?`. Empty levels, `.` and `..` are rejected.",
    )
    path: str | None = Field(
        default=None,
        description="Bucket and prefix as a URL: `s3://bucket/prefix` or `s3a://…`. Use `bucket` and `prefix` instead"
        " if the prefix contains `#` or `?`, or if the bucket is an ARN.",
    )
    on_existing: OnExistingFiles = Field(
        default="error",
        description="What to do if the prefix holds objects on the first run: `error` rejects it, `resume` keeps the"
        " objects and writes next to them, `overwrite` deletes them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_place(cls, values: Any) -> Any:
        """Resolve `path` into bucket and prefix, before any field is validated by itself."""
        if not isinstance(values, Mapping):
            return values
        found = dict(values)
        given = (found.get(name) for name in ("path", "bucket", "prefix"))
        found["bucket"], found["prefix"] = bucket_and_prefix(*given)
        return found | {"path": None}

    @property
    def root(self) -> str:
        """The prefix of every key, including the `/`."""
        return f"{self.prefix}/" if self.prefix else ""

    def url(self) -> str:
        """Return bucket and prefix as a URL."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


class _Upload(SinkOptions):
    """How objects are uploaded."""

    part_bytes: ByteSize = Field(
        default=ByteSize(8 << 20),
        ge=SMALLEST_PART,
        le=LARGEST_PART,
        description="The size of the parts of an upload, 5 MiB to 5 GiB.",
    )
    max_concurrency: int = Field(
        default=8,
        ge=1,
        le=256,
        description="The number of parts that a task uploads in parallel, and of objects that the driver completes in"
        " parallel.",
    )
    inline_bytes: ByteSize = Field(
        default=ByteSize(64 << 10),
        ge=0,
        le=LARGEST_INLINE,
        description="The total size of small objects that a task returns to the driver. The driver puts each of them in"
        " one request instead of the three of an upload. Until then they are in the recovery log. `0` keeps rows out"
        " of the log.",
    )
    checksum: Literal["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"] | None = Field(
        default=None,
        description="The checksum with which each part is sent and stored. Default: boto3's.",
    )
    sse: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = Field(
        default=None, description="The server-side encryption. Default: the setting of the bucket."
    )
    sse_kms_key_id: str | None = Field(default=None, description="The id or ARN of the KMS key, for `aws:kms`.")
    sse_customer_key: SecretStr | None = Field(
        default=None,
        description="A customer-provided key (SSE-C): 32 bytes in Base64. Accepts `env:NAME` and `file:PATH`. Readers"
        " need the key for data and manifests.",
    )
    acl: (
        Literal[
            "private", "public-read", "public-read-write", "authenticated-read", "aws-exec-read", "bucket-owner-read",
            "bucket-owner-full-control",
        ]
        | None
    ) = Field(default=None, description="A canned ACL for each object.")  # fmt: skip
    storage_class: str | None = Field(
        default=None,
        min_length=1,
        description="The storage class of data objects, for example `STANDARD_IA` or `INTELLIGENT_TIERING`.",
    )
    tags: str = Field(default="", description="At most ten tags of data objects, for example `team=air&cost=42`.")

    @field_validator("tags", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = dict(parse_qsl(value, keep_blank_values=True, strict_parsing=bool(value)))
            except ValueError:
                raise ValueError("must be written as name=value&name=value") from None
        if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
            raise ValueError("must be a mapping of names to values")
        if len(value) > 10:
            raise ValueError(f"has {len(value)} tags, but S3 allows ten")
        return urlencode(value)

    @field_validator("checksum")
    @classmethod
    def _can_be_computed(cls, value: str | None) -> str | None:
        if value in _NEED_CRT and find_spec("awscrt") is None:
            raise ValueError(f"boto3 needs awscrt for {value}, which is not installed: pip install 'boto3[crt]'")
        return value

    @model_validator(mode="after")
    def _one_encryption(self) -> Self:
        if self.sse_customer_key is not None and self.sse is not None:
            raise ValueError("sse_customer_key replaces sse: leave sse out")
        if self.sse_kms_key_id is not None and self.sse not in ("aws:kms", "aws:kms:dsse"):
            raise ValueError("sse_kms_key_id requires sse aws:kms or aws:kms:dsse")
        return self

    def customer_key(self) -> bytes | None:
        """Return the SSE-C key. Call it where the key is used.

        Raises:
            ConfigurationError: the key is not 32 bytes in Base64, or was not found.
        """
        if self.sse_customer_key is None:
            return None
        try:
            key = base64.b64decode(resolve_secret(self.sse_customer_key), validate=True)
        except binascii.Error:
            key = b""
        if len(key) != 32:
            raise ConfigurationError(
                "sse_customer_key is not 32 bytes in Base64", do="create one with openssl rand -base64 32"
            )
        return key


class S3Connection(ConnectionOptions):
    """The options of a connection to S3 or another store."""

    region: str | None = Field(default=None, description="The region. Default: the one that boto3 finds.")
    endpoint_url: str | None = Field(
        default=None,
        description="The endpoint of a store other than AWS. Default: the one that boto3 finds, for example in"
        " `AWS_ENDPOINT_URL`, else AWS.",
    )
    path_style: bool = Field(
        default=False,
        description="Whether the bucket is in the path instead of the host name, as some other stores require.",
    )
    read_timeout: Duration = Field(
        default=timedelta(minutes=1), description="The timeout for receiving the next bytes of a response."
    )

    _address = field_validator("endpoint_url")(parse_endpoint)


class S3Options(UnencryptedSecrets, StorageOptions, RollOptions, _Upload, S3Connection, _Place):
    """The options of `S3Sink`, in its constructor and as Spark options."""

    requester_pays: bool = Field(
        default=False, description="Whether this account pays for requests instead of the bucket owner."
    )
    retry_deadline: Duration = Field(
        default=timedelta(minutes=5),
        description="How long a request is retried after transient errors: throttling, lost connections, expired"
        " credentials. Then the task or the query fails.",
    )

    @model_validator(mode="after")
    def _past_directories_end(self) -> Self:
        """Require `roll_interval` with `directory_pattern`, because a past directory receives no more rows."""
        if self.rolls and self.directory_pattern is not None and self.roll_interval is None:
            raise ValueError(
                "roll_bytes and roll_rows alone never publish the last rows of a directory of directory_pattern,"
                " because no rows follow after its time: add roll_interval, for example roll_interval='1 hour'"
            )
        return self

    def secrets_sent(self) -> Iterator[Sent]:
        if self.endpoint_url is not None:
            yield Sent("endpoint_url", self.endpoint_url, given(self, "sse_customer_key"))

    def roll_bounds(self, clock: Callable[[], float]) -> RollBounds:
        """Return the bounds at which an object is composed: those of the options, and the largest object of S3.

        Args:
            clock: returns the time in seconds since 1970.
        """
        largest = min(_MOST_BYTES, int(self.part_bytes) * _MOST_PARTS)
        return RollBounds(self.roll_bytes, self.roll_interval, self.roll_rows, largest, clock)


class S3Arguments(UnencryptedSecretsSettings, PartitionArguments, FormatArguments, ConnectionSettings, total=False):
    """The options of `S3Sink` as keyword arguments except bucket and prefix, described in `S3Options`."""

    path: str | None
    on_existing: OnExistingFiles
    part_bytes: int | str
    max_concurrency: int
    inline_bytes: int | str
    checksum: Literal["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"] | None
    sse: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None
    sse_kms_key_id: str | None
    sse_customer_key: str | None
    acl: str | None
    storage_class: str | None
    tags: str | Mapping[str, str]
    region: str | None
    endpoint_url: str | None
    path_style: bool
    requester_pays: bool
    retry_deadline: timedelta | float | str
    roll_bytes: int | str | None
    roll_interval: timedelta | float | str | None
    roll_rows: int | None

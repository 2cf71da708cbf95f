"""The options of `S3Sink`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlencode

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator

from outfall.errors import ConfigurationError
from outfall.formats import FormatArguments
from outfall.formats.partition_paths import PartitionArguments
from outfall.options import Duration, SinkOptions, parse_endpoint, resolve_secret
from outfall.s3.location import bucket_and_prefix
from outfall.storage.rolling import RollBounds
from outfall.storage.sink import StorageOptions

SMALLEST_PART = 5 << 20
LARGEST_PART = 5 << 30
LARGEST_INLINE = 1 << 20
_NEED_CRT = ("CRC32C", "CRC64NVME")
_MOST_PARTS = 8_000
"""Of an object that gathers rows: fewer than S3 takes, since the last epoch's bytes come on top."""
_MOST_BYTES = 2 << 40


class RollOptions(SinkOptions):
    """The bounds of an object that gathers the rows of several epochs."""

    roll_bytes: ByteSize | None = Field(
        default=None,
        ge=1,
        description="Gather the rows of several epochs, and publish them as one object once they take this many bytes:"
        " a number, or text such as `128 MiB`. An object ends where an Arrow batch ends, so it may be longer by"
        " one. For Parquet the bytes are those of Arrow's stream format, compressed. Needs `workers=`.",
    )
    roll_interval: Duration | None = Field(
        default=None,
        description="The same once the oldest of them came this long ago, looked at while epochs run: seconds, or text"
        " such as `1 hour`. `bucket_pattern` needs it beside the other bounds, and so does `partition_by` by columns"
        " whose values come no more after a while: their last rows would wait for ever.",
    )
    roll_rows: int | None = Field(
        default=None, ge=1, description="The same once there are so many; no object has more of them."
    )

    @property
    def rolls(self) -> bool:
        """Whether rows wait across epochs."""
        return not (self.roll_bytes is None and self.roll_interval is None and self.roll_rows is None)


class _Place(SinkOptions):
    """Where objects go. A base of its own, so that its options stand before the formats' in the documentation."""

    bucket: str = Field(default="", description="The bucket, or the ARN of an access point. It must exist.")
    prefix: str = Field(
        default="",
        description="What the keys begin with, `/` between its levels; by default nothing. It is taken as it is: `%20`,"
        " `#` and `?` are themselves, and empty levels, `.` and `..` are refused.",
    )
    path: str | None = Field(
        default=None,
        description="Bucket and prefix in one: `s3://bucket/prefix`, also `s3a://`. In place of the two, unless the"
        " prefix holds `#` or `?` or the bucket is an ARN.",
    )
    on_existing: Literal["error", "resume", "overwrite"] = Field(
        default="error",
        description="What to do on first contact with a prefix that holds objects: refuse it, keep them and write"
        " beside them, or delete them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_place(cls, values: Any) -> Any:
        """Bring the two ways to name a place into one, before any field is looked at by itself."""
        if not isinstance(values, Mapping):
            return values
        found = dict(values)
        given = (found.get(name) for name in ("path", "bucket", "prefix"))
        found["bucket"], found["prefix"] = bucket_and_prefix(*given)
        return found | {"path": None}

    @property
    def root(self) -> str:
        """What every key begins with, the `/` included."""
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
        description="How large the parts are in which objects are uploaded, 5 MiB to 5 GiB.",
    )
    max_concurrency: int = Field(
        default=8,
        ge=1,
        le=256,
        description="How many parts a task uploads at once, and how many objects the driver completes at once.",
    )
    inline_bytes: ByteSize = Field(
        default=ByteSize(64 << 10),
        ge=0,
        le=LARGEST_INLINE,
        description="So many bytes of small objects a task hands to the driver, which puts each in one request, not in"
        " the three of an upload; until then they lie in the recovery data. `0` keeps rows out of it.",
    )
    checksum: Literal["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"] | None = Field(
        default=None,
        description="Which checksum each part is sent with and stored with. Without it what boto3 does by itself.",
    )
    sse: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = Field(
        default=None, description="Server-side encryption; without it what the bucket is set to."
    )
    sse_kms_key_id: str | None = Field(default=None, description="The KMS key's id or ARN, for `aws:kms`.")
    sse_customer_key: SecretStr | None = Field(
        default=None,
        description="A key of your own (SSE-C): 32 bytes in Base64. Accepts `env:NAME` and `file:PATH`. Readers need it"
        " too, for data and manifests.",
    )
    acl: (
        Literal[
            "private", "public-read", "public-read-write", "authenticated-read", "aws-exec-read", "bucket-owner-read",
            "bucket-owner-full-control",
        ]
        | None
    ) = Field(default=None, description="A canned ACL for each object.")  # fmt: skip
    storage_class: str | None = Field(
        default=None, min_length=1, description="The storage class of data, as `STANDARD_IA` or `INTELLIGENT_TIERING`."
    )
    tags: str = Field(default="", description="Tags of data, as `team=air&cost=42`: at most ten.")

    @field_validator("tags", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = dict(parse_qsl(value, keep_blank_values=True, strict_parsing=bool(value)))
            except ValueError:
                raise ValueError("must be written as name=value&name=value") from None
        if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
            raise ValueError("must be names with their values")
        if len(value) > 10:
            raise ValueError(f"holds {len(value)} tags, and S3 takes ten")
        return urlencode(value)

    @field_validator("checksum")
    @classmethod
    def _can_be_computed(cls, value: str | None) -> str | None:
        if value in _NEED_CRT and find_spec("awscrt") is None:
            raise ValueError(f"boto3 computes {value} with awscrt, which is not installed: pip install 'boto3[crt]'")
        return value

    @model_validator(mode="after")
    def _one_encryption(self) -> Self:
        if self.sse_customer_key is not None and self.sse is not None:
            raise ValueError("sse_customer_key is an encryption of its own: leave sse out")
        if self.sse_kms_key_id is not None and self.sse not in ("aws:kms", "aws:kms:dsse"):
            raise ValueError("sse_kms_key_id is for sse aws:kms")
        return self

    def customer_key(self) -> bytes | None:
        """Resolve the key of SSE-C where it is used.

        Raises:
            ConfigurationError: it is not 32 bytes in Base64, or cannot be found.
        """
        if self.sse_customer_key is None:
            return None
        try:
            key = base64.b64decode(resolve_secret(self.sse_customer_key), validate=True)
        except binascii.Error:
            key = b""
        if len(key) != 32:
            raise ConfigurationError(
                "sse_customer_key is not 32 bytes in Base64", do="make one with openssl rand -base64 32"
            )
        return key


class S3Options(StorageOptions, RollOptions, _Upload, _Place):
    """What `S3Sink` takes, in its constructor and as Spark options."""

    region: str | None = Field(default=None, description="The region; without it as boto3 finds it.")
    endpoint_url: str | None = Field(default=None, description="The address of a store that is not AWS'.")
    path_style: bool = Field(
        default=False, description="Whether the bucket stands in the path and not in the host's name, for such stores."
    )
    requester_pays: bool = Field(default=False, description="Whether this account pays, not the bucket's owner.")
    connect_timeout: Duration = Field(default=timedelta(seconds=10), description="How long connecting may take.")
    read_timeout: Duration = Field(
        default=timedelta(minutes=1), description="How long S3 may be silent in the middle of an answer."
    )
    retry_deadline: Duration = Field(
        default=timedelta(minutes=5),
        description="For how long a request is tried again after errors that may pass: throttling, lost connections,"
        " expired credentials.",
    )

    @model_validator(mode="after")
    def _past_directories_end(self) -> Self:
        """A directory of a time gets no more rows once that is past, and so reaches no bound of size."""
        if self.rolls and self.bucket_pattern is not None and self.roll_interval is None:
            raise ValueError(
                "roll_bytes and roll_rows alone never publish the last rows of a directory that bucket_pattern makes,"
                " since none follow once its time is past: add roll_interval, as roll_interval='1 hour'"
            )
        return self

    _address = field_validator("endpoint_url")(parse_endpoint)

    def roll_bounds(self, clock: Callable[[], float]) -> RollBounds:
        """Return when an object that gathers rows is composed: at a bound that was asked for, or when S3 takes no more.

        Args:
            clock: tells the time, in seconds since 1970.
        """
        largest = min(_MOST_BYTES, int(self.part_bytes) * _MOST_PARTS)
        return RollBounds(self.roll_bytes, self.roll_interval, self.roll_rows, largest, clock)


class S3Arguments(PartitionArguments, FormatArguments, total=False):
    """`S3Sink`'s options as keyword arguments, but for bucket and prefix; `S3Options` says what each means."""

    path: str | None
    on_existing: Literal["error", "resume", "overwrite"]
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
    connect_timeout: timedelta | float | str
    read_timeout: timedelta | float | str
    retry_deadline: timedelta | float | str
    roll_bytes: int | str | None
    roll_interval: timedelta | float | str | None
    roll_rows: int | None

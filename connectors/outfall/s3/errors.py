"""Classifies S3's responses (S3 API Reference, "Error responses"), and translates them to Outfall's errors.

A response is used only if it is complete and belongs to its request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any
from urllib.parse import unquote_plus

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
    SSLError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

from outfall.errors import OutfallError, TargetError, TargetLostError, TransientError
from outfall.store_errors import REMEDIES, Meaning, meaning_of, remedy_of

FAILURES = (ClientError, BotoCoreError, ResponseParserError)
"""The exceptions of boto3."""


class FailureKind(Enum):
    """Kinds of failures, by the reaction that they require."""

    TAKEN = auto()
    """412: an object with the key exists, from an earlier attempt of this sink or from another writer."""
    BUSY = auto()
    """409: another request for the key is in progress."""
    GONE = auto()
    """404: the object or the upload does not exist. An upload was completed, aborted or removed by a rule."""
    INCOMPLETE = auto()
    """Uploaded parts are missing."""
    UNCLEAR = auto()
    """The request may or may not have been executed: a 5xx, a 200 with an error, a timeout, a broken connection."""
    NOT_DONE = auto()
    """The request was not executed and may succeed later: throttling, a body that arrived damaged."""
    EXPIRED = auto()
    """Credentials must be renewed."""
    REFUSED = auto()
    """The user must act: a permission, a bucket, an option, a certificate, a request that is not supported."""


PASSING = frozenset({FailureKind.BUSY, FailureKind.UNCLEAR, FailureKind.NOT_DONE, FailureKind.EXPIRED})
"""Kinds after which the same request may succeed."""

_CODES = {
    "PreconditionFailed": FailureKind.TAKEN,
    "ConditionalRequestConflict": FailureKind.BUSY,
    "OperationAborted": FailureKind.BUSY,
    "NoSuchUpload": FailureKind.GONE,
    "NoSuchKey": FailureKind.GONE,
    "404": FailureKind.GONE,
    "NotFound": FailureKind.GONE,
    "InvalidPart": FailureKind.INCOMPLETE,
    "InvalidPartOrder": FailureKind.INCOMPLETE,
    "RequestTimeout": FailureKind.NOT_DONE,
    "RequestTimeoutException": FailureKind.NOT_DONE,
    "SlowDown": FailureKind.NOT_DONE,
    "ServiceUnavailable": FailureKind.NOT_DONE,
    "Throttling": FailureKind.NOT_DONE,
    "ThrottlingException": FailureKind.NOT_DONE,
    "RequestLimitExceeded": FailureKind.NOT_DONE,
    "TooManyRequests": FailureKind.NOT_DONE,
    "BandwidthLimitExceeded": FailureKind.NOT_DONE,
    "BadDigest": FailureKind.NOT_DONE,
    "IncompleteBody": FailureKind.NOT_DONE,
    "XAmzContentChecksumMismatch": FailureKind.NOT_DONE,
    "XAmzContentSHA256Mismatch": FailureKind.NOT_DONE,
    "InternalError": FailureKind.UNCLEAR,
    "ExpiredToken": FailureKind.EXPIRED,
    "ExpiredTokenException": FailureKind.EXPIRED,
    "TokenRefreshRequired": FailureKind.EXPIRED,
    "RequestExpired": FailureKind.EXPIRED,
    "NoSuchBucket": FailureKind.REFUSED,
    "NotImplemented": FailureKind.REFUSED,
}
_BROKEN = (
    HTTPClientError,
    BotoConnectionError,
    ResponseStreamingError,
    ResponseParserError,
    IncompleteReadError,
    FlexibleChecksumError,
)
_STATUSES = {
    409: FailureKind.BUSY,
    412: FailureKind.TAKEN,
    429: FailureKind.NOT_DONE,
    501: FailureKind.REFUSED,
    503: FailureKind.NOT_DONE,
}


def classify(error: BaseException) -> FailureKind:
    """Return the kind of a failure."""
    if isinstance(error, ClientError):
        code, status = code_of(error), status_of(error)
        if code in _CODES:
            return _CODES[code]
        return _STATUSES.get(status, FailureKind.UNCLEAR if status >= 500 else FailureKind.REFUSED)
    if isinstance(error, CredentialRetrievalError | TokenRetrievalError):
        return FailureKind.EXPIRED
    if isinstance(error, _BROKEN) and not is_untrusted(error):
        return FailureKind.UNCLEAR
    return FailureKind.REFUSED


def is_untrusted(error: BaseException) -> bool:
    """Return whether the server's certificate was rejected. Other TLS errors, such as a broken connection, may pass."""
    if not isinstance(error, SSLError):
        return False
    cause = error.kwargs.get("error")
    # ValueError is the only common base of the certificate errors of the standard library and urllib3.
    while isinstance(cause, BaseException) and not isinstance(cause, ValueError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def is_not_implemented(error: BaseException | None) -> bool:
    """Return whether a store does not support a request or one of its headers."""
    return isinstance(error, ClientError) and (status_of(error) == 501 or code_of(error) == "NotImplemented")


def code_of(error: BaseException | None) -> str:
    """Return S3's error code; empty for other errors."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def status_of(error: BaseException | None) -> int:
    """Return the HTTP status; 0 if there is none."""
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


# --- checks that a response is complete and belongs to its request


def asked(send: Callable[[], Mapping[str, Any]], request: str, sent: Mapping[str, Any]) -> Mapping[str, Any]:
    """Send a request with boto3 (`send`), and return its response if it is complete and belongs to the request.

    If a connection ends within the headers of a response, boto3 treats missing data as empty: a listing without keys,
    an object without bytes, a part without an ETag. Raises `ResponseParserError` if the response is truncated or
    belongs to another request; the request that was sent may have succeeded. boto3's `ClientError` and `BotoCoreError`
    pass unchanged.
    """
    try:
        answer = send()
    except ClientError as error:
        # Without a body, boto3 uses the status as the error code.
        if code_of(error).isdigit() and request != "head_object" and not _is_framed(error.response):
            raise unusable(request, "its headers are truncated") from error
        raise
    except ValueError as error:  # a truncated header value, such as a time
        raise unusable(request, f"it cannot be read: {error}") from error
    flaw = _flaw(request, sent, answer)
    if flaw:
        raise unusable(request, flaw)
    return answer


def unusable(request: str, flaw: str) -> ResponseParserError:
    """Return the error of an unusable response, after which the request is retried or its effect is checked."""
    return ResponseParserError(f"the response to {request} is not usable: {flaw}")


def metadata(answer: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's metadata with lower-case names, because stores change the case of header names."""
    return {name.lower(): value for name, value in answer.get("Metadata", {}).items()}


def _is_framed(answer: Mapping[str, Any]) -> bool:
    """Return whether the headers of a response include the length of its body, and are therefore complete."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {"content-length": "1"})
    return str(headers.get("content-length", "")).isdigit() or "chunked" in headers.get("transfer-encoding", "").lower()


def _flaw(request: str, sent: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """Return the defect of a response; `None` if it has none."""
    for name in _REQUIRED.get(request, ()):
        if answer.get(name) in (None, ""):
            return f"{name} is missing"
    for name in _ECHOED.get(request, ()):
        asked_for = sent.get(name, "")
        # SeaweedFS does not encode what boto3 then decodes.
        if name in answer and answer[name] not in (asked_for, unquote_plus(asked_for)):
            return f"it belongs to another request: {name} is {answer[name]!r}"
    if request == "upload_part_copy":
        return None if answer["CopyPartResult"].get("ETag") else "ETag is missing"
    if _is_cut(answer.get("ETag", "")):
        return "ETag is truncated"
    for name, size in CHECKSUMS.items() if request == "upload_part" else ():
        if 0 < len(answer.get(name, "")) < size:
            return f"{name} is truncated"
    return _CONTENTS[request](sent, answer) if request in _CONTENTS else None


def _is_cut(etag: str) -> bool:
    """Return whether an entity tag lacks its second quotation mark. Some stores write no quotation marks."""
    return etag.startswith('"') and (len(etag) < 2 or not etag.endswith('"'))


def _flaw_of_page(sent: Mapping[str, Any], page: Mapping[str, Any]) -> str | None:
    bucket = sent["Bucket"]
    # The bucket name in a listing through an access point is not documented.
    if page["Name"] != bucket and not bucket.startswith("arn:") and not bucket.endswith("-s3alias"):
        return f"it belongs to another request: Name is {page['Name']!r}"
    keys = [found["Key"] for found in page.get("Contents", [])]
    count = len(keys) + len(page.get("CommonPrefixes", []))
    if page.get("KeyCount", count) != count:
        return f"it has {count} keys, but KeyCount is {page['KeyCount']}"
    if page["IsTruncated"] and not page.get("NextContinuationToken"):
        return "NextContinuationToken is missing"
    after = sent.get("StartAfter", "")
    wrong = [key for key in keys if not key.startswith(sent["Prefix"]) or key.encode() <= after.encode()]
    return f"it belongs to another request: it has the key {wrong[0]!r}" if wrong else None


def _flaw_of_deletion(sent: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    named = {each.get("Key") for name in ("Deleted", "Errors") for each in answer.get(name, [])}
    unnamed = [each["Key"] for each in sent["Delete"]["Objects"] if each["Key"] not in named]
    return f"it has no result for {unnamed[0]!r}" if unnamed else None


def _flaw_of_object(sent: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    return None if _is_framed(answer) else "its headers are truncated"


def _flaw_of_versioning(sent: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """Return the defect of a versioning response. That of an unversioned bucket is an empty element, not empty."""
    empty = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("content-length") == "0"
    return "it is empty" if empty else _flaw_of_object(sent, answer)


CHECKSUMS = {
    "ChecksumCRC32": 8,
    "ChecksumCRC32C": 8,
    "ChecksumCRC64NVME": 12,
    "ChecksumSHA1": 28,
    "ChecksumSHA256": 44,
}
"""Names of checksums in S3's API, and their length in Base64."""
_REQUIRED = {
    "list_objects_v2": ("Name", "IsTruncated"),
    "list_multipart_uploads": ("Bucket",),
    "list_parts": ("Key", "UploadId"),
    "create_multipart_upload": ("Key", "UploadId"),
    "upload_part": ("ETag",),
    "upload_part_copy": ("CopyPartResult",),
    "complete_multipart_upload": ("Key", "ETag"),
    "put_object": ("ETag",),
    "get_object": ("ETag",),
    "head_object": ("ContentLength", "ETag"),
}
_ECHOED = {
    "list_objects_v2": ("Prefix", "ContinuationToken", "StartAfter"),
    "list_multipart_uploads": ("Prefix", "KeyMarker"),
    "list_parts": ("Key", "UploadId"),
    "create_multipart_upload": ("Key",),
    "complete_multipart_upload": ("Key",),
}
"""Arguments that a response may repeat."""
_CONTENTS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], str | None]] = {
    "list_objects_v2": _flaw_of_page,
    "delete_objects": _flaw_of_deletion,
    "get_object": _flaw_of_object,
    "get_bucket_versioning": _flaw_of_versioning,
}


_RIGHTS = (
    "the sink requires s3:ListBucket and s3:ListBucketMultipartUploads on the bucket; s3:PutObject, s3:GetObject,"
    " s3:AbortMultipartUpload and s3:ListMultipartUploadParts on the prefix; and s3:DeleteObject below _outfall/;"
    ' for on_existing="overwrite" s3:DeleteObject on the prefix, for tags s3:PutObjectTagging, for acl s3:PutObjectAcl,'
    " and for encryption with a KMS key kms:GenerateDataKey and kms:Decrypt on the key"
)

_REMEDIES = {
    Meaning.CREDENTIALS: "provide credentials that boto3 finds on the driver and executors, or set session_factory",
    Meaning.NO_BUCKET: "create the bucket, or correct its name, the region or the endpoint_url",
    Meaning.CLOCK: "set the clock of the requesting host: S3 accepts requests whose time is at most 15 minutes off",
    Meaning.UNTRUSTED: "make the driver and executors trust the certificate, for example with AWS_CA_BUNDLE, or correct"
    " the endpoint_url",
    Meaning.UNSUPPORTED: "leave out the option that the store does not support, or use another store",
    Meaning.RETAINED: REMEDIES[Meaning.RETAINED],
}
"""Where the remedy is an option of the sink."""


def translated(doing: str, error: BaseException, tried: float | None = None) -> OutfallError:
    """Translate one of `FAILURES` in an operation such as `"completing s3://…"`, retried for `tried` seconds."""
    what, why = f"{doing} failed", describe(error)
    if classify(error) not in PASSING:
        return TargetError(what, why=why, do=_remedy(error))
    if tried is not None:
        what += f" for {tried:.0f} s (retry_deadline)"
    return TransientError(
        what,
        why=why,
        do="if the query has failed, start it again: no rows are lost. For longer outages, raise retry_deadline",
    )


def piece_lost(url: str) -> TargetLostError:
    """Return the error of a missing piece."""
    return TargetLostError(
        f"{url} is missing or was changed",
        why="it holds buffered rows of a large object, and was deleted by a user or a lifecycle rule",
        do="restore it, or start the query with a new checkpoint",
    )


def describe(error: BaseException) -> str:
    """Return the message of S3 or boto3."""
    if isinstance(error, ClientError):
        message = error.response.get("Error", {}).get("Message", "")
        return f"{code_of(error)} (HTTP {status_of(error)}): {message}".rstrip(": ")
    return f"{type(error).__name__}: {error}"


def _remedy(error: BaseException) -> str:
    meaning = Meaning.UNTRUSTED if is_untrusted(error) else meaning_of(error)
    if meaning is Meaning.DENIED:
        return f"{remedy_of(error)}: {_RIGHTS}"
    return _REMEDIES.get(meaning, "correct the options, the bucket or its policy")

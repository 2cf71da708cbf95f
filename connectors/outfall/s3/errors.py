"""What S3's answers mean for whoever asked (S3 API Reference, "Error responses"), and the errors that Outfall raises.

A response is believed only when it is whole, and the one that was asked for.
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
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
    SSLError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

from outfall.errors import OutfallError, TargetError, TargetLostError, TransientError

FAILURES = (ClientError, BotoCoreError, ResponseParserError)
"""What boto3 raises."""


class FailureKind(Enum):
    """Kinds of failures, by what is to be done about them."""

    TAKEN = auto()
    """412: an object has the key. Ours from an earlier try, or somebody else's."""
    BUSY = auto()
    """409: another request for the key is under way."""
    GONE = auto()
    """404: there is no such upload; it was completed, aborted or taken by a lifecycle rule. Or no such object."""
    INCOMPLETE = auto()
    """Parts that were uploaded are not there."""
    UNCLEAR = auto()
    """Nobody knows whether it was done, or the answer was not read whole: a 5xx, a 200 with an error in it, a time-out,
    a broken connection."""
    NOT_DONE = auto()
    """It was not done, and may be later: throttling, a body that did not arrive as it was sent."""
    EXPIRED = auto()
    """Credentials have to be renewed."""
    REFUSED = auto()
    """Somebody has to act: a right, a bucket, an option, a certificate, a store that does not know the request."""


PASSING = frozenset({FailureKind.BUSY, FailureKind.UNCLEAR, FailureKind.NOT_DONE, FailureKind.EXPIRED})
"""After which the same request may succeed."""

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
    """Tell what a failure means."""
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
    """Whether the server's certificate was refused. Other errors of TLS, as a connection that breaks, may pass."""
    if not isinstance(error, SSLError):
        return False
    cause = error.kwargs.get("error")
    # The standard library's and urllib3's errors about certificates have no base in common but this one.
    while isinstance(cause, BaseException) and not isinstance(cause, ValueError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def is_not_implemented(error: BaseException | None) -> bool:
    """Whether a store says that it does not know a request, or a header of it."""
    return isinstance(error, ClientError) and (status_of(error) == 501 or code_of(error) == "NotImplemented")


def code_of(error: BaseException | None) -> str:
    """Return S3's code; empty for an error that is not S3's."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def status_of(error: BaseException | None) -> int:
    """Return the HTTP status; 0 where there is none."""
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


# --- whether a response is whole, and the one that was asked for


def asked(send: Callable[[], Mapping[str, Any]], request: str, sent: Mapping[str, Any]) -> Mapping[str, Any]:
    """Make a request, and return its response if that is whole and belongs to it.

    A connection that ends within the head of a response leaves the headers that came before, and boto3 takes what is
    missing for empty: a listing without keys, an object without bytes, a part without an ETag.

    Args:
        send: makes the request by boto3.
        request: its name, as `"head_object"`.
        sent: its arguments.

    Raises:
        ResponseParserError: the response is cut off, or of another request: nobody knows whether it was done.
        ClientError, BotoCoreError: as boto3 does.
    """
    try:
        answer = send()
    except ClientError as error:
        # Without a body, which would name a code, boto3 takes the status for one.
        if code_of(error).isdigit() and request != "head_object" and not _is_framed(error.response):
            raise unusable(request, "its head is cut off") from error
        raise
    except ValueError as error:  # a header whose value is cut off, such as a time
        raise unusable(request, f"it cannot be read: {error}") from error
    flaw = _flaw(request, sent, answer)
    if flaw:
        raise unusable(request, flaw)
    return answer


def unusable(request: str, flaw: str) -> ResponseParserError:
    """Make the error of a response that says nothing, so that the request is made again or looked after."""
    return ResponseParserError(f"the response to {request} is not usable: {flaw}")


def metadata(answer: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's metadata. The names are those of HTTP headers: stores change their case."""
    return {name.lower(): value for name, value in answer.get("Metadata", {}).items()}


def _is_framed(answer: Mapping[str, Any]) -> bool:
    """Whether a response says where its body ends, so that whoever has read the body has read all of the head."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {"content-length": "1"})
    return str(headers.get("content-length", "")).isdigit() or "chunked" in headers.get("transfer-encoding", "").lower()


def _flaw(request: str, sent: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """Tell what is wrong with the content of a response; `None` if nothing is."""
    for name in _REQUIRED.get(request, ()):
        if answer.get(name) in (None, ""):
            return f"{name} is missing"
    for name in _ECHOED.get(request, ()):
        asked_for = sent.get(name, "")
        # SeaweedFS does not encode what boto3 then decodes.
        if name in answer and answer[name] not in (asked_for, unquote_plus(asked_for)):
            return f"it is of another request: {name} is {answer[name]!r}"
    if request == "upload_part_copy":
        return None if answer["CopyPartResult"].get("ETag") else "ETag is missing"
    if _is_cut(answer.get("ETag", "")):
        return "ETag is cut off"
    for name, size in CHECKSUMS.items() if request == "upload_part" else ():
        if 0 < len(answer.get(name, "")) < size:
            return f"{name} is cut off"
    return _CONTENTS[request](sent, answer) if request in _CONTENTS else None


def _is_cut(etag: str) -> bool:
    """Whether an entity tag ends before its second quotation mark. Some stores write none at all."""
    return etag.startswith('"') and (len(etag) < 2 or not etag.endswith('"'))


def _flaw_of_page(sent: Mapping[str, Any], page: Mapping[str, Any]) -> str | None:
    bucket = sent["Bucket"]
    # What a listing through an access point calls its bucket is not documented.
    if page["Name"] != bucket and not bucket.startswith("arn:") and not bucket.endswith("-s3alias"):
        return f"it is of another request: Name is {page['Name']!r}"
    keys = [found["Key"] for found in page.get("Contents", [])]
    count = len(keys) + len(page.get("CommonPrefixes", []))
    if page.get("KeyCount", count) != count:
        return f"it holds {count} keys, and KeyCount is {page['KeyCount']}"
    if page["IsTruncated"] and not page.get("NextContinuationToken"):
        return "NextContinuationToken is missing"
    after = sent.get("StartAfter", "")
    wrong = [key for key in keys if not key.startswith(sent["Prefix"]) or key.encode() <= after.encode()]
    return f"it is of another request: it holds {wrong[0]!r}" if wrong else None


def _flaw_of_deletion(sent: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    told = {each.get("Key") for name in ("Deleted", "Errors") for each in answer.get(name, [])}
    untold = [each["Key"] for each in sent["Delete"]["Objects"] if each["Key"] not in told]
    return f"it does not tell what became of {untold[0]!r}" if untold else None


def _flaw_of_object(sent: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    return None if _is_framed(answer) else "its head is cut off"


def _flaw_of_versioning(sent: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """The answer of a bucket that never kept versions is an empty element, and no empty body."""
    empty = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("content-length") == "0"
    return "it is empty" if empty else _flaw_of_object(sent, answer)


CHECKSUMS = {
    "ChecksumCRC32": 8,
    "ChecksumCRC32C": 8,
    "ChecksumCRC64NVME": 12,
    "ChecksumSHA1": 28,
    "ChecksumSHA256": 44,
}
"""Names of checksums in S3's API, and how long each is in Base64."""
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
"""What a response repeats of its request, where it does."""
_CONTENTS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], str | None]] = {
    "list_objects_v2": _flaw_of_page,
    "delete_objects": _flaw_of_deletion,
    "get_object": _flaw_of_object,
    "get_bucket_versioning": _flaw_of_versioning,
}


_RIGHTS = (
    "grant s3:PutObject, s3:GetObject, s3:ListBucket, s3:AbortMultipartUpload, s3:ListMultipartUploadParts and"
    " s3:ListBucketMultipartUploads on the bucket and the prefix, and s3:DeleteObject below _outfall/;"
    ' for on_existing="overwrite" s3:DeleteObject on the prefix, for tags s3:PutObjectTagging, for acl s3:PutObjectAcl,'
    " and for encryption with a KMS key kms:GenerateDataKey and kms:Decrypt on the key"
)
_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken")


def translated(doing: str, error: BaseException) -> OutfallError:
    """Make our error of boto3's.

    Args:
        doing: what failed, as `"completing s3://bucket/key"`.
        error: one of `FAILURES`.
    """
    what, why = f"{doing} failed", describe(error)
    if classify(error) in PASSING:
        return TransientError(what, why=why, do="nothing, if it passes: the task or the query is tried again")
    return TargetError(what, why=why, do=_remedy(error))


def piece_lost(url: str) -> TargetLostError:
    """Make the error for an object that holds rows which wait, and that is not there."""
    return TargetLostError(
        f"{url} is gone, or not what was written",
        why="it holds rows that wait for a large object. Somebody deleted it, or a lifecycle rule did",
        do="restore it, or start the query with a new checkpoint",
    )


def describe(error: BaseException) -> str:
    """Return what S3 or boto3 said."""
    if isinstance(error, ClientError):
        message = error.response.get("Error", {}).get("Message", "")
        return f"{code_of(error)} (HTTP {status_of(error)}): {message}".rstrip(": ")
    return f"{type(error).__name__}: {error}"


def _remedy(error: BaseException) -> str:
    if isinstance(error, NoCredentialsError | PartialCredentialsError) or code_of(error) in _KEYS:
        return "give driver and executors credentials that boto3 finds, or a session_factory"
    if code_of(error) == "NoSuchBucket":
        return "create the bucket, or correct its name, the region or the endpoint_url"
    if code_of(error) == "RequestTimeTooSkewed":
        return "set the clock of the host that asked: S3 takes requests whose time is at most 15 minutes off"
    if is_untrusted(error):
        return "have driver and executors trust the certificate, as by AWS_CA_BUNDLE, or correct the endpoint_url"
    if is_not_implemented(error):
        return "leave out the option that the store does not know, or take another store"
    if isinstance(error, ClientError) and status_of(error) == 403:
        return _RIGHTS
    return "correct the options, the bucket or its policy"

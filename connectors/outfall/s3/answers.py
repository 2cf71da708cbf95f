"""What S3's answers mean for whoever asked (S3 API Reference, "Error responses")."""

from __future__ import annotations

from enum import Enum, auto

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

FAILURES = (ClientError, BotoCoreError, ResponseParserError)
"""What boto3 raises."""


class Answer(Enum):
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


PASSING = frozenset({Answer.BUSY, Answer.UNCLEAR, Answer.NOT_DONE, Answer.EXPIRED})
"""After which the same request may succeed."""

_CODES = {
    "PreconditionFailed": Answer.TAKEN,
    "ConditionalRequestConflict": Answer.BUSY,
    "OperationAborted": Answer.BUSY,
    "NoSuchUpload": Answer.GONE,
    "NoSuchKey": Answer.GONE,
    "404": Answer.GONE,
    "NotFound": Answer.GONE,
    "InvalidPart": Answer.INCOMPLETE,
    "InvalidPartOrder": Answer.INCOMPLETE,
    "RequestTimeout": Answer.NOT_DONE,
    "RequestTimeoutException": Answer.NOT_DONE,
    "SlowDown": Answer.NOT_DONE,
    "ServiceUnavailable": Answer.NOT_DONE,
    "Throttling": Answer.NOT_DONE,
    "ThrottlingException": Answer.NOT_DONE,
    "RequestLimitExceeded": Answer.NOT_DONE,
    "TooManyRequests": Answer.NOT_DONE,
    "BandwidthLimitExceeded": Answer.NOT_DONE,
    "BadDigest": Answer.NOT_DONE,
    "IncompleteBody": Answer.NOT_DONE,
    "XAmzContentChecksumMismatch": Answer.NOT_DONE,
    "XAmzContentSHA256Mismatch": Answer.NOT_DONE,
    "InternalError": Answer.UNCLEAR,
    "ExpiredToken": Answer.EXPIRED,
    "ExpiredTokenException": Answer.EXPIRED,
    "TokenRefreshRequired": Answer.EXPIRED,
    "RequestExpired": Answer.EXPIRED,
    "NoSuchBucket": Answer.REFUSED,
    "NotImplemented": Answer.REFUSED,
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
    409: Answer.BUSY,
    412: Answer.TAKEN,
    429: Answer.NOT_DONE,
    501: Answer.REFUSED,
    503: Answer.NOT_DONE,
}


def classify(error: BaseException) -> Answer:
    """Tell what a failure means."""
    if isinstance(error, ClientError):
        code, status = code_of(error), status_of(error)
        if code in _CODES:
            return _CODES[code]
        return _STATUSES.get(status, Answer.UNCLEAR if status >= 500 else Answer.REFUSED)
    if isinstance(error, CredentialRetrievalError | TokenRetrievalError):
        return Answer.EXPIRED
    if isinstance(error, _BROKEN) and not is_untrusted(error):
        return Answer.UNCLEAR
    return Answer.REFUSED


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


def code_of(error: BaseException) -> str:
    """Return S3's code; empty for an error that is not S3's."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def status_of(error: ClientError) -> int:
    """Return the HTTP status, 0 where there is none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))

"""The meaning of AWS's errors: which may pass, which are due to a record, which need new credentials."""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ChecksumError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    SSLError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as AwsConnectionError
from botocore.parsers import ResponseParserError

from outfall.async_sink import ErrorAction, by_type, first_of
from outfall.async_sink.retrying import outfall_errors
from outfall.errors import OutfallError, TargetError, TransientError

FAILURES = (ClientError, BotoCoreError, ResponseParserError)
"""The exceptions of boto3."""

AT_FAULT = {
    "InvalidArgumentException", "ItemCollectionSizeLimitExceededException", "SerializationException",
    "ValidationException",
}  # fmt: skip
"""Codes for a request with invalid content, perhaps in one record."""

_TRANSIENT = {
    "InternalFailure", "InternalFailureException", "InternalServerError", "KMSThrottlingException",
    "LimitExceededException", "ProvisionedThroughputExceededException", "ReplicatedWriteConflictException",
    "RequestLimitExceeded", "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable",
    "ServiceUnavailableException", "SlowDown", "Throttling", "ThrottlingException", "TransactionConflictException",
}  # fmt: skip


_STALE = {
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "UnrecognizedClientException",
}  # fmt: skip
"""Codes for credentials that have expired, or that AWS does not know or does not know yet (new keys)."""


def code_of(error: BaseException) -> str:
    """Return AWS's error code; empty for other errors."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def is_stale(error: BaseException) -> bool:
    """Whether an error requires new credentials, or their provider did not respond."""
    return code_of(error) in _STALE or isinstance(error, CredentialRetrievalError | TokenRetrievalError)


def stale(error: BaseException) -> ErrorAction | None:
    """Classify credential errors as transient: new credentials may succeed."""
    return ErrorAction.RETRY if is_stale(error) else None


def codes(error: BaseException) -> ErrorAction | None:
    """Classify AWS's error codes (the "Errors" of each action in the API references)."""
    if not isinstance(error, ClientError):
        return None
    if code_of(error) in AT_FAULT:
        return ErrorAction.DEAD_LETTER
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    transient = code_of(error) in _TRANSIENT or status == 429 or status >= 500
    return ErrorAction.RETRY if transient else ErrorAction.FATAL


classify = first_of(
    stale,
    codes,
    by_type(ErrorAction.FATAL, SSLError),
    by_type(
        ErrorAction.RETRY,
        HTTPClientError,
        AwsConnectionError,
        IncompleteReadError,
        ChecksumError,
        ResponseParserError,
        RecursionError,
    ),
    outfall_errors,
)
"""Classifies a failed call."""


def translated(what: str, error: BaseException, *, failed: str, do: str) -> OutfallError:
    """Return the error of a call for something that must exist: missing, not responding, or `failed` permanently."""
    if code_of(error) == "ResourceNotFoundException":
        return TargetError(
            f"{what} does not exist",
            why=str(error),
            do="create it, or correct its name, the region, the endpoint_url or the account of the credentials",
        )
    if isinstance(error, SSLError):
        do = "let driver and executors trust the certificate, for example with AWS_CA_BUNDLE; or correct endpoint_url"
    if classify(error) is ErrorAction.RETRY and not is_stale(error):
        return TransientError(
            f"{what} does not respond",
            why=str(error),
            do="try again; if the error persists, correct region and endpoint_url, or open the network path",
        )
    return TargetError(f"{what} {failed}", why=str(error), do=do)

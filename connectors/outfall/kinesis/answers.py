"""What the errors of both services mean."""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
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

FAILURES = (ClientError, BotoCoreError, ResponseParserError)
"""What boto3 raises."""

_AT_FAULT = {"ValidationException", "InvalidArgumentException", "SerializationException"}
"""Codes for a request that holds something wrong, perhaps in one record."""

_MAY_PASS = {
    "InternalFailure", "InternalFailureException", "InternalServerError", "KMSThrottlingException",
    "LimitExceededException", "ProvisionedThroughputExceededException", "RequestTimeout", "RequestTimeoutException",
    "ServiceUnavailable", "ServiceUnavailableException", "SlowDown", "Throttling", "ThrottlingException",
}  # fmt: skip


_STALE = {
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "UnrecognizedClientException",
}  # fmt: skip
"""Codes for credentials that are over, or that AWS does not know: any more, or yet (keys that were made just now)."""


def code_of(error: BaseException) -> str:
    """Return AWS's code; empty for an error that is not AWS's."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def is_stale(error: BaseException) -> bool:
    """Whether an error says that other credentials are needed, or that where they come from does not answer."""
    return code_of(error) in _STALE or isinstance(error, CredentialRetrievalError | TokenRetrievalError)


def stale(error: BaseException) -> ErrorAction | None:
    """Classify errors of credentials: who tries again with new ones may have better luck."""
    return ErrorAction.RETRY if is_stale(error) else None


def codes(error: BaseException) -> ErrorAction | None:
    """Classify AWS's error codes (the "Errors" of each action in the API references)."""
    if not isinstance(error, ClientError):
        return None
    if code_of(error) in _AT_FAULT:
        return ErrorAction.DEAD_LETTER
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    may_pass = code_of(error) in _MAY_PASS or status == 429 or status >= 500
    return ErrorAction.RETRY if may_pass else ErrorAction.FATAL


classify = first_of(
    stale,
    codes,
    by_type(ErrorAction.FATAL, SSLError),
    by_type(ErrorAction.RETRY, HTTPClientError, AwsConnectionError, IncompleteReadError, ResponseParserError),
    outfall_errors,
)
"""Tell what a failed call means for its records."""

"""What the errors of both services mean."""

from __future__ import annotations

from botocore.exceptions import ClientError, HTTPClientError, SSLError
from botocore.exceptions import ConnectionError as AwsConnectionError

from outfall.async_sink import ErrorAction, by_type, first_of

_AT_FAULT = {"ValidationException", "InvalidArgumentException", "SerializationException"}
"""Codes for a request that holds something wrong, perhaps in one record."""

_MAY_PASS = {
    "InternalFailure", "InternalFailureException", "InternalServerError", "KMSThrottlingException",
    "LimitExceededException", "ProvisionedThroughputExceededException", "RequestTimeout", "RequestTimeoutException",
    "ServiceUnavailable", "ServiceUnavailableException", "SlowDown", "Throttling", "ThrottlingException",
}  # fmt: skip


def code_of(error: BaseException) -> str:
    """Return AWS's code; empty for an error that is not AWS's."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


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
    codes, by_type(ErrorAction.FATAL, SSLError), by_type(ErrorAction.RETRY, HTTPClientError, AwsConnectionError)
)
"""Tell what a failed call means for its records."""

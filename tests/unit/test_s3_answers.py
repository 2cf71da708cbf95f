"""What S3's answers mean, as boto3 itself reads them: each goes through its parser and its handlers."""

from __future__ import annotations

import io
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import (
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)

from outfall.errors import TargetError, TransientError
from outfall.s3.answers import FAILURES, Answer, classify
from outfall.s3.failures import translated


def error_body(code: str) -> str:
    return f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>said S3</Message></Error>'


class Completing:
    """CompleteMultipartUpload, answered as a test wants it."""

    def __init__(self) -> None:
        self._client = boto3.client(
            "s3", region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="hunter2",
            config=Config(retries={"total_max_attempts": 1}),
        )  # fmt: skip
        self._client.meta.events.register("before-send.s3.CompleteMultipartUpload", self._answered)
        self._status, self._body = 0, b""

    def raised(self, status: int, body: str) -> Exception:
        """What boto3 raises for an answer."""
        self._status, self._body = status, body.encode()
        with pytest.raises(FAILURES) as caught:
            self._client.complete_multipart_upload(Bucket="b", Key="k", UploadId="u", MultipartUpload={"Parts": []})
        error: Exception = caught.value
        return error

    def _answered(self, request: Any, **rest: Any) -> AWSResponse:
        raw = io.BytesIO(self._body)
        raw.stream = lambda *args, **more: iter([raw.read()])  # type: ignore[attr-defined]
        return AWSResponse(request.url, self._status, {}, raw)


@pytest.fixture(scope="module")
def completing() -> Completing:
    return Completing()


@pytest.mark.parametrize(
    ("status", "body", "meant"),
    [
        (200, error_body("InternalError"), Answer.UNCLEAR),
        (200, error_body("SlowDown"), Answer.NOT_DONE),
        (200, "<CompleteMultipartUploadResult><Loc", Answer.UNCLEAR),
        (500, error_body("InternalError"), Answer.UNCLEAR),
        (500, "", Answer.UNCLEAR),
        (502, "<html>", Answer.UNCLEAR),
        (503, error_body("SlowDown"), Answer.NOT_DONE),
        (503, error_body("ServiceUnavailable"), Answer.NOT_DONE),
        (429, error_body("TooManyRequests"), Answer.NOT_DONE),
        (400, error_body("RequestTimeout"), Answer.NOT_DONE),
        (400, error_body("ExpiredToken"), Answer.EXPIRED),
        (404, error_body("NoSuchUpload"), Answer.GONE),
        (404, error_body("NoSuchBucket"), Answer.REFUSED),
        (412, error_body("PreconditionFailed"), Answer.TAKEN),
        (412, "", Answer.TAKEN),
        (409, error_body("ConditionalRequestConflict"), Answer.BUSY),
        (409, error_body("OperationAborted"), Answer.BUSY),
        (400, error_body("InvalidPart"), Answer.INCOMPLETE),
        (400, error_body("EntityTooSmall"), Answer.REFUSED),
        (403, error_body("AccessDenied"), Answer.REFUSED),
        (403, error_body("InvalidAccessKeyId"), Answer.REFUSED),
    ],
)
def test_an_answer_is_read_as_what_it_says(completing: Completing, status: int, body: str, meant: Answer) -> None:
    assert classify(completing.raised(status, body)) is meant


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (ReadTimeoutError(endpoint_url="x"), Answer.UNCLEAR),
        (ConnectTimeoutError(endpoint_url="x"), Answer.UNCLEAR),
        (EndpointConnectionError(endpoint_url="x"), Answer.UNCLEAR),
        (CredentialRetrievalError(provider="x", error_msg="y"), Answer.EXPIRED),
        (NoCredentialsError(), Answer.REFUSED),
        (ValueError(), Answer.REFUSED),
    ],
)
def test_no_answer_is_read_as_what_it_leaves_open(error: Exception, meant: Answer) -> None:
    assert classify(error) is meant


@pytest.mark.parametrize(
    ("status", "code", "kind", "remedy"),
    [
        (503, "SlowDown", TransientError, "nothing, if it passes"),
        (403, "AccessDenied", TargetError, "s3:AbortMultipartUpload"),
        (403, "InvalidAccessKeyId", TargetError, "credentials that boto3 finds"),
        (404, "NoSuchBucket", TargetError, "create the bucket"),
        (400, "EntityTooSmall", TargetError, "correct the options"),
    ],
)
def test_errors_say_what_to_do_and_no_secret(
    completing: Completing, status: int, code: str, kind: type[Exception], remedy: str
) -> None:
    made = translated("completing s3://b/k", completing.raised(status, error_body(code)))
    assert type(made) is kind
    assert remedy in str(made)
    assert "hunter2" not in str(made)


def test_missing_credentials_are_told_as_such() -> None:
    assert "credentials that boto3 finds" in str(translated("completing s3://b/k", NoCredentialsError()))

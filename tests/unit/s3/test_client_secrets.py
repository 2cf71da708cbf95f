"""What a service says back of credentials, in what boto3's clients raise."""

from __future__ import annotations

import base64
import io
import json
import traceback
from collections.abc import Callable
from html import escape
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ClientError, HTTPClientError
from botocore.httpsession import URLLib3Session
from pydantic import SecretStr

from outfall.kinesis.stream import KinesisConnection
from outfall.s3.options import S3Connection
from outfall.s3.store import S3Access

KEY = base64.b64encode(b"0123456789hunter+3456789012345").decode()
TOKEN = "hunter/2+token=="
URL = "http://service.example"


class Body(io.BytesIO):
    def stream(self) -> list[bytes]:
        return [self.read()]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the service answer with a text that is made of the headers it was sent."""
    for name, value in (("ACCESS_KEY_ID", "AK"), ("SECRET_ACCESS_KEY", "hunter-secret"), ("SESSION_TOKEN", TOKEN)):
        monkeypatch.setenv(f"AWS_{name}", value)

    def answers(status: int, make: Callable[[str], str]) -> None:
        def send(self: Any, request: AWSPreparedRequest) -> AWSResponse:
            sent = {name: v.decode() if isinstance(v, bytes) else v for name, v in request.headers.items()}
            assert TOKEN in sent.values()
            if status == 0:
                raise HTTPClientError(error=make(f"{sent}"))
            body = make(f"{sent} and hunter-secret")
            return AWSResponse(request.url, status, {"Content-Type": "text/plain"}, Body(body.encode()))

        monkeypatch.setattr(URLLib3Session, "send", send)

    return answers


def s3() -> Any:
    return S3Access(
        S3Connection(endpoint_url=URL, region="us-east-1", path_style=True), sse_customer_key=SecretStr(KEY)
    ).make()


def kinesis() -> Any:
    return KinesisConnection(region="us-east-1", endpoint_url=URL).make()


def in_xml(text: str) -> str:
    return f"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>{escape(text)}</Message></Error>"


def in_json(text: str) -> str:
    return json.dumps({"__type": "AccessDeniedException", "message": text}).replace("/", "\\/")


CALLS: dict[str, tuple[int, Callable[[str], str], Callable[[], Any]]] = {
    "S3": (
        403,
        in_xml,
        lambda: s3().put_object(Bucket="b", Key="k", SSECustomerAlgorithm="AES256", SSECustomerKey=KEY),
    ),
    "no answer": (0, str, lambda: kinesis().describe_stream_summary(StreamName="s")),
    "Kinesis": (400, in_json, lambda: kinesis().describe_stream_summary(StreamName="s")),
}


@pytest.mark.parametrize("call", CALLS)
def test_credentials_that_a_service_says_back_are_in_no_error(call: str, said: Callable[..., None]) -> None:
    status, make, act = CALLS[call]
    said(status, make)
    with pytest.raises((ClientError, HTTPClientError)) as caught:
        act()
    text = "".join(traceback.format_exception(caught.value))
    assert "***" in text
    assert not any(secret in text for secret in ("hunter", KEY, base64.b64encode(KEY.encode()).decode()))


def test_credentials_that_kinesis_says_back_of_single_records_are_in_no_text(said: Callable[..., None]) -> None:
    said(200, lambda text: json.dumps({"FailedRecordCount": 1, "Records": [{"ErrorCode": "X", "ErrorMessage": text}]}))
    answer = kinesis().put_records(StreamName="s", Records=[{"Data": b"x", "PartitionKey": "y"}])
    assert "***" in answer["Records"][0]["ErrorMessage"]
    assert "hunter" not in str(answer)

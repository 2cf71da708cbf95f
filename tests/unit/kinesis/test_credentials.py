"""Credentials that are replaced while a process lives: by keys in a file, by a program that gives them."""

from __future__ import annotations

import io
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import CredentialRetrievalError
from botocore.httpsession import URLLib3Session
from urllib3 import HTTPResponse

from outfall.aws.client import AwsConnection
from outfall.errors import TargetError, TransientError
from outfall.kinesis import FirehoseSink, KinesisSink

SUMMARY = {
    "StreamName": "s", "StreamARN": "arn:aws:kinesis:us-east-1:123456789012:stream/s", "StreamStatus": "ACTIVE",
    "RetentionPeriodHours": 24, "StreamCreationTimestamp": 0, "EnhancedMonitoring": [], "OpenShardCount": 1,
}  # fmt: skip


class Account:
    """AWS where it checks who asks, and a file with keys that somebody else rotates."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.keys: list[str] = []
        """Of each request, in their order."""
        self.refusals: list[str] = []
        """Codes with which the next requests are refused; before each answer the file gets new keys."""
        self.rotate("KEY0")

    def rotate(self, key: str) -> None:
        self.file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=x\naws_session_token=t\n")

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        header = request.headers["Authorization"]
        found = re.search(r"Credential=([^/]+)/", header.decode() if isinstance(header, bytes) else header)
        assert found is not None
        self.keys.append(found[1])
        if not self.refusals:
            return self._answer(request, 200, self._accept(request))
        self.rotate(f"KEY{len(self.keys)}")
        return self._answer(request, 400, {"__type": self.refusals.pop(), "message": "said AWS"})

    def _accept(self, request: AWSPreparedRequest) -> dict[str, Any]:
        records = json.loads(request.body).get("Records", [])
        done: list[dict[str, Any]] = [{} for _ in records]
        return {"Records": done, "RequestResponses": done, "FailedPutCount": 0, "StreamDescriptionSummary": SUMMARY}

    def _answer(self, request: AWSPreparedRequest, status: int, body: dict[str, Any]) -> AWSResponse:
        content = io.BytesIO(json.dumps(body).encode())
        return AWSResponse(request.url, status, {}, HTTPResponse(content, status=status, preload_content=False))


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    account = Account(tmp_path / "credentials")
    monkeypatch.setattr(URLLib3Session, "send", account.send)
    return account


def sink(kind: Any = KinesisSink) -> Any:
    """One whose client no other test has."""
    address = f"http://{uuid.uuid4()}.invalid"
    return kind("s", region="us-east-1", endpoint_url=address, retry_backoff=0.001, retry_budget=1.0)


def write(made: Any) -> None:
    partition = made.delegate.open()
    try:
        partition.write_batch([{"id": 1}])
        partition.flush(True)
    finally:
        partition.close()


@pytest.mark.parametrize(
    ("kind", "codes"),
    [(KinesisSink, ["ExpiredTokenException", "UnrecognizedClientException"]), (FirehoseSink, ["RequestExpired"])],
)
def test_keys_that_were_rotated_in_their_file_are_read_again(account: Account, kind: Any, codes: list[str]) -> None:
    account.refusals = list(codes)
    made = sink(kind)
    write(made)
    write(made)
    keys = [f"KEY{number}" for number in range(len(codes) + 1)]
    assert account.keys == [*keys, keys[-1]]


def test_of_two_calls_that_failed_together_one_renews() -> None:
    made = []

    class Counting(AwsConnection):
        def make(self) -> Any:
            made.append(self)
            return object()

    access = Counting(region=str(uuid.uuid4()))
    first = access.client()
    access.renew(first)
    second = access.client()
    access.renew(first)
    assert access.client() is second is not first
    assert len(made) == 2


@pytest.mark.thorough
def test_who_looks_at_a_stream_hears_of_stale_credentials_and_has_new_ones_the_next_time(account: Account) -> None:
    account.refusals = ["ExpiredTokenException"]
    made = sink()
    with pytest.raises(TargetError, match=r"ExpiredTokenException.*or the credentials"):
        made.check_connection()
    assert "is ACTIVE" in made.check_connection()[0]
    assert account.keys == ["KEY0", "KEY1"]


def test_a_program_for_credentials_that_fails_may_do_so_once(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    make, failures = AwsConnection.make, [CredentialRetrievalError(provider="custom-process", error_msg="exit 1")]
    account.refusals = ["ExpiredTokenException"]

    def failing(access: AwsConnection) -> Any:
        if account.keys and failures:
            raise failures.pop()
        return make(access)

    monkeypatch.setattr(AwsConnection, "make", failing)
    write(sink())
    assert (account.keys, failures) == (["KEY0", "KEY1"], [])
    failures.append(CredentialRetrievalError(provider="custom-process", error_msg="exit 1"))
    with pytest.raises(TransientError, match=r"cannot create a client for kinesis:us-east-1/s now.*exit 1"):
        sink().delegate.open()

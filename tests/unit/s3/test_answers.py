"""What S3's answers mean, as boto3 itself reads them: each goes through its parser and its handlers."""

from __future__ import annotations

import io
import ssl
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
import urllib3.exceptions
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.util.ssl_match_hostname import CertificateError

from outfall.errors import TargetError, TransientError
from outfall.s3.errors import FAILURES, FailureKind, asked, classify, translated


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
        (200, error_body("InternalError"), FailureKind.UNCLEAR),
        (200, error_body("SlowDown"), FailureKind.NOT_DONE),
        (200, "<CompleteMultipartUploadResult><Loc", FailureKind.UNCLEAR),
        (500, error_body("InternalError"), FailureKind.UNCLEAR),
        (500, "", FailureKind.UNCLEAR),
        (502, "<html>", FailureKind.UNCLEAR),
        (503, error_body("SlowDown"), FailureKind.NOT_DONE),
        (503, error_body("ServiceUnavailable"), FailureKind.NOT_DONE),
        (429, error_body("TooManyRequests"), FailureKind.NOT_DONE),
        (400, error_body("RequestTimeout"), FailureKind.NOT_DONE),
        (400, error_body("ExpiredToken"), FailureKind.EXPIRED),
        (404, error_body("NoSuchUpload"), FailureKind.GONE),
        (404, error_body("NoSuchBucket"), FailureKind.REFUSED),
        (501, error_body("NotImplemented"), FailureKind.REFUSED),
        (501, "<html>", FailureKind.REFUSED),
        (400, error_body("BadDigest"), FailureKind.NOT_DONE),
        (400, error_body("IncompleteBody"), FailureKind.NOT_DONE),
        (400, error_body("XAmzContentSHA256Mismatch"), FailureKind.NOT_DONE),
        (400, error_body("XAmzContentChecksumMismatch"), FailureKind.NOT_DONE),
        (412, error_body("PreconditionFailed"), FailureKind.TAKEN),
        (412, "", FailureKind.TAKEN),
        (409, error_body("ConditionalRequestConflict"), FailureKind.BUSY),
        (409, error_body("OperationAborted"), FailureKind.BUSY),
        (400, error_body("InvalidPart"), FailureKind.INCOMPLETE),
        (400, error_body("EntityTooSmall"), FailureKind.REFUSED),
        (403, error_body("AccessDenied"), FailureKind.REFUSED),
        (403, error_body("InvalidAccessKeyId"), FailureKind.REFUSED),
    ],
)
def test_an_answer_is_read_as_what_it_says(completing: Completing, status: int, body: str, meant: FailureKind) -> None:
    assert classify(completing.raised(status, body)) is meant


def tls_error(cause: Exception) -> SSLError:
    """An error as boto3 raises it: urllib3's is in it, and whose cause is in that one."""
    try:
        try:
            raise cause
        except Exception as error:
            raise urllib3.exceptions.SSLError(error) from error
    except urllib3.exceptions.SSLError as error:
        return SSLError(endpoint_url="https://s3.example", error=error)


UNTRUSTED = tls_error(ssl.SSLCertVerificationError(1, "self-signed certificate"))


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (UNTRUSTED, FailureKind.REFUSED),
        (tls_error(CertificateError("hostname 'a' doesn't match 'b'")), FailureKind.REFUSED),
        (tls_error(ssl.SSLEOFError(8, "EOF occurred in violation of protocol")), FailureKind.UNCLEAR),
        (ReadTimeoutError(endpoint_url="x"), FailureKind.UNCLEAR),
        (ConnectTimeoutError(endpoint_url="x"), FailureKind.UNCLEAR),
        (EndpointConnectionError(endpoint_url="x"), FailureKind.UNCLEAR),
        (CredentialRetrievalError(provider="x", error_msg="y"), FailureKind.EXPIRED),
        (NoCredentialsError(), FailureKind.REFUSED),
        (ValueError(), FailureKind.REFUSED),
    ],
)
def test_no_answer_is_read_as_what_it_leaves_open(error: Exception, meant: FailureKind) -> None:
    assert classify(error) is meant


@pytest.mark.parametrize(
    ("status", "code", "kind", "remedy"),
    [
        (503, "SlowDown", TransientError, "if the query has failed, start it again: no rows are lost"),
        (403, "AccessDenied", TargetError, "s3:AbortMultipartUpload"),
        (403, "RequestTimeTooSkewed", TargetError, "set the clock"),
        (501, "NotImplemented", TargetError, "the option that the store does not support"),
        (400, "BadDigest", TransientError, "if the query has failed, start it again: no rows are lost"),
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


def test_a_certificate_that_is_not_trusted_is_told_as_such() -> None:
    made = translated("completing s3://b/k", UNTRUSTED)
    assert type(made) is TargetError
    assert "AWS_CA_BUNDLE" in str(made)


def test_missing_credentials_are_told_as_such() -> None:
    assert "credentials that boto3 finds" in str(translated("completing s3://b/k", NoCredentialsError()))


# --- whether a response is whole, and the one that was asked for

ETAG = '"d41d8cd98f00b204e9800998ecf8427e"'
PAGE = {"Name": "b", "Prefix": "p/", "KeyCount": 1, "IsTruncated": False, "Contents": [{"Key": "p/a"}]}
LISTED = {"Bucket": "b", "Prefix": "p/"}
OBJECTS = {"Delete": {"Objects": [{"Key": "a"}, {"Key": "c"}]}}


def head(**headers: str) -> dict[str, Any]:
    return {"ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": headers}}


WHOLE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("list_objects_v2", LISTED, PAGE),
    ("list_objects_v2", LISTED | {"Bucket": "arn:aws:s3:x:accesspoint/y"}, PAGE),
    ("list_objects_v2", LISTED, {"Name": "b", "Prefix": "p/", "IsTruncated": False}),  # rclone counts no keys
    ("list_objects_v2", LISTED | {"Prefix": "p%20/"}, PAGE | {"Prefix": "p /", "Contents": [{"Key": "p%20/a"}]}),
    ("upload_part", {}, {"ETag": ETAG, "ChecksumCRC32": "AAAAAA=="}),
    ("upload_part", {}, {"ETag": "not quoted"}),
    ("get_object", {}, head(**{"content-length": "0"}) | {"ETag": ETAG}),
    ("get_object", {}, head(**{"transfer-encoding": "chunked"}) | {"ETag": ETAG}),
    ("get_bucket_versioning", {}, head(**{"content-length": "90"})),
    ("delete_objects", OBJECTS, {"Deleted": [{"Key": "a"}], "Errors": [{"Key": "c"}]}),
    ("delete_object", {}, {}),
]


@pytest.mark.parametrize(("request_", "sent", "answer"), WHOLE)
def test_a_response_that_is_whole_is_returned(request_: str, sent: dict[str, Any], answer: dict[str, Any]) -> None:
    assert asked(lambda: answer, request_, sent) is answer


@pytest.mark.parametrize(
    ("request_", "sent", "answer", "flaw"),
    [
        ("list_objects_v2", LISTED, {}, "Name is missing"),
        ("list_objects_v2", LISTED, PAGE | {"IsTruncated": None}, "IsTruncated is missing"),
        ("list_objects_v2", LISTED, PAGE | {"Name": "other"}, "Name is 'other'"),
        ("list_objects_v2", LISTED, PAGE | {"Prefix": "q/"}, "Prefix is 'q/'"),
        ("list_objects_v2", LISTED, PAGE | {"KeyCount": 2}, "it has 1 keys, but KeyCount is 2"),
        ("list_objects_v2", LISTED, PAGE | {"IsTruncated": True}, "NextContinuationToken is missing"),
        ("list_objects_v2", LISTED, PAGE | {"Contents": [{"Key": "q/a"}]}, "it has the key 'q/a'"),
        ("list_objects_v2", LISTED | {"StartAfter": "p/b"}, PAGE, "it has the key 'p/a'"),
        ("list_multipart_uploads", LISTED, {}, "Bucket is missing"),
        ("list_parts", {"Key": "k", "UploadId": "u"}, {"Key": "k", "UploadId": "v"}, "UploadId is 'v'"),
        ("create_multipart_upload", {"Key": "k"}, {"Key": "l", "UploadId": "u"}, "Key is 'l'"),
        ("create_multipart_upload", {"Key": "k"}, {"Key": "k"}, "UploadId is missing"),
        ("complete_multipart_upload", {"Key": "k"}, {}, "Key is missing"),
        ("upload_part", {}, {}, "ETag is missing"),
        ("upload_part", {}, {"ETag": ETAG[:20]}, "ETag is truncated"),
        ("upload_part", {}, {"ETag": '"'}, "ETag is truncated"),
        ("upload_part", {}, {"ETag": ETAG, "ChecksumSHA256": "AAAAAA"}, "ChecksumSHA256 is truncated"),
        ("upload_part_copy", {}, {}, "CopyPartResult is missing"),
        ("upload_part_copy", {}, {"CopyPartResult": {"LastModified": 0}}, "ETag is missing"),
        ("put_object", {}, {}, "ETag is missing"),
        ("get_object", {}, head() | {"ETag": ETAG}, "its headers are truncated"),
        ("get_object", {}, head(**{"content-length": ""}) | {"ETag": ETAG}, "its headers are truncated"),
        ("head_object", {}, {"ETag": ETAG}, "ContentLength is missing"),
        ("delete_objects", OBJECTS, {}, "it has no result for 'a'"),
        ("delete_objects", OBJECTS, {"Deleted": [{"Key": "a"}]}, "it has no result for 'c'"),
        ("get_bucket_versioning", {}, head(**{"content-length": "0"}), "it is empty"),
        ("get_bucket_versioning", {}, head(), "its headers are truncated"),
    ],
)
def test_a_response_that_is_not_whole_or_of_another_request_says_nothing(
    request_: str, sent: dict[str, Any], answer: dict[str, Any], flaw: str
) -> None:
    with pytest.raises(FAILURES, match=flaw) as caught:
        asked(lambda: answer, request_, sent)
    assert classify(caught.value) is FailureKind.UNCLEAR


def test_a_status_whose_head_is_cut_off_says_nothing_either() -> None:
    for headers, meant in (({}, FailureKind.UNCLEAR), ({"content-length": "0"}, FailureKind.GONE)):
        response: Any = head(**headers) | {"Error": {"Code": "404", "Message": "Not Found"}}
        send = Mock(side_effect=ClientError(response, "GetObject"))
        with pytest.raises(FAILURES) as caught:
            asked(send, "get_object", {})
        assert classify(caught.value) is meant

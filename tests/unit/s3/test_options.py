"""Options of `S3Sink`, and what they add to requests."""

from __future__ import annotations

import base64
import pickle
import uuid
from dataclasses import dataclass
from typing import Any

import boto3
import pytest

from outfall.capabilities import Guarantee
from outfall.capability_checks import check_sink, resolve
from outfall.errors import ConfigurationError
from outfall.s3 import S3Sink, sink_from_options
from outfall.s3.staged import StagedObject, UploadedPart
from outfall.source_options import make_sink
from outfall.testing import LocalDriver
from tests.unit.support.fake_s3 import FakeS3

KEY = base64.b64encode(b"k" * 32).decode()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "bucket or path is missing"),
        ({"bucket": "b", "path": "s3://b/x"}, "give either path, or bucket and prefix"),
        ({"path": "gs://b/x"}, "is not supported"),
        ({"path": "/data/x"}, "is not s3://bucket/prefix"),
        ({"path": "s3://b/x/_outfall/y"}, "where a sink keeps its own objects"),
        ({"path": "s3://key:hunter2@b/x"}, "contains credentials"),
        ({"bucket": "s3://lake/x"}, "name of a bucket alone"),
        ({"bucket": "lake/x"}, "name of a bucket alone"),
        ({"bucket": "key:hunter2@b"}, "name of a bucket alone"),
        ({"bucket": "arn:aws:s3::123456789012:accesspoint/a.mrap"}, "name of a bucket alone"),
        ({"path": "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/a/x"}, "name of a bucket alone"),
        ({"path": "s3://b/x?token=hunter2"}, "contains credentials or a query"),
        ({"bucket": "b", "prefix": 5}, "prefix must be a string"),
        ({"bucket": "b", "prefix": "x" * 513}, "longer than 512 bytes"),
        ({"bucket": "b", "prefix": "x//y"}, "has an empty level"),
        ({"path": "s3://b/x//y"}, "has an empty level"),
        ({"bucket": "b", "prefix": "x/../../y"}, r"level '\.' or '\.\.'"),
        ({"path": "s3://b/x/./y"}, r"level '\.' or '\.\.'"),
        ({"bucket": "b", "prefix": "x\ny"}, "control characters"),
        ({"bucket": "b", "part_bytes": "4 MiB"}, "part_bytes"),
        ({"bucket": "b", "part_bytes": "6 GiB"}, "part_bytes"),
        ({"bucket": "b", "max_concurrency": 0}, "max_concurrency"),
        ({"bucket": "b", "inline_bytes": "2 MiB"}, "inline_bytes"),
        ({"bucket": "b", "checksum": "MD5"}, "checksum"),
        ({"bucket": "b", "sse": "none"}, "sse"),
        ({"bucket": "b", "sse_kms_key_id": "k"}, "requires sse aws:kms"),
        ({"bucket": "b", "sse": "AES256", "sse_customer_key": KEY}, "leave sse out"),
        ({"bucket": "b", "acl": "all"}, "acl"),
        ({"bucket": "b", "tags": "no pairs"}, "name=value"),
        ({"bucket": "b", "tags": {str(i): "x" for i in range(11)}}, "S3 allows ten"),
        ({"bucket": "b", "endpoint_url": "https://me:hunter2@x"}, "no credentials"),
        ({"bucket": "b", "endpoint_url": "x:9000"}, "http or https URL"),
        ({"bucket": "b", "session_factory": "aws"}, "session_factory is not callable"),
        ({"bucket": "b", "storageclass": "x"}, "did you mean storage_class"),
    ],
)
def test_options_that_are_wrong_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        S3Sink(**options)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "bucket", "root"),
    [
        ({"bucket": "b"}, "b", ""),
        ({"bucket": "b", "prefix": "/x/y/"}, "b", "x/y/"),
        ({"bucket": "b", "prefix": "//"}, "b", ""),
        ({"bucket": "My_old.bucket", "prefix": "x%20y/a:b@c"}, "My_old.bucket", "x%20y/a:b@c/"),
        ({"path": "s3://b/x y/ü=+"}, "b", "x y/ü=+/"),
        ({"path": "S3A://b"}, "b", ""),
    ],
)
def test_bucket_and_prefix_are_understood(options: dict[str, Any], bucket: str, root: str) -> None:
    sink = S3Sink(**options)
    assert (sink.options.bucket, sink.options.root) == (bucket, root)
    assert sink.target() == f"s3://{bucket}/{root}".rstrip("/")
    assert S3Sink(path=sink.target()).options == sink.options


@pytest.mark.parametrize("prefix", ["a#b", "a?b=c", "#"])
def test_a_prefix_is_a_key_and_no_url(prefix: str) -> None:
    fake = FakeS3()
    LocalDriver(fake.sink(prefix), f"memory://{uuid.uuid4().hex}").run_epoch(0, [[{"id": 1}]])
    assert all(key.startswith(f"{prefix}/") for key in fake.objects)
    assert len(fake.data()) == 1


@pytest.mark.parametrize(
    "arn",
    [
        "arn:aws:s3:us-west-2:123456789012:accesspoint/lake",
        "arn:aws-cn:s3:cn-north-1:123456789012:accesspoint:lake",
        "arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-01/accesspoint/lake",
    ],
)
def test_an_access_point_stands_for_a_bucket_and_boto3_takes_it(arn: str) -> None:
    sink = S3Sink(arn, "x/y")
    assert (sink.options.bucket, sink.options.root, sink.target()) == (arn, "x/y/", f"s3://{arn}/x/y")
    client = boto3.client("s3", region_name=arn.split(":")[3], aws_access_key_id="a", aws_secret_access_key="b")
    url = client.generate_presigned_url("put_object", {"Bucket": arn, "Key": f"{sink.options.root}k"})
    assert url.startswith("https://lake-123456789012.")
    assert url.partition("?")[0].endswith("/x/y/k")


def test_spark_options_and_arguments_make_the_same_sink() -> None:
    sink = make_sink("s3", {"path": "s3a://b/x", "partBytes": "16 MiB", "sseCustomerKey": KEY, "pathstyle": "true"})
    assert isinstance(sink, S3Sink)
    assert sink.options == S3Sink("b", "x", part_bytes=16 << 20, sse_customer_key=KEY, path_style=True).options
    with pytest.raises(ConfigurationError, match="unknown"):
        sink_from_options({"bucket": "b", "session_factory": "x"})


def test_a_sink_survives_pickling_and_shows_no_secret() -> None:
    sink = S3Sink("b", "x", sse_customer_key=KEY, tags={"a b": "c&d"}, session_factory=boto3.session.Session)
    back = pickle.loads(pickle.dumps(sink))
    assert back.options == sink.options
    assert back.session_factory is boto3.session.Session
    check_sink(sink)
    assert resolve(sink).guarantee() is Guarantee.EXACTLY_ONCE
    assert not any(KEY in text for text in (repr(sink), str(sink.options), sink.target()))


@pytest.mark.parametrize("key", ["short", base64.b64encode(b"x" * 31).decode(), "env:OUTFALL_NO_SUCH"])
def test_a_customer_key_that_cannot_be_used_stops_the_query_before_the_first_row(key: str) -> None:
    fake = FakeS3()
    with pytest.raises(ConfigurationError, match=r"sse_customer_key|OUTFALL_NO_SUCH") as caught:
        LocalDriver(fake.sink(sse_customer_key=key), "memory://no-such-key").run_epoch(0, [[{"id": 1}]])
    assert f"{key!r}" not in str(caught.value)
    assert fake.calls == []


def test_options_are_added_to_the_requests_that_take_them() -> None:
    fake = FakeS3()
    options: dict[str, Any] = {
        "sse_customer_key": KEY, "acl": "bucket-owner-full-control", "storage_class": "STANDARD_IA",
        "tags": {"a b": "c&d"}, "checksum": "SHA256", "requester_pays": True, "inline_bytes": 12,
    }  # fmt: skip
    LocalDriver(fake.sink(**options), "memory://requests").run_epoch(0, [[{"id": 1}], [{"id": 2}, {"id": 3}]])
    assert all(sent["RequestPayer"] == "requester" for _, sent in fake.calls)
    customer = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": KEY}
    for name in ("create_multipart_upload", "upload_part", "complete_multipart_upload", "put_object", "get_object"):
        assert all(customer.items() <= sent.items() for sent in fake.requests(name)), name
    creations = [*fake.requests("create_multipart_upload"), *fake.requests("put_object")]
    assert all(sent["ACL"] == "bucket-owner-full-control" for sent in creations)
    data = [sent for sent in creations if "_outfall/" not in sent["Key"]]
    assert len(data) == 2
    assert all((sent["StorageClass"], sent["Tagging"]) == ("STANDARD_IA", "a+b=c%26d") for sent in data)
    assert not any("StorageClass" in sent for sent in creations if "_outfall/" in sent["Key"])
    assert all(sent["ChecksumAlgorithm"] == "SHA256" for sent in creations + fake.requests("upload_part"))


def test_kms_is_asked_for_by_its_key() -> None:
    fake = FakeS3()
    LocalDriver(fake.sink(sse="aws:kms", sse_kms_key_id="arn"), "memory://kms").run_epoch(0, [[{"id": 1}]])
    created = fake.requests("create_multipart_upload")
    assert all((sent["ServerSideEncryption"], sent["SSEKMSKeyId"]) == ("aws:kms", "arn") for sent in created)


def test_rolling_is_refused_where_the_number_of_tasks_cannot_be_fixed() -> None:
    with pytest.raises(ConfigurationError, match="keeps state per worker") as refused:
        make_sink("s3", {"path": "s3://b/p", "rollBytes": "128 MiB"})
    assert "write_stream(df, sink, workers=…, checkpoint=…)" in str(refused.value)


@pytest.mark.parametrize("options", [{"roll_bytes": 0}, {"roll_rows": 0}, {"roll_interval": 0}])
def test_bounds_of_nothing_are_refused(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        S3Sink("b", **options)


@pytest.mark.parametrize("bound", [{"roll_bytes": "1 MiB"}, {"roll_rows": 9}])
def test_directories_of_a_time_need_a_bound_of_time(bound: Any) -> None:
    """Their last rows would wait for ever, each directory in every state after it."""
    with pytest.raises(ConfigurationError, match="add roll_interval"):
        S3Sink("b", directory_pattern="'dt='yyyy-MM-dd", **bound)
    S3Sink("b", directory_pattern="'dt='yyyy-MM-dd", roll_interval="1 hour", **bound)
    S3Sink("b", partition_by="carrier", **bound)
    S3Sink("b", directory_pattern="'dt='yyyy-MM-dd")


def test_one_client_serves_all_requests_of_a_process_with_the_same_options() -> None:
    fake = FakeS3()
    LocalDriver(fake.sink(), "memory://clients").run_epoch(0, [[{"id": 1}]] * 3)
    assert fake.sessions == 1
    LocalDriver(fake.sink("other", connect_timeout=3), "memory://clients-too").run_epoch(0, [[{"id": 1}]])
    assert fake.sessions == 2
    assert fake.settings["config"].connect_timeout == 3
    assert fake.settings["config"].retries == {"mode": "adaptive", "total_max_attempts": 1}


def test_a_session_factory_may_be_a_data_class() -> None:
    """It has no hash, and each task unpickles one of its own, which is equal."""

    @dataclass
    class Assumed:
        role: str

        def __call__(self) -> FakeS3:
            return fake()

    fake = FakeS3()
    sinks = [S3Sink("bkt", "out", session_factory=Assumed(role), inline_bytes=0) for role in ("one", "one", "other")]
    for sink in sinks:
        assert list(sink.store.keys("out/")) == []
    assert fake.sessions == 2


def test_the_etag_of_an_upload_is_that_of_its_parts() -> None:
    """The example of the S3 User Guide's way to compute it: MD5 over the MD5s, and how many there are."""
    parts = tuple(
        UploadedPart(number=number, etag=f'"{etag}"')
        for number, etag in ((1, "9e107d9d372bb6826bd81d3542a419d6"), (2, "e4d909c290d0fb1ca068ffaddf22cbd0"))
    )
    staged = StagedObject(bucket="b", key="k", id="i", size=1, rows=1, upload_id="u", parts=parts)
    assert staged.etag() == "17b630c8d385a942f1d3f7d0ca327a6c-2"  # md5sum of the 32 bytes
    kms = staged.model_copy(update={"parts": (UploadedPart(number=1, etag='"no MD5"'),)})
    assert kms.etag() is None

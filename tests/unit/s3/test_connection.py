"""What `outfall doctor` finds out of a bucket, and that nothing of it stays."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError

from outfall.cli.commands.doctor import Examination
from outfall.errors import TargetError, TransientError
from outfall.testing import LocalDriver
from tests.unit.support.fake_s3 import FakeS3, answer, timed_out

CONDITION = "If-None-Match"
ROLLS: dict[str, Any] = {"roll_rows": 10}


def check(fake: FakeS3, **options: Any) -> list[str]:
    return list(fake.sink(**options).check_connection())


def test_all_that_the_sink_needs_is_tried_and_nothing_stays() -> None:
    fake = FakeS3()
    fake.put("out/old.jsonl")
    assert check(fake) == [
        "s3://bkt/out responds; objects below it may be listed and read",
        "an upload was begun below s3://bkt/out, received a part, and was aborted; completion was not tested",
        "the store supports If-None-Match and If-Match",
    ]
    assert list(fake.objects) == ["out/old.jsonl"]
    assert fake.uploads == {}
    touched = {call["Key"] for request, call in fake.calls if "Key" in call}
    assert len(touched) == 1, touched
    assert touched.pop().startswith("out/_outfall/.doctor-")


def test_uploads_are_asked_for_as_data_is() -> None:
    fake = FakeS3()
    check(fake, storage_class="STANDARD_IA", tags="team=air", sse="AES256", requester_pays=True)
    first = fake.requests("create_multipart_upload")[0]
    assert (first["StorageClass"], first["Tagging"], first["ServerSideEncryption"]) == (
        "STANDARD_IA", "team=air", "AES256",
    )  # fmt: skip
    assert all("RequestPayer" in call for request, call in fake.calls if request != "get_bucket_versioning")
    assert fake.requests("get_bucket_versioning") == [{"Bucket": "bkt"}]


@pytest.mark.parametrize(
    ("request_name", "text"),
    [
        ("list_objects_v2", "listing s3://bkt/out/ failed"),
        ("get_object", "reading s3://bkt/out/_outfall/"),
        ("create_multipart_upload", "beginning the upload of"),
        ("upload_part", "sending a part of"),
        ("list_parts", "listing the parts of"),
        ("list_multipart_uploads", "listing uploads below s3://bkt/out"),
    ],
)
def test_a_missing_right_is_named_and_nothing_stays(request_name: str, text: str) -> None:
    fake = FakeS3()
    fake.fail(request_name, answer(403, "AccessDenied", "not you"), times=1000)
    with pytest.raises(TargetError, match=r"AccessDenied \(HTTP 403\): not you.*What to do: grant") as refused:
        check(fake)
    assert text in refused.value.what
    assert fake.objects == {}
    assert fake.uploads == {}


def test_without_the_right_to_abort_it_is_said_what_stays() -> None:
    fake = FakeS3()
    fake.fail("abort_multipart_upload", answer(403, "AccessDenied"), times=1000)
    with pytest.raises(
        TargetError, match=r"aborting the upload upload-00001 of s3://bkt/out/_outfall/.*which otherwise remains"
    ):
        check(fake)


def test_an_upload_whose_beginning_was_not_answered_is_aborted_too() -> None:
    fake = FakeS3()
    fake.versioning = "Enabled"
    fake.fail("create_multipart_upload", timed_out(), after=True)
    check(fake)
    assert len(fake.requests("create_multipart_upload")) == 2
    assert fake.uploads == {}


def test_a_store_that_stays_silent_is_told_after_the_deadline_and_nothing_stays() -> None:
    fake = FakeS3()
    fake.fail("upload_part", answer(503, "SlowDown"), times=1000)
    with pytest.raises(TransientError, match="sending a part"):
        check(fake, retry_deadline=0.01)
    assert fake.uploads == {}


def test_a_missing_bucket_and_missing_credentials_say_what_to_do() -> None:
    fake = FakeS3()
    fake.fail("list_objects_v2", answer(404, "NoSuchBucket"))
    with pytest.raises(TargetError, match="create the bucket"):
        check(fake)
    fake.fail("list_objects_v2", NoCredentialsError())
    with pytest.raises(TargetError, match="credentials that boto3 finds"):
        check(fake)


# --- conditions


def test_a_store_that_ignores_conditions_is_told_and_nothing_stays() -> None:
    fake = FakeS3(conditional=False)
    assert "does not support If-None-Match" in check(fake)[-1]
    assert fake.objects == {}
    assert fake.uploads == {}


@pytest.mark.parametrize("inline_bytes", [0, 1000])
def test_a_store_that_does_not_know_conditions_gets_none(inline_bytes: int) -> None:
    fake = FakeS3()
    fake.knows_conditions = False
    assert "does not support If-None-Match" in check(fake)[-1]
    assert fake.objects == {}
    LocalDriver(fake.sink(inline_bytes=inline_bytes), f"memory://{uuid.uuid4().hex}").run_epoch(0, [[{"id": 1}]])
    assert list(fake.data().values()) == [b'{"id":1}\n']


def test_a_store_that_lacks_only_one_of_the_conditions_is_told() -> None:
    fake = FakeS3()
    fake.mark(created="2026-11-23", matching=False)
    found = check(fake)[-1]
    assert found.startswith("the store supports If-None-Match; it does not support If-Match: start only one query")


def test_what_a_query_has_found_out_is_taken_from_its_record() -> None:
    fake = FakeS3(conditional=False)
    LocalDriver(fake.sink(), f"memory://{uuid.uuid4().hex}").run_epoch(0, [[]])
    fake.calls.clear()
    found = check(fake)[-1]
    assert "does not support If-None-Match" in found
    assert "does not support If-Match" in found
    assert "as the step 'sink' found at 20" in found
    assert fake.requests("put_object") == []


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
def test_where_versions_are_kept_no_object_is_put(status: str) -> None:
    fake = FakeS3()
    fake.versioning = status
    assert check(fake)[-1] == (
        "support for If-None-Match and If-Match is tested when the query first starts: the bucket is versioned,"
        " so deleted objects remain as old versions"
    )
    assert fake.requests("put_object") + fake.requests("delete_object") == []


def test_where_nobody_tells_whether_versions_are_kept_no_object_is_put() -> None:
    fake = FakeS3()
    fake.fail("get_bucket_versioning", answer(501, "NotImplemented"))
    assert "does not report whether it is versioned (NotImplemented (HTTP 501))" in check(fake)[-1]
    assert fake.requests("put_object") + fake.requests("delete_object") == []


def test_where_nothing_may_be_deleted_no_object_is_put() -> None:
    fake = FakeS3()
    fake.fail("delete_object", answer(403, "AccessDenied"), times=1000)
    assert "deleting is not permitted (AccessDenied (HTTP 403))" in check(fake)[-1]
    assert fake.requests("put_object") == []


@pytest.mark.parametrize("when", ["the second put", "completing"])
def test_a_look_at_conditions_that_fails_leaves_nothing(when: str) -> None:
    fake = FakeS3()
    refusal = answer(400, "InvalidRequest")
    if when == "completing":
        fake.fail("complete_multipart_upload", refusal)
    else:
        fake.during = lambda request: _second_put(fake, refusal)
    with pytest.raises(TargetError, match="testing the features of s3://bkt/out failed"):
        check(fake)
    assert fake.objects == {}
    assert fake.uploads == {}


def _second_put(fake: FakeS3, error: Exception) -> None:
    if len(fake.requests("put_object")) == 2 and fake.calls[-1][0] == "put_object":
        raise error


def test_the_object_that_tells_is_removed_again_if_it_was_not_at_once() -> None:
    fake = FakeS3()
    fake.during = lambda request: _second_delete(fake)
    check(fake)
    assert len(fake.requests("delete_object")) == 3
    assert fake.objects == {}


def _second_delete(fake: FakeS3) -> None:
    if fake.calls[-1][0] == "delete_object" and len(fake.requests("delete_object")) == 2:
        raise answer(503, "SlowDown")


# --- deleting


@pytest.mark.parametrize("options", [ROLLS, {"on_existing": "overwrite"}])
def test_deleting_is_tried_where_the_sink_needs_it(options: dict[str, Any]) -> None:
    fake = FakeS3()
    assert "objects below s3://bkt/out may be deleted" in check(fake, **options)
    fake.versioning = "Enabled"
    assert any(line.startswith("permission to delete objects was not tested") for line in check(fake, **options))
    fake.versioning = ""
    fake.fail("delete_object", answer(403, "AccessDenied"), times=1000)
    with pytest.raises(TargetError, match=r"deleting below s3://bkt/out failed.*s3:DeleteObject"):
        check(fake, **options)
    assert fake.objects == {}
    assert fake.uploads == {}


def test_the_doctor_says_so() -> None:
    fake = FakeS3()
    findings = list(Examination(fake.sink, None).run())
    assert [finding.result for finding in findings if finding.about == "connection"] == ["ok"] * 3
    fake.fail("upload_part", answer(403, "AccessDenied"))
    (failed,) = (finding for finding in Examination(fake.sink, None).run() if finding.result == "failed")
    assert failed.about == "connection"
    assert "What to do: grant" in failed.text

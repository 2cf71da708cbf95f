"""Every answer that publishing may get, and what follows from it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from outfall.capabilities import CommitRequest, CommitterInitContext, WriterInitContext
from outfall.errors import (
    CommitRefusedError,
    FencedError,
    LostCommittableError,
    TargetError,
    TargetLostError,
    TransientError,
)
from outfall.s3.commit import S3Staging
from outfall.s3.staged import ID, StagedObject
from outfall.storage.commit import Found, StorageCommitter
from outfall.testing import LocalDriver
from outfall.trace_points import listen
from tests.unit.support.fake_s3 import CRC, OURS, FakeS3, answer, timed_out


def staged(fake: FakeS3, *, inline: bool = False, count: int = 1, **options: Any) -> list[StagedObject]:
    """Objects of one epoch, ready to be committed."""
    sink = fake.sink(inline_bytes="1 KiB" if inline else 0, **options)
    fake.mark()
    found = []
    for attempt in range(count):
        context = WriterInitContext("sink", OURS, 1, 0, None, attempt, attempt, count)
        part = sink.bind(context).build("sink", attempt, count)
        part.write_batch([{"id": attempt}])
        found += part.prepare_commit()
        part.close()
    fake.calls.clear()
    return found


def committer(fake: FakeS3, **options: Any) -> StorageCommitter[StagedObject]:
    return fake.sink(**options).create_committer(CommitterInitContext("sink", OURS, 1, 0))


def committed(fake: FakeS3, found: StagedObject, **options: Any) -> CommitRequest[StagedObject]:
    request = CommitRequest(found)
    committer(fake, **options).commit([request])
    return request


def complete_and(request: str, error: Exception) -> Callable[[FakeS3, StagedObject], None]:
    return lambda fake, found: fake.fail(request, error, after=True)


def refuse(request: str, error: Exception, times: int = 1) -> Callable[[FakeS3, StagedObject], None]:
    return lambda fake, found: fake.fail(request, error, times=times)


def theirs(fake: FakeS3, found: StagedObject) -> None:
    fake.put(found.key)


def theirs_of_our_size(fake: FakeS3, found: StagedObject) -> None:
    fake.put(found.key, b"x" * found.size)


def done_before(fake: FakeS3, found: StagedObject) -> None:
    assert committed(fake, found).outcome.kind == "committed"


def gone(fake: FakeS3, found: StagedObject) -> None:
    fake.uploads.clear()


def gone_and_theirs(fake: FakeS3, found: StagedObject) -> None:
    gone(fake, found)
    fake.put(found.key)


def part_gone(fake: FakeS3, found: StagedObject) -> None:
    fake.uploads[found.upload_id or ""].parts.clear()


def gone_by_moto(fake: FakeS3, found: StagedObject) -> None:
    """moto answers 500 where S3 answers that there is no such upload."""
    gone(fake, found)
    fake.fail("complete_multipart_upload", answer(500, "InternalError"), times=9)


COMPLETE = "complete_multipart_upload"
UPLOADED = {
    "nothing": (lambda *_: None, "committed"),
    "500 after success": (complete_and(COMPLETE, answer(500, "InternalError")), "already committed"),
    "time-out after success": (complete_and(COMPLETE, timed_out()), "already committed"),
    "500": (refuse(COMPLETE, answer(500, "InternalError")), "retry"),
    "time-out": (refuse(COMPLETE, timed_out()), "retry"),
    "503": (refuse(COMPLETE, answer(503, "SlowDown")), "retry"),
    "409": (refuse(COMPLETE, answer(409, "ConditionalRequestConflict")), "retry"),
    "409 after success": (complete_and(COMPLETE, answer(409, "ConditionalRequestConflict")), "already committed"),
    "expired credentials": (refuse(COMPLETE, answer(400, "ExpiredToken")), "retry"),
    "no such upload after success": (done_before, "already committed"),
    "412, theirs": (theirs, "known failure"),
    "412, theirs of our size": (theirs_of_our_size, "known failure"),
    "no such upload": (gone, "lost"),
    "no such upload, and theirs is there": (gone_and_theirs, "lost"),
    "no such upload, answered as 500": (gone_by_moto, "lost"),
    "no such part": (part_gone, "lost"),
}


@pytest.mark.parametrize(("happens", "outcome"), UPLOADED.values(), ids=UPLOADED)
def test_what_becomes_of_an_upload(happens: Callable[[FakeS3, StagedObject], None], outcome: str) -> None:
    fake = FakeS3()
    (found,) = staged(fake)
    happens(fake, found)
    request = committed(fake, found)
    assert request.outcome.kind == outcome
    if outcome in ("committed", "already committed"):
        assert fake.data() == {found.key: b'{"id":0}\n'}
    if outcome == "known failure":
        assert isinstance(request.outcome.error, CommitRefusedError)
        assert fake.data()[found.key] != b'{"id":0}\n'
    if outcome == "retry":
        assert committed(fake, found).outcome.kind == "committed"


PUT = "put_object"
PUTS = {
    "nothing": (lambda *_: None, "committed"),
    "time-out after success": (
        lambda fake, found: fake.fail(PUT, timed_out(), after=True, key="part-"),
        "already committed",
    ),
    "time-out": (lambda fake, found: fake.fail(PUT, timed_out(), key="part-"), "retry"),
    "503": (lambda fake, found: fake.fail(PUT, answer(503, "SlowDown"), key="part-"), "retry"),
    "412, ours": (done_before, "already committed"),
    "412, theirs": (theirs, "known failure"),
}


@pytest.mark.parametrize(("happens", "outcome"), PUTS.values(), ids=PUTS)
def test_what_becomes_of_an_object_whose_bytes_are_recorded(
    happens: Callable[[FakeS3, StagedObject], None], outcome: str
) -> None:
    fake = FakeS3()
    (found,) = staged(fake, inline=True)
    assert found.upload_id is None
    happens(fake, found)
    assert committed(fake, found).outcome.kind == outcome
    if outcome == "retry":
        assert committed(fake, found).outcome.kind == "committed"


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    ("happens", "outcome"),
    [(lambda *_: None, "committed"), (done_before, "already committed"), (theirs, "known failure")],
)
def test_a_store_that_would_replace_objects_is_looked_at_first(
    happens: Callable[[FakeS3, StagedObject], None], outcome: str, inline: bool
) -> None:
    fake = FakeS3(conditional=False)
    (found,) = staged(fake, inline=inline)
    fake.mark(conditional=False, matching=False)
    happens(fake, found)
    assert committed(fake, found).outcome.kind == outcome
    assert not any("IfNoneMatch" in arguments for _, arguments in fake.calls)
    assert fake.data()[found.key] == (b"theirs" if outcome == "known failure" else b'{"id":0}\n')


@pytest.mark.parametrize("inline", [False, True])
def test_a_store_that_keeps_no_metadata_knows_ours_by_size_and_etag(inline: bool) -> None:
    fake = FakeS3(metadata=False)
    (found,) = staged(fake, inline=inline)
    assert committed(fake, found).outcome.kind == "committed"
    assert committed(fake, found).outcome.kind == "already committed"
    fake.put(found.key, b"x" * found.size)
    assert committed(fake, found).outcome.kind == ("known failure" if inline else "lost")


def test_the_condition_and_the_size_are_sent() -> None:
    fake = FakeS3()
    (found,) = staged(fake)
    committed(fake, found)
    (sent,) = fake.requests(COMPLETE)
    assert (sent["IfNoneMatch"], sent["MpuObjectSize"]) == ("*", found.size)
    assert sent["MultipartUpload"]["Parts"] == [{"PartNumber": 1, "ETag": found.parts[0].etag, "ChecksumCRC32": CRC}]


def test_an_answer_that_somebody_has_to_act_upon_is_raised_and_the_others_are_committed() -> None:
    fake = FakeS3()
    found = staged(fake, count=3)
    fake.fail(COMPLETE, answer(403, "AccessDenied"), key=found[1].key)
    requests = [CommitRequest(each) for each in found]
    with pytest.raises(TargetError, match="s3:PutObject"):
        committer(fake, max_concurrency=3).commit(requests)
    assert sorted(fake.data()) == sorted([found[0].key, found[2].key])
    assert committed(fake, found[1]).outcome.kind == "committed"


def wait_for(others: threading.Barrier, request: str) -> None:
    if request == COMPLETE:
        others.wait(10)


def test_many_are_completed_at_once() -> None:
    fake = FakeS3()
    found = staged(fake, count=8)
    together = threading.Barrier(4)
    fake.during = lambda request: wait_for(together, request)
    requests = [CommitRequest(each) for each in found]
    committer(fake, max_concurrency=4).commit(requests)
    assert fake.most_at_once == 4
    assert len(fake.data()) == 8


def test_expired_credentials_are_renewed_between_two_tries() -> None:
    fake = FakeS3()
    (found,) = staged(fake)
    fake.fail(COMPLETE, answer(400, "ExpiredToken"))
    before = fake.sessions
    made, request = committer(fake), CommitRequest(found)
    made.commit([request])
    assert request.outcome.kind == "retry"
    request.offer_again()
    made.commit([request])
    assert (request.outcome.kind, fake.sessions) == ("committed", before + 1)


def test_nothing_is_published_when_the_marker_is_gone() -> None:
    fake = FakeS3()
    (found,) = staged(fake)
    fake.objects.clear()
    with pytest.raises(TargetLostError):
        committed(fake, found)
    assert fake.data() == {}


def test_the_marker_says_how_far_before_anything_is_published() -> None:
    fake = FakeS3()
    found = staged(fake)[0]
    seen = []
    fake.during = lambda request: seen.append(fake.record().epoch) if request == COMPLETE else None
    committed(fake, found)
    assert seen == [0]


@pytest.mark.parametrize("rounds", [0, 1])
@pytest.mark.parametrize(("generation", "epoch"), [(4, 0), (1, 1)])
def test_a_paused_driver_brings_no_object_back_that_was_deleted_after_its_epoch(
    generation: int, epoch: int, rounds: int
) -> None:
    fake = FakeS3()
    (found,) = staged(fake, inline=True)
    paused, request = committer(fake), CommitRequest(found)
    if rounds:
        fake.fail(PUT, answer(503, "SlowDown"), key="part-")
        paused.commit([request])
        assert request.outcome.kind == "retry"
        request.offer_again()
    fake.mark(generation=generation, epoch=epoch)
    with pytest.raises(FencedError, match="newer driver has"):
        paused.commit([request])
    assert fake.data() == {}


def test_a_driver_that_was_overtaken_while_it_committed_is_told_and_publishes_nothing() -> None:
    fake, recovery = FakeS3(), f"memory://{uuid.uuid4().hex}"

    def overtake(step: str) -> None:
        if step != "after COMMITTING":
            return
        unlisten()
        newer = LocalDriver(fake.sink(inline_bytes=1000), recovery)
        newer.run_epoch(0, [[{"id": 0}]])
        newer.run_epoch(1, [[{"id": 1}]])
        for key in fake.data():
            del fake.objects[key]

    unlisten = listen(overtake)
    with pytest.raises(FencedError, match=r"\[step 'sink', epoch 0\]"):
        LocalDriver(fake.sink(inline_bytes=1000), recovery).run_epoch(0, [[{"id": 0}]])
    assert fake.data() == {}


def test_lost_uploads_are_found_before_any_is_published() -> None:
    fake = FakeS3()
    found = staged(fake, count=2) + staged(fake, inline=True)
    del fake.uploads[found[0].upload_id or ""]
    requests = [CommitRequest(each) for each in found]
    committer(fake).find_lost(requests)
    assert [request.outcome.kind for request in requests] == ["lost", "unsignalled", "unsignalled"]
    assert "by a lifecycle rule" in requests[0].outcome.reason
    assert fake.data() == {}


def test_an_upload_that_another_driver_completes_between_two_looks_is_not_lost() -> None:
    fake = FakeS3()
    (found,) = staged(fake)
    fake.fail("complete_multipart_upload", timed_out())

    def complete(request: str) -> None:
        if request == "list_parts":
            fake.during = lambda request: None
            committed(fake, found)

    fake.during = complete
    assert committed(fake, found).outcome.kind == "already committed"


def test_an_upload_that_was_completed_is_not_lost() -> None:
    fake = FakeS3()
    (found,) = staged(fake)
    committed(fake, found)
    request = CommitRequest(found)
    committer(fake).find_lost([request])
    assert request.outcome.kind == "unsignalled"


def test_what_is_revoked_can_be_published_by_nobody() -> None:
    fake = FakeS3()
    found = staged(fake, count=2)
    committer(fake).revoke([CommitRequest(each) for each in found])
    committer(fake).revoke([CommitRequest(each) for each in found])
    assert fake.uploads == {}
    assert committed(fake, found[0]).outcome.kind == "lost"


def test_what_is_published_cannot_be_revoked() -> None:
    fake = FakeS3()
    (found,) = staged(fake)
    committed(fake, found)
    with pytest.raises(LostCommittableError, match="already published"):
        committer(fake).revoke([CommitRequest(found)])


def test_after_committing_has_begun_nobody_says_that_nothing_was_published() -> None:
    """An upload that is gone may have been completed, and its object deleted."""
    fake = FakeS3()
    (found,) = staged(fake)
    assert not committer(fake).nothing_published([CommitRequest(found)])


def test_a_look_that_gets_no_answer_settles_nothing() -> None:
    fake = FakeS3()
    (found,) = staged(fake)
    fake.fail(COMPLETE, timed_out())
    fake.fail("head_object", timed_out(), times=99)
    with pytest.raises(TransientError, match="checking"):
        committed(fake, found, retry_deadline=0.1)


def test_a_text_about_a_committable_holds_no_row() -> None:
    (found,) = staged(FakeS3(), inline=True)
    assert found.content
    assert not any(found.content in text for text in (str(found), repr(found), f"{found}"))


def test_an_object_whose_bytes_are_recorded_has_no_upload_to_abort() -> None:
    fake = FakeS3()
    (found,) = staged(fake, inline=True)
    committer(fake).revoke([CommitRequest(found)])
    assert fake.requests("abort_multipart_upload") == []


def other_id(fake: FakeS3, found: StagedObject) -> None:
    fake.objects[found.key] = replace(fake.objects[found.key], metadata={ID: "another"})


def no_id(fake: FakeS3, found: StagedObject) -> None:
    fake.objects[found.key] = replace(fake.objects[found.key], metadata={})


def longer(fake: FakeS3, found: StagedObject) -> None:
    no_id(fake, found)
    fake.objects[found.key] = replace(fake.objects[found.key], body=fake.objects[found.key].body + b"x")


def no_byte(status: int, code: str) -> Callable[[FakeS3, StagedObject], None]:
    def happens(fake: FakeS3, found: StagedObject) -> None:
        no_id(fake, found)
        fake.fail("get_object", answer(status, code), key=found.key)

    return happens


LOOKS = {
    "ours": (lambda *_: None, Found.OURS),
    "another id": (other_id, Found.OTHERS),
    "no id, but our size and ETag": (no_id, Found.OURS),
    "no id, and another size": (longer, Found.OTHERS),
    "nothing": (lambda fake, found: fake.objects.pop(found.key), Found.NOTHING),
    "removed after the first look": (no_byte(404, "NoSuchKey"), Found.NOTHING),
    "empty": (no_byte(416, "InvalidRange"), Found.OTHERS),
    "archived": (no_byte(403, "InvalidObjectState"), Found.OTHERS),
}


@pytest.mark.parametrize(("happens", "is_there"), LOOKS.values(), ids=LOOKS)
def test_what_is_under_a_key_is_found_by_id_or_by_size_and_etag(happens: Callable[..., Any], is_there: Found) -> None:
    fake = FakeS3()
    (found,) = staged(fake)
    committed(fake, found)
    happens(fake, found)
    assert area(fake).look(found) is is_there


@pytest.mark.parametrize("request_name", ["head_object", "get_object", "list_parts"])
def test_a_look_that_is_denied_decides_nothing(request_name: str) -> None:
    fake = FakeS3()
    (found,) = staged(fake)
    if request_name != "list_parts":
        committed(fake, found)
        no_id(fake, found)
    fake.fail(request_name, answer(403, "AccessDenied"), key=found.key)
    with pytest.raises(TargetError):
        (area(fake).is_staged if request_name == "list_parts" else area(fake).look)(found)


def test_an_answer_without_its_byte_is_asked_for_again() -> None:
    fake = FakeS3()
    (found,) = staged(fake)
    committed(fake, found)
    no_id(fake, found)
    whole = fake.objects[found.key]
    looks = []

    def shorten(request: str) -> None:
        if request == "get_object":
            looks.append(request)
            fake.objects[found.key] = replace(whole, body=b"" if len(looks) == 1 else whole.body)
        if request == "head_object":
            fake.objects[found.key] = whole

    fake.during = shorten
    assert area(fake).look(found) is Found.OURS
    assert len(looks) == 2


def area(fake: FakeS3) -> S3Staging:
    found = committer(fake)._staging
    assert isinstance(found, S3Staging)
    return found

"""Requests of the store: what is tried again, and that an answer is more than its beginning."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import FlexibleChecksumError
from botocore.response import StreamingBody
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from outfall.capabilities import CommitRequest, CommitterInitContext, Metrics, WriterInitContext
from outfall.errors import TransientError
from outfall.retry_log import Retry, watched_by
from tests.unit.support.fake_s3 import OURS, FakeS3, answer, timed_out

BODY = b"the whole of it"


class Broken(io.RawIOBase):
    """The body of an answer whose connection breaks."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def read(self, size: int | None = -1) -> bytes:
        raise self._error


def cut_off() -> StreamingBody:
    return StreamingBody(io.BytesIO(BODY[:3]), content_length=len(BODY))


def broken(error: Exception) -> Callable[[], StreamingBody]:
    return lambda: StreamingBody(Broken(error), content_length=len(BODY))


@pytest.fixture
def fake() -> FakeS3:
    fake = FakeS3()
    fake.put("out/k", BODY)
    return fake


@pytest.mark.parametrize(
    "body",
    [
        cut_off,
        broken(ProtocolError("reset")),
        broken(ReadTimeoutError(None, "", "silent")),  # type: ignore[arg-type]
        broken(FlexibleChecksumError(error_msg="differs")),
    ],
    ids=["cut off", "reset", "silent", "damaged"],
)
def test_a_body_that_breaks_off_is_read_again(
    fake: FakeS3, body: Callable[[], StreamingBody], monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [body(), body()]
    whole = fake._get_object

    def some(**arguments: Any) -> Any:
        return {"Body": bodies.pop(), "ETag": '"e"'} if bodies else whole(**arguments)

    monkeypatch.setattr(fake, "_get_object", some)
    assert fake.sink().store.get("out/k") == BODY
    assert len(fake.requests("get_object")) == 3


def test_a_body_that_breaks_off_until_the_deadline_is_told(fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "_get_object", lambda **_: {"Body": cut_off(), "ETag": '"e"'})
    with pytest.raises(TransientError, match=r"reading s3://bkt/out/k failed.*3 read, but total bytes expected is 15"):
        fake.sink(retry_deadline=0.2).store.get("out/k")


def test_an_object_that_is_not_there_is_none(fake: FakeS3) -> None:
    assert fake.sink().store.get("out/other") is None


def test_an_outage_shows_itself_by_one_warning_and_is_counted(fake: FakeS3, caplog: pytest.LogCaptureFixture) -> None:
    """950 requests were made again without a word."""
    fake.fail("get_object", answer(503, "SlowDown", "Please reduce your request rate."), times=3)
    metrics = Metrics()
    store = replace(fake.sink("outage", retry_deadline="60 seconds").store, metrics=metrics)
    assert store.get("out/k") == BODY
    assert metrics.counts == {"retries": 3}
    (record,) = caplog.records
    assert re.fullmatch(
        r"s3://bkt/outage: reading s3://bkt/out/k failed \(attempt 1, 60 s left\) and is retried: SlowDown"
        r" \(HTTP 503\): Please reduce your request rate\.",
        record.getMessage(),
    )


def test_an_object_that_says_it_is_another_one_is_read_again(fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a proxy mixes responses up."""
    store = fake.sink().store
    store.put("out/_outfall/a.json", b"a")
    store.put("out/_outfall/b.json", b"b")
    whole, wrong = fake._get_object, [True, True]

    def mixed_up(*, Key: str, **rest: Any) -> Any:  # noqa: N803
        return whole(Key="out/_outfall/b.json" if wrong and wrong.pop() else Key, **rest)

    monkeypatch.setattr(fake, "_get_object", mixed_up)
    assert store.get("out/_outfall/a.json") == b"a"
    assert wrong == []


def test_after_retry_deadline_the_error_says_how_long_it_was_tried_and_how_to_continue() -> None:
    fake = FakeS3()
    fake.fail("get_object", timed_out(), times=10_000)
    began = time.monotonic()
    with pytest.raises(TransientError) as caught:
        fake.sink(retry_deadline=0.6).store.get("out/k")
    found = re.fullmatch(
        r"reading s3://bkt/out/k failed for (\d+) s \(retry_deadline\)\. .*Timeout.* What to do: if the query has"
        r" failed, start it again: no rows are lost\. For longer outages, raise retry_deadline.*",
        str(caught.value),
    )
    assert found
    assert 1 <= int(found[1]) <= round(time.monotonic() - began)


def test_a_stopped_store_retries_nothing() -> None:
    fake = FakeS3()
    fake.fail("get_object", timed_out(), times=10_000)
    store = fake.sink(retry_deadline=2).store
    store.stopped.set()
    with pytest.raises(TransientError, match="Timeout"):
        store.get("out/k")
    assert len(fake.requests("get_object")) == 1


def test_what_threads_try_again_is_told_to_who_watches_the_task_or_the_commit() -> None:
    fake, told = FakeS3(), list[Retry]()
    fake.mark()
    slow = answer(503, "SlowDown", "Please reduce your request rate.")
    sink = fake.sink(max_concurrency=4, part_bytes="5 MiB", inline_bytes=0)
    with watched_by(told.append):
        parts = [sink.bind(WriterInitContext("sink", OURS, 1, 0, None, n, n)).build("sink", n, 2) for n in range(2)]
        fake.fail("upload_part", slow)
        requests = []
        for part in parts:
            part.write_batch([{"id": "x" * (6 << 20)}])
            requests += [CommitRequest(found) for found in part.prepare_commit()]
            part.close()
        fake.fail("complete_multipart_upload", timed_out(), after=True)
        fake.fail("head_object", slow)
        sink.create_committer(CommitterInitContext("sink", OURS, 1, 0)).commit(requests)
    assert [retry.reason.split()[0] for retry in told] == ["SlowDown", "SlowDown"]

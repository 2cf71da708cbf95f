"""One attempt's uploads: how bytes become parts, what is held in memory, and what is left behind."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import CommitRequest, CommitterInitContext, WriterInitContext
from outfall.errors import StaleWriterError, TargetError, TransientError, UnsharedTargetError, ValueRefusedError
from outfall.s3 import upload, writer
from outfall.s3.staged import StagedObject
from outfall.s3.writer import S3Writer
from outfall.storage.names import AttemptName
from tests.one_each import one_each
from tests.unit.support.fake_s3 import OURS, FakeS3, answer, timed_out

MIB = 1 << 20
PART = "upload_part"


def open_writer(fake: FakeS3, *, step: str = "sink", prefix: str = "out", **options: Any) -> S3Writer:
    sink = fake.sink(prefix, **({"part_bytes": "5 MiB"} | options))
    fake.mark(prefix)
    context = WriterInitContext(step, OURS, generation=3, epoch=7, part=None, attempt=11, worker_index=2)
    fake.calls.clear()
    opened = sink.bind(context).build(step, 2, 4)
    assert isinstance(opened, S3Writer)
    return opened


def publish(fake: FakeS3, staged: list[StagedObject]) -> None:
    requests = [CommitRequest(each) for each in staged]
    fake.sink().create_committer(CommitterInitContext("sink", OURS, 3, 7)).commit(requests)
    assert {request.outcome.kind for request in requests} <= {"committed"}


def text(size: int, byte: str = "x") -> pa.RecordBatch:
    """A batch of one row of `size` bytes as text, its line break included."""
    return pa.record_batch({"value": [byte * (size - 1)]})


def written(fake: FakeS3, *batches: pa.RecordBatch, **options: Any) -> list[StagedObject]:
    part = open_writer(fake, **options)
    for batch in batches:
        part.write_record_batch(batch)
    staged = part.prepare_commit()
    part.close()
    return staged


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([100], [100]),
        ([5 * MIB], [5 * MIB]),
        ([5 * MIB + 1], [5 * MIB, 1]),
        ([12 * MIB], [5 * MIB, 5 * MIB, 2 * MIB]),
        ([3 * MIB, 3 * MIB, 3 * MIB], [5 * MIB, 4 * MIB]),
        ([100, 12 * MIB, 100], [5 * MIB, 5 * MIB, 2 * MIB + 200]),
    ],
)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_bytes_are_cut_into_parts_of_one_size(sizes: list[int], parts: list[int], concurrency: int) -> None:
    fake = FakeS3()
    batches = [text(size, chr(97 + index)) for index, size in enumerate(sizes)]
    (staged,) = written(fake, *batches, format="text", max_concurrency=concurrency)
    sent = sorted((each["PartNumber"], len(each["Body"])) for each in fake.requests(PART))
    assert sent == list(enumerate(parts, 1))
    assert (staged.size, staged.rows) == (sum(sizes), len(sizes))
    assert fake.data() == {}
    publish(fake, [staged])
    assert fake.data() == {staged.key: b"".join(batch["value"][0].as_py().encode() + b"\n" for batch in batches)}


def test_zero_rows_make_no_object() -> None:
    fake = FakeS3()
    assert written(fake, text(10).slice(0, 0), format="text") == []
    assert fake.calls == []


@pytest.mark.thorough
def test_compressed_members_and_row_groups_are_whole_across_parts() -> None:
    import gzip
    import random

    fake = FakeS3()
    chance = random.Random(1)
    batches = [pa.record_batch({"value": [chance.randbytes(2 * MIB).hex()]}) for _ in range(3)]
    (staged,) = written(fake, *batches, format="text", compression="gzip")
    assert len(staged.parts) == 2
    publish(fake, [staged])
    assert gzip.decompress(fake.data()[staged.key]).decode().splitlines() == [
        batch["value"][0].as_py() for batch in batches
    ]


def test_small_objects_are_handed_over_until_there_are_too_many_bytes_of_them() -> None:
    fake = FakeS3()
    batch = pa.record_batch({"k": list("abcd"), "value": ["1234567"] * 4})
    staged = written(fake, batch, format="text", partition_by="k", inline_bytes=20)
    assert [each.upload_id is None for each in staged] == [True, True, False, False]
    assert len(fake.requests(PART)) == 2
    publish(fake, staged)
    assert list(fake.data().values()) == [b"1234567\n"] * 4


def test_a_key_says_who_wrote_it_and_takes_any_character() -> None:
    fake = FakeS3()
    batch = pa.record_batch({"k": ["a b+c=d/é", None], "value": ["1", "2"]})
    staged = written(fake, batch, format="text", partition_by="k", prefix="a b/ü=+", step="my-step.1")
    name = f"part-0000000007-00002-0000{{}}-my-step.1-{OURS}-g3-a11.txt"
    assert [each.key for each in staged] == [
        f"a b/ü=+/k=a b+c%3Dd%2Fé/{name.format(0)}",
        f"a b/ü=+/k=__HIVE_DEFAULT_PARTITION__/{name.format(1)}",
    ]
    assert AttemptName.parse(staged[0].key, with_step=True) == AttemptName(7, 2, 0, "my-step.1", OURS, 3, 11, ".txt")


def test_names_of_others_are_not_read_as_ours() -> None:
    for key in ("part-0.jsonl", f"part-0000000007-00002-00000-{OURS}-g3-a11.text", "x/y", ""):
        assert AttemptName.parse(key, with_step=True) is None


def test_a_step_that_looks_like_a_name_is_told_apart() -> None:
    name = AttemptName(7, 2, 0, f"a-{OURS}-g1-a1", "00000000000000bb", 3, 11, ".jsonl.gz")
    assert AttemptName.parse(str(name), with_step=True) == name


def test_a_key_that_is_too_long_is_refused() -> None:
    batch = pa.record_batch({"a": ["x" * 250], "b": ["y" * 250], "c": ["z" * 250], "value": ["1"]})
    with pytest.raises(ValueRefusedError, match=r"longer than S3's 1024 bytes"):
        written(FakeS3(), batch, format="text", partition_by="a,b,c", prefix="p" * 300)


# --- memory


def test_no_more_parts_are_under_way_than_may_be() -> None:
    fake = FakeS3()
    gate = threading.Semaphore(0)

    def wait(request: str) -> None:
        if request == PART:
            gate.acquire(timeout=10)

    fake.during = wait
    part = open_writer(fake, format="text", max_concurrency=2)
    batch = text(5 * MIB)
    for _ in range(2):
        part.write_record_batch(batch)
    third = threading.Thread(target=part.write_record_batch, args=(batch,))
    third.start()
    third.join(0.2)
    assert third.is_alive()
    for _ in range(3):
        gate.release()
    third.join(10)
    assert not third.is_alive()
    (staged,) = part.prepare_commit()
    part.close()
    assert len(staged.parts) == 3
    assert fake.most_at_once == 2


def test_many_bucket_paths_are_held_in_bounded_memory() -> None:
    fake = FakeS3()
    part = open_writer(fake, format="text", partition_by="k", max_concurrency=1)
    highest = 0
    for row in range(200):
        part.write_record_batch(pa.record_batch({"k": [f"{row % 20}"], "value": ["x" * (100 << 10)]}))
        highest = max(highest, sum(each.held for each in part._open.values()))
    staged = part.prepare_commit()
    part.close()
    assert highest <= 5 * MIB
    assert sum(each.rows for each in staged) == 200
    assert len({each.key for each in staged}) == len(staged) > 20
    publish(fake, staged)
    assert sum(body.count(b"\n") for body in fake.data().values()) == 200


def test_an_object_that_is_full_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "MOST_PARTS", 2)
    fake = FakeS3()
    staged = written(fake, *[text(6 * MIB)] * 4, format="text")
    assert [len(each.parts) for each in staged] == [3, 3]
    assert sum(each.size for each in staged) == 24 * MIB


def test_row_groups_that_are_kept_are_written_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_KEPT_BYTES", 100 << 10)
    part = open_writer(FakeS3(), format="parquet", partition_by="k")
    for row in range(50):
        part.write_record_batch(pa.record_batch({"k": [f"{row % 5}"], "v": ["x" * (10 << 10)]}))
        assert sum(each.kept for each in part._open.values()) <= 100 << 10
    assert sum(each.rows for each in part.prepare_commit()) == 50


# --- failures


PASSING = {
    "SlowDown": answer(503, "SlowDown"), "RequestTimeout": answer(400, "RequestTimeout"),
    "500": answer(500, "InternalError"), "no answer": timed_out(), "expired token": answer(400, "ExpiredToken"),
}  # fmt: skip
REQUESTS = [(request, after) for request in ("create_multipart_upload", PART) for after in (False, True)]


@pytest.mark.parametrize(("error", "asked"), one_each(PASSING, REQUESTS))
def test_what_may_pass_is_tried_again(error: str, asked: tuple[str, bool]) -> None:
    """Whether it was carried out, or not."""
    request, after = asked
    fake = FakeS3()
    fake.fail(request, PASSING[error], after=after)
    (staged,) = written(fake, text(6 * MIB), format="text")
    assert len(staged.parts) == 2
    publish(fake, [staged])


def test_an_expired_token_is_renewed_by_the_session_factory() -> None:
    fake = FakeS3()
    part = open_writer(fake, format="text")
    fake.fail(PART, answer(400, "ExpiredToken"), times=2)
    part.write_record_batch(text(6 * MIB))
    part.prepare_commit()
    assert fake.sessions == 1 + 2


def write_on(part: S3Writer) -> None:
    """Write until a failure of a part that was under way comes out."""
    for _ in range(50):
        part.write_record_batch(text(5 * MIB))


def test_an_attempt_that_failed_is_aborted_once_no_part_is_under_way() -> None:
    fake = FakeS3()
    fake.during = lambda request: time.sleep(0.1 if request == PART else 0)
    part = open_writer(fake, format="text", max_concurrency=2)
    part.write_record_batch(text(5 * MIB))
    part.close()
    assert fake.uploads == {}
    assert len(fake.requests("abort_multipart_upload")) == 1


@pytest.mark.parametrize("concurrency", [1, 2])
def test_what_does_not_pass_fails_the_attempt_and_nothing_is_written_after_it(concurrency: int) -> None:
    fake = FakeS3()
    fake.fail(PART, answer(503, "SlowDown"), times=99)
    part = open_writer(fake, format="text", retry_deadline=0.1, max_concurrency=concurrency)
    with pytest.raises(TransientError, match=r"uploading part 1 of s3://bkt/out/part-.*SlowDown"):
        write_on(part)
    with pytest.raises(TransientError, match="cannot continue"):
        part.prepare_commit()
    part.close()
    assert fake.uploads == {}


def test_a_missing_right_is_told_at_once() -> None:
    fake = FakeS3()
    fake.fail("create_multipart_upload", answer(403, "AccessDenied"))
    with pytest.raises(TargetError, match=r"AccessDenied.*s3:ListBucket ") as refused:
        written(fake, text(6 * MIB), format="text")
    rights = re.findall(r"(?:s3|kms):\w+", str(refused.value))
    page = Path(__file__).parents[3].joinpath("docs", "s3.md").read_text()
    told = re.findall(r"[`\"]((?:s3|kms):\w+)[`\"]", page.partition("### Permissions\n")[2].partition("\n### ")[0])
    assert set(rights) == set(told) - {"s3:GetBucketVersioning"}
    assert {"s3:PutObjectTagging", "s3:PutObjectAcl", "kms:GenerateDataKey", "kms:Decrypt"} <= set(rights)


def test_an_upload_that_was_aborted_meanwhile_fails_its_attempt_which_may_be_tried_again() -> None:
    fake = FakeS3()
    part = open_writer(fake, format="text")
    part.write_record_batch(text(6 * MIB))
    fake.uploads.clear()
    with pytest.raises(TransientError, match="a lifecycle rule or a user has aborted it"):
        part.write_record_batch(text(6 * MIB))
    part.close()


def test_a_part_whose_checksum_is_not_confirmed_is_sent_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the head may have been cut off, and S3 wants the checksum back; a store that has none is let be."""
    fake = FakeS3()
    begin, put = fake._create_multipart_upload, fake._upload_part

    def unconfirmed(**arguments: Any) -> Any:
        return {name: value for name, value in put(**arguments).items() if not name.startswith("Checksum")}

    monkeypatch.setattr(fake, "_create_multipart_upload", lambda **sent: begin(**sent) | {"ChecksumAlgorithm": "CRC32"})
    monkeypatch.setattr(fake, "_upload_part", unconfirmed)
    (found,) = written(fake, text(MIB), format="text")
    assert [part.checksum for part in found.parts] == [{}]
    assert len(fake.requests(PART)) == 2


@pytest.mark.parametrize("newer", [{"generation": 4}, {"generation": 3, "token": "another log's"}])
def test_an_old_attempt_that_wakes_and_misses_its_upload_is_told_that_it_is_old(newer: dict[str, Any]) -> None:
    """It asked somebody to correct the options, the bucket or its policy."""
    fake = FakeS3()
    part = open_writer(fake, format="text")
    part.write_record_batch(text(6 * MIB))
    fake.uploads.clear()
    fake.mark(**newer)
    with pytest.raises(StaleWriterError, match="another driver has taken over"):
        part.write_record_batch(text(6 * MIB))
    part.close()


def test_an_attempt_that_failed_leaves_no_upload_and_one_that_succeeded_keeps_its() -> None:
    fake = FakeS3()
    part = open_writer(fake, format="text", max_concurrency=3)
    part.write_record_batch(text(12 * MIB))
    part.close()
    part.close()
    assert fake.uploads == {}
    written(fake, text(12 * MIB), format="text")
    assert len(fake.uploads) == 1


def test_closing_does_not_wait_for_tries_that_are_to_come() -> None:
    fake = FakeS3()
    failed = threading.Event()
    fake.during = lambda request: failed.set() if request == PART else None
    fake.fail(PART, answer(503, "SlowDown"), times=10_000)
    part = open_writer(fake, format="text", retry_deadline="10 minutes", max_concurrency=2)
    part.write_record_batch(text(5 * MIB))
    assert failed.wait(10)
    closing = threading.Thread(target=part.close)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


def test_a_task_that_does_not_see_the_drivers_bucket_says_so() -> None:
    fake = FakeS3()
    part = open_writer(fake, format="text")
    fake.objects.clear()
    with pytest.raises(UnsharedTargetError, match="same endpoint_url"):
        part.write_record_batch(text(10))


def test_columns_may_change_within_an_object_where_the_format_lets_them() -> None:
    fake = FakeS3()
    batches = [pa.record_batch({"a": [1]}), pa.record_batch({"b": ["x"]})]
    (staged,) = written(fake, *batches)
    publish(fake, [staged])
    assert [json.loads(line) for line in fake.data()[staged.key].splitlines()] == [{"a": 1}, {"b": "x"}]
    with pytest.raises(ValueRefusedError, match="the columns change"):
        written(fake, *batches, format="parquet")

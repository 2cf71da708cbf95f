"""The prefix as the recovery data knows it, what dead attempts leave there, and what readers are told."""

from __future__ import annotations

import base64
import logging
import uuid
from contextlib import closing
from typing import Any

import pytest

from outfall.errors import (
    ConfigurationError,
    RecordError,
    TargetAheadError,
    TargetError,
    TargetLostError,
    TargetNotEmptyError,
)
from outfall.protocol.step import EpochOptions
from outfall.s3 import clean_up_uploads, committed_keys, read_manifests
from outfall.s3.manifest import Manifest
from outfall.s3.staged import StagedObject
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.one_each import one_each
from tests.unit.support.fake_s3 import FakeS3, answer

TASKS = [[{"id": 1}, {"id": 2}], [{"id": 3}], []]


@pytest.fixture
def recovery() -> str:
    return f"memory://{uuid.uuid4().hex}"


def run(fake: FakeS3, recovery: str, epoch: int, tasks: Any = TASKS, **options: Any) -> LocalDriver:
    driver = LocalDriver(fake.sink(**options), recovery)
    driver.run_epoch(epoch, tasks)
    return driver


def copied(recovery: str) -> str:
    """A copy of a recovery location in memory, as it is now."""
    from fsspec.implementations.memory import MemoryFileSystem

    copy = f"memory://{uuid.uuid4().hex}"
    old, new = (f"/{url.removeprefix('memory://')}" for url in (recovery, copy))
    fs = MemoryFileSystem()
    fs.copy(old, new, recursive=True)
    return copy


def test_a_stream_of_epochs_leaves_its_objects_a_marker_and_a_manifest_for_each_with_rows(recovery: str) -> None:
    fake = FakeS3()
    for epoch, tasks in enumerate([TASKS, [[], []], TASKS]):
        run(fake, recovery, epoch, tasks)
    assert sum(body.count(b"\n") for body in fake.data().values()) == 6
    assert len(fake.data()) == 4
    assert fake.uploads == {}
    incarnation = fake.record().incarnation
    assert {key for key in fake.objects if "_outfall/" in key} == {
        f"out/_outfall/{incarnation}.json",
        "out/_outfall/directory.layout",
        f"out/_outfall/manifests/{incarnation}/0000000000.json",
        f"out/_outfall/manifests/{incarnation}/0000000002.json",
    }
    assert fake.record().epoch == 2
    assert fake.record().conditional


# --- E6


def test_objects_of_others_are_refused_on_first_contact(recovery: str) -> None:
    fake = FakeS3()
    fake.put("out/old.jsonl")
    with pytest.raises(TargetNotEmptyError, match=r"out/old\.jsonl"):
        run(fake, recovery, 0)
    assert list(fake.objects) == ["out/old.jsonl"]


@pytest.mark.parametrize("key", ["out/", "out/sub/", "out/k=1/deep/"])
def test_markers_of_folders_are_no_data(recovery: str, key: str) -> None:
    """As consoles and Hadoop make them."""
    fake = FakeS3()
    fake.put(key, b"")
    run(fake, recovery, 0)
    run(fake, f"memory://{uuid.uuid4().hex}", 0, on_existing="overwrite")
    assert key in fake.objects


def test_what_readers_skip_and_what_lies_beside_the_prefix_is_no_data(recovery: str) -> None:
    fake = FakeS3()
    for key in ("out/_SUCCESS", "out/.x", "out/_other/_spark_metadata/0", "output/x", "out"):
        fake.put(key)
    run(fake, recovery, 0)


@pytest.mark.parametrize("on_existing", ["error", "resume"])
def test_a_prefix_of_sparks_own_streaming_sink_is_refused(recovery: str, on_existing: str) -> None:
    """Its log, the only thing that Spark then reads by, would not have our objects."""
    fake = FakeS3()
    fake.put("out/_spark_metadata/0")
    with pytest.raises(TargetNotEmptyError, match=r"_spark_metadata.*would not see new rows.*overwrite"):
        run(fake, recovery, 0, on_existing=on_existing)
    assert list(fake.objects) == ["out/_spark_metadata/0"]


def test_what_others_say_of_a_prefix_goes_with_their_objects(recovery: str) -> None:
    fake = FakeS3(page=2)
    theirs = [f"out/{name}" for name in ("_spark_metadata/0", "_spark_metadata/9.compact", "_SUCCESS", "part-0.json")]
    for key in [*theirs, "out/_SUCCESS/not-a-summary", "out/_other"]:
        fake.put(key)
    run(fake, recovery, 0, on_existing="overwrite")
    assert not set(theirs) & set(fake.objects)
    assert {"out/_SUCCESS/not-a-summary", "out/_other"} <= set(fake.objects)


def test_a_checkpoint_that_was_deleted_is_noticed(recovery: str) -> None:
    fake = FakeS3()
    run(fake, recovery, 0, [[]])
    with pytest.raises(TargetNotEmptyError, match="Another query writes to it"):
        run(fake, f"memory://{uuid.uuid4().hex}", 0)


def test_objects_of_others_may_be_kept_or_deleted(recovery: str) -> None:
    fake = FakeS3(page=2)
    run(fake, recovery, 0)
    fake.put("out/old.jsonl")
    fake.put("output/other")
    old = fake.data()
    upload = fake.client("s3").create_multipart_upload(Bucket="bkt", Key="out/theirs")["UploadId"]  # type: ignore[attr-defined]
    run(fake, f"memory://{uuid.uuid4().hex}", 0, on_existing="resume")
    assert old.items() <= fake.data().items()
    run(fake, f"memory://{uuid.uuid4().hex}", 0, on_existing="overwrite")
    assert "output/other" in fake.data()
    assert not (set(old) - {"output/other"}) & set(fake.data())
    assert len(fake.data()) == 3
    assert len([key for key in fake.objects if "/manifests/" in key]) == 1
    assert upload in fake.uploads
    with pytest.raises(TargetLostError):
        run(fake, recovery, 1)


def test_a_prefix_that_was_deleted_is_noticed(recovery: str) -> None:
    fake = FakeS3()
    run(fake, recovery, 0)
    fake.objects.clear()
    with pytest.raises(TargetLostError, match="record"):
        run(fake, recovery, 1)


@pytest.mark.parametrize("evidence", ["record and manifests", "manifests", "record"])
def test_a_checkpoint_restored_from_an_older_copy_is_noticed(recovery: str, evidence: str) -> None:
    fake = FakeS3()
    run(fake, recovery, 0)
    older = copied(recovery)
    first = dict(fake.objects)
    run(fake, recovery, 1)
    if evidence == "manifests":
        (key,) = [key for key in first if key.count("/") == 2 and key.endswith(".json")]
        fake.objects[key] = first[key]
    if evidence == "record":
        for key in [key for key in fake.objects if "/manifests/" in key]:
            del fake.objects[key]
    before = dict(fake.objects)
    with pytest.raises(TargetAheadError, match="restored from an older copy"):
        run(fake, older, 1)
    assert fake.objects == before


def test_an_epoch_that_was_only_begun_to_be_published_is_noticed_too(recovery: str) -> None:
    fake = FakeS3()
    run(fake, recovery, 0)
    older = copied(recovery)
    with crash_at("s3: completed"):
        run(fake, recovery, 1)
    with pytest.raises(TargetAheadError):
        run(fake, older, 1)
    run(fake, recovery, 1)


def test_of_two_queries_that_come_at_once_one_is_refused(recovery: str) -> None:
    fake = FakeS3()
    other = f"memory://{uuid.uuid4().hex}"
    with crash_at("s3: opening"):
        run(fake, recovery, 0)
    run(fake, other, 0)
    with pytest.raises(TargetNotEmptyError):
        run(fake, recovery, 0)
    run(fake, other, 1)


# --- what the store can


@pytest.mark.parametrize("left_behind", [False, True])
def test_a_store_that_replaces_objects_is_recognised_once_and_said(
    recovery: str, caplog: pytest.LogCaptureFixture, left_behind: bool
) -> None:
    fake = FakeS3(conditional=False)
    if left_behind:
        with crash_at("s3: opening"):
            run(fake, recovery, 0)
    with caplog.at_level(logging.WARNING):
        run(fake, recovery, 0)
        run(fake, recovery, 1)
    assert [record.message for record in caplog.records if "does not support If-None-Match" in record.message] == [
        "step 'sink': s3://bkt/out does not support If-None-Match. The driver checks each key before it publishes"
        " instead. An object that another program writes under the same key in between is replaced. The rows of this"
        " step are still written exactly once"
    ]
    assert not fake.record().conditional
    assert not any(".probe" in key for key in fake.objects)
    assert sum(body.count(b"\n") for body in fake.data().values()) == 6


def test_a_policy_that_retains_objects_does_not_stop_the_test_of_the_store(
    recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that ignores conditions, and a policy for all objects but the record."""
    fake = FakeS3()
    fake.knows_conditions = False
    put = fake._put_object

    def retained(**arguments: Any) -> Any:
        if ".probe" in arguments["Key"] and arguments["Key"] in fake.objects:
            raise answer(403, "AccessDenied")
        return put(**arguments)

    monkeypatch.setattr(fake, "_put_object", retained)
    fake.fail("delete_object", answer(403, "AccessDenied"), times=99)
    for epoch in range(2):
        run(fake, recovery, epoch)
    assert (fake.record().conditional, fake.record().matching) == (False, False)
    assert sum(body.count(b"\n") for body in fake.data().values()) == 6


def test_a_store_is_probed_once_and_leaves_nothing(recovery: str) -> None:
    fake = FakeS3()
    for epoch in range(3):
        run(fake, recovery, epoch, [[]])
    assert len([key for key in fake.requests("put_object") if ".probe" in key["Key"]]) == 3
    assert fake.uploads == {}
    assert not any(".probe" in key for key in fake.objects)


# --- cleaning up


def test_uploads_of_dead_attempts_are_aborted_and_no_others(recovery: str) -> None:
    fake = FakeS3(page=2)
    client: Any = fake.client("s3")
    run(fake, recovery, 0)
    ours = fake.record().incarnation

    def begin(key: str) -> str:
        return str(client.create_multipart_upload(Bucket="bkt", Key=key)["UploadId"])

    def name(incarnation: str, generation: int) -> str:
        return f"part-0000000000-00000-00000-sink-{incarnation}-g{generation}-a1.jsonl"

    dead = [begin(f"out/{name(ours, 1)}"), *(begin(f"out/k={i}/{name(ours, 2)}") for i in range(5))]
    others = [
        begin(f"out/{name('00000000000000bb', 1)}"), begin("out/x.jsonl"), begin(f"output/{name(ours, 1)}"),
        begin(f"out/{name(ours, 10_000)}"),
    ]  # fmt: skip
    run(fake, recovery, 1)
    assert sorted(fake.uploads) == sorted(others)
    assert not set(dead) & set(fake.uploads)
    assert clean_up_uploads("s3a://bkt/out", ours, client=client) == 1
    assert sorted(fake.uploads) == sorted(others[:3])


def test_a_batch_job_leaves_no_upload_of_an_attempt_that_lost(recovery: str) -> None:
    """A killed or speculative attempt. Nobody comes back to the incarnation of a job without recovery data."""
    fake = FakeS3()
    driver = LocalDriver(fake.sink(), recovery, options=EpochOptions(final=True))
    rows: list[Any] = [(None, [{"id": 1}])]
    with closing(driver.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        driver.run_task(ticket, 0, 0, rows)
        coordinator.finish(ticket, [driver.run_task(ticket, 0, 0, rows, retries=1)])
    assert fake.uploads == {}
    assert list(fake.data().values()) == [b'{"id":1}\n']


def test_an_upload_that_is_gone_when_it_is_cleaned_up_is_no_failure(recovery: str) -> None:
    fake = FakeS3()
    run(fake, recovery, 0)
    client: Any = fake.client("s3")
    key = f"out/part-0000000000-00000-00000-sink-{fake.record().incarnation}-g1-a1.jsonl"
    client.create_multipart_upload(Bucket="bkt", Key=key)
    fake.fail("abort_multipart_upload", answer(404, "NoSuchUpload"))
    assert clean_up_uploads("s3://bkt/out", fake.record().incarnation, client=client) == 1


def test_uploads_of_the_generation_that_is_named_are_spared(recovery: str) -> None:
    fake = FakeS3()
    run(fake, recovery, 0)
    client: Any = fake.client("s3")
    ours = fake.record().incarnation
    for generation in (2, 3, 4):
        key = f"out/part-0000000001-00000-00000-sink-{ours}-g{generation}-a1.jsonl"
        client.create_multipart_upload(Bucket="bkt", Key=key)
    assert clean_up_uploads("s3://bkt/out", ours, generation=3, client=client) == 1
    assert len(fake.uploads) == 2


@pytest.mark.parametrize("step", ["s3: sending part", "s3: part under way#2", "s3: staged", "before PREPARED"])
def test_the_uploads_of_an_attempt_that_died_are_gone_after_the_next_epoch(recovery: str, step: str) -> None:
    fake = FakeS3()
    run(fake, recovery, 0)
    with crash_at(step):
        run(fake, recovery, 1)
    run(fake, recovery, 1)
    run(fake, recovery, 2)
    assert fake.uploads == {}
    assert sum(body.count(b"\n") for body in fake.data().values()) == 9


STEPS = [
    "after PREPARED", "after COMMITTING", "s3: record advanced", "s3: completing", "s3: completed", "s3: completing#2",
    "s3: completed#2", "s3: manifest written", "before COMPLETED", "after COMPLETED", "after clean-up",
]  # fmt: skip


@pytest.mark.parametrize(("step", "inline"), one_each(STEPS, [0, 1000]))
def test_a_driver_that_dies_while_it_publishes_leaves_each_row_once(recovery: str, step: str, inline: int) -> None:
    fake = FakeS3()
    with crash_at(step) as seen:
        run(fake, recovery, 0, inline_bytes=inline)
    assert step.partition("#")[0] in seen
    run(fake, recovery, 0, TASKS[::-1], inline_bytes=inline)
    run(fake, recovery, 1, [[{"id": 9}]], inline_bytes=inline)
    assert sorted(b"".join(fake.data().values()).split()) == [b'{"id":1}', b'{"id":2}', b'{"id":3}', b'{"id":9}']
    assert fake.uploads == {}


# --- manifests


def test_a_reader_finds_whole_epochs_in_manifests(recovery: str) -> None:
    fake = FakeS3(page=1)
    client: Any = fake.client("s3")
    run(fake, recovery, 0)
    run(fake, recovery, 1, [[{"id": 4}]])
    with crash_at("s3: completed"):
        run(fake, recovery, 2)
    assert len(fake.data()) == 4
    first, second = read_manifests("s3://bkt/out", client=client)
    assert [(each.step, each.epoch, each.rows, len(each.objects)) for each in (first, second)] == [
        ("sink", 0, 3, 2), ("sink", 1, 1, 1),
    ]  # fmt: skip
    keys = list(committed_keys("s3://bkt/out", step_id="sink", incarnation=first.incarnation, client=client))
    assert keys == [each.key for manifest in (first, second) for each in manifest.objects]
    assert first.size == sum(len(fake.objects[each.key].body) for each in first.objects)
    assert list(committed_keys("s3://bkt/out", step_id="other", client=client)) == []
    run(fake, recovery, 2)
    assert sorted(committed_keys("s3://bkt/out", client=client)) == sorted(fake.data())


def test_a_reader_that_has_the_sink_asks_as_the_sink_does(recovery: str) -> None:
    """With its key, which S3 wants for manifests too, and paying as it pays."""
    fake = FakeS3()
    sink = fake.sink(sse_customer_key=base64.b64encode(b"k" * 32).decode(), requester_pays=True)
    LocalDriver(sink, recovery).run_epoch(0, TASKS)
    before = len(fake.calls)
    assert sorted(committed_keys(sink)) == sorted(fake.data())
    assert clean_up_uploads(sink, fake.record().incarnation) == 0
    asked = fake.calls[before:]
    assert [name for name, _ in asked] == ["list_objects_v2", "get_object", "list_multipart_uploads"]
    assert all(sent["RequestPayer"] == "requester" for _, sent in asked)
    assert asked[1][1]["SSECustomerAlgorithm"] == "AES256"
    with pytest.raises(ConfigurationError, match="leave client out"):
        list(read_manifests(sink, client=fake.client("s3")))


def test_a_manifest_that_is_deleted_while_manifests_are_read_is_left_out(recovery: str) -> None:
    fake = FakeS3()
    client: Any = fake.client("s3")
    run(fake, recovery, 0)
    run(fake, recovery, 1)
    found = read_manifests("s3://bkt/out", client=client)
    assert next(found).epoch == 0
    for key in [key for key in fake.objects if "/manifests/" in key]:
        del fake.objects[key]
    assert list(found) == []


def test_a_manifest_that_cannot_be_read_is_told(recovery: str) -> None:
    fake = FakeS3()
    client: Any = fake.client("s3")
    for body, text in ((b"{", "is damaged"), (b'{"format": 2}', "is damaged"), (_newer(), "format 2")):
        fake.put("out/_outfall/manifests/a/0.json", body)
        with pytest.raises(RecordError, match=text):
            list(read_manifests("s3://bkt/out", client=client))
    with pytest.raises(ConfigurationError, match="is not supported"):
        list(read_manifests("gs://bkt/out", client=client))
    fake.fail("list_objects_v2", answer(403, "AccessDenied"))
    with pytest.raises(TargetError, match="listing s3://bkt/out/_outfall/manifests/ failed"):
        list(read_manifests("s3://bkt/out", client=client))


def _newer() -> bytes:
    return b'{"format": 2, "step": "s", "incarnation": "a", "epoch": 0, "generation": 1, "objects": []}'


def test_an_object_under_a_key_of_somebody_else_gets_no_manifest() -> None:
    published = [StagedObject(bucket="b", key=key, id="i", size=1, rows=1, upload_id="u") for key in ("theirs", "more")]
    with pytest.raises(RecordError, match="theirs is not a key of this sink"):
        Manifest.of(published)

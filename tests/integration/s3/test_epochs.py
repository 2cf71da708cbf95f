"""Epochs in front of real servers: crashes, servers that are killed, answers that get lost, a store that is weaker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outfall.errors import CommitRefusedError, LostCommittableError, TransientError
from outfall.s3 import committed_keys, read_manifests
from outfall.testing import LocalDriver, NetworkFault, TcpProxy
from outfall.testing.crash_points import crash_at
from tests.integration.s3.support import Target, listening, rows, run
from tests.integration.support.s3 import S3, SeaweedFS, rclone
from tests.integration.support.servers import free_port
from tests.one_each import thorough

MIB = 1 << 20
STEP_BETWEEN_TWO_OBJECTS = "s3: completing#2"
OTHER_STEPS = ("s3: sending part", "s3: staged", "s3: completed#2", "s3: manifest written")


@pytest.fixture
def recovery(tmp_path: Path) -> str:
    return str(tmp_path / "recovery")


def large(number: int, size: int = 6 * MIB) -> dict[str, Any]:
    """A row of several parts."""
    return {"id": number, "text": "x" * size}


@pytest.mark.parametrize("step", [STEP_BETWEEN_TWO_OBJECTS, *map(thorough, OTHER_STEPS)])
def test_a_driver_that_dies_anywhere_leaves_each_row_once(seaweed: SeaweedFS, recovery: str, step: str) -> None:
    """Also between the completion of one object and that of the next."""
    target = Target(seaweed.s3)
    sink = target.sink(part_bytes="5 MiB", inline_bytes=0, max_concurrency=1, partition_by="k")
    tasks: list[list[Any]] = [[{"id": 1, "k": "a b+c=d/é"}, {"id": 2, "k": None}], [large(3) | {"k": "large"}]]
    with crash_at(step) as seen:
        run(sink, recovery, 0, *tasks)
    assert step.partition("#")[0] in seen
    run(sink, recovery, 0, *tasks[::-1])
    run(sink, recovery, 1, [{"id": 4, "k": "x"}])
    assert target.ids() == [1, 2, 3, 4]
    assert target.uploads() == []
    assert [manifest.rows for manifest in read_manifests(target.url, client=target.client)] == [3, 1]
    found = [key.removeprefix(target.root) for key in committed_keys(target.url, client=target.client)]
    assert sorted(found) == sorted(target.data())
    levels = {key.partition("/")[0] for key in found}
    assert levels == {"k=a b+c%3Dd%2Fé", "k=__HIVE_DEFAULT_PARTITION__", "k=large", "k=x"}


@pytest.mark.faults
@pytest.mark.thorough
@pytest.mark.parametrize("step", [STEP_BETWEEN_TWO_OBJECTS, "s3: staged", "before PREPARED", "s3: completed#1"])
def test_a_server_that_is_killed_and_comes_back_loses_nothing_that_was_promised(
    seaweed: SeaweedFS, recovery: str, step: str
) -> None:
    target = Target(seaweed.s3)
    sink = target.sink(part_bytes="5 MiB", inline_bytes=0, max_concurrency=1, retry_deadline="60 seconds")
    run(sink, recovery, 0, [large(0)], rows(1))
    name, _, times = step.partition("#")
    seen: list[str] = []

    def kill(reached: str) -> None:
        seen.extend([reached] if reached == name else [])
        if len(seen) == int(times or 1) and seaweed.running:
            seen.append("killed")
            seaweed.kill()
            seaweed.start()

    with listening(kill):
        run(sink, recovery, 1, [large(2)], rows(3))
    assert "killed" in seen
    run(sink, recovery, 2, rows(4))
    assert target.ids() == [0, 1, 2, 3, 4]
    assert target.uploads() == []


@pytest.fixture
def behind_proxy(target: Target) -> Iterator[tuple[Target, TcpProxy]]:
    """A target that is reached through a proxy by the sink, and directly by the test."""
    address = urlsplit(target.server.endpoint)
    assert address.hostname
    assert address.port
    with TcpProxy(address.hostname, address.port, listen=free_port()) as proxy:
        yield target, proxy


@pytest.mark.parametrize("answer", [b"CompleteMultipartUploadResult", thorough(b"InitiateMultipartUploadResult")])
def test_an_answer_that_is_cut_off_is_settled(
    behind_proxy: tuple[Target, TcpProxy], recovery: str, answer: bytes
) -> None:
    target, proxy = behind_proxy
    sink = target.sink(inline_bytes=0, max_concurrency=2, endpoint_url=f"http://127.0.0.1:{proxy.port}")
    run(sink, recovery, 0, rows(0))
    proxy.inject(NetworkFault("reset", "reply", contains=answer, connections=1))
    run(sink, recovery, 1, rows(1), rows(2))
    run(sink, recovery, 2, rows(3))
    assert target.ids() == [0, 1, 2, 3]
    assert target.uploads() == []


def test_a_put_whose_answer_is_lost_finds_its_own_object(behind_proxy: tuple[Target, TcpProxy], recovery: str) -> None:
    """The second try is refused because of the first, which is then known by its id."""
    target, proxy = behind_proxy
    sink = target.sink(endpoint_url=f"http://127.0.0.1:{proxy.port}")
    run(sink, recovery, 0, rows(0))
    proxied: list[str] = []

    def lose(reached: str) -> None:
        if reached == "s3: completing" and not proxied:
            proxied.append(reached)
            proxy.inject(NetworkFault("reset", "reply", contains=b"ETag", connections=1))

    with listening(lose):
        result = run(sink, recovery, 1, rows(1))
    assert result.counts["already_committed"] == 1
    assert target.ids() == [0, 1]


def occupy(target: Target) -> Callable[[str], None]:
    """Put another's object under each key of an upload, when the record has been advanced."""

    def listener(reached: str) -> None:
        if reached == "s3: record advanced":
            for upload in target.uploads():
                target.client.put_object(Bucket=target.bucket, Key=upload["Key"], Body=b'{"id":-1}')

    return listener


def test_a_store_that_ignores_if_none_match_is_looked_at_before_each_publication(
    tmp_path: Path, recovery: str, caplog: pytest.LogCaptureFixture
) -> None:
    with rclone(tmp_path) as server:
        target = Target(server.s3)
        sink = target.sink(inline_bytes=8)
        with crash_at("s3: completed"):
            run(sink, recovery, 0, rows(1), rows(22), [large(3)])
        assert "does not support If-None-Match" in caplog.text
        run(sink, recovery, 0, rows(9))
        assert target.ids() == [1, 3, 22]

        with listening(occupy(target)), pytest.raises(CommitRefusedError, match="created by another writer"):
            run(sink, recovery, 1, [large(4)])
        assert target.ids() == [-1, 1, 3, 22]


def test_what_an_upload_must_not_replace_is_told_and_left(target: Target, recovery: str) -> None:
    sink = target.sink(inline_bytes=0)
    run(sink, recovery, 0, rows(0))
    with listening(occupy(target)), pytest.raises(CommitRefusedError, match="created by another writer"):
        run(sink, recovery, 1, rows(1))
    assert target.ids() == [-1, 0]


def test_uploads_that_a_lifecycle_rule_took_are_written_anew_before_anything_is_published(
    any_target: Target, recovery: str
) -> None:
    sink = any_target.sink(inline_bytes=0)
    run(sink, recovery, 0, rows(0))
    with crash_at("after PREPARED"):
        run(sink, recovery, 1, rows(1), rows(2))
    any_target.abort_all()
    run(sink, recovery, 1, rows(3))
    assert any_target.ids() == [0, 3]
    with crash_at("before commit"):
        run(sink, recovery, 2, rows(4))
    any_target.abort_all()
    with pytest.raises(LostCommittableError, match="committables are lost, and others are or may be"):
        run(sink, recovery, 2, rows(5))
    assert any_target.ids() == [0, 3]


def test_a_server_that_does_not_answer_is_told_when_the_deadline_has_passed(target: Target, recovery: str) -> None:
    sink = target.sink(endpoint_url="http://127.0.0.1:9", retry_deadline=0.5)
    with pytest.raises(TransientError, match="Could not connect"):
        run(sink, recovery, 0, rows(1))


def test_a_prefix_is_a_key_and_no_url(any_s3: S3, recovery: str) -> None:
    target = Target(any_s3, prefix="a#1/b?c=%20+é")
    sink = target.sink(inline_bytes=10)
    with crash_at("s3: completing#2"):
        run(sink, recovery, 0, rows(1), rows(22))
    run(sink, recovery, 0)
    assert target.ids() == [1, 22]
    assert sorted(key.removeprefix(target.root) for key in committed_keys(sink)) == sorted(target.data())


@pytest.mark.parametrize("checksum", ["SHA256", *map(thorough, ["CRC32", "SHA1"])])
def test_checksums_are_sent_and_stored(any_target: Target, recovery: str, checksum: str) -> None:
    sink = any_target.sink(checksum=checksum, inline_bytes=20, part_bytes="5 MiB")
    run(sink, recovery, 0, rows(1), [large(2)])
    assert any_target.ids() == [1, 2]


def test_parquet_is_read_back(any_target: Target, recovery: str) -> None:
    batch = pa.record_batch({"id": list(range(1000)), "text": ["ä€𝄞"] * 1000})
    LocalDriver(any_target.sink(format="parquet"), recovery).run_epoch(0, [batch.to_pylist()])
    (body,) = any_target.data().values()
    assert pq.read_table(pa.BufferReader(body)).to_pylist() == batch.to_pylist()

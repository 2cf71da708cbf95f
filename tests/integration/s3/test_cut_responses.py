"""S8: responses that end anywhere, by plain HTTP: they are tried again or settled, and never taken for empty ones.

A connection that ends within a head looks to boto3 like a response without what comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from outfall.capabilities import CommitterInitContext
from outfall.errors import TransientError
from outfall.s3 import committed_keys
from outfall.s3.clean_up import delete
from outfall.s3.commit import S3Staging
from outfall.s3.staged import StagedObject, UploadedPart
from outfall.s3.store import Store
from outfall.storage.commit import Found
from outfall.testing import NetworkFault, TcpProxy
from tests.integration.s3.support import Target, rows, run
from tests.integration.support.s3 import SeaweedFS
from tests.integration.support.servers import free_port

BODY = b"the bytes of an object"


class CutOff:
    """A prefix that the sink reaches through a proxy, and the test directly."""

    def __init__(self, target: Target, proxy: TcpProxy) -> None:
        self.target = target
        self.proxy = proxy

    def sink(self, **options: Any) -> Any:
        return self.target.sink(endpoint_url=f"http://127.0.0.1:{self.proxy.port}", max_concurrency=1, **options)

    @contextmanager
    def after(self, count: int, connections: int | None = 1) -> Iterator[None]:
        """Cut one connection, or all, when so many bytes of replies have passed."""
        lift = self.proxy.inject(NetworkFault("cut", "reply", after=count, connections=connections))
        try:
            yield
        finally:
            lift()


@pytest.fixture
def cut_off(seaweed: SeaweedFS) -> Iterator[CutOff]:
    target = Target(seaweed.s3)
    address = urlsplit(target.server.endpoint)
    assert address.hostname
    assert address.port
    with TcpProxy(address.hostname, address.port, listen=free_port()) as proxy:
        yield CutOff(target, proxy)


def staged(target: Target) -> StagedObject:
    """An upload that is not completed yet, and a part of it."""
    key = f"{target.root}large"
    upload_id = target.client.create_multipart_upload(Bucket=target.bucket, Key=key, Metadata={"outfall-id": "mine"})
    part = target.client.upload_part(
        Bucket=target.bucket, Key=key, UploadId=upload_id["UploadId"], PartNumber=1, Body=BODY
    )
    parts = (UploadedPart(number=1, etag=part["ETag"]),)
    return StagedObject(
        bucket=target.bucket, key=key, id="mine", size=len(BODY), rows=1, upload_id=upload_id["UploadId"], parts=parts
    )


def complete(target: Target, found: StagedObject) -> None:
    parts = [part.named() for part in found.parts]
    target.client.complete_multipart_upload(
        Bucket=target.bucket, Key=found.key, UploadId=found.upload_id, MultipartUpload={"Parts": parts}
    )


def deleted(store: Store, keys: list[str]) -> list[str]:
    delete(store, keys)
    return list(store.keys(keys[0]))


def staging(store: Store) -> S3Staging:
    return S3Staging(store, CommitterInitContext("sink", "0" * 32, 1, 0))


def asks(cut_off: CutOff) -> Mapping[str, tuple[Callable[[Store], Any], Any]]:
    """Each kind of request, and what it is to say."""
    target = cut_off.target
    put = {"Bucket": target.bucket, "Key": f"{target.root}small"}
    target.client.put_object(**put, Body=BODY)
    done, open_upload = staged(target), staged(target)
    complete(target, done)
    small, large = put["Key"], done.key
    return {
        "listing": (lambda store: list(store.keys(target.root)), [large, small]),
        "listing of nothing": (lambda store: list(store.keys(f"{target.root}none")), []),
        "object": (lambda store: store.get(small), BODY),
        "no object": (lambda store: store.get(f"{small}-not"), None),
        "head": (lambda store: staging(store).look(done), Found.OURS),
        "head of nothing": (
            lambda store: staging(store).look(done.model_copy(update={"key": small + "-not"})),
            Found.NOTHING,
        ),
        "head of another": (lambda store: staging(store).look(done.model_copy(update={"id": "x"})), Found.OTHERS),
        "parts": (lambda store: staging(store).is_staged(open_upload), True),
        "no parts": (lambda store: staging(store).is_staged(done), False),
        "deletion": (lambda store: deleted(store, [f"{small}-never", f"{small}-never-too"]), []),
    }


OFFSETS = (20, 180, 5, 100, 260, 340)


@pytest.mark.parametrize("offsets", [OFFSETS[:2], pytest.param(OFFSETS[2:], marks=pytest.mark.thorough)])
def test_a_response_that_is_cut_off_once_is_asked_for_again(cut_off: CutOff, offsets: Sequence[int]) -> None:
    store = cut_off.sink().store
    for kind, (ask, expected) in asks(cut_off).items():
        for count in offsets:
            with cut_off.after(count):
                assert (kind, count, ask(store)) == (kind, count, expected)


@pytest.mark.thorough
def test_a_response_that_is_cut_off_each_time_is_an_error(cut_off: CutOff) -> None:
    """Within its head; of a head without a body the status is enough where it says that there is nothing."""
    store = cut_off.sink(retry_deadline=0.1).store
    for kind, (ask, _) in asks(cut_off).items():
        if kind in ("head of nothing", "no parts"):
            continue
        with cut_off.after(20, connections=None), pytest.raises(TransientError):
            pytest.fail(f"{kind}: {ask(store)}")


def run_cut_off(cut_off: CutOff, recovery: str, sink: Any, offsets: range) -> None:
    """Run an epoch for each offset into all that the server answers in it."""
    run(sink, recovery, 0, rows(-1))
    epoch = 0
    for count in offsets:
        epoch += 1
        with cut_off.after(count):
            run(sink, recovery, epoch, rows(epoch))
    assert cut_off.target.ids() == [-1, *range(1, epoch + 1)]
    assert len(list(committed_keys(sink))) == epoch + 1
    assert cut_off.target.uploads() == []


@pytest.mark.thorough
def test_epochs_whose_answers_are_cut_off_anywhere_leave_each_row_once(cut_off: CutOff, tmp_path: Path) -> None:
    run_cut_off(cut_off, str(tmp_path), cut_off.sink(inline_bytes=0), range(20, 6_000, 1_193))


@pytest.mark.long
@pytest.mark.parametrize("options", [{"inline_bytes": 0}, {"inline_bytes": 100}, {"inline_bytes": 0, "roll_rows": 3}])
def test_each_region_of_each_answer_of_an_epoch(cut_off: CutOff, tmp_path: Path, options: Mapping[str, Any]) -> None:
    run_cut_off(cut_off, str(tmp_path), cut_off.sink(**options), range(0, 7_000, 53))

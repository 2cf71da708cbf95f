"""`S3Sink` is exactly once in front of S3 as its reference describes it: the conformance suite does not refute it.

With real servers, and processes that are killed: tests/integration/s3/test_conformance.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.unit.support.conforming import saved
from tests.unit.support.fake_s3 import FakeS3, answer

REQUESTS = [
    "create_multipart_upload", "upload_part", "complete_multipart_upload", "abort_multipart_upload", "list_parts",
    "list_multipart_uploads", "put_object", "get_object", "head_object", "list_objects_v2", "delete_object",
    "delete_objects", "upload_part_copy",
]  # fmt: skip


class Uploads(SinkHarness):
    secrets = ("hunter2",)
    # The store is in this process; killed processes come with real servers.
    strict = False

    def new_target(self, directory: Path) -> Any:
        return FakeS3(page=2)

    def make_sink(self, target: Any) -> Any:
        return target.sink(f"t{id(target)}", retry_deadline=0.01, max_concurrency=1, **self.sink_options())

    def sink_options(self) -> dict[str, Any]:
        return {}

    def read(self, target: Any) -> Iterable[Any]:
        return [json.loads(line) for body in target.data().values() for line in body.splitlines()]

    def lose(self, target: Any, committable: Any) -> None:
        target.uploads.pop(committable.upload_id, None)

    def lose_target(self, target: Any) -> None:
        target.objects.clear()

    def save_target(self, target: Any) -> Callable[[], None]:
        return saved(target, "objects", "uploads")

    @contextmanager
    def breaking(self, target: Any) -> Iterator[None]:
        """Have every request fail."""
        for request in REQUESTS:
            target.fail(request, answer(503, "SlowDown"), times=10_000)
        try:
            yield
        finally:
            target.heal()

    def leftovers(self, target: Any) -> int:
        return len(target.uploads)


SHORT = [
    "declared_guarantee", "several_epochs", "counts_are_facts", "replay_of_a_lost_epoch", "lost_reply_of_a_commit",
    "commit_is_asked_again", "failed_commit_is_resumed", "commit_deadline", "lost_before_committing",
    "lost_after_committing", "two_attempts_finish", "second_driver", "foreign_log", "lost_log", "lost_target",
    "unknown_version_is_refused", "damaged_bytes_are_refused", "no_secret_comes_out", "close_publishes_nothing",
    "staged_data_is_kept", "leftovers_are_cleaned_up", "leftovers_are_listed", "failed_job", "save_modes",
    "connection_check", "restored_target", "changed_layout", "in_wrappers",
]  # fmt: skip


@pytest.mark.thorough
def test_uploads_in_short(tmp_path: Path) -> None:
    report = run_conformance(Uploads(), tmp_path, checks=SHORT)
    assert report.passed, report


@pytest.mark.thorough
def test_copies_of_the_log_in_short(tmp_path: Path) -> None:
    uploads = Uploads()
    uploads.most_cases = 8
    report = run_conformance(uploads, tmp_path, checks=["copied_log", "log_copied_during_an_epoch"])
    assert report.passed, report


class Rolled(Uploads):
    """Each epoch composes objects, of rows that waited too, and leaves some waiting: what the suite looks at."""

    def sink_options(self) -> dict[str, Any]:
        return {"roll_rows": 4}

    def leftovers(self, target: Any) -> int:
        """Pieces too, but for those of the last state, which are at most one level's."""
        return len(target.uploads) + max(0, len(target.pieces()) - 15 * 4)


@pytest.mark.thorough
def test_rolled_objects_in_short(tmp_path: Path) -> None:
    report = run_conformance(Rolled(), tmp_path, checks=SHORT)
    assert report.passed, report


@pytest.mark.long
class TestUploads(Uploads, SinkConformance):
    pass


@pytest.mark.long
class TestInlineObjects(TestUploads):
    def sink_options(self) -> dict[str, Any]:
        return {"inline_bytes": 300}


@pytest.mark.long
class TestWeakerStore(TestUploads):
    def new_target(self, directory: Path) -> Any:
        return FakeS3(conditional=False)


@pytest.mark.long
class TestBucketPaths(TestUploads):
    def sink_options(self) -> dict[str, Any]:
        return {"partition_by": "k", "inline_bytes": 100}

    def row(self, number: int) -> Any:
        return {"id": number, "k": f"k{number % 3}"}

    def read(self, target: Any) -> Iterable[Any]:
        for key, body in target.data().items():
            for line in body.splitlines():
                yield json.loads(line) | {"k": key.split("/")[1].removeprefix("k=")}


@pytest.mark.long
class TestRolled(Rolled, SinkConformance):
    pass


@pytest.mark.long
class TestRolledInline(TestRolled):
    def sink_options(self) -> dict[str, Any]:
        return {"roll_rows": 2, "inline_bytes": 300}


@pytest.mark.long
class TestRolledBucketPaths(TestBucketPaths):
    def sink_options(self) -> dict[str, Any]:
        return {"partition_by": "k", "inline_bytes": 100, "roll_bytes": 15}

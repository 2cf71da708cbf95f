"""`S3Sink` is exactly once: the conformance suite does not refute it, on two servers that share no code."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.s3.support import Target
from tests.integration.support.s3 import S3
from tests.one_each import thorough


class Prefixes(SinkHarness):
    """A target is a prefix of one bucket."""

    not_claimed = {"target_refuses": "requests that fail are tried in front of the store in memory, tests/unit"}
    server: S3
    bucket: str
    secrets = ("outfall-secret",)
    memory_limit: int | None = 64 << 20

    def new_target(self, directory: Path) -> Any:
        return Target(self.server, self.bucket, f"t-{secrets.token_hex(8)}")

    def make_sink(self, target: Any) -> Any:
        # Room for a slow server, whose passing 500 is not hidden by boto3's own tries here.
        options = {"retry_deadline": "30 seconds", "part_bytes": "5 MiB", "max_concurrency": 2}
        return target.sink(**(options | self.sink_options()))

    def sink_options(self) -> dict[str, Any]:
        return {"inline_bytes": 0}

    def read(self, target: Any) -> Iterable[Any]:
        return list(target.rows())

    def lose(self, target: Any, committable: Any) -> None:
        if committable.upload_id is not None:
            target.client.abort_multipart_upload(
                Bucket=self.bucket, Key=committable.key, UploadId=committable.upload_id
            )

    def lose_target(self, target: Any) -> None:
        target.delete_all()

    def save_target(self, target: Any) -> Callable[[], None]:
        objects = target.objects()

        def restore() -> None:
            target.delete_all()
            for key, body in objects.items():
                target.client.put_object(Bucket=self.bucket, Key=target.root + key, Body=body)

        return restore

    def leftovers(self, target: Any) -> int:
        return len(target.uploads())


SHORT = [
    "two_attempts_finish",
    "lost_before_committing",
]
MORE = [
    "lost_reply_of_a_commit", "late_zombie", "leftovers_are_cleaned_up",
    "one_epoch", "empty_epochs_and_tasks", "lost_log", "lost_target", "nothing_visible_before_commit",
    "replay_of_a_lost_epoch", "staged_data_is_kept", "leftovers_are_listed", "connection_check",
    "changed_layout", "in_wrappers",
]  # fmt: skip
ROLLED = ["one_epoch", "lost_target", "two_attempts_finish", "lost_before_committing", "leftovers_are_cleaned_up"]


@pytest.fixture
def bucket(any_s3: S3) -> str:
    return Target(any_s3).bucket


@pytest.mark.parametrize("checks", [SHORT, thorough(MORE)], ids=["short", "more"])
def test_uploads_in_short(any_s3: S3, bucket: str, tmp_path: Path, checks: list[str]) -> None:
    """What takes seconds; the others need minutes with a real server."""
    prefixes = Prefixes()
    prefixes.server, prefixes.bucket = any_s3, bucket
    report = run_conformance(prefixes, tmp_path, checks=checks)
    assert report.passed, report


class Rolled(Prefixes):
    """Each epoch composes objects, of rows that waited too, and leaves some waiting."""

    def sink_options(self) -> dict[str, Any]:
        return {"inline_bytes": 0, "roll_rows": 4}


@pytest.mark.thorough
def test_rolled_objects_in_short(any_s3: S3, bucket: str, tmp_path: Path) -> None:
    prefixes = Rolled()
    prefixes.server, prefixes.bucket = any_s3, bucket
    report = run_conformance(prefixes, tmp_path, checks=ROLLED)
    assert report.passed, report


class Suite(Prefixes, SinkConformance):
    """The whole suite."""

    @pytest.fixture(autouse=True)
    def _server(self, each_s3: S3) -> None:
        self.server, self.bucket = each_s3, Target(each_s3).bucket


@pytest.mark.long
class TestUploads(Suite):
    pass


@pytest.mark.long
class TestInlineObjects(Suite):
    def sink_options(self) -> dict[str, Any]:
        return {"inline_bytes": "64 KiB"}


@pytest.mark.long
class TestRolled(Rolled, Suite):
    pass

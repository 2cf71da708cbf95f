"""`S3Sink` is exactly once: the conformance suite does not refute it, on two servers that share no code."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.s3.support import Target
from tests.integration.support.s3 import S3


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
        options = {"retry_deadline": "30 seconds", "part_size": "5 MiB", "max_concurrency": 2}
        return target.sink(**(options | self.sink_options()))

    def sink_options(self) -> dict[str, Any]:
        return {"inline_size": 0}

    def read(self, target: Any) -> Iterable[Any]:
        return list(target.rows())

    def lose(self, target: Any, committable: Any) -> None:
        if committable.upload_id is not None:
            target.client.abort_multipart_upload(
                Bucket=self.bucket, Key=committable.key, UploadId=committable.upload_id
            )

    def lose_target(self, target: Any) -> None:
        target.delete_all()

    def leftovers(self, target: Any) -> int:
        return len(target.uploads())


SHORT = [
    "one_epoch", "empty_epochs_and_tasks", "lost_log", "lost_target", "replay_of_a_lost_epoch", "two_attempts_finish",
    "nothing_visible_before_commit", "lost_reply_of_a_commit", "lost_before_committing", "leftovers_are_swept",
]  # fmt: skip


ROLLED = ["one_epoch", "lost_target", "two_attempts_finish", "lost_before_committing", "leftovers_are_swept"]


@pytest.fixture(autouse=True)
def _few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto answers 500 for uploads that are gone, which boto3 would ask for again and again."""
    monkeypatch.setattr("outfall.s3.store._TRIES", 1)


@pytest.fixture
def bucket(any_s3: S3) -> str:
    return Target(any_s3).bucket


def test_uploads_in_short(any_s3: S3, bucket: str, tmp_path: Path) -> None:
    """What takes seconds; the others need minutes with a real server."""
    prefixes = Prefixes()
    prefixes.server, prefixes.bucket = any_s3, bucket
    report = run_conformance(prefixes, tmp_path, checks=SHORT)
    assert report.passed, report


class Rolled(Prefixes):
    """Each epoch composes objects, of rows that waited too, and leaves some waiting."""

    def sink_options(self) -> dict[str, Any]:
        return {"inline_size": 0, "roll_rows": 2}


def test_rolled_objects_in_short(any_s3: S3, bucket: str, tmp_path: Path) -> None:
    prefixes = Rolled()
    prefixes.server, prefixes.bucket = any_s3, bucket
    report = run_conformance(prefixes, tmp_path, checks=ROLLED)
    assert report.passed, report


class Suite(Prefixes, SinkConformance):
    """The whole suite."""

    @pytest.fixture(autouse=True)
    def _server(self, any_s3: S3, bucket: str) -> None:
        self.server, self.bucket = any_s3, bucket


@pytest.mark.long
class TestUploads(Suite):
    pass


@pytest.mark.long
class TestInlineObjects(Suite):
    def sink_options(self) -> dict[str, Any]:
        return {"inline_size": "64 KiB"}


@pytest.mark.long
class TestRolled(Rolled, Suite):
    pass

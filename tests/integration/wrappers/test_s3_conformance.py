"""Wrappers around `S3Sink` keep its guarantee: the conformance suite does not refute it, on moto's server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from outfall.protocol.step import EpochOptions
from outfall.testing import SinkConformance, run_conformance
from outfall.wrappers import BatchingSink, ExactlyOnceSink, FanOutSink
from tests.integration.s3.support import Target
from tests.integration.s3.test_conformance import Prefixes
from tests.integration.support.s3 import S3


class Wrapped(Prefixes):
    """One prefix; committables carry the name of their sink."""

    memory_limit = None

    def lose(self, target: Any, committable: Any) -> None:
        super().lose(target, committable.value)


class FannedPrefixes(Wrapped):
    """Two prefixes; the first is read, and uploads are counted in both."""

    def make_sink(self, target: Any) -> Any:
        return FanOutSink(out=super().make_sink(target), other=super().make_sink(self.other(target)))

    def leftovers(self, target: Any) -> int:
        return super().leftovers(target) + super().leftovers(self.other(target))

    def other(self, target: Any) -> Target:
        return Target(self.server, self.bucket, f"other-{target.prefix}")


class OtherPrefixes(FannedPrefixes):
    """What is read, and lost, is the prefix that commits last."""

    def read(self, target: Any) -> Iterable[Any]:
        return super().read(self.other(target))

    def lose_target(self, target: Any) -> None:
        super().lose_target(self.other(target))

    def save_target(self, target: Any) -> Callable[[], None]:
        return super().save_target(self.other(target))


class BatchedPrefixes(Prefixes):
    memory_limit = None

    def make_sink(self, target: Any) -> Any:
        return BatchingSink(super().make_sink(target), batch_size=2)


class HeldPrefixes(Wrapped):
    """Batches across epochs, whose last rows are drained."""

    def make_sink(self, target: Any) -> Any:
        return BatchingSink(super().make_sink(target), batch_size=2, across_epochs=True)

    def options(self) -> EpochOptions:
        return EpochOptions(worker_count=2)


class OncePrefixes(Wrapped):
    """Offsets are the rows' numbers."""

    def make_sink(self, target: Any) -> Any:
        return ExactlyOnceSink(super().make_sink(target), offset="id", source_partition="source", parts=3)

    def row(self, number: int) -> Any:
        return {**super().row(number), "source": f"{number % 3}"}

    def key(self, number: int) -> str:
        return f"{number % 3}"


SHORT = ["one_epoch", "lost_reply_of_a_commit"]
COMMITS = ["lost_reply_of_a_commit", "lost_before_committing", "leftovers_are_cleaned_up"]


@pytest.fixture(autouse=True)
def _few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto answers 500 for uploads that are gone, which boto3 would ask for again and again."""
    monkeypatch.setattr("outfall.s3.store._TRIES", 1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "checks"),
    [
        (OtherPrefixes, ["lost_reply_of_a_commit"]),
        *(
            pytest.param(kind, checks, marks=pytest.mark.thorough)
            for kind, checks in [
                (FannedPrefixes, ["lost_log", "two_attempts_finish"]),
                (OtherPrefixes, COMMITS),
                (BatchedPrefixes, SHORT),
                (HeldPrefixes, ["replay_of_a_lost_epoch"]),
                (OncePrefixes, SHORT),
            ]
        ),
    ],
)
def test_wrapped_uploads_in_short(s3: S3, bucket: str, tmp_path: Path, kind: type[Prefixes], checks: list[str]) -> None:
    """What takes seconds; the others need minutes with a real server."""
    prefixes = kind()
    prefixes.server, prefixes.bucket = s3, bucket
    report = run_conformance(prefixes, tmp_path, checks=checks)
    assert report.passed, report


class Suite(SinkConformance):
    """The whole suite."""

    schedules = 30

    @pytest.fixture(autouse=True)
    def _server(self, s3: S3, bucket: str) -> None:
        self.server, self.bucket = s3, bucket


@pytest.mark.long
class TestFanOut(FannedPrefixes, Suite):
    pass


@pytest.mark.long
class TestOtherSinkOfAFanOut(OtherPrefixes, Suite):
    pass


@pytest.mark.long
class TestBatches(BatchedPrefixes, Suite):
    pass


@pytest.mark.long
class TestBatchesAcrossEpochs(HeldPrefixes, Suite):
    pass


@pytest.mark.long
class TestExactlyOnce(OncePrefixes, Suite):
    pass

"""From PREPARED to COMPLETED: what a later run makes of it, and what becomes of lost data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from outfall.capabilities import (
    CleanUpContext,
    CommitRequest,
    Committer,
    CommitterInitContext,
)
from outfall.errors import CapabilityError, CommitError, CommitRefusedError, EpochAbandonedError, LostCommittableError
from outfall.metrics.step_status import read_status
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.step import EpochOptions
from outfall.recovery import history
from outfall.recovery.url import recovery_config
from outfall.testing import LocalDriver, crash_at
from tests.unit.support.journals import kinds
from tests.unit.support.setups import Bundling, Holding, InPlace, Setup, Staging, content, counted
from tests.unit.support.warehouse import Staged, StagingCommitter, StagingSink


def die(setup: Setup, point: str) -> None:
    with crash_at(point):
        setup.run(setup.driver(), 0, "a")


def lose_one(setup: Staging) -> str:
    name = sorted(setup.warehouse.staged)[1]
    setup.warehouse.lose(name)
    return name


def test_an_epoch_is_recorded_arrow_by_arrow() -> None:
    setup = Staging()
    setup.run(setup.driver(), 0)
    assert kinds(setup.recovery) == ["begin", "prepared", "committing", "completed"]


def test_an_in_place_epoch_has_nothing_to_commit() -> None:
    setup = InPlace()
    setup.run(setup.driver(), 0)
    assert kinds(setup.recovery) == ["begin", "prepared", "completed"]


@pytest.mark.parametrize("point", ["after PREPARED", "after COMMITTING", "fake: published one#2", "before COMPLETED"])
def test_a_later_run_commits_what_is_recorded_and_writes_nothing(point: str) -> None:
    setup = Staging()
    die(setup, point)
    opened = setup.warehouse.opened
    result = setup.run(setup.driver(), 0, "b")
    assert result.skipped
    assert result.counts["skipped"] == 3
    assert setup.warehouse.opened == opened
    assert setup.found() == counted(content(0, "a"))
    assert kinds(setup.recovery).count("committing") == 1


def test_a_lost_reply_of_a_commit_is_settled_by_the_next_run() -> None:
    setup = Staging()
    with setup.warehouse.replies_lost(), pytest.raises(CommitError, match="reply was lost"):
        setup.run(setup.driver(), 0)
    assert setup.run(setup.driver(), 0, "b").skipped
    assert setup.found() == counted(content(0, "a"))


def test_only_the_unresolved_are_published_after_a_crash_at_k_of_n() -> None:
    setup = Staging()
    die(setup, "fake: published one#2")
    assert len(setup.warehouse.published) == 2
    setup.run(setup.driver(), 0)
    assert [len(names) for names in setup.warehouse.offers] == [3, 3]
    assert len(setup.warehouse.published) == 3


def test_lost_at_prepared_revokes_the_rest_and_writes_the_epoch_anew() -> None:
    setup = Staging()
    die(setup, "after PREPARED")
    lost = lose_one(setup)
    remaining = set(setup.warehouse.staged)
    result = setup.run(setup.driver(), 0, "b")
    assert not result.skipped
    assert setup.warehouse.revoked == remaining
    assert lost not in setup.warehouse.revoked
    assert setup.found() == counted(content(0, "b"))


def test_abandoned_is_recorded_with_its_reason_before_the_epoch_begins_anew() -> None:
    setup = Staging()
    die(setup, "after PREPARED")
    lose_one(setup)
    with crash_at("before BEGIN"):
        setup.run(setup.driver(), 0, "b")
    assert kinds(setup.recovery) == ["begin", "prepared", "abandoned"]
    setup.run(setup.driver(), 0, "b")
    assert setup.found() == counted(content(0, "b"))


def test_a_crash_after_revoking_and_before_abandoned_is_settled() -> None:
    setup = Staging()
    die(setup, "after PREPARED")
    lose_one(setup)
    with crash_at("after revoke"):
        setup.run(setup.driver(), 0, "b")
    assert (kinds(setup.recovery), len(setup.warehouse.revoked)) == (["begin", "prepared"], 2)
    assert setup.found() == Counter()
    setup.run(setup.driver(), 0, "b")
    assert setup.found() == counted(content(0, "b"))


def test_an_abandoned_epoch_keeps_the_epochs_before_it() -> None:
    setup = Staging()
    driver = setup.driver()
    setup.run(driver, 0)
    with crash_at("after PREPARED"):
        setup.run(driver, 1, "a")
    lose_one(setup)
    setup.run(setup.driver(), 1, "b")
    setup.run(setup.driver(), 2, "a")
    assert setup.found() == counted(content(0, "a")) + counted(content(1, "b")) + counted(content(2, "a"))


def test_an_abandoned_epoch_gives_the_states_before_it_back() -> None:
    setup = Holding()
    setup.run(setup.driver(), 0)
    with crash_at("after PREPARED"):
        setup.run(setup.driver(), 1, "a")
    lose_one(setup)
    setup.run(setup.driver(), 1, "b")
    setup.drain(2)
    assert setup.found() == counted(content(0)) + counted(content(1, "b"))


def test_lost_while_committing_with_evidence_of_nothing_published_is_written_anew() -> None:
    setup = Staging()
    setup.warehouse.ledger = True
    die(setup, "after COMMITTING")
    for name in list(setup.warehouse.staged):
        setup.warehouse.lose(name)
    result = setup.run(setup.driver(), 0, "b")
    assert not result.skipped
    assert setup.found() == counted(content(0, "b"))


class LosingCommitter(StagingCommitter):
    """Finds everything gone when it commits."""

    def commit(self, requests: Sequence[CommitRequest[Staged]]) -> None:
        for request in requests:
            request.signal_lost("emptied by a crash of the server")


class LosingSink(StagingSink):
    losing = True

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return LosingCommitter(self.warehouse) if self.losing else StagingCommitter(self.warehouse)


def test_lost_in_the_run_that_wrote_it_asks_for_the_epoch_again() -> None:
    setup = Staging()
    setup.warehouse.ledger = True
    sink = LosingSink(setup.warehouse)
    driver = LocalDriver(sink, setup.recovery)
    with pytest.raises(EpochAbandonedError, match="Emptied by a crash"):
        setup.run(driver, 0, "a")
    sink.losing = False
    assert not setup.run(driver, 0, "b").skipped
    assert setup.found() == counted(content(0, "b"))


def test_lost_while_committing_without_evidence_is_terminal_and_lists_both() -> None:
    setup = Staging()
    die(setup, "fake: published one")
    (published,) = setup.warehouse.published
    lost = lose_one(setup)
    with pytest.raises(LostCommittableError) as caught:
        setup.run(setup.driver(), 0, "b")
    text = str(caught.value)
    assert "1 of 3 committables are lost" in text
    lost_text, published_text = text.split("published: ")
    assert lost in lost_text
    assert published in published_text
    assert "What to do" in text
    assert (caught.value.step, caught.value.epoch) == ("sink", 0)


@pytest.mark.parametrize(("lost", "end"), [(20, ""), (21, " and 1 more")])
def test_an_error_names_twenty_committables_and_counts_the_rest(lost: int, end: str) -> None:
    setup = Staging()
    with crash_at("fake: published one"):
        setup.driver().run_epoch(0, [[(0, "a", task)] for task in range(lost + 1)])
    for name in list(setup.warehouse.staged):
        setup.warehouse.lose(name)
    with pytest.raises(LostCommittableError) as caught:
        setup.run(setup.driver(), 0, "b")
    named = str(caught.value).split("lost: ")[1].split("; published: ")[0]
    assert named.count(", ") == 19
    assert named.removesuffix(end).count(" more") == 0


def test_lost_while_committing_stays_terminal() -> None:
    setup = Staging()
    die(setup, "fake: published one")
    lose_one(setup)
    for _ in range(2):
        with pytest.raises(LostCommittableError):
            setup.run(setup.driver(), 0, "b")
    assert setup.found() <= counted(content(0, "a"))
    assert kinds(setup.recovery) == ["begin", "prepared", "committing"]


def test_lost_at_prepared_without_revoking_is_refused() -> None:
    class Irrevocable(StagingCommitter):
        def revoke(self, requests: Sequence[CommitRequest[Staged]]) -> None:
            Committer.revoke(self, requests)

    class Sink(StagingSink):
        def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
            return Irrevocable(self.warehouse)

    setup = Staging()
    sink = Sink(setup.warehouse)
    with crash_at("after PREPARED"):
        setup.run(LocalDriver(sink, setup.recovery), 0)
    lose_one(setup)
    with pytest.raises(CapabilityError, match="cannot revoke"):
        setup.run(LocalDriver(sink, setup.recovery), 0)
    for name in list(setup.warehouse.staged):
        setup.warehouse.lose(name)
    setup.run(LocalDriver(sink, setup.recovery), 0, "b")
    assert setup.found() == counted(content(0, "b"))


def test_a_refused_committable_fails_until_it_is_dropped() -> None:
    class Refusing(StagingCommitter):
        def _commit_one(self, request: CommitRequest[Staged]) -> None:
            if refuses and "-w1-" in request.committable.name:
                request.signal_failed_with_known_reason(ValueError("no such column"))
            else:
                super()._commit_one(request)

    class Sink(StagingSink):
        def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
            return Refusing(self.warehouse)

    setup, refuses = Staging(), True
    sink = Sink(setup.warehouse)
    with pytest.raises(CommitRefusedError):
        setup.run(LocalDriver(sink, setup.recovery), 0)
    with pytest.raises(CommitRefusedError):
        setup.run(LocalDriver(sink, setup.recovery), 0)
    dropping = EpochOptions(commit=CommitPolicy(on_known_failure="drop"))
    setup.run(LocalDriver(sink, setup.recovery, options=dropping), 0)
    rows = content(0)
    assert setup.found() == counted([rows[0], rows[2]])
    # It is told, for ever: a later epoch that drops nothing does not bring the guarantee back.
    refuses = False
    setup.run(LocalDriver(sink, setup.recovery), 1)
    status = read_status(recovery_config(setup.recovery), "sink", last=9)
    assert (status.dropped_rows, status.dropped_committables, status.guarantee) == (2, 1, "NONE")
    assert [(epoch.rows, epoch.dropped) for epoch in history(setup.recovery) if epoch.rows] == [(6, 2), (6, 0)]


def test_post_commit_hears_only_of_what_was_committed() -> None:
    class Refusing(StagingCommitter):
        def commit(self, requests: Sequence[CommitRequest[Any]]) -> None:
            for request in requests:
                request.signal_failed_with_known_reason(ValueError("no"))

    setup = Bundling()
    sink = setup.sink()
    sink.create_committer = lambda context: Refusing(setup.warehouse)
    dropping = EpochOptions(commit=CommitPolicy(on_known_failure="drop"))
    setup.run(LocalDriver(sink, setup.recovery, options=dropping), 0)
    assert setup.warehouse.followed == set()


@pytest.mark.parametrize("point", ["after commit", "fake: followed one", "after post-commit", "before COMPLETED"])
def test_post_commit_is_repeated_after_a_crash_until_completed(point: str) -> None:
    setup = Bundling()
    die(setup, point)
    setup.warehouse.followed.clear()
    setup.run(setup.driver(), 0)
    assert setup.warehouse.followed == setup.warehouse.published.keys()


def test_pre_commit_changes_type_and_number() -> None:
    setup = Bundling()
    setup.run(setup.driver(), 0)
    assert setup.found() == counted(content(0))
    assert setup.warehouse.followed == setup.warehouse.published.keys()
    assert len(setup.warehouse.followed) == 3


def test_pre_commit_runs_again_with_the_answers_of_the_replay() -> None:
    setup = Bundling()
    die(setup, "before PREPARED")
    setup.run(setup.driver(), 0, "b")
    assert setup.found() == counted(content(0, "b"))


def test_committers_are_told_which_generation_wrote() -> None:
    contexts: list[CommitterInitContext] = []

    class Sink(StagingSink):
        def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
            contexts.append(context)
            return super().create_committer(context)

    setup = Staging()
    with crash_at("after PREPARED"):
        setup.run(LocalDriver(Sink(setup.warehouse), setup.recovery), 0)
    setup.run(LocalDriver(Sink(setup.warehouse), setup.recovery), 0)
    assert {(context.step_id, context.generation, context.epoch) for context in contexts} == {("sink", 1, 0)}


def test_what_lost_attempts_staged_is_cleaned_up_and_foreign_names_stay() -> None:
    setup = Staging()
    setup.warehouse.staged["0123456789abcdef-g1-e0-w0-a0"] = ["somebody's"]
    die(setup, "after collect")
    setup.run(setup.driver(), 0, "b")
    assert list(setup.warehouse.staged) == ["0123456789abcdef-g1-e0-w0-a0"]


def test_a_lost_attempts_leftovers_are_cleaned_up_before_its_epoch_is_written_again() -> None:
    setup = Staging()
    die(setup, "after collect")
    assert setup.warehouse.staged
    setup.driver().coordinator().begin(0)
    assert not setup.warehouse.staged


def test_a_failing_clean_up_fails_no_epoch(caplog: pytest.LogCaptureFixture) -> None:
    class Sink(StagingSink):
        def clean_up(self, context: CleanUpContext) -> int:
            raise OSError("no route")

    setup = Staging()
    setup.run(LocalDriver(Sink(setup.warehouse), setup.recovery), 0)
    assert kinds(setup.recovery)[-1] == "completed"
    assert "cleaning up the target failed" in caplog.text


def test_partitions_are_closed_after_errors_too() -> None:
    setup = Staging()
    driver = setup.driver()
    ticket = driver.coordinator().begin(0)
    with pytest.raises(TypeError):
        driver.run_task(ticket, 0, 0, [(None, [1]), (None, 2)])  # type: ignore[list-item]
    assert setup.warehouse.opened == setup.warehouse.closed == 1

"""Groups of committables: each is committed in a call of its own, and the log marks those that are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import TransientError
from tests.unit.support.journals import entries, kinds
from tests.unit.support.setups import Staging, content, counted
from tests.unit.support.warehouse import Staged, StagingCommitter, StagingSink, Warehouse


class Grouping(StagingCommitter):
    """Its groups are the tasks. The target of task 1 is away as often as is given."""

    def __init__(self, sink: GroupingSink) -> None:
        super().__init__(sink.warehouse)
        self._sink = sink

    def group(self, committable: Staged) -> str:
        return committable.name.split("-")[3]

    def commit(self, requests: Sequence[CommitRequest[Staged]]) -> None:
        groups = {self.group(request.committable) for request in requests}
        assert len(groups) == 1
        self._sink.offered += groups
        if groups == {"w1"} and self._sink.away:
            self._sink.away -= 1
            raise TransientError("it is away")
        super().commit(requests)


class GroupingSink(StagingSink):
    def __init__(self, warehouse: Warehouse, away: int) -> None:
        super().__init__(warehouse)
        self.away = away
        self.offered: list[str] = []

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return Grouping(self)


class Grouped(Staging):
    def __init__(self, away: int) -> None:
        super().__init__()
        self.made = GroupingSink(self.warehouse, away)

    def sink(self) -> Any:
        return self.made


def test_a_group_that_is_committed_is_not_offered_again() -> None:
    setup = Grouped(away=1)
    with pytest.raises(TransientError, match="it is away"):
        setup.run(setup.driver(), 0)
    assert setup.made.offered == ["w0", "w1", "w2"]
    marked = [entry["child"] for entry in entries(setup.recovery) if entry["kind"] == "committed"]
    assert marked == ["w0", "w2"]
    setup.made.offered.clear()
    assert setup.run(setup.driver(), 0).skipped
    assert setup.made.offered == ["w1"]
    assert setup.found() == counted(content(0))


def test_an_epoch_is_complete_although_cleaning_up_the_log_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Staging()
    coordinator = setup.driver().coordinator()
    ticket = coordinator.begin(0)
    answers = setup.driver().run_tasks(ticket, 0, content(0))

    def away(**given: Any) -> None:
        raise TransientError("the store is away")

    monkeypatch.setattr(coordinator._step.journal.log, "clean_up", away)
    coordinator.finish(ticket, answers)
    assert kinds(setup.recovery)[-1] == "completed"
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "cleaning up the log failed; the next epoch retries it" in warning.getMessage()
    assert warning.exc_info is not None

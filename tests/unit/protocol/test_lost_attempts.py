"""What a clean-up is told of the BEGINs whose attempts were lost."""

from __future__ import annotations

from typing import Any

from outfall.capabilities import CleanUpContext
from outfall.errors import EpochAbandonedError
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.wrappers import BatchingSink, FanOutSink
from tests.unit.support.journals import entries
from tests.unit.support.setups import Staging
from tests.unit.support.warehouse import StagingSink, Warehouse


class SweptSink(StagingSink):
    """Keeps what it was told at each clean-up."""

    def __init__(self, warehouse: Warehouse, told: list[CleanUpContext]) -> None:
        super().__init__(warehouse)
        self.told = told

    def clean_up(self, context: CleanUpContext) -> int:
        self.told.append(context)
        return super().clean_up(context)


class SweptTarget(Staging):
    """A target whose sink keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[CleanUpContext] = []

    def sink(self) -> Any:
        return SweptSink(self.warehouse, self.told)

    def begun(self) -> dict[int, str]:
        """Generation → token of every BEGIN that is still in the log."""
        assert isinstance(self.recovery, MemoryRecoveryConfig)
        numbers = self.recovery.open("sink").numbers()
        return {
            number: entry["nonce"]
            for number, entry in zip(numbers, entries(self.recovery), strict=True)
            if entry["kind"] == "begin"
        }

    def lose(self, epoch: int, point: str = "before PREPARED") -> None:
        with crash_at(point):
            self.run(self.driver(), epoch)


def test_nothing_was_lost_in_epochs_that_went_through() -> None:
    setup = SweptTarget()
    for epoch in range(3):
        setup.run(setup.driver(), epoch)
    assert [context.lost for context in setup.told] == [{}, {}, {}]


def test_the_clean_up_after_begin_and_the_one_after_completed_name_each_lost_begin() -> None:
    setup = SweptTarget()
    setup.run(setup.driver(), 0)
    setup.lose(1)
    setup.lose(1)
    begun = setup.begun()
    setup.told.clear()
    setup.run(setup.driver(), 1)
    completed, *lost = sorted(begun)
    assert len(lost) == 2
    expected = {generation: begun[generation] for generation in lost}
    assert [context.lost for context in setup.told] == [expected, expected]
    assert completed not in expected
    setup.told.clear()
    setup.run(setup.driver(), 2)
    assert [context.lost for context in setup.told] == [{}]


def test_each_clean_up_knows_the_token_of_its_own_begin() -> None:
    setup = SweptTarget()
    setup.lose(0)
    setup.run(setup.driver(), 0)
    setup.lose(1, "after PREPARED")
    tokens = setup.begun()
    setup.run(setup.driver(), 1)
    assert [(context.generation, context.token) for context in setup.told] == [
        (generation, (tokens | setup.begun())[generation]) for generation in [2, 2, max(tokens)]
    ]


def test_an_epoch_that_a_later_driver_finished_was_not_lost() -> None:
    setup = SweptTarget()
    setup.lose(0, "after PREPARED")
    setup.run(setup.driver(), 0)
    setup.lose(1)
    setup.run(setup.driver(), 1)
    first, *_ = (context.lost for context in setup.told)
    assert first == {}, "its files are the table's"
    assert all(min(setup.begun()) not in (context.lost or {}) for context in setup.told)


def test_an_abandoned_epoch_was_lost() -> None:
    setup = SweptTarget()
    setup.lose(0, "after PREPARED")
    setup.warehouse.staged.clear()
    generation, token = next(iter(setup.begun().items()))
    setup.run(setup.driver(), 0)
    assert [context.lost for context in setup.told] == [{generation: token}] * 2


def test_what_this_driver_lost_itself_is_named_too() -> None:
    setup = SweptTarget()
    setup.warehouse.ledger = True
    driver = setup.driver()
    with crash_at("after COMMITTING"):
        setup.run(driver, 0)
    setup.warehouse.staged.clear()
    generation, token = next(iter(setup.begun().items()))
    try:
        setup.run(setup.driver(), 0)
    except EpochAbandonedError:
        setup.run(setup.driver(), 0)
    assert setup.told[-1].lost == {generation: token}


def test_a_withdrawn_job_names_what_it_lost() -> None:
    setup = SweptTarget()
    setup.lose(0)
    lost = setup.begun()
    assert setup.driver().coordinator().withdraw()
    assert [context.lost for context in setup.told] == [lost, lost]


def test_sinks_within_others_are_told_the_same() -> None:
    setup = SweptTarget()
    recovery = MemoryRecoveryConfig()
    sink = FanOutSink(a=BatchingSink(setup.sink()), b=StagingSink(Warehouse()))
    with crash_at("before PREPARED"):
        LocalDriver(sink, recovery).run_epoch(0, [[1]])
    LocalDriver(sink, recovery).run_epoch(0, [[1]])
    assert [list(context.lost or {}) for context in setup.told] == [[1], [1]]

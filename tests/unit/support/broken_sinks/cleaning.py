"""Staging sinks with one fault each in clean-up."""

from __future__ import annotations

from collections.abc import Sequence

from outfall.capabilities import CleanUpContext
from tests.unit.support.broken_sinks.registry import found_by
from tests.unit.support.broken_sinks.staged import Faulty
from tests.unit.support.conforming import CarefulStagingSink
from tests.unit.support.warehouse import StagingSink


class CleaningAllSink(CarefulStagingSink):
    """Takes whatever is staged under a lower number for its own."""

    def clean_up(self, context: CleanUpContext) -> int:
        staged = self.warehouse.staged
        return self.remove([name for name in staged if int(name.split("-")[1][1:]) < context.generation])

    def remove(self, names: Sequence[str]) -> int:
        for name in names:
            del self.warehouse.staged[name]
        return len(names)


@found_by("staged_data_is_kept", "another query began on an empty target")
class CleansUpAfterStrangers(Faulty):
    sink = CleaningAllSink


class CleaningOthersSink(CleaningAllSink):
    """Takes every generation but its own for dead."""

    def clean_up(self, context: CleanUpContext) -> int:
        kept = f"{context.incarnation}-g{context.generation}-"
        ours = [name for name in self.warehouse.staged if name.startswith(context.incarnation)]
        return self.remove([name for name in ours if not name.startswith(kept)])


@found_by("staged_data_is_kept", "an older driver was suspended before its clean-up")
class CleansUpNewerGenerations(Faulty):
    sink = CleaningOthersSink


class CleaningLostSink(CleaningAllSink):
    """Removes the data of failed drivers, and nothing of attempts that failed under a driver that went on."""

    def clean_up(self, context: CleanUpContext) -> int:
        lost = tuple(f"{context.incarnation}-g{generation}-" for generation in context.lost or ())
        return self.remove([name for name in self.warehouse.staged if name.startswith(lost)])


@found_by("leftovers_are_cleaned_up", "leftovers of failed and speculative attempts of a completed epoch")
class LeavesFailedAttempts(Faulty):
    sink = CleaningLostSink


class ListingAllSink(CleaningAllSink):
    """Lists what is staged, whichever generation staged it."""

    def clean_up(self, context: CleanUpContext) -> int:
        return StagingSink.clean_up(self, context)

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        return sorted(self.warehouse.staged)


@found_by("leftovers_are_listed", r"find_leftovers\(\) listed \d objects, but clean_up\(\) removed 0")
class ListsLiveData(Faulty):
    sink = ListingAllSink


class RemovingListSink(ListingAllSink):
    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        return [""] * self.clean_up(context)


@found_by("leftovers_are_listed", r"find_leftovers\(\) changed the target")
class RemovesWhatItLists(Faulty):
    sink = RemovingListSink

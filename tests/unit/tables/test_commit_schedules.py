"""Two drivers at the committer of a table, in every order of their steps: an epoch is there once, or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from outfall.capabilities import CommitRequest
from outfall.errors import FencedError, OutfallError
from outfall.tables.data_file import EpochFiles
from tests.unit.support.memory_table import TableLink, TableStore
from tests.unit.support.schedules import Killed, Pause, every_schedule, play
from tests.unit.support.table_epochs import committer, ids, staged, token_of

FATES = ("", "lost", "landed", "late")
OTHER = "ff" * 8
BOTH = {1: token_of(1), 2: token_of(2)}

Job = Callable[[Pause], None]


def at_random(run: Callable[[Callable[[int], int]], None], schedules: int) -> None:
    """Run as many schedules as there is time for, the same ones each time."""
    for seed in range(schedules):
        run(random.Random(seed).randrange)


class Scene:
    """A table, an epoch that is recorded and not committed, and what became of it."""

    def __init__(self) -> None:
        self.store = TableStore()
        self.quiet = TableLink(self.store)
        self.files = staged(self.quiet, [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
        self.outcomes: list[str] = []

    def commit(self, files: EpochFiles, *begin: int, fates: Sequence[str] = (), **more: Any) -> Job:
        """Make a driver that commits until it is settled, as the engine has it."""

        def job(pause: Pause) -> None:
            link = TableLink(self.store, pause, fates)
            request = CommitRequest(files)
            mine = committer(link, *begin, **more)
            try:
                while request.outcome.kind in ("unsignalled", "retry"):
                    mine.commit([request])
            except OutfallError as error:
                self.outcomes.append(type(error).__name__)
            else:
                self.outcomes.append(request.outcome.kind)

        return job

    def play(self, jobs: Sequence[Job], choose: Callable[[int], int]) -> None:
        """Run them, and then let what is late arrive."""
        play(jobs, choose, self.check)
        while self.store.late:
            self.store.arrive()
            self.check()

    def check(self) -> None:
        """No snapshot ever holds a part of an epoch, or one twice."""
        for snapshot in self.store.history[-1:]:
            found = sorted(row["id"] for row in self.store.rows(snapshot) if row["id"] < 100)
            assert found in ([], [1, 2], [3]), found


def same_epoch(choose: Callable[[int], int], fates: Sequence[str]) -> None:
    """One driver recorded it, another one settles it."""
    scene = Scene()
    scene.play([scene.commit(scene.files, fates=fates), scene.commit(scene.files)], choose)
    assert ids(scene.quiet) == [1, 2]
    assert set(scene.outcomes) <= {"committed", "already committed"}


@pytest.mark.parametrize("fate", FATES)
def test_two_drivers_that_commit_one_epoch_commit_it_once(fate: str) -> None:
    at_random(partial(same_epoch, fates=[fate]), 15)


@pytest.mark.thorough
@pytest.mark.parametrize("fate", FATES)
def test_two_drivers_that_commit_one_epoch_in_every_order_of_their_steps(fate: str) -> None:
    assert every_schedule(partial(same_epoch, fates=[fate])) >= 20


@pytest.mark.long
@pytest.mark.parametrize("fates", [["late", "late"], ["lost", "landed"], ["late", "landed"]])
def test_two_drivers_of_which_one_hears_nothing_twice(fates: list[str]) -> None:
    assert every_schedule(partial(same_epoch, fates=fates)) >= 20


def beside_others(choose: Callable[[int], int]) -> None:
    scene = Scene()

    def others(pause: Pause) -> None:
        pause()
        scene.store.append({"id": 100, "text": "x"})
        pause()
        scene.store.compact()
        pause()
        scene.store.expire()

    scene.play([scene.commit(scene.files), others], choose)
    assert ids(scene.quiet) == [1, 2, 100]
    assert scene.outcomes == ["committed"]


def test_an_epoch_beside_one_who_appends_compacts_and_expires() -> None:
    at_random(beside_others, 25)


@pytest.mark.thorough
def test_an_epoch_beside_others_in_every_order_of_their_steps() -> None:
    assert every_schedule(beside_others) >= 20


def evolved(scene: Scene) -> None:
    scene.store.partition_by("text")


def renamed(scene: Scene) -> None:
    scene.store.drop_column("text")
    scene.store.add_column("text", "string")


def taken(scene: Scene) -> None:
    scene.store.remove_orphans()


def lost_and_written_anew(choose: Callable[[int], int], lose: Callable[[Scene], None], fates: Sequence[str]) -> None:
    """A driver stands anywhere before its commit; what it recorded is lost, and a newer one writes the epoch anew."""
    scene = Scene()

    def newer(pause: Pause) -> None:
        pause()
        lose(scene)
        request = CommitRequest(scene.files)
        settling = committer(TableLink(scene.store, pause), begun=BOTH)
        settling.find_lost([request])
        if request.outcome.kind != "lost":
            return
        assert settling.nothing_published([request])
        files = staged(scene.quiet, [{"id": 3, "text": "c"}], 2)
        scene.commit(files, 2, begun=BOTH)(pause)

    scene.play([scene.commit(scene.files, fates=fates), newer], choose)
    assert ids(scene.quiet) in ([1, 2], [3])
    again = staged(scene.quiet, [{"id": 3, "text": "c"}], 2)
    if ids(scene.quiet) == [3]:
        assert "committed" not in scene.outcomes[:1] or scene.outcomes.count("committed") == 1
    else:
        with pytest.raises(OutfallError):
            committer(scene.quiet, 2, begun=BOTH).commit([CommitRequest(again)])


@pytest.mark.parametrize("lose", [evolved, renamed, taken])
@pytest.mark.parametrize("fate", ["", "late"])
def test_a_stale_driver_commits_nothing_of_an_epoch_that_is_written_anew(
    lose: Callable[[Scene], None], fate: str
) -> None:
    at_random(partial(lost_and_written_anew, lose=lose, fates=[fate]), 20)


@pytest.mark.long
@pytest.mark.parametrize("lose", [evolved, renamed, taken])
@pytest.mark.parametrize("fate", ["", "late"])
def test_a_stale_driver_of_an_epoch_that_is_written_anew_in_every_order(
    lose: Callable[[Scene], None], fate: str
) -> None:
    assert every_schedule(partial(lost_and_written_anew, lose=lose, fates=[fate])) >= 100


def rivals(choose: Callable[[int], int], newer: bool) -> None:
    """Two copies of a log: the same generations, other tokens."""
    scene = Scene()
    begun = {1: OTHER, 2: OTHER} if newer else {1: OTHER}
    generation = 2 if newer else 1
    files = staged(scene.quiet, [{"id": 3, "text": "c"}], generation, token=OTHER)
    theirs = scene.commit(files, generation, token=OTHER, begun=begun)
    scene.play([scene.commit(scene.files), theirs], choose)
    assert sorted(scene.outcomes) == ["FencedError", "committed"]
    assert ids(scene.quiet) in ([1, 2], [3])


@pytest.mark.parametrize("newer", [False, True])
def test_of_the_drivers_of_two_copies_of_a_log_one_commits(newer: bool) -> None:
    at_random(partial(rivals, newer=newer), 20)


def overtaken(choose: Callable[[int], int]) -> None:
    """A driver stands before its commit, while another one commits that epoch and the next."""
    scene = Scene()

    def newer(pause: Pause) -> None:
        scene.commit(scene.files)(pause)
        files = staged(scene.quiet, [{"id": 103, "text": "c"}], 2, 1, published=0)
        scene.commit(files, 2, 1, begun=BOTH)(pause)

    scene.play([scene.commit(scene.files), newer], choose)
    assert ids(scene.quiet) == [1, 2, 103]


def test_a_driver_that_was_overtaken_by_an_epoch_adds_nothing() -> None:
    at_random(overtaken, 20)


@pytest.mark.long
@pytest.mark.parametrize("run", [overtaken, partial(rivals, newer=False), partial(rivals, newer=True)])
def test_drivers_that_are_overtaken_and_rivals_in_every_order(run: Callable[[Callable[[int], int]], None]) -> None:
    assert every_schedule(run) >= 20


def dies(choose: Callable[[int], int], steps: int, fate: str) -> None:
    scene = Scene()

    def mortal(pause: Pause) -> None:
        left = steps

        def step() -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            pause()

        scene.commit(scene.files, fates=[fate])(step)

    scene.play([mortal], choose)
    scene.play([scene.commit(scene.files)], choose)
    assert ids(scene.quiet) == [1, 2]


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("steps", range(7))
def test_a_driver_that_dies_at_a_step_leaves_what_the_next_one_settles(steps: int, fate: str) -> None:
    dies(lambda count: 0, steps, fate)


def test_a_fenced_driver_says_so() -> None:
    scene = Scene()
    newer = staged(scene.quiet, [{"id": 3, "text": "c"}], 2)
    committer(scene.quiet, 2, begun=BOTH).commit([CommitRequest(newer)])
    with pytest.raises(FencedError):
        committer(scene.quiet).commit([CommitRequest(scene.files)])

"""S7, E23: several queries and one prefix, prefixes and recovery data that were restored or copied, at each step."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from outfall.errors import FencedError, OutfallError, TargetLostError, TargetNotEmptyError
from outfall.s3 import S3Sink
from outfall.testing import LocalDriver, crash_at
from outfall.trace_points import listen
from tests.one_each import one_each
from tests.unit.support.fake_s3 import FakeS3, answer, timed_out
from tests.unit.support.possession import Running


@dataclass
class Query(Running):
    """A query, and what it was told. Its rows are numbered from a hundred of its own, one in each epoch."""

    sink: S3Sink
    first: int
    recovery: str = field(default_factory=lambda: f"memory://{uuid.uuid4().hex}")

    def run(self, epoch: int) -> None:
        LocalDriver(self.sink, self.recovery).run_epoch(epoch, [[{"id": self.first + epoch, "k": 1}]])

    def copy(self) -> Query:
        """Copy its recovery data."""
        copied = Query(self.sink, self.first + 50, done=self.done)
        old, new = (f"/{each.recovery.removeprefix('memory://')}" for each in (self, copied))
        MemoryFileSystem().copy(old, new, recursive=True)
        return copied


class Bucket(FakeS3):
    """S3 in memory, and the queries that write there."""

    made = 0

    def query(self, on_existing: str = "error", prefix: str = "out", **options: Any) -> Query:
        self.made += 1
        return Query(self.sink(prefix, on_existing=on_existing, **options), 100 * self.made)

    def ids(self) -> list[int]:
        return sorted(int(number) for number in re.findall(rb'"id":(\d+)', b"".join(self.data().values())))

    def holds_all_of(self, query: Query) -> bool:
        return {query.first + epoch for epoch in range(query.done)} <= set(self.ids())


def at(step: str, do: Callable[[], object]) -> ExitStack:
    """Do something once, when a step is reached."""
    waiting, stack = [do], ExitStack()

    def listener(reached: str) -> None:
        if reached == step and waiting:
            waiting.pop()()

    stack.callback(listen(listener))
    return stack


# --- two queries at one prefix

OPENING = ("s3: opening", "target: announced", "s3: others stopped", "s3: deleting existing", "after open target")
WRITING = ("task: after write", "s3: record advanced", "s3: completed", "s3: manifest written", "after COMPLETED")


MODES = [("overwrite", "overwrite"), ("overwrite", "error"), ("error", "overwrite"), ("error", "error")]


@pytest.mark.parametrize(("modes", "step"), one_each(MODES, [*OPENING, *WRITING[:3]]))
def test_of_two_queries_that_come_at_one_moment_never_do_both_go_on(modes: tuple[str, str], step: str) -> None:
    fake = Bucket(page=2)
    first, second = modes
    old = fake.query()
    if "error" not in (first, second):
        old.go_on()
    one, other = fake.query(first), fake.query(second)
    with at(step, lambda: other.go_on(2)):
        one.go_on(2)
    for each in (other, one, old):
        each.go_on()
    going = [each for each in (one, other, old) if each.error is None]
    assert len(going) <= 1
    assert all(fake.holds_all_of(each) for each in going)
    for each in (one, other, old):
        assert isinstance(each.error, TargetNotEmptyError | TargetLostError | None)


@pytest.mark.parametrize(("step", "inline_bytes"), one_each(WRITING[:-2], [0, 1000]))
def test_a_query_whose_prefix_is_overwritten_while_it_publishes_is_told_in_the_same_epoch(
    step: str, inline_bytes: int
) -> None:
    fake = Bucket()
    live, other = fake.query(inline_bytes=inline_bytes), fake.query("overwrite")
    live.go_on()
    with at(step, other.go_on):
        live.go_on()
    assert (live.done, type(live.error)) == (1, TargetLostError)
    other.go_on()
    assert other.error is None
    assert fake.holds_all_of(other)


@pytest.mark.parametrize("step", OPENING)
def test_an_overwrite_deletes_nothing_of_a_query_that_goes_on_beside_it(step: str) -> None:
    fake = Bucket()
    live, other, beside = fake.query(), fake.query("overwrite"), fake.query("resume")
    live.go_on()

    def both() -> None:
        live.go_on()
        beside.go_on()

    with at(step, both):
        other.go_on()
    for each in (live, beside, other):
        each.go_on()
        assert each.error is not None or fake.holds_all_of(each)
    assert isinstance(live.error, TargetLostError)


def test_an_overwrite_stops_a_query_that_came_and_published_while_it_looked() -> None:
    fake = Bucket()
    fake.query().go_on()
    overwrites, beside = fake.query("overwrite"), fake.query("resume")
    looks, goes_on = Event(), Event()
    thread = Thread(target=overwrites.go_on)

    def pause() -> None:
        looks.set()
        goes_on.wait(60)

    def finish() -> None:
        goes_on.set()
        thread.join(60)

    with at("s3: others stopped", pause):
        thread.start()
        assert looks.wait(60)
        with at("s3: completed", finish):
            beside.go_on()
    assert (overwrites.error, overwrites.done) == (None, 1)
    assert isinstance(beside.error, TargetLostError)


@pytest.mark.parametrize("step", OPENING[1:])
def test_an_overwrite_that_died_is_finished(step: str) -> None:
    fake = Bucket()
    fake.query().go_on(3)
    other = fake.query("overwrite")
    with crash_at(step):
        other.go_on()
    other.go_on(2)
    assert fake.ids() == [200, 201]


# --- prefixes within one another


@pytest.mark.parametrize("inner_first", [False, True])
@pytest.mark.parametrize("on_existing", ["error", "overwrite"])
def test_prefixes_within_one_another_are_refused_and_nothing_is_deleted(on_existing: str, inner_first: bool) -> None:
    fake = Bucket()
    first, second = ("n/deep/inner", "n")[:: 1 if inner_first else -1]
    live = fake.query(prefix=first, roll_rows=100)  # nothing of it can be seen yet
    live.go_on()
    before = dict(fake.objects)
    refused = fake.query(on_existing, prefix=second)
    for _ in range(2):
        refused.go_on()
        assert isinstance(refused.error, TargetNotEmptyError)
        assert "is inside or around the target" in str(refused.error)
        refused.error = None
    assert fake.objects == before
    live.go_on()
    assert live.error is None


@pytest.mark.parametrize("prefix", ["no", "n/_other", "n/deep/inner"])
def test_what_is_no_part_of_another_prefix_or_is_to_be_resumed_is_not_refused(prefix: str) -> None:
    fake = Bucket()
    live, other = fake.query(prefix="n"), fake.query("resume" if "inner" in prefix else "error", prefix=prefix)
    for each in (live, other, live, other):
        each.go_on()
        assert each.error is None


def test_who_may_list_the_own_prefix_only_is_not_stopped_by_what_lies_above() -> None:
    fake = Bucket()
    fake.fail("list_objects_v2", answer(403, "AccessDenied"), times=2)
    query = fake.query(prefix="a/b")
    query.go_on()
    assert query.error is None


@pytest.mark.parametrize(
    ("prefixes", "on_existing", "step"),
    one_each([("n", "n/k=1"), ("n/k=1", "n")], ["error", "resume", "error"], OPENING),
)
def test_an_overwrite_deletes_nothing_of_a_query_that_comes_above_or_below_at_that_moment(
    prefixes: Sequence[str], on_existing: str, step: str
) -> None:
    fake = Bucket(page=2)
    fake.put("n/k=1/old")
    fake.put("n/k=1/z")
    one = fake.query("overwrite", prefixes[0], partition_by="k")
    other = fake.query(on_existing, prefixes[1], partition_by="k")
    with at(step, other.go_on):
        one.go_on()
    for each in (other, one):
        each.go_on()
        assert each.error is not None or fake.holds_all_of(each)


# --- recovery data and prefixes that were restored from a copy


def is_record(key: str) -> bool:
    return key.startswith("out/_outfall/") and key.count("/") == 2 and key.endswith(".json")


@pytest.mark.parametrize(
    "survives",
    [lambda key: False, is_record, lambda key: "/manifests/" in key, lambda key: "_outfall" not in key],
    ids=["nothing", "record", "manifests", "data"],
)
def test_a_prefix_that_was_restored_from_an_older_copy_is_refused(survives: Callable[[str], bool]) -> None:
    fake = Bucket()
    live = fake.query()
    live.go_on(2)
    old = dict(fake.objects)
    live.go_on(2)
    new = dict(fake.objects)
    fake.objects = old | {key: found for key, found in new.items() if survives(key)}
    live.go_on()
    assert isinstance(live.error, TargetLostError)
    assert "is behind the recovery data" in str(live.error)
    fake.objects, live.error = new, None
    live.go_on(2)
    assert live.error is None


def test_epochs_that_publish_nothing_make_no_prefix_look_older() -> None:
    fake = Bucket()
    live = fake.query()
    live.go_on()
    for epoch in range(1, 4):
        LocalDriver(live.sink, live.recovery).run_epoch(epoch, [[]])
    live.done = 4
    live.go_on(2)
    assert live.error is None


def test_a_marker_that_cannot_be_read_is_no_older_one() -> None:
    """It was taken for one of generation 0, and written anew."""
    for body in (b"", b"{", b"{}"):
        fake = Bucket()
        live = fake.query()
        live.go_on()
        (key,) = filter(is_record, fake.objects)
        fake.put(key, body)
        live.go_on()
        assert isinstance(live.error, TargetLostError)
        assert fake.objects[key].body == body


def test_where_if_match_is_ignored_manifests_decide_what_is_behind() -> None:
    """A driver that is late may put its record over a newer one there."""
    fake = Bucket(conditional=False)
    live = fake.query()
    live.go_on()
    (key,) = filter(is_record, fake.objects)
    older = fake.objects[key]
    live.go_on(2)
    fake.objects[key] = older
    live.go_on()
    assert live.error is None
    fake.objects = {key: found for key, found in fake.objects.items() if "/0000000003" not in key}
    live.go_on()
    assert isinstance(live.error, TargetLostError)


@pytest.mark.parametrize("times", [1, 2])
def test_a_marker_whose_writing_was_not_answered_for_is_known_again(times: int) -> None:
    fake = Bucket()
    live = fake.query()
    for _ in range(3):
        fake.fail("put_object", timed_out(), after=True, times=times, key=".json")
        live.go_on()
        assert live.error is None


STEPS_OF_AN_EPOCH = (
    "before BEGIN", "after BEGIN", "after open target", "task: after write", "before PREPARED", "after PREPARED",
    "after COMMITTING", *WRITING[1:],
)  # fmt: skip


@pytest.mark.parametrize(("step", "copied_at"), one_each(STEPS_OF_AN_EPOCH, ["the end", "after PREPARED"]))
def test_of_two_copies_of_one_log_never_do_both_go_on(step: str, copied_at: str) -> None:
    """Both count the same generations, and number their attempts alike."""
    fake = Bucket()
    one = fake.query(inline_bytes=1000)
    one.go_on()
    copies: list[Query] = []
    if copied_at != "the end":
        with at(copied_at, lambda: copies.append(one.copy())), crash_at(copied_at):
            one.go_on()
    other = copies[0] if copies else one.copy()
    with at(step, lambda: other.go_on(2)):
        one.go_on(2)
    for each in (other, one, other):
        each.go_on()
    going = [each for each in (one, other) if each.error is None]
    assert len(going) <= 1
    numbers = [number % 50 for number in fake.ids()]
    assert sorted(set(numbers)) == numbers == list(range(len(numbers)))
    assert all(each.done <= len(numbers) for each in going)
    assert all(isinstance(each.error, OutfallError) for each in (one, other) if each not in going)


def test_the_driver_that_is_refused_by_the_other_copy_is_told_of_it() -> None:
    fake = Bucket()
    one = fake.query()
    one.go_on()
    other = one.copy()
    with at("after BEGIN", other.go_on):
        one.go_on()
    assert isinstance(one.error, FencedError)
    assert "The recovery data was copied" in str(one.error)


def test_a_driver_whose_marker_was_written_between_its_look_and_its_put_is_refused() -> None:
    fake = Bucket()
    one = fake.query()
    one.go_on()
    other = one.copy()
    waiting = [other]

    def during(request: str) -> None:
        if request == "put_object" and waiting:
            waiting.pop().go_on()

    with at("after BEGIN", lambda: setattr(fake, "during", during)):
        one.go_on()
    assert waiting == []
    assert (other.done, other.error) == (2, None)
    assert isinstance(one.error, FencedError)

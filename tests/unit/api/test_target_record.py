"""A target and the recovery data: which is ahead, behind, or of another driver, whatever kind of target it is."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from outfall.capabilities import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    SupportsCommitter,
    SupportsTarget,
    SupportsWriterContext,
    TargetContext,
    WriterInitContext,
)
from outfall.errors import (
    FencedError,
    OutfallError,
    TargetAheadError,
    TargetLostError,
    TransientError,
    UnexpectedEpochError,
)
from outfall.protocol.step import EpochOptions
from outfall.serde import JsonSerializer
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.target_record import TargetRecord, check_opening, check_publishing, check_record, check_writing
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.trace_points import listen
from outfall.wrappers import FanOutSink

BEGUN = {5: "five", 9: "nine"}


def checking(**changes: Any) -> TargetContext[Any]:
    """Before BEGIN: epoch 3 is completed and published, and one attempt at epoch 4 was lost."""
    known: dict[str, Any] = {"last_generation": 9, "begun": BEGUN, "published": 3} | changes
    return TargetContext("sink", "i", epoch=4, completed=3, first_contact=False, states={}, **known)


@pytest.mark.parametrize(
    ("record", "refusal"),
    [
        (TargetRecord(5, "five", 3), None),
        (TargetRecord(9, "nine", 3), None),
        (TargetRecord(10, "ten", 3), TargetAheadError),
        (TargetRecord(9, "nine", 4), TargetAheadError),
        # The newest commit is gone, and the BEGIN after it is not.
        (TargetRecord(9, "nine", 2), TargetLostError),
        (TargetRecord(9, "nine", None), TargetLostError),
        # All since an older epoch is gone.
        (TargetRecord(1, "one", 3), TargetLostError),
        # Another copy of the log counted the same numbers, or has a BEGIN where this one has another entry.
        (TargetRecord(9, "other", 3), FencedError),
        (TargetRecord(7, "seven", 3), FencedError),
        # A release before tokens wrote it: only numbers are known.
        (TargetRecord(1, None, 3), None),
        (TargetRecord(9, None, 2), TargetLostError),
    ],
)
def test_a_target_is_compared_before_an_epoch_begins(record: TargetRecord, refusal: type[OutfallError] | None) -> None:
    assert refused(lambda: check_record("t", record, checking(), ahead="restore it")) is refusal


def test_what_was_published_is_not_compared_where_nothing_says_it() -> None:
    assert refused(lambda: check_record("t", TargetRecord(9, "nine", 0), checking(published=None), ahead="")) is None


@pytest.mark.parametrize(
    ("record", "refusal", "writes"),
    [
        (TargetRecord(9, "nine", 3), None, True),
        (TargetRecord(5, "five", 3), None, True),
        (TargetRecord(9, "other", 3), FencedError, False),
        (TargetRecord(10, "ten", 3), FencedError, False),
        (TargetRecord(7, "seven", 3), FencedError, True),
        (TargetRecord(9, None, 3), None, True),
        # A server that lost commits answers since the target was checked.
        (TargetRecord(4, "four", 2), TargetLostError, True),
        (TargetRecord(5, "five", 2), TargetLostError, True),
        (TargetRecord(5, "five", None), TargetLostError, True),
        (TargetRecord(5, None, 2), TargetLostError, True),
    ],
)
def test_a_target_is_compared_again_once_the_epoch_has_begun(
    record: TargetRecord, refusal: type[OutfallError] | None, writes: bool
) -> None:
    committer = CommitterInitContext("sink", "i", 9, 4, token="nine", begun=BEGUN, published=3)
    writer = WriterInitContext("sink", "i", 9, 4, None, 0, token="nine")
    opening = checking(generation=9, token="nine")
    assert refused(lambda: check_opening("t", record, opening)) is refusal
    assert refused(lambda: check_publishing("t", record, committer)) is refusal
    assert refused(lambda: check_writing("t", record, writer)) is (None if writes else FencedError)


def refused(check: Callable[[], None]) -> type[OutfallError] | None:
    try:
        check()
    except OutfallError as error:
        return type(error)
    return None


class Shop:
    """A target with a record, and what it was told."""

    def __init__(self) -> None:
        self.contexts: list[TargetContext[Any]] = []
        self.writers: list[WriterInitContext] = []
        self.committers: list[CommitterInitContext] = []
        self.before_check: Callable[[], object] | None = None
        """What another driver does, once, between this one's look at the log and its look at the target."""
        self.record = TargetRecord(0)


SHOPS: dict[str, Shop] = {}


class ShopSink(DynamicSink[Any], SupportsTarget[Any], SupportsWriterContext, SupportsCommitter[int]):
    """Remembers each context. A row is a committable; one that is negative is not handed over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shop = SHOPS.setdefault(name, Shop())

    def __getstate__(self) -> Mapping[str, Any]:
        return {"name": self.name}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        ShopSink.__init__(self, state["name"])

    def target(self) -> str:
        return f"shop:{self.name}"

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        self.shop.contexts.append(context)
        act, self.shop.before_check = self.shop.before_check, None
        if act is not None:
            act()
        if not context.first_contact:
            check_record("the shop", self.shop.record, context, ahead="restore the recovery data")
        return {}

    def open_target(self, context: TargetContext[Any]) -> None:
        self.shop.contexts.append(context)
        self.shop.record = TargetRecord(context.generation, context.token, self.shop.record.epoch)

    def bind(self, context: WriterInitContext) -> ShopSink:
        self.shop.writers.append(context)
        return self

    def build(self, step_id: str, worker_index: int, worker_count: int) -> ShopPart:
        return ShopPart()

    def create_committer(self, context: CommitterInitContext) -> Committer[int]:
        self.shop.committers.append(context)
        return Sells(self.shop, context.epoch)

    def committable_serializer(self) -> JsonSerializer:
        return JsonSerializer()


class ShopPart(StatelessSinkPartition[int]):
    def __init__(self) -> None:
        self.values: list[int] = []

    def write_batch(self, items: list[int]) -> None:
        self.values += items

    def prepare_commit(self) -> list[int]:
        return [value for value in self.values if value >= 0]


class Sells(Committer[int]):
    def __init__(self, shop: Shop, epoch: int) -> None:
        self.shop = shop
        self.epoch = epoch

    def commit(self, requests: Sequence[CommitRequest[int]]) -> None:
        self.shop.record = replace(self.shop.record, epoch=self.epoch)


def test_one_token_goes_from_begin_to_target_task_and_committer() -> None:
    sink, recovery = ShopSink(uuid.uuid4().hex), f"memory://{uuid.uuid4().hex}"
    with crash_at("after PREPARED"):
        LocalDriver(sink, recovery).run_epoch(0, [[1]])
    staged = sink.shop.writers[0]
    assert sink.shop.contexts[1].token == staged.token != ""
    # Whoever settles has a token of its own, and commits what was staged under another one.
    successor = LocalDriver(sink, recovery)
    successor.run_epoch(0, [[1]])
    successor.run_epoch(1, [[2]])
    settled = sink.shop.committers[0]
    assert (settled.generation, settled.token) == (staged.generation, staged.token)
    opened = sink.shop.contexts[-1]
    assert opened.begun == {staged.generation: staged.token, opened.generation: opened.token}
    assert opened.token != staged.token


def test_the_newest_published_epoch_is_recorded_for_each_child_and_carried_forward() -> None:
    left, right = ShopSink(uuid.uuid4().hex), ShopSink(uuid.uuid4().hex)
    both = FanOutSink(outer=FanOutSink(left=left, right=right), plain=ShopSink(uuid.uuid4().hex))
    recovery = f"memory://{uuid.uuid4().hex}"
    driver = LocalDriver(both, recovery, options=EpochOptions())
    driver.run_epoch(0, [[1]])
    driver.run_epoch(1, [[2]])
    # Nothing is committed in epochs 2 and 3: one has no rows, and those of the other are not handed over.
    driver.run_epoch(2, [[]])
    driver.run_epoch(3, [[-1]])
    driver.run_epoch(4, [[5]])
    for sink in (left, right):
        assert [context.published for context in sink.shop.contexts[::2]] == [None, 0, 1, 1, 1]
        assert [context.unfinished for context in sink.shop.contexts[::2]] == [False] * 5


def test_an_attempt_that_was_lost_is_told_to_the_target() -> None:
    sink, recovery = ShopSink(uuid.uuid4().hex), f"memory://{uuid.uuid4().hex}"
    with crash_at("after BEGIN"):
        LocalDriver(sink, recovery).run_epoch(0, [[1]])
    LocalDriver(sink, recovery).run_epoch(0, [[1]])
    assert [context.unfinished for context in sink.shop.contexts[:2]] == [False, True]


def test_a_driver_that_lost_a_race_is_fenced_whatever_the_target_looks_like_to_it() -> None:
    sink, recovery = ShopSink(uuid.uuid4().hex), f"memory://{uuid.uuid4().hex}"
    old, new = LocalDriver(sink, recovery), LocalDriver(sink, recovery)
    old.run_epoch(0, [[1]])
    sink.shop.before_check = lambda: new.run_epoch(1, [[2]])
    with pytest.raises(FencedError) as caught:
        old.run_epoch(1, [[2]])
    assert isinstance(caught.value.__cause__, TargetAheadError)


@pytest.mark.parametrize("moment", ["while it looks", "before it looks"])
def test_a_driver_whose_batch_another_one_has_left_behind_is_fenced(moment: str) -> None:
    sink, recovery = ShopSink(uuid.uuid4().hex), f"memory://{uuid.uuid4().hex}"
    first = LocalDriver(sink, recovery)
    first.run_epoch(0, [[1]])
    late = LocalDriver(sink, recovery, options=EpochOptions(started=time.time()))

    def meanwhile() -> None:
        for epoch in (1, 2):
            first.run_epoch(epoch, [[2]])

    if moment == "before it looks":
        meanwhile()
    else:
        sink.shop.before_check = meanwhile
    with pytest.raises(FencedError):
        late.run_epoch(1, [[2]])


@pytest.mark.parametrize("entry", [1, 2], ids=["BEGIN", "PREPARED"])
def test_an_entry_of_its_own_that_may_not_be_durable_stops_a_driver_and_is_no_rival(entry: int) -> None:
    created = itertools.count(1)

    def fail(step: str) -> None:
        if step == "log: entry created" and next(created) == entry:
            raise TransientError("syncing the directory of the log failed")

    driver = LocalDriver(ShopSink(uuid.uuid4().hex), MemoryRecoveryConfig())
    stop = listen(fail)
    try:
        with pytest.raises(TransientError, match="syncing the directory"):
            driver.run_epoch(0, [[1]])
    finally:
        stop()


def test_a_checkpoint_that_was_rewound_is_no_rival() -> None:
    sink, recovery = ShopSink(uuid.uuid4().hex), f"memory://{uuid.uuid4().hex}"
    for epoch in range(3):
        LocalDriver(sink, recovery).run_epoch(epoch, [[1]])
    with pytest.raises(UnexpectedEpochError):
        LocalDriver(sink, recovery, options=EpochOptions(started=time.time())).run_epoch(1, [[1]])

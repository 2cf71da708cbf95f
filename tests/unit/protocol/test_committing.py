"""The committer's loop: every signal, the pauses between offers, the deadline."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from outfall.capabilities import CommitRequest, Committer, Metrics
from outfall.errors import CommitError, CommitRefusedError, ConfigurationError, TerminalError, TransientError
from outfall.protocol.commit_retry import CommitContext, CommitLoop, CommitPolicy, closing_committer
from outfall.testing import FakeClock
from outfall.wrappers.composite_committer import ChildValue

Reply = Callable[[CommitRequest[str]], None]


class Scripted(Committer[str]):
    """Answers each offer of a committable by its script; says nothing at its end."""

    def __init__(self, **scripts: Sequence[Reply]) -> None:
        self._scripts = {name: list(script) for name, script in scripts.items()}
        self.offers: list[list[str]] = []
        self.retries: list[int] = []
        self.closed = 0

    def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
        self.offers.append([request.committable for request in requests])
        self.retries += [request.number_of_retries for request in requests]
        for request in requests:
            script = self._scripts.get(request.committable)
            if script:
                script.pop(0)(request)

    def close(self) -> None:
        self.closed += 1


class Strict(Scripted):
    strict = True


def retry(request: CommitRequest[str]) -> None:
    request.retry_later()


def fail_known(request: CommitRequest[str]) -> None:
    request.signal_failed_with_known_reason(ValueError("no such column"))


def fail_unknown(request: CommitRequest[str]) -> None:
    request.signal_failed_with_unknown_reason(OSError("reset by peer"))


class Loop:
    """A loop under a clock of its own."""

    def __init__(self, committer: Committer[str], **policy: Any) -> None:
        self.clock = FakeClock()
        self.metrics = Metrics()
        place = CommitContext("orders", 7)
        self._loop = CommitLoop(committer, CommitPolicy(**policy), place, clock=self.clock, metrics=self.metrics)

    def run(self, *names: str) -> list[CommitRequest[str]]:
        requests = [CommitRequest(name) for name in names]
        self._loop.run(requests)
        return requests


def kinds(requests: Sequence[CommitRequest[str]]) -> list[str]:
    return [request.outcome.kind for request in requests]


def test_saying_nothing_commits() -> None:
    committer = Scripted()
    loop = Loop(committer)
    assert kinds(loop.run("a", "b")) == ["committed", "committed"]
    assert committer.offers == [["a", "b"]]
    assert loop.clock.sleeps == []


def test_an_already_committed_one_is_resolved_and_counted() -> None:
    loop = Loop(Scripted(a=[CommitRequest.signal_already_committed]))
    assert kinds(loop.run("a", "b")) == ["already committed", "committed"]
    assert loop.metrics.counts == {"already_committed": 1}


def test_only_unresolved_requests_are_offered_again() -> None:
    committer = Scripted(b=[retry, retry])
    loop = Loop(committer)
    assert kinds(loop.run("a", "b", "c")) == ["committed"] * 3
    assert committer.offers == [["a", "b", "c"], ["b"], ["b"]]
    assert committer.retries == [0, 0, 0, 1, 2]
    assert loop.metrics.counts == {"retries": 2}


def test_a_changed_committable_is_offered_in_place_of_the_former() -> None:
    committer = Scripted(a=[lambda request: request.update_and_retry_later("a2")])
    (request,) = Loop(committer).run("a")
    assert committer.offers == [["a"], ["a2"]]
    assert (request.committable, request.outcome.kind) == ("a2", "committed")


def test_a_changed_committable_may_ask_again() -> None:
    committer = Scripted(a=[lambda request: request.update_and_retry_later("a2")], a2=[retry])
    Loop(committer).run("a", "b")
    assert committer.offers == [["a", "b"], ["a2"], ["a2"]]


def test_pauses_grow_with_full_jitter_up_to_the_longest() -> None:
    runs = []
    for _ in range(200):
        loop = Loop(Scripted(a=[retry] * 8), first_wait=0.1, longest_wait=3.0)
        loop.run("a")
        runs.append(loop.clock.sleeps)
    ceilings = [0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0, 3.0]
    for pauses, ceiling in zip(zip(*runs, strict=True), ceilings, strict=True):
        assert ceiling * 0.9 < max(pauses) <= ceiling
        assert min(pauses) < ceiling * 0.1


def test_the_deadline_ends_retrying_and_beats_the_pause() -> None:
    loop = Loop(Scripted(a=[retry] * 10_000), deadline=20.0, first_wait=8.0, longest_wait=50.0)
    with pytest.raises(CommitError, match=r"1 of 2 committables were not committed within 20 s") as caught:
        loop.run("a", "b")
    assert loop.clock.now() == pytest.approx(20.0)
    assert (caught.value.step, caught.value.epoch) == ("orders", 7)


def test_the_last_offer_comes_at_the_deadline() -> None:
    committer = Scripted(a=[retry] * 10_000)
    loop = Loop(committer, deadline=5.0)
    with pytest.raises(CommitError):
        loop.run("a")
    assert len(committer.offers) == len(loop.clock.sleeps) + 1


def test_the_first_repeated_commit_is_a_warning_and_then_one_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    busy = [lambda request: request.retry_later("SlowDown (HTTP 503)")]
    clock, metrics = FakeClock(), Metrics()
    place = CommitContext("commits that are warned of", 7)
    policy = CommitPolicy(deadline=60.0, longest_wait=1.0)
    with pytest.raises(CommitError):
        CommitLoop(Scripted(a=busy * 10_000), policy, place, clock=clock, metrics=metrics).run(
            [CommitRequest("a"), CommitRequest("b")]
        )
    first, second = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert first == (
        "step commits that are warned of: committing 1 committables of epoch 7 failed (attempt 1, 60 s left) and is"
        " retried: SlowDown (HTTP 503)"
    )
    assert re.search(r"attempt \d+, (29|30) s left.*; \d+ more retries since the last warning", second)


class AtOnce(Committer[str]):
    """Commits three groups at the same time, and each only while two others are being committed; `x` fails."""

    at_once = 3

    def __init__(self) -> None:
        self._together = Barrier(3, timeout=20)

    def group(self, committable: str) -> str:
        return committable

    def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
        self._together.wait()
        for request in requests:
            if request.committable == "x":
                raise TransientError("the catalogue does not answer")
            request.signal_committed()


def test_groups_are_committed_at_the_same_time_and_marked_together() -> None:
    marked: list[list[str]] = []
    loop = CommitLoop(
        AtOnce(),
        CommitPolicy(),
        CommitContext("orders", 7),
        clock=FakeClock(),
        metrics=Metrics(),
        on_committed=lambda groups: marked.append(list(groups)),
    )
    with pytest.raises(TransientError, match="the catalogue does not answer"):
        loop.run([CommitRequest(name) for name in ("a", "b", "c", "d", "x", "e")])
    assert marked == [["a", "b", "c"], ["d", "e"]]


def test_a_known_failure_fails_the_query() -> None:
    loop = Loop(Scripted(b=[fail_known]))
    with pytest.raises(CommitRefusedError, match="no such column") as caught:
        loop.run("a", "b")
    assert isinstance(caught.value.__cause__, ValueError)
    assert isinstance(caught.value, TerminalError)
    assert "drop" not in str(caught.value)


def test_a_known_failure_is_dropped_counted_and_logged_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(Scripted(b=[fail_known]), on_known_failure="drop")
    assert kinds(loop.run("a", "b", "c")) == ["committed", "known failure", "committed"]
    assert loop.metrics.counts == {"dropped_committables": 1, "dropped_rows": 0}
    assert "step orders, epoch 7: dropped a committable of an unknown number of rows: no such column" in caplog.text


@pytest.mark.parametrize(
    ("committable", "rows"),
    [
        ({"rows": 4}, 4),
        (SimpleNamespace(rows=5), 5),
        (ChildValue("a", {"rows": 6}), 6),
        ({"rows": "7"}, None),
        ("rows", None),
        (ChildValue("a", "b"), None),
    ],
)
def test_a_committable_tells_how_many_rows_it_is(committable: Any, rows: int | None) -> None:
    assert CommitRequest(committable).rows == rows


def test_a_dropped_one_is_not_offered_again_with_the_others() -> None:
    committer = Scripted(a=[retry], b=[fail_known])
    loop = Loop(committer, on_known_failure="drop")
    loop.run("a", "b")
    assert committer.offers == [["a", "b"], ["a"]]
    assert loop.metrics.counts["dropped_committables"] == 1


@pytest.mark.parametrize("on_known_failure", ["fail", "drop"])
def test_an_unknown_failure_fails_the_query(on_known_failure: str) -> None:
    loop = Loop(Scripted(a=[fail_unknown]), on_known_failure=on_known_failure)
    with pytest.raises(CommitError, match="reset by peer") as caught:
        loop.run("a")
    assert isinstance(caught.value.__cause__, OSError)


def test_what_the_committer_raises_is_an_unknown_failure() -> None:
    class Raising(Scripted):
        def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
            raise ConnectionError("no route")

    with pytest.raises(CommitError, match="ConnectionError: no route") as caught:
        Loop(Raising()).run("a", "b")
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert (caught.value.step, caught.value.epoch) == ("orders", 7)


def test_what_the_committer_raises_of_our_own_errors_stays_as_it_is() -> None:
    class Raising(Scripted):
        def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
            raise CommitRefusedError("the table is gone")

    with pytest.raises(CommitRefusedError, match="the table is gone"):
        Loop(Raising()).run("a")


def test_a_strict_committer_must_resolve_each_request() -> None:
    committer = Strict(a=[CommitRequest.signal_committed])
    with pytest.raises(CommitError, match="strict Strict left a committable unresolved"):
        Loop(committer).run("a", "b")


def test_a_strict_committer_that_resolves_all_commits() -> None:
    committer = Strict(a=[retry, CommitRequest.signal_committed], b=[CommitRequest.signal_already_committed])
    assert kinds(Loop(committer).run("a", "b")) == ["committed", "already committed"]


def test_a_strict_committer_must_resolve_an_offer_that_is_made_again() -> None:
    with pytest.raises(CommitError, match="unresolved"):
        Loop(Strict(a=[retry])).run("a")


def test_a_lost_one_does_not_stop_the_others() -> None:
    committer = Scripted(a=[lambda request: request.signal_lost("emptied")], b=[retry])
    requests = Loop(committer).run("a", "b")
    assert kinds(requests) == ["lost", "committed"]
    assert requests[0].outcome.reason == "emptied"
    assert committer.offers == [["a", "b"], ["b"]]


def test_the_last_signal_counts() -> None:
    def twice(request: CommitRequest[str]) -> None:
        request.retry_later()
        request.signal_committed()

    assert kinds(Loop(Scripted(a=[twice])).run("a")) == ["committed"]


def test_the_committer_is_closed_once_also_after_errors() -> None:
    committer = Scripted()
    with closing_committer(committer):
        pass
    with pytest.raises(ZeroDivisionError), closing_committer(committer):
        print(1 / 0)
    assert committer.closed == 2


def test_an_error_on_closing_does_not_hide_the_first() -> None:
    class Unclosable(Scripted):
        def close(self) -> None:
            raise OSError("already closed")

    with pytest.raises(ZeroDivisionError), closing_committer(Unclosable()):
        print(1 / 0)
    with pytest.raises(OSError, match="already closed"), closing_committer(Unclosable()):
        pass


@pytest.mark.parametrize(
    "policy",
    [
        {"deadline": 0},
        {"deadline": float("nan")},
        {"deadline": "60"},
        {"first_wait": -1},
        {"longest_wait": 0},
        {"on_known_failure": "ignore"},
    ],
)
def test_a_policy_that_cannot_be_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(policy))} is "):
        CommitPolicy(**policy)

"""What the committer of staged data makes of each answer of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest

from outfall.capabilities import CommitRequest, CommitterInitContext
from outfall.errors import CommitRefusedError, LostCommittableError
from outfall.storage.commit import Found, NotPublishedError, Obstacle, StagingArea, StorageCommitter


class Scripted(StagingArea[str]):
    """Answers as it was told, and counts the looks."""

    noun = "thing"
    foreign = "it looks strange"

    def __init__(self, failure: Exception | None = None, looks: Sequence[Found] = (), *, staged: bool = False) -> None:
        self.context = CommitterInitContext("sink", "0" * 32, 1, 7)
        self._failure = failure
        self._looks: Iterator[Found] = iter(looks)
        self._staged = staged
        self.unstaged = False
        self.left = len(looks)

    def publishing(self, staged: Sequence[str]) -> AbstractContextManager[object]:
        return nullcontext()

    def publish(self, staged: str) -> None:
        if self._failure is not None:
            raise self._failure

    def look(self, staged: str) -> Found:
        self.left -= 1
        return next(self._looks)

    def is_staged(self, staged: str) -> bool:
        return self._staged

    def unstage(self, staged: str) -> bool:
        return self.unstaged

    def url(self, staged: str) -> str:
        return f"place/{staged}"

    def why_missing(self, staged: str) -> str:
        return f"{staged} is gone"


NOT_DONE, INCOMPLETE, UNCLEAR = (NotPublishedError(obstacle, "told why") for obstacle in Obstacle)
NOTHING, OURS, CHANGED, OTHERS = Found

TABLE = {
    "published": (None, [], True, "committed"),
    "refused": (CommitRefusedError("changed"), [], True, "known failure"),
    "not done: nothing is asked": (NOT_DONE, [], True, "retry"),
    "incomplete, but ours": (INCOMPLETE, [OURS], False, "already committed"),
    "incomplete": (INCOMPLETE, [NOTHING], True, "lost"),
    "unclear, and ours": (UNCLEAR, [OURS], False, "already committed"),
    "unclear, and ours with another content": (UNCLEAR, [CHANGED], False, "retry"),
    "unclear, and nothing there": (UNCLEAR, [NOTHING], True, "retry"),
    "unclear, and theirs": (UNCLEAR, [OTHERS], True, "known failure"),
    "gone, and theirs": (UNCLEAR, [OTHERS, OTHERS], False, "lost"),
    "gone": (UNCLEAR, [NOTHING, NOTHING], False, "lost"),
    "gone, and published between two looks": (UNCLEAR, [NOTHING, OURS], False, "already committed"),
}


@pytest.mark.parametrize(("failure", "looks", "staged", "outcome"), TABLE.values(), ids=TABLE)
def test_what_becomes_of_staged_data(failure: Exception | None, looks: list[Found], staged: bool, outcome: str) -> None:
    area, request = Scripted(failure, looks, staged=staged), CommitRequest("x")
    StorageCommitter(area).commit([request])
    assert (request.outcome.kind, area.left) == (outcome, 0)


def test_data_of_another_writer_is_named_with_the_remedy() -> None:
    request = CommitRequest("x")
    StorageCommitter(Scripted(UNCLEAR, [OTHERS], staged=True)).commit([request])
    assert str(request.outcome.error) == (
        "[step 'sink', epoch 7] place/x exists and was created by another writer. It looks strange. What to do:"
        " find the writer, move the thing to another location, and start the query again."
    )


@pytest.mark.parametrize(
    ("found", "staged", "outcome"),
    [
        ([], True, "unsignalled"),
        ([OURS], False, "unsignalled"),
        ([CHANGED], False, "unsignalled"),
        ([NOTHING], False, "lost"),
        ([OTHERS], False, "lost"),
    ],
)
def test_only_what_is_neither_staged_nor_published_is_lost(found: list[Found], staged: bool, outcome: str) -> None:
    request = CommitRequest("x")
    StorageCommitter(Scripted(looks=found, staged=staged)).find_lost([request])
    assert (request.outcome.kind, request.outcome.reason) == (outcome, "x is gone" if outcome == "lost" else "")


@pytest.mark.parametrize("found", [OURS, CHANGED])
def test_published_data_cannot_be_revoked(found: Found) -> None:
    with pytest.raises(LostCommittableError, match=r"place/x is already published .* delete the things of this epoch"):
        StorageCommitter(Scripted(looks=[found])).revoke([CommitRequest("x")])


def test_unpublished_data_is_revoked() -> None:
    StorageCommitter(Scripted(looks=[NOTHING])).revoke([CommitRequest("x")])
    removed = Scripted()
    removed.unstaged = True
    StorageCommitter(removed).revoke([CommitRequest("x")])

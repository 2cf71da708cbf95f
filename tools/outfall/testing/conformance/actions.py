"""What may happen to a query, as values: a schedule is a list of them, and prints as the script that plays it again.

The n-th step of any kind is taken modulo the steps of the last epoch that went through, so that each n hits one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Write:
    """The driver runs the next epoch: so many rows in so many tasks."""

    tasks: int = 3
    rows: int = 6


@dataclass(frozen=True)
class Crash:
    """The driver begins the next epoch, and dies at the n-th step of any kind. The next one starts anew."""

    at: int
    tasks: int = 3
    rows: int = 6


@dataclass(frozen=True)
class Fail:
    """An error comes up at the n-th step of the next epoch, in a task or in the driver, which goes on living."""

    at: int
    tasks: int = 3
    rows: int = 6


@dataclass(frozen=True)
class PartialCommit:
    """The driver dies when its committer has dealt with this number of requests."""

    after: int = 1


@dataclass(frozen=True)
class LostReply:
    """The committer does its work, and nobody hears of it: an error."""


@dataclass(frozen=True)
class SlowReply:
    """The committer does its work, asks to be offered the same again, and is."""


@dataclass(frozen=True)
class Restart:
    """The driver ends, and another one starts."""


@dataclass(frozen=True)
class Replay:
    """The last completed epoch comes again, since Spark lost its own commit entry."""

    tasks: int = 2


@dataclass(frozen=True)
class Begin:
    """Another driver begins the next epoch and runs no task yet: whoever begins later makes it a zombie."""

    tasks: int = 3
    rows: int = 6


@dataclass(frozen=True)
class Attempt:
    """An attempt of a task of a begun epoch runs, late or beside others; its answer is delivered or not."""

    begun: int
    task: int
    delivered: bool = True


@dataclass(frozen=True)
class Stall:
    """An attempt of a task of a begun epoch runs up to the n-th step of any kind, and sleeps there."""

    begun: int
    task: int
    at: int


@dataclass(frozen=True)
class Finish:
    """A begun epoch goes on: the rest of its tasks, and its commit."""

    begun: int


@dataclass(frozen=True)
class Sleep:
    """Another driver runs the next epoch up to the n-th step of any kind, and sleeps there."""

    at: int
    tasks: int = 3
    rows: int = 6


@dataclass(frozen=True)
class Wake:
    """A sleeping driver or attempt wakes, and goes on where it was."""

    sleeper: int


Action = (
    Write | Crash | Fail | PartialCommit | LostReply | SlowReply | Restart | Replay | Begin | Attempt | Stall
    | Finish | Sleep | Wake
)  # fmt: skip

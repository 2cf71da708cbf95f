"""Epochs of upserts and deletes, written by drivers that are killed (-9) or stopped and resumed later.

The final state must be that of one undisturbed run, which `ideal` computes in Python.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outfall.errors import FencedError, StaleWriterError
from outfall.testing import LocalDriver

Row = dict[str, Any]


@dataclass
class KeyedLives:
    """One stream of changes, and the lives of its drivers."""

    make_sink: Callable[[], Any]
    """Makes a sink with `order_column="n"` and, if `deletes`, `delete_marker="gone"`, keyed by `id`."""
    root: Path
    epochs: int
    rows: int = 60
    keys: int = 40
    deletes: bool = True
    unique: bool = False
    """Whether an epoch has one row per key."""
    seed: int = 20261126
    longest_life: float = 0.25
    zombies: list[int] = field(default_factory=list)
    kills: int = 0
    refused: int = 0
    """Resumed drivers that ended as fenced or stale."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.changes = [self._epoch(number) for number in range(self.epochs)]

    def _epoch(self, number: int) -> list[Row]:
        ids = [self.chance.randrange(self.keys) for _ in range(self.rows)]
        if self.unique:
            ids = self.chance.sample(range(self.keys), min(self.rows, self.keys))
        orders = self.chance.sample(range(10_000), len(ids))
        rows = []
        for key, order in zip(ids, orders, strict=True):
            row: Row = {"id": key, "n": order, "text": f"{number}: ä€𝄞 {self.chance.random()}"}
            if self.deletes:
                row["gone"] = self.chance.random() < 0.2
            rows.append(row)
        return rows

    def ideal(self) -> dict[int, Row]:
        """The rows of an undisturbed run, by id, without the marker."""
        state: dict[int, Row] = {}
        for rows in self.changes:
            for row in sorted(rows, key=lambda row: row["n"]):
                state.pop(row["id"], None)
                if not row.get("gone"):
                    state[row["id"]] = {name: value for name, value in row.items() if name != "gone"}
        return state

    def tasks(self, epoch: int, chance: random.Random) -> list[list[Row]]:
        """The rows of an epoch as a replay may bring them: in any order, in any number of tasks."""
        rows = chance.sample(self.changes[epoch], self.rows if not self.unique else len(self.changes[epoch]))
        count = chance.randint(1, 3)
        return [rows[index::count] for index in range(count)]

    @property
    def reached(self) -> int:
        """The number of epochs that are marked as completed; one more may be completed."""
        with suppress(FileNotFoundError):
            return len(list((self.root / "done").iterdir()))
        return 0

    def live(self) -> None:
        """Run epochs until the end, as a driver does. The first one may be completed without a mark: it is skipped."""
        chance = random.Random(f"{self.seed} {os.getpid()} {time.monotonic_ns()}")
        (self.root / "done").mkdir(exist_ok=True)
        for epoch in range(self.reached, self.epochs):
            LocalDriver(self.make_sink(), str(self.root / "log")).run_epoch(epoch, self.tasks(epoch, chance))
            (self.root / "done" / str(epoch)).touch()

    def start(self) -> int:
        """Start a driver in a process of its own."""
        child = os.fork()
        if child:
            return child
        code = 9
        try:
            self.live()
            code = 0
        except (FencedError, StaleWriterError):
            code = 3
        except BaseException as error:
            with (self.root / "errors").open("a") as file:
                file.write(f"{type(error).__name__}: {error}\n")
            code = 4
        finally:
            os._exit(code)

    def disturb(self, kills: int, zombies: int) -> None:
        """Kill and stop drivers, each at a moment of chance, and start the next one."""
        ways = ["kill"] * kills + ["stop"] * zombies
        self.chance.shuffle(ways)
        for way in ways:
            child = self.start()
            time.sleep(self.chance.uniform(0.01, self.longest_life))
            if os.waitpid(child, os.WNOHANG)[0]:
                continue  # it has ended by itself, with an error or all epochs
            if way == "stop":
                os.kill(child, signal.SIGSTOP)
                self.zombies.append(child)
                if len(self.zombies) > 3 and self.chance.random() < 0.5:
                    self.resume(self.zombies.pop(0))
            else:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                self.kills += 1

    def wait_reached(self, epochs: int) -> None:
        """Return when so many epochs are marked as completed."""
        deadline = time.monotonic() + 60
        while self.reached < epochs:
            assert time.monotonic() < deadline, "no driver completes an epoch"
            time.sleep(0.01)

    def finish(self) -> None:
        """Run to the end undisturbed, and then resume the drivers that are still stopped."""
        self.live()
        while self.zombies:
            self.resume(self.zombies.pop(0))

    def resume(self, child: int) -> None:
        """Let a stopped driver continue until it ends, or kill it if it takes over and goes on for long."""
        os.kill(child, signal.SIGCONT)
        deadline = time.monotonic() + 3
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                self.kills += 1
                return
            time.sleep(0.01)
        self.refused += os.waitstatus_to_exitcode(ended[1]) == 3

    def __enter__(self) -> KeyedLives:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.zombies:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@contextmanager
def repeated(act: Callable[[], None], chance: random.Random, longest: float = 0.03) -> Iterator[None]:
    """Call `act` at moments of chance, in a thread, until the end of the block."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(chance.uniform(0, longest)):
            act()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

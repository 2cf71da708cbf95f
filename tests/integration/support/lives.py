"""Lives of a driver: processes that run one query's epochs until they are killed, stopped or refused.

A life is forked by a server that has imported everything, so that it costs milliseconds. It is a process group of its
own: the driver, and workers that it forks before it opens anything and keeps over its epochs, as Spark does. A worker
that has lost its driver ends its task before it notices.

What Spark keeps in its checkpoint lies in files here: `offsets/N` before batch N is run, `commits/N` after. Unlike
Spark, a life looks at them once, when it starts: nothing but Outfall stops one that wakes.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import pickle
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from outfall.capability_checks import resolve
from outfall.errors import TransientError
from outfall.protocol.messages import EpochResult, TaskResponse, Ticket
from outfall.testing.conformance.driver import RemoteTasks, TaskRows, pickled
from outfall.trace_points import listen

WORKERS = 2
COUNTS = (0, 1, 5, 8, 12)
"""How many rows an epoch may have, where a place does not say so."""
TRIES = 4
"""How often a task is tried (`spark.task.maxFailures`)."""
TOLD = ("rows", "rows_present", "commits_settled")
"""The counts that a life reports of each epoch."""
FINISHED = "finished"
DRIVER = "driver"
WORKER = "worker0"

FORK_SERVER = multiprocessing.get_context("forkserver")
"""Where lives come from. It has no thread and no connection, whatever the process has that runs the tests."""
FORK_SERVER.set_forkserver_preload(["tests.integration.support.warm"])

Row = tuple[int, int, int]
"""Epoch, life and number of a row."""


@dataclass(frozen=True)
class Query:
    """One query: its sink, its source, its log, and the notes that its lives leave."""

    root: Path
    seed: str
    """Names what its source brings."""
    sink: Any
    repeatable: bool = False
    """Whether each life brings the same rows of an epoch; if not, each brings its own."""
    counts: Sequence[int] = COUNTS
    """How many rows an epoch may have."""

    log: str = ""
    """Where its recovery data is, if it is not beside the notes."""

    @property
    def recovery(self) -> str:
        return self.log or str(self.root / "recovery")

    def numbers(self, kind: str) -> list[int]:
        """The batches of which there is an `offsets` or `commits` file."""
        return sorted(int(path.name) for path in (self.root / kind).iterdir())

    def content(self, epoch: int, life: int) -> list[Row]:
        """The rows of an epoch, if this life brings them."""
        whose = 0 if self.repeatable else life
        count = random.Random(f"{self.seed} {epoch} {whose}").choice(self.counts)
        return [(epoch, whose, number) for number in range(count)]

    def tasks(self, epoch: int, life: int) -> list[list[Any]]:
        """The same as the sink takes them, each life in another order and other tasks."""
        rows = self.content(epoch, life)
        chance = random.Random(f"{self.seed} {epoch} {life} tasks")
        chance.shuffle(rows)
        values: list[Any] = [{"epoch": epoch, "life": of, "n": number} for _, of, number in rows]
        if resolve(self.sink).fixed:
            values = [(str(value["n"]), value) for value in values]
        count = chance.randint(1, WORKERS + 1)
        return [values[index::count] for index in range(count)]

    def note(self, kind: str, epoch: int) -> None:
        (self.root / kind / f"{epoch}").touch()

    def report(self, **what: Any) -> None:
        """Add a line to what the lives say of themselves."""
        line = json.dumps(what).encode() + b"\n"
        with os.fdopen(os.open(self.root / "reports", os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb", 0) as file:
            file.write(line)

    def reports(self) -> list[dict[str, Any]]:
        path = self.root / "reports"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Plan:
    """What a life is to do."""

    until: int | None = None
    """The last batch; without it there is always another one."""
    drain: bool = False
    """Whether to deliver then what the sink held back."""
    at: float = 0.0
    """When to begin, by the monotonic clock, so that two begin together."""
    step: int = 0
    """After how many steps it sends itself the signal."""
    of: str = DRIVER
    """Whose steps these are: the driver's, or those of its first worker."""
    signal: int = signal.SIGKILL
    alone: bool = False
    """Whether the signal is for the driver alone, whose workers go on."""


def live(query: Query, life: int, plan: Plan) -> None:
    """Run epochs, and say in the end what came of it."""
    os.setpgid(0, 0)
    notes = query.root / "lives" / f"{life:04d}"
    os.dup2(os.open(f"{notes}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT), sys.stderr.fileno())
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(relativeCreated)d %(process)d %(message)s")
    trace = os.open(f"{notes}.trace", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    driver = Driver(query, _fork_workers(trace, plan))
    _write_trace(trace, DRIVER, plan)
    while time.monotonic() < plan.at:
        pass
    outcome, text = FINISHED, ""
    try:
        _run(query, life, plan, driver, trace)
    except Exception as error:
        outcome, text = type(error).__name__, str(error)
        traceback.print_exc()
    query.report(life=life, outcome=outcome, text=text)


def _run(query: Query, life: int, plan: Plan, driver: Driver, trace: int) -> None:
    planned, done = query.numbers("offsets"), query.numbers("commits")
    batch = planned[-1] if planned else 0
    batch += batch in done
    parent = os.getppid()
    while plan.until is None or batch <= plan.until:
        if os.getppid() != parent:
            return  # the tests are gone
        query.note("offsets", batch)
        os.write(trace, f"{time.time():.4f} {DRIVER} batch {batch}\n".encode())
        result = driver.run_epoch(batch, query.tasks(batch, life))
        told = {name: result.counts.get(name, 0) for name in TOLD}
        query.report(life=life, batch=batch, skipped=result.skipped, failed=driver.failed, **told)
        driver.failed = []
        query.note("commits", batch)
        batch += 1
    if plan.drain:
        driver.drain()


def _write_trace(trace: int, who: str, plan: Plan) -> None:
    """Note each step of this process, and obey the plan."""
    left = plan.step if plan.of == who else 0
    driver = os.getpgrp()

    def note(what: str) -> None:
        os.write(trace, f"{time.time():.4f} {who} {what}\n".encode())

    def listener(step: str) -> None:
        nonlocal left
        note(step)
        left -= 1
        if left == 0:
            note(signal.Signals(plan.signal).name)
            (os.kill if plan.alone else os.killpg)(driver, plan.signal)

    note(f"is {os.getpid()}")
    listen(listener)


def _fork_workers(trace: int, plan: Plan) -> list[Connection]:
    """Start the processes that run tasks; the driver's ends of the pipes that lead to them."""
    driver_ends: list[Connection] = []
    for index in range(WORKERS):
        ours, theirs = multiprocessing.Pipe()
        driver_ends.append(ours)
        if os.fork() == 0:
            try:
                # Those of its siblings too: none must keep another from noticing that the driver is gone.
                for end in driver_ends:
                    end.close()
                _write_trace(trace, f"worker{index}", plan)
                _work(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        theirs.close()
    return driver_ends


def _work(pipe: Connection) -> None:
    while True:
        try:
            sink, *job, attempt = pipe.recv()
        except EOFError:
            return
        answer: TaskResponse | Exception
        try:
            # As the driver has it now: what it learnt when it opened the target is for the tasks.
            answer = RemoteTasks(pickle.loads(sink), "/nowhere").run_task(*job, attempt=attempt)
        except Exception as error:
            traceback.print_exc()
            answer = error
        try:
            pipe.send(answer)
        except OSError:
            return  # the driver is gone


class Driver(RemoteTasks):
    """Runs the tasks of an epoch in its workers."""

    def __init__(self, query: Query, workers: Sequence[Connection]) -> None:
        super().__init__(query.sink, query.recovery, query_id="query")
        self._workers = workers
        self.failed: list[str] = []
        """What attempts at tasks failed with since the last report."""

    def run_epoch(self, epoch: int, tasks: Sequence[Iterable[Any]]) -> EpochResult:
        routed = self.routed(tasks)
        self.expect_tasks(len(routed))
        with closing(self.coordinator()) as coordinator:
            ticket = coordinator.begin(epoch, query_id=self._query_id)
            return coordinator.finish(ticket, self._answers(ticket, epoch, routed))

    def _answers(self, ticket: Ticket, epoch: int, routed: list[TaskRows]) -> list[TaskResponse]:
        answers: dict[int, TaskResponse | Exception] = {}
        sink = pickled(self.sink)
        for tries in range(1, TRIES + 1):
            asked = {index: self._workers[index % len(self._workers)] for index in range(len(routed))}
            for index in answers:
                del asked[index]
            for index, pipe in asked.items():
                pipe.send((sink, ticket, epoch, index, routed[index], self.new_attempt()))
            for index, pipe in asked.items():
                answer = pipe.recv()
                if isinstance(answer, Exception):
                    self.failed.append(type(answer).__name__)
                if tries == TRIES or not isinstance(answer, TransientError):
                    answers[index] = answer
        for answer in answers.values():
            if isinstance(answer, Exception):
                raise answer
        return [answer for _, answer in sorted(answers.items()) if not isinstance(answer, Exception)]

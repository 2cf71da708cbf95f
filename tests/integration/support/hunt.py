"""Ends and stops the lives of a query, and reads what they write without the sinks' code."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from outfall.cli.commands.gc import LeftoverCleaner
from outfall.recovery.url import recovery_config
from tests.integration.support.killed_driver import KILLS, SEED
from tests.integration.support.lives import DRIVER, FINISHED, FORK_SERVER, WORKER, Plan, Query, Row, live
from tests.integration.support.watched_places import Place

EPOCHS_OF_A_LIFE = 2.5
"""A life is hit within so many epochs."""
LONGEST_OUTAGE = 1.5
"""Seconds for which a driver is cut off from its target, at most."""
PATIENCE = 60.0
"""Seconds after which a life that should end is taken for hung."""
BETWEEN_DEEDS = 0.4
"""Seconds between two changes that others make."""
REFUSED = {"FencedError", "StaleWriterError"}
"""What a driver may end with when another one has gone on."""


# --- one life, as those see it that start and end it


class Life:
    """A driver and its workers."""

    def __init__(self, query: Query, number: int, plan: Plan) -> None:
        self.number = number
        self._query = query
        self._trace = query.root / "lives" / f"{number:04d}.trace"
        self._process = FORK_SERVER.Process(target=live, args=(query, number, plan))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.hit = plan.step > 0 and plan.signal == signal.SIGKILL
        """Whether it is, or will be, killed."""

    @property
    def ended(self) -> bool:
        return not self._process.is_alive()

    @property
    def stopped(self) -> bool:
        with suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        return False

    @property
    def lingers(self) -> bool:
        """Whether any process of it is there still."""
        return not self.ended or any(_is_forked_into(self.pid, worker) for worker in self.workers())

    def send(self, number: int, *, alone: bool = False) -> None:
        self.hit |= number == signal.SIGKILL
        if not self.lingers:
            return
        # One that has just been forked has no group of its own yet, and no workers.
        for send in [os.kill] if alone else [os.killpg, os.kill]:
            with suppress(ProcessLookupError):
                send(self.pid, number)
                return

    def steps(self, of: str = DRIVER) -> list[str]:
        """What the driver, or a worker, came to, in order."""
        return [step for who, step in self._traced() if who == of and not step.startswith("is ")]

    def workers(self) -> list[int]:
        """The process ids of its workers."""
        return [int(what[3:]) for who, what in self._traced() if who != DRIVER and what.startswith("is ")]

    def _traced(self) -> list[tuple[str, str]]:
        # The last line may be in the writing.
        lines = self._trace.read_text().split("\n")[:-1] if self._trace.exists() else []
        return [(who, what) for _, who, what in (line.split(" ", 2) for line in lines)]

    def seconds(self) -> float:
        """From the first step to the last."""
        lines = self._trace.read_text().splitlines()
        return float(lines[-1].split()[0]) - float(lines[0].split()[0])

    def outcome(self) -> tuple[str, str]:
        """What it ended with, and the text; `killed` if it could not say so."""
        for report in self._query.reports():
            if report["life"] == self.number and "outcome" in report:
                return report["outcome"], report["text"]
        return "killed", ""

    def stood(self) -> str:
        """Between which entries of the log its driver was last."""
        where = "before its first epoch"
        for step in self.steps():
            if step.startswith("batch"):
                where = "before BEGIN"
            elif step == "before commit" and where == "before BEGIN":
                where = "settling what another had recorded"
            elif step in ("after BEGIN", "after PREPARED", "after COMPLETED"):
                where = {"B": "BEGIN … PREPARED", "P": "PREPARED … COMPLETED", "C": "after COMPLETED"}[step[6]]
        return where


def _is_forked_into(group: int, pid: int) -> bool:
    """Whether a process belongs to a life. Where all of them are gone, the numbers are soon those of others."""
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        return os.getpgid(pid) == group and any("forkserver" in word for word in psutil.Process(pid).cmdline())
    return False


# --- who kills


class Hunt:
    """Ends and stops the drivers of one query, and starts others."""

    def __init__(self, place: Place, root: Path, name: str, chance: random.Random, counts: Counter[str]) -> None:
        for directory in ("offsets", "commits", "lives"):
            (root / directory).mkdir(parents=True, exist_ok=True)
        self.query = Query(
            root, f"{SEED} {name}", place.sink, repeatable=place.repeatable, counts=place.counts, log=place.log
        )
        self.place = place
        self.name = name
        self.chance = chance
        self.counts = counts
        self.lives: list[Life] = []
        self.schedule: list[str] = []
        self.first = 1
        """The number of the first life."""
        self._current: Life | None = None
        self._steps: dict[str, int] = {}
        self._seconds = 0.0

    def copy(self, root: Path) -> Hunt:
        """Copy all that the query has but its target; the lives there have other numbers, and so other rows."""
        shutil.copytree(self.query.root, root)
        copy = Hunt(self.place, root, self.name, self.chance, self.counts)
        copy.first = 1001
        return copy

    def start(self, plan: Plan = Plan()) -> Life:  # noqa: B008 - frozen
        life = Life(self.query, self.first + len(self.lives), plan)
        self.lives.append(life)
        self._note(f"life {life.number} starts: {plan}")
        return life

    def finished(self, plan: Plan) -> Life:
        """Start a life that nobody hits, and wait until it is done."""
        life = self.start(plan)
        self._await(lambda: life.ended, f"life {life.number} to end")
        if self._is_to_write_anew(life):
            return self.finished(plan)
        outcome, text = life.outcome()
        self.check(outcome == FINISHED, f"life {life.number}, which nobody disturbed, ended with {outcome}: {text}")
        return life

    def measure(self) -> None:
        """Run three epochs and see how long one is, in steps and in seconds."""
        life = self.finished(Plan(until=2))
        steps = life.steps()
        second = steps.index("batch 1")
        self._steps = {
            DRIVER: (len(steps) - second) // 2 + 1,
            WORKER: len(life.steps(WORKER)) // 3 + 1,
        }
        self._seconds = life.seconds() * (len(steps) - second) / len(steps) / 2

    def run(self, kills: int, pauses: int, outages: int = 0) -> None:
        events = [self.kill] * kills + [self.pause] * pauses
        if self.place.outage is not None:
            events += [self.outage] * outages
        self.chance.shuffle(events)
        for event in events:
            for _ in range(10):
                if event():
                    break
            else:
                self.check(False, "ten lives in a row ended before they could be hit")
        if self._current is not None:
            self._current.send(signal.SIGKILL)
        self.end()

    def kill(self) -> bool:
        """Kill the driver, with its workers or alone; returns whether it had not ended before."""
        alone = self.chance.random() < 0.3
        life = self._hit(signal.SIGKILL, alone)
        self._await(lambda: life.ended, f"life {life.number} to die")
        if self._is_to_write_anew(life):
            return False
        outcome, text = life.outcome()
        self._note(f"life {life.number} ended: {outcome} {text}")
        self.check(outcome == "killed", f"life {life.number}, which had no rival, ended with {outcome}: {text}")
        self.counts["kills"] += 1
        self.counts[f"killed {life.stood()}"] += 1
        return True

    def pause(self) -> bool:
        """Stop the driver, start another, and wake the first one."""
        zombie = self._hit(signal.SIGSTOP, self.chance.random() < 0.3)
        self._await(lambda: zombie.stopped or zombie.ended, f"life {zombie.number} to stop")
        if zombie.ended and self._is_to_write_anew(zombie):
            return False
        self.check(not zombie.ended, f"life {zombie.number}, which had no rival, ended with {zombie.outcome()}")
        successor = self.start()
        # It may be one that waits for a lock which the stopped one holds.
        patience = time.monotonic() + (1.0 if self.chance.random() < 0.85 else 0.0)
        while not _has_begun(successor) and time.monotonic() < patience:
            time.sleep(0.002)
        time.sleep(self.chance.uniform(0, EPOCHS_OF_A_LIFE * self._seconds))
        if self.chance.random() < 0.2:
            successor.send(signal.SIGKILL)
            self._await(lambda: successor.ended, f"life {successor.number} to die")
        begun = _has_begun(successor)
        self.counts["pauses"] += 1
        self.counts["pauses whose successor had begun an epoch"] += begun
        self.counts[f"paused {zombie.stood()}"] += 1
        self._note(f"life {zombie.number} wakes, life {successor.number} stands {successor.stood()}")
        if self.chance.random() < 0.5:
            # Its tasks first, as those that outlive their driver.
            for pid in zombie.workers():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            time.sleep(self.chance.uniform(0, self._seconds))
        zombie.send(signal.SIGCONT)
        rivals = (zombie, successor)
        if begun and _has_begun(zombie):
            self._await(lambda: zombie.ended, f"life {zombie.number} to be refused, since another has begun an epoch")
        elif not successor.ended:
            self._await(lambda: zombie.ended or successor.ended, "one of two drivers to be refused")
        # The other one may be refused too: by what a dead one has settled, or since it brings an old batch.
        before = [_begins(life) for life in rivals]
        self._await(
            lambda: all(life.ended or _begins(life) > count for life, count in zip(rivals, before, strict=True)),
            "the other one to begin its next epoch or to be refused",
        )
        for life in rivals:
            if life.ended and not life.hit:
                self._check_refused(life)
        alive = [life for life in rivals if not life.ended]
        self._current = alive[0] if alive else None
        return True

    def outage(self) -> bool:
        """Cut the driver off from its target for a while, which it is to outlive."""
        life = self._current or self.start()
        self._await(lambda: life.ended or _has_begun(life), f"life {life.number} to begin")
        time.sleep(self.chance.uniform(0, EPOCHS_OF_A_LIFE * self._seconds))
        assert self.place.outage is not None
        seconds = self.chance.uniform(0.05, LONGEST_OUTAGE)
        self._note(f"life {life.number} is cut off for {seconds:.2f} s")
        with self.place.outage(self.chance):
            time.sleep(seconds)
        before = _begins(life)
        self._await(lambda: life.ended or _begins(life) > before, f"life {life.number} to go on")
        self.check(not life.ended, f"life {life.number}, which was cut off, ended with {life.outcome()}")
        self.counts["outages"] += 1
        self._current = life
        return True

    def end(self) -> None:
        """Let one life finish the query, when all late tasks have ended."""
        self.settle_down()
        planned = self.query.numbers("offsets")
        self.finished(Plan(until=planned[-1] + 2, drain=self.place.holds_rows))

    def settle_down(self) -> None:
        """Wait until no process is left, not even a worker whose driver is dead."""
        self._await(lambda: not any(life.lingers for life in self.lives), "all processes to end")

    def check_rows(self) -> None:
        """Read the target once more: of each epoch the rows that one life brought, each once."""
        rows = self.place.rows()
        completed = self.query.numbers("commits")
        self.check(completed == list(range(len(completed))), f"not all epochs are completed: {completed}")
        self.check({row[0] for row in rows} <= set(completed), "there are rows of epochs that are not completed")
        wrong = [text for epoch in completed for text in incomplete(self.query, epoch, rows)]
        wrong += check_reports(self.query, rows)
        self.check(not wrong, "\n".join(wrong))
        self.counts.update({"epochs": len(completed), "rows": len(rows)})
        for report in self.query.reports():
            self.counts.update(f"failed tasks: {name}" for name in report.get("failed", []))
            self.counts.update({name: report[name] for name in ("rows_present", "commits_settled") if report.get(name)})

    def collect_garbage(self) -> None:
        """Do what `outfall gc` does, where the place says that zombies leave something."""
        if self.place.zombies_leave:
            cleaner = LeftoverCleaner(self.query.sink, recovery_config(self.query.recovery), "sink")
            self.counts["files removed by gc, of zombies or expired"] += cleaner.clean_up()

    def check(self, holds: bool, what: str) -> None:
        """Fail with all that is needed to look into it."""
        if not holds:
            schedule = "\n  ".join(self.schedule)
            tails = "\n  ".join(f"life {life.number}: … {', '.join(life.steps()[-4:])}" for life in self.lives[-4:])
            raise AssertionError(
                f"{what}\n{self.name}\nOUTFALL_TEST_SEED={SEED} OUTFALL_TEST_KILLS={KILLS}"
                f"\nlives, traces and logs: {self.query.root}\nschedule:\n  {schedule}\nlast lives:\n  {tails}"
            )

    def close(self) -> None:
        for life in self.lives:
            life.send(signal.SIGKILL)
            life.send(signal.SIGCONT)

    def _hit(self, number: int, alone: bool) -> Life:
        """Send a signal to the life that goes on, or to a new one, at a random moment or step."""
        life = self._current
        self._current = None
        if life is None:
            at_step = self.chance.random() < 0.5
            of = self.chance.choice([DRIVER, WORKER])
            step = self.chance.randint(1, int(EPOCHS_OF_A_LIFE * self._steps[of])) if at_step else 0
            life = self.start(Plan(step=step, of=of, signal=number, alone=alone))
            if at_step:
                self._await(lambda: life.ended or life.stopped, f"life {life.number} to come to step {step}")
                return life
            # Else a third would die while it connects.
            started = _has_begun if self.chance.random() < 0.7 else Life.steps
            self._await(lambda: life.ended or bool(started(life)), f"life {life.number} to begin")
        moment = self.chance.uniform(0, EPOCHS_OF_A_LIFE * self._seconds)
        time.sleep(moment)
        self._note(f"life {life.number} gets {signal.Signals(number).name}{' alone' * alone} after {moment:.4f} s")
        life.send(number, alone=alone)
        return life

    def _is_to_write_anew(self, life: Life) -> bool:
        """Tell whether a life has ended since others had changed the target; the next one writes its epoch anew."""
        anew = self.place.changeable and life.outcome()[0] == "EpochAbandonedError"
        self.counts["ended, to write an epoch anew"] += anew
        return anew

    def _check_refused(self, life: Life) -> None:
        if self._is_to_write_anew(life):
            return
        outcome, text = life.outcome()
        self._note(f"life {life.number} ended: {outcome}")
        self.counts[f"of two drivers, ended with {outcome}"] += 1
        # One that had read its source and begun nothing brings what another has long completed.
        expected = REFUSED if _has_begun(life) else REFUSED | {"UnexpectedEpochError"}
        self.check(outcome in expected, f"life {life.number} had a rival and ended with {outcome}: {text}")

    def _await(self, happens: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happens():
            self.check(time.monotonic() < deadline, f"waited {PATIENCE:g} s for {what}")
            time.sleep(0.002)

    def _note(self, what: str) -> None:
        self.schedule.append(what)


def _begins(life: Life) -> int:
    """How many epochs it has begun."""
    return life.steps().count("after BEGIN")


def _has_begun(life: Life) -> bool:
    return _begins(life) > 0


# --- who reads


def grouped(place: Place, rows: list[Row]) -> dict[tuple[int, int], list[Row]]:
    """Rows by epoch and part."""
    groups: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[0], place.part(row[2])].append(row)
    return groups


class Reader(threading.Thread):
    """Looks at a target again and again, and complains where it shows what its page rules out."""

    def __init__(self, place: Place, query: Query) -> None:
        super().__init__()
        self._place = place
        self._query = query
        self._over = threading.Event()
        self._seen: set[Row] = set()
        self.looks = 0
        self.complaints: list[str] = []

    def run(self) -> None:
        while not self.complaints and not self._over.wait(self._place.pause):
            try:
                self.complaints = [*self._look(), *self._look_at_groups()]
            except Exception:
                self.complaints = [traceback.format_exc()]
            self.looks += 1

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _look(self) -> Iterator[str]:
        completed = set(self._query.numbers("commits"))
        rows = self._place.rows()
        if self._place.takes_back:
            rows = [row for row in rows if row[0] in completed]
        if doubled := sorted(row for row, times in Counter(rows).items() if times > 1):
            yield f"a reader saw rows twice: {doubled}"
        if gone := sorted(self._seen.difference(rows)):
            yield f"a reader saw rows that are gone: {gone}"
        self._seen.update(rows)
        if not self._place.holds_rows:
            for epoch in completed:
                yield from incomplete(self._query, epoch, rows)

    def _look_at_groups(self) -> Iterator[str]:
        for view in self._place.views():
            for (epoch, part), rows in grouped(self._place, view).items():
                wanted = [row for row in self._query.content(epoch, rows[0][1]) if self._place.part(row[2]) == part]
                if sorted(rows) != wanted:
                    yield f"a reader saw {sorted(rows)} of epoch {epoch}, part {part}, which consists of {wanted}"


class Others(threading.Thread):
    """Other writers of the same target, where it has any."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._meddle = place.meddle
        self._over = threading.Event()
        self.deeds: Counter[str] = Counter()
        self.complaints: list[str] = []

    def run(self) -> None:
        while self._meddle is not None and not self.complaints and not self._over.wait(BETWEEN_DEEDS):
            try:
                self.deeds[f"others: {self._meddle()}"] += 1
            except Exception:
                self.complaints = [traceback.format_exc()]

    def stop(self) -> None:
        self._over.set()
        self.join()


def incomplete(query: Query, epoch: int, rows: list[Row]) -> Iterator[str]:
    """Complain unless what is there of an epoch are the rows that one life brought."""
    found = sorted(row for row in rows if row[0] == epoch)
    lives = {row[1] for row in found} or {int(path.stem) for path in (query.root / "lives").glob("*.trace")}
    if not any(found == query.content(epoch, life) for life in lives):
        brought = query.content(epoch, min(lives))
        yield f"epoch {epoch} is completed, and there is {found}; life {min(lives)} brought {brought}"


def check_reports(query: Query, rows: list[Row]) -> Iterator[str]:
    """Complain where a life said that it wrote an epoch, and its rows are not those that are there."""
    for report in query.reports():
        if report.get("skipped") is False:
            life, epoch = report["life"], report["batch"]
            found = sorted(row for row in rows if row[0] == epoch)
            wanted = query.content(epoch, life)
            if found != wanted:
                yield f"life {life} reported epoch {epoch} as written, {wanted}, and there is {found}"
            if report["rows"] != len(wanted):
                yield f"life {life} reported {report['rows']} rows of epoch {epoch}, and brought {wanted}"

"""A run of streams on a standalone cluster, and what befalls its hosts meanwhile: a random schedule with a seed."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.integration.support.cluster_places import Place
from tests.integration.support.reading import write_source
from tests.peers.support.cluster_targets import ALONE, MODES, Targets
from tests.peers.support.hosts import Host
from tests.peers.support.spark_cluster import DRIVERS, SERVERS, WORKERS, Cluster, Driver

ROWS = 60
"""Of a file. An epoch of a stream has one, or two after a kill."""
AHEAD = 2
"""Files that wait for each stream, so that there is always an epoch to disturb."""
_PATIENCE = 300.0


@dataclass
class Pending:
    """What ends a fault."""

    due: float
    end: Callable[[], None]


class Run:
    """Streams into one target of each kind, whose driver is one of several in turn."""

    def __init__(self, cluster: Cluster, targets: Targets, root: Path, modes: Sequence[str] = MODES) -> None:
        """Make the targets; start no driver yet."""
        self.cluster = cluster
        self.root = root
        (root / "reports").mkdir(parents=True)
        self.places: dict[str, Place] = {}
        for mode in modes:
            (root / mode).mkdir()
            self.places[mode] = targets.place(mode, root / mode)
        self.counts: Counter[str] = Counter()
        self.drivers: list[Driver] = []
        self.replaced: list[Driver] = []
        """Drivers that others were started for while they could not be reached."""
        self.cut: set[str] = set()
        """Hosts that are cut off."""
        self._fed = dict.fromkeys(modes, 0)
        self._pending: list[Pending] = []
        self._began = time.monotonic()

    # --- drivers

    @property
    def driver(self) -> Driver:
        """The driver that is wanted."""
        return self.drivers[-1]

    def start_driver(self, host: str, *, speculation: bool = False) -> None:
        """Start a driver, of those streams that bear the speculation."""
        sinks = {mode: place.options for mode, place in self.places.items() if not (speculation and mode in ALONE)}
        self.drivers.append(
            Driver(self.cluster, self.root, len(self.drivers) + 1, host, sinks, speculation=speculation)
        )
        self.say(f"{self.driver.name} on {host}{' with speculation' if speculation else ''}")
        self.counts["starts"] += 1
        self.driver.launch()
        self.wait(lambda: bool(self.driver.reported("started")) or not self.driver.running, "the start of a driver")
        assert self.driver.running, f"{self.driver.name} ended: {self.driver.log()[-3000:]}"

    def replace_driver(self, host: str, *, speculation: bool = False) -> Driver:
        """Start another one while the one before cannot be reached, and return that one."""
        former = self.driver
        self.replaced.append(former)
        self.start_driver(host, speculation=speculation)
        return former

    # --- streams

    def written(self, mode: str) -> int:
        """Return how many files of a stream are in completed epochs, as Spark has it."""
        checkpoint = self.root / mode / "checkpoint"
        completed = [int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdigit()]
        if not completed:
            return 0
        # Not the number of epochs: Spark numbers a file before it records the epoch that has it. If the driver is
        # killed between, the next epoch has this file and another one.
        *_, offset = (checkpoint / "offsets" / str(max(completed))).read_text().splitlines()
        return int(json.loads(offset)["logOffset"]) + 1

    def progress(self) -> int:
        return sum(map(self.written, self.places))

    def feed(self) -> None:
        """Have some files wait for each stream."""
        for mode, fed in self._fed.items():
            wanted = self.written(mode) + AHEAD - fed
            if wanted > 0:
                write_source(self.root / mode / "source", files=wanted, rows=ROWS, start=fed)
                self._fed[mode] += wanted

    def wait(self, find: Callable[[], bool], what: str, seconds: float = _PATIENCE, *, feeding: bool = True) -> None:
        """Wait for something, while faults end when they are due."""
        deadline = time.monotonic() + seconds
        while not find():
            assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s: {self.story()}"
            if feeding:
                self.feed()
            self.end_faults(time.monotonic())
            time.sleep(0.1)

    def behind(self) -> list[str]:
        """Return the streams that have not written all that they were given."""
        return [mode for mode, fed in self._fed.items() if self.written(mode) < fed]

    def finish(self) -> None:
        """End all faults, and wait until all streams have written all that they were given."""
        self.end_faults(float("inf"))
        if not self.driver.running or len(self.driver.sinks) < len(self.places):
            self.driver.kill()
            self.start_driver(self.driver.host)
        deadline = time.monotonic() + _PATIENCE
        while self.behind():
            assert time.monotonic() < deadline, f"the streams did not end: {self.story()}"
            if not self.driver.running:
                self.start_driver(self.driver.host)
            time.sleep(0.1)

    def found(self) -> dict[str, tuple[int, int, int]]:
        """Return the rows that were given to each stream, and how many of them its readers miss or see twice."""
        result = {}
        for mode, place in self.places.items():
            rows = self._fed[mode] * ROWS
            seen = Counter(place.ids())
            foreign = seen.keys() - set(range(rows))
            assert not foreign, f"{mode} has rows that nobody brought: {sorted(foreign)[:5]}"
            result[mode] = rows, rows - len(seen), sum(seen.values()) - len(seen)
        return result

    # --- faults

    def faults(self) -> int:
        """Return how many there were; one that found nobody is none."""
        return sum(self.counts.values()) - self.counts["starts"]

    def begin_fault(self, what: str, seconds: float, end: Callable[[], None]) -> None:
        """Note a fault, and what ends it after some time."""
        self.say(f"{what} for {seconds:.0f} s")
        self._pending.append(Pending(time.monotonic() + seconds, end))

    def end_faults(self, now: float) -> None:
        """End those faults that are due."""
        due = [each for each in self._pending if each.due <= now]
        self._pending = [each for each in self._pending if each.due > now]
        for each in due:
            each.end()

    def close(self) -> None:
        """End all faults and all drivers."""
        self.end_faults(float("inf"))
        for driver in self.drivers:
            driver.kill()

    def say(self, what: str) -> None:
        """Print a line of the schedule."""
        print(f"{time.monotonic() - self._began:6.1f} {what}", flush=True)

    def story(self) -> str:
        """Return what the wanted driver said last, and how far the streams are."""
        done = {mode: f"{self.written(mode)} of {fed}" for mode, fed in self._fed.items()}
        return f"{done}, {self.driver.name}: {self.driver.reported('ended')[-6:]} {self.driver.log()[-3000:]}"


class Faults:
    """A random schedule of faults for a run."""

    def __init__(self, run: Run, seed: str, longest: float, *, stop_drivers: bool = True) -> None:
        """Decide nothing yet.

        Args:
            run: whom they befall.
            seed: decides all of them.
            longest: how many seconds a fault lasts at most.
            stop_drivers: whether a driver may be stopped while another one is started, as it may be cut off.
        """
        self._run = run
        self._chance = random.Random(seed)
        self._longest = longest
        self._lost: set[tuple[Host, Host]] = set()
        self._kinds: list[Callable[[], None]] = [
            self._cut, self._kill_executor, self._isolate, self._stop_executor, self._lose, self._decommission,
            self._kill_driver, *([self._stop_driver] if stop_drivers else []),
        ]  # fmt: skip

    def go(self, count: int) -> None:
        """Have faults befall the run, each when some epoch has completed since the last."""
        run = self._run
        run.start_driver("c", speculation=True)
        order: list[Callable[[], None]] = []
        while run.faults() < count:
            if not run.driver.running:
                self._start()
            with suppress(AssertionError):
                # Some faults stop all; then the next one comes all the same.
                run.wait(partial(_more, run, run.progress()), "progress", 20)
            if not order:
                # Each kind before one comes again.
                order = self._chance.sample(self._kinds, len(self._kinds))
            order.pop()()

    def _seconds(self) -> float:
        return self._chance.uniform(2, self._longest)

    def _start(self) -> None:
        self._run.start_driver(self._free_host(), speculation=self._chance.random() < 0.3)

    def _free_host(self, *not_on: str) -> str:
        return self._chance.choice([host for host in DRIVERS if host not in self._run.cut and host not in not_on])

    def _cut(self) -> None:
        run = self._run
        if host := self._uncut(WORKERS):
            cut_off(run, host)
            run.begin_fault(f"cut {host}", self._seconds(), lambda: heal(run, host))

    def _uncut(self, hosts: Sequence[str]) -> str | None:
        left = [host for host in hosts if host not in self._run.cut]
        return self._chance.choice(left) if left else None

    def _lose(self) -> None:
        run = self._run
        host = self._chance.choice(DRIVERS)
        pair = run.cluster.hosts[host], run.cluster.hosts[SERVERS]
        what = f"requests of {host}"
        if self._chance.random() < 0.5:
            pair, what = (pair[1], pair[0]), f"replies to {host}"
        if pair in self._lost:
            return
        run.cluster.network.lose(*pair)
        self._lost.add(pair)
        run.counts["lost paths"] += 1
        run.begin_fault(f"lose {what}", self._seconds(), lambda: self._find(pair))

    def _find(self, pair: tuple[Host, Host]) -> None:
        self._lost.discard(pair)
        self._run.cluster.network.find(*pair)

    def _executor(self) -> psutil.Process | None:
        found = [each for host in WORKERS for each in self._run.cluster.executors(host, self._run.driver.address)]
        return self._chance.choice(found) if found else None

    def _kill_executor(self) -> None:
        if executor := self._executor():
            self._run.say("kill an executor")
            executor.kill()
            self._run.counts["kills"] += 1

    def _stop_executor(self) -> None:
        if executor := self._executor():
            stopped = [executor, *(executor.children(recursive=True) if self._chance.random() < 0.5 else ())]
            send(stopped, signal.SIGSTOP)
            self._run.counts["stops"] += 1
            self._run.begin_fault("stop an executor", self._seconds(), lambda: send(stopped, signal.SIGCONT))

    def _decommission(self) -> None:
        if host := self._uncut(WORKERS):
            self._run.say(f"decommission {host}")
            self._run.cluster.decommission(host)
            self._run.counts["decommissions"] += 1

    def _kill_driver(self) -> None:
        self._run.say("kill the driver")
        self._run.driver.kill()
        self._run.counts["kills"] += 1
        self._start()

    def _isolate(self) -> None:
        run = self._run
        host = run.driver.host
        if host in run.cut:
            return
        cut_off(run, host)
        run.say(f"isolate {run.driver.name} on {host}")
        run.replace_driver(self._free_host(host), speculation=self._chance.random() < 0.3)
        run.begin_fault(f"leave {host} cut off", self._seconds() / 2, lambda: heal(run, host))

    def _stop_driver(self) -> None:
        run = self._run
        former = run.driver
        former.signal(signal.SIGSTOP)
        run.counts["stops"] += 1
        run.say(f"stop {former.name}")
        run.replace_driver(self._free_host(), speculation=self._chance.random() < 0.3)
        run.begin_fault(f"leave {former.name} stopped", self._seconds() / 2, lambda: former.signal(signal.SIGCONT))


def _more(run: Run, before: int) -> bool:
    return run.progress() > before


def cut_off(run: Run, host: str) -> None:
    """Cut a host off."""
    run.cluster.network.cut(run.cluster.hosts[host])
    run.cut.add(host)
    run.counts["cuts"] += 1


def heal(run: Run, host: str) -> None:
    """Connect it again."""
    run.say(f"heal {host}")
    run.cluster.network.heal(run.cluster.hosts[host])
    run.cut.discard(host)


def send(processes: Sequence[psutil.Process], number: int) -> None:
    """Send a signal to those that still run."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def ends(driver: Driver) -> dict[str, Any]:
    """Return with what each of its streams ended at last."""
    return {reported["stream"]: reported["why"] for reported in driver.reported("ended")}

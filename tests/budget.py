"""What the tests take: clock and CPU seconds of each nox session, and the tests whose own call is long.

`.nox/records` has a folder for the last run of each session. `python -m tests.budget` with

- `measure FOLDER COMMAND…` runs a command of a session and adds what it takes to a folder. noxfile.py calls it.
- `report SESSION…` prints what sessions took, the long tests, and the programs that were absent.
- `check` fails if the recorded sessions took clearly more than `budget.json` and `slow_tests.toml` allow.
- `record` writes what the recorded sessions took to `budget.json`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.programs import line_of_absent_programs

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / ".nox" / "records"
REFERENCE = ROOT / "tests" / "budget.json"
SLOW = ROOT / "tests" / "slow_tests.toml"

FOLDER = "OUTFALL_TEST_RECORDS"
"""The variable with the folder of the session that tests run in."""

LIMIT = 3.0
"""Seconds that the own call of a default test may take, without its fixtures."""

CLEAR = 2.0
"""A test is too slow above so many times the limit: a busy machine makes each test slower."""

MARGIN = 1.2
"""The sessions are too slow above so many times the recorded CPU seconds."""

SHOWN = 20
"""How many tests above the limit are shown: on a busy machine there are hundreds."""

_SESSION, _SKIPPED, _CALLS = "session.json", "skipped.tsv", "calls.jsonl"
_PR_SET_CHILD_SUBREAPER = 36
_ORPHANS_SECONDS = 20
_WORK = """
import hashlib, resource, time
began = time.monotonic()
for number in range(400_000):
    hashlib.sha256(b"x" * (number % 500)).digest()
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, time.monotonic() - began)
"""


@dataclass(frozen=True)
class Call:
    """The own call of a test, and its seconds: by the clock, and of CPU in its process and in processes that ended."""

    test: str
    clock: float
    cpu: float

    @property
    def name(self) -> str:
        """The test without its parameters."""
        return self.test.partition("[")[0]


# What the tests' conftest.py records.


@contextmanager
def timed_call(test: str) -> Iterator[None]:
    """Record a test whose own call takes longer than the limit, if a session is measured."""
    began, before = time.monotonic(), os.times()
    try:
        yield
    finally:
        clock, after = time.monotonic() - began, os.times()
        if clock > LIMIT and FOLDER in os.environ:
            call = {"test": test, "clock": clock, "cpu": sum(after[:4]) - sum(before[:4])}
            _append(_CALLS, json.dumps(call))


def record_skipped(skipped: Iterable[tuple[str, str]]) -> None:
    """Record tests that were skipped because something was absent, by id and reason, if a session is measured."""
    if FOLDER in os.environ:
        for test, reason in skipped:
            _append(_SKIPPED, f"{test}\t{' '.join(reason.split())}")


def _append(name: str, line: str) -> None:
    with Path(os.environ[FOLDER], name).open("a") as file:
        file.write(f"{line}\n")


# What was recorded.


def cpu_of(session: str) -> float | None:
    """Return the CPU seconds of the last run of a session."""
    path = RECORDS / session / _SESSION
    return float(json.loads(path.read_text())["cpu"]) if path.exists() else None


def calls_of(folder: Path) -> list[Call]:
    """Return the long calls of a session, the longest first."""
    found = [Call(**json.loads(line)) for line in _lines(folder / _CALLS)]
    return sorted(found, key=lambda call: -call.clock)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def slow_tests() -> dict[str, str]:
    """Return the tests that may take longer than the limit, without parameters, and why."""
    return dict(tomllib.loads(SLOW.read_text()))


# The command.


def measure(folder: Path, command: Sequence[str]) -> int:
    """Run a command, add what it and all processes that it started took to a folder, and return its exit code.

    Orphans become children of this process, as `prctl(2)` describes, so that their CPU seconds are counted too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(AttributeError, OSError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    child = subprocess.Popen(command, env=os.environ | {FOLDER: str(folder)})
    # The terminal sends it to the whole group. The child decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
    code = _reap(child)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = folder / _SESSION
    before = json.loads(path.read_text()) if path.exists() else {"clock": 0.0, "cpu": 0.0}
    took = {"clock": time.monotonic() - began, "cpu": used.ru_utime + used.ru_stime}
    path.write_text(json.dumps({name: before[name] + took[name] for name in took}))
    return code


def _reap(child: subprocess.Popen[bytes]) -> int:
    """Wait for the child, and after it a while for the orphans that it left."""
    code, deadline = None, 0.0
    with suppress(ChildProcessError):
        while code is None or time.monotonic() < deadline:
            pid, status = os.waitpid(-1, 0 if code is None else os.WNOHANG)
            if pid == child.pid:
                code, deadline = os.waitstatus_to_exitcode(status), time.monotonic() + _ORPHANS_SECONDS
                child.returncode = code
            elif pid == 0:
                time.sleep(0.05)
    assert code is not None
    return code if code >= 0 else 128 - code


def report(sessions: Sequence[str]) -> list[str]:
    """Return lines: what sessions took, their long tests, and the programs that tests were skipped without."""
    lines, calls, reasons = [], [], []
    for session in sessions:
        folder = RECORDS / session
        if (folder / _SESSION).exists():
            took = json.loads((folder / _SESSION).read_text())
            lines.append(f"{session}: {took['clock']:.0f} s, {took['cpu']:.0f} s of CPU")
        calls += calls_of(folder)
        reasons += [line.partition("\t")[2] for line in _lines(folder / _SKIPPED)]
    known = slow_tests()
    for call in sorted(calls, key=lambda call: call.clock, reverse=True)[:SHOWN]:
        listed = "" if call.name in known else f", not in {SLOW.relative_to(ROOT)}"
        lines.append(f"{call.clock:.1f} s, {call.cpu:.1f} s of CPU in the test itself{listed}: {call.test}")
    return [*lines, *filter(None, [line_of_absent_programs(reasons)])]


def check() -> list[str]:
    """Return what is clearly too slow in the recorded sessions, each with what to do."""
    reference = json.loads(REFERENCE.read_text())
    if missing := _missing(reference):
        return [missing]
    took = {session: cpu_of(session) for session in reference["cpu"]}
    again = _slow_again([call for name in took for call in calls_of(RECORDS / name)])
    work = _work()
    slowness = max(1.0, work.cpu / reference["work"])
    clear = LIMIT * CLEAR
    # A test that waits is slow by the clock. Where others use the cores too, the clock says less.
    slow = [call for call in again if call.cpu >= clear * slowness or call.clock >= clear * slowness * work.share]
    found = [_too_slow(call) for call in slow]
    total, recorded = sum(filter(None, took.values())), sum(reference["cpu"].values())
    # A slower machine takes more for the same work. A faster one gets no smaller budget.
    allowed = recorded * MARGIN * slowness
    print(f"the sessions took {total:.0f} s of CPU; {recorded:.0f} s are recorded, {allowed:.0f} s allowed here")
    if total > allowed:
        found.append(
            f"{', '.join(took)} took {total:.0f} s of CPU, and {allowed:.0f} s are allowed. What to do: make tests"
            " faster, mark them thorough, or record the new sum: python -m tests.budget record"
        )
    return found


def _missing(reference: Any) -> str | None:
    missing = [session for session in reference["cpu"] if cpu_of(session) is None]
    return f"no record of {', '.join(missing)}. What to do: run these sessions of nox first" if missing else None


def _too_slow(call: Call) -> str:
    return (
        f"{call.test} took {call.clock:.1f} s twice. What to do: make it faster than {LIMIT:.0f} s, mark it thorough,"
        f" or add {call.name} to {SLOW.relative_to(ROOT)} with its reason"
    )


def _slow_again(calls: list[Call]) -> list[Call]:
    """Run the tests that were clearly too slow again, alone, and return how long they take then."""
    known, clear = slow_tests(), LIMIT * CLEAR
    suspects = [call.test for call in calls if call.clock >= clear and call.name not in known]
    if not suspects:
        return []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *suspects]
        subprocess.run(command, cwd=ROOT, env=os.environ | {FOLDER: folder}, check=False)
        return calls_of(Path(folder))


def record() -> None:
    """Write what the recorded sessions took to the reference."""
    reference = json.loads(REFERENCE.read_text())
    if missing := _missing(reference):
        raise SystemExit(missing)
    cpu = {session: round(cpu_of(session) or 0) for session in reference["cpu"]}
    REFERENCE.write_text(json.dumps({"cpu": cpu, "work": round(_work().cpu, 3)}, indent=2) + "\n")


@dataclass(frozen=True)
class Work:
    """How slow this machine is: CPU seconds of a fixed piece of work, and clock seconds for each of them."""

    cpu: float
    share: float


def _work() -> Work:
    """Do a fixed piece of work on each core at once, three times."""
    cores = os.cpu_count() or 1
    found = []
    for _ in range(3):
        command = [sys.executable, "-c", _WORK]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(cores)]
        found += [tuple(map(float, process.communicate()[0].split())) for process in running]
    return Work(median(cpu for cpu, _ in found), max(1.0, median(clock / cpu for cpu, clock in found)))


def main(what: str, *arguments: Any) -> int:
    """Run the command."""
    if what == "measure":
        return measure(Path(arguments[0]), arguments[1:])
    if what == "record":
        record()
        return 0
    lines = report(arguments) if what == "report" else check()
    print("\n".join(lines), flush=True)
    return int(what == "check" and bool(lines))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""The exporter as a process, on 200 steps of 1,000 parts each: what it takes, at rest and while all of them write."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from outfall.recovery.entries import Begin, Completed, Prepared, StoredValue, encode_entry
from outfall.recovery.file_log import entry_name
from tests.integration.support.waiting import until

pytestmark = pytest.mark.thorough

STEPS = 200
PARTS = 1000
KEPT = 100


def entries(step: str, epoch: int) -> Iterator[bytes]:
    """An epoch of a step as its driver records it, COMMITTING left out."""
    common: dict[str, Any] = {"step": step, "incarnation": "9d4548c1f6e066ba", "time": datetime.now(UTC)}
    begin = 3 * epoch + 1
    of_epoch = {**common, "epoch": epoch, "generation": begin}
    states = {f"part-{part:05d}": StoredValue(version=1, text=f'{{"offset": {part * epoch}}}') for part in range(PARTS)}
    yield encode_entry(
        Begin(**common, epoch=epoch, outfall="0.1.0", sink="file/growing", target="file:/t", query_id="q", driver="d:1")
    )
    yield encode_entry(Prepared(**of_epoch, query_id="q", states=states, counts={"rows": 10}))
    totals = {"rows": 10 * (epoch + 1), "epochs": epoch + 1, "task_ms": 5 * epoch, "commit_ms": epoch}
    yield encode_entry(Completed(**of_epoch, prepared=begin + 1, counts={"rows": 10}, totals=totals))


def append(place: Path, epoch: int) -> None:
    """Write an epoch, and leave of those before what a clean-up leaves."""
    place.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(entries(place.name, epoch), start=3 * epoch + 1):
        aside = place.parent / ".aside"
        aside.write_bytes(data)
        os.link(aside, place / entry_name(number))
        aside.unlink()
    for number in (3 * epoch - 2, 3 * epoch - 1):
        (place / entry_name(number)).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Twenty checkpoints of ten steps each."""
    parent = tmp_path_factory.mktemp("checkpoints")
    found = [parent / f"query-{number // 10}" / "outfall" / f"step-{number}" for number in range(STEPS)]
    for place in found:
        place.mkdir(parents=True)
        # The counts of older epochs, as many as are kept.
        *_, completed = entries(place.name, 0)
        for epoch in range(KEPT):
            (place / entry_name(3 * epoch + 3)).write_bytes(completed)
        append(place, KEPT)
    return found


@pytest.fixture(scope="module")
def exporter(places: list[Path]) -> Iterator[tuple[psutil.Process, str]]:
    parent = places[0].parents[2]
    command = [sys.executable, "-m", "outfall.cli", "export", str(parent), "--port", "0", "--every", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield psutil.Process(process.pid), process.stdout.readline().strip()
        finally:
            process.kill()


def scrape(url: str) -> tuple[str, float]:
    started = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    return text, time.monotonic() - started


def await_rows(url: str, rows: int) -> None:
    """Wait until all steps have so many."""
    line = re.compile(rf"^outfall_rows_total{{.*}} {rows}\.0$", re.MULTILINE)
    until(lambda: len(line.findall(scrape(url)[0])) == STEPS, f"{rows} rows of each step", 60)


def test_200_steps_of_1000_parts(places: list[Path], exporter: tuple[psutil.Process, str]) -> None:
    process, url = exporter
    started = time.monotonic()
    await_rows(url, 10 * (KEPT + 1))
    first = time.monotonic() - started
    longest = 0.0
    for epoch in range(KEPT + 1, KEPT + 4):
        for place in places:
            append(place, epoch)
            if place.name.endswith("9"):
                longest = max(longest, scrape(url)[1])
        await_rows(url, 10 * (epoch + 1))
    longest = max(longest, *(scrape(url)[1] for _ in range(3)))
    memory = process.memory_info().rss / 2**20
    before, at = process.cpu_times(), time.monotonic()
    time.sleep(5)  # what it costs at rest, per second
    after = process.cpu_times()
    idle = (after.user + after.system - before.user - before.system) / (time.monotonic() - at)
    took = f"all read after {first:.1f} s, longest scrape {longest:.2f} s"
    print(f"{took}, {memory:.0f} MiB, {100 * idle:.1f} % of a core at rest")
    assert longest < 2
    assert memory < 100
    assert idle < 0.5

"""`outfall export`: what a scrape says, and that no store keeps back another or a scrape."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from outfall.counters import STEP_COUNTERS
from outfall.file import FileSink
from outfall.metrics import exporter
from outfall.metrics.series import LOCATION_READABLE, STEP_SERIES
from outfall.recovery import CheckpointRecoveryConfig, RecoveryLog, recovery_config
from outfall.recovery.local_log import LocalLog
from outfall.recovery.log import RecoveryConfig
from outfall.testing import LocalDriver, crash_at
from tests.unit.metrics.test_step_status import beat
from tests.unit.support.command import FileStep, failed, rows
from tests.unit.support.hoarding import HoardingSink
from tests.unit.support.warehouse import PlainSink, Warehouse

Scrape: TypeAlias = dict[tuple[str, tuple[tuple[str, str], ...]], float]
WAIT = 20.0


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(exporter, "_SEARCH_EVERY", 0.0)


def until(found: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not found():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)


class Scraped:
    def __init__(self, recoveries: Sequence[RecoveryConfig]) -> None:
        self.exporter = exporter.Exporter.start(recoveries, host="127.0.0.1", port=0, every=0.02)

    def scrape(self) -> Scrape:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.exporter.port}/metrics", timeout=WAIT) as answer:
            text = answer.read().decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.scrape().get((name, tuple(sorted(labels.items()))))

    def awaited(self, name: str, value: float | None, **labels: str) -> None:
        until(lambda: self.value(name, **labels) == value, f"{name}{labels} being {value}")


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Scraped]]:
    started: list[Scraped] = []

    def serve(*places: object) -> Scraped:
        recoveries = [place if isinstance(place, RecoveryConfig) else recovery_config(str(place)) for place in places]
        started.append(Scraped(recoveries))
        return started[-1]

    yield serve
    for one in started:
        # It takes half a second, and nothing here waits for it.
        threading.Thread(target=one.exporter.close).start()


def test_a_scrape_says_what_the_log_says(tmp_path: Path, serving: Callable[..., Scraped]) -> None:
    step = FileStep(tmp_path)
    step.write(0, 1)
    with crash_at("after PREPARED"):
        step.write(2)
    beat(step, generation=9)
    found = serving(step.recovery)
    where = {"location": step.recovery, "step": "sink"}
    found.awaited("outfall_retrying", 1, **where)
    scrape = found.scrape()

    def value(name: str, **labels: str) -> float:
        return scrape[name, tuple(sorted({**where, **labels}.items()))]

    assert value("outfall_rows_total") == 8
    assert value("outfall_epochs_total") == 2
    assert value("outfall_recorded_rows") == 4
    assert value("outfall_last_completed_epoch") == 1
    assert value("outfall_log_readable") == 1
    assert value("outfall_retrying_attempts") == 3
    assert value("outfall_state", state="recorded") == 1
    assert value("outfall_state", state="completed") == 0
    assert 0 < value("outfall_epoch_open_seconds", phase="commit") < WAIT
    assert value("outfall_epoch_open_seconds", phase="tasks") == 0
    assert 0 < value("outfall_phase_seconds_total", phase="tasks") < WAIT
    assert 0 < value("outfall_last_completed_age_seconds") < WAIT
    assert abs(time.time() - value("outfall_last_completed_timestamp_seconds")) < WAIT
    assert value("outfall_step_info", sink="file/whole", version="0.1.0", mode="batch") == 1
    assert scrape["outfall_location_readable", (("location", step.recovery),)] == 1
    assert value("outfall_generation") == 9


def test_a_step_of_a_query_is_told_from_one_of_jobs(tmp_path: Path, serving: Callable[..., Scraped]) -> None:
    sink = FileSink(str(tmp_path / "out"))
    LocalDriver(sink, str(tmp_path / "rec"), query_id="a query").run_epoch(0, rows(0))
    labels = {"sink": "file/whole", "version": "0.1.0", "mode": "streaming"}
    serving(tmp_path / "rec").awaited("outfall_step_info", 1, location=str(tmp_path / "rec"), step="sink", **labels)


def test_every_series_is_of_a_step_and_its_labels_are_bounded(tmp_path: Path, serving: Callable[..., Scraped]) -> None:
    step = FileStep(tmp_path)
    step.write(0)
    found = serving(step.recovery)
    found.awaited("outfall_rows_total", 4, location=step.recovery, step="sink")
    known = {series.name: {"location", "step", *series.labels} for series in STEP_SERIES}
    known[LOCATION_READABLE.name] = {"location"}
    for name, labels in found.scrape():
        if not name.startswith("process_"):
            assert {label for label, _ in labels} == known[name]
    assert set().union(*known.values()) == {"location", "step", "state", "phase", "sink", "counter", "version", "mode"}
    assert all(series.name.endswith("_total") == (series.kind == "counter") for series in STEP_SERIES)
    assert {counter.prometheus for counter in STEP_COUNTERS} <= known.keys()


def test_locations_below_a_directory_are_found_and_forgotten(tmp_path: Path, serving: Callable[..., Scraped]) -> None:
    steps = [FileStep(tmp_path / place) for place in ("a", "deep/er/b")]
    steps[0].write(0)
    found = serving(tmp_path)
    found.awaited("outfall_rows_total", 4, location=steps[0].recovery, step="sink")
    steps[1].write(0, 1)
    FileStep(tmp_path / "a", "second").write(0)
    found.awaited("outfall_rows_total", 8, location=steps[1].recovery, step="sink")
    found.awaited("outfall_rows_total", 4, location=steps[0].recovery, step="second")
    shutil.rmtree(steps[1].recovery)
    found.awaited("outfall_rows_total", None, location=steps[1].recovery, step="sink")
    found.awaited("outfall_location_readable", None, location=steps[1].recovery)
    assert found.value("outfall_location_readable", location=str(tmp_path)) == 1
    assert found.value("outfall_rows_total", location=steps[0].recovery, step="sink") == 4


@pytest.mark.parametrize("place", ["memory://exporter-test/{}", "sqlite://{}"])
def test_all_stores_are_read(place: str, tmp_path: Path, serving: Callable[..., Scraped]) -> None:
    url = place.format(tmp_path)
    LocalDriver(PlainSink(), recovery_config(url)).run_epoch(0, [[1, 2]])
    found = serving(recovery_config(url))
    found.awaited("outfall_rows_total", 2, location=recovery_config(url).url(), step="sink")


def test_prefixes_of_an_object_store_are_searched(tmp_path: Path, serving: Callable[..., Scraped]) -> None:
    parent = f"memory://exporter-search/{tmp_path.name}"
    LocalDriver(PlainSink(), recovery_config(f"{parent}/one/two")).run_epoch(0, [[1, 2]])
    found = serving(recovery_config(parent))
    found.awaited("outfall_rows_total", 2, location=f"{parent}/one/two", step="sink")


def test_a_torn_log_says_so_and_hides_no_other(tmp_path: Path, serving: Callable[..., Scraped]) -> None:
    whole, torn = FileStep(tmp_path, "whole"), FileStep(tmp_path, "torn")
    whole.write(0)
    torn.write(0)
    newest = max((Path(torn.recovery) / "outfall/torn").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-5])
    found = serving(tmp_path)
    where = {"location": whole.recovery}
    found.awaited("outfall_log_readable", 0, step="torn", **where)
    found.awaited("outfall_log_readable", 1, step="whole", **where)
    assert found.value("outfall_state", state="damaged", step="torn", **where) == 1
    assert found.value("outfall_rows_total", step="whole", **where) == 4


@dataclass(frozen=True)
class Hanging(CheckpointRecoveryConfig):
    """A store that answers nothing from some call on, until it is let go."""

    gate: Any = None
    hangs: str = "open"

    def open(self, step_id: str) -> RecoveryLog:
        if self.hangs == "open":
            self.gate.wait()
        return super().open(step_id)

    def steps(self) -> Sequence[str]:
        if self.hangs == "steps":
            self.gate.wait()
        return super().steps()


@pytest.mark.parametrize("hangs", ["open", "steps"])
def test_a_store_that_hangs_keeps_back_neither_others_nor_a_scrape(
    hangs: str, tmp_path: Path, serving: Callable[..., Scraped], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_SILENCE", 0.3)
    gate = threading.Event()
    good, bad = FileStep(tmp_path / "good"), FileStep(tmp_path / "bad")
    good.write(0)
    bad.write(0)
    found = serving(Hanging(bad.recovery, gate, hangs), good.recovery)
    found.awaited("outfall_rows_total", 4, location=good.recovery, step="sink")
    good.write(1)
    found.awaited("outfall_rows_total", 8, location=good.recovery, step="sink")
    assert found.value("outfall_log_readable", location=good.recovery, step="sink") == 1
    if hangs == "steps":
        assert found.value("outfall_location_readable", location=bad.recovery) == 0
    else:
        found.awaited("outfall_log_readable", 0, location=bad.recovery, step="sink")
    gate.set()
    found.awaited("outfall_log_readable", 1, location=bad.recovery, step="sink")
    found.awaited("outfall_location_readable", 1, location=bad.recovery)


def test_a_log_that_begins_to_hang_is_not_readable_any_more_and_keeps_back_no_other_of_its_location(
    tmp_path: Path, serving: Callable[..., Scraped], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_SILENCE", 0.3)
    step, other = FileStep(tmp_path), FileStep(tmp_path, "other")
    step.write(0)
    other.write(0)
    where = {"location": step.recovery}
    found = serving(step.recovery)
    found.awaited("outfall_log_readable", 1, step="sink", **where)
    gate, numbers = threading.Event(), LocalLog.numbers

    def hang(log: LocalLog) -> list[int]:
        if log._step_id == "sink":
            gate.wait()
        return numbers(log)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(LocalLog, "numbers", hang)
        found.awaited("outfall_log_readable", 0, step="sink", **where)
        assert found.value("outfall_rows_total", step="sink", **where) == 4
        other.write(1)
        found.awaited("outfall_rows_total", 8, step="other", **where)
        gate.set()
    found.awaited("outfall_log_readable", 1, step="sink", **where)


def test_a_location_that_cannot_be_listed_says_so_until_it_can(
    tmp_path: Path, serving: Callable[..., Scraped], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_SEARCH_EVERY", 1000.0)
    step = FileStep(tmp_path)
    step.write(0)
    failed: list[object] = []

    def fail(recovery: object) -> Sequence[str]:
        failed.append(recovery)
        raise RuntimeError("no answer")

    found = serving(step.recovery)
    found.awaited("outfall_location_readable", 1, location=step.recovery)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(CheckpointRecoveryConfig, "steps", fail)
        found.awaited("outfall_location_readable", 0, location=step.recovery)
        # More often than there are threads, which must outlive it.
        until(lambda: len(failed) > 2 * exporter._THREADS, "failing again and again")
    found.awaited("outfall_location_readable", 1, location=step.recovery)
    step.write(1)
    found.awaited("outfall_rows_total", 8, location=step.recovery, step="sink")


def test_a_step_that_is_erased_is_forgotten(tmp_path: Path, serving: Callable[..., Scraped]) -> None:
    for name in ("kept", "erased"):
        FileStep(tmp_path, name).write(0)
    place = FileStep(tmp_path).recovery
    found = serving(place)
    found.awaited("outfall_rows_total", 4, location=place, step="erased")
    shutil.rmtree(f"{place}/outfall/erased")
    found.awaited("outfall_log_readable", None, location=place, step="erased")
    assert found.value("outfall_log_readable", location=place, step="kept") == 1


def test_rows_that_wait_are_said_with_their_age(tmp_path: Path, serving: Callable[..., Scraped]) -> None:
    driver = LocalDriver(HoardingSink(Warehouse()), str(tmp_path / "rec"))
    driver.run_epoch(0, [[1, 2]])
    found = serving(tmp_path / "rec")
    where = {"location": str(tmp_path / "rec"), "step": "sink"}
    found.awaited("outfall_buffered_rows", 2, **where)
    assert (found.value("outfall_buffered_age_seconds", **where) or 0) > 0


def test_a_port_that_is_taken_is_one_line(tmp_path: Path, serving: Callable[..., Scraped]) -> None:
    taken = serving(tmp_path).exporter.port
    assert f"cannot listen on 127.0.0.1:{taken}" in failed("export", tmp_path, "--port", taken)


@pytest.mark.thorough
def test_an_exporter_loads_nothing_for_other_commands() -> None:
    code = (
        "import sys; from outfall.cli.commands.app import outfall; outfall(['export', '--help'], standalone_mode=False)"
    )
    code += "; import outfall.metrics.exporter; print([name for name in ('pyarrow', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"

"""The driver is killed (-9) at random moments of a stream of real flights, and started again until the stream ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.support.killed_driver import FORMAT_API, make_job
from tests.integration.support.reading import found, visible

pytestmark = [pytest.mark.spark, pytest.mark.faults]


@contextmanager
def watched(directory: Path) -> Iterator[list[str]]:
    """Poll a directory like a reader of whole files; yields what was seen and went away or changed again."""
    complaints: list[str] = []
    seen: dict[str, tuple[int, int]] = {}
    done = threading.Event()

    def poll() -> None:
        while not done.wait(0.01):
            now = {}
            for path in visible(directory):
                status = path.stat()
                now[path.name] = (status.st_ino, status.st_size)
            complaints.extend(
                f"{name} was {was}, is {now.get(name)}" for name, was in seen.items() if now.get(name) != was
            )
            seen.update(now)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield complaints
    finally:
        done.set()
        thread.join()


@pytest.mark.thorough
def test_a_driver_that_is_killed_after_it_recorded_an_epoch_leaves_each_flight_once(tmp_path: Path) -> None:
    job, rows = make_job(tmp_path, "growing", "objects", files=2)
    job.feed(1)
    job.run_until_killed_at("after PREPARED")
    job.feed(1)
    job.run_to_the_end()
    ids = Counter(row["id"] for row in found(job.out))
    assert ids == dict.fromkeys(range(rows.num_rows), 1)


@pytest.mark.parametrize(
    ("mode", "api"),
    [
        pytest.param("growing", "objects", marks=pytest.mark.long),
        pytest.param("growing", "sqlite", marks=pytest.mark.long),
        pytest.param("rolling", "objects", marks=pytest.mark.long),
        pytest.param("whole", "objects", marks=pytest.mark.long),
        pytest.param("by spark", "objects", marks=pytest.mark.long),
        pytest.param("whole", "options", marks=[FORMAT_API, pytest.mark.thorough]),
    ],
)
def test_each_flight_is_found_once_however_often_the_driver_is_killed(tmp_path: Path, mode: str, api: str) -> None:
    job, rows = make_job(tmp_path, mode, api)
    with watched(job.out) as complaints:
        job.run_all()
    ids = Counter(row["id"] for row in found(job.out))
    assert ids.keys() == set(range(rows.num_rows))
    assert {flight: times for flight, times in ids.items() if times > 1} == {}
    if mode == "rolling":
        assert len(visible(job.out)) > 5
    if mode in ("whole", "by spark"):
        assert complaints == []

"""`outfall report`: what is on the page, and what never is."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("click")

from outfall.metrics.location_status import LocationStatus
from outfall.metrics.report import report_page
from outfall.metrics.step_status import StepStatus
from outfall.protocol.heartbeat import Heartbeat
from tests.unit.support.command import done, failed, parsed
from tests.unit.support.eventful import eventful_step

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Tags(HTMLParser):
    """What a browser would take for elements and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")


def test_the_page_has_plots_troubles_and_all_epochs(tmp_path: Path) -> None:
    eventful_step(str(tmp_path / "chk"), epochs=34, outage=range(3), target="warehouse flights")
    page = tmp_path / "page.html"
    assert done("report", tmp_path / "chk", "-o", page) == ""
    text = page.read_text()
    assert re.findall("<figcaption>(.*?) <small>", text) == ["Throughput", "Time", "Retries", "Dead letters"]
    assert "5 rows have become dead letters" in text
    assert len(re.findall("<tr><td", text)) == 34
    assert "warehouse flights" in text
    assert len(re.findall("<tr><td", done("report", tmp_path / "chk", "-o", "-", "--last", 3))) == 3


def test_all_checkpoints_of_a_directory_are_on_it(tmp_path: Path) -> None:
    for name in ("flights", "trains"):
        eventful_step(str(tmp_path / name), epochs=1)
    text = done("report", tmp_path, "-o", "-")
    assert re.findall('<a href="#step-([01])">(.*?)</a>', text) == [("0", "flights/sink"), ("1", "trains/sink")]


def test_what_went_wrong_is_told_to_programs_too(tmp_path: Path) -> None:
    eventful_step(str(tmp_path / "flights"), epochs=34, outage=range(3))
    (step,) = parsed("report", tmp_path)["steps"]
    assert (step["location"], step["step"], step["state"]) == (str(tmp_path / "flights"), "sink", "completed")
    assert [set(trouble) for trouble in step["troubles"]] == [{"severity", "what", "do"}] * 2
    assert "Missing option '-o'" in failed("report", tmp_path, code=2)


def test_where_nothing_is_there_is_no_page(tmp_path: Path) -> None:
    assert "does not exist" in failed("report", tmp_path / "typo", "-o", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


EVIL = "\"><script>alert(1)</script><img src=http://evil/x onerror=alert(1)>'</style>"
BEAT = Heartbeat(
    who=EVIL, generation=1, epoch=1, phase="tasks", since=NOW, at=NOW, attempts=1, place=EVIL, doing=EVIL,
    reason=f"{EVIL} https://me:geheim@host/x?sig=geheim password=geheim",
)  # fmt: skip


def test_no_text_of_a_log_injects_markup_and_no_secret_is_shown() -> None:
    secret = "https://me:geheim@host/x?sig=geheim"
    step = StepStatus(
        EVIL, "begun", problem=f"{EVIL} {secret}", sink=EVIL, target=f"{EVIL} {secret}", children={EVIL: secret},
        guarantee=EVIL, incarnation=EVIL, driver=EVIL, outfall=EVIL, query_id=EVIL, heartbeats=[BEAT], retrying=True,
        moved_to=secret,
    )  # fmt: skip
    moved = StepStatus("sink", "moved", moved_to=f"{EVIL} {secret}")
    below = LocationStatus(f"/{EVIL}", [step, moved])
    page = report_page(LocationStatus(f"/chk/{EVIL}", checkpoints=[below], problem=f"{EVIL} {secret}"), NOW)
    tags = Tags(page)
    assert "geheim" not in page
    assert not tags.names & {"script", "img", "iframe", "link", "object", "form"}
    assert "onerror" not in tags.attributes
    assert "src" not in tags.attributes
    assert page.count("</style>") == 1
    assert tags.attributes["href"] <= {"#step-0", "#step-1"}


def test_the_page_forbids_itself_to_load_anything(tmp_path: Path) -> None:
    page = report_page(LocationStatus("/chk"), NOW)
    assert "default-src 'none'; style-src 'unsafe-inline'" in Tags(page).attributes["content"]
    assert not re.search(r"url\(|@import|@font-face", page)

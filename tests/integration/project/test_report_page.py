"""The page of `outfall report` in a browser: wide and narrow, light and dark, and alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from html import escape, unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from outfall.metrics.location_status import look_at
from outfall.metrics.report import report_page
from outfall.recovery import recovery_config
from tests.integration.support.servers import free_port
from tests.programs import program
from tests.unit.support.eventful import eventful_step

pytestmark = pytest.mark.thorough

LONG = "s3://a-bucket-with-a-name/" + "and_a_prefix_without_any_space_that_no_line_can_hold" * 3


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("chk"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        eventful_step(place, target=LONG)
        eventful_step(place, epochs=2, step_id="archive")
    return report_page(look_at(recovery_config(place), last=100), datetime.now(UTC))


MEASURED = """
<!doctype html><meta name="color-scheme" content="light dark">
<iframe id="frame" style="width:%dpx;height:900px;border:0" srcdoc="%s"></iframe>
<script>
onload = () => {
  const inner = frame.contentDocument, root = inner.documentElement, found = document.createElement("pre");
  const plots = [...inner.querySelectorAll("figure > svg")].map(plot => plot.getBoundingClientRect());
  found.id = "found";
  found.textContent = JSON.stringify({
    width: root.clientWidth, needed: root.scrollWidth, plots: plots.map(plot => plot.width),
    columns: new Set(plots.map(plot => plot.left)).size,
    text: getComputedStyle(inner.body).color, background: getComputedStyle(inner.body).backgroundColor,
    loaded: frame.contentWindow.performance.getEntriesByType("resource").length,
  });
  document.body.append(found);
};
</script>
"""
"""Holds the page in a frame, since a browser's own window is never narrower than 500 pixels."""


def opened(folder: Path, page: str, width: int, *flags: str) -> Any:
    """What a browser has made of the page, at this width."""
    browser = program("chromium")
    file = folder / "page.html"
    file.write_text(MEASURED % (width, escape(page)))
    quiet = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder / 'profile'}",
    )  # fmt: skip
    command = [browser, *quiet, *flags, "--window-size=1400,1000", "--dump-dom", file.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return json.loads(unescape(re.findall('<pre id="found">(.*?)</pre>', shown)[0]))


@pytest.mark.parametrize(("width", "columns"), [(400, 1), (1280, 3)])
def test_nothing_is_wider_than_the_page(page: str, tmp_path: Path, width: int, columns: int) -> None:
    found = opened(tmp_path, page, width)
    assert found["needed"] == found["width"] >= width - 20
    assert found["columns"] == columns
    assert all(300 < plot < 420 for plot in found["plots"]), "as large as their texts are meant for"
    assert found["loaded"] == 0


def test_a_dark_page_is_dark_and_both_are_readable(page: str, tmp_path: Path) -> None:
    light = opened(tmp_path, page, 400)
    dark = opened(tmp_path, page, 400, "--force-dark-mode")
    assert brightness(light["background"]) > 200 > 100 > brightness(light["text"])
    assert brightness(dark["background"]) < 50 < 150 < brightness(dark["text"])


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


@pytest.fixture
def requests() -> Iterator[tuple[str, list[str]]]:
    """A server, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", free_port()), Handler) as server, closing(server.socket):
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_the_browser_loads_nothing_even_if_markup_were_injected(
    page: str, tmp_path: Path, requests: tuple[str, list[str]]
) -> None:
    server, asked = requests
    spoilt = page.replace("</main>", f'<img src="{server}/image"><script src="{server}/script"></script></main>')
    opened(tmp_path, spoilt, 400)
    assert asked == []
    opened(tmp_path, re.sub("<meta http-equiv[^>]*>", "", spoilt), 400)
    assert sorted(asked) == ["/image", "/script"], "the browser would have loaded them"

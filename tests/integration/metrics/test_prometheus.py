"""What is deployed, on a real Prometheus that scrapes a real exporter: each expression runs, and each series exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outfall.metrics.exporter import Exporter
from outfall.metrics.series import LOCATION_READABLE, STEP_SERIES
from outfall.recovery import recovery_config
from outfall.testing import LocalDriver
from outfall.wrappers import FanOutSink
from tests.integration.support.prometheus import DEPLOY, ROOT, Prometheus, prometheus, promtool, scraped
from tests.integration.support.waiting import until
from tests.unit.support.async_destination import Destination, TextSink

RULES = (DEPLOY / "outfall.rules.yml").read_text()
DASHBOARD = json.loads((ROOT / "deploy/grafana/outfall.json").read_text())


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "outfall.rules.yml"),
        ("check", "config", "prometheus.yml"),
        pytest.param(("test", "rules", "outfall.test.yml"), marks=pytest.mark.thorough),
    ],
    ids=" ".join,
)
def test_promtool_accepts_rules_and_example(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_names_are_as_prometheus_wants_them(tmp_path: Path) -> None:
    LocalDriver(TextSink(Destination()), str(tmp_path)).run_epoch(0, [["a row"]])
    with closing(Exporter.start([recovery_config(str(tmp_path))], host="127.0.0.1", port=0, every=0.1)) as exporter:
        text = until(lambda: (found := scraped(exporter.port)) * ("outfall_rows_total{" in found), "a look")
    done = promtool("check", "metrics", said=text)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Prometheus]:
    """A step that goes on working, with children and asynchronous requests, as a real Prometheus sees it."""
    location = tmp_path / "chk"
    sink = FanOutSink(a=TextSink(Destination()), b=TextSink(Destination()))
    LocalDriver(sink, str(location)).run_epoch(0, [["a row"]])
    with (
        closing(Exporter.start([recovery_config(str(tmp_path))], host="127.0.0.1", port=0, every=0.1)) as exporter,
        prometheus(tmp_path, exporter.port) as server,
    ):
        for epoch in range(1, 3):
            # Prometheus must see each, or nothing ever grows.
            until(partial(server.query, f"outfall_epochs_total == {epoch}"), f"epoch {epoch} scraped")
            LocalDriver(sink, str(location)).run_epoch(epoch, [["a row"]])
        until(lambda: server.query("outfall_epochs_total == 3"), "the last epoch scraped")
        yield server


def expressions() -> Iterator[tuple[str, str]]:
    for alert, text in re.findall(r"- alert: (\w+)\n(.*?)\n        for:", RULES, re.DOTALL):
        folded = text.partition("expr: ")[2].removeprefix(">-")
        yield alert, " ".join(folded.split())
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def plain(expression: str) -> str:
    """With values for Grafana's variables."""
    return re.sub(r"\$__rate_interval|\$__interval", "1m", re.sub(r"\$(location|step)\b", ".*", expression))


@pytest.mark.thorough
def test_every_expression_runs_and_every_series_exists(watched: Prometheus) -> None:
    found = dict.fromkeys(expressions())
    assert {alert for alert, _ in found} >= set(re.findall(r"- alert: (\w+)", RULES))
    there = watched.names()
    named = {name for _, text in found for name in re.findall(r"\boutfall_\w+", text)}
    assert named - there == set()
    assert {series.name for series in (*STEP_SERIES, LOCATION_READABLE)} <= there
    for where, expression in found:
        answer: Any = watched.query(plain(expression))
        # An alert is quiet here, and a panel shows something.
        assert bool(answer) == (not where.startswith("Outfall")), f"{where}: {expression}"
    variables = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    assert [variable["name"] for variable in variables] == ["location", "step"]
    for variable in variables:
        name = re.match(r"label_values\((\w+)", variable["query"]["query"])
        assert name is not None
        assert name[1] in there

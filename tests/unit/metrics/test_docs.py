"""docs/metrics.md names each series and each alert as they are."""

from __future__ import annotations

import re

from outfall.counters import STEP_COUNTERS
from outfall.metrics.series import LOCATION_READABLE, STEP_SERIES
from tests.documents import ROOT, SOURCES, modules

PAGE = (ROOT / "docs" / "metrics.md").read_text()
RULES = (ROOT / "deploy" / "prometheus" / "outfall.rules.yml").read_text()
TRIED = (ROOT / "deploy" / "prometheus" / "outfall.test.yml").read_text()


def test_the_table_of_series_is_that_of_the_code() -> None:
    rows = []
    for series in (*STEP_SERIES, LOCATION_READABLE):
        labels = ", ".join(f"`{label}`" for label in series.labels)
        rows.append(f"| `{series.name}` | {series.kind} | {labels}{' ' if labels else ''}| {series.help} |")
    assert re.findall(r"^\| `outfall_.*$", PAGE, re.MULTILINE) == rows


def test_each_counter_is_on_a_page() -> None:
    code = "".join(file.read_text() for _, file in modules() if SOURCES[-1] not in file.parents)
    counters = {
        name for names in re.findall(r'metrics\.(?:add|peak)\("(\w+)"|_peak\("(\w+)"', code) for name in names
    } - {""}
    pages = "".join(
        (ROOT / "docs" / page).read_text() for page in ("metrics.md", "writing-a-request-sink.md", "postgres.md")
    )
    assert {"rows_changed", "max_rtt_ms"} < counters
    counters -= {counter.counted_as for counter in STEP_COUNTERS}
    assert not {name for name in counters if f"`{name}`" not in pages}


def test_each_alert_has_its_section_and_is_tried_both_ways() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES)
    assert re.findall(r"^### (\w+)$", PAGE.partition("## Alerts")[2], re.MULTILINE) == alerts
    assert re.findall(r"runbook_url: (.*)", RULES) == [f"docs/metrics.md#{alert.lower()}" for alert in alerts]
    for part in ("for", "severity", "summary", "description"):
        assert len(re.findall(rf"^ +{part}: .", RULES, re.MULTILINE)) == len(alerts), part
    for alert in alerts:
        assert re.search(rf"alertname: {alert}, exp_alerts: \[\]", TRIED), f"{alert} is not tried quiet"
        assert re.search(rf"alertname: {alert}\n +exp_alerts:", TRIED), f"{alert} is not tried firing"

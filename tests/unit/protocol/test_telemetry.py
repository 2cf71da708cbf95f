"""Counters and spans of a driver that has OpenTelemetry: in a process of its own, since providers are set once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outfall.counters import PHASE_SECONDS, SINK_COUNTER, STEP_COUNTERS

SET_UP = """
import json, sys
from contextlib import closing, suppress
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
spans, reader, tracing = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
tracing.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(tracing)
metrics.set_meter_provider(MeterProvider([reader]))
told, secret = {}, []

def tell(name):
    ended = spans.get_finished_spans()
    names = {span.context.span_id: span.name for span in ended}
    told[name] = [
        [span.name, names.get(span.parent and span.parent.span_id), span.status.status_code.name,
         [event.attributes["exception.type"].rpartition(".")[2] for event in span.events],
         span.end_time - span.start_time]
        for span in ended
    ]
    secret.extend(span.name for span in ended if "geheim" in span.to_json())
    spans.clear()
"""
WRITE = """
from outfall.file import FileSink
from outfall.protocol.coordinator import EpochCoordinator
from outfall.recovery import recovery_config
from outfall.testing import LocalDriver, crash_at
out, chk = sys.argv[1:]

def coordinator():
    return closing(EpochCoordinator(FileSink(out), "sink", recovery_config(chk)))

def write(epoch):
    LocalDriver(FileSink(out), chk).run_epoch(epoch, [[{"id": 1}, {"id": 2}]])
"""
EPOCHS = """
write(0)
tell("completed")
write(0)
tell("skipped")
with suppress(Exception):
    write(7)
tell("begin")
with suppress(RuntimeError), coordinator() as failing:
    failing.begin(1)
    raise RuntimeError("no answer from https://me:geheim@host")
tell("tasks")
with crash_at("after PREPARED"):
    write(1)
tell("commit")
write(1)
tell("settled")
write(2)
tell("next")
with coordinator() as first:
    ticket = first.begin(3)
tell("begun here")
with coordinator() as second:
    second._step.journal.read()
    second.finish(ticket, [])
tell("ended elsewhere")
counted = {
    metric.name: [(dict(point.attributes), point.value) for point in metric.data.data_points]
    for of_resource in reader.get_metrics_data().resource_metrics
    for of_scope in of_resource.scope_metrics
    for metric in of_scope.metrics
}
print(json.dumps([told, counted, secret]))
"""
WHOLE = [
    ["outfall.begin", "outfall.epoch", "UNSET", []],
    ["outfall.tasks", "outfall.epoch", "UNSET", []],
    ["outfall.commit", "outfall.epoch", "UNSET", []],
    ["outfall.epoch", None, "UNSET", []],
]


def run(code: str, folder: Path) -> Any:
    command = [sys.executable, "-c", code, str(folder / "out"), str(folder / "chk")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def failed(phase: str, error: str) -> list[list[Any]]:
    return [[f"outfall.{phase}", "outfall.epoch", "ERROR", [error]], ["outfall.epoch", None, "ERROR", [error]]]


def test_epochs_are_told_of_as_counters_and_as_spans_with_their_errors(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    told, counted, secret = run(SET_UP + WRITE + EPOCHS, tmp_path)
    spans = {name: [span[:4] for span in ended] for name, ended in told.items()}
    assert spans["completed"] == spans["skipped"] == spans["settled"] == spans["next"] == WHOLE
    assert secret == [], "spans leave the process"
    assert spans["begin"] == failed("begin", "UnexpectedEpochError")
    assert spans["tasks"] == [WHOLE[0], *failed("tasks", "RuntimeError")]
    assert spans["commit"] == [*WHOLE[:2], *failed("commit", "CrashError")]
    # Another process may end it: what is told there is from its BEGIN on.
    assert spans["begun here"] == [["outfall.begin", None, "UNSET", []]]
    assert spans["ended elsewhere"] == WHOLE[1:]
    assert told["ended elsewhere"][-1][-1] > 0
    where = {"location": str(tmp_path / "chk"), "step": "sink"}
    assert counted["outfall.rows"] == [[where, 6]]
    assert counted["outfall.epochs"] == [[where, 4]]
    assert counted["outfall.skipped_rows"] == [[where, 4]]
    assert counted["outfall.restarts"] == [[where, 1]]
    phases = counted["outfall.phase_seconds"]
    assert [attributes["phase"] for attributes, _ in phases] == ["tasks", "commit"]
    assert all(0 < seconds < 60 for _, seconds in phases)
    assert counted.keys() <= {counter.name for counter in (*STEP_COUNTERS, PHASE_SECONDS, SINK_COUNTER)}


@pytest.mark.thorough
def test_without_opentelemetry_nothing_of_it_is_imported(tmp_path: Path) -> None:
    absent = "import sys, json; from contextlib import closing; sys.modules['opentelemetry'] = None\n"
    say = "\nwrite(0)\nprint(json.dumps([name for name in sys.modules if name.startswith('opentelemetry')]))"
    assert run(absent + WRITE + say, tmp_path) == ["opentelemetry"]

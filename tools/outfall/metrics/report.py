"""The report of a recovery location: one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape

from outfall.metrics.advice import Trouble, troubles
from outfall.metrics.in_words import moment, state_in_words, state_word, tables_in_words
from outfall.metrics.location_status import LocationStatus, NamedStep, named_steps, problems
from outfall.metrics.step_status import StepStatus
from outfall.recovery.history import epoch_plots, epoch_table, rows_per_second, written_epochs
from outfall.recovery.plots import compact
from outfall.redaction import without_credentials
from outfall.version import outfall_version

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f8; --card: #fff; --ink: #1d2126; --soft: #5c6670; --line: #dde1e5;
  --ok: #1f7a3d; --busy: #1f6391; --warning: #8a5a00; --failed: #b3261e; --bar-1: #3d7fb8; --bar-2: #c9741a }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1d2125; --ink: #e4e7ea; --soft: #9aa4ae;
  --line: #333a41; --ok: #6cc389; --busy: #7ab8e6; --warning: #e0b054; --failed: #ff8a80; --bar-1: #5d9fd6;
  --bar-2: #d98f3e } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  overflow-wrap: anywhere }
main { max-width: 1200px; margin: 0 auto; padding: 24px 16px 48px }
h1 { font-size: 22px; margin: 0 }
h2 { font-size: 19px; margin: 40px 0 4px; padding-top: 20px; border-top: 1px solid var(--line) }
h3 { font-size: 15px; margin: 28px 0 8px }
p { margin: 4px 0; max-width: 75ch }
.soft, small { color: var(--soft) }
.badge { font-size: 13px; font-weight: 600; border: 1px solid; border-radius: 10px; padding: 1px 10px; margin-left: 8px;
  white-space: nowrap; vertical-align: 2px }
.ok { color: var(--ok) } .busy { color: var(--busy) }
.warning { color: var(--warning) } .failed { color: var(--failed) }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px 16px;
  margin: 16px 0 0; padding: 0; list-style: none; max-width: 820px }
.numbers b { display: block; font-size: 24px; line-height: 1.2; font-weight: 600 }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px }
.trouble { border-left: 4px solid; margin: 8px 0 } .trouble p { color: var(--ink); max-width: 100ch }
.trouble .what { font-weight: 600 }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); gap: 16px }
figcaption { font-weight: 600; margin-bottom: 6px } figcaption small { font-weight: 400; margin-left: 6px }
.wide { overflow: auto; max-height: 420px; width: fit-content; max-width: 100%; padding: 0 8px 8px }
table { font-size: 14px } th, td { padding: 2px 8px }
th { color: var(--soft); font-weight: 600; position: sticky; top: 0; background: var(--card) }
thead tr { height: 36px } tbody tr { border-top: 1px solid var(--line) }
nav { display: flex; flex-wrap: wrap; gap: 6px 24px; margin-top: 16px } a { color: inherit }
summary { cursor: pointer; color: var(--soft); margin-top: 20px }
dl { display: grid; grid-template-columns: minmax(80px, max-content) 1fr; gap: 2px 16px; margin: 8px 0 }
dt { color: var(--soft) } dd { margin: 0 }
"""


def report_page(found: LocationStatus, now: datetime) -> str:
    """Return the page: state, problems, advice and plots of the last epochs for each step.

    Texts from logs are escaped and credentials are masked. The page has no script and loads nothing. `now` is the time
    of reading, UTC.
    """
    steps = list(named_steps(found))
    sections = [_section(number, step, now) for number, step in enumerate(steps)]
    missing = [f'<p class="card trouble failed">{_text(problem)}</p>' for _, problem in problems(found)]
    place = _text(found.recovery)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Outfall: {place}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{place}</h1><p class="soft">Report of {moment(now)}, outfall {_text(outfall_version())}</p>'
        f"{_overview(steps)}{''.join(missing)}{''.join(sections)}"
        "</main></body></html>\n"
    )


def _overview(steps: Sequence[NamedStep]) -> str:
    if len(steps) < 2:
        return ""
    links = "".join(
        f'<span><a href="#step-{number}">{_text(step.name)}</a>{_badge(step.status)}</span>'
        for number, step in enumerate(steps)
    )
    return f"<nav>{links}</nav>"


def _badge(step: StepStatus) -> str:
    word, severity = state_word(step)
    return f' <span class="badge {severity}">{word}</span>'


def _section(number: int, named: NamedStep, now: datetime) -> str:
    step = named.status
    plots = "".join(f'<div class="card">{plot}</div>' for plot in epoch_plots(step.epochs)) if step.epochs else ""
    table = f'<h3>Epochs</h3><div class="card wide">{epoch_table(step.epochs)}</div>' if step.epochs else ""
    return (
        f'<section><h2 id="step-{number}">{_text(named.name)}{_badge(step)}</h2>'
        f"<p>{_text(_sentence(step, now))}</p>"
        f"{_numbers(step)}{_troubles(troubles(step, named.location, now), len(step.epochs))}"
        + (f'<h3>Last {len(written_epochs(step.epochs))} epochs</h3><div class="plots">{plots}</div>' if plots else "")
        + f"{table}{_facts(step)}</section>"
    )


def _sentence(step: StepStatus, now: datetime) -> str:
    said = state_in_words(step, now)
    where = f" Writes to {step.target}." if step.target else ""
    return f"{said[:1].upper()}{said[1:]}.{where}"


def _numbers(step: StepStatus) -> str:
    """Return the most important numbers."""
    written = written_epochs(step.epochs)
    if not written:
        return ""
    last = written[-1]
    shown = [
        (compact(rows_per_second(last)), "rows/s, last epoch"),
        (f"{last.seconds:.1f} s", "duration, last epoch"),
        (compact(step.totals.get("rows", sum(epoch.rows for epoch in written))), "rows in total"),
    ]
    if step.buffered_rows:
        shown.append((compact(step.buffered_rows), "rows buffered"))
    if dead_letters := step.totals.get("dead_letters", 0):
        shown.append((compact(dead_letters), "dead letters"))
    if step.dropped_rows:
        shown.append((compact(step.dropped_rows), "rows dropped"))
    items = "".join(f'<li><b>{_text(number)}</b><span class="soft">{label}</span></li>' for number, label in shown)
    return f'<ul class="numbers">{items}</ul>'


def _troubles(found: list[Trouble], epochs: int) -> str:
    if not found:
        return f'<h3>Problems</h3><p class="soft">None in the last {epochs} epochs.</p>'
    cards = "".join(
        f'<div class="card trouble {trouble.severity}"><p class="what">{_text(trouble.what)}</p>'
        f"<p>{_text(trouble.do)}</p></div>"
        for trouble in found
    )
    return f"<h3>Problems and advice</h3>{cards}"


def _facts(step: StepStatus) -> str:
    driver = f"{step.driver}, outfall {step.outfall}" if step.driver else None
    facts = {
        "sink": step.sink,
        "target": step.target,
        **{f"target of {name}": target for name, target in step.children.items()},
        "tables": tables_in_words(step),
        "guarantee": step.guarantee,
        "incarnation": step.incarnation,
        "generation": str(step.generation) if step.generation else None,
        "driver": driver,
        "query": step.query_id,
        "states": str(step.states) if step.states else None,
    }
    items = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items() if value)
    return f"<details><summary>Details</summary><dl>{items}</dl></details>" if items else ""


def _text(value: str) -> str:
    return escape(without_credentials(value))

"""`outfall doctor`: checks a sink's options, log, target and connection.

Leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import click

from outfall.capabilities import SupportsTarget
from outfall.capability_checks import ResolvedSink, resolve
from outfall.cli.commands.arguments import ChosenSink, json_option, recovery_location, sink_options, step_id
from outfall.cli.commands.output import print_json, say
from outfall.errors import ConfigurationError, TransientError
from outfall.protocol.clock import SystemClock
from outfall.protocol.journal import Journal, JournalView
from outfall.protocol.states import load_states
from outfall.protocol.target import target_context
from outfall.protocol.validation import check_identity
from outfall.recovery.log import RecoveryConfig
from outfall.redaction import without_credentials
from outfall.source_options import BATCH_ADVICE, check_for_options

Result = Literal["ok", "note", "failed", "not checked"]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    about: str
    result: Result
    text: str


class Examination:
    """Checks one sink, and continues after a failed check where possible. Leaves nothing behind.

    `make_sink` raises if the sink's options are invalid. With `recovery`, the location of the step's log, the target is
    compared with the log, else checked as on the first run.
    """

    def __init__(self, make_sink: Callable[[], Any], recovery: RecoveryConfig | None, step_id: str = "sink") -> None:
        self._make_sink = make_sink
        self._recovery = recovery
        self._step_id = step_id
        self._away = False
        """Whether a check failed with a transient error."""
        self._failed = False
        """Whether any check failed."""

    def run(self) -> Iterator[Finding]:
        """Run the checks, and yield each finding at once."""
        made: list[ResolvedSink] = []

        def make() -> list[Finding]:
            made.append(resolve(self._make_sink()))
            return [_ok("options", "valid")]

        yield from self._tried("options", make)
        if not made:
            return
        sink = made[0]
        # For example, the file of a secret is read here.
        yield from self._tried("sink", lambda: _described(sink))
        if self._failed:
            return
        # The target check waits for the destination like a starting query. Without a connection, it is skipped.
        yield from self._tried("connection", lambda: self._connect(sink))
        yield from self._tried("target", lambda: self._look_at_target(sink))

    def _look_at_target(self, sink: ResolvedSink) -> list[Finding]:
        view, states, findings = self._read_log(sink)
        if not sink.owns_target():
            return [*findings, Finding("target", "not checked", f"{sink.name} has no target check")]
        if view.unfinished is not None:
            text = f"epoch {view.unfinished.epoch} is recorded but not published; the next start publishes it first"
            return [*findings, Finding("target", "not checked", text)]
        if self._away:
            return [*findings, Finding("target", "not checked", "the server does not respond")]
        sink.sink.check_target(target_context(self._step_id, view, states, view.open_epoch))
        if view.begin is not None:
            return [*findings, _ok("target", "matches the log")]
        if self._failed:
            return [*findings, Finding("target", "not checked", "an earlier check failed")]
        return [*findings, _ok("target", "ready for the first epoch")]

    def _read_log(self, sink: ResolvedSink) -> tuple[JournalView, dict[str, Any], list[Finding]]:
        if self._recovery is None:
            return JournalView(), {}, []
        with closing(self._recovery.open(self._step_id)) as log:
            view = Journal(log, self._step_id, SystemClock()).read()
            check_identity(self._step_id, sink, view, None)
            states = load_states(sink, view.states, log) if sink.fixed else {}
        if view.begin is None:
            last = "no records yet"
        else:
            last = "no epoch is completed" if view.completed is None else f"last completed epoch {view.completed}"
        return view, states, [_ok("recovery", f"{self._recovery.url()}, step {self._step_id}: {last}")]

    def _connect(self, sink: ResolvedSink) -> list[Finding]:
        found = sink.sink.check_connection() if SupportsTarget in sink.capabilities else ()
        if not found:
            return [Finding("connection", "not checked", f"{sink.name} has no connection check")]
        return [_ok("connection", line) for line in found]

    def _tried(self, about: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
        try:
            yield from look()
        except Exception as error:
            self._failed = True
            self._away = self._away or isinstance(error, TransientError)
            text = "; ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])
            yield Finding(about, "failed", without_credentials(text))


def _described(sink: ResolvedSink) -> Iterator[Finding]:
    target = sink.target()
    yield _ok("sink", sink.kind() + ("" if target is None else f", target {without_credentials(target)}"))
    yield _ok("guarantee", sink.guarantee().name)
    for requirement in sink.requirements():
        yield Finding("requires", "note", requirement)
    try:
        check_for_options(sink.sink, sink.name)
    except ConfigurationError:
        yield Finding("apis", "note", 'Python API only (write_stream), not format("outfall")')
    else:
        yield Finding("batches", "note", BATCH_ADVICE)


def _ok(about: str, text: str) -> Finding:
    return Finding(about, "ok", text)


@click.command()
@sink_options
@click.option(
    "--recovery",
    type=recovery_location,
    metavar="RECOVERY",
    help="Compare the target with the log at this location.",
)
@click.option("--step", type=step_id, metavar="STEP", default="sink", show_default=True, help="Step in that log.")
@json_option
def doctor(chosen: ChosenSink, recovery: RecoveryConfig | None, step: str, as_json: bool) -> None:
    """Check a sink's options, target and connection. Leaves nothing behind.

    The command uses the permissions and the network of this host. Executors may have others. The exit code is 1 if a
    check fails.
    """
    findings: list[Finding] = []
    for finding in Examination(chosen.make, recovery, step).run():
        findings.append(finding)
        if not as_json:
            say(f"{finding.result:<12} {finding.about:<12} {finding.text}")
    if as_json:
        print_json(findings)
    if any(finding.result == "failed" for finding in findings):
        raise click.exceptions.Exit(1)

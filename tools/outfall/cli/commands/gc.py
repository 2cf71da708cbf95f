"""`outfall gc`: finds and removes data of failed attempts in the target of a step.

A clean-up removes only data that has the incarnation of the step, a generation below a bound, and no record. The log
guarantees two bounds:

- **The newest generation in the log.** The driver that wrote this BEGIN had resolved all earlier epochs. Only states
  refer to older data, and writers of older generations are fenced. This holds while a query runs, because its data has
  the newest generation or a later one.
- **A new generation**, after a takeover like that of a starting query: resolve recorded epochs, append BEGIN. A running
  query is fenced and fails, so this is only for stopped queries. Data of their last attempts is below the new
  generation.

Data that a recorded state refers to is always kept. While an epoch is recorded but not completed, data that the
previous states refer to is kept too, because the epoch is published from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import click

from outfall.capabilities import CleanUpContext
from outfall.capability_checks import resolve
from outfall.cli.commands.arguments import (
    ChosenSink,
    chosen_step,
    default_step_argument,
    json_option,
    nothing_recorded,
    recovery_argument,
    sink_options,
)
from outfall.cli.commands.output import print_json, say
from outfall.errors import CapabilityError
from outfall.protocol.clock import SystemClock
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.heartbeat import remove_stale
from outfall.protocol.journal import Journal, JournalView
from outfall.protocol.step import EpochOptions
from outfall.protocol.target import clean_up_context
from outfall.protocol.validation import check_identity
from outfall.recovery.log import RecoveryConfig, RecoveryLog
from outfall.redaction import without_credentials


@dataclass(frozen=True)
class Leftovers:
    """The data that a clean-up would remove."""

    generation: int
    """The first generation that is kept."""
    names: Sequence[str]
    recorded: int | None = None
    """An epoch that is recorded but not published. A takeover publishes it first. `names` has no data of its
    generation."""


class LeftoverCleaner:
    """Finds or removes the leftovers of one step. The sink has the options of the step's query.

    Raises `CapabilityError` if the sink never leaves data that needs a clean-up.
    """

    def __init__(self, sink: Any, recovery: RecoveryConfig, step_id: str) -> None:
        resolved = resolve(sink)
        if not any(each.owns_target() for each in resolved.children().values() or [resolved]):
            raise CapabilityError(
                f"failed attempts of {resolved.name} leave no data in the target",
                step=step_id,
                do="do not run gc for this sink",
            )
        self._sink = sink
        self._resolved = resolved
        self._recovery = recovery
        self._step_id = step_id

    def find(self, *, take_over: bool = False) -> Leftovers:
        """Return the data that `clean_up` would remove. Changes neither the target nor the log.

        Raises `CapabilityError` if the sink cannot list leftovers, and `ConfigurationError`, `ForeignRecordsError` and
        `FencedError` as `clean_up` does.
        """
        with self._read() as (view, log):
            recorded = view.unfinished.epoch if take_over and view.unfinished is not None else None
            generation = view.last + 1 if take_over and recorded is None else view.generation
            names = self._sink.find_leftovers(self._context(view, log, generation))
        if names is None:
            raise CapabilityError(
                f"{type(self._sink).__name__} has no find_leftovers(), so its leftovers cannot be listed",
                step=self._step_id,
                do="run gc with --yes; it removes the same data as the query's own clean-up",
            )
        return Leftovers(generation, names, recorded)

    def clean_up(self, *, take_over: bool = False, commit: CommitPolicy | None = None) -> int:
        """Remove the leftovers, and return the number of removed items.

        If the sink cannot list leftovers, items that the takeover itself cleaned up are not counted. `take_over`
        appends a new generation, which fences a running query; `commit` is the policy for publishing recorded epochs
        then.

        Raises `ConfigurationError` if nothing is recorded for this step, `ForeignRecordsError` if the log belongs to
        another sink or target, `FencedError` if the step was moved or another driver took it over, and `OutfallError`
        if a takeover failed (see `EpochCoordinator.begin`) or the target failed.
        """
        if not take_over:
            with self._read() as (view, log):
                removed: int = self._sink.clean_up(self._context(view, log, view.generation))
                remove_stale(log, now=datetime.now(UTC))
                return removed
        self._check()
        listed = 0
        with suppress(CapabilityError):
            listed = len(self.find(take_over=True).names)
        options = EpochOptions(commit=commit or CommitPolicy())
        with closing(EpochCoordinator(self._sink, self._step_id, self._recovery, options=options)) as coordinator:
            generation = coordinator.begin(None).generation
        with self._read() as (view, log):
            removed = self._sink.clean_up(self._context(view, log, generation))
            remove_stale(log, now=datetime.now(UTC))
            return max(listed, removed)

    def _check(self) -> None:
        """Reject a step without records, or of another sink."""
        with self._read():
            pass

    @contextmanager
    def _read(self) -> Iterator[tuple[JournalView, RecoveryLog]]:
        """Open the log and read it."""
        with closing(self._recovery.open(self._step_id)) as log:
            view = Journal(log, self._step_id, SystemClock()).read()
            if view.incarnation is None:
                raise nothing_recorded(self._recovery, self._step_id)
            check_identity(self._step_id, self._resolved, view, None)
            yield view, log

    def _context(self, view: JournalView, log: RecoveryLog, generation: int) -> CleanUpContext:
        # An unpublished epoch is published from data that the previous states refer to. Its own states refer to them
        # and to data of its generation.
        before = view if view.unfinished is None else view.before or view
        return clean_up_context(
            self._resolved,
            self._step_id,
            replace(
                view,
                generation=generation,
                states={**view.states, **before.states},
                writer_states=[*before.writer_states, *(view.writer_states if before is not view else ())],
            ),
            log,
            lost=None,
        )


@click.command()
@recovery_argument
@default_step_argument
@sink_options
@click.option("--yes", is_flag=True, help="Remove the leftovers. Without it, they are only listed.")
@click.option(
    "--take-over", is_flag=True,
    help="Include leftovers of the last driver, for a stopped query. A running query is fenced and fails. Recorded"
    " epochs are published first.",
)  # fmt: skip
@json_option
def gc(
    recovery: RecoveryConfig, step: str | None, chosen: ChosenSink, yes: bool, take_over: bool, as_json: bool
) -> None:
    """List, and with --yes remove, data of failed attempts in the target: uploads, staged rows, files.

    Only data with this step's incarnation and a generation older than the newest in its log is affected. Therefore the
    command is safe while the query runs, except with --take-over. The query cleans up after each epoch by itself. Use
    gc if the query will not run again, or if a clean-up failed. STEP defaults to "sink", or to the only step if that
    has another name.
    """
    cleaner = LeftoverCleaner(chosen.make(), recovery, chosen_step(recovery, step))
    if yes:
        removed = cleaner.clean_up(take_over=take_over, commit=chosen.commit_policy())
        if as_json:
            print_json({"removed": removed})
        else:
            say(f"{removed} removed")
        return
    found = cleaner.find(take_over=take_over)
    names = [without_credentials(name) for name in found.names]
    if as_json:
        print_json({"leftovers": names, "generation": found.generation, "recorded": found.recorded})
        return
    for name in names:
        say(name)
    if found.recorded is not None:
        say(f"epoch {found.recorded} is recorded and would be published first; its leftovers are not listed", err=True)
    say(f"{len(names)} found" + ("; nothing was removed; add --yes to remove them" if names else ""), err=True)

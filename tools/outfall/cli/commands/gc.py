"""`outfall gc`: finds and removes what lost attempts of a step left in its target.

A clean-up touches only what has the incarnation of the step, a generation below a bound, and no record. There
are two bounds that the log vouches for:

- **The newest generation in the log.** Who wrote that BEGIN had settled everything before it, so nothing older stands
  in a record but in the states, and whoever still writes under an older one is fenced. This holds while a query runs:
  what it writes carries the newest generation or one that is yet to come.
- **A generation of our own**, after taking the step over as a starting query does: settle what is recorded, append
  BEGIN. A query that runs meanwhile is fenced and stops, so this is for one that does not. What its last attempts left
  is below the new generation.

What a recorded state names is spared under both. While an epoch is recorded and not completed, so is what the states
before it name: the epoch is published from that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import click

from outfall.capabilities import CleanUpContext
from outfall.capability_checks import children_of, owns_target
from outfall.cli.commands.arguments import (
    ChosenSink,
    json_option,
    nothing_recorded,
    recovery_argument,
    sink_options,
    step_argument,
)
from outfall.cli.commands.output import print_json
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
    """What a clean-up would remove."""

    generation: int
    """The first one that is spared."""
    names: Sequence[str]
    recorded: int | None = None
    """An epoch that is recorded and not published, which a takeover publishes first; its data is not among `names`, nor
    is what else carries its generation."""


class LeftoverCleaner:
    """Looks for, or removes, the leftovers of one step.

    Args:
        sink: the step's sink, with the options of its query.
        recovery: where the step's log is.
        step_id: the step's id.

    Raises:
        CapabilityError: the sink leaves nothing that could be cleaned up.
    """

    def __init__(self, sink: Any, recovery: RecoveryConfig, step_id: str) -> None:
        if not any(owns_target(each) for each in children_of(sink).values() or [sink]):
            raise CapabilityError(
                f"{type(sink).__name__} stages nothing that lost attempts could leave",
                step=step_id,
                do="leave gc out",
            )
        self._sink = sink
        self._recovery = recovery
        self._step_id = step_id

    def find(self, *, take_over: bool = False) -> Leftovers:
        """Return what `clean_up` would remove. Changes nothing, in the target or in the log.

        Args:
            take_over: as for `clean_up`.

        Raises:
            CapabilityError: the sink cannot tell it beforehand.
            ConfigurationError, ForeignRecordsError, FencedError: as for `clean_up`.
        """
        with self._read() as (view, log):
            recorded = view.unfinished.epoch if take_over and view.unfinished is not None else None
            generation = view.last + 1 if take_over and recorded is None else view.generation
            names = self._sink.find_leftovers(self._context(view, log, generation))
        if names is None:
            raise CapabilityError(
                f"{type(self._sink).__name__} has no find_leftovers(): it cannot tell what a clean-up would remove",
                step=self._step_id,
                do="run gc with --yes; it removes what the query itself would",
            )
        return Leftovers(generation, names, recorded)

    def clean_up(self, *, take_over: bool = False, commit: CommitPolicy | None = None) -> int:
        """Remove the leftovers.

        Args:
            take_over: whether to go up to a new generation, under which a query that runs is fenced.
            commit: how publishing what is recorded is tried, when taking over.

        Returns:
            How many things the sink removed. Where it cannot tell beforehand, what the takeover cleaned up, as each
            BEGIN after a lost attempt does, is not among them.

        Raises:
            ConfigurationError: nothing is recorded of this step.
            ForeignRecordsError: the log is of another sink or target.
            FencedError: the step was moved, or somebody else took it over.
            OutfallError: see `EpochCoordinator.begin` for a takeover; else what the target said.
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
        """Refuse a step that is not recorded, or that is another's."""
        with self._read():
            pass

    @contextmanager
    def _read(self) -> Iterator[tuple[JournalView, RecoveryLog]]:
        """Open the log and read it."""
        with closing(self._recovery.open(self._step_id)) as log:
            view = Journal(log, self._step_id, SystemClock()).read()
            if view.incarnation is None:
                raise nothing_recorded(self._recovery, self._step_id)
            check_identity(self._step_id, self._sink, view, None)
            yield view, log

    def _context(self, view: JournalView, log: RecoveryLog, generation: int) -> CleanUpContext:
        # What was there before an epoch that is to be published is published from the names in the states before it;
        # what its own states name beside them carries its generation.
        before = view if view.unfinished is None else view.before or view
        return clean_up_context(
            self._sink,
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
@step_argument
@sink_options
@click.option("--yes", is_flag=True, help="Remove them. Without it they are only listed.")
@click.option(
    "--take-over", is_flag=True,
    help="Also what the last driver's attempts left, for a query that does not run: one that does is fenced and fails."
    " What is recorded is published first.",
)  # fmt: skip
@json_option
def gc(recovery: RecoveryConfig, step: str, chosen: ChosenSink, yes: bool, take_over: bool, as_json: bool) -> None:
    """Find, and with --yes remove, what lost attempts of a step left in its target: uploads, staging, files.

    Safe while the query runs, unless --take-over is given: only what carries this step's incarnation and an older
    generation than the newest in its log. The query does the same after each epoch; this is for what is left when it
    will not run again, or when cleaning up failed.
    """
    cleaner = LeftoverCleaner(chosen.make(), recovery, step)
    if yes:
        removed = cleaner.clean_up(take_over=take_over, commit=chosen.commit_policy())
        if as_json:
            print_json({"removed": removed})
        else:
            click.echo(f"{removed} removed")
        return
    found = cleaner.find(take_over=take_over)
    names = [without_credentials(name) for name in found.names]
    if as_json:
        print_json({"leftovers": names, "generation": found.generation, "recorded": found.recorded})
        return
    for name in names:
        click.echo(name)
    if found.recorded is not None:
        click.echo(f"epoch {found.recorded} is recorded and would be published; what it leaves is not listed", err=True)
    click.echo(f"{len(names)} found" + (", nothing was removed: give --yes" if names else ""), err=True)

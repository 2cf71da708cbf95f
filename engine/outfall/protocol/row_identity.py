"""Compares what identifies a row with the log: key, order and marker of deletes, and whether rows are written by key.

Rows of one key meet in the target only if all of them were written under one identity. The log has that of the newest
BEGIN; logs of earlier releases have none, which is not compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from outfall.capabilities import RowIdentity
from outfall.capability_checks import ResolvedSink
from outfall.errors import ForeignRecordsError
from outfall.protocol.journal import JournalView

_log = logging.getLogger(__name__)


class _Change(NamedTuple):
    """A difference between two identities."""

    harmful: bool
    """Whether rows that are written from now on cannot be compared with earlier ones."""
    text: str
    refused: bool = False


def check_row_identity(step_id: str, sink: ResolvedSink, view: JournalView, *, otherwise: str | None = None) -> None:
    """Reject another identity than recorded, if rows have the recorded one, with `ForeignRecordsError`.

    `otherwise` is what to do if the earlier options are not restored, unless the step is that of a query or job.

    A change after which new rows can be compared with those in the target is logged. So is any change before the first
    epoch is recorded, since the options may have been the reason why that epoch has failed.
    """
    # Not the BEGIN of an attempt that recorded nothing, whose options may be taken back.
    if (begin := view.recorded_begin or view.begin) is None:
        return
    now = {"": sink} | sink.children()
    recorded = {"": begin.row_identity} | {name: child.row_identity for name, child in begin.children.items()}
    changes = [
        _Change(
            change.harmful,
            f"{name}: {change.text}" if name else change.text,
            refused=change.harmful and _has_rows(now[name], view),
        )
        for name, was in recorded.items()
        if was is not None and name in now
        for change in _changes(was, now[name].row_identity())
    ]
    refused = [change.text for change in changes if change.refused]
    if refused:
        drained = " and deliver its buffered rows with outfall drain" if view.buffered.rows else ""
        raise ForeignRecordsError(
            f"{sink.name} would write rows under another identity than recorded: {'; '.join(refused)}",
            step=step_id,
            why="rows of one key would not meet in the target, which has rows under the recorded one",
            do="restore the earlier options; or, "
            + (
                otherwise
                or "to go on with the new ones, run the query once more with the earlier ones and"
                f" trigger(availableNow=True){drained}, and then start it with another step_id, a stream also with"
                ' adopt_checkpoint=True, and sinks that have the option with on_existing="resume"'
            ),
        )
    for change in changes:
        remains = "; rows that a failed attempt has published remain" if change.harmful else ""
        _log.warning("step %s: from now on, rows have another identity: %s%s", step_id, change.text, remains)


def _has_rows(sink: ResolvedSink, view: JournalView) -> bool:
    """Return whether rows may be visible, or become so, under the recorded identity."""
    if view.completed is not None or view.committing:
        return True
    return view.unfinished is not None and not sink.applies_key_at_commit()


def _changes(was: RowIdentity, now: RowIdentity | None) -> Iterator[_Change]:
    if now is None or now.mode != was.mode:
        yield _Change(True, f"the mode was {was.mode}, and is {'append' if now is None else now.mode}")
        return
    if now.columns != was.columns:
        yield _Change(True, f"the key was {', '.join(was.columns)}, and is {', '.join(now.columns)}")
    if gone := sorted({*was.tables} - {*now.tables}):
        yield _Change(True, f"the keys of tables were {'; '.join(gone[:3])}, and are other ones")
    if now.order != was.order:
        # A first order compares with the values that the target has; a new one would not reject what the old one did.
        yield _Change(was.order is not None, f"the order was by {_name(was.order)}, and is by {_name(now.order)}")
    if now.delete_marker != was.delete_marker:
        # Without a marker, rows that delete would be stored.
        were, are = _name(was.delete_marker), _name(now.delete_marker)
        yield _Change(now.delete_marker is None, f"deletes were marked by {were}, and are by {are}")


def _name(column: str | None) -> str:
    return "no column" if column is None else column

"""Copies a step's recovery data from one store to another, so that its query goes on there.

```
check    the target holds nothing, or what a copy that failed has left; it can be written, and is not the source
MOVED    the source's last entry: whoever goes on from the source is fenced, a query that runs included
copy     states, then entries under their own numbers: all at once, or the newest first, so that whoever reads a torn
         copy refuses it
verify   everything read back and compared
```
A crash after MOVED leaves a step that goes on nowhere until the same copy is made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from outfall.errors import ConfigurationError, RecordError, TransientError
from outfall.recovery.entries import Begin, Completed, Entry, Moved, Prepared, StoredValue, decode_entry, encode_entry
from outfall.recovery.log import EntryExistsError, LogEntry, RecoveryConfig, RecoveryLog
from outfall.recovery.url import recovery_config
from outfall.trace_points import reached

_ATTEMPTS = 20


@dataclass(frozen=True)
class CopiedStep:
    """What was copied, and found the same when it was read back."""

    entries: int
    states: int
    """Large ones, beside the log."""
    bytes: int


def copy_step(source: str | RecoveryConfig, target: str | RecoveryConfig, step_id: str = "sink") -> CopiedStep:
    """Copy a step's recovery data to another store, and let it go on only there.

    Stop the query first: one that runs is fenced and fails. Then start it with `recovery=` of the target; its sink, its
    checkpoint and its batch ids stay. A copy that failed is made again with the same arguments.

    Args:
        source: where the step's recovery data is.
        target: where it shall be.
        step_id: the step's id.

    Returns:
        What was copied.

    Raises:
        ConfigurationError: there is nothing to copy, the target holds something else, or both are the same.
        RecordError: the source is damaged, or what was read back differs.
        TransientError: a store failed.
    """
    there, here = recovery_config(source), recovery_config(target)
    if there.url() == here.url():
        raise ConfigurationError(f"source and target are both {here.url()}", step=step_id, do="name two stores")
    with closing(there.open(step_id)) as old, closing(here.open(step_id)) as new:
        _check_target(new, old.read(), here.url(), step_id)
        _try_target(old, new, f"{there.url()} and {here.url()}", step_id)
        entries = _moved(old, step_id, here.url())
        _check_target(new, entries, here.url(), step_id)
        states = _large_states(old, entries, step_id)
        new.restore(entries, states)
        reached("copy: restored")
        _verify(new, entries, states, step_id)
        size = sum(len(entry.data) for entry in entries) + sum(map(len, states.values()))
        return CopiedStep(len(entries), len(states), size)


def _check_target(log: RecoveryLog, entries: Sequence[LogEntry], url: str, step_id: str) -> None:
    if not entries:
        raise ConfigurationError("there is no recovery data to copy", step=step_id, do="name the store that has it")
    known = {entry.number: entry.data for entry in entries}
    strange = [entry.number for entry in log.read() if known.get(entry.number) != entry.data]
    if strange:
        raise ConfigurationError(
            f"{url} already holds recovery data of this step, with other entries: {strange[:5]}",
            step=step_id,
            why="a copy over it would mix two logs",
            do="remove it if it is of no use, or name another target",
        )


def _try_target(old: RecoveryLog, new: RecoveryLog, names: str, step_id: str) -> None:
    """Write to the target before MOVED is, which would close the log for good where both names mean one store."""
    probe = new.write_state("copy", b"", generation=0)
    try:
        old.read_state(probe)
    except RecordError:
        return
    new.clean_up(keep=[], states=[], generation=1)
    raise ConfigurationError(
        f"{names} are one store", step=step_id, why="what is written to one is in the other", do="name two stores"
    )


def _moved(log: RecoveryLog, step_id: str, url: str) -> list[LogEntry]:
    """The entries before MOVED, which is appended if it is not there."""
    for _ in range(_ATTEMPTS):
        found = log.read()
        newest = decode_entry(found[-1], step_id)
        if isinstance(newest, Moved):
            if newest.to != url:
                raise ConfigurationError(
                    f"this step was moved to {newest.to} already", step=step_id, do="copy it from there"
                )
            return found[:-1]
        moved = Moved(step=step_id, incarnation=newest.incarnation, to=url)
        try:
            log.append(encode_entry(moved), after=found[-1].number)
        except EntryExistsError:
            continue
        reached("copy: MOVED")
    raise TransientError("the source changes while it is copied", step=step_id, do="stop the query and copy again")


def _large_states(log: RecoveryLog, entries: Sequence[LogEntry], step_id: str) -> dict[str, bytes]:
    """The content of all states beside the log that still count; entries of older epochs may name some that do not."""
    decoded = [(raw.number, decode_entry(raw, step_id)) for raw in entries]
    needed_from = max((entry.generation for _, entry in decoded if isinstance(entry, Completed)), default=0)
    found: dict[str, bytes] = {}
    for number, entry in decoded:
        for value in _values(entry):
            if value.blob is None or value.blob.name in found:
                continue
            try:
                found[value.blob.name] = log.read_state(value.blob.name)
            except RecordError:
                if number >= needed_from:
                    raise
    return found


def _values(entry: Entry) -> Iterator[StoredValue]:
    if isinstance(entry, Begin):
        yield from entry.bases.values()
    if isinstance(entry, Prepared):
        yield from entry.states.values()
        yield from (committable.value for committable in entry.committables)
    if isinstance(entry, Begin | Prepared):
        yield from entry.writer_states


def _verify(log: RecoveryLog, entries: Sequence[LogEntry], states: Mapping[str, bytes], step_id: str) -> None:
    found = {entry.number: entry.data for entry in log.read()}
    wrong = [entry.number for entry in entries if found.get(entry.number) != entry.data]
    lost = [name for name, data in states.items() if log.read_state(name) != data]
    if wrong or lost or len(found) != len(entries):
        raise RecordError(
            f"the copy is not what was copied: entries {wrong[:5]}, states {lost[:5]} differ",
            step=step_id,
            do="remove the target's data of this step and copy again",
        )

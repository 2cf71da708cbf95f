"""Copies a step's recovery data from one store to another, where its query then continues.

```
check    the target is empty or has the data of a failed copy; it is writable, and is not the source
MOVED    the last entry of the source: a driver that continues from the source is fenced, also in a running query
copy     states, then entries with their numbers: all at once, or the newest first, so that readers reject an
         incomplete copy
verify   all data is read back and compared
```
After a crash after MOVED, the step cannot continue anywhere until the same copy is repeated.
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
    """The extent of a verified copy."""

    entries: int
    states: int
    """The number of large states next to the log."""
    bytes: int


def copy_step(source: str | RecoveryConfig, target: str | RecoveryConfig, step_id: str = "sink") -> CopiedStep:
    """Copy a step's recovery data to another store, where alone it then continues.

    Stop the query first: a running query is fenced and fails. Then start it with `recovery=` of the target. Sink,
    checkpoint and batch ids do not change. Repeat a failed copy with the same arguments.

    Args:
        source: The location of the step's recovery data.
        target: The new location.
        step_id: The step id.

    Returns:
        The extent of the copy.

    Raises:
        ConfigurationError: There is nothing to copy, the target contains other data, or both are the same.
        RecordError: The source is damaged, or the data that was read back differs.
        TransientError: A store failed.
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
        raise ConfigurationError(
            "there is no recovery data to copy", step=step_id, do="name the store that contains it"
        )
    known = {entry.number: entry.data for entry in entries}
    strange = [entry.number for entry in log.read() if known.get(entry.number) != entry.data]
    if strange:
        raise ConfigurationError(
            f"{url} already contains recovery data of this step, with other entries: {strange[:5]}",
            step=step_id,
            why="a copy over it would mix two logs",
            do="remove it if it is obsolete, or name another target",
        )


def _try_target(old: RecoveryLog, new: RecoveryLog, names: str, step_id: str) -> None:
    """Write to the target before MOVED, which would close the log permanently if both names mean one store."""
    probe = new.write_state("copy", b"", generation=0)
    try:
        old.read_state(probe)
    except RecordError:
        return
    new.clean_up(keep=[], states=[], generation=1)
    raise ConfigurationError(
        f"{names} are one store", step=step_id, why="data written to one is in the other", do="name two stores"
    )


def _moved(log: RecoveryLog, step_id: str, url: str) -> list[LogEntry]:
    """Return the entries before MOVED, and append MOVED if it does not exist."""
    for _ in range(_ATTEMPTS):
        found = log.read()
        newest = decode_entry(found[-1], step_id)
        if isinstance(newest, Moved):
            if newest.to != url:
                raise ConfigurationError(
                    f"this step was already moved to {newest.to}", step=step_id, do="copy it from there"
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
    """Return all required states next to the log. Entries of older epochs may name states that no longer exist."""
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
            f"the copy differs from the source: entries {wrong[:5]}, states {lost[:5]}",
            step=step_id,
            do="remove the data of this step in the target and copy again",
        )

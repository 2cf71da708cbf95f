"""`outfall show`: the log entries of one epoch in readable form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from outfall.cli.commands.arguments import (
    chosen_step,
    default_step_argument,
    json_option,
    nothing_recorded,
    recovery_argument,
)
from outfall.cli.commands.output import print_json, say
from outfall.errors import ConfigurationError, RecordError
from outfall.recovery.entries import (
    Begin,
    Completed,
    Entry,
    Prepared,
    Skipped,
    StoredModel,
    StoredValue,
    carry_out,
    decode_entry,
)
from outfall.recovery.log import RecoveryConfig, RecoveryLog
from outfall.redaction import all_without_credentials, without_credentials
from outfall.serde import parse_json


@dataclass(frozen=True)
class EpochRecords:
    """The entries of one epoch."""

    step: str
    epoch: int
    whole: bool
    """Whether states and committables are kept; older epochs have only counts."""
    entries: list[dict[str, Any]]
    """Each has its `number` and its stored fields in order. Stored values have a version and a `value` (parsed JSON or
    a string) or `base64`. Credentials in URLs are masked."""


def read_epoch(recovery: RecoveryConfig, step: str, epoch: int | None = None) -> EpochRecords:
    """Read the records of an epoch; `None` is the newest. Writes nothing; safe while the query runs.

    The number is as in `outfall status`. Raises `ConfigurationError` if the log has no records of the epoch, with a
    list of the available epochs, and `RecordError` if an entry is damaged or has a newer format.
    """
    with closing(recovery.open_read_only(step)) as log:
        found = {raw.number: decode_entry(raw, step) for raw in log.read()}
        known = [number for entry in found.values() if (number := getattr(entry, "epoch", None)) is not None]
        if not known:
            raise nothing_recorded(recovery, step)
        wanted = known[-1] if epoch is None else epoch
        own = _of_epoch(found, wanted)
        if not own:
            raise ConfigurationError(
                f"nothing is recorded for epoch {wanted}",
                step=step,
                why=f"the log has epochs {min(known)} to {max(known)}, the last in full and the others as counts",
                do="give one of them",
            )
        shown = [{"number": number} | _readable(entry, log) for number, entry in own.items()]
    only_counts = all(isinstance(entry, Completed | Skipped) for entry in own.values())
    return EpochRecords(step, wanted, not only_counts, shown)


def _of_epoch(entries: Mapping[int, Entry], epoch: int) -> dict[int, Entry]:
    """Return the entries of an epoch and its BEGIN, which may have no epoch number."""
    own = {number: entry for number, entry in entries.items() if getattr(entry, "epoch", None) == epoch}
    began = {entry.generation for entry in own.values() if isinstance(entry, Prepared)}
    begins = {number: entries[number] for number in began if isinstance(entries.get(number), Begin)}
    return dict(sorted((begins | own).items()))


def _readable(value: Any, log: RecoveryLog) -> Any:
    if isinstance(value, StoredValue):
        return _stored(value, log)
    if isinstance(value, StoredModel):
        return {name: _readable(getattr(value, name), log) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): _readable(item, log) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_readable(item, log) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return without_credentials(value) if isinstance(value, str) else value


def _stored(stored: StoredValue, log: RecoveryLog) -> dict[str, Any]:
    shown: dict[str, Any] = {"version": stored.version}
    if stored.held is not None:
        shown["held"] = stored.held.model_dump(mode="json")
    if stored.blob is not None:
        shown["beside"] = stored.blob.model_dump()
    try:
        whole = carry_out(stored, log)
    except RecordError as error:
        return shown | {"missing": str(error)}
    if whole.text is None:
        return shown | {"base64": whole.base64}
    try:
        return shown | {"value": all_without_credentials(parse_json(whole.text))}
    except ValueError:
        return shown | {"value": without_credentials(whole.text)}


LAST = -1


def epoch_number(text: str) -> int:
    """Parse a number or `last`."""
    if text == "last":
        return LAST
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r} is neither a number nor 'last'")
    return int(text)


@click.command()
@recovery_argument
@default_step_argument
@click.argument("epoch", type=epoch_number, metavar="[EPOCH]", default="last")
@json_option
def show(recovery: RecoveryConfig, step: str | None, epoch: int, as_json: bool) -> None:
    """Show the log entries of an epoch, with states and committables as stored.

    STEP defaults to "sink", or to the only step if that has another name. EPOCH is a number as in outfall status, or
    "last", the default. The log keeps the last epoch in full and only counts of earlier epochs. Records contain no
    secrets; as a precaution, credentials in URLs are masked.
    """
    found = read_epoch(recovery, chosen_step(recovery, step), None if epoch == LAST else epoch)
    if as_json:
        print_json(found)
        return
    say(f"step {found.step}, epoch {found.epoch}")
    if not found.whole:
        say("States and committables of this epoch are no longer kept.")
    for entry in found.entries:
        say("")
        say(f"entry {entry['number']}: {str(entry['kind']).upper()}, {entry['time']}")
        for line in _lines(entry):
            say(f"  {line}")


_IN_THE_HEADING = {"number", "kind", "time", "format", "step"}


def _lines(entry: Mapping[str, Any]) -> Iterator[str]:
    for name, value in entry.items():
        if name in _IN_THE_HEADING or value in (None, "", [], {}):
            continue
        if name == "counts" or not isinstance(value, dict | list):
            yield f"{name}: {_shown(value)}"
            continue
        yield f"{name}:"
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from (f"  {key}: {_shown(item)}" for key, item in items)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value, ensure_ascii=False)

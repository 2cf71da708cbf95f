"""A log that is damaged, of another step, or newer than this version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfall.errors import RecordError
from outfall.protocol.journal import JournalView
from outfall.recovery import LogEntry
from outfall.recovery.entries import (
    FORMAT,
    Abandoned,
    Begin,
    Committing,
    Completed,
    Entry,
    Prepared,
    Skipped,
    StoredCommittable,
    StoredValue,
    decode_entry,
    encode_entry,
)
from outfall.testing import crash_at
from tests.unit.support.journals import entry_files
from tests.unit.support.setups import InPlace, Staging

ENTRIES: list[Entry] = [
    Begin(
        step="sink",
        incarnation="ab" * 8,
        epoch=None,
        outfall="0.1.0",
        sink="a.B",
        target=None,
        query_id="q",
        driver="h:1",
        bases={"p": StoredValue.of(1, b"0")},
    ),
    Prepared(
        step="sink",
        incarnation="ab" * 8,
        epoch=3,
        generation=1,
        query_id=None,
        states={"pürt": StoredValue.of(2, b"\xff\x00")},
        committables=[StoredCommittable(value=StoredValue.of(1, b"{}"), worker_index=4, part="p")],
        counts={"rows": 5},
    ),
    Committing(step="sink", incarnation="ab" * 8, epoch=3, generation=1),
    Completed(step="sink", incarnation="ab" * 8, epoch=3, generation=1, prepared=2),
    Abandoned(step="sink", incarnation="ab" * 8, epoch=3, generation=1, reason="emptied"),
    Skipped(step="sink", incarnation="ab" * 8, epoch=3, counts={"skipped": 5}),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kind)
def test_every_entry_comes_back(entry: Entry) -> None:
    assert decode_entry(LogEntry(1, encode_entry(entry)), "sink") == entry


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kind)
def test_every_entry_truncated_anywhere_is_refused(entry: Entry) -> None:
    data = encode_entry(entry)
    for length in range(len(data)):
        with pytest.raises(RecordError):
            decode_entry(LogEntry(1, data[:length]), "sink")


@given(st.binary())
def test_any_bytes_are_an_entry_or_refused(data: bytes) -> None:
    with pytest.raises(RecordError, match="recovery entry 7 "):
        decode_entry(LogEntry(7, data), "sink")


@given(st.binary(max_size=1000), st.integers(1, 9))
def test_any_bytes_are_held_in_a_record(data: bytes, version: int) -> None:
    stored = StoredValue.of(version, data)
    again = StoredValue.model_validate_json(stored.model_dump_json())
    assert (again.inline(), again.version) == (data, version)


def change(**fields: Any) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({**json.loads(data), **fields}).encode()


def without(field: str) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({key: value for key, value in json.loads(data).items() if key != field}).encode()


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", r"is damaged \(0 bytes\)"),
    "truncated": (lambda data: data[: len(data) // 2], "is damaged"),
    "zeroed": (lambda data: bytes(len(data)), "is damaged"),
    "no object": (lambda data: b"[]", "is damaged"),
    "nested deeply": (lambda data: b"[" * 200_000, r"is damaged \(200000 bytes\)"),
    "newer format": (change(format=FORMAT + 1), f"has format {FORMAT + 1}; this version reads format {FORMAT}"),
    "unknown kind": (change(kind="split"), "is damaged"),
    "format below all": (change(format=0), "has format 0"),
    "format as text": (change(format=str(FORMAT)), f"has format {FORMAT}"),
    "newer format with unknown fields": (change(format=FORMAT + 1, future=1), f"has format {FORMAT + 1}"),
    "missing field": (without("generation"), "is damaged.*generation"),
    "wrong type": (change(epoch="three"), "is damaged.*epoch"),
    "another step": (change(step="other"), "belongs to step 'other'"),
    "another incarnation": (change(incarnation="0" * 16), "Two recovery directories were mixed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_stops_the_query_and_changes_nothing(tmp_path: Path, damage: str) -> None:
    setup = InPlace(str(tmp_path))
    setup.run(setup.driver(), 0)
    newest = entry_files(tmp_path)[-1]
    newest.chmod(0o600)
    spoil, match = DAMAGES[damage]
    newest.write_bytes(spoil(newest.read_bytes()))
    spoilt, found = newest.read_bytes(), setup.found()
    with pytest.raises(RecordError, match=match) as caught:
        setup.run(setup.driver(), 1)
    assert "What to do" in str(caught.value)
    assert caught.value.step == "sink"
    assert (newest.read_bytes(), setup.found()) == (spoilt, found)


def test_records_of_two_incarnations_in_one_directory_are_refused(tmp_path: Path) -> None:
    one, two = Staging(str(tmp_path / "one")), Staging(str(tmp_path / "two"))
    for setup in (one, two):
        setup.run(setup.driver(), 0)
    two.run(two.driver(), 1)
    for file in entry_files(tmp_path / "two")[1:]:
        shutil.copy(file, tmp_path / "one" / "outfall" / "sink")
    with pytest.raises(RecordError, match="Two recovery directories were mixed"):
        one.run(one.driver(), 2)


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("lost", [-4, -3, -2])
def test_an_entry_missing_in_the_middle_is_refused(tmp_path: Path, lost: int, epochs: int) -> None:
    setup = Staging(str(tmp_path))
    driver = setup.driver()
    for epoch in range(epochs):
        setup.run(driver, epoch)
    entry_files(tmp_path)[lost].unlink()
    with pytest.raises(RecordError, match=r"recovery entry \d+ is missing"):
        setup.run(setup.driver(), epochs)


def test_entries_missing_before_anything_was_completed_are_refused(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    with crash_at("after PREPARED"):
        setup.run(setup.driver(), 0)
    entry_files(tmp_path)[0].unlink()
    with pytest.raises(RecordError, match="recovery entry 1 is missing"):
        setup.run(setup.driver(), 0)


def test_a_view_reads_on_from_an_entry() -> None:
    view = JournalView().after(1, ENTRIES[0])
    assert (view.last, view.generation, view.open_epoch) == (1, 1, None)
    view = view.after(2, ENTRIES[1])
    assert (view.unfinished, view.committing, view.completed) == (ENTRIES[1], False, None)
    view = view.after(3, ENTRIES[2])
    assert view.committing
    done = view.after(4, ENTRIES[3])
    assert (done.completed, done.unfinished, done.committing, done.prepared) == (3, None, False, 2)


def test_an_abandoned_epoch_gives_the_states_before_it_back() -> None:
    view = JournalView()
    for number, entry in enumerate([*ENTRIES[:3], ENTRIES[4]], start=1):
        view = view.after(number, entry)
    assert (view.unfinished, view.committing, view.completed, view.open_epoch) == (None, False, None, 3)
    assert set(view.states) == {"p"}
    assert view.last == 4

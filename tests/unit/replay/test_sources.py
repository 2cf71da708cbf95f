"""Letters are found as sinks have written them, and each is known by its contents."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outfall.dead_letter import DEAD_LETTER_SCHEMA, DeadLetter, dead_letter_batch
from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.replay.dead_letters import FoundDeadLetter
from outfall.replay.sources import dead_letters_at
from outfall.testing import LocalDriver, MemoryRecoveryConfig

TIME = datetime(2026, 11, 23, 1, 2, 3, 456789, UTC)
LETTERS = [
    DeadLetter('{"id": 1, "name": "a \\"b\\" \\\\ ü"}', 'it\'s, well, "bad"', "flights", 0, time=TIME),
    DeadLetter('{"id": 2}', r"C:\no quotes", "flights", 1, "writer-0", "22003", "more, or less", TIME),
    DeadLetter("plain text", "bad", "other step", None, "p", "400", time=TIME),
]


def written(place: Path | str, **options: Any) -> str:
    driver, batch = LocalDriver(FileSink(str(place), **options), MemoryRecoveryConfig()), dead_letter_batch(LETTERS)
    with closing(driver.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        tasks: list[Any] = [[(None, batch.slice(0, 2))], [(None, batch.slice(2))]]
        coordinator.finish(ticket, [driver.run_task(ticket, 0, index, rows) for index, rows in enumerate(tasks)])
    return str(place)


def read(location: str) -> list[FoundDeadLetter]:
    return list(dead_letters_at(location)())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "gzip"},
        {"compression": "zstd", "ignore_null_fields": False},
        {"format": "csv"},
        {"format": "csv", "header": True, "compression": "gzip"},
        {"format": "csv", "quote_all": True},
        {"format": "parquet"},
        {"partition_by": ["step", "part"]},
        {"directory_pattern": "'dt='yyyy-MM-dd"},
    ],
    ids=str,
)
def test_files_hold_the_letters_that_a_sink_has_written(options: dict[str, Any], tmp_path: Path) -> None:
    found = read(written(tmp_path / "letters", **options))
    assert sorted(map(str, (each.dead_letter for each in found))) == sorted(map(str, LETTERS))
    assert len({each.id for each in found}) == 3


def test_letters_are_found_in_an_object_store() -> None:
    place = written("memory://bucket/letters", format="parquet")
    assert len(read(place)) == 3
    with pytest.raises(ConfigurationError, match="memory://bucket/none does not exist"):
        read("memory://bucket/none")


def test_a_letter_is_known_by_all_that_it_says_and_not_by_where_it_lies(tmp_path: Path) -> None:
    (jsonl, parquet) = [read(written(tmp_path / kind, format=kind)) for kind in ("jsonl", "parquet")]
    assert {each.id for each in jsonl} == {each.id for each in parquet}
    changed: dict[str, Any] = {
        "row": "r",
        "reason": "x",
        "code": "c",
        "excerpt": "e",
        "step": "s",
        "epoch": 9,
        "part": "q",
    }
    changed["time"] = TIME.replace(microsecond=0)
    assert changed.keys() == set(DEAD_LETTER_SCHEMA.names)
    ids = [FoundDeadLetter(replace(LETTERS[0], **{name: value}), "").id for name, value in changed.items()]
    assert (
        len({*ids, FoundDeadLetter(LETTERS[0], "here").id, FoundDeadLetter(LETTERS[0], "there").id}) == len(changed) + 1
    )


def test_one_file_is_read_with_where_each_letter_lies_and_a_line_without_an_end_is_not_there_yet(
    tmp_path: Path,
) -> None:
    path = tmp_path / "one.jsonl"
    line = '{"row": "{}", "reason": "bad", "step": "s", "time": "2026-11-23T01:02:03Z"}\n'
    path.write_text(line + line + line[:-1])
    assert [each.place for each in read(str(path))] == [f"{path}, line {number}" for number in (1, 2)]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl", '{"id": 1}\n', "a.jsonl, line 1 is not a dead letter: it has no row, reason, step, time"),
        ("a.jsonl", "[]\n", "line 1 is not a dead letter"),
        ("a.jsonl", "{\n", "line 1 is not valid JSON"),
        ("a.csv", "a,b\n", "line 1 is not a dead letter. It has 2 fields"),
        ("a.txt", "a\n", "the format of"),
        ("a.jsonl", '{"row": "", "reason": "", "step": "", "time": "soon"}\n', "is not a dead letter"),
    ],
)
def test_what_is_no_letter_is_refused_with_its_place(name: str, content: str, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigurationError, match=why):
        read(str(tmp_path))


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("postgresql://u:hunter2@h/db?table=t", "contains a password"),
        ("postgresql://u@h/db?table=t&password=hunter2", "contains a secret: password"),
        ("postgresql://u@h/db", "The table is missing"),
        ("mysql://u:hunter2@h/db?table=t", "contains a password"),
        ("mysql://u@h/db?table=t&password=hunter2", "contains a secret: password"),
        ("mysql://u@h/db", "The table is missing"),
        ("mysql://u@h/db?table=t&tsl=off", "unknown parameter 'tsl'"),
        ("mysql://u@h/db?table=a.b.c", "'a.b.c' is not the name of a table"),
        ("kafka://k:9092/topic?sasl.password=hunter2", "secret: sasl.password"),
        ("ftp://host/letters", "letters are read from files"),
        ("/nowhere/at/all", "does not exist"),
    ],
)
def test_a_place_that_will_not_do_is_refused_and_no_secret_shown(location: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        read(location)
    assert "hunter2" not in str(refused.value)

"""Growing files that roll, as tests write and read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outfall.file.growing.part_files import file_name
from tests.unit.support.file_target import GrowingDriver, rows, visible

PART, OTHER = "part-00000.jsonl", "part-00001.jsonl"
ROW = len('{"id":1}\n')


def names(out: Path) -> list[str]:
    return [file.name for file in visible(out)]


def segment(number: int, part: str = PART) -> str:
    return file_name(part, number)


def contents(out: Path) -> dict[str, list[int]]:
    return {file.name: [json.loads(line)["id"] for line in file.read_text().splitlines()] for file in visible(out)}


def write_each(part: Any, *numbers: int) -> None:
    """Rows in batches of one, since a segment ends where a batch does."""
    for number in numbers:
        part.write_batch(rows(number))


def epoch(driver: GrowingDriver, *numbers: int, attempt: int = 0, name: str = PART) -> None:
    driver.begin()
    finish(driver, *numbers, attempt=attempt, name=name)


def finish(driver: GrowingDriver, *numbers: int, attempt: int = 0, name: str = PART) -> None:
    part = driver.part(name, attempt=attempt)
    write_each(part, *numbers)
    answers = {name: driver.answer(name, part.snapshot(), attempt)}
    part.close()
    driver.seal(answers)
    driver.complete(answers)


def lose(driver: GrowingDriver, *numbers: int, attempt: int = 0, name: str = PART) -> None:
    """An attempt that does not count."""
    driver.begin()
    part = driver.part(name, attempt=attempt)
    write_each(part, *numbers)
    part.snapshot()
    part.close()

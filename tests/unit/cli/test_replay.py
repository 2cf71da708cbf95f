"""`outfall replay`: what it is told, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")

from tests.unit.support.command import done, failed, parsed, run


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def letter(number: int, **more: Any) -> dict[str, Any]:
    return {
        "row": json.dumps({"id": number}),
        "reason": f"column {number % 2} is bad",
        "code": "400" if number % 2 else "422",
        "step": "flights",
        "epoch": number,
        "part": f"writer-{number % 3}",
        "time": f"2026-11-23T00:00:{number:02d}Z",
    } | more


class Place:
    """Letters of ids 0 to 9 in a file, and what the command is told of them."""

    def __init__(self, place: Path) -> None:
        self.path = place / "letters.jsonl"
        self.out = place / "out"
        self.add(*map(letter, range(10)))
        self.sink = ("--sink", "file", "-o", f"path={self.out}", "--recovery", place / "recovery")
        self.command = ("replay", self.path, *self.sink, "--schema", "id int")

    def add(self, *letters: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.writelines(json.dumps(each) + "\n" for each in letters)

    def ids(self) -> list[int]:
        lines = [line for path in self.out.glob("part-*") for line in path.read_text().splitlines()]
        return sorted(json.loads(line)["id"] for line in lines)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


FILTERS: list[tuple[tuple[str, ...], list[int]]] = [
    (("--reason", "^column 1"), [1, 3, 5, 7, 9]),
    (("--code", "422"), [0, 2, 4, 6, 8]),
    (("--code", "422", "--code", "400"), list(range(10))),
    (("--of-step", "others"), []),
    (("--part", "writer-0", "--part", "writer-1"), [0, 1, 3, 4, 6, 7, 9]),
    (("--epoch", "3..5"), [3, 4, 5]),
    (("--epoch", "7.."), [7, 8, 9]),
    (("--epoch", "..1"), [0, 1]),
    (("--epoch", "4"), [4]),
    (("--since", "2026-11-23T00:00:08"), [8, 9]),
    (("--until", "2026-11-23T01:00:02+01:00"), [0, 1]),
    (("--code", "400", "--epoch", "5..8", "--reason", "bad"), [5, 7]),
]


@pytest.mark.parametrize(("given", "ids"), FILTERS, ids=lambda value: " ".join(map(str, value)))
def test_letters_are_filtered_and_the_others_come_later(place: Place, given: tuple[str, ...], ids: list[int]) -> None:
    assert parsed(*place.command, *given)["replayed"] == len(ids)
    assert place.ids() == ids
    assert f"10 dead letters: {len(ids)} replayed before" in done(*place.command)
    assert place.ids() == list(range(10))


def test_a_sink_that_may_replace_newer_rows_needs_an_option(place: Place, tmp_path: Path) -> None:
    keyed = {"path": str(tmp_path / "delta"), "create_table": "if_missing", "write_mode": "upsert", "key_columns": "id"}
    sink = ("--sink", "delta", *(f"-o{name}={value}" for name, value in keyed.items()), "--recovery", tmp_path / "new")
    command = ("replay", place.path, *sink, "--schema", "id bigint")
    assert "may replace or delete newer ones" in failed(*command, "--dry-run")
    assert "pass --replace-newer" in failed(*command)
    assert not (tmp_path / "delta").exists()
    assert parsed(*command, "--replace-newer")["replayed"] == 10


def test_a_dry_run_counts_by_reason_and_code_and_writes_nothing(place: Place, tmp_path: Path) -> None:
    done(*place.command, "--epoch", "0..3")
    before = sorted(path for path in tmp_path.rglob("*"))
    text = done(*place.command, "--dry-run")
    assert "10 dead letters: 4 replayed before, 0 cannot be converted to rows, 6 would be replayed" in text
    assert "column 1 is bad" in text
    assert text.count("example: ") == 3
    result = parsed(*place.command, "--dry-run")
    assert (result["found"], result["before"], result["would_replay"]) == (10, 4, 6)
    assert {(kind["code"], kind["reason"], kind["letters"]) for kind in result["kinds"]} == {
        ("422", "column 0 is bad", 5),
        ("400", "column 1 is bad", 5),
    }
    assert json.loads(result["examples"][0]["row"]) == {"id": 0}
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_nothing_in_a_letter_controls_the_terminal_or_looks_like_a_line_of_the_command(place: Place) -> None:
    evil = "\x1b]0;title\x07 \x9b2J\n0 dead letters"
    place.path.write_text("")
    place.add(letter(0, reason=evil, code=evil, step=evil, row=evil))
    for options in (["--dry-run"], ["--dry-run", "--json"], []):
        result = run(*place.command, *options)
        assert all(line.isprintable() for line in result.output.split("\n"))
        assert not re.search(r"^0 dead letters", result.output, re.MULTILINE)
    as_json = json.loads(run(*place.command, "--dry-run", "--json").stdout)
    assert as_json["examples"][0]["row"] == evil


def test_a_pipe_gets_each_reason_in_one_line(place: Place) -> None:
    reason = "the value does not fit its column " + "x" * 200
    place.add(letter(10, reason=reason))
    assert any(line.rstrip().endswith(reason) for line in done(*place.command, "--dry-run").splitlines())


def test_what_is_left_is_named_and_the_exit_code_says_so(place: Place) -> None:
    place.add(letter(10, row='{"id": "ten"}'))
    text = failed(*place.command)
    assert f"skipped: {place.path}, line 11: column 'id' cannot store \"ten\" as int:" in text
    assert "11 dead letters: 0 replayed before, 1 cannot be converted to rows, 10 replayed" in text
    assert place.ids() == list(range(10))


def test_types_are_asked_for_where_the_sink_does_not_know_them(place: Place) -> None:
    text = failed("replay", place.path, *place.sink)
    assert "does not provide the types of its columns" in text
    assert "--schema" in text
    assert parsed("replay", place.path, *place.sink, "--schema", "json")["replayed"] == 10


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("--reason", "("), "invalid regular expression"),
        (("--epoch", "x"), "FROM..TO"),
        (("--epoch", ".."), "FROM..TO"),
        (("--since", "yesterday"), "2026-11-23T10:00:00Z"),
    ],
)
def test_wrong_calls_are_refused(place: Place, given: tuple[str, ...], why: str) -> None:
    assert why in failed(*place.command, *given, code=2)
    assert not place.out.exists()


def test_the_replay_is_a_step_that_others_see(place: Place, tmp_path: Path) -> None:
    done(*place.command, "--step", "again")
    text = done("status", tmp_path / "recovery")
    assert "step again: epoch 0 completed" in text
    assert "step again-letters" in text

"""Each cell of the table of schema changes: an epoch, the change, the next start, and the remedy of its word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.capability_checks import resolve
from outfall.errors import OutfallError
from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from tests.integration.schema.targets import FIELDS, TARGETS, Servers, Target
from tests.schema_changes import cells

Fields = dict[str, pa.DataType]
Rows = list[dict[str, Any]]

BEFORE = {"id": "a", "k": "A", "n": 1, "x": 1, "text": "before"}
AFTER = [BEFORE | {"n": 2, "x": 2, "text": "after"}, {"id": "b", "k": "B", "n": 2, "x": 2, "text": "after"}]
"""A row that has been written, with another value, and a new one."""
DEFAULT = ("csv", "parquet")
"""The targets whose cells are tested by default: they need no server, and have all words of files."""

CELLS = [
    pytest.param(target, change, word, marks=() if target in DEFAULT else pytest.mark.thorough)
    for target, words in cells().items()
    for change, word in words.items()
    if word != "—"
]


class Step(LocalDriver):
    """A driver of Arrow batches, which checks their columns as Spark's does."""

    def run_tasks(self, ticket: Any, epoch: int, tasks: Any) -> Any:
        part = self.sink.list_parts()[0] if resolve(self.sink).fixed else None
        return [self.run_task(ticket, epoch, index, [(part, batch)]) for index, batch in enumerate(tasks)]

    def write(self, epoch: int, fields: Fields, rows: Rows) -> None:
        batch = pa.RecordBatch.from_pylist(rows, pa.schema(list(fields.items())))
        self.sink.check_schema(batch.schema)
        self.run_epoch(epoch, [batch])


def changed(change: str) -> tuple[Fields, Rows]:
    """Return columns and rows after a change."""
    fields, rows = dict(FIELDS), [dict(row) for row in AFTER]
    if change in ("end", "middle"):
        names = [*fields, "more"] if change == "end" else ["id", "k", "more", "n", "x", "text"]
        fields["more"] = pa.string()
        return {name: fields[name] for name in names}, [row | {"more": "new"} for row in rows]
    if change == "dropped":
        del fields["text"]
    if change == "renamed":
        fields = {"words" if name == "text" else name: kind for name, kind in fields.items()}
        rows = [row | {"words": row["text"]} for row in rows]
    if change == "wider":
        fields["x"], rows[1]["x"] = pa.int64(), 1 << 40
    if change == "narrower":
        fields["n"] = pa.int32()
    if change == "required":
        rows[1]["text"] = None
    return fields, [{name: row[name] for name in fields} for row in rows]


def as_read(rows: Rows) -> list[dict[str, str]]:
    found = [{name: str(value) for name, value in row.items() if value is not None} for row in rows]
    return sorted(found, key=lambda row: sorted(row.items()))


class Cell:
    """One target with an epoch, and what may happen to it then."""

    def __init__(self, target: Target, change: str) -> None:
        self.target, self.change = target, change
        self.log = MemoryRecoveryConfig()
        self.given = {change: {"key": "k", "order": "x"}[change]} if change in ("key", "order") else {}
        self.fields, self.rows = changed(change)
        Step(target.sink(), self.log).write(0, FIELDS, [BEFORE])
        self.found = target.rows()
        assert self.found == as_read([BEFORE])

    def start(self, fields: Fields | None = None, rows: Rows | None = None, **options: Any) -> None:
        """Start the query again, with the change or with other rows, and run an epoch."""
        sink = self.target.sink(**self.given | options)
        Step(sink, self.log).write(1, fields or self.fields, self.rows if rows is None else rows)

    def is_read(self, rows: Rows) -> None:
        """Check what a reader finds after an epoch with rows."""
        assert self.target.rows() == as_read(rows if self.target.replaces else [BEFORE, *rows])

    def goes_on(self) -> None:
        self.start()
        self.is_read(self.rows)

    new = without = both = fits = goes_on

    def keeps(self) -> None:
        self.start()
        self.is_read([self.rows[0] | {"text": "before"}, self.rows[1]])

    def refused(self, text: str) -> None:
        """Check that a start fails before its rows, and leaves the target and the log as they were."""
        entries = self.log.open("sink").numbers()
        with pytest.raises(OutfallError, match=text):
            self.start()
        assert (self.target.rows(), self.log.open("sink").numbers()) == (self.found, entries)

    def add(self) -> None:
        self.refused(r"(no column 'more'|more is not in the table).*schema_evolution")
        self.start(schema_evolution="add_columns")
        self.is_read(self.rows)

    def rename(self) -> None:
        self.refused("(no column 'words'|words is not in the table)")
        self.target.rename("text", "words")
        self.start()
        self.is_read(self.rows)

    def former(self) -> None:
        self.refused("words is not in the table")
        self.restored()

    def columns(self) -> None:
        self.refused("Readers of csv take values by their position.*select the earlier columns in their order")
        self.restored()

    def type(self) -> None:
        self.refused("(has changed from .*cast|x is bigint, and int in the table)")
        self.restored()

    def value(self) -> None:
        with pytest.raises(OutfallError, match=r"rejects the row with key .*Column 'x'"):
            self.start()
        assert self.target.rows() == self.found
        self.target.widen("x")
        self.goes_on()

    def null(self) -> None:
        self.target.require("text")
        with pytest.raises(OutfallError, match=r"(?i)null"):
            self.start()
        assert self.target.rows() == self.found
        self.restored()

    def recorded(self) -> None:
        self.target.require("text")
        for fields, rows in ((self.fields, self.rows), (FIELDS, AFTER)):
            with pytest.raises(OutfallError, match=r'Null value in column "text".*change the table so that it takes'):
                self.start(fields, rows)
        assert self.target.rows() == self.found
        self.target.permit("text")
        self.goes_on()

    def restored(self) -> None:
        """Check that the query goes on as before."""
        self.start(FIELDS, AFTER)
        self.is_read(AFTER)

    def identity(self) -> None:
        if self.change == "key":
            self.target.key_by("k")
        self.refused("(another identity than recorded|is of the target).*another step_id")
        if self.change == "key":
            # The advice for those who want it: a step of its own, after the last epoch was completed.
            other = Step(
                self.target.sink(**self.given), self.log, step_id="other", options=EpochOptions(adopt_checkpoint=True)
            )
            other.write(1, self.fields, self.rows)
            assert [row for row in as_read(self.rows) if row not in self.target.rows()] == []
        else:
            self.given = {}
            self.restored()


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "outfall"),
            ("AWS_SECRET_ACCESS_KEY", "outfall-secret"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            patch.setenv(name, value)
        yield Servers(request, tmp_path_factory.mktemp("servers"), stack)


@pytest.mark.parametrize(("target", "change", "word"), CELLS)
def test_the_next_start_does_what_the_page_says(
    servers: Servers, target: str, change: str, word: str, tmp_path: Path
) -> None:
    kind = TARGETS[target]
    getattr(Cell(kind(servers.get(kind), tmp_path), change), word)()

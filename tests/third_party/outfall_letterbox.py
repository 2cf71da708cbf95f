"""What somebody else's distribution would hold: a sink that brings rows to a directory, a recovery store, a format."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa
from pydantic import Field

from outfall.capabilities import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    SupportsCommitter,
    SupportsWriterContext,
    WriterInitContext,
)
from outfall.errors import ConfigurationError
from outfall.formats import Encoder, FormatOptions
from outfall.options import SinkOptions, parse_options
from outfall.recovery import CheckpointRecoveryConfig, RecoveryConfig
from outfall.serde import JsonSerializer
from outfall.sinks import DynamicSink, StatelessSinkPartition


class LetterboxOptions(SinkOptions):
    """Its options."""

    directory: str = Field(description="Where the files go.")


class LetterboxPartition(StatelessSinkPartition[Any]):
    """Collects the rows of a task in a hidden file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[Any] = []

    def write_batch(self, values: list[Any]) -> None:
        self._rows += values

    def prepare_commit(self) -> Sequence[str]:
        self._path.write_text(json.dumps(self._rows))
        return [self._path.name] if self._rows else []


class LetterboxCommitter(Committer[str]):
    """Shows hidden files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
        for request in requests:
            shown = self._directory / request.committable.lstrip(".")
            if shown.exists():
                request.signal_already_committed()
            else:
                (self._directory / request.committable).rename(shown)


class LetterboxSink(DynamicSink[Any], SupportsCommitter[str], SupportsWriterContext):
    """Writes rows as JSON into files of a directory."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._name = ""

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound._name = f".{context.generation}-{context.epoch}-{context.attempt}.json"
        return bound

    def build(self, step_id: str, worker_index: int, worker_count: int) -> LetterboxPartition:
        return LetterboxPartition(Path(self.directory) / self._name)

    def create_committer(self, context: CommitterInitContext) -> LetterboxCommitter:
        return LetterboxCommitter(Path(self.directory))

    def committable_serializer(self) -> JsonSerializer:
        return JsonSerializer()


def sink_from_options(options: Mapping[str, str]) -> LetterboxSink:
    """Make the sink of Spark options."""
    return LetterboxSink(parse_options(LetterboxOptions, options).directory)


def recovery_from_url(url: str) -> RecoveryConfig:
    """Make the recovery store of `letterbox:///directory`."""
    return CheckpointRecoveryConfig(url.removeprefix("letterbox://"))


def rows_in(directory: Path) -> list[Any]:
    """What a reader of the directory finds."""
    return [row for path in sorted(directory.glob("[!.]*.json")) for row in json.loads(path.read_text())]


class LettersOptions(SinkOptions):
    """The options of the format."""

    greeting: str = Field(default="Dear", description="How a letter begins.")
    copies: int = Field(default=1, ge=1, description="How often each is written.")


class LettersEncoder(Encoder):
    """Writes one line per row, from a column of names."""

    growing: ClassVar[bool] = True
    codecs = ("gzip", "none")
    options_model = LettersOptions

    def __init__(self, options: FormatOptions, schema: pa.Schema, *, start: bool = True) -> None:
        super().__init__(options, schema, start=start)
        self._own = options.of_format(LettersOptions)

    @classmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        if schema.names != ["name"]:
            raise ConfigurationError("letters are for rows with a name alone")

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        lines = [f"{self._own.greeting} {name}\n" * self._own.copies for name in batch.column(0).to_pylist()]
        return pa.py_buffer("".join(lines).encode())

"""Wrappers around wrappers around sinks that need no server: rows arrive once, or the combination is refused."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from botocore.exceptions import ClientError
from requests.adapters import BaseAdapter

from outfall.file import FileSink
from outfall.http import HttpSink
from outfall.kinesis.stream import KinesisOptions, KinesisRequestSink
from outfall.options import make_options
from tests.combinations import PARTS, Place, check, combinations, pairwise
from tests.unit.file.test_conformance import visible
from tests.unit.support.fake_s3 import FakeS3

_numbers = itertools.count()


class Files(Place):
    def __init__(self, directory: Path, parts: int | None = None) -> None:
        self._directory = directory / "out"
        self._parts = parts

    def sink(self) -> Any:
        return FileSink(self._directory, parts=self._parts)

    def read(self) -> Iterable[Mapping[str, Any]]:
        return [json.loads(line) for path in visible(self._directory) for line in path.read_text().splitlines()]


class Objects(Place):
    def __init__(self) -> None:
        self._server = FakeS3()

    def sink(self) -> Any:
        return self._server.sink()

    def read(self) -> Iterable[Mapping[str, Any]]:
        return [json.loads(line) for body in self._server.data().values() for line in body.splitlines()]


class Posts(Place):
    """A server that keeps idempotency keys, and refuses what is bad."""

    refuses = True

    def __init__(self) -> None:
        self._accepted: dict[str, Any] = {}
        self._session = requests.Session()
        self._session.mount("https://", _Server(self._accepted))
        self._url = f"https://server-{next(_numbers)}.example/rows"

    def sink(self) -> Any:
        column = "row" if self.letters else "id"
        return HttpSink(self._url, session=self._session, body="record", idempotency="row", key_column=column)

    def read(self) -> Iterable[Mapping[str, Any]]:
        return list(self._accepted.values())


class _Server(BaseAdapter):
    def __init__(self, accepted: dict[str, Any]) -> None:
        super().__init__()
        self._accepted = accepted

    def send(self, request: requests.PreparedRequest, *args: Any, **settings: Any) -> requests.Response:
        assert isinstance(request.body, bytes)
        row = json.loads(request.body)
        answer = requests.Response()
        answer.request, answer.url, answer.raw = request, request.url or "", io.BytesIO()
        answer.status_code = 422 if row.get("text") == "bad" else 200
        if answer.ok:
            self._accepted.setdefault(str(request.headers["Idempotency-Key"]), row)
        return answer

    def close(self) -> None:
        pass


class Streams(Place):
    """A stub of Kinesis, which refuses what is bad."""

    refuses = True

    def __init__(self) -> None:
        self._stream = f"stream-{next(_numbers)}"
        self._records: list[Any] = []

    def sink(self) -> Any:
        return _StubbedKinesis(self._stream, self._records)

    def read(self) -> Iterable[Mapping[str, Any]]:
        return self._records


class _StubbedKinesis(KinesisRequestSink):
    def __init__(self, stream: str, records: list[Any]) -> None:
        super().__init__(make_options(KinesisOptions, {"stream": stream}))
        self._put = records

    def client(self) -> Any:
        return self

    def check_connection(self) -> list[str]:
        return []

    def put_records(self, *, StreamName: str, Records: list[Any]) -> Any:  # noqa: N803 - boto3's names
        rows = [json.loads(record["Data"]) for record in Records]
        if any(row.get("text") == "bad" for row in rows):
            raise ClientError({"Error": {"Code": "ValidationException"}}, "PutRecords")
        self._put += rows
        return {"Records": [{}] * len(rows)}


PLACES: dict[str, Callable[[Path], Place]] = {
    "file": Files,
    "growing": lambda directory: Files(directory, PARTS),
    "s3": lambda directory: Objects(),
    "http": lambda directory: Posts(),
    "kinesis": lambda directory: Streams(),
}


@pytest.fixture(autouse=True)
def _nothing_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine dies here, and waiting for the disk would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


def parameters() -> list[Any]:
    """Each pair of neighbours; all combinations of three take longer."""
    every = combinations(PLACES)
    pairs = pairwise(every)
    return [pytest.param(*row, marks=() if row in pairs else pytest.mark.thorough) for row in every]


@pytest.mark.parametrize(("wrappers", "sink", "word"), parameters())
def test_rows_arrive_once_or_the_combination_is_refused(
    wrappers: tuple[str, ...], sink: str, word: str, tmp_path: Path
) -> None:
    check(wrappers, PLACES[sink](tmp_path), word)

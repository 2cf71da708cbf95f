"""No two sinks of a fan-out write to one target, under whatever names it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outfall.capabilities import (
    SupportsTarget,
)
from outfall.capability_checks import resolve
from outfall.errors import (
    ConfigurationError,
)
from outfall.file import FileSink
from outfall.http import HttpSink
from outfall.kinesis import FirehoseSink, KinesisSink
from outfall.postgres import PostgresSink
from outfall.protocol.step import EpochOptions
from outfall.s3 import S3Sink
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.wrappers import BatchingSink, FanOutSink
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.warehouse import PlainSink, Warehouse

ROWS = [[1, 2], [3]]


def staging(name: str) -> NamedStagingSink:
    return NamedStagingSink(Warehouse(), name)


def test_two_sinks_on_one_target_are_refused() -> None:
    sink = FanOutSink([staging("here"), staging("here")])
    with pytest.raises(ConfigurationError, match="0 and 1 write to the same target here"):
        LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, ROWS)


def test_two_sinks_on_one_target_are_refused_within_other_wrappers_too() -> None:
    sink = FanOutSink(a=staging("here"), b=BatchingSink(staging("here"), across_epochs=True))
    with pytest.raises(ConfigurationError, match=r"a and b\.target write to the same target here"):
        LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, ROWS)


@pytest.mark.parametrize("parts", [None, 2])
def test_a_directory_under_two_names_is_one_target(tmp_path: Path, parts: int | None) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    sink = FanOutSink(a=FileSink(tmp_path / "real", parts=parts), b=FileSink(tmp_path / "link", parts=parts))
    with pytest.raises(ConfigurationError, match=f"a and b write to the same target file:{tmp_path}/link"):
        LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [[]])
    assert not (tmp_path / "real").exists()


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("outer", ["", "link", "."])
def test_a_target_within_another_one_is_refused(tmp_path: Path, outer: str, made: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    if made:
        (tmp_path / "real" / "sub").mkdir(parents=True)
    place = tmp_path / "real" if outer == "" else tmp_path / outer
    sink = FanOutSink(a=FileSink(tmp_path / "real" / "sub", parts=2), b=FileSink(place))
    with pytest.raises(ConfigurationError, match=r"a and b write to .*, and one of these contains the other"):
        LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [[]])


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        (FileSink("memory://x/sub"), FileSink("memory://x")),
        (FileSink("/x/sub"), FileSink("/")),
        (FileSink("/x"), FileSink("/x", parts=2)),
        (S3Sink("lake", "x/sub"), S3Sink("lake", "x")),
        (S3Sink("lake", "x"), S3Sink("lake")),
    ],
)
def test_what_lies_within_another_place_is_told_by_its_directories(inner: Any, outer: Any) -> None:
    with pytest.raises(ConfigurationError, match="0 and 1 write to"):
        LocalDriver(FanOutSink([outer, inner]), MemoryRecoveryConfig()).run_epoch(0, [[]])


def test_directories_whose_names_begin_alike_are_two_targets(tmp_path: Path) -> None:
    sink = FanOutSink(a=FileSink(tmp_path / "x"), b=FileSink(tmp_path / "xy"))
    LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [[{"id": 1}]])
    assert len(list(tmp_path.glob("x*/part-*"))) == 2


def of_postgres(*dsns: str) -> Any:
    # With its schema: without one the server says where the table is.
    return FanOutSink([PostgresSink(dsn, "public.flights") for dsn in dsns])


def of_s3(*endpoints: str | None) -> Any:
    return FanOutSink([S3Sink("lake", "flights", endpoint_url=endpoint) for endpoint in endpoints])


@pytest.mark.parametrize(
    "sink",
    [
        of_postgres("postgresql://eu.example/app", "postgresql://us.example/app"),
        of_postgres("postgresql://eu.example/app", "postgresql://eu.example:5433/app"),
        of_postgres("service=eu dbname=app", "service=us dbname=app"),
        of_s3("https://eu.example", "https://us.example"),
        of_s3("https://eu.example", None),
        of_s3("https://s3.cn-north-1.amazonaws.com.cn", None),
        of_s3("http://127.0.0.1:9000", "http://127.0.0.1:9001"),
    ],
)
def test_two_servers_may_have_a_target_of_the_same_name(sink: Any) -> None:
    children = sink.children().values()
    assert len({child.target() for child in children}) == 1, "a server may move"
    assert len({child.place() for child in children}) == 2


@pytest.mark.parametrize(
    "sink",
    [
        of_postgres("postgresql://localhost/app", "host=127.0.0.1 dbname=app"),
        of_postgres("host=/run/postgresql dbname=app", "postgresql://me:secret@localhost:5432/app?sslmode=disable"),
        of_postgres("postgresql://EU.example/app", "host=eu.example port=5432 dbname=app"),
        of_s3("https://eu.example", "https://EU.example:443"),
        of_s3("http://localhost:9000", "http://127.0.0.1:9000/"),
        of_s3(None, "https://s3.eu-west-1.amazonaws.com"),
    ],
)
def test_a_server_under_two_names_is_one(sink: Any) -> None:
    with pytest.raises(ConfigurationError, match="0 and 1 write to the same target") as refused:
        LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [[]])
    assert "secret" not in str(refused.value)


def test_an_endpoint_of_the_environment_is_the_same_as_one_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    with pytest.raises(ConfigurationError, match="0 and 1 write to the same target"):
        LocalDriver(of_s3(None, "http://127.0.0.1:9000"), MemoryRecoveryConfig()).run_epoch(0, [[]])


class Asked(PlainSink, SupportsTarget[Any]):
    """Sends somewhere, and finds nothing of its own there."""

    def target(self) -> str:
        return "POST http://127.0.0.1/x"


def test_sinks_that_own_no_target_may_send_to_the_same_place() -> None:
    sinks: list[Any] = [
        Asked(),
        Asked(),
        BatchingSink(Asked(), across_epochs=True),
        BatchingSink(Asked(), across_epochs=True),
    ]
    LocalDriver(FanOutSink(sinks), MemoryRecoveryConfig(), options=EpochOptions(worker_count=1)).run_epoch(
        0, [[{"id": 1}]]
    )
    assert [sink.rows for sink in sinks[:2]] == [[{"id": 1}], [{"id": 1}]]


def test_built_in_sinks_own_what_they_publish_to() -> None:
    owning = FileSink("/a"), FileSink("/a", parts=2), S3Sink("lake", "a"), PostgresSink("host=/a", "t")
    assert all(resolve(sink).owns_target() for sink in owning)
    sending = (HttpSink("http://127.0.0.1/x"), KinesisSink("s"), FirehoseSink("s"))
    assert not any(resolve(sink).owns_target() for sink in sending)

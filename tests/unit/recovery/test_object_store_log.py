"""A log in object stores, played by fsspec's memory under another name."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from fsspec.spec import AbstractFileSystem

from outfall.errors import ConfigurationError, TransientError
from outfall.recovery import CheckpointRecoveryConfig, EntryExistsError, RecoveryLog
from outfall.recovery.log import state_name
from outfall.store_errors import _CLASSES, Meaning
from outfall.testing.recovery_contract import once_at
from tests.unit.support.killed_log import check_killed_at_each_step
from tests.unit.support.logs import files, opened

_UNSET = sorted(name for name, meaning in _CLASSES.items() if meaning is Meaning.CREDENTIALS)


class Store(MemoryFileSystem):  # type: ignore[misc]
    """Creates exclusively, as the listed stores do."""

    protocol = "abfs"


class IgnoresTheCondition(Store):
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value)


class DoesNotKnowTheCondition(Store):
    def pipe_file(self, path: str, value: bytes) -> None:
        super().pipe_file(path, value)


class LooksFirst(Store):
    pipe_file = AbstractFileSystem.pipe_file


class LosesReplies(Store):
    """Its client sends again what got no answer, and reports the refusal."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value, mode=mode)
        raise FileExistsError(path)


class RefusesWithoutSayingWhy(Store):
    """As s3fs on a server that does not name the failed condition."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        try:
            super().pipe_file(path, value, mode=mode)
        except FileExistsError:
            cause = RuntimeError("PreconditionFailed")
            cause.response = {"ResponseMetadata": {"HTTPStatusCode": 412}}  # type: ignore[attr-defined]
            raise OSError(errno.EINVAL, "a pre-condition did not hold") from cause


class MayNotBeWritten(Store):
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        raise PermissionError("AccessDenied")


class HasNoBucket(Store):
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        raise FileNotFoundError("NoSuchBucket")


class CountsWrites(Store):
    written: ClassVar[list[str]] = []

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self.written.append(path)
        super().pipe_file(path, value, mode=mode)


def store(monkeypatch: pytest.MonkeyPatch, kind: type[Store]) -> str:
    monkeypatch.setitem(_registry, "abfs", kind)
    return f"abfs://container@account/{uuid.uuid4().hex}"


@pytest.mark.parametrize("kind", [IgnoresTheCondition, DoesNotKnowTheCondition, LooksFirst])
def test_a_store_without_exclusive_create_is_refused(kind: type[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    location = store(monkeypatch, kind)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"has no exclusive create.*upgrade adlfs.*POSIX"):
            opened(location).append(b"entry", after=0)
    assert [path for path in MemoryFileSystem.store if location.rpartition("/")[2] in path] == []


@pytest.mark.parametrize("kind", [Store, LosesReplies, RefusesWithoutSayingWhy])
def test_a_refusal_is_told_from_a_lost_reply(kind: type[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    location = store(monkeypatch, kind)
    log, other = opened(location), opened(location)
    assert log.append(b"first", after=0) == 1
    with once_at("log: newest checked", lambda: other.append(b"theirs", after=1)), pytest.raises(EntryExistsError):
        log.append(b"mine", after=1)
    assert [entry.data for entry in log.read()] == [b"first", b"theirs"]


def test_the_probe_runs_once_per_location_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    location = store(monkeypatch, CountsWrites)
    for step in ("a", "b", "c"):
        CheckpointRecoveryConfig(location).open(step).append(b"entry", after=0)
    probes = [path for path in CountsWrites.written if location.rpartition("/")[2] in path and "/.tmp-" in path]
    assert len(probes) == 2
    assert [path for path in MemoryFileSystem.store if location.rpartition("/")[2] in path and "/.tmp-" in path] == []


class OnDisk(LocalFileSystem):  # type: ignore[misc]
    """A store that outlives its process."""

    protocol = "abfs"
    root: ClassVar[str]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("abfs://").replace("container@account", cls.root)))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        file = Path(self._strip_protocol(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb" if mode == "create" else "wb") as output:
            output.write(value)


def test_a_process_that_is_killed_while_it_probes_leaves_what_a_clean_up_removes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(OnDisk, "root", str(tmp_path), raising=False)
    steps = ["log: newest checked", "log: probe created", "log: object created"]
    check_killed_at_each_step(lambda name: store(monkeypatch, OnDisk), 0, "append", steps, there=1)


def test_a_writer_whose_probe_was_cleaned_up_is_fenced() -> None:
    location = f"memory://{uuid.uuid4().hex}"
    sleeper, other = opened(location), opened(location)

    def epoch_and_clean_up() -> None:
        other.append(b"theirs", after=0)
        other.clean_up(keep=[1], states=[], generation=1)

    with once_at("log: probe created", epoch_and_clean_up), pytest.raises(EntryExistsError):
        sleeper.append(b"mine", after=0)
    assert [entry.data for entry in other.read()] == [b"theirs"]
    assert len(files(location)) == 1


def test_who_only_reads_writes_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened(store(monkeypatch, MayNotBeWritten)).read() == []


@pytest.mark.parametrize(
    ("kind", "text"), [(MayNotBeWritten, "AccessDenied"), (HasNoBucket, "NoSuchBucket.*create its")]
)
def test_a_store_that_cannot_be_written_is_a_wrong_configuration(
    kind: type[Store], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        opened(store(monkeypatch, kind)).append(b"entry", after=0)


class ClientError(Exception):
    """What a store's client raises by itself."""


class Unreachable(Store):
    raised: ClassVar[Exception] = ClientError("no connection")

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        raise self.raised

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        raise self.raised

    def cat_file(self, path: str, *options: Any, **more: Any) -> bytes:
        raise self.raised

    def rm_file(self, path: str) -> None:
        raise self.raised


CALLS: dict[str, Callable[[RecoveryLog], object]] = {
    "reading": lambda log: log.read(),
    "listing": lambda log: log.numbers(),
    "appending": lambda log: log.append(b"x", after=0),
    "writing the state": lambda log: log.write_state("p", b"x", generation=1),
    "reading the state": lambda log: log.read_state(state_name("p", 1)),
    "cleaning up": lambda log: log.clean_up(keep=[], states=[], generation=1),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_a_client_raises_by_itself_is_an_error_that_may_pass(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(store(monkeypatch, Unreachable))
    with pytest.raises(TransientError, match=rf"{call} .*failed. ClientError: no connection.*reachable") as refused:
        CALLS[call](log)
    assert refused.value.step == "sink"
    assert refused.value.__cause__ is Unreachable.raised


def test_steps_of_a_store_that_cannot_be_asked_are_such_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransientError, match="listing the steps"):
        CheckpointRecoveryConfig(store(monkeypatch, Unreachable)).steps()


@pytest.mark.parametrize("name", _UNSET)
def test_missing_credentials_are_a_wrong_configuration(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, kind = name.rpartition(".")
    raised = type("Derived", (type(kind, (Exception,), {"__module__": module}),), {})("there are none")
    monkeypatch.setattr(Unreachable, "raised", raised)
    with pytest.raises(ConfigurationError, match=r"there are none.*provide credentials"):
        opened(store(monkeypatch, Unreachable)).read()


@pytest.mark.parametrize("name", _UNSET)
def test_these_errors_are_called_so_by_their_clients(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert issubclass(getattr(pytest.importorskip(module), kind), Exception)


def test_a_filesystem_that_cannot_be_made_is_a_wrong_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoAccount(Store):
        def __init__(self, *args: Any, **options: Any) -> None:
            raise ValueError("Must provide a connection_string or account_name")

    with pytest.raises(ConfigurationError, match=r"cannot be opened.*account_name.*provide credentials"):
        opened(store(monkeypatch, NoAccount))

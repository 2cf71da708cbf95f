"""Files, Delta and the recovery log in front of Azurite and fake-gcs-server; missing rights are played by a proxy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from outfall.delta import DeltaSink
from outfall.errors import ConfigurationError, OutfallError, TargetError
from outfall.file import FileSink
from outfall.recovery import CheckpointRecoveryConfig, EntryExistsError
from outfall.testing import LocalDriver
from tests.peers.stores.conftest import at
from tests.peers.support.object_stores import ACCOUNT, KEY, Emulator, Request, denying

pytestmark = pytest.mark.faults

STEPS = ("file: copied",)
MORE_STEPS = (
    "file: epoch claimed",
    "file: record created", "file: claimed", "file: synced", "file: record advanced", "file: publishing",
    "file: published", "before PREPARED", "after COMMITTING", "before COMPLETED", "after COMPLETED",
)  # fmt: skip


def ids(store: Emulator, bucket: str) -> list[int]:
    found = store.everything(bucket)
    lines = [line for path, data in found.items() if path.startswith("p/out/part") for line in data.splitlines()]
    return sorted(json.loads(line)["id"] for line in lines)


def write(store: Emulator, bucket: str, log: Path | str, epochs: int = 3) -> None:
    for epoch in range(epochs):
        rows = [[{"id": 2 * epoch}], [{"id": 2 * epoch + 1}]]
        LocalDriver(FileSink(f"{store.scheme}://{bucket}/p/out"), str(log)).run_epoch(epoch, rows)


@pytest.mark.parametrize("step", [*STEPS, *(pytest.param(step, marks=pytest.mark.long) for step in MORE_STEPS)])
def test_each_row_is_there_once_although_drivers_are_killed(store: Emulator, bucket: str, step: str) -> None:
    log = f"{store.scheme}://{bucket}/p/log"
    command = [sys.executable, "-m", "tests.peers.support.store_driver", f"{store.scheme}://{bucket}/p/out", log, "2"]
    killed = subprocess.run([*command, step], env=os.environ, check=False, capture_output=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    write(store, bucket, log)
    assert ids(store, bucket) == list(range(6))
    assert not [path for path in store.everything(bucket) if "/staging/" in path]


def test_credentials_of_a_prefix_suffice(
    store: Emulator, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy denies what is not below `p/`, as a folder's signature or a condition on a prefix does."""

    def outside(request: Request) -> bool:
        if request.prefix is not None:
            return not request.prefix.startswith("p/")
        return not request.path.startswith(f"{bucket}/p/")

    with denying(store, outside) as port:
        at(store, monkeypatch, port)
        write(store, bucket, f"{store.scheme}://{bucket}/p/log")
        with pytest.raises(OutfallError, match="grant"):
            LocalDriver(FileSink(f"{store.scheme}://{bucket}/q"), str(tmp_path / "q")).run_epoch(0, [[{"id": 1}]])
    assert ids(store, bucket) == list(range(6))


def test_files_and_log_need_no_right_to_delete(
    store: Emulator, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy denies DELETE, and on Google to replace an object, which requires the same right.

    There the log is on a disk: whether Google answers the probe for an exclusive create with 403 or 412 is not known.
    """
    written: set[str] = set()

    def denies(request: Request) -> bool:
        if request.method == "DELETE":
            return True
        if store.scheme == "gs" and request.method in ("POST", "PUT") and not request.path.endswith("/"):
            taken = request.path in written
            written.add(request.path)
            return taken
        return False

    with denying(store, denies) as port:
        at(store, monkeypatch, port)
        write(store, bucket, tmp_path / "log" if store.scheme == "gs" else f"abfs://{bucket}/p/log")
    assert ids(store, bucket) == list(range(6))
    assert len([path for path in store.everything(bucket) if "/staging/" in path]) == 6
    assert len([each for each in caplog.messages if "may not be deleted" in each]) == 1


@pytest.mark.parametrize("what", ["bucket", "write"])
def test_what_is_refused_for_good_says_so(
    store: Emulator, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A missing right by a proxy that denies to write."""
    where = f"no-{uuid.uuid4().hex}" if what == "bucket" else bucket
    do = "create its bucket or container" if what == "bucket" else "grant"
    with denying(store, lambda request: what == "write" and request.method in ("PUT", "POST")) as port:
        at(store, monkeypatch, port)
        with pytest.raises(TargetError, match=rf"What to do: {do}"):
            LocalDriver(FileSink(f"{store.scheme}://{where}/p"), str(tmp_path)).run_epoch(0, [[{"id": 1}]])
        with pytest.raises(ConfigurationError, match=rf"What to do: {do}") as refused:
            CheckpointRecoveryConfig(f"{store.scheme}://{where}/log").open("step").append(b"{}", after=0)
    assert "POSIX" not in str(refused.value)


def test_of_two_drivers_one_appends_an_entry(store: Emulator, bucket: str) -> None:
    config = CheckpointRecoveryConfig(f"{store.scheme}://{bucket}/log")
    first, second = config.open("step"), config.open("step")
    first.append(b"first", after=0)
    with pytest.raises(EntryExistsError):
        second.append(b"second", after=0)
    assert [entry.data for entry in first.read()] == [b"first"]


@pytest.mark.parametrize("denied", ["nothing", "DELETE", "outside"])
def test_a_delta_table_in_azurite(azurite: Emulator, tmp_path: Path, denied: str) -> None:
    bucket = f"lake-{uuid.uuid4().hex}"
    azurite.make_bucket(bucket)

    def denies(request: Request) -> bool:
        if denied == "outside":
            listed = request.path if request.prefix is None else f"{bucket}/{request.prefix}"
            return not listed.startswith(f"{bucket}/p/t")
        return request.method == denied

    with denying(azurite, denies) as port:
        options = {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}",
            "azure_allow_http": "true",
        }
        url = f"az://{bucket}/p/t"
        sink = DeltaSink(url, storage_options=options, create_table="if_missing")
        sink.check_schema(pa.schema([("id", pa.int64())]))
        for epoch in range(3):
            rows = [[{"id": 2 * epoch}], [{"id": 2 * epoch + 1}]]
            LocalDriver(sink, str(tmp_path / "log")).run_epoch(epoch, rows)
        found = DeltaTable(url, storage_options=options).to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == list(range(6))

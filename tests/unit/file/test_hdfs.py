"""What the client of HDFS says, as an operating system would."""

from __future__ import annotations

import errno
import gc
import os
import re
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError
from outfall.hdfs import Hdfs, translated
from tests.unit.support.remote_target import Writer, hdfs_on_disk

ROOT = Path(__file__).parents[3]
REMOTE = 'RPCError("org.apache.hadoop.{}", "The reason \\"x\\".\\n\\tat org.apache.hadoop.A.b(A.java:1)\\n")'


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("security.AccessControlException", errno.EACCES),
        ("hdfs.protocol.NSQuotaExceededException", errno.EDQUOT),
        ("hdfs.protocol.DSQuotaExceededException", errno.EDQUOT),
        ("hdfs.server.namenode.SafeModeException", errno.EIO),
        ("hdfs.protocol.FSLimitException$PathComponentTooLongException", errno.ENAMETOOLONG),
    ],
)
def test_an_error_of_the_namenode_is_one_line_with_a_number(kind: str, number: int) -> None:
    error = translated(RuntimeError(REMOTE.format(kind)))
    assert isinstance(error, OSError)
    assert (error.errno, error.strerror) == (number, f'{re.split(r"[.$]", kind)[-1]}: The reason "x".')


def test_a_missing_and_a_present_file_keep_their_errors() -> None:
    found = [translated(kind("/a b\n\tat org.apache")) for kind in (FileNotFoundError, FileExistsError)]
    assert [(type(error), error.args[1]) for error in found] == [(FileNotFoundError, "/a b"), (FileExistsError, "/a b")]


def test_a_client_without_a_namenode_asks_for_its_configuration() -> None:
    error = translated(RuntimeError('InvalidArgument("No NameNode hosts found")'))
    assert isinstance(error, ConfigurationError)
    assert "HADOOP_CONF_DIR" in str(error)


@pytest.fixture
def at(tmp_path: Path) -> str:
    return f"hdfs://namenode:8020{tmp_path}"


def test_a_file_is_created_once_and_replaced_whole(at: str, tmp_path: Path) -> None:
    with hdfs_on_disk():
        fs = Hdfs.of("namenode:8020")
        fs.pipe_file(f"{at}/d/f", b"1", mode="create")
        with pytest.raises(FileExistsError):
            fs.pipe_file(f"{at}/d/f", b"2", mode="create")
        assert fs.cat_file(f"{at}/d/f") == b"1"
        fs.pipe_file(f"{at}/d/f", b"3")
        assert fs.cat_file(f"{at}/d/f") == b"3"
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["f"]


def test_a_repeated_rename_that_finds_its_own_result_is_told_from_a_missing_directory(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hdfs_on_disk():
        fs = Hdfs.of("namenode:8020")
        rename = fs.client.rename

        def twice(*arguments: Any) -> None:
            rename(*arguments)
            rename(*arguments)

        monkeypatch.setattr(fs.client, "rename", twice)
        with pytest.raises(FileExistsError):
            fs.pipe_file(f"{at}/f", b"1", mode="create")
        fs.pipe_file(f"{at}/f", b"2")
        assert fs.cat_file(f"{at}/f") == b"2"


@pytest.mark.parametrize("name", ["a;b", "a#b", "a?b", "a b", "é%", "hdfs:", "a:b"])
def test_a_name_may_have_characters_that_urls_give_a_meaning(at: str, tmp_path: Path, name: str) -> None:
    with hdfs_on_disk():
        Hdfs.of("namenode:8020").pipe_file(f"{at}/{name}", b"1")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_removal_of_a_missing_file_is_an_error(at: str) -> None:
    with hdfs_on_disk(), pytest.raises(FileNotFoundError):
        Hdfs.of("namenode:8020").rm_file(f"{at}/nothing")


@pytest.mark.parametrize(
    ("error", "succeeds"),
    [
        (ConnectionRefusedError("Connection refused (os error 111)"), True),
        (RuntimeError(REMOTE.format("ipc.X")), False),
    ],
)
def test_a_file_is_begun_anew_if_a_datanode_fails_and_not_if_the_namenode_refuses(
    at: str, monkeypatch: pytest.MonkeyPatch, error: Exception, *, succeeds: bool
) -> None:
    left = [error]

    def write(self: Any, data: bytes) -> int:
        if left:
            raise left.pop()
        return written(self, data)

    written = Writer.write
    monkeypatch.setattr(Writer, "write", write)
    with hdfs_on_disk(), nullcontext() if succeeds else pytest.raises(OSError, match="X: The reason"):
        fs = Hdfs.of("namenode:8020")
        fs.pipe_file(f"{at}/f", b"1")
        assert fs.cat_file(f"{at}/f") == b"1"


def test_a_file_is_synced_after_its_last_byte_and_before_it_has_its_name(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, bytes]] = []

    def hsync(self: Any) -> None:
        synced(self)
        (hidden,) = tmp_path.iterdir()
        seen.append((hidden.name.startswith(".tmp-"), bytes(self._data)))

    synced = Writer.hsync
    monkeypatch.setattr(Writer, "hsync", hsync)
    with hdfs_on_disk():
        Hdfs.of("namenode:8020").pipe_file(f"{at}/f", b"12")
    assert seen == [(True, b"12")]


def test_a_file_is_closed_once(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []

    def close(self: Any) -> None:
        closed.append(self)
        closes(self)

    closes = Writer.close
    monkeypatch.setattr(Writer, "close", close)
    with hdfs_on_disk():
        Hdfs.of("namenode:8020").pipe_file(f"{at}/f", b"1")
        gc.collect()
    assert len(closed) == 1


ASKS_LAST = """
from outfall.hdfs import Hdfs
from tests.unit.support.remote_target import hdfs_on_disk


class AsksLast:
    def __init__(self, fs):
        self.fs, self.me = fs, self

    def __del__(self):
        self.fs.exists("/f")


with hdfs_on_disk():
    fs = Hdfs.of("namenode:8020")
    assert not fs.exists("/no such file")
    AsksLast(fs)
"""


@pytest.mark.thorough
def test_a_process_ends_though_python_frees_last_what_asks_hdfs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKS_LAST], cwd=ROOT, timeout=60, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "the interpreter is shutting down" in done.stderr


def test_an_erasure_coded_directory_is_refused_with_what_to_do() -> None:
    error = translated(NotImplementedError("hsync is not supported for erasure-coded files"))
    assert isinstance(error, ConfigurationError)
    assert "hdfs ec -setPolicy -replicate" in str(error)


def test_a_file_is_written_once_more_if_a_clean_up_took_its_hidden_one(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hdfs_on_disk():
        fs = Hdfs.of("namenode:8020")
        rename = fs.client.rename

        def swept(source: str, *arguments: Any) -> None:
            monkeypatch.setattr(fs.client, "rename", rename)
            Path(source).unlink()
            rename(source, *arguments)

        monkeypatch.setattr(fs.client, "rename", swept)
        fs.pipe_file(f"{at}/f", b"1")
        assert fs.cat_file(f"{at}/f") == b"1"
        # An entry of the log is not: its number may have been freed.
        monkeypatch.setattr(fs.client, "rename", swept)
        with pytest.raises(FileNotFoundError):
            fs.pipe_file(f"{at}/g", b"1", mode="create")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_namenode_that_does_not_answer_is_an_error_and_is_asked_by_another_client_then(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr("outfall.hdfs._PATIENCE", 0.01)
    monkeypatch.setattr("outfall.hdfs.UNANSWERED", [])
    with hdfs_on_disk():
        stuck = Hdfs.of("namenode:8020")
        inner: Any = stuck.client.inner
        monkeypatch.setattr(inner._inner, "get_file_info", lambda path: over.wait(30), raising=False)
        with pytest.raises(TimeoutError, match="get_file_info"):
            stuck.info(f"{at}/f")
        over.set()
        monkeypatch.setattr("outfall.hdfs._PATIENCE", 60.0)
        assert Hdfs.of("namenode:8020").client is not stuck.client


def test_a_configured_observer_is_never_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "dfs.client.failover.proxy.provider.cluster"
    observer = "org.apache.hadoop.hdfs.server.namenode.ha.ObserverReadProxyProvider"
    (tmp_path / "hdfs-site.xml").write_text(
        f"<configuration><property><name>{name}</name><value>{observer}</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with hdfs_on_disk() as asked:
        Hdfs.of("cluster")
    assert asked[-1][name].endswith(".ConfiguredFailoverProxyProvider")


def test_a_configuration_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "core-site.xml").write_text("<configuration>&other;</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with hdfs_on_disk(), pytest.raises(ConfigurationError, match=r"core-site\.xml"):
        Hdfs.of("cluster")


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a process of Spark works in YARN, whose user and configuration have not been read yet."""
    for name in ("HADOOP_USER_NAME", "HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPARK_USER", "flyer")
    (tmp_path / "__spark_conf__" / "__hadoop_conf__").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_container_of_yarn_writes_as_the_user_of_the_job(container: Path) -> None:
    with hdfs_on_disk():
        Hdfs.of("namenode:8020")
    assert os.environ["HADOOP_USER_NAME"] == "flyer"


def test_a_container_of_yarn_has_the_configuration_of_the_job(container: Path) -> None:
    with hdfs_on_disk():
        Hdfs.of("namenode:8020")
    assert os.environ["HADOOP_CONF_DIR"] == f"{container}/__spark_conf__/__hadoop_conf__"


@pytest.mark.parametrize("name", ["HADOOP_USER_NAME", "HADOOP_CONF_DIR"])
def test_what_a_user_sets_in_a_container_of_yarn_stays(
    container: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "mine")
    with hdfs_on_disk():
        Hdfs.of("namenode:8020")
    assert os.environ[name] == "mine"

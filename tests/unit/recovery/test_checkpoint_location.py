"""Which recovery locations and step ids are taken, and how they are spelled."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest
from fsspec.registry import _registry

from outfall.errors import ConfigurationError
from outfall.recovery import CheckpointRecoveryConfig, recovery_config
from outfall.urls import masked


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("/x", "/x"),
        ("//x", "/x"),
        ("/x/y/", "/x/y"),
        ("/x/./a/../y", "/x/y"),
        ("/../x", "/x"),
        ("/", "/"),
        ("file:/x", "/x"),
        ("file:///x/y/..", "/x"),
        ("file://localhost/x", "/x"),
        ("FILE:///x", "/x"),
        ("/x#y?z/50%20", "/x#y?z/50%20"),
        ("file:///x%20y", "/x%20y"),
        ("/a:b", "/a:b"),
        ("memory://x/y/", "memory://x/y"),
        ("s3://bucket", "s3://bucket"),
        ("s3a://bucket/a//b/../c/", "s3://bucket/a/c"),
        ("s3://bucket/../../x", "s3://bucket/x"),
        ("gcs://bucket/x", "gs://bucket/x"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("hdfs://namenode:8020/x/../y", "hdfs://namenode:8020/y"),
        ("hdfs:///x", "hdfs:///x"),
    ],
)
def test_a_location_is_normalised_and_its_url_gives_an_equal_configuration(given: str, url: str) -> None:
    config = recovery_config(given)
    assert config.url() == url
    assert recovery_config(config.url()) == config == CheckpointRecoveryConfig(given)


def test_the_home_directory_is_resolved_where_the_configuration_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    config = CheckpointRecoveryConfig("~/chk")
    monkeypatch.setenv("HOME", "/home/executor")
    assert pickle.loads(pickle.dumps(config)).url() == "/home/ada/chk"


@pytest.mark.parametrize("given", ["chk", "./chk", "../chk", "file:chk", "~nobody-has-this-name/chk"])
def test_a_relative_location_is_refused_before_anything_is_made(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"is relative.*absolute path"):
        CheckpointRecoveryConfig(given)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("scheme", ["ftp", "http", "https", "sftp", "dbfs", "webhdfs", "zip", "S3N"])
def test_a_filesystem_that_is_not_on_the_list_is_refused_with_what_to_use_instead(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match=r"POSIX filesystem .*s3://"):
        CheckpointRecoveryConfig(f"{scheme}://host/x")


@pytest.mark.parametrize("given", ["", "  ", "s3:x", "s3://", "s3:///x", "file://host/x", "/x\0y", Path("/x")])
def test_what_is_no_location_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="What to do: "):
        CheckpointRecoveryConfig(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        "s3://key:hunter2@bucket/x",
        "s3://hunter2@bucket/x",
        "abfss://container:hunter2@account/x",
        "az://container/x?sig=hunter2",
        "s3://bucket/x#hunter2",
        "hdfs://ada:hunter2@host/x",
        "https://host/x?token=hunter2",
        "file://ada:hunter2@host/x",
        "s3a://AKIA:hun/hunter2@bucket/x",
        "s3a://AKIA:hunter2/hun@bucket/x@y",
        "https://AKIA:hun/hunter2@bucket/x",
        "s3:/AKIA:hunter2@bucket/x",
        "s3:AKIA:hunter2@bucket/x",
        "s3://AKIA:hunter2@bucket/x\0",
    ],
)
def test_a_secret_in_a_location_is_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        CheckpointRecoveryConfig(given)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "given", ["s3://AKIA:se/x", "abfss://container:x/y", "memory://x:1/y", "s3://arn:aws:s3:eu:1:accesspoint/x@y"]
)
def test_a_root_with_a_colon_may_be_the_beginning_of_a_secret(given: str) -> None:
    with pytest.raises(ConfigurationError, match="contains credentials"):
        CheckpointRecoveryConfig(given)


def test_the_arn_of_an_access_point_is_no_secret() -> None:
    arn = "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/lake/x"
    assert CheckpointRecoveryConfig(arn).url() == arn


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ada:hunter2@host/x?sig=hunter2", "https://***@host/x"),
        ("https://ada:hun/ter2@host/x#hunter2", "https://***@host/x"),
        ("https://ada:hunter#2@host/x", "https://***@host/x"),
        ("s3:/ada:hunter2@host", "s3:/***@host"),
        ("//ada:hunter2@host/x", "//***@host/x"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("https://host:8443/users/@me", "https://host:8443/users/@me"),
        ("/a:b/c@d", "/a:b/c@d"),
    ],
)
def test_what_may_be_a_secret_is_masked_and_nothing_else(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_a_configuration_is_a_plain_picklable_value() -> None:
    config = CheckpointRecoveryConfig("file:///x/")
    assert pickle.loads(pickle.dumps(config)) == config
    assert repr(config) == "CheckpointRecoveryConfig(location='/x')"


@pytest.mark.parametrize("step_id", ["sink", "a", "0", "Sink-1.b_c", "a..b", "x" * 200])
def test_a_step_id_is_the_name_of_its_directory(step_id: str, tmp_path: Path) -> None:
    CheckpointRecoveryConfig(str(tmp_path)).open(step_id).append(b"{}", after=0)
    assert os.listdir(tmp_path / "outfall") == [step_id]


@pytest.mark.parametrize(
    "step_id", ["", ".", "..", ".x", "-x", "_x", "a/b", "a b", "ä", "a\n", "a\0", "x" * 201, None, 1]
)
def test_other_step_ids_are_refused(step_id: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a valid step id.*letters, digits"):
        CheckpointRecoveryConfig(str(tmp_path)).open(step_id)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(_registry, "gs", raising=False)
    with pytest.raises(ImportError, match="pip install gcsfs"):
        CheckpointRecoveryConfig("gs://bucket/x").open("sink")


def test_a_colon_is_refused_in_hdfs_which_allows_none() -> None:
    with pytest.raises(ConfigurationError, match="colon"):
        CheckpointRecoveryConfig("hdfs://namenode:8020/a:b")


def test_the_advice_to_use_another_location_says_what_hdfs_needs() -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'outfall\[hdfs\]'"):
        CheckpointRecoveryConfig("dbfs:/x")

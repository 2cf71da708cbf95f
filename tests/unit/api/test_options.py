"""Options: one model for constructor, options API and documentation."""

from __future__ import annotations

import inspect
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import ByteSize, Field, SecretStr

from outfall.delta import DeltaSink
from outfall.delta.options import DeltaOptions
from outfall.errors import ConfigurationError
from outfall.file import FileSink, sink_from_options
from outfall.file.options import FileOptions
from outfall.file.whole.sink import WholeFiles
from outfall.http import HttpSink
from outfall.http.options import HttpOptions
from outfall.http.statuses import Verdict
from outfall.iceberg import IcebergSink
from outfall.iceberg.options import IcebergOptions
from outfall.kafka import KafkaSink
from outfall.kafka.options import KafkaOptions
from outfall.kinesis import KinesisSink
from outfall.options import (
    Duration,
    Limit,
    Names,
    SinkOptions,
    known_values,
    make_options,
    options_table,
    parse_options,
    resolve_secret,
)
from outfall.postgres import PostgresSink
from outfall.protocol.commit_retry import CommitPolicy
from outfall.s3 import S3Sink
from outfall.s3.options import S3Options
from outfall.source_options import build_sink, make_sink
from outfall.wrappers import BatchingOptions, BatchingSink, DeadLetteringSink, ExactlyOnceSink


class Options(SinkOptions):
    max_bytes: int = Field(default=10, ge=1, description="How many.")
    mode: Literal["a", "b"] = Field(default="a", description="Which | way.")
    flush: bool = Field(default=False, description="Whether.")
    token: SecretStr | None = Field(default=None, min_length=3, description="Secret.")
    address: str = Field(description="Where.")
    keys: Names = Field(default=(), description="Whose.")


@pytest.mark.parametrize("name", ["maxBytes", "max_bytes", "maxbytes", "MAX_BYTES"])
def test_an_option_may_be_spelled_in_four_ways(name: str) -> None:
    assert parse_options(Options, {name: "7", "address": "x"}).max_bytes == 7


def test_text_becomes_what_the_option_needs() -> None:
    parsed = parse_options(Options, {"flush": "true", "mode": "b", "address": "x", "token": "abc"})
    assert (parsed.flush, parsed.mode, parsed.address) == (True, "b", "x")


def test_words_ignore_case_and_are_kept_in_their_own() -> None:
    made = make_options(Options, {"address": "X", "mode": "B", "flush": "TRUE"})
    assert made == parse_options(Options, {"ADDRESS": "X", "MODE": "B", "flush": "True"})
    assert (made.address, made.mode, made.flush) == ("X", "b", True)
    assert FileSink("/x", compression="GZIP", format="CSV").options.format == "csv"  # type: ignore[arg-type]
    http = HttpSink("http://127.0.0.1:9", method="put", statuses="404=DEAD_LETTER").delegate.http  # type: ignore[arg-type]
    assert (http.method, http.statuses) == ("PUT", {404: Verdict.DEAD_LETTER})
    assert build_sink("FILE", {"path": "/x"}).options.path == "/x"
    assert CommitPolicy(on_known_failure="DROP").on_known_failure == "drop"  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be 'a' or 'b', not 'C'"):
        make_options(Options, {"address": "x", "mode": "C"})


def test_names_are_a_list_or_text_with_commas() -> None:
    assert parse_options(Options, {"address": "x", "keys": " a,b "}).keys == ("a", "b")
    assert make_options(Options, {"address": "x", "keys": ["a,b"]}).keys == ("a,b",)
    for wrong in ("a,,b", [""], {"a", "b"}, 1):
        with pytest.raises(ConfigurationError, match=r"keys of .*: must"):
            make_options(Options, {"address": "x", "keys": wrong})


class Reached(SinkOptions):
    """How something with secrets is reached."""

    url: str = ""
    token: SecretStr = SecretStr("")
    headers: dict[str, SecretStr] = {}


def test_a_repr_shows_no_secret_and_of_a_url_only_the_place() -> None:
    made = Reached(
        url="https://me:hunter2@h/p?k=hunter2",
        token=SecretStr("hunter2"),
        headers={"X-Api-Key": SecretStr("hunter2")},
    )
    for text in (repr(made), str(made)):
        assert "https://***@h/p" in text
        assert "hunter2" not in text


def test_every_wrong_option_is_named_at_once_and_no_secret() -> None:
    options = {"maxbites": "1", "flush": "perhaps", "mode": "c", "token": "se", "zzz": "topsecret"}
    with pytest.raises(ConfigurationError) as caught:
        parse_options(Options, options)
    message = str(caught.value)
    assert message.startswith("options of Sink are wrong:\n- ")
    assert "maxbites: unknown, did you mean max_bytes?" in message
    assert "not 'perhaps'" in message
    assert "mode: " in message
    assert "address: " in message
    assert "token: " in message
    assert "\n- zzz: unknown\n" in message
    assert message.endswith("What to do: use one of: max_bytes, mode, flush, token, address, keys.")
    assert "'se'" not in message
    assert "topsecret" not in message
    assert caught.value.__context__ is None or "'se'" not in str(caught.value.__context__)


def test_one_option_in_two_spellings_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"max_bytes of .*: given twice"):
        parse_options(Options, {"max_bytes": "1", "maxbytes": "2", "address": "x"})


def test_a_constructor_takes_the_names_of_the_model_only() -> None:
    with pytest.raises(ConfigurationError, match=r"maxBytes of .*: unknown, did you mean max_bytes"):
        make_options(Options, {"maxBytes": 1, "address": "x"})


def test_the_table_has_a_line_for_each_option_and_begins_with_the_required_ones() -> None:
    assert options_table(Options).splitlines()[2:] == [
        "| `address` | string | required | Where. |",
        "| `max_bytes` | integer | `10` | How many. |",
        "| `mode` | `a`, `b` | `a` | Which \\| way. |",
        "| `flush` | `true`, `false` | `false` | Whether. |",
        "| `token` | secret | none | Secret. |",
        "| `keys` | list of strings | empty | Whose. |",
    ]


def test_secrets_are_read_where_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTFALL_SECRET", "from the environment")
    (tmp_path / "secret").write_text("from a file\n")
    assert resolve_secret(SecretStr("env:OUTFALL_SECRET")) == "from the environment"
    assert resolve_secret(SecretStr(f"file:{tmp_path / 'secret'}")) == "from a file"
    assert resolve_secret(SecretStr("itself")) == "itself"
    with pytest.raises(ConfigurationError, match=r"'NOT_SET', .* not set on this driver, host .*executorEnv\.NOT_SET"):
        resolve_secret(SecretStr("env:NOT_SET"))
    with pytest.raises(ConfigurationError, match="no/such"):
        resolve_secret(SecretStr("file:/no/such"))


def test_former_values_of_a_secret_are_known_until_the_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "token"
    secret = SecretStr(f"file:{path}")
    assert known_values(secret, None, SecretStr("literal")) == ["literal"], "it was never used"
    for text in ("old", "new", "new"):
        path.write_text(text)
        assert resolve_secret(secret) == text
    path.unlink()
    assert known_values(secret) == ["new", "old"]


def test_a_worker_without_a_secret_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="the other tests need no pyspark at all")
    monkeypatch.setattr("pyspark.TaskContext.get", object)
    with pytest.raises(ConfigurationError, match=r"on this worker \(Spark executor\), host .* does not reach them"):
        resolve_secret(SecretStr("env:NOT_SET"))
    with pytest.raises(ConfigurationError, match=r"cannot be read on this worker \(Spark executor\), host "):
        resolve_secret(SecretStr("file:/no/such"))


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/a/b", "/a/b"),
        ("/a/../b/", "/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a%20b", "/a%20b"),
        ("file://localhost/a", "/a"),
        (Path("/a"), "/a"),
        ("/odd:name/x", "/odd:name/x"),
        ("rel/x", os.path.abspath("rel/x")),
    ],
)
def test_paths_become_absolute_where_the_sink_is_made(given: Any, path: str) -> None:
    assert FileSink(given).options.path == path
    assert FileSink(given).target() == f"file:{path}"


@pytest.mark.parametrize("path", ["ftp://host/x", "dbfs:/x", "https://host/x"])
def test_other_schemes_are_refused_with_what_is_supported(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not supported; use a path, file:, s3, "):
        FileSink(path)


@pytest.mark.parametrize("path", ["", "file:", "file://host/x", "a\0b", None, 3])
def test_paths_that_name_nothing_are_refused(path: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"path of .*: "):
        FileSink(path)


@pytest.mark.parametrize(
    "wrong", [{"format": "xml"}, {"parts": 0}, {"parts": "many"}, {"on_existing": "append"}, {"on_rewind": "x"}]
)
def test_wrong_values_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"option {next(iter(wrong))} of FileSink: must be "):
        FileSink("/x", **wrong)


def test_the_options_door_makes_whole_files() -> None:
    sink = sink_from_options({"path": "/x", "format": "text", "onExisting": "resume", "on_rewind": "truncate"})
    assert isinstance(sink.delegate, WholeFiles)
    assert sink.options == FileOptions(path="/x", format="text", on_existing="resume", on_rewind="truncate")


def test_the_options_door_refuses_parts_with_the_line_to_use_instead() -> None:
    with pytest.raises(ConfigurationError, match=r"the sink file .* has parts, .* write_stream\(df, sink, key=…,"):
        make_sink("file", {"path": "/x", "parts": "4"})
    assert build_sink("file", {"path": "/x", "parts": "4"}).options.parts == 4, "as the command line does"


@pytest.mark.parametrize(
    ("sink", "arguments", "given", "meant"),
    [
        (FileSink, {"path": "/x"}, "on_exsting", "on_existing"),
        (PostgresSink, {"dsn": "postgresql:///x", "table": "t"}, "on_exsting", "on_existing"),
        (S3Sink, {"bucket": "b"}, "on_exsting", "on_existing"),
        (HttpSink, {"url": "http://127.0.0.1:9"}, "max_batchsiz", "max_batch_size"),
        (BatchingSink, {"sink": FileSink("/x")}, "batchsizes", "batch_size"),
        (ExactlyOnceSink, {"target": FileSink("/x"), "offset": "o", "source_partition": "p"}, "windw", "window"),
        (DeadLetteringSink, {"sink": FileSink("/x")}, "dead_leters", "dead_letter"),
        (KinesisSink, {}, "stram", "stream"),
        (KafkaSink, {}, "broker", "brokers"),
        (IcebergSink, {"table": "a.b"}, "snapshot_property", "snapshot_properties"),
        (DeltaSink, {"path": "/x"}, "partitionby", "partition_by"),
    ],
)
def test_constructors_name_the_nearest_option(sink: Any, arguments: dict[str, Any], given: str, meant: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"^option {given} of {sink.__name__}: unknown, did you mean {meant}\?$"
    ):
        sink(**arguments, **{given: 1})


@pytest.mark.parametrize(
    ("model", "former", "name"),
    [
        (S3Options, "part_size", "part_bytes"),
        (S3Options, "inline_size", "inline_bytes"),
        (DeltaOptions, "target_file_size", "target_file_bytes"),
        (IcebergOptions, "expire_snapshots", "snapshot_properties or max_snapshot_age"),
        (HttpOptions, "request_timeout_ms", "request_timeout"),
        (HttpOptions, "retry_max_backoff", "max_retry_backoff or retry_backoff"),
        (HttpOptions, "retry_after_longest", "max_retry_after"),
        (KafkaOptions, "timeout", "delivery_timeout"),
        (BatchingOptions, "max_bytes", "batch_bytes"),
    ],
)
def test_the_nearest_of_a_name_has_its_words_in_any_order(model: type[SinkOptions], former: str, name: str) -> None:
    for spelled in (former, former.replace("_", "")):
        with pytest.raises(ConfigurationError, match=rf"{spelled}( of \w+)?: unknown, did you mean {name}\?"):
            parse_options(model, {spelled: "1"})


def test_a_constructor_that_refuses_unknown_names_shows_its_signature() -> None:
    parameters = inspect.signature(PostgresSink).parameters
    assert [*parameters][:3] == ["dsn", "table", "table_column"]
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'dsn'"):
        PostgresSink()  # type: ignore[call-arg]


def test_one_wrong_value_does_not_list_the_names_of_all_options() -> None:
    with pytest.raises(ConfigurationError) as caught:
        FileSink("/x", parts=0)
    assert str(caught.value) == "option parts of FileSink: must be greater than or equal to 1, not 0."
    with pytest.raises(ConfigurationError) as caught:
        PostgresSink("postgresql:///x", "t", write_mode="upsert")
    assert str(caught.value) == "options of PostgresSink: write_mode upsert needs key_columns."
    with pytest.raises(ConfigurationError, match=r"qqq of FileSink: unknown\. What to do: use one of: path, "):
        sink_from_options({"path": "/x", "qqq": "1"})


def test_options_show_secrets_in_one_form_and_references_as_they_are() -> None:
    made = HttpSink(
        "https://h/rows", bearer_token="s3cret", headers={"X-A": "s3cret", "X-B": "env:B"}, query={"q": "file:/q"}
    ).options
    assert "s3cret" not in repr(made)
    assert "bearer_token='***'" in repr(made)
    assert "headers={'X-A': '***', 'X-B': 'env:B'}" in str(made)
    assert "query={'q': 'file:/q'}" in str(made)


class Limits(SinkOptions):
    day: Duration = Field(default=timedelta(days=30), description="x")
    minute: Duration = Field(default=timedelta(minutes=5), description="x")
    one: Duration = Field(default=timedelta(seconds=1), description="x")
    odd: Duration = Field(default=timedelta(seconds=90, milliseconds=1), description="x")
    no_limit: Limit = Field(default=timedelta(0), description="x")
    size: ByteSize = Field(default=ByteSize(8 << 20), description="x")
    maybe: ByteSize | None = Field(default=ByteSize(1000 << 10), description="x")
    bytes: ByteSize = Field(default=ByteSize(999), description="x")
    none: ByteSize = Field(default=ByteSize(0), description="x")


def test_durations_and_sizes_are_shown_as_a_user_can_write_them() -> None:
    defaults = [line.split(" | ")[2].strip("`") for line in options_table(Limits).splitlines()[2:]]
    assert defaults == [
        "30 days", "5 minutes", "1 second", "90001 milliseconds", "0", "8 MiB", "1000 KiB", "999 B", "0",
    ]  # fmt: skip
    assert parse_options(Limits, dict(zip(Limits.model_fields, defaults, strict=True))) == Limits()


def test_the_options_door_names_the_nearest_option() -> None:
    with pytest.raises(ConfigurationError, match="did you mean on_existing"):
        sink_from_options({"path": "/x", "onexistin": "error"})

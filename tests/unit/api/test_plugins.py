"""Sinks and formats are found by the entry points of what is installed, on the driver; tasks need the code alone."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import invalidate_caches, metadata
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from outfall import plugins
from outfall.errors import CapabilityError, ConfigurationError
from outfall.file import FileSink
from outfall.formats import FormatOptions, suffix
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.messages import TaskResponse
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.recovery import recovery_config
from outfall.source_options import build_sink, make_sink, split_options
from tests.third_party.distribution import copy_code_only, install
from tests.third_party.outfall_letterbox import rows_in


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("third_party") / "site"
    install(directory)
    return directory


@pytest.fixture
def third_party(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(installed))
    yield installed
    sys.modules.pop("outfall_letterbox", None)


def another(directory: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Install one more distribution, and see it."""
    install(directory, **options, by_pip=False)
    monkeypatch.syspath_prepend(str(directory))


def test_the_sink_of_another_distribution_is_made_by_its_name(third_party: Path, tmp_path: Path) -> None:
    sink = make_sink("LetterBox", {"directory": str(tmp_path)})
    assert (type(sink).__module__, sink.directory) == ("outfall_letterbox", str(tmp_path))
    assert "letterbox" in plugins.names(plugins.SINKS)


def test_its_options_are_checked_as_those_of_any_sink(third_party: Path) -> None:
    with pytest.raises(ConfigurationError, match="directroy: unknown, did you mean directory"):
        make_sink("letterbox", {"directroy": "/a"})


def test_what_wraps_any_sink_wraps_it_too(third_party: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="batch_size of BatchingSink: must be"):
        build_sink("letterbox", {"directory": str(tmp_path), "batchSize": "0"})
    fan_out = build_sink("fanout", {"a.sink": "letterbox", "a.directory": str(tmp_path)})
    assert fan_out.children()["a"].directory == str(tmp_path)
    with pytest.raises(CapabilityError, match="does not report rejected records"):
        build_sink("letterbox", {"directory": str(tmp_path), "dead_letter.sink": "file", "dead_letter.path": "/b"})


def test_the_recovery_store_of_another_distribution_is_found_by_its_scheme(third_party: Path, tmp_path: Path) -> None:
    assert recovery_config(f"letterbox://{tmp_path}").url() == str(tmp_path)


def test_a_scheme_that_nobody_registers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"letterbox: .* no installed distribution registers a store"):
        recovery_config("letterbox:///log")


def test_what_is_no_recovery_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    another(tmp_path / "b", monkeypatch, entry_points={"outfall.recovery": {"letterbox": "builtins:len"}})
    with pytest.raises(ConfigurationError, match=r"entry point for letterbox: in outfall\.recovery returns int"):
        recovery_config("letterbox:///log")


@pytest.mark.parametrize("name", ["leterbox", "xyz"])
def test_an_unknown_sink_is_told_which_there_are(third_party: Path, name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_sink(name, {})
    assert f"there is no sink '{name}'" in str(refused.value)
    assert (
        "delta, dynamodb, fanout, file, http, iceberg, kafka, kinesis, letterbox, mysql, opensearch, postgres, redis,"
        " s3" in str(refused.value)
    )
    assert ("did you mean 'letterbox'?" in str(refused.value)) == (name == "leterbox")


def test_a_missing_sink_is_told_which_there_are(third_party: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r'the option "sink" is missing.*kinesis, letterbox, mysql, opensearch, postgres'
    ):
        split_options({"path": "/a"})


def test_a_name_that_two_distributions_register_is_refused(
    third_party: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another(tmp_path / "b", monkeypatch, name="other-box", entry_points={"outfall.sinks": {"letterbox": "other:make"}})
    with pytest.raises(ConfigurationError) as refused:
        make_sink("letterbox", {"directory": "/a"})
    assert "other:make of other-box 1.0, outfall_letterbox:sink_from_options of outfall-letterbox 1.0" in str(
        refused.value
    )
    make_sink("file", {"path": str(tmp_path)})


def test_one_distribution_that_is_there_twice_is_one(
    third_party: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another(tmp_path / "b", monkeypatch)
    assert make_sink("letterbox", {"directory": "/a"}).directory == "/a"


def test_metadata_without_its_code_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    another(tmp_path / "b", monkeypatch, entry_points={"outfall.sinks": {"letterbox": "outfall_letterbox:make"}})
    with pytest.raises(
        ConfigurationError, match=r"outfall-letterbox 1\.0 registers 'letterbox'.*outfall_letterbox:make"
    ):
        make_sink("letterbox", {"directory": "/a"})


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in [name for name in sys.modules if name.startswith("outfall.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"pip install 'outfall\[postgres\]'"):
        make_sink("postgres", {"dsn": "host=/nowhere", "table": "t"})


@pytest.mark.parametrize("options", [{"sink": "file", "path": "/a"}, {"path": "/a"}], ids=["named", "not named"])
def test_code_without_its_metadata_is_refused_on_the_driver(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda **_: metadata.EntryPoints())
    text = r"no sink is registered here.*--py-files.*install Outfall with pip"
    if "sink" not in options:
        with pytest.raises(ConfigurationError, match=text):
            split_options(options)
        return
    source, rest = split_options(options)
    with pytest.raises(ConfigurationError, match=text):
        make_sink(source.sink, rest)


TASK = """
import pickle, sys
from importlib import metadata
from outfall import plugins
assert plugins.names(plugins.SINKS) == [], "this process has the metadata"
task, rows = pickle.loads(sys.stdin.buffer.read())
sys.stdout.buffer.write(task.run(rows).encode())
"""


def in_process_with_code_alone(task: EpochTask, rows: Any, directory: Path) -> TaskResponse:
    """Run a task as an executor may do: with the code of Outfall and of the distribution, and without metadata."""
    sent = cloudpickle.dumps((task, rows))
    path = os.pathsep.join(copy_code_only(directory))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-S", "-c", TASK], check=False, input=sent, env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    return TaskResponse.decode(done.stdout)


def test_a_process_that_has_the_code_alone_runs_a_task(third_party: Path, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    directory.mkdir()
    invalidate_caches()
    sink = make_sink("letterbox", {"directory": str(directory), "batch_size": "2"})
    with closing(EpochCoordinator(sink, "sink", recovery_config(f"letterbox://{tmp_path / 'log'}"))) as coordinator:
        ticket = coordinator.begin(0)
        task = EpochTask(sink, ticket, TaskIdentity(epoch=0, worker_index=0, attempt=0))
        response = in_process_with_code_alone(task, [(None, [1, 2, 3])], tmp_path / "executor")
        coordinator.finish(ticket, [response])
    assert rows_in(directory) == [1, 2, 3]


@pytest.mark.thorough
def test_a_format_of_another_distribution_is_written_by_a_process_that_has_the_code_alone(
    third_party: Path, tmp_path: Path
) -> None:
    given = {"path": str(tmp_path / "out"), "format": "Letters", "formatOptions": '{"Greeting": "Hi", "copies": 2}'}
    sink = make_sink("file", given)
    with closing(EpochCoordinator(sink, "sink", recovery_config(f"letterbox://{tmp_path / 'log'}"))) as coordinator:
        ticket = coordinator.begin(0)
        task = EpochTask(sink, ticket, TaskIdentity(epoch=0, worker_index=0, attempt=0))
        rows = [(None, pa.RecordBatch.from_pydict({"name": ["Ann", "Bob"]}))]
        coordinator.finish(ticket, [in_process_with_code_alone(task, rows, tmp_path / "executor")])
    (file,) = (tmp_path / "out").glob("*.letters.gz")
    assert gzip.decompress(file.read_bytes()) == b"Hi Ann\nHi Ann\nHi Bob\nHi Bob\n"


def test_a_foreign_format_says_how_its_files_are_named_compressed_and_continued(third_party: Path) -> None:
    options = FormatOptions(format="letters")
    assert (options.codec, suffix(options)) == ("gzip", ".letters.gz")
    assert suffix(FormatOptions(format="letters", compression="none")) == ".letters"
    FileSink("/x", format="letters", parts=2)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"format": "leters"},
            "'avro', 'csv', 'jsonl', 'letters', 'orc', 'parquet' or 'text' .*mean letters.*'leters'",
        ),
        ({"format": "letters", "format_options": {"greting": "Hi"}}, "greting of Letters.*did you mean greeting"),
        ({"format": "letters", "format_options": {"copies": 0}}, "copies of Letters.*greater than or equal to 1"),
        (
            {"format": "letters", "format_options": "Hi"},
            "format_options of File.*: must be a mapping of names",
        ),
        ({"format": "letters", "header": True}, "header is an option of csv, but the format is letters"),
        (
            {"format": "letters", "compression": "zstd"},
            "zstd is for other formats, .* is letters: use gzip",
        ),
        ({"format": "csv", "format_options": {"greeting": "Hi"}}, "format_options is for formats that .* unlike csv"),
    ],
)
def test_what_does_not_fit_a_foreign_format_is_refused_on_the_driver(
    third_party: Path, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        FileSink("/x", **options)


def test_what_is_no_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    another(tmp_path / "b", monkeypatch, entry_points={"outfall.formats": {"letters": "builtins:len"}})
    with pytest.raises(ConfigurationError, match=r"letters in outfall\.formats names <built-in .*Encoder"):
        FileSink("/x", format="letters")


def test_outfalls_own_formats_need_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda **_: metadata.EntryPoints())
    made = [FormatOptions(format=name).encoder.__name__ for name in ("csv", "jsonl", "parquet", "text")]
    assert made == ["CsvEncoder", "JsonlEncoder", "ParquetEncoder", "TextEncoder"]

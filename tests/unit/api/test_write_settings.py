"""What is refused of a write before there are rows."""

from __future__ import annotations

import pickle
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import LongType, StructField, StructType

from outfall.capabilities import DeclaresGuarantee, DeclaresRoutingKey, Guarantee, SupportsTarget
from outfall.capability_checks import resolve
from outfall.delegating_sink import DelegatingSink
from outfall.errors import CapabilityError, ConfigurationError, TerminalError
from outfall.file import FileSink
from outfall.recovery import recovery_config
from outfall.sinks import DynamicSink, FixedPartitionedSink
from outfall.source_options import split_options
from outfall.spark import for_each_batch, version_check, write, write_stream
from outfall.spark.epoch_writer import EpochWriter
from outfall.spark.settings import StepSettings
from outfall.wrappers import FanOutSink


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"workers": "2"}, "workers is '2'"),
        ({"workers": 2.0}, "workers is 2.0"),
        ({"workers": True}, "workers is True"),
        ({"order_by": "name"}, "order_by is 'name'"),
        ({"adopt_checkpoint": "yes"}, "adopt_checkpoint is 'yes'"),
        ({"order_by": [object]}, "list of column names"),
        ({"commit": {"deadline": 3}}, "commit is a dict"),
        ({"key": 1}, "key is a int"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        StepSettings(**given)


@pytest.mark.parametrize(
    ("function", "arguments", "given", "meant"),
    [
        (write_stream, {"df": None}, "chekpoint", "checkpoint"),
        (write, {"df": None}, "epoc", "epoch"),
        (for_each_batch, {}, "recovry", "recovery"),
    ],
)
def test_functions_name_the_nearest_argument(function: Any, arguments: dict[str, Any], given: str, meant: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"^option {given} of {function.__name__}: unknown, did you mean {meant}\?$"
    ):
        function(sink=FileSink("/x"), **arguments, **{given: 1})


def test_a_class_in_place_of_a_sink_is_refused() -> None:
    with pytest.raises(CapabilityError, match="FileSink is a class, not a sink"):
        StepSettings().check(FileSink)


class Locked(DynamicSink[Any]):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any: ...


def test_a_sink_that_cannot_be_pickled_is_refused_before_anything_is_begun(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="the Locked cannot be sent"):
        EpochWriter(Locked(), recovery_config(str(tmp_path / "recovery")), StepSettings())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("deadline", ["-1", "0", "nan", "soon"])
def test_a_deadline_that_cannot_be_is_refused_through_options(deadline: str) -> None:
    with pytest.raises(ConfigurationError, match=r"commit_deadline of .*: "):
        split_options({"sink": "file", "commit_deadline": deadline})


class Asked(DynamicSink[Any], SupportsTarget[Any]):
    """A sink that counts how often it is asked about columns."""

    def __init__(self) -> None:
        self.schemas: list[pa.Schema] = []

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any: ...

    def target(self) -> str:
        return "nowhere"

    def check_target(self, context: Any) -> dict[str, Any]:
        return {}

    def check_schema(self, schema: pa.Schema) -> None:
        self.schemas.append(schema)


class Rows:
    """What of a DataFrame is looked at before any of its rows moves."""

    def __init__(self, *names: str) -> None:
        self.columns = list(names)
        self.sparkSession = SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: default))
        self.schema = StructType([StructField(name, LongType()) for name in names])


def test_a_sink_is_asked_once_for_the_same_columns(tmp_path: Path) -> None:
    sink = Asked()
    writer: Any = EpochWriter(sink, recovery_config(str(tmp_path / "recovery")), StepSettings())
    for rows in (Rows("id"), Rows("id"), Rows("id", "more"), Rows("id", "more")):
        writer.check(rows)
    assert [schema.names for schema in sink.schemas] == [["id"], ["id", "more"]]


def test_a_writer_in_another_process_asks_its_sink_again(tmp_path: Path) -> None:
    writer: Any = EpochWriter(Asked(), recovery_config(str(tmp_path / "recovery")), StepSettings())
    writer.check(Rows("id"))
    other = pickle.loads(pickle.dumps(writer))
    other.check(Rows("id"))
    assert [len(each._sink.schemas) for each in (writer, other)] == [1, 2]


class Keyed(FixedPartitionedSink[Any, int], DeclaresRoutingKey):
    """Knows the column that routes its rows."""

    def __init__(self, name: str | None = "key") -> None:
        self.name = name

    def list_parts(self) -> list[str]:
        return ["0", "1"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Any: ...

    def routing_key(self) -> str | None:
        return self.name


class Alone(DynamicSink[Any], DeclaresGuarantee):
    """Bears no second attempt beside the first."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any: ...

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def supports_speculation(self) -> bool:
        return False


@pytest.mark.parametrize(
    "sink", [Alone(), DelegatingSink(Alone()), FanOutSink([Alone(), Asked()]), FileSink("/out", parts=2)]
)
def test_speculation_is_refused_for_a_sink_that_does_not_bear_it(sink: Any) -> None:
    df: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf={"spark.speculation": "true"}))
    with pytest.raises(ConfigurationError, match=r"spark\.speculation=true.*fence"):
        StepSettings().check_rows(resolve(sink), df)


def test_a_sink_may_know_the_column_that_routes_its_rows() -> None:
    assert StepSettings().for_sink(Keyed()).key == "key"
    assert StepSettings(key="id").for_sink(Keyed()).key == "id"
    assert StepSettings().for_sink(FanOutSink([Keyed(), Keyed()])).key == "key"
    for unknown in (Keyed(None), FanOutSink([Keyed(), Keyed("id")])):
        settings = StepSettings().for_sink(unknown)
        with pytest.raises(ConfigurationError, match="no key routes"):
            settings.check_key(unknown, 2)


NO_EPOCHS: list[Any] = [-1, 2**63, 1.0, True, "-1", "1.0", "1_0", "\u0661", str(2**63), "", "x"]


@pytest.mark.parametrize("epoch", NO_EPOCHS, ids=repr)
def test_what_is_no_number_of_an_epoch_is_refused_at_each_door(epoch: Any, tmp_path: Path) -> None:
    """A target would take a negative one, and refuse every later job."""
    df: Any = SimpleNamespace(isStreaming=False)
    text = r"must be an integer from 0 to 2\^63-1"
    with pytest.raises(ConfigurationError, match=f"(?s)is not a valid epoch.*{text}"):
        write(df, FileSink("/x"), epoch=epoch, recovery=str(tmp_path))
    if isinstance(epoch, str):
        with pytest.raises(ConfigurationError, match=text):
            split_options({"sink": "file", "epoch": epoch, "recovery": str(tmp_path)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("epoch", "number"), [("0", 0), (" +20261121 ", 20261121), (str(2**63 - 1), 2**63 - 1)])
def test_an_epoch_is_a_number_in_an_option(epoch: str, number: int) -> None:
    assert split_options({"sink": "file", "epoch": epoch})[0].epoch == number


@pytest.mark.parametrize(
    ("batches", "adopt", "expected"), [(11, True, 11), (10, True, None), (11, "rerun", None), (11, False, None)]
)
def test_a_batch_that_is_open_before_the_query_starts_is_found(
    tmp_path: Path, batches: int, adopt: Any, expected: int | None
) -> None:
    for log, newest in (("offsets", batches), ("commits", 10)):
        (tmp_path / log).mkdir()
        for number in range(newest + 1):
            (tmp_path / log / str(number)).touch()
    (tmp_path / "metadata").touch()
    function = for_each_batch(FileSink(tmp_path / "out"), recovery=str(tmp_path), adopt_checkpoint=adopt)
    with closing(function._writer.coordinator()) as coordinator:
        assert coordinator._step.options.open_before == expected


def test_a_function_names_its_version_before_its_state_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = for_each_batch(FileSink(tmp_path / "out"), recovery=str(tmp_path))
    data = pickle.dumps(function)
    assert pickle.loads(data)._checkpoint == function._checkpoint
    monkeypatch.setattr(version_check, "outfall_version", lambda: "9.9")
    with pytest.raises(TerminalError, match=r"outfall 0\S+ sent a ForEachBatch to a process with outfall 9\.9"):
        pickle.loads(data)


@pytest.mark.parametrize("spelled", ["checkpointLocation", "checkpointlocation"])
def test_a_checkpoint_that_is_given_twice_keeps_the_name_that_spark_reads(spelled: str) -> None:
    with pytest.raises(ConfigurationError, match=r"omit checkpoint_location\.$"):
        split_options({"sink": "file", "checkpoint_location": "/a", spelled: "/a"})

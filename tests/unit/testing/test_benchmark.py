"""The benchmark kit's arithmetic and order, without Spark."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from outfall.errors import ConfigurationError
from outfall.testing import LocalDriver
from outfall.testing.benchmark import EmptySink, Run, Spread, in_turn, ratios, spread
from outfall.testing.benchmark.__main__ import main
from outfall.testing.benchmark.comparison import load_factory
from outfall.testing.benchmark.rows import Scratch, mixed_rows, write_rows


def no_sink(directory: Path) -> None:
    """Stands for a factory."""


def test_ratios_are_of_the_same_pair_and_not_of_the_medians() -> None:
    # The machine was ten times slower in the second pair.
    assert ratios([90.0, 9.0, 80.0], [100.0, 10.0, 100.0]) == [0.9, 0.9, 0.8]
    assert spread([0.9, 0.9, 0.8]) == Spread(0.9, 0.8, 0.9)


def test_pairs_that_were_not_counted_are_left_out() -> None:
    assert ratios([1.0, None, 3.0], [2.0, 2.0, None]) == [0.5]
    assert spread([None, 4.0]) == Spread(4.0, 4.0, 4.0)
    assert spread([None]) is None


def test_a_run_too_short_for_the_system_to_count_has_no_rate_by_cpu() -> None:
    assert Run(10, 0.5, 0.0).rows_per_cpu_second is None
    assert Run(10, 0.5, 2.0, 40).rows_per_second == 20
    assert Run(10, 0.5, 2.0, 40).rows_per_cpu_second == 5
    assert Run(10, 0.5, 2.0, 40).bytes_per_second == 80


def test_jobs_take_turns_and_every_second_round_goes_backwards() -> None:
    order: list[str] = []

    def job(name: str) -> int | None:
        order.append(name)
        return {"a": 7}.get(name)

    cpu = itertools.count(0.0, 3.0)
    jobs = {name: lambda name=name: job(name) for name in "abc"}
    runs = in_turn(jobs, 10, pairs=2, cpu_seconds=lambda: next(cpu), between=lambda: order.append("-"))
    assert "".join(order).replace("-", "") == "abc" + "cba" + "abc"
    assert order.count("-") == 9
    assert {name: len(found) for name, found in runs.items()} == {"a": 2, "b": 2, "c": 2}
    assert [(run.rows, run.cpu_seconds, run.bytes) for run in runs["a"]] == [(10, 3.0, 7)] * 2


def test_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs is 0"):
        in_turn({}, 1, pairs=0, cpu_seconds=lambda: 0.0)


def test_the_empty_sink_takes_values_and_batches(tmp_path: Path) -> None:
    assert LocalDriver(EmptySink(), str(tmp_path)).run_epoch(0, [[1, 2], [3]]).counts["rows"] == 3
    EmptySink().build("s", 0, 1).write_record_batch(mixed_rows(0, 3).to_batches()[0])


def test_rows_are_the_same_however_they_are_cut_into_files(tmp_path: Path) -> None:
    size = write_rows(tmp_path / "rows", 25, per_file=10)
    found = pq.read_table(tmp_path / "rows").sort_by("id")
    whole = mixed_rows(0, 25)
    assert len(list((tmp_path / "rows").iterdir())) == 3
    assert found.drop_columns(["x"]).equals(whole.drop_columns(["x"]))
    assert found.schema.types == whole.schema.types
    assert size >= 25 * (8 + 8 + 8)


def test_a_scratch_leaves_nothing_behind(tmp_path: Path) -> None:
    with Scratch(str(tmp_path)) as scratch:
        scratch.rows.mkdir()
        first, second = scratch.new(), scratch.new()
        assert first != second
        scratch.clear()
        assert not first.exists()
        assert scratch.rows.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_factory_is_found_by_name() -> None:
    assert load_factory(f"{__name__}:no_sink") is not None


@pytest.mark.parametrize("name", ["json", "json:", ":dumps", "json:no_such", "json:__doc__", "json:a b"])
def test_a_name_of_no_function_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        load_factory(name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["json:nothing"], "no function 'nothing'"),
        (["json:dumps", "--key", "id", "--api", "format"], "remove the key"),
        (["json:dumps", "--master", "spark://host:7077"], "local[2]"),
        (["json:dumps", "--conf", "spark.buffer.size"], "name=value"),
    ],
)
def test_the_command_refuses_before_spark_starts(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    pytest.importorskip("psutil")
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--rows", "0"], ["--pairs", "0"], ["--epochs", "1"], ["--epochs", "901"]])
def test_sizes_that_measure_nothing_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["json:dumps", *arguments])
    assert stopped.value.code == 2


@pytest.mark.parametrize("package", ["psutil", "rich"])
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    if package == "rich":
        pytest.importorskip("psutil")
    import sys

    for name in [name for name in sys.modules if name.startswith(("outfall.testing.benchmark", "rich", "psutil"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.table", None)
    assert main(["json:dumps"]) == 2
    assert "pip install 'outfall[benchmark]'" in capsys.readouterr().err

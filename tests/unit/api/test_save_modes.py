"""What save modes and output modes ask of sinks, and of the sinks that they consist of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outfall import capability_checks
from outfall.capabilities import SaveMode
from outfall.capability_checks import check_output_mode, resolve
from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.http import HttpSink
from outfall.postgres import PostgresSink
from outfall.wrappers import BatchingSink, DeadLetteringSink, ExactlyOnceSink, FanOutSink


def http() -> HttpSink:
    return HttpSink("http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("mode", "file", "table"),
    [
        (None, "error", "error"),
        ("error", "error", "error"),
        ("append", "resume", "resume"),
        ("overwrite", "overwrite", "overwrite"),
    ],
)
def test_a_mode_says_what_is_done_with_data_that_is_there(
    tmp_path: Path, mode: SaveMode | None, file: str, table: str
) -> None:
    assert resolve(FileSink(tmp_path)).in_save_mode(mode).options.on_existing == file
    assert resolve(PostgresSink("postgresql:///x", "t")).in_save_mode(mode).options.on_existing == table
    several = resolve(FanOutSink(a=FileSink(tmp_path), b=PostgresSink("postgresql:///x", "t"))).in_save_mode(mode)
    assert [child.options.on_existing for child in several.children().values()] == [file, table]
    once = resolve(ExactlyOnceSink(FileSink(tmp_path), offset="o", source_partition="p")).in_save_mode(mode)
    assert once.children()["target"].options.on_existing == file
    held = resolve(BatchingSink(FileSink(tmp_path), batch_size=2, across_epochs=True)).in_save_mode(mode)
    assert held.children()["target"].options.on_existing == file


def test_an_option_that_says_the_same_may_be_given_and_another_not(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, on_existing="resume")
    assert resolve(sink).in_save_mode(None).options.on_existing == "resume"
    assert resolve(sink).in_save_mode("append").options.on_existing == "resume"
    with pytest.raises(ConfigurationError, match="mode='overwrite' and on_existing='resume' contradict"):
        resolve(sink).in_save_mode("overwrite")
    assert sink.options.on_existing == "resume"


def test_a_sink_that_does_not_see_its_target_only_appends(tmp_path: Path) -> None:
    assert resolve(http()).in_save_mode(None)
    assert resolve(http()).in_save_mode("append")
    with pytest.raises(ConfigurationError, match=r'HttpSink cannot be written with mode=.error.*pass mode="append"'):
        resolve(http()).in_save_mode("error")
    with pytest.raises(ConfigurationError, match='The only save mode that the sink supports is "append"'):
        resolve(http()).in_save_mode("overwrite")
    with pytest.raises(ConfigurationError, match="HttpSink cannot be written") as caught:
        resolve(FanOutSink(a=FileSink(tmp_path), b=http())).in_save_mode("overwrite")
    assert caught.value.__notes__ == ["In the sink 'b'."]


def test_dead_letters_of_former_runs_are_never_overwritten(tmp_path: Path) -> None:
    target = ExactlyOnceSink(FileSink(tmp_path / "a"), offset="o", source_partition="p")
    sink = resolve(DeadLetteringSink(target, FileSink(tmp_path / "b"))).in_save_mode("overwrite")
    assert sink.children()["sink"].children()["target"].options.on_existing == "overwrite"
    assert sink.children()["dead_letters"].options.on_existing == "resume"


def test_rows_that_come_again_need_a_sink_that_upserts_or_sends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    capability_checks._warn_of_kept_keys.cache_clear()
    upsert = PostgresSink("postgresql:///x", "t", write_mode="upsert", key_columns="k")
    letters = DeadLetteringSink(http(), FileSink(tmp_path))
    for sink in (upsert, http(), FanOutSink(a=upsert, b=http()), letters):
        for mode in ("append", "update", "complete"):
            check_output_mode(resolve(sink), mode)
    # Once for each sink.
    kinds = [message.partition(" replaces")[0].rpartition(" ")[2] for message in caplog.messages]
    assert kinds == ["PostgresSink", "FanOutSink"]
    assert "keeps those of keys that have left it" in caplog.messages[0]
    adding: list[Any] = [FileSink(tmp_path), PostgresSink("postgresql:///x", "t")]
    for sink in [*adding, FanOutSink(a=upsert, b=FileSink(tmp_path))]:
        check_output_mode(resolve(sink), "append")
        for mode in ("update", "complete"):
            with pytest.raises(ConfigurationError, match=f"output mode is {mode}, .* takes append only"):
                check_output_mode(resolve(sink), mode)

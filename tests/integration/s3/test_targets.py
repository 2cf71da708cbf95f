"""S7, E23: two queries at one moment, copies of prefixes and logs, on real servers; the unit tests try each step."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import FencedError, OutfallError, TargetLostError, TargetNotEmptyError
from outfall.s3 import S3Sink
from tests.integration.s3.support import Target, listening, rows, run
from tests.one_each import thorough


def fate(sink: S3Sink, recovery: Path, epoch: int, *ids: int) -> OutfallError | None:
    """Run an epoch; return what it raised."""
    try:
        run(sink, str(recovery), epoch, rows(*ids))
    except OutfallError as error:
        return error
    return None


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Call each in a thread, at one moment; return what they returned."""
    barrier, results = threading.Barrier(len(calls)), [None] * len(calls)

    def call(index: int) -> None:
        barrier.wait()
        results[index] = calls[index]()

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("modes", [("overwrite", "overwrite"), ("overwrite", "error")])
def test_of_two_queries_that_come_at_one_moment_never_do_both_go_on(
    any_target: Target, tmp_path: Path, modes: tuple[str, str]
) -> None:
    sinks = [any_target.sink(on_existing=mode) for mode in modes]
    at_once(*(lambda index=index: fate(sinks[index], tmp_path / str(index), 0, index) for index in (0, 1)))
    going = [index for index in (0, 1) if fate(sinks[index], tmp_path / str(index), 1, 10 + index) is None]
    assert len(going) <= 1
    assert {10 + index for index in going} <= set(any_target.ids())


@pytest.mark.parametrize("step", ["s3: record advanced", thorough("s3: completed")])
def test_a_query_whose_prefix_is_overwritten_while_it_publishes_is_told(
    any_target: Target, tmp_path: Path, step: str
) -> None:
    other = [any_target.sink(on_existing="overwrite")]
    live = any_target.sink()
    run(live, str(tmp_path / "live"), 0, rows(0))

    def overwrite(reached: str) -> None:
        if reached == step and other:
            run(other.pop(), str(tmp_path / "other"), 0, rows(100))

    with listening(overwrite):
        assert isinstance(fate(live, tmp_path / "live", 1, 1), TargetLostError)
    assert 100 in any_target.ids()


def test_an_overwrite_above_a_query_is_refused(any_target: Target, tmp_path: Path) -> None:
    inner = Target(any_target.server, any_target.bucket, "out/inner")
    run(inner.sink(), str(tmp_path / "inner"), 0, rows(1))
    error = fate(any_target.sink(on_existing="overwrite"), tmp_path / "outer", 0, 2)
    assert isinstance(error, TargetNotEmptyError)
    run(inner.sink(), str(tmp_path / "inner"), 1, rows(3))
    assert inner.ids() == [1, 3]


def test_a_prefix_that_was_restored_from_an_older_copy_is_refused(any_target: Target, tmp_path: Path) -> None:
    """30 of 48 rows were gone, and every call was ok."""
    sink = any_target.sink()
    run(sink, str(tmp_path), 0, rows(0))
    older = any_target.objects()
    run(sink, str(tmp_path), 1, rows(1))
    any_target.delete_all()
    for key, body in older.items():
        any_target.client.put_object(Bucket=any_target.bucket, Key=any_target.root + key, Body=body)
    assert isinstance(fate(sink, tmp_path, 2, 2), TargetLostError)


def test_of_two_copies_of_one_log_only_one_goes_on(any_target: Target, tmp_path: Path) -> None:
    """Both count the same generations, and name their objects alike."""
    sink = any_target.sink()
    run(sink, str(tmp_path / "0"), 0, rows(0))
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    fates = at_once(*(lambda index=index: fate(sink, tmp_path / str(index), 1, 10 + index) for index in (0, 1)))
    fates = [error or fate(sink, tmp_path / str(index), 2, 20 + index) for index, error in enumerate(fates)]
    going = [index for index, error in enumerate(fates) if error is None]
    assert len(going) <= 1
    assert len(any_target.ids()) <= 3
    assert {20 + index for index in going} <= set(any_target.ids())
    assert any(isinstance(error, FencedError) for error in fates)

"""What a worker has loaded is not visited by the garbage collection that PySpark runs after each task."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from outfall.spark import task_function
from outfall.spark.task_function import spare_modules


@pytest.fixture
def thawed() -> Iterator[None]:
    gc.unfreeze()
    task_function._spare.cache_clear()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_a_task_exempts_what_is_loaded_and_again_only_after_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    spare_modules()
    first = gc.get_freeze_count()
    objects: list[list[int]] = [[] for _ in range(1000)]

    spare_modules()
    assert first > 1000
    assert gc.get_freeze_count() - first < len(objects)  # those of a task are collected as before

    monkeypatch.setitem(sys.modules, "outfall_loaded_in_a_task", ModuleType("outfall_loaded_in_a_task"))
    spare_modules()
    assert gc.get_freeze_count() - first >= len(objects)

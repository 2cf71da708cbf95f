"""The blocks of README.md and of the pages in docs/ run on Spark, in the order of their page."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from outfall.spark.version_check import pyspark_version
from tests.documents import PAGES, RECIPES, Block, blocks, page_name, unchanged_environment

pytestmark = pytest.mark.spark

SCHEMA = "carrier string, flight int, origin string, dest string, distance int"
ROWS = [
    {"carrier": carrier, "flight": number, "origin": "JFK", "dest": "LAX", "distance": 2475}
    for number, carrier in enumerate(["UA", "AA", "B6", "DL"] * 5)
]
README = PAGES[0]
OTHERS = [
    page
    for page in PAGES[1:]
    if page.parent != RECIPES and any(block.needs_spark and block.reason is None for block in blocks(page))
]


def runs_here(block: Block) -> bool:
    if block.needs_format_api and pyspark_version() < (4, 1):
        return False
    return "bytewax" not in block.code or find_spec("bytewax") is not None


@pytest.mark.thorough
@pytest.mark.parametrize("page", OTHERS, ids=page_name)
def test_blocks_run(page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks(page, spark, tmp_path, monkeypatch)


def run_blocks(page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    (source / "flights.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    day = spark.read.schema(SCHEMA).json(str(source))
    names: dict[str, Any] = {
        "spark": spark,
        "day": day,
        "flights": spark.readStream.schema(SCHEMA).json(str(source)),
    }
    with unchanged_environment():
        for block in blocks(page):
            if block.reason is None and runs_here(block):
                block.run(names, tmp_path)
                finish_queries(spark)


def finish_queries(spark: SparkSession) -> None:
    """Let each query that a block has started write what there is; one that fails raises here."""
    for query in spark.streams.active:
        try:
            query.processAllAvailable()
        finally:
            query.stop()


def test_the_example_of_the_readme_writes_each_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(README)
    with unchanged_environment():
        for _ in range(2):
            block.run({}, tmp_path)  # with nothing but what the block itself names
    lines = [line for path in (tmp_path / "ticks/files").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["value"] for line in lines) == list(range(200))

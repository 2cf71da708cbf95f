"""The recipe that continues a directory of Spark's file sink, interrupted at each step."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from outfall.errors import reason
from tests.integration.project.test_recipes import flights, put
from tests.integration.support.reading import forget_commit
from tests.integration.support.recipe import Recipe

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, carrier STRING, distance INT"
OLD = 'flights.writeStream.format("json")'
NEW = 'on_existing="resume"'
VARIANTS = {
    "json": ({}, "json", ".json"),
    "parquet": ({OLD: OLD.replace("json", "parquet"), NEW: f'{NEW}, format="parquet"'}, "parquet", ".parquet"),
    "csv, partitioned": (
        {
            OLD: OLD.replace("json", "csv") + '.partitionBy("carrier")',
            NEW: f'{NEW}, format="csv", partition_by="carrier"',
        },
        "csv",
        ".csv",
    ),
}


@pytest.fixture(autouse=True)
def compacted_log(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.streaming.fileSink.log.compactInterval"
    spark.conf.set(name, "2")
    yield
    spark.conf.unset(name)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS)
def test_migrate_from_file_sink(spark: SparkSession, tmp_path: Path, variant: str) -> None:
    changes, name, ending = VARIANTS[variant]
    recipe = Recipe("migrate-from-file-sink.md", tmp_path, {})
    source, out = tmp_path / "in" / "flights", tmp_path / "out" / "flights"
    for number in range(2):
        put(source, f"{number}.json", *flights(3 * number, 3 * number + 3))
        recipe.follow("Before", changes)
        recipe.follow("Finish the last batch of the old query" if number else "Before", changes)
        if not number:
            recipe.names["writer"].trigger(availableNow=True).start(str(out)).awaitTermination()
    assert list(out.glob("_spark_metadata/*.compact"))
    # The driver died between the sink's log and the commit, and a failed attempt left a file with rows.
    forget_commit(tmp_path / "chk" / "flights", 1)
    orphaned = next(path for path in sorted(out.rglob(f"*{ending}")) if not path.name.startswith((".", "_")))
    # An odd name, which Spark's log escapes; and one that the log lists.
    shutil.copy(orphaned, orphaned.with_name(f"part-00000 %41-orphan{ending}"))
    recipe.follow("Before", changes)
    with pytest.raises(StreamingQueryException) as refused:
        recipe.follow("After", changes)
    assert "migrate-from-file-sink" in reason(refused.value)
    recipe.follow("Before", changes)
    recipe.follow("Finish the last batch of the old query", changes)
    heading = "Move the files of failed attempts away"
    # Interrupted before the log was moved: the files of failed attempts are away, and the step is repeated.
    with pytest.raises(subprocess.CalledProcessError):
        recipe.follow(heading, {"mv /data/out": "false; mv /data/out"})
    assert (out / "_spark_metadata").exists()
    recipe.follow(heading)
    put(source, "2.json", *flights(6, 9))
    recipe.follow("After", changes)
    forget_commit(tmp_path / "chk" / "flights", 2)
    put(source, "3.json", *flights(9, 12))
    recipe.follow("After", changes | {", adopt_checkpoint=True": ""})
    found = spark.read.schema(SCHEMA).format(name).load(str(out)).orderBy("id").collect()
    assert [(row.id, row.carrier, row.distance) for row in found] == [tuple(row.values()) for row in flights(0, 12)]
    recipe.check_all_was_tried()

"""What Delta's own engine does to the log itself: restores, clean-up, compaction, retention, dropped features."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from outfall.errors import ConfigurationError, TargetLostError
from tests.integration.support.batch_driver import batch
from tests.integration.support.delta_epochs import Shore
from tests.peers.support.jvm_tables import JvmTable

pytestmark = pytest.mark.spark

PROPERTY = "ALTER TABLE {t} SET TBLPROPERTIES"
APPEND = "INSERT INTO {t} (id, name) VALUES (70, 'x')"


def rows(*ids: int) -> pa.RecordBatch:
    return batch(id=pa.array(ids), name=pa.array([f"n{each}" for each in ids]))


def write(shore: Shore, epoch: int, *ids: int) -> None:
    """Write an epoch as a driver that was just started."""
    shore.driver("log", create_table="if_missing").write(epoch, rows(*ids))


def moments(jvm: JvmTable) -> dict[int, str]:
    """Return when each version was made, as a literal in UTC."""
    history = jvm.run("DESCRIBE HISTORY {t}")
    return {row["version"]: f"{row['timestamp'].astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}" for row in history}


def test_a_restore_by_time_is_refused_until_another_by_time_has_undone_it(shore: Shore, jvm: JvmTable) -> None:
    write(shore, 0, 1)
    write(shore, 1, 2)
    made = moments(jvm)
    jvm.run(f"RESTORE TABLE {{t}} TO TIMESTAMP AS OF '{made[1]}'")
    assert jvm.ids() == [1]
    with pytest.raises(TargetLostError, match="rolled it back") as refused:
        write(shore, 2, 3)
    # Either the advice, or by time.
    assert re.search(r"TO VERSION AS OF 2 undoes that", str(refused.value))
    jvm.run(f"RESTORE TABLE {{t}} TO TIMESTAMP AS OF '{made[2]}'")
    write(shore, 2, 3)
    assert jvm.ids() == [1, 2, 3]


def clean_up(shore: Shore, jvm: JvmTable, before: int) -> None:
    """Let the JVM remove the entries of versions that are older than its retention of 30 days, after a checkpoint."""
    jvm.run(f"{PROPERTY} ('delta.checkpointInterval'='1')", APPEND)
    long_ago = time.time() - 40 * 86_400
    for path in (shore.path / "_delta_log").iterdir():
        number = path.name.lstrip(".").split(".")[0]
        if number.isdigit() and int(number) < before:
            os.utime(path, (long_ago, long_ago))
    jvm.run(APPEND)


def entries(shore: Shore) -> list[int]:
    return sorted(int(path.stem) for path in (shore.path / "_delta_log").glob("*.json") if path.stem.isdigit())


def test_entries_up_to_our_last_commit_may_be_cleaned_up(shore: Shore, jvm: JvmTable) -> None:
    for epoch in range(4):
        write(shore, epoch, epoch)
    clean_up(shore, jvm, before=5)
    assert entries(shore)[0] == 5
    write(shore, 4, 4)
    assert jvm.ids() == [*range(5), 70, 70]


def test_a_query_whose_history_was_cleaned_up_while_it_stood_still_is_refused(shore: Shore, jvm: JvmTable) -> None:
    """In those versions there may have been a RESTORE."""
    write(shore, 0, 1)
    jvm.run(APPEND, APPEND)
    clean_up(shore, jvm, before=5)
    assert entries(shore)[0] > 2
    with pytest.raises(TargetLostError, match="the history after version 1, which this query committed, is unknown"):
        write(shore, 1, 2)
    assert jvm.ids() == [1, 70, 70, 70, 70]


def test_identifiers_of_ours_outlive_their_checkpoints_as_long_as_the_retention_says(
    shore: Shore, jvm: JvmTable
) -> None:
    write(shore, 0, 1)
    retention = "'delta.setTransactionRetentionDuration'='interval {}'"
    jvm.run(f"{PROPERTY} ({retention.format('30 days')}, 'delta.checkpointInterval'='1')", APPEND)
    write(shore, 1, 2)
    jvm.run(f"{PROPERTY} ({retention.format('1 millisecond')})", APPEND)
    jvm.run(f"{PROPERTY} ({retention.format('30 days')})", APPEND)
    with pytest.raises(TargetLostError, match="has no record of this step"):
        write(shore, 2, 3)
    assert jvm.ids() == [1, 2, 70, 70, 70]


def compact_log(spark: SparkSession, path: Path, first: int, last: int) -> None:
    """Make the compacted entry of some versions, by Delta's own kernel."""
    assert spark._jvm is not None
    kernel: Any = spark._jvm.io.delta.kernel
    configuration = spark._jvm.org.apache.hadoop.conf.Configuration()
    engine = kernel.defaults.engine.DefaultEngine.create(configuration)
    where = kernel.internal.fs.Path
    table = f"file:{path}"
    writer = kernel.internal.compaction.LogCompactionWriter(where(table), where(f"{table}/_delta_log"), first, last, 0)
    writer.writeLogCompactionFile(engine)


def test_entries_that_are_compacted_are_read_and_not_lost(delta: SparkSession, shore: Shore, jvm: JvmTable) -> None:
    for epoch in range(3):
        write(shore, epoch, epoch)
    jvm.run(APPEND, "DELETE FROM {t} WHERE id = 0")
    compact_log(delta, shore.path, 1, 5)
    assert list((shore.path / "_delta_log").glob("*.compacted.json"))
    write(shore, 3, 3)
    assert jvm.ids() == [1, 2, 3, 70]


@pytest.mark.long
@pytest.mark.parametrize(("feature", "how"), [("vacuumProtocolCheck", "TRUNCATE HISTORY"), ("inCommitTimestamp", "")])
def test_a_feature_that_is_dropped_as_the_error_says_lets_the_query_go_on(
    shore: Shore, jvm: JvmTable, feature: str, how: str
) -> None:
    """Without TRUNCATE HISTORY some leave another feature behind; others do not take it."""
    write(shore, 0, 1)
    jvm.run(f"{PROPERTY} ('delta.feature.{feature}'='supported')")
    with pytest.raises(ConfigurationError, match=rf"has the table feature {feature}.*TRUNCATE HISTORY"):
        write(shore, 1, 2)
    jvm.run(f"ALTER TABLE {{t}} DROP FEATURE {feature} {how}")
    write(shore, 1, 2)
    assert jvm.ids() == [1, 2]

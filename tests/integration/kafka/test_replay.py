"""`outfall replay` of the letters in a topic, from a broker that is not ours."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from outfall.kafka import KafkaSink
from outfall.testing import LocalDriver
from outfall.wrappers import DeadLetteringSink
from tests.unit.support.command import failed, parsed
from tests.unit.support.refusing import RefusingSink
from tests.unit.support.warehouse import Warehouse


def test_letters_in_a_topic_are_replayed_once(kafka: str, tmp_path: Path) -> None:
    topic = f"letters-{secrets.token_hex(6)}"
    made = {"create_topic": "if_missing", "partitions": 3, "replication_factor": 1, "delivery_timeout": 20}
    kept = KafkaSink(kafka, topic, value_format="json", **made)  # type: ignore[arg-type]
    driver = LocalDriver(DeadLetteringSink(RefusingSink(Warehouse()), kept), str(tmp_path / "query"))
    command: tuple[object, ...] = (
        "replay",
        f"kafka://{kafka}/{topic}",
        "--recovery",
        tmp_path / "replay",
        "--schema",
        "id int",
    )
    command += ("--sink", "file", "-o", f"path={tmp_path / 'out'}")
    for epoch in range(2):
        start = 1000 * epoch
        driver.run_epoch(epoch, [[{"id": -number} for number in range(start + 1, start + 900)], [{"id": 1}]])
        result = parsed(*command)
        assert (result["before"], result["replayed"]) == (899 * epoch, 899)
    lines = [line for path in (tmp_path / "out").glob("part-*") for line in path.read_text().splitlines()]
    expected = [-number for number in (*range(1, 900), *range(1001, 1900))]
    assert sorted(json.loads(line)["id"] for line in lines) == sorted(expected)
    nowhere = (command[0], f"kafka://{kafka}/{topic}-not", *command[2:])
    assert "does not exist at" in failed(*nowhere)

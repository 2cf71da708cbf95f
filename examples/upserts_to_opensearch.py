"""Changes of customers → Spark → OpenSearch, in several runs of one stream: upserts and deletes by key.

    pip install 'outfall[spark,opensearch]'
    python examples/upserts_to_opensearch.py http://localhost:9200 customers

The job is in `run`. The rest creates changes, runs the stream once per epoch, and compares the index with the changes.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path

import urllib3
from pyspark.sql import SparkSession

from outfall.opensearch import OpenSearchSink
from outfall.spark import write_stream

EPOCHS, ROWS, CUSTOMERS = 3, 60, 40
COLUMNS = "id string, change int, name string, closed boolean"


def run(spark: SparkSession, url: str, index: str, directory: Path) -> None:
    """Upsert or delete each customer; of several changes in an epoch, the one with the greatest number wins."""
    changes = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(directory / "changes"))
    sink = OpenSearchSink(url, index=index, key_columns="id", order_column="change", delete_marker="closed")
    query = write_stream(changes, sink, checkpoint=directory / "checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()


def main() -> int:
    url, index = sys.argv[1:3]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        state: dict[str, int | None] = {}
        (directory / "changes").mkdir()
        for epoch in range(EPOCHS):
            state |= add_changes(directory / "changes", epoch)
            run(spark, url, index, directory)  # continues where the last run ended
    spark.stop()
    return 0 if check(url, index, {key: change for key, change in state.items() if change is not None}) else 1


def add_changes(directory: Path, epoch: int) -> dict[str, int | None]:
    """Write the changes of an epoch, and return the last one of each customer; `None` if it is closed."""
    chance, last, lines = random.Random(epoch), {}, []
    for number in range(ROWS):
        key, change, closed = f"c-{chance.randrange(CUSTOMERS)}", epoch * ROWS + number, chance.random() < 0.1
        lines.append(json.dumps({"id": key, "change": change, "name": f"name {change}", "closed": closed}))
        last[key] = None if closed else change
    chance.shuffle(lines)
    (directory / f"{epoch}.json").write_text("\n".join(lines))
    return last


def check(url: str, index: str, expected: dict[str, int]) -> bool:
    """Compare the documents, without tombstones, with the changes."""
    urllib3.request("POST", f"{url}/{index}/_refresh")
    query = {"query": {"bool": {"must_not": {"exists": {"field": "outfall_deleted"}}}}}
    headers = {"Content-Type": "application/json"}
    body = json.dumps(query).encode()
    answer = urllib3.request("POST", f"{url}/{index}/_search?size=1000", body=body, headers=headers).json()
    sources = {hit["_id"]: hit["_source"] for hit in answer["hits"]["hits"]}
    found = {key: row["change"] for key, row in sources.items() if "outfall_deleted" not in row}
    wrong = sum(found.get(key) != change for key, change in expected.items())
    print(f"customers expected {len(expected)}, found {len(found)}, wrong or missing {wrong}")
    return found == expected


if __name__ == "__main__":
    sys.exit(main())

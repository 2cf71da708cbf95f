"""Changes of customers → Spark → DynamoDB: upserts, deletes and sets, in several runs of one stream.

    pip install 'outfall[spark,dynamodb]' 'moto[server]'
    python examples/upserts_to_dynamodb.py           # starts an emulator (moto)
    python examples/upserts_to_dynamodb.py TABLE     # writes to a table of yours, with the string key `id`

The job is in `run`. The rest creates changes, runs the stream in two parts, and compares the table with the changes.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import boto3
from pyspark.sql import SparkSession

from outfall.dynamodb import DynamoDBSink
from outfall.spark import write_stream

EPOCHS, ROWS, CUSTOMERS = 3, 60, 40
COLUMNS = "id string, change int, tags array<string>, closed boolean"


def run(spark: SparkSession, table: str, endpoint: str | None, directory: Path) -> None:
    """Upsert or delete each customer; of several changes in an epoch, the one with the greatest number wins."""
    changes = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(directory / "changes"))
    sink = DynamoDBSink(
        table, order_column="change", delete_marker="closed", set_columns=["tags"], endpoint_url=endpoint
    )
    query = write_stream(changes, sink, checkpoint=directory / "checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()


def main() -> int:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    table = sys.argv[1] if sys.argv[1:] else "customers"
    endpoint = None if sys.argv[1:] else emulator()
    client = boto3.client("dynamodb", endpoint_url=endpoint)
    if endpoint:
        create_table(client, table)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        state: dict[str, int | None] = {}
        (directory / "changes").mkdir()
        for epoch in range(EPOCHS):
            state |= add_changes(directory / "changes", epoch)
            run(spark, table, endpoint, directory)  # continues where the last run ended
        spark.stop()
    return 0 if check(client, table, {key: change for key, change in state.items() if change is not None}) else 1


def add_changes(directory: Path, epoch: int) -> dict[str, int | None]:
    """Write the changes of an epoch, and return the last one of each customer; `None` if it is closed."""
    chance, last, lines = random.Random(epoch), {}, []
    for number in range(ROWS):
        key, change, closed = f"c-{chance.randrange(CUSTOMERS)}", epoch * ROWS + number, chance.random() < 0.1
        lines.append(json.dumps({"id": key, "change": change, "tags": ["new", f"tag-{number % 3}"], "closed": closed}))
        last[key] = None if closed else change
    chance.shuffle(lines)
    (directory / f"{epoch}.json").write_text("\n".join(lines))
    return last


def emulator() -> str:
    """Start an emulator in this process, and return its URL."""
    from moto.server import ThreadedMotoServer

    settings = {"AWS_ACCESS_KEY_ID": "example", "AWS_SECRET_ACCESS_KEY": "example", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update(settings)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


def create_table(client: Any, table: str) -> None:
    client.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


def check(client: Any, table: str, expected: dict[str, int]) -> bool:
    """Compare the items, without tombstones, with the changes."""
    pages = client.get_paginator("scan").paginate(
        TableName=table,
        ConsistentRead=True,
        FilterExpression="attribute_not_exists(#deleted)",
        ExpressionAttributeNames={"#deleted": "_outfall_deleted"},
    )
    found = {item["id"]["S"]: int(item["change"]["N"]) for page in pages for item in page["Items"]}
    wrong = sum(found.get(key) != change for key, change in expected.items())
    print(f"customers expected {len(expected)}, found {len(found)}, wrong or missing {wrong}")
    return found == expected


if __name__ == "__main__":
    sys.exit(main())

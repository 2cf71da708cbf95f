"""Where the driver of a cluster writes to, and what lies there as others see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.integration.postgres.support import Target as Table
from tests.integration.s3.support import Target as Bucket
from tests.integration.support.kafka_reader import ends, read
from tests.integration.support.postgres import postgres_server
from tests.integration.support.reading import found_ids, visible
from tests.integration.support.s3 import seaweedfs


class Place(Protocol):
    """A sink's target."""

    options: dict[str, Any]
    """For the sink, where it is."""

    def progress(self) -> int:
        """Return a number that grows with what is written."""

    def content(self) -> Any:
        """Return all that readers see."""

    def ids(self) -> list[int]:
        """Return the ids of all rows, sorted."""


class Files:
    """A directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.options = {"path": str(directory)}

    def progress(self) -> int:
        return sum(path.stat().st_size for path in visible(self._directory))

    def content(self) -> Any:
        return {path.name: path.read_bytes() for path in visible(self._directory)}

    def ids(self) -> list[int]:
        return found_ids(self._directory)


class Rows:
    """A table."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.options = {"dsn": table.dsn, "table": "t"}

    def progress(self) -> int:
        return int(self._table.run("SELECT count(*) FROM t")[0][0])

    def content(self) -> Any:
        return self._table.run("SELECT id, k FROM t ORDER BY id")

    def ids(self) -> list[int]:
        return self._table.ids()


class Objects:
    """A prefix in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.options = {"path": bucket.url, "endpoint_url": bucket.server.endpoint, "path_style": True}

    def progress(self) -> int:
        pages = self._bucket.client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket.bucket, Prefix=self._bucket.root
        )
        return sum(
            "/_outfall/" not in each["Key"] or "/pieces/" in each["Key"]
            for page in pages
            for each in page.get("Contents", [])
        )

    def content(self) -> Any:
        return self._bucket.data()

    def ids(self) -> list[int]:
        return self._bucket.ids()


class Records:
    """A topic, as a `read_committed` reader sees it."""

    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self.options = {"brokers": address, "topic": topic, "ledger_topic": f"{topic}-ledger"}

    def progress(self) -> int:
        return sum(ends(self._address, self._topic, isolation="read_committed").values())

    def content(self) -> Any:
        return [(record.partition, record.offset, record.value) for record in read(self._address, self._topic)]

    def ids(self) -> list[int]:
        return sorted(json.loads(value)["id"] for _, _, value in self.content())


@contextmanager
def place_of(mode: str, root: Path) -> Iterator[Place]:
    """Start the server that a mode of the driver writes to, if it needs one."""
    if mode.startswith("postgres"):
        with postgres_server() as databases:
            yield Rows(Table(databases.new_database(), "CREATE TABLE t (id bigint, k text)"))
    elif mode.startswith("s3"):
        (root / "seaweed").mkdir()
        with seaweedfs(root / "seaweed") as server:
            yield Objects(Bucket(server.s3))
    else:
        yield Files(root / "out")

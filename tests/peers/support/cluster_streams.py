"""The driver of a standalone cluster: streams of one source into many sinks, until it is killed. Never imported.

It begins a stream again that has failed, as a supervisor would, while it is the one that is wanted: while the file
`wanted` names it. A stream that ended while another one is wanted stays ended, and when all have, so does the driver.

Usage: cluster_streams.py <shared folder> <its name> <as JSON: the master, settings of Spark, options by sink>
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.support.cluster_driver import make_sink, writer

_OURS = re.compile(r"outfall\.\w*errors\.(\w+Error)|\b(\w+Error): ")


def session(name: str, master: str, settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


class Streams:
    """The streams of one driver, and what it says of them: a line for each event."""

    def __init__(self, spark: SparkSession, root: Path, name: str, sinks: dict[str, dict[str, Any]]) -> None:
        self._spark = spark
        self._root = root
        self._name = name
        self._sinks = sinks
        self._running: dict[str, StreamingQuery] = {}
        self._report = (root / "reports" / name).open("a", buffering=1)

    def run(self) -> None:
        """Return when all have ended and another driver is wanted."""
        for mode in self._sinks:
            self._start(mode)
        self._tell("driver", "started")
        while self._running:
            for mode, query in list(self._running.items()):
                if not query.isActive:
                    del self._running[mode]
                    self._tell(mode, "ended", why=self._why(query))
                    if (self._root / "wanted").read_text() == self._name:
                        self._start(mode)
            time.sleep(0.2)

    def _start(self, mode: str) -> None:
        root = self._root / mode
        made = writer(self._spark, root, mode, make_sink(mode, self._sinks[mode]))
        self._running[mode] = made.queryName(mode.replace(" ", "_")).start()

    def _why(self, query: StreamingQuery) -> str:
        failure = query.exception()
        print(f"{time.ctime()} {self._name}: {failure}", file=sys.stderr, flush=True)
        names = [first or second for first, second in _OURS.findall(str(failure))]
        return " ".join(dict.fromkeys(names)) or str(failure)[:200]

    def _tell(self, mode: str, what: str, **more: str) -> None:
        self._report.write(json.dumps({"stream": mode, "event": what, "time": time.time(), **more}) + "\n")


def main(root: Path, name: str, given: dict[str, Any]) -> None:
    spark = session(name, given["master"], given["settings"])
    Streams(spark, root, name, given["sinks"]).run()
    # What its executors still do is for them to end.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))

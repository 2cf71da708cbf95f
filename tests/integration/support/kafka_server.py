"""A broker that is not ours: the one that the environment names, or noida-db, a broker written in Rust.

It is independent evidence, and not Apache Kafka. Tried of 0.2.3, with confluent-kafka, kafka-python and bare requests:

- As Apache Kafka: both isolation levels in Fetch and ListOffsets, with the list of aborted transactions; an older epoch
  is refused at AddPartitionsToTxn, Produce and EndTxn; INVALID_TRANSACTION_TIMEOUT above 15 minutes; batches that come
  twice, or before their turn; headers and timestamps; `max.message.bytes`; settings of topics are told as they were
  given; partitions can be added; topics without transactions are compacted within seconds.
- Missing: ids of topics (all zero), authorized operations, `transaction.max.timeout.ms` among the broker's settings. A
  transaction is open for longer than its timeout, for ever. What was written in transactions is not compacted. All is
  in memory.
- Wrong: Fetch names aborted transactions that ended before the offset it begins at, and the client then leaves out what
  the same producer id has committed since: whoever reads on, a ledger's reader too, misses records, and only who reads
  from the beginning in one fetch has all. So nothing is proved here of aborts in a ledger. EndTxn is taken without a
  transaction, as a commit after an abort, with an epoch or a producer id that never was; AddPartitionsToTxn for a
  partition that is missing; Produce for one that is not in the transaction. InitProducerId over an open transaction is
  answered at once, where Apache Kafka says CONCURRENT_TRANSACTIONS first. A partition that is in a transaction without
  records gets no marker. A `read_committed` fetch leaves out aborted records, so that a position may stand before the
  last stable offset for as long as a transaction is open.
- Records whose timestamp is older than `retention.ms` (7 days) are gone within a second.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.support.servers import OwnServer, free_port, listens, open_folder, unprivileged

ADDRESS = "OUTFALL_TEST_KAFKA"


class Noida(OwnServer):
    """A server of our own. What it has is in memory, so that killing it proves nothing about what is on disk."""

    def __init__(self, folder: Path) -> None:
        """Start nothing yet; whoever runs the server can go to the folder."""
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        data = folder / "data"
        data.mkdir()
        command = [
            str(_binary(folder)), "start", "--only", "kafka", "--kafka-port", f"{port}", "--data-dir", str(data)
        ]  # fmt: skip
        user = unprivileged(folder, data)
        super().__init__(command, folder / "log", lambda: self._answers(port), user=user, HOME=str(folder))

    def _answers(self, port: int) -> bool:
        if not listens(port):
            return False
        settings: dict[str, Any] = {"bootstrap.servers": self.address, "logger": logging.getLogger(__name__)}
        return bool(AdminClient(settings).list_topics(timeout=10).brokers)


def _binary(folder: Path) -> Path:
    """A copy of the server: nobody may be unable to enter the virtual environment."""
    spec = importlib.util.find_spec("noida_db")
    if spec is None or spec.origin is None:
        pytest.fail("there is no noida-db. What to do: pip install -e '.[dev]'")
    copy = shutil.copy(Path(spec.origin).with_name("noida-db"), folder)
    Path(copy).chmod(0o755)
    return Path(copy)


@contextmanager
def kafka_server() -> Iterator[str]:
    """Find the broker that the environment names, or run one; yields its address."""
    if given := os.environ.get(ADDRESS):
        yield given
        return
    with open_folder() as folder:
        server = Noida(folder)
        server.start()
        try:
            yield server.address
        finally:
            server.kill()

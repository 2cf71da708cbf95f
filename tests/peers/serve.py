"""Run a command with a peer behind the variable that the integration tests read: they then run on that peer.

`python -m tests.peers.serve kafka-4.3 python -m pytest tests/integration/kafka`
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from tests.peers.support import apache_kafka
from tests.peers.support.debian import mariadb_peer, mysql_peer
from tests.peers.support.postgres_binaries import WHEELS, postgres_peer
from tests.peers.support.redis_binaries import SERVERS, redis_peer

PEERS: dict[str, Callable[[], AbstractContextManager[dict[str, str]]]] = {
    **{line: partial(apache_kafka.served, line) for line in (apache_kafka.NEWEST, apache_kafka.OLDEST)},
    **{f"postgres-{major}": partial(postgres_peer, major) for major in WHEELS},
    "mysql-9.7": mysql_peer,
    "mariadb-11.8": mariadb_peer,
    **{server: partial(redis_peer, server) for server in SERVERS},
}
"""By name, what runs a peer and yields the variables that lead to it."""


def main(arguments: list[str]) -> int:
    """Start the peer, run the command, end the peer; returns what the command returned."""
    if len(arguments) < 2 or arguments[0] not in PEERS:
        print(f"usage: python -m tests.peers.serve PEER COMMAND …, where PEER is {', '.join(PEERS)}", file=sys.stderr)
        return 2
    with PEERS[arguments[0]]() as variables:
        return subprocess.run(arguments[1:], env=os.environ | variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

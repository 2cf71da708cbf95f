"""Redis 8 and Valkey, as Debian's release `trixie` has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.integration.support.redis_server import PROGRAM
from tests.peers.support.debian import on_its_libraries, unpacked

SERVERS = {"redis-8.0": "redis-server", "valkey-8.1": "valkey-server"}
"""By peer, its program."""


@contextmanager
def redis_peer(peer: str) -> Iterator[dict[str, str]]:
    """Yield the variable with the command of a server, by which the integration tests start their own."""
    with unpacked(peer) as usr:
        yield {PROGRAM: json.dumps(on_its_libraries(usr, f"bin/{SERVERS[peer]}"))}

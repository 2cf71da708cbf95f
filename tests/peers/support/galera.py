"""A Galera cluster of MariaDB: two nodes that both take writes, and compare them at their commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.integration.support.mysql import MySQLServer, Server
from tests.integration.support.servers import free_ports, open_folder
from tests.integration.support.waiting import until
from tests.programs import absent

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
"""What Debian's package galera-4 has, which mariadb-server brings."""

_SECONDS = 120


class Galera:
    """Two nodes."""

    waiting = "SET wsrep_sync_wait = 1"
    """Has a session of a node see what another one has committed."""
    limit = "wsrep_max_ws_size"
    """The variable that limits the bytes of a transaction."""
    hold = ("SET GLOBAL wsrep_desync = ON", "FLUSH TABLES WITH READ LOCK")
    """Have a node apply nothing."""
    release = ("UNLOCK TABLES", "SET GLOBAL wsrep_desync = OFF")

    def __init__(self, nodes: list[Server]) -> None:
        self.nodes = nodes

    @property
    def clients(self) -> tuple[MySQLServer, MySQLServer]:
        """The addresses of the nodes."""
        first, second = self.nodes
        return first.client, second.client


@contextmanager
def galera() -> Iterator[Galera]:
    """Run two nodes that are in step."""
    if not PROVIDER.exists():
        absent(f"{PROVIDER}, of the package galera-4")
    with ExitStack() as stack:
        group = free_ports(2, also_above=2)
        members = ",".join(f"127.0.0.1:{port}" for port in group)
        nodes: list[Server] = []
        for number, port in enumerate(group):
            settings = {
                "server_id": str(number + 1), "log_bin": "binlog", "binlog_format": "ROW", "wsrep_on": "ON",
                "innodb_autoinc_lock_mode": "2", "wsrep_provider": str(PROVIDER),
                "wsrep_cluster_address": f"gcomm://{members}" if nodes else "gcomm://",
                "wsrep_node_name": f"node{number + 1}", "wsrep_node_address": "127.0.0.1",
                "wsrep_sst_method": "rsync", "wsrep_sst_receive_address": f"127.0.0.1:{port + 2}",
                "wsrep_provider_options": f"gmcast.listen_addr=tcp://127.0.0.1:{port};"
                f"ist.recv_addr=127.0.0.1:{port + 1};pc.recovery=false",
            }  # fmt: skip
            node = Server(stack.enter_context(open_folder()), **settings)
            stack.callback(node.kill)
            node.start()
            nodes.append(node)
            until(partial(_in_step, node.client), "the node being in step", _SECONDS)
        yield Galera(nodes)


def _in_step(node: MySQLServer) -> bool:
    return node.run("SHOW STATUS LIKE 'wsrep_local_state_comment'") == [("wsrep_local_state_comment", "Synced")]

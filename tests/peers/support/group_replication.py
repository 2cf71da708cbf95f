"""Group Replication of MySQL: nodes that agree on each commit, of which one takes writes, or all do."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from outfall.testing.tcp_proxy import TcpProxy
from tests.integration.support.mysql import MySQLServer, Programs, RefusedError, Server
from tests.integration.support.servers import free_port, free_ports, open_folder
from tests.integration.support.waiting import until
from tests.peers.support.replica_pair import MYSQL

_SECONDS = 120
_GROUP = MYSQL.settings | {
    "log_bin": "binlog", "plugin_load_add": "group_replication.so", "report_host": "127.0.0.1",
    "group_replication_start_on_boot": "OFF", "group_replication_bootstrap_group": "OFF",
    # The smallest.
    "group_replication_message_cache_size": "134217728",
    # A node that does not answer is expelled after the five seconds in which it is suspected.
    "group_replication_member_expel_timeout": "0", "group_replication_autorejoin_tries": "0",
    "group_replication_recovery_get_public_key": "ON",
}  # fmt: skip
_MEMBERS = "FROM performance_schema.replication_group_members"


class Group:
    """Its nodes. `client` is an address that leads to one of them, as a router does."""

    waiting = "SET group_replication_consistency = 'BEFORE'"
    """Has a session of a node see what another one has committed."""
    limit = "group_replication_transaction_size_limit"
    """The variable that limits the bytes of a transaction."""
    hold = ("FLUSH TABLES WITH READ LOCK",)
    """Have a node apply nothing."""
    release = ("UNLOCK TABLES",)

    def __init__(self, nodes: list[Server], proxy: TcpProxy) -> None:
        self.nodes = nodes
        self.client = MySQLServer("127.0.0.1", proxy.port, nodes[0].client.user)
        self._proxy = proxy

    @property
    def clients(self) -> tuple[MySQLServer, MySQLServer]:
        """The addresses of two nodes."""
        first, second, *_ = self.nodes
        return first.client, second.client

    def lead_to(self, node: Server) -> None:
        """Have new connections to `client` reach a node."""
        self._proxy.lead_to("127.0.0.1", node.client.port)

    def primary(self, but: Server | None = None) -> Server:
        """Return the node that takes writes, as a node that answers sees it; `but` one that does not."""
        seen = next(node for node in self.nodes if node is not but and node.running)
        found = seen.client.run(f"SELECT member_port {_MEMBERS} WHERE member_role = 'PRIMARY'")
        return next(node for node in self.nodes if [(str(node.client.port),)] == found)

    def fail_over(self, *, pausing: bool = False) -> None:
        """Kill the primary, or pause it, and lead to the one that the others elect."""
        old = self.primary()
        if pausing:
            old.pause()
        else:
            old.kill()
        until(lambda: self.primary(old) is not old, "another primary", _SECONDS)
        self.lead_to(self.primary(old))

    def cut_off(self) -> None:
        """Leave the primary alone: the others do not answer any more."""
        primary = self.primary()
        others = [node for node in self.nodes if node is not primary]
        for node in others:
            node.pause()
        lost = f"SELECT count(*) {_MEMBERS} WHERE member_state = 'UNREACHABLE'"
        until(lambda: primary.client.run(lost) == [(str(len(others)),)], "the primary being alone", _SECONDS)

    def restore(self) -> None:
        """Have all nodes in the group again, and lead to the primary."""
        for node in self.nodes:
            if node.running:
                node.resume()
            else:
                node.start()
        until(self._is_whole, "all nodes being in the group", _SECONDS)
        self.lead_to(self.primary())

    def _is_whole(self) -> bool:
        """Return whether each node sees all; a node that is out joins again, once the others have expelled it."""
        online = f"SELECT count(*) {_MEMBERS} WHERE member_state = 'ONLINE'"
        # A node that leaves ends its connections.
        with suppress(RefusedError):
            for node in self.nodes:
                if _state(node) in ("OFFLINE", "ERROR"):
                    node.client.run("STOP GROUP_REPLICATION; SET GLOBAL offline_mode = OFF; START GROUP_REPLICATION")
            return all(node.client.run(online) == [(str(len(self.nodes)),)] for node in self.nodes)
        return False


def _state(node: Server) -> str:
    found = node.client.run(f"SELECT member_state {_MEMBERS} WHERE member_id = @@server_uuid")
    return found[0][0] if found else "OFFLINE"


def _is_online(node: Server) -> bool:
    return _state(node) == "ONLINE"


@contextmanager
def group_replication(programs: Programs, count: int, *, all_write: bool = False) -> Iterator[Group]:
    """Run some nodes of a group. With `all_write`, each is a primary."""
    with ExitStack() as stack:
        ports = free_ports(count)
        mode = {
            "group_replication_group_name": str(uuid.uuid4()),
            "group_replication_group_seeds": ",".join(f"127.0.0.1:{port}" for port in ports),
            "group_replication_single_primary_mode": "OFF" if all_write else "ON",
            "group_replication_enforce_update_everywhere_checks": "ON" if all_write else "OFF",
        }
        nodes: list[Server] = []
        for number, port in enumerate(ports, 1):
            own = {"server_id": str(number), "group_replication_local_address": f"127.0.0.1:{port}"}
            node = Server(stack.enter_context(open_folder()), programs, **_GROUP, **mode, **own)
            stack.callback(node.kill)
            node.start()
            first = "" if nodes else "SET GLOBAL group_replication_bootstrap_group = ON;"
            node.client.run(
                "CHANGE REPLICATION SOURCE TO source_user = 'root' FOR CHANNEL 'group_replication_recovery';"
                f"{first} START GROUP_REPLICATION; SET GLOBAL group_replication_bootstrap_group = OFF"
            )
            nodes.append(node)
            until(partial(_is_online, node), "the node being in the group", _SECONDS)
        yield Group(nodes, stack.enter_context(TcpProxy("127.0.0.1", nodes[0].client.port, listen=free_port())))

"""A MariaDB primary with a replica that may lag and be promoted, behind one address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from outfall.testing.tcp_proxy import TcpProxy
from tests.integration.support.mariadb import MariaDB, Server
from tests.integration.support.servers import open_folder
from tests.integration.support.waiting import until

_SECONDS = 60
_DURABLE = {"log_bin": "binlog", "sync_binlog": "1", "binlog_format": "ROW"}


class Pair:
    """A primary and its replica. `client` is the address of both: it leads to whichever takes writes."""

    def __init__(self, primary: Server, replica: Server, proxy: TcpProxy) -> None:
        self.primary = primary
        self.replica = replica
        self.client = MariaDB("127.0.0.1", proxy.port, primary.client.user)
        self._proxy = proxy
        replica.client.run(
            f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {primary.client.port},"
            f" master_user = '{primary.client.user}', master_use_gtid = slave_pos, master_connect_retry = 1"
        )
        self.catch_up()

    def lag(self) -> None:
        """Let the replica have all until now, and nothing more."""
        self.catch_up()
        self.replica.client.run("STOP SLAVE")

    def catch_up(self) -> None:
        """Let the replica receive, and wait until it has all that the primary has committed."""
        self.replica.client.run("START SLAVE")
        ((end,),) = self.primary.client.run("SELECT @@gtid_binlog_pos")
        waited = f"SELECT MASTER_GTID_WAIT('{end}', 1)"
        until(lambda: self.replica.client.run(waited) == [("0",)], "the replica having all", _SECONDS)

    def fail_over(self) -> None:
        """Kill the primary, and promote the replica with what it has."""
        self.primary.server.kill()
        self.replica.client.run("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = OFF")
        self._proxy.lead_to("127.0.0.1", self.replica.client.port)


@contextmanager
def mariadb_pair() -> Iterator[Pair]:
    """Run a primary and a replica that has all that the primary has."""
    with ExitStack() as stack:

        def started(number: int, **more: str) -> Server:
            server = Server(stack.enter_context(open_folder()), server_id=str(number), **_DURABLE, **more)
            stack.callback(server.server.kill)
            server.server.start()
            return server

        primary, replica = started(1), started(2, read_only="ON")
        yield Pair(primary, replica, stack.enter_context(TcpProxy("127.0.0.1", primary.client.port)))

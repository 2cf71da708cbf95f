"""A primary with a replica by GTID that may lag and be promoted, behind one address: of MariaDB, and of MySQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from outfall.testing.tcp_proxy import TcpProxy
from tests.integration.mysql.support import Target
from tests.integration.support.mysql import MySQLServer, Programs, Server
from tests.integration.support.servers import free_port, open_folder
from tests.integration.support.waiting import until

_SECONDS = 60
_DURABLE = {"log_bin": "binlog", "sync_binlog": "1", "binlog_format": "ROW"}


@dataclass(frozen=True)
class Replication:
    """The statements of a server for replication. `{}` is the port of the primary, or what it has committed."""

    follow: str
    start: str
    stop: str
    forget: str
    committed: str
    wait: str
    settings: dict[str, str]


MARIADB = Replication(
    follow="CHANGE MASTER TO master_host = '127.0.0.1', master_port = {}, master_user = 'root',"
    " master_use_gtid = slave_pos, master_connect_retry = 1",
    start="START SLAVE",
    stop="STOP SLAVE",
    forget="RESET SLAVE ALL",
    committed="SELECT @@gtid_binlog_pos",
    wait="SELECT MASTER_GTID_WAIT('{}', 1)",
    settings={},
)
_SMALL = {
    "innodb_redo_log_capacity": "16M", "innodb_log_buffer_size": "1M", "table_open_cache": "200",
    "table_definition_cache": "400", "max_connections": "60", "performance_schema_max_table_instances": "200",
    "performance_schema_max_thread_instances": "100", "performance_schema_error_size": "0",
    "performance_schema_digests_size": "0", "performance_schema_max_memory_classes": "0",
    "performance_schema_events_statements_history_long_size": "0",
}  # fmt: skip
"""Of MySQL, since several servers share a machine."""

MYSQL = Replication(
    follow="CHANGE REPLICATION SOURCE TO source_host = '127.0.0.1', source_port = {}, source_user = 'root',"
    " source_auto_position = 1, source_connect_retry = 1",
    start="START REPLICA",
    stop="STOP REPLICA",
    forget="RESET REPLICA ALL",
    committed="SELECT @@GLOBAL.gtid_executed",
    wait="SELECT WAIT_FOR_EXECUTED_GTID_SET('{}', 1)",
    settings={"gtid_mode": "ON", "enforce_gtid_consistency": "ON"} | _SMALL,
)


class Pair:
    """A primary and its replica. `client` is the address of both: it leads to whichever takes writes."""

    def __init__(self, primary: Server, replica: Server, proxy: TcpProxy, how: Replication) -> None:
        self.primary = primary
        self.replica = replica
        self.client = MySQLServer("127.0.0.1", proxy.port, primary.client.user)
        self._proxy = proxy
        self._how = how
        replica.client.run(how.follow.format(primary.client.port))
        self.catch_up()

    def table(self, ddl: str) -> Target:
        """Make a table in a database of its own, at the address of both."""
        return Target(self.client, self.client.new_database(), ddl)

    def lag(self) -> None:
        """Let the replica have all until now, and nothing more."""
        self.catch_up()
        self.replica.client.run(self._how.stop)

    def catch_up(self) -> None:
        """Let the replica receive, and wait until it has all that the primary has committed."""
        self.replica.client.run(self._how.start)
        ((end,),) = self.primary.client.run(self._how.committed)
        # The client shows the lines of a set of GTIDs in one.
        waited = self._how.wait.format(end.replace("\\n", ""))
        until(lambda: self.replica.client.run(waited) == [("0",)], "the replica having all", _SECONDS)

    def fail_over(self) -> None:
        """Kill the primary, and promote the replica with what it has."""
        self.primary.kill()
        self.replica.client.run(f"{self._how.stop}; {self._how.forget}; SET GLOBAL read_only = OFF")
        self.lead_to(self.replica)

    def lead_to(self, server: Server) -> None:
        """Have new connections to `client` reach one of them."""
        self._proxy.lead_to("127.0.0.1", server.client.port)


@contextmanager
def replica_pair(how: Replication, programs: Programs | None = None, /, **settings: str) -> Iterator[Pair]:
    """Run a primary and a replica that has all that the primary has."""
    with ExitStack() as stack:

        def started(number: int, **more: str) -> Server:
            given = _DURABLE | how.settings | settings | more
            server = Server(stack.enter_context(open_folder()), programs, server_id=str(number), **given)
            stack.callback(server.kill)
            server.start()
            return server

        primary, replica = started(1), started(2, read_only="ON")
        yield Pair(
            primary, replica, stack.enter_context(TcpProxy("127.0.0.1", primary.client.port, listen=free_port())), how
        )

"""Many tables in PostgreSQL: the room for locks that a server has, and names that look alike."""

from __future__ import annotations

import pytest

from outfall.errors import TargetError
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import own_server
from tests.integration.support.sql import run

FEW_LOCKS = {
    "max_locks_per_transaction": "10", "max_connections": "5", "superuser_reserved_connections": "0",
    "reserved_connections": "0", "max_wal_senders": "0", "max_worker_processes": "1", "autovacuum": "off",
}  # fmt: skip
MANY = 800


@pytest.mark.thorough
def test_tables_for_whose_locks_the_server_has_no_room_are_refused_before_the_epoch_is_recorded(recovery: str) -> None:
    with own_server(FEW_LOCKS) as server:
        target = Target(server.new_database())
        create = "DO $$ BEGIN FOR n IN {} .. {} LOOP EXECUTE format('CREATE TABLE t%s (id bigint PRIMARY KEY)', n);"
        for first in range(0, MANY, 50):
            target.run(f"{create.format(first, first + 49)} END LOOP; END $$")
        sink = target.sink(table=None, table_column="place", allowed_tables="t*")
        few = [{"place": f"t{number}", "id": 1} for number in range(40)]
        assert run(sink, recovery, 0, few).counts["max_tables"] == 40
        every = [{"place": f"t{number}", "id": 2} for number in range(MANY)]
        told = (
            r"no room for the locks of the 800 tables of this epoch. One transaction writes them, with 1,600 locks.*"
            r"max_locks_per_transaction = 10 gives all sessions together about 50.*to 640 or more"
        )
        with pytest.raises(TargetError, match=told):
            run(sink, recovery, 1, every)
        # Nothing of it is recorded, so smaller epochs go on.
        assert run(sink, recovery, 1, [{**row, "id": 2} for row in few]).counts["rows"] == 40
        assert target.count("t39") == 2


def test_a_dot_in_a_name_does_not_make_two_tables_one(target: Target, recovery: str) -> None:
    for name in ("ax.y", '"ax.y"'):
        target.run(f"CREATE SCHEMA IF NOT EXISTS ax; CREATE TABLE {name} (id bigint); INSERT INTO {name} VALUES (7)")
    sink = target.sink(table=None, table_column="place", allowed_tables=["a*", "ax.*"], on_existing="overwrite")
    run(sink, recovery, 0, [{"place": "ax.y", "id": 1}, {"place": '"ax.y"', "id": 2}])
    assert [target.run(f"SELECT id FROM {name}") for name in ("ax.y", '"ax.y"')] == [[(1,)], [(2,)]]


def test_a_partition_that_rows_name_later_is_not_emptied_of_rows_of_the_query(target: Target, recovery: str) -> None:
    target.run("CREATE TABLE p (id bigint) PARTITION BY RANGE (id); CREATE TABLE p1 PARTITION OF p DEFAULT")
    target.run("INSERT INTO p VALUES (7)")
    sink = target.sink(table=None, table_column="place", allowed_tables="p*", on_existing="overwrite")
    run(sink, recovery, 0, [{"place": "p", "id": 1}])
    with pytest.raises(TargetError, match="it is a partition or a child of p"):
        run(sink, recovery, 1, [{"place": "p1", "id": 2}])
    assert target.run("SELECT id FROM p") == [(1,)]

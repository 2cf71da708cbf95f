"""Errors of a real server while rows are staged and published: what is tried again, what is not, what is told."""

from __future__ import annotations

import logging
import re
import socketserver
import struct
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pytest

from outfall.errors import CommitRefusedError, OutfallError, TargetError, TransientError
from outfall.postgres import PostgresSink
from outfall.recovery import history
from outfall.testing import LocalDriver
from tests.integration.postgres.support import END_OTHERS, Target
from tests.integration.support.postgres import Databases, Server, own_server
from tests.integration.support.servers import free_port
from tests.integration.support.sql import first, listening, mostly_thorough, rows, run
from tests.integration.support.waiting import until


@pytest.fixture
def dsn(postgres: Databases) -> str:
    """A database of its own: what is tried again is warned of once for each."""
    return postgres.new_database()


def test_a_reply_to_the_commit_of_staging_that_is_lost_doubles_nothing(target: Target, recovery: str) -> None:
    """The attempt is in staging and nobody knows; its successor is published alone, and it is cleaned up."""
    lost: list[str] = []

    def cut(step: str) -> None:
        if step == "sql: staged" and not lost:
            lost.append(step)
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    local = LocalDriver(target.sink(), recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    with listening(cut), pytest.raises(TransientError):
        local.run_task(ticket, 0, 0, [(None, rows(1, 2))])
    assert target.staged() == 2
    coordinator.finish(ticket, [local.run_task(ticket, 0, 0, [(None, rows(1, 2))], retries=1)])
    assert target.ids() == [1, 2]
    local.run_epoch(1, [rows(3)])
    assert (target.attempts(), target.staged()) == (0, 0)


# --- codes as real servers give them


class Retries(logging.Handler):
    """Notes what transactions are tried again for, and mends it after the first time."""

    def __init__(self, mend: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._mend = mend

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        if len(self.texts) == 1:
            self._mend()

    @contextmanager
    def watching(self) -> Iterator[None]:
        logger = logging.getLogger("outfall.sql.database")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)


def waits(target: Target) -> bool:
    """Tell whether a session of ours waits for a lock."""
    return bool(
        target.run(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'outfall' AND wait_event_type = 'Lock'"
        )[0][0]
    )


def beside(target: Target, recovery: str, others: Callable[[psycopg.Connection[Any]], object], setting: str) -> Retries:
    """Upsert rows 1 and 2 while another transaction holds row 2 until we wait for it, and then does something."""
    target.run("CREATE TABLE u (id bigint PRIMARY KEY, name text); DROP TABLE t; ALTER TABLE u RENAME TO t")
    sink = target.sink(write_mode="upsert", key_columns="id")
    run(sink, recovery, 0, rows(1, 2))
    retries = Retries()
    with psycopg.connect(target.dsn) as other:
        other.execute(setting)
        other.execute("UPDATE t SET name = 'theirs' WHERE id = 2")
        thread = threading.Thread(target=run, args=(sink, recovery, 1, rows(1, 2, 3)))
        with retries.watching():
            thread.start()
            until(lambda: waits(target), "our session waiting for the row", 30)
            others(other)
            other.commit()
            thread.join(60)
    assert not thread.is_alive()
    assert target.run("SELECT * FROM t ORDER BY id") == [(1, "n1"), (2, "n2"), (3, "n3")]
    return retries


@pytest.mark.thorough
def test_a_deadlock_with_another_application_is_tried_again(target: Target, recovery: str) -> None:
    """The session that looks first is ended: ours, as the other one waits longer before it looks."""
    retries = beside(
        target,
        recovery,
        lambda other: other.execute("UPDATE t SET name = 'theirs' WHERE id = 1"),
        "SET deadlock_timeout = '1min'",
    )
    assert ["SQLSTATE 40P01" in text for text in retries.texts] == [True]


def test_a_stricter_default_isolation_makes_no_transaction_fail(target: Target, recovery: str) -> None:
    with psycopg.connect(target.dsn) as connection:
        name = connection.info.dbname
    target.run(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")
    retries = beside(target, recovery, lambda other: None, "SELECT 1")
    assert retries.texts == []


def test_a_server_that_became_read_only_is_waited_for(target: Target, recovery: str) -> None:
    with psycopg.connect(target.dsn) as connection:
        name = connection.info.dbname

    def set_read_only(value: str) -> None:
        with psycopg.connect(target.dsn, autocommit=True, options="-c default_transaction_read_only=off") as connection:
            connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}')
            connection.execute(END_OTHERS)

    def fail_over(step: str) -> None:
        if step == "before commit":
            set_read_only("on")

    retries = Retries(lambda: set_read_only("off"))
    with listening(fail_over), retries.watching():
        run(target.sink(), recovery, 0, rows(1))
    assert "SQLSTATE 25006" in retries.texts[0]
    assert target.ids() == [1]


@pytest.mark.parametrize("first", mostly_thorough(["the schema", "the target"], ["the target"]))
def test_a_server_that_restarts_while_a_query_starts_is_waited_for(
    mortal_postgres: Server, recovery: str, first: str
) -> None:
    target = Target(mortal_postgres.new_database())
    sink = target.sink()
    mortal_postgres.stop()
    retries = Retries(mortal_postgres.start)
    with retries.watching():
        if first == "the schema":
            sink.check_schema(pa.schema({"id": pa.int64()}))
        run(sink, recovery, 0, rows(1))
    assert "checking t failed (attempt 1, " in retries.texts[0]
    assert target.ids() == [1]


def fail_once(target: Target, code: str, times: int = 1) -> None:
    """Let the first statements that insert fail with a code. A sequence counts on when its transaction does not."""
    target.run(
        "CREATE SEQUENCE tries; CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF nextval('tries') <= {times} THEN RAISE EXCEPTION 'made to fail' USING ERRCODE = '{code}'; END IF;"
        " RETURN NULL; END $$;"
        " CREATE TRIGGER fail_once AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION fail_once()"
    )


@pytest.mark.parametrize(
    "code",
    first(
        1,
        mostly_thorough(
            [
                "08006",
                "40001",
                "40P01",
                "53100",
                "53200",
                "53300",
                "55P03",
                "57P01",
                "57P02",
                "57P03",
                "25006",
                "25P03",
            ],
            ["08006", "53200"],
        ),
    ),
)
def test_what_may_pass_is_tried_again(target: Target, recovery: str, code: str) -> None:
    fail_once(target, code)
    run(target.sink(), recovery, 0, rows(1, 2), rows(3))
    assert target.ids() == [1, 2, 3]
    assert target.run("SELECT last_value FROM tries") == [(2,)]


@pytest.mark.parametrize(
    ("code", "error"),
    first(
        1,
        mostly_thorough(
            [
                ("22012", CommitRefusedError),
                ("23514", CommitRefusedError),
                ("42P01", TargetError),
                ("42501", TargetError),
                ("54000", TargetError),
                ("P0001", TargetError),
            ],
            [("23514", CommitRefusedError), ("42501", TargetError)],
        ),
    ),
)
def test_what_will_not_pass_is_told_at_once(target: Target, recovery: str, code: str, error: type[Exception]) -> None:
    fail_once(target, code)
    # The text of a trigger may hold values of the row, so it is shown only with this option.
    with pytest.raises(error, match=f"(?i)made to fail.*SQLSTATE {code}"):
        run(target.sink(log_rows="full"), recovery, 0, rows(1))
    assert target.ids() == []
    # A row that is to blame is looked for by one more try, which is taken back.
    looked_for = error is CommitRefusedError
    assert target.run("SELECT last_value FROM tries") == [(1 + looked_for,)]
    run(target.sink(), recovery, 0, rows(1))
    assert target.ids() == [1]


@pytest.mark.thorough
def test_a_copy_may_take_longer_than_a_statement(target: Target, recovery: str) -> None:
    """The role's own timeout, which the server would apply to COPY as well."""
    name = psycopg.conninfo.conninfo_to_dict(target.dsn)["dbname"]
    driver = LocalDriver(target.sink(), recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    waited: list[str] = []
    old = (
        "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'COPY %staging%' AND clock_timestamp() - query_start > '0.5 s'"
    )

    # Only the task's session is made while the timeout holds.
    with psycopg.connect(target.dsn, autocommit=True) as other:

        def wait(step: str) -> None:
            if step == "sql: copying":
                until(lambda: other.execute(old).fetchone(), "the COPY taking longer", 30)
                waited.append(step)

        other.execute(END_OTHERS)
        other.execute(f'ALTER DATABASE "{name}" SET statement_timeout = 400')
        with listening(wait):
            answer = driver.run_task(ticket, 0, 0, [(None, rows(1))])
        other.execute(f'ALTER DATABASE "{name}" RESET statement_timeout')
        other.execute(END_OTHERS)
    coordinator.finish(ticket, [answer])
    assert waited
    assert target.ids() == [1]


def test_a_dsn_that_leads_nowhere_is_told_without_waiting(mortal_postgres: Server, recovery: str) -> None:
    target = Target(mortal_postgres.new_database())
    role = mortal_postgres.role_with_password("right")
    for code, wrong in {
        "3D000": {"dbname": "nowhere"},
        "28000": {"user": "nobody_known"},
        "28P01": {"user": role, "password": "geheim"},
        "28P01 ": {"user": role},
    }.items():
        sink = target.sink(dsn=psycopg.conninfo.make_conninfo(target.dsn, **wrong))
        with pytest.raises(TargetError, match=rf"SQLSTATE {code.strip()}\).*correct user, password and database"):
            run(sink, recovery, 0, rows(1))
        # Later too, when a server that answers is waited for.
        with pytest.raises(psycopg.OperationalError) as told:
            sink.delegate.database.run_raw("publishing", lambda connection: connection.execute("SELECT 1"))
        assert told.value.sqlstate == code.strip()
        assert "geheim" not in str(told.value)


def test_an_outage_is_warned_of_at_its_first_try_with_the_time_that_is_left(
    target: Target, recovery: str, caplog: pytest.LogCaptureFixture
) -> None:
    fail_once(target, "57P03", times=2)
    run(target.sink(), recovery, 0, rows(1))
    assert target.run("SELECT last_value FROM tries") == [(3,)]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert re.search(
        r"/outfall_\w+: publishing to t failed \(attempt 1, (300|299) s left\) and is retried: .*57P03", warning
    )
    (found,) = history(recovery)
    assert (found.retries, found.rows) == (2, 1)


def answers(target: Target) -> bool:
    with suppress(psycopg.OperationalError):
        return target.run("SELECT 1") == [(1,)]
    return False


@pytest.mark.thorough
def test_a_server_without_free_connections_is_named_and_waited_for(recovery: str) -> None:
    settings = {"max_connections": "5", "superuser_reserved_connections": "0", "reserved_connections": "0"}
    with own_server(settings) as server, ExitStack() as others:
        target = Target(server.new_database())
        sink = target.sink(retry_deadline="1 second")
        run(sink, recovery, 0, rows(1))
        target.run(END_OTHERS)
        watch = others.enter_context(psycopg.connect(target.dsn, autocommit=True))
        alone = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"

        def is_alone() -> bool:
            found = watch.execute(alone).fetchone()
            return bool(found and found[0])

        # A session that its client closed takes its place for a while.
        until(is_alone, "the other sessions being gone", 30)
        for _ in range(4):
            others.enter_context(psycopg.connect(target.dsn))
        told = "one connection per running task and one for the driver; the server's max_connections is 5"
        with pytest.raises(TransientError, match=rf"too many clients already.*{told}"):
            run(sink, recovery, 1, rows(2))
        others.close()
        until(lambda: answers(target), "a session being free", 30)
        run(target.sink(), recovery, 1, rows(2))
        assert target.ids() == [1, 2]


def test_a_driver_that_was_silent_too_long_in_its_transaction_publishes_once(
    target: Target, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.postgres.connection.database._LONGEST_SILENCE", 0.1)
    slept: list[str] = []

    def sleep(step: str) -> None:
        if step == "sql: publishing" and not slept:
            slept.append(step)
            gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE state = 'idle in transaction'"
            until(lambda: target.run(gone + " AND datname = current_database()")[0][0], "the server ending it", 30)

    with listening(sleep):
        run(target.sink(), recovery, 0, rows(1, 2))
    assert slept
    assert target.ids() == [1, 2]


class _Echo(socketserver.StreamRequestHandler):
    """Asks for the password in clear text, as poolers do, and says it back."""

    def handle(self) -> None:
        while (started := self._message())[:4] != (3 << 16).to_bytes(4, "big"):
            self.wfile.write(b"N")  # neither TLS nor GSSAPI
            if not started:
                return
        self.wfile.write(b"R" + struct.pack("!ii", 8, 3))
        if self.rfile.read(1) == b"p":
            said = self._message().rstrip(b"\0").decode()
            fields = f"SFATAL\0VFATAL\0C28P01\0Myou said {said}, {quote(said).lower()}\0\0".encode()
            self.wfile.write(b"E" + struct.pack("!i", len(fields) + 4) + fields)

    def _message(self) -> bytes:
        size = self.rfile.read(4)
        return self.rfile.read(struct.unpack("!i", size)[0] - 4) if size else b""


def test_a_password_that_is_said_back_is_in_no_error() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", free_port()), _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        sink = PostgresSink(
            f"postgresql://me:hunter%2F2%40@127.0.0.1:{port}/db",
            "t",
            retry_deadline="0.2 seconds",
            connect_timeout="1 second",
        )
        with pytest.raises(OutfallError) as caught:
            sink.check_connection()
        server.shutdown()
    text = "".join(traceback.format_exception(caught.value))
    assert "you said ***, ***" in text
    assert "hunter" not in text

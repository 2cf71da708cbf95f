"""The log in a database: lost replies, servers that are killed, writers at one moment, other servers, settings."""

from __future__ import annotations

import threading
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from outfall.errors import ConfigurationError, RecordError, TransientError
from outfall.recovery import EntryExistsError, RecoveryConfig
from outfall.testing import LocalDriver
from outfall.testing.recovery_contract import RecoveryContract, once_at
from outfall.testing.tcp_proxy import NetworkFault
from tests.integration.support.sql import THOROUGH, MortalServer, Table, mostly_thorough, rows, run
from tests.integration.support.sql_logs import STEPS, contents, filled
from tests.integration.support.waiting import until
from tests.unit.support.command import done, failed, parsed
from tests.unit.support.warehouse import PlainSink


@THOROUGH
class TestContract(RecoveryContract):
    """The contract of all stores."""

    parts = 300

    @pytest.fixture(autouse=True)
    def _on(self, home: Table) -> None:
        self.home = home

    def make_recovery(self, directory: Path) -> RecoveryConfig:
        return self.home.location(**self.home.apart(f"log_{uuid.uuid4().hex[:12]}"))

    def stored_bytes(self, recovery: RecoveryConfig) -> int:
        return sum(
            int(self.home.read(f"SELECT coalesce(sum(octet_length(data)), 0) FROM {table}")[0][0])
            for table in self.home.log_tables(recovery)
        )


@pytest.mark.parametrize("step", mostly_thorough(STEPS, STEPS[1:2]))
def test_a_connection_that_is_cut_before_a_statement_is_replaced(target: Table, step: str) -> None:
    with target.proxy() as proxy:
        log = filled(target.location(proxy.port), 1)
        with once_at(step, proxy.drop_connections):
            assert log.append(b"2", after=1) == 2
    assert contents(target.location()) == [b"1", b"2"]


@pytest.mark.parametrize("deed", mostly_thorough(["reset", "cut"], ["reset"]))
def test_an_entry_whose_reply_is_lost_is_found_and_not_written_twice(target: Table, deed: str) -> None:
    with target.proxy() as proxy:
        log = filled(target.location(proxy.port), 1)
        fault = NetworkFault(deed, "reply", connections=1)  # type: ignore[arg-type]
        with once_at("log: before commit", lambda: proxy.inject(fault)):
            assert log.append(b"2", after=1) == 2
        assert log.append(b"3", after=2) == 3
    assert contents(target.location()) == [b"1", b"2", b"3"]


@pytest.mark.thorough
def test_a_state_whose_reply_is_lost_is_written_once(target: Table) -> None:
    with target.proxy() as proxy:
        log = filled(target.location(proxy.port), 1)
        fault = NetworkFault("reset", "reply", connections=1)
        with once_at("log: before commit", lambda: proxy.inject(fault)):
            name = log.write_state("p", b"x" * 1_000_000, generation=1)
        assert log.read_state(name) == b"x" * 1_000_000


@pytest.mark.parametrize("step", mostly_thorough(["log: entry inserted", "log: committed"], ["log: committed"]))
def test_a_server_that_is_killed_keeps_what_it_acknowledged(
    mortal: MortalServer, mortal_target: Table, step: str
) -> None:
    recovery = mortal_target.location()
    log = filled(recovery, 2)

    def restart() -> None:
        mortal.kill()
        mortal.start()

    with once_at(step, restart):
        assert log.append(b"3", after=2) == 3
    assert contents(recovery) == [b"1", b"2", b"3"]
    log.clean_up(keep=[3], states=[], generation=0)
    assert log.append(b"4", after=3) == 4


def test_a_writer_that_slept_while_its_number_was_freed_is_fenced(target: Table) -> None:
    recovery = target.location()
    sleeper, other = filled(recovery, 2), recovery.open("sink")

    def many_epochs() -> None:
        for after in range(2, 9):
            other.append(b"other", after=after)
        other.clean_up(keep=[9], states=[], generation=0)

    with once_at("log: newest checked", many_epochs), pytest.raises(EntryExistsError):
        sleeper.append(b"stray", after=2)
    assert other.numbers() == [9]


def test_of_two_creators_at_one_moment_one_wins(target: Table) -> None:
    """The second INSERT waits for the first transaction."""
    recovery = target.location()
    one, two = filled(recovery, 1), recovery.open("sink")
    refused: list[BaseException] = []

    def second() -> None:
        try:
            two.append(b"two", after=1)
        except EntryExistsError as error:
            refused.append(error)

    thread = threading.Thread(target=second, daemon=True)

    def start_and_wait_until_it_waits() -> None:
        thread.start()
        until(target.has_lock_wait, "the second waiting")

    with once_at("log: before commit", start_and_wait_until_it_waits):
        assert one.append(b"one", after=1) == 2
    thread.join(30)
    assert len(refused) == 1
    assert contents(recovery) == [b"1", b"one"]


def test_a_log_in_the_database_of_the_rows(target: Table) -> None:
    location = target.location()
    for epoch in (0, 1):
        run(target.sink(), location.url(), epoch, rows(epoch))
    assert (target.ids(), location.steps()) == ([0, 1], ["sink"])


# --- other servers


def test_a_copy_of_the_database_is_refused_by_name_until_it_is_accepted(target: Table) -> None:
    original = target.location()
    LocalDriver(PlainSink(), original).run_epoch(0, [[1, 2]])
    with target.copied() as other:
        copy = other.location()
        newest = original.open("sink").numbers()[-1]
        with closing(copy.open("sink")) as log:
            with pytest.raises(RecordError, match="outfall accept"):
                log.read()
            with pytest.raises(RecordError, match="outfall accept"):
                log.append(b"x", after=newest)
        # A batch job may skip numbers.
        with pytest.raises(RecordError, match="another server"):
            LocalDriver(PlainSink(), copy).run_epoch(5, [[3]])
        text = failed("accept", copy.url(), "sink")
        assert "last completed epoch here: 0" in text
        assert "nothing was changed" in text
        assert "epoch 0 completed" in done("status", copy.url())
        assert "accepted; start the query" in done("accept", copy.url(), "sink", "--yes")
        assert "nothing to accept" in done("accept", copy.url(), "sink")
        LocalDriver(PlainSink(), copy).run_epoch(1, [[3]])
    LocalDriver(PlainSink(), original).run_epoch(1, [[3]])
    assert parsed("accept", original.url(), "sink") == {
        "step": "sink", "change": None, "completed": 1, "accepted": False,
    }  # fmt: skip


@pytest.mark.thorough
def test_an_acceptance_of_what_has_changed_since_is_refused(target: Table) -> None:
    filled(target.location(), 2)
    with target.copied() as first, target.copied() as second:
        change, log = first.location().open("sink").server_change(), second.location().open("sink")
        assert change is not None
        with pytest.raises(RecordError, match="changed since the check"):
            log.accept_server(change)
        assert log.server_change() is not None


@pytest.mark.thorough
def test_a_log_that_was_copied_by_the_command_is_no_other_servers(target: Table, tmp_path: Path) -> None:
    LocalDriver(PlainSink(), f"{tmp_path}/chk").run_epoch(0, [[1]])
    done("copy", f"{tmp_path}/chk", target.location().url(), "sink")
    LocalDriver(PlainSink(), target.location()).run_epoch(1, [[2]])


def test_logs_with_names_are_apart(target: Table) -> None:
    one, two, bare = target.location(log="one"), target.location(log="two"), target.location()
    assert bare.steps() == []
    filled(one, 3)
    two.open("other").append(b"x", after=0)
    assert (one.steps(), two.steps(), bare.steps()) == (["sink"], ["other"], [])
    one.open("sink").erase()
    assert (one.steps(), two.steps()) == ([], ["other"])


def test_a_log_whose_tables_were_dropped_is_not_begun_anew(target: Table) -> None:
    log = filled(target.location(), 2)
    for table in target.log_tables(target.location()):
        target.run(f"DROP TABLE {table}")
    with pytest.raises(RecordError, match="entry 2 is missing"):
        log.append(b"3", after=2)


# --- settings


def test_a_server_that_may_lose_commits_is_refused_unless_it_is_allowed(
    mortal: MortalServer, mortal_target: Table
) -> None:
    with mortal_target.losing_commits():
        with pytest.raises(ConfigurationError, match=r"allow_unsafe=true"):
            filled(mortal_target.location(allow_unsafe=False), 1)
        filled(mortal_target.location(allow_unsafe=True), 1)


def test_a_read_only_server_is_named(mortal: MortalServer, mortal_target: Table) -> None:
    filled(mortal_target.location(), 1)
    with mortal_target.read_only():
        recovery = mortal_target.location(timeout=0.5)
        with pytest.raises(TransientError, match=r"read-only.*(=read-write|connect to the primary)"):
            recovery.open("sink").append(b"x", after=1)
        assert [entry.data for entry in recovery.open_read_only("sink").read()] == [b"1"]

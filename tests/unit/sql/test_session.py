"""Statements that a connection sends together, in which order and at which time."""

from __future__ import annotations

from typing import Any

import pytest

from outfall.sql.session import BatchingSession, Fetched, in_trips


class RefusedError(Exception):
    """A statement that the server refuses."""


class Session(BatchingSession):
    """A connection to a server that refuses one statement, and keeps the others."""

    errors = RefusedError

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.open: list[str] = []
        """The savepoints that the server has."""

    def alone(self, statement: Any, given: Any) -> Fetched:
        self.sent.append(statement)
        word, _, name = statement.rpartition(" ")
        if statement == "refused" or (name not in self.open and word in ("ROLLBACK TO SAVEPOINT", "RELEASE SAVEPOINT")):
            raise RefusedError
        if word == "SAVEPOINT":
            self.open.append(name)
        elif word == "RELEASE SAVEPOINT":
            del self.open[self.open.index(name) :]
        return Fetched(0, [])


def test_a_savepoint_of_a_rejected_row_ends_before_the_next_one_begins() -> None:
    session = Session()
    for _ in range(3):
        with pytest.raises(RefusedError), session.savepoint():
            session.execute("refused")
        session.execute("accepted")
        assert session.open == []


def test_nothing_is_released_where_the_server_has_undone_the_savepoint() -> None:
    session = Session()

    def deadlocked() -> None:
        with session.savepoint():
            session.flush()
            session.open.clear()
            session.execute("refused")

    with pytest.raises(RefusedError):
        deadlocked()
    session.finish("ROLLBACK")
    assert session.sent == ["SAVEPOINT outfall_1", "refused", "ROLLBACK TO SAVEPOINT outfall_1", "ROLLBACK"]


class Catalogue(BatchingSession):
    """A connection to a catalogue that compares names without regard to case."""

    errors = RefusedError

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []

    def alone(self, statement: Any, given: Any) -> Fetched:
        self.asked.append(given)
        return Fetched(0, [("a", 1), ("A", 2), ("a", 3)])

    def is_busy(self) -> bool:
        return True


def test_rows_of_a_question_about_several_tables_are_known_by_the_exact_name() -> None:
    session = Catalogue()
    session.look_ahead("one", lambda names: names[0], ["a", "b"], lambda names: ("several", tuple(names)))
    assert session.look("one", "a", "a") == [("a", 1), ("a", 3)]
    assert session.asked == [("a", "b")]
    session.look("one", "b", "b")
    assert session.asked == [("a", "b"), "b"], "a table without rows is asked about alone"


@pytest.mark.parametrize(("has_versions", "left"), [(True, 300), (False, 0)])
def test_much_is_kept_only_where_a_version_says_that_it_is_the_same(has_versions: bool, left: int) -> None:
    session = Catalogue()
    session.has_versions = has_versions  # type: ignore[misc]
    for number in range(300):
        session.look("one", number, number)
    session.asked.clear()
    session.begin([("BEGIN", ())])
    assert len(session._looked) == left


def test_many_statements_are_sent_in_texts_of_a_bounded_length_each_after_the_one_before() -> None:
    long, few = "x" * 100_000, "SELECT 1"
    assert [len(trip) for trip in in_trips([(long, ())] * 5 + [(few, ())] * 250)] == [2, 2, 200, 51]
    assert in_trips([(long * 9, ())] * 2) == [[(long * 9, ())]] * 2, "a statement is not divided"
    assert in_trips([]) == []
    session = Session()
    session.later("before")
    session.hold([(f"hold {number}", ()) for number in range(450)])
    session.flush()
    assert session.sent == ["before", *(f"hold {number}" for number in range(450))]


def test_queries_about_several_tables_are_asked_once_and_known_afterwards() -> None:
    session = Catalogue()
    session.look("one", "a", "a")
    session.look_each([("one", "a"), ("one", "b"), ("one", "c")], ["a", "b", "c"])
    assert session.look("one", "c", "c")[0] == ("a", 1)
    assert session.asked == ["a", "b", "c"]

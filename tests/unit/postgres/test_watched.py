"""A server that falls silent is given up, without a server."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from outfall.postgres import PostgresSink
from outfall.postgres.connection.database import watched

READ = 1


def reply(bytes_wanted: int) -> Generator[int, int, str]:
    """Wait as psycopg does: for as many moments at which there is something to read."""
    while bytes_wanted:
        if (yield READ):
            bytes_wanted -= 1
    return "the reply"


def wait(moments: Sequence[tuple[float, int]], *, patience: float = 10) -> tuple[str, list[str]]:
    """Drive a wait over moments: when, and what is ready; return the reply, and what was called before an error."""
    clock, called = [0.0], list[str]()
    waiting = watched(reply(2), patience, lambda: called.append("closed"), lambda: clock[0])
    next(waiting)
    try:
        for moment, ready in moments:
            clock[0] = moment
            waiting.send(ready)
    except StopIteration as end:
        return end.value, called
    except psycopg.OperationalError as error:
        return f"{error} ({error.sqlstate})", called
    return "waiting", called


@pytest.mark.parametrize(
    ("moments", "end", "called"),
    [
        ([(1, 0), (9, READ), (18, 0), (19, READ)], "the reply", []),
        ([(100, READ), (200, READ)], "the reply", []),
        ([(9, 0), (10, 0)], "waiting", []),
        ([(9, 0), (11, 0)], "the server has sent nothing for 10 s (None)", ["closed"]),
        ([(9, READ), (18, 0), (20, 0)], "the server has sent nothing for 10 s (None)", ["closed"]),
    ],
)
def test_silence_is_borne_from_one_sign_of_life_to_the_next(
    moments: list[tuple[float, int]], end: str, called: list[str]
) -> None:
    assert wait(moments) == (end, called)


@pytest.mark.parametrize(
    ("dsn", "found"),
    [
        ("host=db", ("60", "10", "3", "90000")),
        ("host=db keepalives_idle=7 tcp_user_timeout=0", ("7", "10", "3", "0")),
        ("service=warehouse", (None, None, None, None)),
    ],
)
def test_a_host_that_vanished_is_noticed_unless_the_dsn_says_otherwise(
    dsn: str, found: tuple[str | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGSERVICE", raising=False)
    made = conninfo_to_dict(PostgresSink(dsn, "t").delegate.database._conninfo())
    names = ("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
    assert tuple(made.get(name) for name in names) == found

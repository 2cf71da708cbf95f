"""The location of a log in PostgreSQL: a URL that says all but the password."""

from __future__ import annotations

import pickle

import pytest

from outfall.errors import ConfigurationError
from outfall.postgres import PostgresRecoveryConfig, PostgresSink
from outfall.recovery import recovery_config

PLACE = "postgresql://writer@one:5432,two:5433/flights"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host/db",
        f"{PLACE}?target_session_attrs=read-write&password=env:SECRET&log=by-carrier",
        f"{PLACE}?sslmode=verify-full&sslrootcert=/etc/ca%20file.pem&schema=other&prefix=p&timeout=5&allow_unsafe=true",
    ],
)
def test_a_url_gives_the_configuration_back(url: str) -> None:
    config = recovery_config(url)
    assert isinstance(config, PostgresRecoveryConfig)
    assert recovery_config(config.url()) == config == pickle.loads(pickle.dumps(config))
    assert config.url().partition("?")[0] == url.partition("?")[0]


def test_both_names_of_the_scheme_are_one_location() -> None:
    assert recovery_config("postgres://host/db") == recovery_config("postgresql://host/db")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://writer:geheim@host/db",
        "postgresql://writer:ge/heim@host/db",
        "postgresql://writer:ge@heim@host/db",
        "postgresql://writer@host/db?password=geheim",
        "postgresql://writer@host/db?sslpassword=geheim",
    ],
)
def test_a_password_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        recovery_config(url)
    assert "heim" not in str(refused.value)
    assert "password=env:NAME" in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://host", "no database"),
        ("postgresql://host/a/b", "no database"),
        ("postgresql://host/db?schema=a.b", "schema"),
        ("postgresql://host/db?prefix=", "prefix"),
        ("postgresql://host/db?log=a/b", "not a valid step id"),
        ("postgresql://host/db?timeout=1h", "at most 10 minutes"),
        ("postgresql://host/db?allow_unsafe=maybe", "true or false"),
    ],
)
def test_what_is_wrong_is_named(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        recovery_config(url)


def test_an_unknown_parameter_of_the_client_is_named_before_anything_connects() -> None:
    with pytest.raises(ConfigurationError, match="wrong_name"):
        recovery_config("postgresql://127.0.0.1:1/db?wrong_name=1").open("sink").read()


@pytest.mark.parametrize(
    ("dsn", "table", "location"),
    [
        ("postgresql://u@db:5433/flights", "t", "postgresql://u@db:5433/flights?log=t"),
        (
            "host=db dbname='a b' user=u@x password=geheim sslmode=require",
            "s.t",
            "postgresql://u%40x@db/a%20b?password=env:PGPASSWORD&sslmode=require&log=s.t",
        ),
        ("host=/run/pg dbname=flights", "t", "postgresql:///flights?host=/run/pg&log=t"),
        ("postgresql://one:1,two:2/flights", "t", "postgresql:///flights?host=one,two&port=1,2&log=t"),
        ("postgresql://db/flights", '"ä"', "postgresql://db/flights?log=table_33e6d73fee82"),
        ("service=flights", "t", None),
    ],
)
def test_a_sink_names_its_own_database_as_a_location(
    dsn: str, table: str, location: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGSERVICE", "PGDATABASE", "PGHOST"):
        monkeypatch.delenv(name, raising=False)
    sink = PostgresSink(dsn, table)
    assert sink.recovery_location() == location
    if location is not None:
        assert recovery_config(location).url() == location

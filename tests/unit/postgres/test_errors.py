"""What the server's codes mean: which errors may pass, and what is raised for the others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from pydantic import SecretStr

from outfall.errors import OutfallError, TargetError, TransientError, ValueRefusedError
from outfall.postgres.connection.database import PostgresDatabase
from outfall.postgres.options import PostgresOptions
from outfall.sql.database import Means

DATABASE = PostgresDatabase(PostgresOptions(dsn=SecretStr("host=db user=u dbname=d"), table="t"))

MAY_PASS = ["08006", "40001", "40P01", "53100", "53200", "53300", "55P03", "57P01", "57P02", "57P03", "25006", "25P03"]
A_ROWS_FAULT = ["22012", "22003", "23502", "23505", "23514", "44000"]
FOR_GOOD = ["53400", "42P01", "42501", "42703", "54000", "57014", "25001", "40002", "55006", "P0001", "3D000", "28P01"]


def made(code: str | None) -> psycopg.Error:
    error = psycopg.OperationalError("made to fail")
    error.sqlstate = code
    return error


@pytest.mark.parametrize(
    ("codes", "passing", "a_rows", "kind"),
    [
        (MAY_PASS, True, False, TransientError),
        (A_ROWS_FAULT, False, True, ValueRefusedError),
        (FOR_GOOD, False, False, TargetError),
    ],
    ids=["passing", "a row's", "for good"],
)
def test_a_code_is_of_one_kind(codes: list[str], passing: bool, a_rows: bool, kind: type[OutfallError]) -> None:
    for code in codes:
        error = made(code)
        means = DATABASE.means(error)
        assert (Means.PASSES in means, Means.ROW in means) == (passing, a_rows), code
        translated_error = DATABASE.translated("publishing to t", error)
        assert type(translated_error) is kind
        assert f"(SQLSTATE {code})" in str(translated_error)


def test_an_error_without_a_code_may_pass_unless_it_is_a_mistake_of_ours() -> None:
    assert DATABASE.is_transient(made(None))
    assert DATABASE.is_transient(psycopg.InterfaceError("the connection is closed"))
    assert not DATABASE.is_transient(psycopg.ProgrammingError("too few values"))


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("42501", "grant the privilege"),
        ("57014", "raise the option statement_timeout"),
        ("42P01", "correct the table"),
        ("53100", "free disk space"),
        ("53200", "more memory"),
        ("53400", "temp_file_limit"),
        ("54000", "shorten the value"),
        ("55P03", "pg_locks"),
        ("58030", "server's log"),
        ("25006", "target_session_attrs=read-write"),
        ("23505", "correct or leave out the row"),
    ],
)
def test_what_to_do_is_told(code: str, advice: str) -> None:
    assert advice in str(DATABASE.translated("publishing to t", made(code)))


@pytest.mark.parametrize("code", ["53100", "53200", "25006", "55P03"])
def test_what_has_passed_the_deadline_is_advised_on_by_its_code(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the number of connections, which has nothing to do with a full disk."""

    def fail(connection: object) -> None:
        raise made(code)

    hurried = replace(DATABASE, options=DATABASE.options.model_copy(update={"retry_deadline": timedelta(0)}))
    monkeypatch.setattr(PostgresDatabase, "run_once", lambda self, work, *given, **more: work(None))
    with pytest.raises(TransientError) as caught:
        hurried.run_raw("publishing to", fail)
    assert "connection left" not in str(caught.value)
    assert "the next run of the query finishes recorded epochs" in str(caught.value)

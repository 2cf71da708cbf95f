"""What the server's codes mean: which errors may pass, and what is raised for the others."""

from __future__ import annotations

import psycopg
import pytest
from pydantic import SecretStr

from outfall.errors import OutfallError, TargetError, TransientError, ValueRefusedError
from outfall.postgres.connection.database import PostgresDatabase
from outfall.postgres.connection.errors import is_rows_fault, may_pass, translated
from outfall.postgres.options import PostgresOptions

DATABASE = PostgresDatabase(PostgresOptions(dsn=SecretStr("host=db user=u dbname=d"), table="t"))

MAY_PASS = ["08006", "40001", "40P01", "53100", "53200", "53300", "55P03", "57P01", "57P02", "57P03", "25006", "25P03"]
A_ROWS_FAULT = ["22012", "22003", "23502", "23505", "23514", "44000"]
FOR_GOOD = ["42P01", "42501", "42703", "54000", "57014", "25001", "40002", "55006", "P0001", "3D000", "28P01"]


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
        assert (may_pass(error), is_rows_fault(error)) == (passing, a_rows), code
        told = translated(DATABASE, "publishing to t", error)
        assert type(told) is kind
        assert f"(SQLSTATE {code})" in str(told)


def test_an_error_without_a_code_may_pass_unless_it_is_a_mistake_of_ours() -> None:
    assert may_pass(made(None))
    assert may_pass(psycopg.InterfaceError("the connection is closed"))
    assert not may_pass(psycopg.ProgrammingError("too few values"))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("42501", "grant the privilege"),
        ("57014", "raise the option statement_timeout"),
        ("42P01", "correct the table"),
        ("23505", "correct or leave out the row"),
    ],
)
def test_what_to_do_is_told(code: str, told: str) -> None:
    assert told in str(translated(DATABASE, "publishing to t", made(code)))

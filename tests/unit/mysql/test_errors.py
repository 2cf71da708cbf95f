"""What numbers of errors mean, in MySQL, MariaDB and PyMySQL."""

from __future__ import annotations

import pymysql
import pytest
from pydantic import SecretStr

from outfall.errors import OutfallError, TargetError, TransientError, ValueRefusedError
from outfall.mysql.database import MySQLDatabase
from outfall.mysql.options import MySQLOptions
from outfall.sql.database import Means

DATABASE = MySQLDatabase(MySQLOptions(dsn=SecretStr("mysql://u@db.example/d"), table="t"))


@pytest.mark.parametrize(
    ("code", "means", "kind"),
    [
        (1213, Means.PASSES, TransientError),
        (1205, Means.PASSES | Means.LOCKED, TransientError),
        (2013, Means.PASSES, TransientError),
        (2026, Means.REFUSED, TargetError),
        (1045, Means.REFUSED, TargetError),
        (1044, Means.REFUSED, TargetError),
        (1049, Means.REFUSED | Means.MISMATCH | Means.ABSENT, TargetError),
        (1142, Means.DENIED, TargetError),
        (1146, Means.MISMATCH | Means.ABSENT, TargetError),
        (1048, Means.ROW | Means.MISMATCH, ValueRefusedError),
        (1062, Means.ROW | Means.QUOTES | Means.TAKEN, ValueRefusedError),
        (1064, Means(0), TargetError),
    ],
)
def test_a_number_means_one_thing_for_rows_and_log(code: int, means: Means, kind: type[OutfallError]) -> None:
    error = pymysql.OperationalError(code, "it has 'tulip'")
    assert DATABASE.means(error) == means
    translated = DATABASE.translated("publishing to t", error)
    assert type(translated) is kind
    assert f"(error {code})" in str(translated)
    shown = Means.QUOTES not in means
    assert ("tulip" in str(translated), "tulip" in str(error)) == (shown, shown)


def test_a_connection_that_the_client_has_closed_may_be_made_again_and_an_untrusted_one_not() -> None:
    assert DATABASE.is_transient(pymysql.InterfaceError(0, ""))
    assert not DATABASE.is_transient(pymysql.ProgrammingError("too few values"))
    untrusted = pymysql.OperationalError(2003, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    assert DATABASE.means(untrusted) == Means.REFUSED

"""Credentials in texts that people see."""

from __future__ import annotations

import pytest

from outfall.redaction import without_credentials
from outfall.urls import masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p@h/db", "postgresql://***@h/db"),
        ("postgresql://u:p'w@h/db", "postgresql://***@h/db"),
        ('postgresql://u:p"w<>@h/db', "postgresql://***@h/db"),
        ("postgresql://u:p/w@h/db", "postgresql://***@h/db"),
        ("postgresql://u:12/3@h/db", "postgresql://***@h/db"),
        ("postgresql://u:p@w@h/db", "postgresql://***@h/db"),
        (
            "no route to postgresql://u:p/w?x#y@h/db and http://h/x?token=t",
            "no route to postgresql://***@h/db and http://h/x",
        ),
        ("host=h password=geheim dbname=d", "host=h password=*** dbname=d"),
        ("host=h password = 'ge \\' heim' dbname=d", "host=h password = *** dbname=d"),
        ("PASSWORD=geheim sslpassword=auch", "PASSWORD=*** sslpassword=***"),
        ("sasl.password=geheim", "sasl.password=***"),
        ("s3://bucket/path and a@b", "s3://bucket/path and a@b"),
        ("a password is wrong", "a password is wrong"),
    ],
)
def test_credentials_are_masked_whatever_the_password_holds(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


@pytest.mark.parametrize("text", ["http://" * 50_000, "password" * 50_000, "a." * 100_000, "x" * 300_000 + "@"])
def test_a_long_text_is_gone_through_once(text: str) -> None:
    assert without_credentials(text)


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("s3://key:secret@bucket/x", "s3://***@bucket/x"),
        ("s3://key:sec/ret@bucket/x?q#f", "s3://***@bucket/x"),
        ("https://token@h/x", "https://***@h/x"),
        ("https://h/users/a@b", "https://h/users/a@b"),
        ("https://h:8443/users/a@b", "https://h:8443/users/a@b"),
        ("https://[::1]:8443/users/a@b", "https://[::1]:8443/users/a@b"),
        ("https://h/a:b@c?q", "https://h/a:b@c"),
    ],
)
def test_a_location_keeps_what_is_no_credential(location: str, shown: str) -> None:
    assert masked(location) == shown

"""What a session reads in the replies of the server."""

from __future__ import annotations

import pytest

from outfall.mysql.database import records_of


@pytest.mark.parametrize(
    ("message", "records"),
    [
        ("Records: 3  Duplicates: 1  Warnings: 0", 3),
        ("Datensätze: 3  Duplikate: 1  Warnungen: 0", 3),
        ("レコード数: 12  重複数: 0  警告: 0", 12),
        ("", 0),
    ],
)
def test_the_number_of_rows_is_read_in_each_language_of_the_server(message: str, records: int) -> None:
    assert records_of(message.encode()) == records

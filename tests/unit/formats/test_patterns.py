"""Patterns: the text that Java's formatter makes, as `strftime` tells it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats.patterns import DATE, TIMESTAMP, TIMESTAMP_NTZ, Pattern

KNOWN = {
    "yyyy-MM-dd HH:mm:ss": "{0:%Y-%m-%d %H:%M:%S}",
    "yyyy-MM-dd HH:mm:ss.SSSSSS": "{0:%Y-%m-%d %H:%M:%S.%f}",
    "dd/MM/uuuu'T'HHmm": "{0:%d/%m/%Y}T{0:%H%M}",
    "ss.mm:HH": "{0:%S.%M:%H}",
    "yyyyMMdd HH'o''clock'''": "{0:%Y%m%d} {0:%H}o'clock'",
    "HH:mm yyyy": "{0:%H:%M %Y}",
}
MOMENTS = st.datetimes(min_value=datetime.fromisoformat("1000-01-01"))
INSTANTS = st.datetimes(
    datetime.fromisoformat("1950-01-01"), datetime.fromisoformat("2030-01-01"), timezones=st.just(UTC)
)


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", list(KNOWN))
@settings(deadline=None, max_examples=30)
@given(st.lists(st.none() | MOMENTS, min_size=1, max_size=5))
def test_a_pattern_gives_what_strftime_gives(pattern: str, values: list[datetime | None]) -> None:
    found = Pattern.parse(pattern, TIMESTAMP_NTZ).format(pa.array(values, pa.timestamp("us")), "c").to_pylist()
    assert found == [value and KNOWN[pattern].format(value) for value in values]


@settings(deadline=None)
@given(MOMENTS, st.integers(1, 6))
def test_fractions_are_cut_and_not_rounded(value: datetime, digits: int) -> None:
    found = Pattern.parse("ss" + "S" * digits, TIMESTAMP_NTZ).format(pa.array([value], pa.timestamp("us")), "c")
    assert found.to_pylist() == [f"{value:%S%f}"[: 2 + digits]]


def test_neighbours_that_are_neighbours_in_iso_text_are_one_slice() -> None:
    assert Pattern.parse("yyyy-MM-dd HH:mm:ss.SSS", TIMESTAMP).pieces == ((0, 23),)
    assert Pattern.parse("yyyy/MM", TIMESTAMP).pieces == ((0, 4), "/", (5, 7))


@settings(deadline=None)
@given(
    st.lists(INSTANTS, min_size=1, max_size=5),
    st.sampled_from(["America/New_York", "Asia/Kolkata", "UTC"]),
)
def test_instants_have_the_clock_and_the_offset_of_their_zone(values: list[datetime], zone: str) -> None:
    found = Pattern.parse("yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", TIMESTAMP).format(
        pa.array(values, pa.timestamp("us", zone)), "c"
    )
    for text, value in zip(found.to_pylist(), values, strict=True):
        local = value.astimezone(ZoneInfo(zone))
        assert text == local.isoformat(timespec="microseconds").replace("+00:00", "Z")


def test_zones_that_are_an_offset_are_clocks_too_or_refused_by_name() -> None:
    value = datetime(2026, 1, 1, 0, 30, tzinfo=timezone(timedelta(hours=-1)))
    array = pa.array([value, None], pa.timestamp("s", "-03:30"))
    pattern = Pattern.parse("HH:mmXXX", TIMESTAMP)
    if int(pa.__version__.split(".")[0]) < 20:  # older ones look every zone up by its name
        with pytest.raises(ConfigurationError, match="'c' has the time zone '-03:30'"):
            pattern.format(array, "c")
    else:
        assert pattern.format(array, "c").to_pylist() == ["22:00-03:30", None]


def test_an_offset_with_seconds_is_refused_by_row() -> None:
    array = pa.array(
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(1850, 1, 1, tzinfo=UTC)], pa.timestamp("us", "America/New_York")
    )
    with pytest.raises(ValueRefusedError, match=r"'c' .* in row 1 of"):
        Pattern.parse("yyyyXXX", TIMESTAMP).format(array, "c")
    assert Pattern.parse("yyyy", TIMESTAMP).format(array, "c").to_pylist() == ["2025", "1849"]


def test_a_zone_that_is_unknown_here_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'Mars/Base'"):
        Pattern.parse("yyyy", TIMESTAMP).format(pa.array([0], pa.timestamp("us", "Mars/Base")), "c")


def test_an_instant_whose_clocks_show_the_year_10000_is_refused() -> None:
    last = pa.array([0, 253_402_300_799_000_000], pa.timestamp("us", "Asia/Kolkata"))
    with pytest.raises(ValueRefusedError, match="'c' contains a year outside 1 to 9999, in row 1 of"):
        Pattern.parse("yyyy", TIMESTAMP).format(last, "c")


def test_slashes_and_equal_signs_are_text_within_quotes_and_without() -> None:
    value = pa.array([datetime.fromisoformat("2026-11-21T12:34:56")], pa.timestamp("us"))
    for pattern in ("'dt='yyyy-MM/'h='HH", "'dt'=yyyy-MM'/h='HH"):
        assert Pattern.parse(pattern, TIMESTAMP_NTZ).format(value, "c").to_pylist() == ["dt=2026-11/h=12"]


def test_dates_take_only_what_they_have() -> None:
    day = pa.array([date(2026, 11, 21), None], pa.date32())
    assert Pattern.parse("dd.MM.yyyy", DATE).format(day, "c").to_pylist() == ["21.11.2026", None]
    with pytest.raises(ValueError, match="'HH' is not supported"):
        Pattern.parse("HH", DATE)

"""A URL that cannot be parsed is an error that repeats nothing of it, on every sink and in every location."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from outfall.errors import ConfigurationError, OutfallError
from outfall.recovery.url import recovery_config
from outfall.replay.sources import dead_letters_at
from outfall.urls import is_overheard, masked, scheme_of, split_server, split_url
from tests.generated import destinations

SECRET = "s3cr3tpw"
BROKEN = {
    "a full-width colon": f"user:{SECRET}\uff1ax@host/db",
    "a bracket": f"user:{SECRET}[x@host/db",
    "an address in brackets": f"user:pa[{SECRET}]x@host/db",
    "a character that becomes a slash": f"user:{SECRET}\u2100@host:1/db",
    "a slash": f"user:a/{SECRET}@host/db",
    "a hash": f"user:a#{SECRET}@host/db",
    "a question mark": f"user:a?{SECRET}@host/db",
    "a port that is no number": f"user@host:{SECRET}/db",
    "two colons": f"host:80:{SECRET}/db",
    "a port that is too large": f":{SECRET}@host:99999999/db",
    "a space": f"user:{SECRET}@ho st/db",
    "a line break": f"user:{SECRET}\n@host/db",
    "no host": f"user:{SECRET}@/db",
    "a password": f"user:{SECRET}@host/db",
    "a password in the query": f"host/db?password={SECRET}",
    "a misspelled one": f"host/db?passwort={SECRET}",
}
URL = re.compile(r"(^|_)(url|dsn|path|location|uri|servers|brokers)$")
SINKS = {type(sink).__name__: sink for package in destinations() for sink in package.facts.sinks.values()}
OPTIONS = [
    (name, field) for name, sink in SINKS.items() for field in type(sink.options).model_fields if URL.search(field)
]
SCHEMES = {"url": "https", "endpoint_url": "https", "oauth2_token_url": "https", "path": "s3"}
SCHEMES_OF = {"RedisSink": "redis", "PostgresSink": "postgresql", "MySQLSink": "mysql", "KafkaSink": "kafka"}


def shown_by(make: Callable[[str], Any], url: str) -> str:
    """What a user sees of a URL: an error with its causes, or the object."""
    try:
        return repr(make(url))
    except OutfallError as error:
        return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize(("name", "field"), OPTIONS)
def test_no_option_of_a_sink_repeats_a_password(name: str, field: str, how: str) -> None:
    sink: Any = SINKS[name]
    given = {option: getattr(sink.options, option) for option in sink.options.model_fields_set}
    scheme = SCHEMES_OF.get(name) or SCHEMES.get(field, "https")
    assert SECRET not in shown_by(lambda url: type(sink)(**{**given, field: url}), f"{scheme}://{BROKEN[how]}")


def test_the_sinks_with_urls_are_found() -> None:
    assert {name for name, _ in OPTIONS} >= {"RedisSink", "OpenSearchSink", "HttpSink", "MySQLSink", "S3Sink"}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "kafka", "sqlite", "s3", "abfss", "gs", "file", "nope"])
def test_no_location_repeats_a_password(scheme: str, how: str) -> None:
    assert SECRET not in shown_by(recovery_config, f"{scheme}://{BROKEN[how]}")
    if scheme not in ("sqlite", "nope"):
        assert SECRET not in shown_by(dead_letters_at, f"{scheme}://{BROKEN[how]}")


def test_a_location_without_a_colon_after_its_scheme_is_no_path_with_a_password() -> None:
    assert SECRET not in shown_by(recovery_config, f"postgresql//user:{SECRET}@host/db")


def test_a_url_is_parsed_with_all_its_hosts_and_ports() -> None:
    assert split_url("kafka://a:9092,[::1]:9093/prefix").path == "/prefix"
    for url in ("kafka://a:9092,b:x/prefix", "redis://[h/0", "redis://h:65536"):
        with pytest.raises(ValueError, match="write the port as a number"):
            split_url(url)


def test_a_server_has_its_credentials_elsewhere() -> None:
    assert split_server("https://h:1/a", ("https",), "https://host", "use password").port == 1
    for url, problem in (
        ("http://h", "must be https://host"),
        ("https:///a", "must be https://host"),
        ("https://u@h", "no credentials and no query: use password"),
        ("https://h?q", "no credentials and no query"),
        ("https://h#f", "no credentials and no query"),
    ):
        with pytest.raises(ValueError, match=problem):
            split_server(url, ("https",), "https://host", "use password")


def test_the_scheme_of_what_is_not_valid() -> None:
    assert [scheme_of(text) for text in ("S3A://[", "/a:b", "a/b:c", "")] == ["s3a", "", "", ""]


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("user:pw@host/db", "user:***@host/db"),
        ("redis//user:pw@host", "***@host"),
        ("file:user:pw@host", "file:***@host"),
        ("https://host:pw/db", "https://host:***/db"),
        ("https://[pw/db", "https://***/db"),
        ("kafka://a:9092,b:pw/p", "kafka://a:9092,b:***/p"),
        (
            "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/x",
            "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/x",
        ),
        ("/data/a:b@c", "/data/a:b@c"),
        ("data/a@b", "data/a@b"),
        ("hdfs://[::1]:8020/x", "hdfs://[::1]:8020/x"),
    ],
)
def test_a_location_is_shown_without_what_may_be_a_password(location: str, shown: str) -> None:
    assert masked(location) == shown


def test_advice_for_an_invalid_location() -> None:
    with pytest.raises(ConfigurationError, match="percent-encode user and password"):
        recovery_config("kafka://u:p[w@host/x")


def test_only_a_plain_connection_to_another_host_is_overheard() -> None:
    plain = ("http://localhost:9200", "http://127.0.0.1", "http://[::1]:1/x", "https://search.example")
    assert [is_overheard(url) for url in (*plain, "http://search.example")] == [False] * 4 + [True]

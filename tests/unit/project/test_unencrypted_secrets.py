"""No sink sends a secret to another host without TLS, unless the user permits it; found by the registry of sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import pytest
import requests
from pydantic import BaseModel, SecretStr
from requests.auth import HTTPBasicAuth, HTTPDigestAuth

from outfall.errors import ConfigurationError
from outfall.http import HttpSink
from outfall.iceberg import IcebergSink
from outfall.kafka import KafkaSink
from outfall.opensearch import OpenSearchSink
from outfall.redis import RedisSink
from outfall.s3 import S3Sink
from outfall.schema_registry import SchemaRegistryOptions
from outfall.schema_registry.options import SchemaRegistryOptions as RegistryModel
from outfall.unencrypted_secrets import UnencryptedSecrets
from tests.generated import registered

Make = Callable[..., Any]
"""Returns something with options, by a host, whether with TLS, and more options."""
SECRET = "hunter2-hunter2"
KEY = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="


def http(host: str, tls: bool, **more: Any) -> HttpSink:
    return HttpSink(f"http{'s' * tls}://{host}/rows", **more)


def oauth2(host: str, tls: bool, **more: Any) -> HttpSink:
    given = {"oauth2_client_id": "me", "oauth2_client_secret": SECRET} | more
    return HttpSink("https://api.example/rows", oauth2_token_url=f"http{'s' * tls}://{host}/token", **given)


def opensearch(host: str, tls: bool, **more: Any) -> OpenSearchSink:
    return OpenSearchSink(f"http{'s' * tls}://{host}", index="rows", key_columns="id", **more)


def redis(host: str, tls: bool, **more: Any) -> RedisSink:
    return RedisSink(f"redis{'s' * tls}://{host}/0", "{id}", layout="json", **more)


def s3(host: str, tls: bool, **more: Any) -> S3Sink:
    return S3Sink("bucket", endpoint_url=f"http{'s' * tls}://{host}", **more)


def iceberg(host: str, tls: bool, *, catalog_options: Mapping[str, str], **more: Any) -> IcebergSink:
    catalog = {"uri": f"http{'s' * tls}://{host}", **catalog_options}
    return IcebergSink("flights.rows", catalog_options=catalog, **more)


def iceberg_in_capitals(host: str, tls: bool, *, catalog_options: Mapping[str, str], **more: Any) -> IcebergSink:
    uri = f"HTTP{'S' * tls}://{host}"
    return iceberg(host, tls, catalog_options={"uri": uri, **catalog_options}, **more)


def registry(host: str, tls: bool, **more: Any) -> SchemaRegistryOptions:
    return SchemaRegistryOptions.parse({"url": f"http{'s' * tls}://{host}"} | more)


def registry_oauth2(host: str, tls: bool, **more: Any) -> SchemaRegistryOptions:
    given = {"oauth2_client_id": "me", "oauth2_client_secret": SECRET} | more
    return registry("registry.example", True, oauth2_token_url=f"http{'s' * tls}://{host}", **given)


def proxy(host: str, tls: bool, **more: Any) -> SchemaRegistryOptions:
    return registry("registry.example", True, proxy=f"http{'s' * tls}://me:{SECRET}@{host}", **more)


def kafka(host: str, tls: bool, **more: Any) -> KafkaSink:
    url = f"http{'s' * tls}://{host}"
    return KafkaSink(
        "broker:9092", "rows", value_format="avro", schema_registry={"url": url, "password": SECRET, **more}
    )


SENT: dict[tuple[str, str], list[tuple[Make, dict[str, Any]]] | str] = {
    ("HttpOptions", "bearer_token"): [(http, {"bearer_token": SECRET})],
    ("HttpOptions", "password"): [(http, {"username": "me", "password": SECRET})],
    ("HttpOptions", "headers"): [
        (http, {"headers": {"X-Api-Key": SECRET}}),
        (http, {"headers": {"Authorization": SECRET}}),
        (http, {"headers": {"X-Auth-Key": SECRET}}),
        (http, {"headers": {"Ocp-Apim-Subscription-Key": SECRET}}),
        (http, {"headers": {"x-functions-key": SECRET}}),
        (http, {"headers": {"X-JWT-Assertion": SECRET}}),
        (http, {"headers": {"X-Any": "env:WHATEVER"}}),
    ],
    ("HttpOptions", "query"): [(http, {"query": {"access_token": SECRET}})],
    ("HttpOptions", "oauth2_client_secret"): [
        (oauth2, {}),
        (http, {"oauth2_token_url": "https://x", "oauth2_client_id": "me", "oauth2_client_secret": SECRET}),
    ],
    ("OpenSearchOptions", "password"): [(opensearch, {"username": "me", "password": SECRET})],
    ("OpenSearchOptions", "api_key"): [(opensearch, {"api_key": SECRET})],
    ("RedisOptions", "password"): [(redis, {"password": SECRET})],
    ("S3Options", "sse_customer_key"): [(s3, {"sse_customer_key": KEY})],
    ("IcebergOptions", "catalog_options"): [
        (iceberg, {"catalog_options": {"credential": SECRET}}),
        (iceberg, {"catalog_options": {"token": SECRET}}),
        (iceberg_in_capitals, {"catalog_options": {"token": SECRET}}),
        (iceberg, {"catalog_options": {"header.Authorization": SECRET}}),
    ],
    ("SchemaRegistryOptions", "password"): [(registry, {"username": "me", "password": SECRET})],
    ("SchemaRegistryOptions", "bearer_token"): [(registry, {"bearer_token": SECRET})],
    ("SchemaRegistryOptions", "headers"): [(registry, {"headers": {"X-Api-Key": SECRET}})],
    ("SchemaRegistryOptions", "oauth2_client_secret"): [(registry_oauth2, {})],
    ("SchemaRegistryOptions", "proxy"): [(proxy, {})],
    ("PostgresOptions", "dsn"): "verified TLS by default; sslmode says otherwise: tests/unit/postgres",
    ("MySQLOptions", "dsn"): "verified TLS by default; tls says otherwise: tests/unit/mysql",
    ("KafkaOptions", "client_options"): "security.protocol says it: SASL_SSL, or SASL_PLAINTEXT",
    ("DeltaOptions", "storage_options"): "deltalake refuses http unless allow_http says otherwise",
    ("DeltaOptions", "configuration"): "is stored in the table, not sent",
}
"""By model and option: what is refused, or who decides it instead. A new option with a secret needs a line."""
CASES = [
    pytest.param(make, more, id=f"{model}-{option}-{number}")
    for (model, option), cases in SENT.items()
    if not isinstance(cases, str)
    for number, (make, more) in enumerate(cases)
]


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a model of options, and those of its fields."""
    yield model
    for field in model.model_fields.values():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from models(kind)


def holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(holds_secret, get_args(annotation)))


def options_of_sinks() -> set[type[BaseModel]]:
    sinks = [sink for package in registered() for sink in package.facts.sinks.values()]
    return {model for sink in sinks for model in models(type(sink.options))}


def test_each_option_with_a_secret_has_the_rule() -> None:
    found = {
        (model.__name__, name): model
        for model in options_of_sinks()
        for name, field in model.model_fields.items()
        if holds_secret(field.annotation)
    }
    assert RegistryModel in found.values()
    assert found.keys() == SENT.keys()
    assert [key for key, model in found.items() if not issubclass(model, UnencryptedSecrets)] == [
        key for key in found if isinstance(SENT[key], str)
    ]


@pytest.mark.parametrize(("make", "more"), CASES)
def test_a_secret_goes_to_another_host_with_tls_only(make: Make, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"must be (https|rediss), .*allow_unencrypted=true") as caught:
        make("host.example:1", False, **more)
    assert SECRET not in str(caught.value)
    make("host.example:1", True, **more)
    make("127.0.0.1:1", False, **more)
    make("host.example:1", False, **more, allow_unencrypted=True)


def test_basic_authentication_by_an_object_of_requests_needs_tls_too() -> None:
    session = requests.Session()
    session.auth = ("me", SECRET)
    for more in ({"auth": HTTPBasicAuth("me", SECRET)}, {"session": session}):
        with pytest.raises(ConfigurationError, match="would be sent without TLS"):
            http("host.example", False, **more)
        http("host.example", True, **more)
        http("host.example", False, **more, allow_unencrypted=True)
    http("host.example", False, auth=HTTPDigestAuth("me", SECRET))


@pytest.mark.parametrize("given", ["headers", "params", "cookies"])
def test_secrets_of_a_session_need_tls_too(given: str) -> None:
    session = requests.Session()
    if given == "cookies":
        session.cookies.set("id", SECRET)
    else:
        setattr(session, given, {"Authorization": SECRET})
    with pytest.raises(ConfigurationError, match=r"of the session would be sent without TLS") as caught:
        http("host.example", False, session=session)
    assert SECRET not in str(caught.value)
    http("host.example", True, session=session)
    http("host.example", False, session=session, allow_unencrypted=True)
    http("host.example", False, session=requests.Session())


@pytest.mark.parametrize("host", ["127.0.0.2", "[::ffff:127.0.0.1]", "[0:0::1]", "LOCALHOST"])
def test_other_names_of_the_loopback_need_no_tls(host: str) -> None:
    http(host, False, bearer_token=SECRET)


@pytest.mark.parametrize("host", ["128.0.0.1", "[::ffff:10.0.0.1]", "127.0.0.1.example", "localhost.example"])
def test_names_that_look_like_the_loopback_need_tls(host: str) -> None:
    with pytest.raises(ConfigurationError, match="must be https"):
        http(host, False, bearer_token=SECRET)


def test_names_of_counts_are_no_secrets() -> None:
    http("host.example", False, headers={"X-Token-Count": "3", "X-Token-Limit": "9"})


@pytest.mark.parametrize("make", [http, opensearch, redis, s3, registry])
def test_without_a_secret_no_tls_is_needed(make: Make) -> None:
    more = {"headers": {"X-Source": "spark"}} if make is http else {}
    make("host.example:1", False, **more)


def test_the_rule_holds_for_the_registry_of_a_sink() -> None:
    with pytest.raises(ConfigurationError, match="url must be https"):
        kafka("host.example", False, username="me")
    kafka("host.example", False, username="me", allow_unencrypted=True)

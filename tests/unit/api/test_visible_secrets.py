"""The warning about secrets that Spark shows: each secret option of each sink, its name and never its value."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from outfall import visible_secrets
from outfall.options import Pairs, _holds_secret
from outfall.source_options import SourceOptions
from outfall.visible_secrets import warn_of_visible_secrets
from tests.generated import destinations

SECRET = "s3cr3tpw"
SINKS = [sink for package in destinations() for sink in package.facts.sinks.values()]
MODELS = {type(sink.options).__name__: type(sink.options) for sink in SINKS}
ENTRIES = [
    "Authorization", "X-Api-Key", "X-Auth", "sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret",
    "AWS_SECRET_ACCESS_KEY", "aws_session_token", "azure_storage_account_key", "s3.secret-access-key", "credential",
    "token", "adls.sas-token", "gcs.oauth2.token",
]  # fmt: skip
PLAIN_ENTRIES = [
    "linger.ms", "Content-Type", "s3.access-key-id", "AWS_ACCESS_KEY_ID", "AWS_REGION", "sasl.mechanism", "uri",
    "sasl.oauthbearer.token.endpoint.url", "ssl.key.location", "delta.appendOnly",
]  # fmt: skip


@pytest.fixture(params=["Connect", "classic"])
def session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    uuid = "default" if request.param == "classic" else "29280593-634d-4645-b023-7c750295a972"
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", uuid)
    visible_secrets._warn_once.cache_clear()
    return str(request.param)


def warned(caplog: pytest.LogCaptureFixture, options: dict[str, str], checkpoint: str | None = None) -> str:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        warn_of_visible_secrets(options, checkpoint)
    return caplog.text


def values(name: str, annotation: Any) -> list[str]:
    """Texts with a secret for an option."""
    if annotation == Pairs.__origin__:  # type: ignore[attr-defined]
        return [json.dumps({entry: SECRET}) for entry in ENTRIES]
    if name == "dsn":
        return [f"mysql://u:{SECRET}@h/d", f"postgresql://h/d?password={SECRET}", f"host=h password={SECRET}"]
    return [SECRET]


@pytest.mark.parametrize("session", ["Connect"], indirect=True)
@pytest.mark.parametrize("model", MODELS)
def test_each_secret_of_each_sink_is_named(model: str, session: str, caplog: pytest.LogCaptureFixture) -> None:
    fields = MODELS[model].model_fields
    for name, field in fields.items():
        for spelled in (name, name.replace("_", ""), f"archive.{name}"):
            if _holds_secret(field.annotation):
                for text in values(name, field.annotation):
                    found = warned(caplog, {spelled: text, "topic": "t"})
                    assert spelled in found
                    assert SECRET not in found
                    assert "env:NAME or file:PATH" in found
            else:
                assert warned(caplog, {spelled: "a-value"}) == ""


@pytest.mark.parametrize("session", ["Connect"], indirect=True)
@pytest.mark.parametrize(
    "text",
    [
        "", "env:NAME", "file:/run/secret", json.dumps({"Authorization": "env:NAME"}), "postgresql://user@host/db",
        "https://host:8080/a@b", "mysql://h/d?password=env:NAME", "host=h dbname=d user=u", "s3://bucket/path",
        "{broken",
        *(json.dumps({entry: "a-value"}) for entry in PLAIN_ENTRIES),
    ],
)  # fmt: skip
def test_a_reference_is_no_secret(text: str, session: str, caplog: pytest.LogCaptureFixture) -> None:
    assert warned(caplog, {"dsn": text, "url": text}) == ""


@pytest.mark.parametrize("session", ["Connect"], indirect=True)
def test_the_options_of_the_api_hold_no_secret(session: str, caplog: pytest.LogCaptureFixture) -> None:
    assert warned(caplog, dict.fromkeys(SourceOptions.model_fields, "x")) == ""
    assert "recovery" in warned(caplog, {"recovery": f"postgresql://u:{SECRET}@h/d"})


def test_it_is_said_where_spark_shows_it(session: str, caplog: pytest.LogCaptureFixture) -> None:
    # Spark: a classic session shows the options of SQL's INSERT only, and SQL has no streams.
    stream = warned(caplog, {"password": SECRET}, "/chk")
    job = warned(caplog, {"password": SECRET}, None)
    if session == "Connect":
        assert "Spark Connect shows" in stream
        assert "Spark Connect shows" in job
        assert warned(caplog, {"password": SECRET}, "/chk") == "", "once per run of a stream"
    else:
        assert stream == ""
        assert "if the job is SQL's INSERT" in job

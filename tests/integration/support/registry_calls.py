"""Calls of Confluent's Schema Registry API, one after the other, and what a registry answers to each."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

CONTENT = "application/vnd.schemaregistry.v1+json"


def record(*fields: tuple[Any, ...], name: str = "Flight", **extra: Any) -> str:
    """Return an Avro record; a third value of a field is its default."""
    made = [dict(zip(("name", "type", "default"), each, strict=False)) for each in fields]
    return json.dumps({"type": "record", "name": name, "fields": made} | extra)


ONE = record(("carrier", "string"))
TWO = record(("carrier", "string"), ("distance", ["null", "long"], None))
REFUSED = record(("carrier", "long"))
AIRPORT = record(("code", "string"), name="Airport")
ROUTE = record(("start", "Airport"), ("end", "Airport"), name="Route")
OBJECT = json.dumps({"type": "object", "properties": {"carrier": {"type": "string"}}})
MESSAGE = 'syntax = "proto3";\nmessage Flight {\n  string carrier = 1;\n}\n'


@dataclass(frozen=True)
class Call:
    """One request: `S` in its path is the subject."""

    name: str
    method: str
    path: str
    body: Any = None


def _schema(text: str, kind: str | None = None, **extra: Any) -> dict[str, Any]:
    return {"schema": text} | ({"schemaType": kind} if kind else {}) | extra


_AIRPORT = [{"name": "Airport", "subject": "S-airport", "version": 1}]
CALLS = (
    Call("kinds of schemas", "GET", "/schemas/types"),
    Call("default level", "PUT", "/config", {"compatibility": "BACKWARD"}),
    Call("default level read", "GET", "/config"),
    Call("a level that there is not", "PUT", "/config/S", {"compatibility": "SIDEWAYS"}),
    Call("latest of an unknown subject", "GET", "/subjects/S/versions/latest"),
    Call("versions of an unknown subject", "GET", "/subjects/S/versions"),
    Call("look-up in an unknown subject", "POST", "/subjects/S", _schema(ONE)),
    Call("unknown id", "GET", "/schemas/ids/999999"),
    Call("register the first", "POST", "/subjects/S/versions", _schema(ONE)),
    Call("register it again", "POST", "/subjects/S/versions", _schema(ONE)),
    Call("register it with other spaces", "POST", "/subjects/S/versions", _schema(f" {ONE} ")),
    Call("register it elsewhere", "POST", "/subjects/S-other/versions", _schema(ONE)),
    Call("register no schema", "POST", "/subjects/S/versions", _schema("{")),
    Call("register an unknown type", "POST", "/subjects/S/versions", _schema(record(("a", "text")))),
    Call("register nothing", "POST", "/subjects/S/versions", {"schema": ""}),
    Call("compatible?", "POST", "/compatibility/subjects/S/versions/latest", _schema(TWO)),
    Call("incompatible?", "POST", "/compatibility/subjects/S/versions/latest", _schema(REFUSED)),
    Call("register the second", "POST", "/subjects/S/versions", _schema(TWO)),
    Call("register an incompatible one", "POST", "/subjects/S/versions", _schema(REFUSED)),
    Call("versions", "GET", "/subjects/S/versions"),
    Call("latest", "GET", "/subjects/S/versions/latest"),
    Call("first version", "GET", "/subjects/S/versions/1"),
    Call("text of the first version", "GET", "/subjects/S/versions/1/schema"),
    Call("missing version", "GET", "/subjects/S/versions/9"),
    Call("version of an unknown subject", "GET", "/subjects/S-none/versions/1"),
    Call("version 0", "GET", "/subjects/S/versions/0"),
    Call("version that is no number", "GET", "/subjects/S/versions/first"),
    Call("look-up", "POST", "/subjects/S", _schema(TWO)),
    Call("look-up of an unknown schema", "POST", "/subjects/S", _schema(AIRPORT)),
    Call("by id", "GET", "/schemas/ids/{register the second}"),
    Call("subjects of an id", "GET", "/schemas/ids/{register the second}/subjects"),
    Call("versions of an id", "GET", "/schemas/ids/{register the second}/versions"),
    Call("level of a subject without one", "GET", "/config/S"),
    Call("no level for a subject", "PUT", "/config/S", {"compatibility": "NONE"}),
    Call("level of a subject", "GET", "/config/S"),
    Call("register what was refused", "POST", "/subjects/S/versions", _schema(REFUSED)),
    Call("register what is referred to", "POST", "/subjects/S-airport/versions", _schema(AIRPORT)),
    Call("register a reference", "POST", "/subjects/S-route/versions", _schema(ROUTE, references=_AIRPORT)),
    Call("reference by id", "GET", "/schemas/ids/{register a reference}"),
    Call("reference by version", "GET", "/subjects/S-route/versions/1"),
    Call("register without its reference", "POST", "/subjects/S-route/versions", _schema(ROUTE)),
    Call("register JSON Schema", "POST", "/subjects/S-json/versions", _schema(OBJECT, "JSON")),
    Call("JSON Schema by id", "GET", "/schemas/ids/{register JSON Schema}"),
    Call("latest JSON Schema", "GET", "/subjects/S-json/versions/latest"),
    Call("register Protobuf", "POST", "/subjects/S-proto/versions", _schema(MESSAGE, "PROTOBUF")),
    Call("Protobuf by id", "GET", "/schemas/ids/{register Protobuf}"),
    Call("latest Protobuf", "GET", "/subjects/S-proto/versions/latest"),
    Call("delete a version", "DELETE", "/subjects/S/versions/1"),
    Call("deleted version", "GET", "/subjects/S/versions/1"),
    Call("versions that are left", "GET", "/subjects/S/versions"),
    Call("id of a deleted version", "GET", "/schemas/ids/{register the first}"),
    Call("delete a subject", "DELETE", "/subjects/S"),
    Call("latest of a deleted subject", "GET", "/subjects/S/versions/latest"),
    Call("delete an unknown subject", "DELETE", "/subjects/S-none"),
    Call("id of a deleted subject", "GET", "/schemas/ids/{register the second}"),
    Call("register after the deletion", "POST", "/subjects/S/versions", _schema(TWO)),
    Call("versions after the deletion", "GET", "/subjects/S/versions"),
)


def answers(url: str, subject: str) -> dict[str, tuple[int, Any]]:
    """Make all calls; return status and answer of each, with ids in the order in which they were given.

    Of an error, the code is kept and not the text. Of schemas, what they say and not how it is written.
    """
    found: dict[str, tuple[int, Any]] = {}
    numbers: dict[str, int] = {}
    ids: dict[int, str] = {}
    for call in CALLS:
        path = call.path.format_map(numbers).replace("/S", f"/{quote(subject)}")
        status, answer = ask(f"{url}{path}", call.method, _of(call.body, subject))
        if isinstance(answer, dict) and "id" in answer:
            numbers[call.name] = answer["id"]
            ids.setdefault(answer["id"], f"id {len(ids) + 1}")
        found[call.name] = status, _compared(answer, ids, subject)
    return found


def ask(url: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
    """Send one request; return the status and the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": CONTENT}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        text = error.read()
        return error.code, json.loads(text) if text else None


def _of(body: Any, subject: str) -> Any:
    if isinstance(body, dict) and "references" in body:
        references = [each | {"subject": each["subject"].replace("S", subject, 1)} for each in body["references"]]
        return body | {"references": references}
    return body


def _compared(answer: Any, ids: dict[int, str], subject: str) -> Any:
    if isinstance(answer, list):
        return sorted((_compared(each, ids, subject) for each in answer), key=str)
    if isinstance(answer, str):
        return answer.replace(subject, "S", 1)
    if not isinstance(answer, dict):
        return answer
    if "error_code" in answer:
        return answer["error_code"]
    made = dict(answer)
    if "id" in made:
        made["id"] = ids[made["id"]]
    if "schema" in made:
        made["schema"] = _meaning(made["schema"])
    for name in ("subject", "references"):
        if name in made:
            made[name] = json.loads(json.dumps(made[name]).replace(subject, "S", 1))
    return made


def _meaning(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.split()

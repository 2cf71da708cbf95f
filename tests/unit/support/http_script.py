"""A server that answers by script, and what sends to it and reads its answers."""

from __future__ import annotations

from typing import Any

from outfall.http.auth import Credentials, credentials
from outfall.http.options import HttpOptions
from outfall.http.records import HttpRecord
from outfall.http.response_mapping import AnswerReader
from outfall.http.sender import Sender
from outfall.http.statuses import Statuses
from outfall.http.transport import Call, Response, Transport

URL = "https://api.example/events"
LATER = float("inf")
RECORDS = [HttpRecord(b'{"id":%d}' % number, URL) for number in range(3)]


def options(**given: Any) -> HttpOptions:
    return HttpOptions(**({"url": URL} | given))


class Server(Transport):
    """Answers by script, and keeps what it was sent."""

    def __init__(self, *answers: Response | int) -> None:
        self.answers = [Response(answer, {}, b"") if isinstance(answer, int) else answer for answer in answers]
        self.calls: list[Call] = []

    def exchange(self, call: Call) -> Response:
        self.calls.append(call)
        return self.answers.pop(0)

    def close(self) -> None:
        pass


def sender(server: Server, given: HttpOptions, who: Credentials | None = None) -> Sender:
    statuses = Statuses(keyed=True, template=False)
    return Sender(
        given, server, who or credentials(given), statuses, content_type="application/json", clock=lambda: 100.0
    )


def redirect(status: int, location: str) -> Response:
    return Response(status, {"location": location}, b"")


def reader(**given: Any) -> AnswerReader:
    per_item = given.pop("per_item", None)
    made = options(**given)
    return AnswerReader(made, Statuses(keyed=made.keyed, template=False, exceptions=made.statuses), per_item)

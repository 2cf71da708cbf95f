"""Clients of services: those used last are kept by a process, and none that is broken."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from outfall.connections import ConnectionOptions
from outfall.options import make_options
from outfall.process_clients import ProcessClients


@dataclass(frozen=True)
class Access:
    name: str

    def make(self) -> object:
        return object()


@pytest.fixture
def clients() -> ProcessClients[Access]:
    return ProcessClients(2)


def test_those_used_last_are_kept(clients: ProcessClients[Access]) -> None:
    first, second = clients.get(Access("a")), clients.get(Access("b"))
    assert clients.get(Access("a")) is first
    third = clients.get(Access("c"))
    assert clients.get(Access("c")) is third
    assert clients.get(Access("a")) is first
    assert clients.get(Access("b")) is not second


def test_one_that_is_dropped_is_made_anew_once(clients: ProcessClients[Access]) -> None:
    broken = clients.get(Access("a"))
    clients.drop(Access("a"), broken)
    made = clients.get(Access("a"))
    clients.drop(Access("a"), broken)
    assert made is not broken
    assert clients.get(Access("a")) is made


def test_a_variable_that_clients_read_has_clients_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = ProcessClients[Access](environment="AWS_")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://wrong")
    wrong = clients.get(Access("a"))
    monkeypatch.setenv("OTHER", "x")
    assert clients.get(Access("a")) is wrong
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://right")
    right = clients.get(Access("a"))
    assert right is not wrong
    clients.drop(Access("a"), right)
    assert clients.get(Access("a")) is not right


class Connection(ConnectionOptions):
    clients = ProcessClients["Connection"]()
    url: str

    def make(self) -> object:
        return object()


class Options(Connection):
    table: str


def test_sinks_whose_connections_are_equal_share_a_client() -> None:
    def of(**given: object) -> Connection:
        return Connection.of(make_options(Options, given))

    client = of(url="u", table="a").client()
    assert of(url="u", table="b").client() is client
    assert pickle.loads(pickle.dumps(of(url="u", table="a"))).client() is client
    assert of(url="u", table="a", read_timeout=1).client() is not client
    of(url="u", table="b").renew(client)
    assert of(url="u", table="a").client() is not client

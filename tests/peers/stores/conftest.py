"""Emulators of object stores that nobody here wrote."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import fsspec
import pytest

from tests.peers.support import object_stores
from tests.peers.support.object_stores import Emulator


@pytest.fixture(scope="session")
def azurite() -> Iterator[Emulator]:
    with object_stores.azurite() as store:
        yield store


@pytest.fixture(scope="session")
def google() -> Iterator[Emulator]:
    with object_stores.google() as store:
        yield store


@pytest.fixture(params=["azurite", "google"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    found: Emulator = request.getfixturevalue(request.param)
    at(found, monkeypatch)
    return found


@pytest.fixture
def bucket(store: Emulator) -> str:
    name = f"lake-{uuid.uuid4().hex}"
    store.make_bucket(name)
    return name


def at(store: Emulator, monkeypatch: pytest.MonkeyPatch, port: int | None = None) -> None:
    """Let clients of this process find the store, or a proxy in front of it."""
    for name, value in store.environment(port).items():
        monkeypatch.setenv(name, value)
    fsspec.config.set_conf_env(fsspec.config.conf)
    fsspec.get_filesystem_class(store.scheme).clear_instance_cache()

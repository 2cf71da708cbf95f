"""Drivers that are killed, stopped and resumed, while scripts, memory and connections get lost under them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from outfall.redis import RedisSink
from tests.integration.support.keyed_lives import KeyedLives, repeated
from tests.integration.support.redis_server import RedisServer, redis_server, rows_of

FAST: dict[str, Any] = {"retry_backoff": 0.002, "max_retry_backoff": 0.02, "retry_budget": 1.0, "max_batch_size": 20}


def lives_of(server: RedisServer, root: Path, **settings: Any) -> KeyedLives:
    def make_sink() -> RedisSink:
        return RedisSink(server.url, "r:{id}", order_column="n", delete_marker="gone", **FAST)

    return KeyedLives(make_sink, root, **settings)


def as_stored(rows: dict[int, dict[str, Any]]) -> dict[str, dict[str, str]]:
    return {f"r:{key}": {name: str(value) for name, value in row.items()} for key, row in rows.items()}


def disturbing(server: RedisServer, chance: random.Random) -> Any:
    """Lose scripts, responses (the connection is cut after the write) and memory."""
    client = server.client()

    def act() -> None:
        way = chance.choice(["script", "cut", "cut", "full"])
        if way == "script":
            client.script_flush()
        elif way == "cut":
            client.client_kill_filter(_type="normal", skipme=True)
        else:
            client.config_set("maxmemory", "1mb")
            client.config_set("maxmemory", "0")

    return act


@pytest.mark.thorough
def test_a_stopped_driver_that_continues_after_a_later_epoch_overwrites_nothing(
    server: RedisServer, tmp_path: Path
) -> None:
    with lives_of(server, tmp_path, epochs=12, longest_life=0.15) as lives:
        lives.disturb(kills=2, zombies=4)
        lives.finish()
        assert rows_of(server.client()) == as_stored(lives.ideal())


@pytest.mark.thorough
def test_forty_kills_and_twenty_zombies_with_lost_responses_and_partial_failures(
    server: RedisServer, tmp_path: Path
) -> None:
    chance = random.Random(5)
    with lives_of(server, tmp_path, epochs=400) as lives:
        with repeated(disturbing(server, chance), chance):
            lives.disturb(kills=60, zombies=25)
        server.client().config_set("maxmemory", "0")
        lives.finish()
        assert rows_of(server.client()) == as_stored(lives.ideal())
        print(f"{lives.kills} kills, {lives.refused} refused of 25 stopped drivers, {lives.epochs} epochs")
        assert lives.kills >= 40


@pytest.mark.thorough
def test_a_server_that_is_killed_and_started_again_on_its_append_only_file(tmp_path: Path) -> None:
    with redis_server() as server, lives_of(server, tmp_path, epochs=60) as lives:
        for _ in range(8):
            child = lives.start()
            lives.zombies.append(child)
            server.client().ping()
            server.kill()
            server.start()
            server.wait_loaded()
            lives.zombies.remove(child)
            lives.resume(child)
        lives.finish()
        assert rows_of(server.client()) == as_stored(lives.ideal())

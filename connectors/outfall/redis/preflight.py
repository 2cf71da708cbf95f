"""What the settings of a Redis server mean for the guarantee."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from redis.exceptions import ResponseError


def forgets(client: Any, *, cluster: bool, expiring: bool, waiting: bool) -> tuple[list[str], list[str]]:
    """Return why a server may forget acknowledged writes, and which settings could not be read.

    `expiring` says whether keys with an expiry, such as versions of deleted keys, count, and `waiting` whether replicas
    have a write before it counts. Raises the client's errors.
    """
    nodes = [client.get_redis_connection(node) for node in client.get_primaries()] if cluster else [client]
    found: dict[str, None] = {}
    unread: dict[str, None] = {}
    for node in nodes:
        read = _settings(node)
        found |= dict.fromkeys(_forgetting(read, expiring, waiting))
        if not read:
            unread["persistence and memory (INFO is not permitted)"] = None
        if "appendfsync" not in read:
            unread["appendfsync (CONFIG is not permitted)"] = None
    return list(found), list(unread)


def _settings(node: Any) -> dict[str, Any]:
    """Return the settings by their names, from INFO, and from CONFIG where it is permitted."""
    read: dict[str, Any] = {}
    # An ACL or a managed service may forbid either.
    with suppress(ResponseError):
        info = node.info("everything")
        read |= {
            "replicas": info.get("connected_slaves", 0),
            "aof": info.get("aof_enabled"),
            "maxmemory": info.get("maxmemory", 0),
            "maxmemory-policy": info.get("maxmemory_policy"),
        }
    with suppress(ResponseError):
        read |= node.config_get("appendfsync")
    return read


def _forgetting(read: dict[str, Any], expiring: bool, waiting: bool) -> list[str]:
    found = []
    if read.get("aof") == 0:
        found.append("the setting appendonly is no: a restart loses the writes since the last snapshot")
    elif read.get("appendfsync", "always") != "always":
        found.append(f"the setting appendfsync is {read['appendfsync']}: a power loss loses acknowledged writes")
    policy = str(read.get("maxmemory-policy"))
    evicts = policy.startswith("allkeys") or (policy.startswith("volatile") and expiring)
    if read.get("maxmemory") and evicts:
        found.append(f"the setting maxmemory-policy is {policy}: a full server removes keys and versions")
    if read.get("replicas") and not waiting:
        found.append("it has replicas, which get writes after they are acknowledged: a failover may lose some")
    return found

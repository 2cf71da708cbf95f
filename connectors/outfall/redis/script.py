"""The write that carries a version: a script of the server, which is atomic for a key and the key of its version.

The version lies beside the data, under a key of its own: readers see nothing but the rows, and a deleted key keeps its
version. In a cluster both keys have one hash slot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from outfall.versioned import Answer, KeyedRow, Version

PREFIX = "outfall:v:"
"""Before the key of a version."""

WRITE = """
local stored = redis.call('GET', KEYS[2])
local answer = 0
if stored then
  local number, token, rank = string.match(stored, '^(%d+) (%S+) (%x*)$')
  if not number then
    return redis.error_reply('OUTFALL the version of a key is damaged')
  end
  local theirs, ours = tonumber(number), tonumber(ARGV[1])
  if theirs > ours or (theirs == ours and token ~= ARGV[2]) then return 4 end
  if theirs == ours then
    if rank == ARGV[3] then return 1 end
    -- Not `<`, which compares by the locale.
    local length = math.min(#rank, #ARGV[3])
    local place = 1
    while place <= length and string.byte(rank, place) == string.byte(ARGV[3], place) do place = place + 1 end
    if place > length then
      if #rank > #ARGV[3] then return 3 end
    elseif string.byte(rank, place) > string.byte(ARGV[3], place) then
      return 3
    end
    answer = 2
  end
end
-- First what fails without memory: a script is not undone, and once it has written, it is not stopped.
local version = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
if ARGV[5] == '0' then
  redis.call('SET', KEYS[2], version)
else
  redis.call('SET', KEYS[2], version, 'PX', ARGV[5])
end
if ARGV[4] == 'd' then
  redis.call('DEL', KEYS[1])
elseif ARGV[4] == 's' then
  redis.call('SET', KEYS[1], ARGV[7])
else
  redis.call('DEL', KEYS[1])
  for place = 7, #ARGV, 1000 do
    redis.call('HSET', KEYS[1], unpack(ARGV, place, math.min(place + 999, #ARGV)))
  end
end
if ARGV[4] ~= 'd' and ARGV[6] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[6]) end
return answer
"""
"""Keys: the data, its version. Arguments: number, token, rank, what (`d`elete, `s`tring, `h`ash), milliseconds that the
version and the data are kept (0: forever), and what is written. An even number per `HSET`: 1000."""

SHA = hashlib.sha1(WRITE.encode(), usedforsecurity=False).hexdigest()
"""The name of the script on a server that knows it."""

ANSWERS = [Answer.WRITTEN, Answer.SAME, Answer.REPLACED, Answer.OUTRANKED, Answer.STALE]
"""By the number that the script returns."""


def version_key(key: str) -> str:
    """Return the key of the version of `key`, in the same hash slot.

    Raises `ValueError` for the few keys that have none: with a closing brace, and without a hash tag.
    """
    opened = key.find("{")
    closed = key.find("}", opened + 1) if opened >= 0 else -1
    if opened >= 0 and closed > opened + 1:
        return PREFIX + key  # the same hash tag
    if "}" in key:
        raise ValueError("it contains } without a hash tag, so its version would lie in another hash slot")
    return f"{PREFIX}{{{key}}}"


def arguments(entry: KeyedRow, version: Version, ttl: int, retention: int) -> Sequence[bytes | str | int]:
    """Return the keys and the arguments of the script for a row. Times in milliseconds; a `ttl` of 0 means none."""
    body = entry.body
    kept = retention + ttl if body is None or ttl else 0
    what = "d" if body is None else "h" if isinstance(body, list) else "s"
    values = body if isinstance(body, list) else () if body is None else (body,)
    head = (entry.key, version_key(entry.key), version.number, version.token, entry.rank.hex(), what, kept, ttl)
    return (*head, *values)

"""The script of the server that writes rows, atomically for a row and its version.

The version of a row is stored separately, under its own key: readers see nothing but the rows, and a deleted key keeps
its version. One call of the script writes several rows, and has one response.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from outfall.redis.packing import bulk
from outfall.versioned import Answer, KeyedRow, Version

WRITE = """
local ours, token, ttl = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local answers, at = {}, 6

local function compared(stored, rank)
  local number, theirs, other = string.match(stored, '^(%d+) (%S+) (%x*)$')
  if not number then return nil end
  number = tonumber(number)
  if number < ours then return 0 end
  if number > ours or theirs ~= token then return 4 end
  if other == rank then return 1 end
  -- Not `<`, which compares by the locale.
  for place = 1, math.min(#other, #rank) do
    local byte, own = string.byte(other, place), string.byte(rank, place)
    if byte ~= own then return byte > own and 3 or 2 end
  end
  return #other > #rank and 3 or 2
end

for place = 1, #KEYS, ours > 0 and 2 or 1 do
  local key, rank, what, answer = KEYS[place], ARGV[at], ARGV[at + 1], 0
  local fields = what == 'd' and 0 or what == 's' and 1 or tonumber(what)
  if ours > 0 then
    local stored = redis.call('GET', KEYS[place + 1])
    if stored then answer = compared(stored, rank) end
    if not answer then return redis.error_reply('OUTFALL the version of a key is damaged') end
  end
  if answer == 0 or answer == 2 then
    -- First what fails without memory: a script is not undone, and once it has written, it is not stopped.
    if ours > 0 then
      local version = ARGV[1] .. ' ' .. token .. ' ' .. rank
      local kept = what == 'd' and ARGV[5] or ARGV[4]
      if kept == '0' then
        redis.call('SET', KEYS[place + 1], version)
      else
        redis.call('SET', KEYS[place + 1], version, 'PX', kept)
      end
    end
    if what == 's' then
      redis.call('SET', key, ARGV[at + 2])
    else
      redis.call('DEL', key)
      for first = at + 2, at + 1 + fields, 1000 do
        redis.call('HSET', key, unpack(ARGV, first, math.min(first + 999, at + 1 + fields)))
      end
    end
    if what ~= 'd' and ttl ~= '0' then redis.call('PEXPIRE', key, ttl) end
  end
  answers[#answers + 1] = answer
  at = at + 2 + fields
end
return table.concat(answers)
"""
"""Keys: of each row, with versions also the key of its version. Arguments: number (0: no versions), token, and
milliseconds (0: forever) that data, the versions of rows and those of deletes are kept. Then of each row: its rank,
what (`d`elete, `s`tring, or the number of arguments of `HSET`), and what is written. An even number per `HSET`: 1000.
Returns a digit per row, of `ANSWERS`."""

SHA = hashlib.sha1(WRITE.encode(), usedforsecurity=False).hexdigest()
"""The name of the script on a server that knows it."""

ANSWERS = [Answer.WRITTEN, Answer.SAME, Answer.REPLACED, Answer.OUTRANKED, Answer.STALE]
"""By the digit that the script returns."""


@dataclass(frozen=True)
class Lives:
    """How long things are kept, in milliseconds; 0 means forever."""

    rows: int
    tombstones: int
    """The versions of deleted and expired rows, beyond the life of a row."""


def call(entries: Sequence[KeyedRow], version: Version | None, lives: Lives) -> bytes:
    """Return one call of the script for these rows."""
    number, token = (0, "") if version is None else (version.number, version.token)
    kept = lives.tombstones + lives.rows if lives.rows else 0
    shared = b"".join([bulk(each) for each in (number, token, lives.rows, kept, lives.tombstones + lives.rows)])
    keys = len(entries) * (1 if version is None else 2)
    count = 8 + keys + sum(entry.write.size for entry in entries)
    head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n%b" % (count, SHA.encode(), bulk(keys))
    names = b"".join([entry.write.keys for entry in entries])
    return b"".join([head, names, shared, *(entry.write.arguments for entry in entries)])

"""What the files of a log are called, and how the names are read back."""

from __future__ import annotations

import re
import uuid

from outfall.errors import ConfigurationError, RecordError

_STEP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_ENTRY = re.compile(r"([0-9]{20})\.json")
_TEMPORARY = re.compile(r"\.tmp-([0-9]{20})-[0-9a-f]{32}")
# What follows is where Kafka had it; a state keeps its name in every store that it is copied to.
_STATE = re.compile(r"g([0-9]+)-[A-Za-z0-9._-]*-[0-9a-f]{32}\.state(\.[0-9]{1,19}-[0-9]{1,9})?")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_STATE_LABEL = 80


def check_step_id(step_id: str) -> str:
    """Return a step id that can be the name of a directory or of a table.

    Raises:
        ConfigurationError: it cannot.
    """
    # Refused rather than escaped: two ids must never meet in one directory, and people look for theirs with `ls`.
    if not isinstance(step_id, str) or not _STEP_ID.fullmatch(step_id):
        raise ConfigurationError(
            f"{step_id!r} cannot be a step id",
            why="its recovery data is kept under that name",
            do="give up to 200 letters, digits, '.', '_' or '-' of ASCII, the first a letter or digit",
        )
    return step_id


def is_step_id(name: str) -> bool:
    """Whether a name can be that of a step's directory or database."""
    return _STEP_ID.fullmatch(name) is not None


def entry_name(number: int) -> str:
    """Name the file of an entry. Names sort as their numbers do."""
    return f"{number:020d}.json"


def entry_number(name: str) -> int | None:
    """Return the number of an entry's file; `None` for any other file."""
    return _number(_ENTRY, name)


def temporary_name(number: int) -> str:
    """Name a file that becomes entry `number` when it is whole."""
    return f".tmp-{number:020d}-{uuid.uuid4().hex}"


def temporary_number(name: str) -> int | None:
    """Return the number of the entry that a file was to become; `None` for any other file."""
    return _number(_TEMPORARY, name)


def state_name(label: str, generation: int) -> str:
    """Name the file of a large state. Never the same twice."""
    return f"g{generation}-{_UNSAFE.sub('_', label)[:_STATE_LABEL]}-{uuid.uuid4().hex}.state"


def state_generation(name: str) -> int | None:
    """Return the generation that wrote a state's file; `None` for any other file."""
    return _number(_STATE, name)


def check_state_name(name: str) -> str:
    """Return the name of a state that was read in a record.

    Raises:
        RecordError: it is none that `state_name` gives, and might lead out of the directory.
    """
    if state_generation(name) is None:
        raise RecordError(f"{name!r} is not the name of a state", do="restore the recovery data from a copy")
    return name


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return None if match is None else int(match[1])

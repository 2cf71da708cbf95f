"""One family; texts that say what, where, why and what to do; errors that travel between processes."""

from __future__ import annotations

import pickle

import pytest

from outfall import errors
from outfall.errors import OutfallError, TerminalError, TransientError, require_extra

FAMILY = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, OutfallError) and value is not OutfallError
]


def test_a_text_has_place_event_cause_and_advice_in_this_order() -> None:
    error = OutfallError("the file is short.", step="s", epoch=0, part="p", why="it was cut", do="restore it")
    assert str(error) == ("[step 's', epoch 0, part 'p'] the file is short. It was cut. What to do: restore it.")
    assert (error.step, error.epoch, error.part) == ("s", 0, "p")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OutfallError("what"), "what."),
        (OutfallError("what", do="this"), "what. What to do: this."),
        (OutfallError("what", part=""), "[part ''] what."),
        (OutfallError("what", why="parts_added is an option"), "what. parts_added is an option."),
    ],
)
def test_what_is_unknown_is_left_out(error: OutfallError, text: str) -> None:
    assert str(error) == text


def test_a_cause_is_one_line_and_nothing_controls_a_terminal() -> None:
    error = TransientError(
        "the options are wrong:\n- a\x1b[2J", why="connection failed:\n\tno\x9b2J host", do="ask\nit"
    )
    assert str(error) == ("the options are wrong:\n- a\\x1b[2J. Connection failed: no\\x9b2J host. What to do: ask it.")


def test_no_text_of_a_caught_error_controls_a_terminal() -> None:
    first, second = ValueError("a\x1b[2J"), OSError(5, "b\x07\nline")
    second.__context__ = first
    try:
        raise second
    except OSError:
        OutfallError("it failed")
    assert first.args == ("a\\x1b[2J",)
    assert second.args == (5, "b\\x07\nline")


def test_a_place_is_added_where_none_is_known_and_travels() -> None:
    error = OutfallError("what", do="this")
    error.locate(step="s", epoch=3)
    error.locate(step="other", epoch=4)
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == "[step 's', epoch 3] what. What to do: this."
    assert (error.step, error.epoch) == ("s", 3)


@pytest.mark.parametrize("kind", FAMILY, ids=lambda kind: kind.__name__)
def test_every_error_is_terminal_or_transient(kind: type[OutfallError]) -> None:
    assert issubclass(kind, TerminalError) != issubclass(kind, TransientError)
    assert kind.__doc__


@pytest.mark.parametrize("kind", [OutfallError, *FAMILY], ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling(kind: type[OutfallError]) -> None:
    error = kind("what happened", step="s", epoch=3, part="p", why="because", do="this")
    travelled = pickle.loads(pickle.dumps(error))
    assert type(travelled) is kind
    assert str(travelled) == str(error)
    assert (travelled.step, travelled.epoch, travelled.part) == ("s", 3, "p")
    assert str(pickle.loads(pickle.dumps(travelled))) == str(error)


def test_a_missing_extra_names_its_install_line() -> None:
    require_extra("postgres", "json")
    with pytest.raises(ImportError, match=r"'no_such_driver' is not installed.*pip install 'outfall\[postgres\]'"):
        require_extra("postgres", "json", "no_such_driver")

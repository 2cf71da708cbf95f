"""The options of a sink are those of its model, and its constructor shows each of them with its type."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_type_hints

import pytest

from outfall.errors import ConfigurationError
from tests.generated import destinations

SINKS = {type(sink).__name__: sink for package in destinations() for sink in package.facts.sinks.values()}
"""One of each class."""
BESIDE = {"dead_letter", "session_factory", "auth", "session", "per_item"}
"""Arguments that are no options: a sink, an object or a function."""


@pytest.mark.parametrize("name", SINKS)
def test_a_constructor_takes_the_options_of_the_model(name: str) -> None:
    sink: Any = SINKS[name]
    model = type(sink.options)
    assert named(type(sink).__init__) - BESIDE == {*model.model_fields, *model.aliases, *model.elsewhere}


@pytest.mark.parametrize("name", SINKS)
def test_a_constructor_rejects_what_is_no_option(name: str) -> None:
    with pytest.raises(ConfigurationError, match="no_such_option"):
        type(SINKS[name])(no_such_option=1)


@pytest.mark.parametrize("name", SINKS)
def test_errors_show_the_keys_of_a_row_by_default(name: str) -> None:
    fields = type(SINKS[name].options).model_fields
    assert "log_rows" in fields or not fields.keys() & {"max_dead_letters", "key_columns"}
    assert "log_rows" not in fields or fields["log_rows"].default == "keys"


def named(constructor: Any) -> set[str]:
    """The names of arguments, with those of a TypedDict."""
    found: set[str] = set()
    for parameter in inspect.signature(constructor).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            (keywords,) = get_args(get_type_hints(constructor)[parameter.name])
            found |= get_type_hints(keywords).keys()
        else:
            found.add(parameter.name)
    return found - {"self"}

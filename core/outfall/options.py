"""Options of sinks: one pydantic model each, from which constructor, `format("outfall")` and documentation come.

The types of values, the table for the documentation and the values of secrets have modules of their own, and can be
imported from here too.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from outfall.capabilities import SaveMode
from outfall.errors import ConfigurationError
from outfall.existing import EXISTING, ON_EXISTING, Existing
from outfall.option_table import options_table
from outfall.option_values import (
    Duration,
    Limit,
    Names,
    NamesByName,
    Pairs,
    parse_duration,
    parse_endpoint,
    parse_limit,
    parse_names,
    parse_pairs,
)
from outfall.secret_values import known_values, resolve_secret
from outfall.urls import MASK, masked

__all__ = [
    "Alias",
    "Duration",
    "Limit",
    "Names",
    "NamesByName",
    "Pairs",
    "SinkOptions",
    "known_values",
    "make_options",
    "names_arguments",
    "options_in_save_mode",
    "options_table",
    "parse_duration",
    "parse_endpoint",
    "parse_limit",
    "parse_names",
    "parse_options",
    "parse_pairs",
    "resolve_secret",
]

_ALIKE, _EQUALLY = 0.6, 0.05
_LONGEST = 100


P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound="SinkOptions")  # noqa: E741 - O for options


@dataclass(frozen=True)
class Alias:
    """Another name of an option.

    Args:
        option: The name of the field.
        convert: Returns the field's value if the alias has another unit. Raises `ValueError` for an invalid value.
    """

    option: str
    convert: Callable[[Any], Any] = lambda value: value


class SinkOptions(BaseModel):
    """Base class of a sink's options. Every field has a description, which becomes its row in the documentation.

    Secrets are `SecretStr` fields. `resolve_secret` reads them only when they are used.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    aliases: ClassVar[Mapping[str, Alias]] = {}
    """Other names of options. An option that is given under two of its names is an error."""
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Options that only other sinks have, but that may be expected here → what to do instead."""
    owner: ClassVar[str] = ""
    """The owner of these options in errors. Defaults to the class name, with `Sink` in place of `Options`."""

    @property
    def existing(self) -> Existing:
        """What the option `on_existing` means, of a sink that checks its target."""
        return EXISTING[getattr(self, "on_existing")]  # noqa: B009 - not all sinks have the option

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Return the fields for `repr` and `str`, with URLs without user, password, query and fragment."""
        return ((name, _masked(value)) for name, value in super().__repr_args__())


def make_options(model: type[O], values: Mapping[str, Any]) -> O:
    """Validate options with the names of the model, as passed to a constructor.

    Raises:
        ConfigurationError: Names every invalid option, and contains no secret.
    """
    names = {name: name for name in _names(model)}
    return _validated(model, [(given, names.get(given), value) for given, value in values.items()])


def arguments_for(model: type[SinkOptions], local: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor that are options of the model, from its `locals()`."""
    return {name: value for name, value in local.items() if name in model.model_fields}


def names_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Raise a `ConfigurationError` with the nearest name for an unknown keyword argument.

    A decorator for functions and for `__init__`. It preserves the signature, also for type checkers and editors.
    """
    owner = function.__qualname__.removesuffix(".__init__")
    parameters = inspect.signature(function).parameters.values()

    @functools.cache
    def known() -> list[str]:
        names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:  # **options: Unpack[SomeTypedDict]
                names += get_args(get_type_hints(function)[parameter.name])[0].__annotations__
        return [name for name in names if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = [name for name in kwargs if name not in known()]
        if unknown:
            raise _wrong_options(owner, known(), [(name, _unknown(name, known())) for name in unknown])
        return function(*args, **kwargs)

    return checked


class OptionTexts(dict[str, str]):
    """Options of a sink as strings, and additional ones that the sink gets only if it has them.

    `parse_options` removes from `offered` each option that the model has. The caller handles the others.

    Args:
        own: The options of the sink.
        offered: The options that may be the sink's.
        known: Names of options that are not the sink's, to suggest one of them for a misspelled name.
    """

    def __init__(self, own: Mapping[str, str], offered: Mapping[str, str], known: Collection[str]) -> None:
        super().__init__(own)
        self.offered = dict(offered)
        self.known = known


def parse_options(model: type[O], options: Mapping[str, str]) -> O:
    """Validate options given as strings by Spark: `batchBytes`, `batch_bytes` and `batchbytes` are one option.

    Raises:
        ConfigurationError: Names every option that is unknown, duplicate or invalid, and contains no secret.
    """
    names = {plain_name(name): name for name in _names(model)}
    texts = dict(options)
    others: Collection[str] = ()
    if isinstance(options, OptionTexts):
        others = options.known
        texts |= {given: options.offered.pop(given) for given in list(options.offered) if plain_name(given) in names}
    return _validated(model, [(given, names.get(plain_name(given)), value) for given, value in texts.items()], others)


def plain_name(name: str) -> str:
    """Return the form in which names are compared: `onExisting` and `on_existing` are one option."""
    return name.replace("_", "").lower()


def in_own_case(value: Any, words: Iterable[str]) -> Any:
    """Return the word that equals the value except for its case, or the value itself if there is none."""
    return {word.lower(): word for word in words}.get(value.lower(), value) if isinstance(value, str) else value


def nearest_name(given: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar, or two joined by "or"; `None` if none is similar.

    Compares the letters both in order and in any order, because words of a name are easily swapped.
    """

    def likeness(name: str) -> float:
        matcher = difflib.SequenceMatcher(None, plain_name(given), plain_name(name))
        return (matcher.ratio() + matcher.quick_ratio()) / 2

    found = sorted(((likeness(name), name) for name in known), reverse=True)[:2]
    alike = [name for score, name in found if score >= max(_ALIKE, found[0][0] - _EQUALLY)]
    return " or ".join(alike) or None


def options_in_save_mode(options: O, mode: SaveMode | None) -> O:
    """Return options with the `on_existing` of a save mode of Spark, for `SupportsTarget.in_save_mode`.

    Raises:
        ConfigurationError: `on_existing` was given and contradicts the mode.
    """
    given: str = getattr(options, "on_existing")  # noqa: B009 - only sinks that check their target have the option
    is_default = given == type(options).model_fields["on_existing"].default
    means = ON_EXISTING[mode or "error"]
    if given == means or (mode is None and not is_default):
        return options
    if not is_default:
        raise ConfigurationError(
            f"mode={mode!r} and on_existing={given!r} contradict each other", do="omit one of them"
        )
    return options.model_copy(update={"on_existing": means})


def _names(model: type[SinkOptions]) -> list[str]:
    return [*model.model_fields, *model.aliases]


def _validated(model: type[O], options: Iterable[tuple[str, str | None, Any]], others: Collection[str] = ()) -> O:
    """Validate options, given as triples of their name as given, their resolved name or `None`, and their value."""
    problems: list[tuple[str, str]] = []
    values: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for given, name, value in options:
        if name is None:
            instead = {plain_name(option): text for option, text in model.elsewhere.items()}.get(plain_name(given))
            problems.append((given, instead or _unknown(given, _names(model), others)))
            continue
        alias = model.aliases.get(name, Alias(name))
        if alias.option in given_as:
            problems.append((name, f"given twice, also as {given_as[alias.option]}; omit one of them"))
            continue
        given_as[alias.option] = name
        try:
            words = _words(model.model_fields[alias.option].annotation)
            values[alias.option] = in_own_case(alias.convert(value), words)
        except ValueError as error:
            problems.append((name, _with_value(str(error), value)))
    try:
        made = model.model_validate(values)
    except ValidationError as error:
        # Rules about several options may have failed because one of them is misspelled.
        found = [item for item in error.errors(include_url=False) if item["loc"] or not problems]
        problems += [_problem(model, item, given_as) for item in found]
    else:
        if not problems:
            return made
    owner = model.owner or model.__name__.removesuffix("Options").removesuffix("Sink") + "Sink"
    raise _wrong_options(owner, _names(model), problems)


def _wrong_options(owner: str, known: Sequence[str], problems: Sequence[tuple[str, str]]) -> ConfigurationError:
    """Return the error for invalid options with their names. The name is empty if several are invalid together."""
    if len(problems) == 1:
        ((name, text),) = problems
        what = f"option {name} of {owner}: {text}" if name else f"options of {owner}: {text}"
    else:
        lines = [f"{name}: {text}" if name else text for name, text in problems]
        what = f"options of {owner} are wrong:\n- " + "\n- ".join(lines)
    # A user who passes an invalid value already has the name of the option.
    lost = any(text == _UNKNOWN for _, text in problems)
    return ConfigurationError(what, do=f"use one of: {', '.join(known)}" if lost else None)


def _problem(model: type[SinkOptions], item: ErrorDetails, given_as: Mapping[str, str]) -> tuple[str, str]:
    cause = item.get("ctx", {}).get("error")
    text = str(cause) if isinstance(cause, ValueError) else item["msg"].replace("Input should be", "must be")
    if not item["loc"]:
        return "", text
    name = str(item["loc"][0])
    if item["type"] == "missing":
        return name, "missing"
    hidden = _holds_secret(model.model_fields[name].annotation)
    return given_as.get(name, name), text if hidden else _with_value(text, item["input"])


def _with_value(text: str, value: Any) -> str:
    quoted = repr(_masked(value))
    if isinstance(value, str) and quoted in text:
        return text
    return f"{text}, not {quoted if len(quoted) <= _LONGEST else quoted[:_LONGEST] + '…'}"


def _masked(value: Any) -> Any:
    """Return a value for an error or `repr`: without secrets except references to them, URLs without credentials."""
    if isinstance(value, Mapping):
        return {name: _masked(item) for name, item in value.items()}
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        return text if text.startswith(("env:", "file:")) else MASK
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    return masked(value) if isinstance(value, str) and (":/" in value or "@" in value) else value


_UNKNOWN = "unknown"


def _unknown(given: str, known: Iterable[str], others: Iterable[str] = ()) -> str:
    nearest = nearest_name(given, known) or nearest_name(given, others)
    return f"unknown, did you mean {nearest}?" if nearest else _UNKNOWN


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(_holds_secret(arg) for arg in get_args(annotation))


def _words(annotation: Any) -> list[str]:
    """Return the strings that an annotation accepts in a `Literal`."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    return [word for arg in get_args(annotation) for word in _words(arg)]
